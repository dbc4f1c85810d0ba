//! Workers: one thread per core, each with a runtime, upstream connections and store link of its
//! own. They share the snapshot, the metrics and a few counters. Started and told about listeners
//! by the control thread.

mod accept;
mod bounds;
mod client_io;
mod connection;
mod drain;
mod field_kind;
mod followed;
mod frames;
mod h1;
mod h2;
mod head_check;
mod hpack;
mod inherited;
mod listener;
mod preface;
mod proxy_protocol;
pub mod socket_file;
mod stream;
mod streams;
mod tide;
mod tls;
mod tunnel_stream;
mod unparsed;
mod watched;

pub use inherited::Inherited;
pub use listener::{Accepted, Acceptor, BindError, Listener};
#[cfg(feature = "fuzzing")]
pub use proxy_protocol::{Introduction, header, introduction};

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle as TaskHandle, spawn_local};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::access_log::AccessLog;
use crate::config::{ListenerSettings, ServerSettings};
use crate::http::connections::{ConnectionCount, Connections, Ticket};
use crate::http::context::{Common, Local};
use crate::http::deadline::TICK;
use crate::http::downstream::hop::Via;
use crate::http::downstream::inspect::Inspector;
use crate::http::upstream::servers::Servers;
use crate::limit::store::Stores;
use crate::limit::store::settings::StoreSettings;
use crate::metrics::{Cutoff, Metrics, Protocol};
use crate::net::ListenAddr;
use crate::snapshot::{Current, Fleet};
use crate::spans::Spans;
use drain::DrainStage;
use tide::Tide;

/// The running worker threads.
pub struct Workers {
    threads: Vec<(mpsc::UnboundedSender<WorkerCommand>, JoinHandle<()>)>,
    pub access_log: AccessLog,
    spans: Spans,
    /// Ends after the last worker.
    log_writer: JoinHandle<()>,
    span_sender: JoinHandle<()>,
}

/// How long what the access log still has to write may take at the end: nobody may read it any more.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What the control thread asks of a worker; a handful in a process' life.
enum WorkerCommand {
    Listen(Listener),
    Unlisten(ListenAddr),
    Reach(StoreSettings, oneshot::Sender<()>),
    Leave,
    Drain(Duration, oneshot::Sender<bool>),
}

/// One worker; lives on its thread.
struct Worker {
    local: Rc<Local>,
    connections: Rc<Connections>,
    gauges: RefCell<HashMap<(String, &'static str), IntGauge>>,
    /// A handshake may compute.
    handshake_turn: Semaphore,
    stage: Cell<DrainStage>,
    tide: Tide,
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// When the system refuses a thread or an event queue.
    pub fn start(
        count: usize,
        current: &Current,
        metrics: &Metrics,
        stores: &Stores,
        fleet: &Fleet,
    ) -> io::Result<Workers> {
        let (access_log, log_writer) = AccessLog::start(metrics)?;
        let (spans, span_sender) = Spans::start(metrics)?;
        let common = Common {
            current: current.clone(),
            metrics: metrics.clone(),
            stores: stores.clone(),
            fleet: fleet.clone(),
            via: Via::new(rand::random()),
            access_log: access_log.clone(),
            spans: spans.clone(),
            complaints: Arc::default(),
            waiting: Arc::default(),
            tunnels: Arc::default(),
        };
        let count_all = Arc::<ConnectionCount>::default();
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let (sender, commands) = mpsc::unbounded_channel();
            let runtime = Builder::new_current_thread();
            let common = Common { metrics: metrics.of_worker(number + 1), ..common.clone() };
            let count_all = count_all.clone();
            let (ready, started) = std::sync::mpsc::sync_channel(1);
            let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                let mut builder = runtime;
                match builder.enable_all().build_local(LocalOptions::default()) {
                    Ok(runtime) => runtime.block_on(async {
                        let worker = Worker::new(common, count_all);
                        let _ = ready.send(Ok(()));
                        worker.run(commands).await;
                    }),
                    Err(error) => drop(ready.send(Err(error))),
                }
            })?;
            started.recv().map_err(io::Error::other)??;
            threads.push((sender, thread));
        }
        Ok(Workers { threads, access_log, log_writer, spans, span_sender })
    }

    /// Waits until every worker has the store of `settings` at hand for a snapshot with them, or
    /// has found it away. It takes no longer than
    /// [`Store::first_attempt`](crate::limit::store::Store::first_attempt).
    pub async fn reach(&self, settings: &StoreSettings) {
        let mut reached = Vec::new();
        for (commands, _) in &self.threads {
            let (done, end) = oneshot::channel();
            let _ = commands.send(WorkerCommand::Reach(settings.clone(), done));
            reached.push(end);
        }
        for end in reached {
            let _ = end.await;
        }
    }

    /// Every worker accepts from `listener`.
    ///
    /// # Errors
    /// When the socket cannot be shared with all workers.
    pub fn listen(&self, listener: &Listener) -> io::Result<()> {
        for (commands, _) in &self.threads {
            let _ = commands.send(WorkerCommand::Listen(listener.try_clone()?));
        }
        Ok(())
    }

    /// No worker accepts from `addr` any more; open connections live on.
    pub fn unlisten(&self, addr: &ListenAddr) {
        for (commands, _) in &self.threads {
            let _ = commands.send(WorkerCommand::Unlisten(addr.clone()));
        }
    }

    /// From now on answers of HTTP/1.1 close their connections: whoever balances goes elsewhere.
    pub fn leave(&self) {
        for (commands, _) in &self.threads {
            let _ = commands.send(WorkerCommand::Leave);
        }
    }

    /// Stops accepting, lets requests finish within `timeout` and ends the workers. True when no
    /// request was cut.
    pub async fn drain(self, timeout: Duration) -> bool {
        let mut ends = Vec::new();
        for (commands, _) in &self.threads {
            let (done, end) = oneshot::channel();
            let _ = commands.send(WorkerCommand::Drain(timeout, done));
            ends.push(end);
        }
        let mut whole = true;
        for end in ends {
            whole &= end.await.unwrap_or(false);
        }
        for (_, thread) in self.threads {
            whole &= thread.join().is_ok();
        }
        drop((self.access_log, self.spans));
        let until = Instant::now() + LAST_LINES;
        while !self.log_writer.is_finished() && Instant::now() < until {
            tokio::time::sleep(LAST_LINES / 100).await;
        }
        if !self.log_writer.is_finished() {
            tracing::warn!("nobody takes what the access log still has to write: lines are lost");
        }
        // The collector may be slow: its thread bounds that.
        while !self.span_sender.is_finished() {
            tokio::time::sleep(LAST_LINES / 100).await;
        }
        whole
    }
}

impl Worker {
    fn new(common: Common, count_all: Arc<ConnectionCount>) -> Rc<Worker> {
        Rc::new(Worker {
            local: Rc::new(Local::new(common)),
            connections: Connections::new(count_all),
            gauges: RefCell::default(),
            handshake_turn: Semaphore::new(1),
            stage: Cell::new(DrainStage::Open),
            tide: Tide::default(),
        })
    }

    async fn run(self: Rc<Worker>, mut commands: mpsc::UnboundedReceiver<WorkerCommand>) {
        let heart = spawn_local(self.clone().beat());
        let mut loops: HashMap<ListenAddr, AcceptLoop> = HashMap::new();
        while let Some(command) = commands.recv().await {
            match command {
                WorkerCommand::Listen(listener) => {
                    let addr = listener.addr().clone();
                    let (stop, stopped) = oneshot::channel();
                    let task = spawn_local(accept::accept(self.clone(), listener, stopped));
                    loops.insert(addr, AcceptLoop { stop, task });
                }
                WorkerCommand::Unlisten(addr) => {
                    if let Some(accepting) = loops.remove(&addr) {
                        accepting.end().await;
                    }
                }
                WorkerCommand::Leave => self.enter_stage(DrainStage::Leaving),
                WorkerCommand::Reach(settings, done) => {
                    self.local.reach(settings).await;
                    let _ = done.send(());
                }
                WorkerCommand::Drain(timeout, done) => {
                    for accepting in std::mem::take(&mut loops).into_values() {
                        accepting.end().await;
                    }
                    let _ = done.send(self.drained(timeout).await);
                    break;
                }
            }
        }
        heart.abort();
    }

    /// Looks at all deadlines, pools and the snapshot in force, for ever: a worker without requests
    /// lets go of an old store and of servers that are gone, too.
    async fn beat(self: Rc<Worker>) {
        let start = Instant::now();
        let mut beats = interval(TICK);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let now_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.connections.look(now_ms);
            self.local.view().upstreams.iter().for_each(Servers::follow);
            self.local.pools.sweep(self.local.common.fleet.now_ms());
            self.tide.beat(self.connections.len());
        }
    }

    /// A place for a new connection, unless a cap is reached.
    fn enter(&self, peer: IpAddr, listener: &str) -> Option<Ticket> {
        let view = self.local.view();
        let server = &view.snapshot.config.server;
        let entered = self.connections.enter(peer, server.max_connections, server.max_connections_per_ip);
        entered.map_err(|cutoff| self.turned_away(cutoff, listener, peer, server)).ok()
    }

    fn turned_away(&self, cutoff: Cutoff, listener: &str, peer: IpAddr, server: &ServerSettings) {
        let ServerSettings { max_connections, max_connections_per_ip, .. } = server;
        let complaints = &self.local.common.complaints;
        self.local.common.metrics.http_rejected(cutoff).inc();
        match cutoff {
            Cutoff::MaxConnectionsPerIp => complaints.client(
                cutoff,
                listener,
                peer,
                format_args!(
                    "max_connections_per_ip = {max_connections_per_ip} is reached, further connections of that client are \
                     closed"
                ),
            ),
            _ => complaints.client(
                cutoff,
                listener,
                peer,
                format_args!(
                    "max_connections = {max_connections} is reached, new connections are closed: raise it under \
                     [server], or lower keepalive_timeout"
                ),
            ),
        }
    }

    /// Whether `peer` is believed when it names another as its client.
    fn trusts(&self, peer: IpAddr) -> bool {
        self.local.view().snapshot.config.server.trusted_proxies.contains(peer)
    }

    /// Counts a connection for `client` instead of its peer. False when that has as many as may be.
    fn count_for(&self, ticket: &mut Ticket, client: IpAddr, listener: &str) -> bool {
        let view = self.local.view();
        let server = &view.snapshot.config.server;
        let counted = ticket.count_for(client, server.max_connections_per_ip);
        counted.map_err(|cutoff| self.turned_away(cutoff, listener, client, server)).is_ok()
    }

    /// Shows an open connection in the metrics.
    fn open(&self, listener: &str, protocol: Protocol) -> OpenGauge {
        let gauge = self.gauge(listener, protocol);
        gauge.inc();
        OpenGauge(gauge)
    }

    /// What the config in force says of the listener at `addr`.
    fn listener(&self, addr: &ListenAddr) -> Option<Arc<ListenerSettings>> {
        self.local.view().snapshot.config.listener(addr).cloned()
    }

    /// For a new connection.
    fn inspector(&self) -> Option<RefCell<Inspector>> {
        let view = self.local.view();
        let config = &view.snapshot.config;
        let max_line = config.server.max_header_bytes;
        config.is_strict_somewhere.then(|| RefCell::new(Inspector::new(max_line)))
    }

    fn gauge(&self, listener: &str, protocol: Protocol) -> IntGauge {
        let new = || self.local.common.metrics.connections(listener, protocol);
        self.gauges.borrow_mut().entry((listener.to_owned(), protocol.label())).or_insert_with(new).clone()
    }

    /// Counts a connection that a deadline ended, unless it was merely idle.
    fn count_timeout(&self, reason: Option<Cutoff>) {
        if let Some(reason) = reason {
            self.local.common.metrics.http_rejected(reason).inc();
        }
    }
}

/// The task that accepts from one listener.
struct AcceptLoop {
    stop: oneshot::Sender<()>,
    task: TaskHandle<()>,
}

impl AcceptLoop {
    /// Takes what the kernel has accepted already, and closes this worker's handle of the socket.
    async fn end(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// A connection that its client has not left, in the metrics.
struct OpenGauge(IntGauge);

impl Drop for OpenGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}
