//! What requests draw on, from the widest to the narrowest: what all workers share ([`Common`]),
//! what one of them keeps ([`Local`]), for one snapshot ([`View`]), for one connection
//! ([`Client`]). Made by the workers.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Cache;

use crate::access_log::AccessLog;
use crate::http::answer::ratelimit::Policies;
use crate::http::complaints::Complaints;
use crate::http::connections::Ticket;
use crate::http::deadline::ConnectionDeadline;
use crate::http::delay::WaitingRoom;
use crate::http::downstream::gate::LastHost;
use crate::http::downstream::hop::{Hop, Via};
use crate::http::downstream::inspect::Inspector;
use crate::http::tunnel::{Tunnel, Tunnels};
use crate::http::untrusted::UntrustedForwarding;
use crate::http::upstream::pool::Pools;
use crate::http::upstream::servers::Servers;
use crate::limit::Limiter;
use crate::limit::desk::Desk;
use crate::limit::store::settings::StoreSettings;
use crate::limit::store::{Store, Stores};
use crate::metrics::Metrics;
use crate::snapshot::{Current, Fleet, RouteHandles, Snapshot};
use crate::spans::Spans;
use crate::tls::TlsPeer;

#[derive(Clone)]
pub struct Common {
    pub current: Current,
    pub metrics: Metrics,
    pub stores: Stores,
    /// What all workers know of the servers.
    pub fleet: Fleet,
    pub via: Via,
    pub access_log: AccessLog,
    pub spans: Spans,
    pub complaints: Arc<Complaints>,
    /// Requests held back until their turn.
    pub waiting: Arc<WaitingRoom>,
    pub tunnels: Arc<Tunnels>,
}

pub struct Local {
    pub common: Common,
    pub pools: Pools,
    /// Every answer of HTTP/1.1 is the last of its connection.
    pub leaving: Cell<bool>,
    /// Room to gather what leaves in one write; holds nothing in between.
    pub gathered: RefCell<Vec<u8>>,
    /// Lent to tunnels for each of their reads.
    pub room: RefCell<Vec<u8>>,
    /// The snapshot in force, looked at without writing what other workers read.
    current: RefCell<Cache<Current, Arc<Snapshot>>>,
    view: RefCell<Rc<View>>,
    /// A store opened for the next snapshot.
    next: RefCell<Option<(StoreSettings, Store)>>,
    /// Of stores that only requests under way still use.
    old_desks: RefCell<Vec<Weak<Desk>>>,
}

/// What a request holds from start to end, which pins the snapshot without touching a counter that
/// other cores touch.
pub struct View {
    pub snapshot: Arc<Snapshot>,
    pub limiter: Limiter,
    /// Of `config.upstreams`, same index.
    pub upstreams: Vec<Servers>,
    pub ratelimit: Policies,
    /// What this worker counts on for requests that no route takes.
    pub unmatched: Rc<RouteHandles>,
    /// Of `config.routes`, same index: made with the first request, for most workers see few routes.
    handles: Vec<OnceCell<Rc<RouteHandles>>>,
    worker: usize,
}

/// What every request of a connection shares.
pub struct Client {
    pub local: Rc<Local>,
    pub ticket: Ticket,
    /// The address it was accepted at, as the log and the metrics name it.
    pub listener: Rc<str>,
    /// Of that listener.
    pub untrusted: Rc<UntrustedForwarding>,
    /// It has sent some of those fields.
    pub forwards: Cell<bool>,
    /// The version of TLS that it speaks.
    pub tls_version: Option<&'static str>,
    /// The peer; `127.0.0.1` on a Unix socket.
    pub peer: IpAddr,
    /// The peer's port.
    pub port: u16,
    /// The address that it has asked.
    pub asked: SocketAddr,
    /// What its forwarding headers say.
    pub hop: Hop,
    /// What the handshake has told; none without TLS.
    pub tls: Option<Box<TlsPeer>>,
    /// Its requests are redirected to HTTPS, on this port.
    pub redirect_port: Option<u16>,
    pub last_host: LastHost,
    /// Follows the bytes for what the parser repairs; under `strict` only.
    pub inspector: Option<RefCell<Inspector>>,
    /// An interim answer that goes out before the answer under way, of which nothing is written yet.
    pub early: RefCell<Vec<u8>>,
    /// What the connection becomes once its last answer, a 101, has been written.
    pub tunnel: Cell<Option<Box<Tunnel>>>,
}

impl Client {
    pub fn deadline(&self) -> &Rc<ConnectionDeadline> {
        self.ticket.deadline()
    }
}

impl Local {
    pub fn new(common: Common) -> Local {
        let pools = Pools::default();
        pools.sweep(common.fleet.now_ms());
        let view = View::new(common.current.load_full(), None, None, &pools, &common);
        Local {
            leaving: Cell::new(false),
            gathered: RefCell::default(),
            room: RefCell::default(),
            view: RefCell::new(Rc::new(view)),
            current: RefCell::new(Cache::new(common.current.clone())),
            next: RefCell::default(),
            old_desks: RefCell::default(),
            common,
            pools,
        }
    }

    /// The snapshot in force with what this worker keeps for it.
    pub fn view(&self) -> Rc<View> {
        let mut view = self.view.borrow_mut();
        let mut current = self.current.borrow_mut();
        let current = current.load();
        if !Arc::ptr_eq(current, &view.snapshot) {
            let next = View::new(Arc::clone(current), Some(&**view), self.next.take(), &self.pools, &self.common);
            let desk = view.limiter.desk();
            if !Rc::ptr_eq(desk, next.limiter.desk()) {
                desk.retire();
                let mut desks = self.old_desks.borrow_mut();
                desks.retain(|desk| desk.strong_count() > 0);
                desks.push(Rc::downgrade(desk));
            }
            *view = Rc::new(next);
        }
        view.clone()
    }

    /// Opens the store of `settings` for a snapshot to come and lets it settle.
    pub async fn reach(&self, settings: StoreSettings) {
        let view = self.view();
        if view.snapshot.config.store.same_but_tls(&settings) {
            return view.limiter.desk().store.first_attempt().await;
        }
        let store = self.common.stores.open(&settings);
        store.first_attempt().await;
        *self.next.borrow_mut() = Some((settings, store));
    }

    /// The back offices that may still have something to bring to a store, and the deadline there.
    pub fn desks(&self) -> (Vec<Rc<Desk>>, Duration) {
        let mut desks: Vec<Rc<Desk>> = self.old_desks.borrow().iter().filter_map(Weak::upgrade).collect();
        let view = self.view.borrow();
        desks.push(view.limiter.desk().clone());
        (desks, view.snapshot.config.store.deadline)
    }
}

impl View {
    /// The view of `snapshot`; the store link and the pools of unchanged servers are taken over
    /// from `previous`. `opened`: a store made in advance, if its settings have changed.
    fn new(
        snapshot: Arc<Snapshot>,
        previous: Option<&View>,
        opened: Option<(StoreSettings, Store)>,
        pools: &Pools,
        common: &Common,
    ) -> View {
        let Common { stores, metrics, .. } = common;
        pools.bound_unread(snapshot.config.server.max_unread);
        let settings = &snapshot.config.store;
        let kept = previous.filter(|view| view.snapshot.config.store.same_but_tls(settings));
        let opened = opened.filter(|(with, _)| with.same_but_tls(settings)).map(|(_, store)| store);
        let store =
            kept.map(|view| view.limiter.desk().store.clone()).or(opened).unwrap_or_else(|| stores.open(settings));
        store.follow(settings);
        let previous = kept.map(|view| &view.limiter);
        let limiter = Limiter::new(store, previous, (&stores.memory, &stores.hold_times), &settings.prefix, metrics);
        limiter.desk().follow(&snapshot.config.limits);
        View {
            limiter,
            ratelimit: Policies::default(),
            upstreams: snapshot
                .upstreams
                .iter()
                .map(|upstream| Servers::new(upstream, pools, metrics, &common.complaints))
                .collect(),
            unmatched: Rc::new(snapshot.unmatched.of_worker(metrics.worker())),
            handles: snapshot.records.iter().map(|_| OnceCell::new()).collect(),
            worker: metrics.worker(),
            snapshot,
        }
    }

    /// What this worker counts on for the route at `index`.
    pub fn handles(&self, index: usize) -> Rc<RouteHandles> {
        self.handles[index].get_or_init(|| Rc::new(self.snapshot.records[index].of_worker(self.worker))).clone()
    }
}
