//! The control thread: starts the workers, watches and reloads the config, serves the admin listener, handles signals
//! and drains. Called by the command line.
//!
//! Input: a [`ConfigSource`], edits of its files (`watch`), signals (`signals`), admin requests, DNS (`resolve`,
//! `lookup`, `service`) and health checks (`probe`). Output: snapshots that the workers pick up with their next request
//! (`reload`), listeners (`listeners`), the state file (`store_state`, `state_file`), log
//! lines about servers and breakers (`servers`) and refusals (`usage_log`), development certificates
//! (`development_certs`), the load of the process (`process_overload`), systemd notifications (`systemd`) and the
//! hand-over to a new process (`handover`, `contact`, `local`).
//!
//! Nothing here blocks without a bound: files are read and signals received on threads of their own. To add a
//! background task, give it a `run` function that never returns, and spawn it in [`start_gateway`].

pub mod contact;
mod development_certs;
mod handover;
mod listeners;
pub mod local;
mod lookup;
mod probe;
mod process_overload;
mod reload;
mod resolve;
mod servers;
mod service;
mod signals;
mod source;
mod state_file;
mod store_state;
mod systemd;
mod usage_log;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rlimit::Resource;
use tokio::runtime::LocalOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval};

use crate::acme;
use crate::admin::ledger::UsageLedger;
use crate::admin::lifecycle::{Lifecycle, SharedState};
use crate::admin::live_overrides::LiveOverrides;
use crate::admin::store_link::StoreLink;
use crate::config::{Config, Report};
use crate::control::development_certs::DevelopmentCerts;
use crate::control::handover::{
    HandoverPath, HandoverSocket, NewProcessRequest, listen_for_handover, next_handover_request, request_handover,
};
use crate::control::listeners::Listeners;
use crate::control::process_overload::OverloadMonitor;
use crate::control::reload::override_files::{follow_override_files, list_override_files};
use crate::control::reload::{Fetchers, Reloader, set_files};
use crate::control::resolve::HostnameUpdater;
use crate::control::signals::StopSignals;
pub use crate::control::source::ConfigSource;
use crate::control::store_state::StoreState;
use crate::control::watch::{WatchHandle, WatchedFiles};
use crate::ends::{Counted, End};
use crate::limiting::decision::ErrorKind;
use crate::limiting::store::Stores;
use crate::limiting::store::memory::MemoryStore;
use crate::limiting::supervise::restart_on_panic;
use crate::limiting::usage::history::UsageMonitor;
use crate::local_ca::LocalCaError;
use crate::net::to_reachable;
use crate::overload::process_load::ProcessLoad;
use crate::reload::change::ChangeJob;
use crate::reload::history::HistoryEntry;
use crate::reload::job::{ReloadFailure, ReloadJob, ReloadOrder, ReloadOutcome, ReloadResult, Trigger};
use crate::reload::loader::Loader;
use crate::reload::open_files::OpenFiles;
use crate::snapshot::{AdaptiveMetrics, BreakerMetrics, CurrentSnapshot, Fleet, PersistentState, Snapshot};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::sampled::{libraries, stderr};
use crate::worker::{BindError, InheritedSockets, Listener, Workers};
use crate::{admin, descriptors, heap};

/// Why the gateway ended without a complete drain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Config(Report),
    #[error("{0}")]
    Bind(BindError),
    #[error("{0}")]
    LocalCa(LocalCaError),
    #[error("{doing}: {error}")]
    System { doing: &'static str, error: io::Error },
    #[error("cannot create the hand-over socket at {}: {error}; it was left alone: remove it or choose another path", path.display())]
    Handover { path: PathBuf, error: io::Error },
    #[error("metrics: {0}")]
    Metrics(prometheus::Error),
    #[error("stopped by a second signal before requests had ended")]
    Cut,
    #[error("requests still ran after {0:?} and were cut")]
    ShutdownTimeout(Duration),
}

/// State of the control loop.
struct ControlState {
    reloader: Reloader,
    jobs: mpsc::Sender<ReloadJob>,
    inbox: mpsc::Receiver<ReloadJob>,
    /// Requested changes of the config.
    changes: mpsc::Receiver<ChangeJob>,
    handover: Option<HandoverSocket>,
    contact: Option<AbortHandle>,
}

/// Number of queued reloads, and of queued changes of the config; further requests are refused or wait.
const JOBS: usize = 8;

/// Interval between two reports of lines left out of the log.
const LEFT_OUT_REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Interval of attempts to apply parts of the active config that could not be applied.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Runs the gateway until it has drained.
///
/// # Errors
/// An invalid config, an address that cannot be bound, a resource that the system refuses, or a second signal during
/// the drain.
pub fn run_gateway(source: ConfigSource) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .map_err(system_error("cannot start the control thread's event loop"))?;
    runtime.block_on(run_control_loop(source))
}

async fn run_control_loop(source: ConfigSource) -> Result<(), Error> {
    let mut stop = StopSignals::start_receiving().map_err(system_error("cannot listen for signals"))?;
    let mut hup = signal(SignalKind::hangup()).map_err(system_error("cannot listen for signals"))?;
    let mut usr1 = signal(SignalKind::user_defined1()).map_err(system_error("cannot listen for signals"))?;
    let config = source.load_config().map_err(Error::Config)?;
    raise_descriptor_limit(&config);
    let files = watched_files(&config);
    let path = request_handover(&config).map_err(|(path, error)| Error::Handover { path, error })?;
    let is_foreign = matches!(path, HandoverPath::Foreign);
    let (old_process, received) = match path {
        HandoverPath::OldProcess(process, sockets) => (Some(process), sockets),
        HandoverPath::Free | HandoverPath::Foreign => (None, Vec::new()),
    };
    let ControlState { mut reloader, jobs, mut inbox, mut changes, mut handover, contact } =
        start_gateway(source, config, received, !is_foreign).await?;
    if let Some(old_process) = old_process {
        old_process.release();
    }

    // A `Text` source may still name files: sets and secrets.
    let watch = reloader.source.is_watchable().then(|| WatchHandle::start(files, jobs, reloader.shared.clone()));
    let mut handed_over = false;
    let mut retries = interval(RETRY_INTERVAL);
    retries.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.next_signal() => break,
            _ = hup.recv() => {
                let order = ReloadOrder::requested_by(Trigger::Signal, false);
                let Some((outcome, _)) = unless_stopped(&mut stop, reloader.reload(&order)).await else { break };
                watch_files_of(watch.as_ref(), &reloader, &outcome);
            }
            _ = usr1.recv() => reloader.listeners.reopen_logs(),
            _ = retries.tick(), if reloader.is_incomplete() => {
                let Some(()) = unless_stopped(&mut stop, reloader.complete_activation()).await else { break };
            }
            Some(job) = inbox.recv() => {
                let reload = unless_stopped(&mut stop, reloader.reload(&job.order));
                let Some((outcome, contents)) = reload.await else { break };
                watch_files_of(watch.as_ref(), &reloader, &outcome);
                // The requester may have disconnected.
                let _ = job.reply.send((outcome, contents));
            }
            Some(job) = changes.recv() => {
                let change = unless_stopped(&mut stop, reloader.change_config(job.change, job.token));
                let Some(result) = change.await else { break };
                if let Ok(outcome) = &result {
                    watch_files_of(watch.as_ref(), &reloader, &outcome.reload);
                }
                let _ = job.reply.send(result);
            }
            Some(request) = next_handover_request(&mut handover) => match request {
                NewProcessRequest::Sockets(reply) => match reloader.listeners.clone_sockets() {
                    Ok(sockets) => drop(reply.send(sockets)),
                    Err(error) => tracing::warn!(%error, "the listening sockets cannot be handed over"),
                },
                NewProcessRequest::Serves(pid) => {
                    tracing::info!(pid, "another process has taken over");
                    reloader.listeners.mark_handed_over().await;
                    contact.inspect(AbortHandle::abort);
                    systemd::notify_main_pid(pid);
                    handed_over = true;
                    break;
                }
            }
        }
    }
    drop((inbox, changes));
    if let Some(handover) = handover {
        handover.stop_listening();
    }
    drain_gateway(reloader, &mut stop, handed_over).await
}

/// Returns the result of a reload; `None` if a signal ends the process first.
async fn unless_stopped<T>(stop: &mut StopSignals, reload: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        result = reload => Some(result),
        () = stop.next_signal() => None,
    }
}

/// Binds the addresses, then starts the workers: an address in use is an error before anything runs, and readiness is
/// reported once everything is served. `hands_over`: a later process can take over from this one.
async fn start_gateway(
    source: ConfigSource,
    config: Config,
    received: Vec<Listener>,
    hands_over: bool,
) -> Result<ControlState, Error> {
    let metrics = Metrics::new().map_err(Error::Metrics)?;
    create_series(&metrics);
    let certs = DevelopmentCerts::issue_first(&config).map_err(Error::LocalCa)?;
    let inherited_sockets = InheritedSockets::from_environment();
    let bindings = listeners::bind_all(&config, &inherited_sockets, received).map_err(Error::Bind)?;
    let (addresses, admin) = bindings.bound_addresses();
    let stores = create_stores(&config, &metrics);
    let overrides = Rc::new(LiveOverrides::new(metrics.store.clone(), &config));
    let store_state = Rc::new(StoreState::load(&config, &stores.gateways, &overrides));
    let link = open_store_link(&config, &stores);
    reload::remove_edit_leftovers(&config);
    let (count, fleet) = (config.server.workers, create_fleet(&metrics).map_err(Error::Metrics)?);
    let (dns, mut state) = (HostnameUpdater::new(&fleet, &config), PersistentState::new(&metrics, &fleet));
    let mut fetchers = Fetchers::new(&metrics);
    fetchers.acme.provide_known(&config, None).await;
    let shared = Arc::new(SharedState::default());
    let snapshot = take_first_snapshot(config, &shared, &metrics, &mut state);
    let current = Arc::new(ArcSwap::new(snapshot.clone()));
    let (jobs, inbox) = mpsc::channel(JOBS);
    let (sender, changes) = mpsc::channel(JOBS);
    let loader = Rc::new(Loader::start().map_err(system_error("cannot start the thread that reads the config"))?);

    let workers =
        Workers::start(count, &current, &metrics, &stores, &fleet).map_err(system_error("cannot start the workers"))?;
    try_connections(&workers, &link, &dns, &snapshot.config).await;
    overrides.read_first(&snapshot.config, &link.store()).await;
    store_state.record_start(&snapshot.config).await;
    let usage = Rc::new(UsageMonitor::new(&stores.usage, &stores.refusals, &metrics.limits));
    let ledger = Rc::new(UsageLedger::new(&stores.ledger, &metrics.store.usage_lost, &link, &current));
    let context = admin::AdminContext {
        current: current.clone(),
        metrics: metrics.clone(),
        shared: shared.clone(),
        jobs: jobs.clone(),
        config: admin::ConfigApi::new(sender, shared.clone(), loader.clone()),
        limits: admin::LimitsApi::new(&current, (&link, &overrides), (&usage, &ledger)),
        cached: Default::default(),
        fleet: fleet.clone(),
        taps: workers.taps.clone(),
        access: admin::access::AccessState::new(&metrics.admin),
        history: admin::record_history(&metrics, &current, &shared),
    };
    spawn_reports((usage, &metrics), &workers.overload, &current, fleet).map_err(Error::Metrics)?;
    spawn_local(dns.clone().run());
    spawn_store_tasks(
        &metrics,
        &current,
        (overrides.clone(), link.clone(), ledger.clone()),
        (store_state, loader.clone(), shared.open_files.clone()),
    );
    if let Some(settings) = &snapshot.config.server.access_log {
        workers.access_log.open_target(settings);
    }
    let listeners = Listeners::open_prepared(workers, bindings, inherited_sockets, context, &snapshot.config)
        .map_err(system_error("cannot serve a listener"))?;
    // Returns the memory of the config texts to the system.
    heap::release_free_memory();
    let handover = if hands_over { listen_for_handover(&snapshot.config) } else { None };
    let contact = contact::serve_contact(&source, shared.clone());
    shared.enter_phase(Lifecycle::Ready);
    log_warnings(&snapshot.config);
    fetchers.update(&current);
    certs.start_renewal(&current, &metrics);
    report_ready(&addresses, &admin, count);
    let reloader =
        Reloader { source, loader, current, metrics, state, shared, listeners, overrides, link, dns, fetchers, certs };
    Ok(ControlState { reloader, jobs, inbox, changes, handover, contact })
}

/// Creates the snapshot of the first config, and exports the metrics about it.
fn take_first_snapshot(
    mut config: Config,
    shared: &SharedState,
    metrics: &Metrics,
    state: &mut PersistentState,
) -> Arc<Snapshot> {
    let files = std::mem::take(&mut config.config_files);
    shared.history.add_entry(HistoryEntry::new(1, &config.hash, "start", files));
    let snapshot = Arc::new(Snapshot::new(1, config, state));
    state.drop_unused(&snapshot);
    metrics.record_config(&snapshot.config.hash, snapshot.generation, snapshot.loaded_at);
    acme::export_expiry(&snapshot.config, metrics);
    set_files::report_rows(&snapshot.config, &metrics.store);
    snapshot
}

/// Waits until the store has been tried once, and the names of servers have been looked up. An unavailable store does
/// not prevent the start. The sockets are bound, so clients that connect meanwhile are queued by the system.
async fn try_connections(workers: &Workers, link: &StoreLink, dns: &Rc<HostnameUpdater>, config: &Config) {
    let store = link.store();
    tokio::join!(workers.connect_store(&config.store), store.wait_first_attempt(), dns.resolve_new_names(config));
}

/// Reports that everything is served, and where the dashboard is. Browsers cannot open it on a Unix socket.
fn report_ready(addresses: &[String], admin: &str, workers: usize) {
    let dashboard = admin.parse().ok().map(|addr: SocketAddr| format!("http://{}/", to_reachable(addr)));
    tracing::info!(listen = addresses.join(", "), admin, dashboard, workers, "ready");
    systemd::notify_ready();
}

/// Creates the state of the upstream servers, and exports its metrics.
fn create_fleet(metrics: &Metrics) -> prometheus::Result<Fleet> {
    let fleet = Fleet::new(metrics)?;
    AdaptiveMetrics::export(&fleet, metrics)?;
    Ok(fleet)
}

fn create_stores(config: &Config, metrics: &Metrics) -> Stores {
    let stores = Stores::new(Arc::new(MemoryStore::new(config.store.max_keys)), metrics);
    stores.gateways.set_minimum(config.store.gateways);
    stores
}

/// Opens the control thread's own connection to the store.
fn open_store_link(config: &Config, stores: &Stores) -> Rc<StoreLink> {
    let link = Rc::new(StoreLink::open(&config.store, stores));
    link.divide_keys(config, None);
    link
}

/// Exports the metrics of breakers, and spawns the tasks that log and check servers and limits, and sample the load of
/// the process.
///
/// # Errors
/// The metrics of breakers or of the load are registered already.
fn spawn_reports(
    (usage, metrics): (Rc<UsageMonitor>, &Metrics),
    load: &Arc<ProcessLoad>,
    current: &CurrentSnapshot,
    fleet: Fleet,
) -> prometheus::Result<()> {
    metrics.export(BreakerMetrics::new(fleet.clone())?)?;
    spawn_local(OverloadMonitor::new(load, current, metrics)?.run(fleet.clone()));
    spawn_local(report_left_out());
    spawn_local(usage_log::run_usage_log(usage, current.clone(), metrics.clone()));
    spawn_local(servers::run_server_log(fleet.clone()));
    spawn_local(probe::run_probes(fleet));
    Ok(())
}

/// Spawns the tasks that follow live overrides and save the state of the store. They start again if they panic.
fn spawn_store_tasks(
    metrics: &Metrics,
    current: &CurrentSnapshot,
    (overrides, link, ledger): (Rc<LiveOverrides>, Rc<StoreLink>, Rc<UsageLedger>),
    (state, loader, open_files): (Rc<StoreState>, Rc<Loader>, Arc<OpenFiles>),
) {
    spawn_local(restart_on_panic(metrics.store.task_restarts.clone(), move || ledger.clone().run()));
    let inputs = (overrides, current.clone(), link);
    let run_overrides = move || inputs.0.clone().run(inputs.1.clone(), inputs.2.clone());
    spawn_local(restart_on_panic(metrics.store.task_restarts.clone(), run_overrides));
    let (files, of_files) = (metrics.store.clone(), current.clone());
    let follow_files =
        move || follow_override_files(of_files.clone(), (loader.clone(), open_files.clone()), files.clone());
    spawn_local(restart_on_panic(metrics.store.task_restarts.clone(), follow_files));
    let current = current.clone();
    spawn_local(restart_on_panic(metrics.store.task_restarts.clone(), move || state.clone().run(current.clone())));
}

/// Creates the series of closed label sets, so that they exist with value 0 from the start.
fn create_series(metrics: &Metrics) {
    for result in ReloadResult::ALL {
        Trigger::ALL.iter().for_each(|trigger| drop(metrics.reload_counter(result.label(), trigger.label())));
    }
    ErrorKind::ALL.iter().for_each(|kind| drop(metrics.store_error_counter(kind.label())));
    for end in End::ALL.iter().filter(|end| end.row().counted == Counted::Http) {
        drop(metrics.rejected_counter(*end));
        if end.depends_on_strictness() {
            drop(metrics.would_reject_counter(*end));
        }
    }
}

/// Reports how many log lines were lost, or left out because of sampling. Never returns.
async fn report_left_out() {
    loop {
        tokio::time::sleep(LEFT_OUT_REPORT_INTERVAL).await;
        let lost = stderr::take_lost_count();
        if lost > 0 {
            tracing::warn!(lost, "log lines were lost, because nobody read standard error");
        }
        for (library, left_out) in libraries::take_left_out() {
            tracing::warn!(library, left_out, "log lines of a library were left out");
        }
    }
}

/// Watches the files of the active config, and those of a failed load: one of them contains the mistake.
fn watch_files_of(watch: Option<&WatchHandle>, reloader: &Reloader, outcome: &ReloadOutcome) {
    let Some(watch) = watch else { return };
    let mut files = watched_files(&reloader.current.load().config);
    if let ReloadOutcome::Failed { failure: ReloadFailure::Config(report), .. } = outcome {
        files
            .config
            .extend(report.files().iter().filter(|file| !reloader.current.load().config.files.contains(file)).cloned());
    }
    watch.watch_files(files);
}

fn watched_files(config: &Config) -> WatchedFiles {
    WatchedFiles { config: config.files.clone(), overrides: list_override_files(config) }
}

/// Drains: readiness fails first, so that load balancers stop sending; then the listeners close; then requests get
/// time to finish.
async fn drain_gateway(reloader: Reloader, stop: &mut StopSignals, handed_over: bool) -> Result<(), Error> {
    let Reloader { current, shared, listeners, fetchers, link, .. } = reloader;
    // ACME stops first, to release its lock: later challenges would reach closed listeners.
    drop(fetchers);
    let server = current.load().config.server.clone();
    shared.enter_phase(Lifecycle::Draining);
    listeners.close_after_responses();
    // Nobody needs time to switch if another process serves the same sockets.
    let delay = if handed_over { Duration::ZERO } else { server.shutdown_delay };
    if !handed_over {
        systemd::notify_stopping();
    }
    tracing::info!(
        ?delay,
        timeout = ?server.shutdown_timeout,
        "draining; a second signal stops at once"
    );
    tokio::select! {
        () = stop.next_signal() => return Err(Error::Cut),
        () = tokio::time::sleep(delay) => {}
    }
    tokio::select! {
        () = stop.next_signal() => return Err(Error::Cut),
        whole = listeners.close_all().drain_requests(server.shutdown_timeout) => {
            // A draining gateway kept its share of the limits until now; it decides nothing any more.
            link.store().report_stop().await;
            if !whole {
                return Err(Error::ShutdownTimeout(server.shutdown_timeout));
            }
        }
    }
    tracing::info!("drained");
    Ok(())
}

/// Logs the warnings of a config that has become active.
fn log_warnings(config: &Config) {
    for line in config.warnings.iter().flat_map(Report::log_lines) {
        tracing::warn!("{line}");
    }
}

/// Raises the limit of file descriptors to the maximum and divides it between clients and upstream connections. A
/// proxied connection needs two.
fn raise_descriptor_limit(config: &Config) {
    let need = u64::try_from(config.server.max_connections).unwrap_or(u64::MAX).saturating_mul(2);
    let increase = rlimit::increase_nofile_limit(u64::MAX);
    let Ok(limit) = increase.or_else(|_| Resource::NOFILE.get_soft()) else { return };
    descriptors::divide_budget(limit, config.server.workers);
    if limit < need {
        tracing::warn!(
            "server.max_connections = {} needs up to {need} open files but the system grants {limit}: raise it \
             (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of docker) or lower max_connections",
            config.server.max_connections
        );
    }
}

fn system_error(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::System { doing, error }
}
