//! The state that requests use, from the widest scope to the narrowest: per process ([`ProcessState`]), per worker
//! ([`WorkerState`]), per worker and config snapshot ([`WorkerSnapshot`]), per worker and listener
//! ([`ListenerContext`]), and per client connection ([`ClientConnection`]). The workers create it.
//!
//! `worker_context` is what connections need of their worker; `alt_services` states which listeners have HTTP/3;
//! `recent` keeps answers to other proxies, and `recorded_answer` their text in a shared store. State of a wider scope
//! goes to the widest struct that needs it.

pub(crate) mod alt_services;
pub(crate) mod mirror_places;
pub(crate) mod recent;
pub(crate) mod recorded_answer;
pub(crate) mod worker_context;

use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Cache;
use http::{HeaderValue, Response};

use crate::auth::password_verifier::PasswordVerifier;
use crate::config::{HeaderCase, ListenerSettings};
use crate::limiting::Limiter;
use crate::limiting::charges::manager::ChargeManager;
use crate::limiting::store::settings::StoreSettings;
use crate::limiting::store::{Store, Stores};
use crate::limiting::usage::refusals::RefusalRecorder;
use crate::overload::process_load::ProcessLoad;
use crate::proxy::connection::body::discard::DiscardPlaces;
use crate::proxy::connection::body_memory::BodyMemory;
use crate::proxy::connection::registry::ConnectionTicket;
use crate::proxy::connection::settings::ConnectionSettings;
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::connection::stream::LargeWrites;
use crate::proxy::connection::upgrade::{TunnelCount, Upgrade};
use crate::proxy::context::alt_services::AltServices;
use crate::proxy::context::mirror_places::MirrorPlaces;
use crate::proxy::context::recent::RecentAnswers;
use crate::proxy::head::canonical::LastHost;
use crate::proxy::head::hop::{Hop, Via};
use crate::proxy::head::inspector::Inspector;
use crate::proxy::head::untrusted_headers::UntrustedForwarding;
use crate::proxy::outbound::pools::Pools;
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::proxy::render::compress::memory::CompressionMemory;
use crate::proxy::render::compress::worker::WorkerCompression;
use crate::proxy::render::ratelimit::PolicyCache;
use crate::proxy::words::delay::DelaySlots;
use crate::proxy::words::failure_log::FailureLog;
use crate::proxy::words::spelling::{ResponseSpelling, SpelledNames};
use crate::snapshot::{CurrentSnapshot, Fleet, RouteCounters, Snapshot};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::{Metrics, QuestionCounters};
use crate::telemetry::spans::Spans;
use crate::telemetry::tap::Taps;
use crate::tls::TlsPeer;

/// State that all workers share. Each worker has a clone.
#[derive(Clone)]
pub struct ProcessState {
    /// The active config snapshot.
    pub current: CurrentSnapshot,
    pub metrics: Metrics,
    pub stores: Stores,
    /// Health, load and addresses of the upstream servers.
    pub fleet: Fleet,
    pub via: Via,
    pub access_log: AccessLog,
    pub spans: Spans,
    pub failure_log: Arc<FailureLog>,
    /// Slots of requests that a limit delays.
    pub delay_slots: Arc<DelaySlots>,
    pub tunnels: Arc<TunnelCount>,
    /// Memory of large bodies that limits read.
    pub body_memory: Arc<BodyMemory>,
    /// Counts of the process rule.
    pub overload: Arc<ProcessLoad>,
    /// Verifies the passwords of clients.
    pub passwords: Arc<PasswordVerifier>,
    /// Memory of the encoders that compress responses.
    pub compression_memory: Arc<CompressionMemory>,
    /// Operators who watch requests.
    pub taps: Taps,
    /// Answers to questions of other proxies in the last seconds.
    pub recent_answers: Arc<RecentAnswers>,
}

/// State of one worker.
pub struct WorkerState {
    pub process: ProcessState,
    /// Idle connections to upstream servers.
    pub pools: Pools,
    /// The worker is being stopped, so every HTTP/1.1 response closes its connection.
    pub is_draining: Cell<bool>,
    /// Buffer in which a connection gathers what it sends in one write. Empty between writes.
    pub write_buffer: RefCell<Vec<u8>>,
    /// Permits of connections to hold many bytes for their sockets.
    pub large_writes: Rc<LargeWrites>,
    /// Places for the rests of request bodies that are discarded after their responses.
    pub discards: Rc<DiscardPlaces>,
    /// Places for copies of requests.
    pub mirror_places: Rc<MirrorPlaces>,
    pub compression: Rc<WorkerCompression>,
    /// The listeners with HTTP/3.
    pub alt_services: AltServices,
    /// Buffer that tunnels use for each read.
    pub tunnel_buffer: RefCell<Vec<u8>>,
    /// Records requests that limits refuse.
    pub refusals: Arc<RefusalRecorder>,
    /// Cached active snapshot. Reading it writes no memory that other workers read.
    current: RefCell<Cache<CurrentSnapshot, Arc<Snapshot>>>,
    view: RefCell<Rc<WorkerSnapshot>>,
    /// Store opened in advance for the next snapshot.
    next_store: RefCell<Option<(StoreSettings, Store)>>,
    /// Lease managers of replaced stores, which only requests in flight still use.
    retired_managers: RefCell<Vec<Weak<ChargeManager>>>,
}

/// State of one worker for one snapshot. A request holds it from start to end, which pins the snapshot without touching
/// a reference count that other cores touch.
pub struct WorkerSnapshot {
    pub snapshot: Arc<Snapshot>,
    pub limiter: Limiter,
    /// Worker-local state per upstream, indexed like `config.upstreams`.
    pub upstreams: Vec<WorkerUpstream>,
    pub ratelimit: PolicyCache,
    /// The settings of connections that are accepted under this snapshot.
    pub connection_settings: Rc<ConnectionSettings>,
    /// Counters of questions that other proxies ask.
    pub questions: QuestionCounters,
    /// Metrics of requests that no route matches.
    pub unmatched_counters: Rc<RouteCounters>,
    /// Metrics per route, indexed like [`Config::route_at`](crate::config::Config::route_at). Created with the first
    /// request, as most workers see few routes.
    route_counters: Vec<OnceCell<Rc<RouteCounters>>>,
    metrics: Metrics,
}

/// State that the connections of one listener share, for as long as its settings are the same.
pub struct ListenerContext {
    /// Address of the listener, as in the log and the metrics.
    pub name: Rc<str>,
    /// The active settings, or the last ones until the listener is closed.
    pub settings: Arc<ListenerSettings>,
    /// Reports forwarding headers that this listener ignores.
    pub untrusted: Rc<UntrustedForwarding>,
    /// Value of `Strict-Transport-Security` for every response (`hsts`). A copy of this worker's own: a value that
    /// workers share would make them share a reference count.
    pub hsts: Option<HeaderValue>,
    /// Value of `Alt-Svc` while HTTP/3 is open (`http3`).
    pub alt_svc: Option<HeaderValue>,
}

/// State that the requests of one client connection share. Small, because an idle connection keeps it.
pub struct ClientConnection {
    pub worker: Rc<WorkerState>,
    /// The connection's entry in the registry, with its deadline.
    pub ticket: ConnectionTicket,
    pub listener: Rc<ListenerContext>,
    /// Settings as they were when the connection was accepted. It keeps them across reloads.
    pub settings: Rc<ConnectionSettings>,
    /// The connection has already sent forwarding headers that its listener ignores.
    pub untrusted_reported: Cell<bool>,
    /// Address of the TCP peer, or the one that its PROXY header names; `127.0.0.1` on a Unix socket.
    pub peer: IpAddr,
    /// Port of the peer.
    pub port: u16,
    /// Local address that the client connected to.
    pub local_addr: SocketAddr,
    /// Result of the TLS handshake. `None` without TLS.
    pub tls: Option<Box<TlsPeer>>,
    /// Reads the bytes of the connection to find what the HTTP parser repairs, and the names of headers. Only if some
    /// route or the server has `strictness = "strict"`, or with `header_case = "keep"`.
    pub inspector: Option<Box<RefCell<Inspector>>>,
    /// Interim response (103) to write before the final one, as long as nothing of that is written.
    pub interim: RefCell<Vec<u8>>,
    /// The names of the headers of the response that is written next, if they keep their case (HTTP/1.1 only).
    pub spelling: Cell<Option<Box<ResponseSpelling>>>,
    /// The tunnel that the connection becomes once its last response, a 101, is written.
    pub tunnel: Cell<Option<Box<dyn Upgrade>>>,
    caches: OnceCell<Box<ConnectionCaches>>,
}

/// Results that the requests of a connection reuse. Made with its first request, and again with the first one after the
/// connection has rested.
struct ConnectionCaches {
    hop: Hop,
    last_host: LastHost,
}

/// The two ends of a client connection, and what its TLS handshake has shown.
pub struct ConnectionEnds {
    pub peer: SocketAddr,
    pub local_addr: SocketAddr,
    pub tls: Option<Box<TlsPeer>>,
}

impl ClientConnection {
    /// Makes the state of a connection that has been accepted, and whose handshakes have succeeded.
    pub fn new(
        worker: Rc<WorkerState>,
        ticket: ConnectionTicket,
        listener: Rc<ListenerContext>,
        ends: ConnectionEnds,
    ) -> ClientConnection {
        let view = worker.view();
        let ConnectionEnds { peer, local_addr, tls } = ends;
        let config = &view.snapshot.config;
        let keeps_case = config.server.header_case == HeaderCase::Keep;
        let inspector = || {
            let inspector = Inspector::new(config.server.max_header_bytes);
            Box::new(RefCell::new(if keeps_case { inspector.keep_names() } else { inspector }))
        };
        ClientConnection {
            ticket,
            listener,
            settings: view.connection_settings.clone(),
            untrusted_reported: Cell::default(),
            peer: peer.ip(),
            port: peer.port(),
            local_addr,
            tls,
            inspector: (config.is_strict_somewhere || keeps_case).then(inspector),
            spelling: Cell::default(),
            interim: RefCell::default(),
            tunnel: Cell::default(),
            caches: OnceCell::new(),
            worker,
        }
    }

    /// Has the head of the next response written with the names of its server. If a part of an earlier response is not
    /// written yet, where the head begins is not known, and its names stay in lower case.
    pub fn spell_response<B>(&self, response: &mut Response<B>) {
        if let Some(names) = response.extensions_mut().remove::<SpelledNames>()
            && self.connection().is_flushed()
        {
            self.spelling.set(Some(Box::new(ResponseSpelling::new(names))));
        }
    }

    pub fn connection(&self) -> &Rc<ConnectionState> {
        self.ticket.connection()
    }

    /// Returns the TLS version of the connection, as logs write it.
    pub fn tls_version(&self) -> Option<&'static str> {
        self.tls.as_ref()?.version
    }

    /// Returns the parts of the forwarding headers that are the same for all requests of the connection.
    pub fn hop(&self) -> &Hop {
        &self.caches().hop
    }

    /// Returns the host of the last request.
    pub fn last_host(&self) -> &LastHost {
        &self.caches().last_host
    }

    fn caches(&self) -> &ConnectionCaches {
        self.caches.get_or_init(|| {
            let hop = Hop::new(self.peer, self.tls.is_some());
            Box::new(ConnectionCaches { hop, last_host: LastHost::default() })
        })
    }

    /// Frees what the next request can compute again.
    pub fn release_caches(&mut self) {
        self.caches.take();
    }
}

impl WorkerState {
    pub fn new(process: ProcessState) -> WorkerState {
        let pools = Pools::default();
        pools.sweep(process.fleet.now_ms());
        let view = WorkerSnapshot::new(process.current.load_full(), None, None, &pools, &process);
        WorkerState {
            is_draining: Cell::new(false),
            write_buffer: RefCell::default(),
            large_writes: Rc::default(),
            mirror_places: Rc::default(),
            discards: Rc::default(),
            compression: Rc::new(WorkerCompression::new(&process.metrics)),
            alt_services: AltServices::default(),
            tunnel_buffer: RefCell::default(),
            view: RefCell::new(Rc::new(view)),
            current: RefCell::new(Cache::new(process.current.clone())),
            next_store: RefCell::default(),
            retired_managers: RefCell::default(),
            refusals: process.stores.refusals.register(),
            process,
            pools,
        }
    }

    /// Returns the worker's state for the active snapshot. Builds it if a reload has happened since the last call.
    pub fn view(&self) -> Rc<WorkerSnapshot> {
        let mut view = self.view.borrow_mut();
        let mut current = self.current.borrow_mut();
        let current = current.load();
        if !Arc::ptr_eq(current, &view.snapshot) {
            let next = WorkerSnapshot::new(
                Arc::clone(current),
                Some(&**view),
                self.next_store.take(),
                &self.pools,
                &self.process,
            );
            let manager = view.limiter.charges();
            if !Rc::ptr_eq(manager, next.limiter.charges()) {
                manager.retire();
                let mut managers = self.retired_managers.borrow_mut();
                managers.retain(|manager| manager.strong_count() > 0);
                managers.push(Rc::downgrade(manager));
            }
            *view = Rc::new(next);
        }
        view.clone()
    }

    /// Opens the store of the next snapshot and waits for its first connection attempt.
    pub async fn open_next_store(&self, settings: StoreSettings) {
        let view = self.view();
        if view.snapshot.config.store.is_same_but_tls(&settings) {
            return view.limiter.charges().store.wait_first_attempt().await;
        }
        let store = self.process.stores.open(&settings);
        store.wait_first_attempt().await;
        *self.next_store.borrow_mut() = Some((settings, store));
    }

    /// Returns the lease managers that may still have writes for a store, and the store's deadline.
    pub fn lease_managers(&self) -> (Vec<Rc<ChargeManager>>, Duration) {
        let mut managers: Vec<Rc<ChargeManager>> =
            self.retired_managers.borrow().iter().filter_map(Weak::upgrade).collect();
        let view = self.view.borrow();
        managers.push(view.limiter.charges().clone());
        (managers, view.snapshot.config.store.deadline)
    }
}

impl WorkerSnapshot {
    /// Builds the state for `snapshot`. It shares the store connection and the pools of unchanged servers with
    /// `previous`. `opened`: a store that was opened in advance because its settings changed.
    fn new(
        snapshot: Arc<Snapshot>,
        previous: Option<&WorkerSnapshot>,
        opened: Option<(StoreSettings, Store)>,
        pools: &Pools,
        process: &ProcessState,
    ) -> WorkerSnapshot {
        let ProcessState { stores, metrics, .. } = process;
        pools.limit_receive_buffers(snapshot.config.server.max_unread);
        let settings = &snapshot.config.store;
        let previous_view = previous.filter(|view| view.snapshot.config.store.is_same_but_tls(settings));
        let opened_store = opened.filter(|(with, _)| with.is_same_but_tls(settings)).map(|(_, store)| store);
        let store = previous_view
            .map(|view| view.limiter.charges().store.clone())
            .or(opened_store)
            .unwrap_or_else(|| stores.open(settings));
        store.apply_settings(settings);
        let previous = previous_view.map(|view| &view.limiter);
        let limiter = Limiter::new(store, previous, stores, &settings.prefix);
        limiter.charges().apply_limits(&snapshot.config.limits);
        WorkerSnapshot {
            limiter,
            ratelimit: PolicyCache::default(),
            connection_settings: Rc::new(ConnectionSettings::new(&snapshot.config.server)),
            upstreams: snapshot
                .upstreams
                .iter()
                .map(|upstream| WorkerUpstream::new(upstream, pools, metrics, &process.failure_log))
                .collect(),
            questions: metrics.question_counters(),
            unmatched_counters: Rc::new(snapshot.unmatched.for_worker(metrics)),
            route_counters: snapshot.records.iter().map(|_| OnceCell::new()).collect(),
            metrics: metrics.clone(),
            snapshot,
        }
    }

    /// Returns this worker's metrics of the route at `index`.
    pub fn route_counters(&self, index: usize) -> Rc<RouteCounters> {
        self.route_counters[index]
            .get_or_init(|| Rc::new(self.snapshot.records[index].for_worker(&self.metrics)))
            .clone()
    }
}
