//! Worker threads, one per core by default. Each has its own runtime, upstream connections and connection to the store.
//! Workers share the snapshot of the config, the metrics and a few counters.
//!
//! Input: commands of the control thread, such as to listen or to drain. Output: client connections, which
//! `proxy::server` serves.
//!
//! - `mod.rs`: starts the threads, runs their commands and their tick every 100 ms.
//! - `accept.rs`: accepts connections and performs their handshakes.
//! - `listener.rs`: binds listening sockets.
//! - `quic/`: opens UDP sockets, and receives and accepts connections of HTTP/3.
//! - `inherited.rs`: listening sockets that systemd has opened.
//! - `socket_file.rs`: files of Unix sockets.
//! - `drain.rs`: the end of a worker.
//!
//! To add a command, add a variant to `WorkerCommand`, a method of `Workers` that sends it, and its handling to `run`.

mod accept;
mod drain;
mod inherited;
mod listener;
mod quic;
pub mod socket_file;

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle as TaskHandle, spawn_local};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::auth::password_verifier::PasswordVerifier;
use crate::files;
use crate::limiting::store::Stores;
use crate::limiting::store::settings::StoreSettings;
use crate::net::ListenAddr;
use crate::overload::process_load::ProcessLoad;
use crate::proxy::connection::connection_count::ConnectionCount;
use crate::proxy::connection::timeouts::TICK;
use crate::proxy::context::ProcessState;
use crate::proxy::context::worker_context::{DrainStage, WorkerContext};
use crate::proxy::head::hop::Via;
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::snapshot::{CurrentSnapshot, Fleet};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Spans;
use crate::telemetry::tap::Taps;
pub use crate::worker::inherited::InheritedSockets;
pub use crate::worker::listener::{Accepted, Acceptor, BindError, Listener};
pub use crate::worker::quic::QuicOpener;
use crate::worker::quic::WorkerSocket;
pub use crate::worker::socket_file::FileAccess;

/// The running worker threads.
pub struct Workers {
    threads: Vec<(mpsc::UnboundedSender<WorkerCommand>, JoinHandle<()>)>,
    pub access_log: AccessLog,
    spans: Spans,
    /// The thread that writes the access log. It ends after the last worker.
    log_writer: JoinHandle<()>,
    span_sender: JoinHandle<()>,
    /// Offers the requests of all workers to operators.
    pub taps: Taps,
    /// Counts of the process rule, which the control thread samples.
    pub overload: Arc<ProcessLoad>,
}

/// Longest wait for the access log to write its last lines. Its reader may have gone.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Commands of the control thread to a worker. There are a few in the life of a process.
enum WorkerCommand {
    AddListener(Listener),
    RemoveListener(ListenAddr),
    AddQuic(WorkerSocket),
    RemoveQuic(ListenAddr),
    ConnectStore(StoreSettings, oneshot::Sender<()>),
    Leave,
    Drain(Duration, oneshot::Sender<bool>),
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// The system refuses a thread or an event queue.
    pub fn start(
        count: usize,
        current: &CurrentSnapshot,
        metrics: &Metrics,
        stores: &Stores,
        fleet: &Fleet,
    ) -> io::Result<Workers> {
        let (access_log, log_writer) = AccessLog::start(metrics)?;
        let (spans, span_sender) = Spans::start(metrics)?;
        let (taps, overload) = (Taps::new(metrics.taps.clone()), Arc::<ProcessLoad>::default());
        let process = ProcessState {
            current: current.clone(),
            metrics: metrics.clone(),
            stores: stores.clone(),
            fleet: fleet.clone(),
            via: Via::new(rand::random()),
            access_log: access_log.clone(),
            spans: spans.clone(),
            failure_log: Arc::default(),
            delay_slots: Arc::default(),
            tunnels: Arc::default(),
            body_memory: Arc::default(),
            overload: overload.clone(),
            passwords: PasswordVerifier::new(metrics.passwords.clone()),
            compression_memory: Arc::default(),
            taps: taps.clone(),
            recent_answers: Arc::default(),
        };
        let count_all = Arc::<ConnectionCount>::default();
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let (sender, commands) = mpsc::unbounded_channel();
            let runtime = Builder::new_current_thread();
            let process = ProcessState { metrics: metrics.for_worker(number + 1), ..process.clone() };
            let count_all = count_all.clone();
            let (ready, started) = std::sync::mpsc::sync_channel(1);
            let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                let mut builder = runtime;
                match builder.enable_all().max_blocking_threads(files::THREADS).build_local(LocalOptions::default()) {
                    Ok(runtime) => {
                        runtime.block_on(async {
                            let worker = WorkerContext::new(process, count_all);
                            let _ = ready.send(Ok(()));
                            run_commands(worker, commands).await;
                        });
                        // A file system that does not respond must not keep the process.
                        runtime.shutdown_background();
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })?;
            started.recv().map_err(io::Error::other)??;
            threads.push((sender, thread));
        }
        Ok(Workers { threads, access_log, log_writer, spans, span_sender, taps, overload })
    }

    /// Has every worker connect to the store of `settings`, before a snapshot with these settings is active. Waits
    /// until each has connected or has found the store unavailable, no longer than
    /// [`Store::wait_first_attempt`](crate::limiting::store::Store::first_attempt).
    pub async fn connect_store(&self, settings: &StoreSettings) {
        let mut ends = Vec::new();
        for (commands, _) in &self.threads {
            let (done, end) = oneshot::channel();
            let _ = commands.send(WorkerCommand::ConnectStore(settings.clone(), done));
            ends.push(end);
        }
        for end in ends {
            let _ = end.await;
        }
    }

    /// Has every worker accept connections from `listener`.
    ///
    /// # Errors
    /// The socket cannot be shared with all workers.
    pub fn add_listener(&self, listener: &Listener) -> io::Result<()> {
        for (commands, _) in &self.threads {
            let _ = commands.send(WorkerCommand::AddListener(listener.try_clone()?));
        }
        Ok(())
    }

    /// Has all workers close their listener at `addr`. Open connections continue.
    pub fn remove_listener(&self, addr: &ListenAddr) {
        for (commands, _) in &self.threads {
            let _ = commands.send(WorkerCommand::RemoveListener(addr.clone()));
        }
    }

    /// Serves HTTP/3 on the UDP port of `listener`, as soon as the port is free. `None`: the listener has no port.
    pub fn open_quic(&self, listener: &Listener) -> Option<QuicOpener> {
        let ListenAddr::Tcp(bound) = listener.bound_addr() else { return None };
        let commands: Vec<_> = self.threads.iter().map(|(commands, _)| commands.clone()).collect();
        let send = move |worker: usize, socket| {
            if let Some(commands) = commands.get(worker) {
                let _ = commands.send(WorkerCommand::AddQuic(socket));
            }
        };
        Some(QuicOpener::start(listener.addr(), bound, self.threads.len(), send))
    }

    /// Has all workers end HTTP/3 at `addr`, after the requests that are under way.
    pub fn close_quic(&self, addr: &ListenAddr) {
        for (commands, _) in &self.threads {
            let _ = commands.send(WorkerCommand::RemoveQuic(addr.clone()));
        }
    }

    /// Has every HTTP/1.1 response close its connection from now on, so that load balancers open the next one to
    /// another gateway.
    pub fn begin_leaving(&self) {
        for (commands, _) in &self.threads {
            let _ = commands.send(WorkerCommand::Leave);
        }
    }

    /// Stops accepting, lets requests finish within `timeout` and ends the workers. Returns true if no request was cut.
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
        let until = Instant::now() + LOG_FLUSH_TIMEOUT;
        while !self.log_writer.is_finished() && Instant::now() < until {
            tokio::time::sleep(LOG_FLUSH_TIMEOUT / 100).await;
        }
        if !self.log_writer.is_finished() {
            tracing::warn!("the reader of the access log is too slow: the last lines are lost");
        }
        // The collector of spans may be slow. The sender's own timeout bounds this wait.
        while !self.span_sender.is_finished() {
            tokio::time::sleep(LOG_FLUSH_TIMEOUT / 100).await;
        }
        whole
    }
}

async fn run_commands(worker: Rc<WorkerContext>, mut commands: mpsc::UnboundedReceiver<WorkerCommand>) {
    let ticker = spawn_local(run_ticks(worker.clone()));
    let mut loops: HashMap<ListenAddr, AcceptLoop> = HashMap::new();
    let mut quic_loops: HashMap<ListenAddr, oneshot::Sender<()>> = HashMap::new();
    while let Some(command) = commands.recv().await {
        match command {
            WorkerCommand::AddListener(listener) => {
                let addr = listener.addr().clone();
                let (stop, stopped) = oneshot::channel();
                let task = spawn_local(accept::run_accept_loop(worker.clone(), listener, stopped));
                loops.insert(addr, AcceptLoop { stop, task });
            }
            WorkerCommand::RemoveListener(addr) => {
                if let Some(accept_loop) = loops.remove(&addr) {
                    accept_loop.stop_accepting().await;
                }
            }
            WorkerCommand::AddQuic(socket) => {
                let (stop, stopped) = oneshot::channel();
                quic_loops.insert(socket.addr.clone(), stop);
                drop(spawn_local(quic::run_endpoint(worker.clone(), socket, stopped)));
            }
            // Dropping the sender stops the loop.
            WorkerCommand::RemoveQuic(addr) => drop(quic_loops.remove(&addr)),
            WorkerCommand::Leave => worker.enter_stage(DrainStage::Leaving),
            WorkerCommand::ConnectStore(settings, done) => {
                worker.state.open_next_store(settings).await;
                let _ = done.send(());
            }
            WorkerCommand::Drain(timeout, done) => {
                for accept_loop in std::mem::take(&mut loops).into_values() {
                    accept_loop.stop_accepting().await;
                }
                quic_loops.clear();
                let _ = done.send(drain::drain_worker(&worker, timeout).await);
                break;
            }
        }
    }
    ticker.abort();
}

/// Checks timers, pools and the active snapshot on each tick. Never returns. Without it, a worker without requests
/// would not drop an old store or servers that were removed.
async fn run_ticks(worker: Rc<WorkerContext>) {
    let start = Instant::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        worker.connections.check_timers(now_ms);
        worker.state.view().upstreams.iter().for_each(WorkerUpstream::drop_removed_servers);
        worker.state.pools.sweep(worker.state.process.fleet.now_ms());
        worker.heap_trimmer.tick(worker.connections.len() + worker.state.pools.shared_buffers_kb());
    }
}

/// The task that accepts connections from one listener.
struct AcceptLoop {
    stop: oneshot::Sender<()>,
    task: TaskHandle<()>,
}

impl AcceptLoop {
    /// Accepts what waits in the kernel, and closes this worker's handle of the socket.
    async fn stop_accepting(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}
