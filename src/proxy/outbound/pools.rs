//! The connection pools of one worker, one per server. They survive a reload that keeps the server. Used by
//! `select::selector` and `select::endpoint`; the worker sweeps them regularly.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use crate::descriptors;
use crate::proxy::outbound::bulk::BulkBudget;
use crate::proxy::outbound::pool::{PoolCap, ServerPool, WorkerShared};
use crate::upstream::endpoint::Endpoint;

/// A server. If its connections are limited, also the upstream whose own they are.
type PoolKey = (Endpoint, Option<String>);

/// The pools of all servers in this worker. Cheap to clone.
#[derive(Clone)]
pub struct Pools {
    servers: Rc<RefCell<HashMap<PoolKey, Rc<ServerPool>>>>,
    shared: WorkerShared,
    /// Shortages of file descriptors that this worker has noticed.
    shortages: Rc<Cell<usize>>,
}

impl Default for Pools {
    fn default() -> Pools {
        let (now_ms, max_unread) = (Rc::<Cell<u64>>::default(), Rc::<Cell<usize>>::default());
        let bulk = Rc::new(BulkBudget::new(now_ms.clone(), max_unread.clone()));
        Pools { servers: Rc::default(), shared: WorkerShared { now_ms, max_unread, bulk }, shortages: Rc::default() }
    }
}

impl Pools {
    /// Returns the pool of a server, and makes it if there is none.
    pub fn get_or_create(&self, endpoint: &Endpoint, cap: Option<PoolCap>) -> Rc<ServerPool> {
        let make = || Rc::new(ServerPool::new(endpoint, self.shared.clone()));
        let key = (endpoint.clone(), cap.as_ref().map(|cap| cap.upstream.clone()));
        let pool = self.servers.borrow_mut().entry(key).or_insert_with(make).clone();
        pool.set_cap(cap);
        pool
    }

    /// Bounds the bytes of a response that the kernel buffers, for new connections. 0 leaves that to the kernel.
    pub fn limit_receive_buffers(&self, max: usize) {
        self.shared.max_unread.set(max);
    }

    /// Returns the worker's coarse clock in milliseconds: the time of the last sweep.
    pub fn now_ms(&self) -> u64 {
        self.shared.now_ms.get()
    }

    /// Closes connections that are idle for too long, and drops the pools of servers that no config has any more.
    pub fn sweep(&self, now_ms: u64) {
        self.shared.now_ms.set(now_ms);
        let shortages = descriptors::shortage_count();
        if self.shortages.replace(shortages) != shortages {
            self.close_idle();
        }
        self.shared.bulk.sweep();
        self.servers.borrow_mut().retain(|_, server| {
            server.sweep(now_ms);
            server.serve_claim();
            Rc::strong_count(server) > 1
        });
    }

    /// Returns the size of the buffers that bulk transfers share, in kilobytes.
    pub fn shared_buffers_kb(&self) -> usize {
        self.shared.bulk.buffers_kb()
    }

    /// Closes all unused connections to free their file descriptors.
    pub fn close_idle(&self) {
        self.servers.borrow().values().for_each(|server| server.close_idle());
    }
}
