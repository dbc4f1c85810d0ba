//! What requests draw on, from the widest to the narrowest: what all workers share ([`Common`]),
//! what one of them keeps ([`Local`]), for one snapshot ([`View`]), for one connection
//! ([`Client`]). Made by the workers.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::access_log::AccessLog;
use super::delay::WaitingRoom;
use super::hop::{Hop, Via};
use super::inspect::Inspector;
use super::pool::{Pools, Servers};
use super::slot::Slot;
use crate::limit::Limiter;
use crate::limit::store::Store;
use crate::limit::store::memory::Memory;
use crate::metrics::Metrics;
use crate::snapshot::{Current, Snapshot};

#[derive(Clone)]
pub struct Common {
    pub current: Current,
    pub metrics: Metrics,
    pub memory: Arc<Memory>,
    pub via: Via,
    pub access_log: AccessLog,
}

pub struct Local {
    pub common: Common,
    pub pools: Pools,
    /// Requests held back until their turn.
    pub waiting: Rc<WaitingRoom>,
    view: RefCell<Rc<View>>,
}

/// What a request holds from start to end, which pins the snapshot without touching a counter that
/// other cores touch.
pub struct View {
    pub snapshot: Arc<Snapshot>,
    pub limiter: Limiter,
    /// Of `config.upstreams`, same index.
    pub upstreams: Vec<Servers>,
}

/// What every request of a connection shares.
pub struct Client {
    pub local: Rc<Local>,
    pub slot: Rc<Slot>,
    /// The peer; `127.0.0.1` on a Unix socket.
    pub peer: IpAddr,
    /// What its forwarding headers say.
    pub hop: Hop,
    /// Follows the bytes for what the parser repairs; under `strict` only.
    pub inspector: Option<RefCell<Inspector>>,
}

impl Local {
    pub fn new(common: Common) -> Local {
        let pools = Pools::default();
        let view = View::new(common.current.load_full(), None, &pools, &common);
        Local { view: RefCell::new(Rc::new(view)), common, pools, waiting: Rc::default() }
    }

    /// The snapshot in force with what this worker keeps for it.
    pub fn view(&self) -> Rc<View> {
        let mut view = self.view.borrow_mut();
        let current = self.common.current.load();
        if !Arc::ptr_eq(&current, &view.snapshot) {
            *view = Rc::new(View::new(Arc::clone(&current), Some(&**view), &self.pools, &self.common));
        }
        view.clone()
    }

    /// The view as it was asked for last: nothing of a newer snapshot is made.
    pub fn last_view(&self) -> Rc<View> {
        self.view.borrow().clone()
    }
}

impl View {
    /// The view of `snapshot`; the store link and the pools of unchanged servers are taken over
    /// from `previous`.
    fn new(snapshot: Arc<Snapshot>, previous: Option<&View>, pools: &Pools, common: &Common) -> View {
        let Common { memory, metrics, .. } = common;
        let settings = &snapshot.config.store;
        let kept = previous.filter(|view| view.snapshot.config.store.same_but_tls(settings));
        let store =
            kept.map_or_else(|| Store::open(settings, memory, metrics), |view| view.limiter.desk().store.clone());
        if let Store::Redis(redis) = &store {
            redis.set_tls(&settings.tls);
        }
        View {
            limiter: Limiter::new(store, kept.map(|view| &view.limiter), memory, &settings.prefix, metrics),
            upstreams: snapshot.config.upstreams.iter().map(|upstream| pools.servers(upstream, metrics)).collect(),
            snapshot,
        }
    }
}
