//! The control thread: starts the workers, then watches the config, reloads it, serves the admin
//! listener and obeys signals until it is told to drain. Called by the command line.

mod acme;
mod admin;
mod certificates;
pub mod contact;
mod diff;
mod handover;
mod job;
mod link;
mod listeners;
mod loader;
pub mod local;
mod lookup;
mod overrides;
mod probe;
mod reload;
mod replace_file;
mod resolve;
mod servers;
mod shared;
mod signals;
mod source;
mod state_file;
mod store_state;
mod systemd;
mod watch;

use rlimit::Resource;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::LocalOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};

use crate::config::{Config, Report};
use crate::descriptors;
use crate::heap;
use crate::http::downstream::reject::Reject;
use crate::limit::decision::ErrorKind;
use crate::limit::revive::revive;
use crate::limit::store::Stores;
use crate::limit::store::memory::Memory;
use crate::metrics::{Cutoff, Metrics};
use crate::sampled::{libraries, stderr};
use crate::snapshot::{Book, Fleet, Snapshot};
use crate::worker::{BindError, Inherited, Listener, Workers};
use handover::{Heir, HeirRequest, Predecessor};
use job::{Job, ReloadFailure, ReloadOrder, ReloadOutcome, ReloadResult, Trigger};

use acme::AcmeThread;
use link::StoreLink;
use listeners::Listeners;
use loader::Loader;
use overrides::Live;
use reload::Reloader;
use resolve::Resolving;
use shared::{Lifecycle, SharedState};
use signals::Stop;
pub use source::ConfigSource;
use store_state::StoreState;
use watch::Watch;

/// Why the gateway ended other than by a complete drain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Config(Report),
    #[error("{0}")]
    Bind(BindError),
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

/// What the control loop holds.
struct Running {
    reloader: Reloader,
    jobs: mpsc::Sender<Job>,
    inbox: mpsc::Receiver<Job>,
    heir: Option<Heir>,
    contact: Option<AbortHandle>,
}

/// Reloads that wait; more are refused or wait themselves.
const JOBS: usize = 8;

/// Between two reports of what was left out of the log.
const LEFT_OUT_PERIOD: Duration = Duration::from_secs(10);

/// Runs the gateway until it has drained.
///
/// # Errors
/// A config that is invalid, an address that cannot be listened on, a resource the system
/// refuses, or a second signal during the drain.
pub fn run(source: ConfigSource) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .map_err(system("cannot start the control thread's event loop"))?;
    runtime.block_on(control(source))
}

async fn control(source: ConfigSource) -> Result<(), Error> {
    let mut stop = Stop::listen().map_err(system("cannot listen for signals"))?;
    let mut hup = signal(SignalKind::hangup()).map_err(system("cannot listen for signals"))?;
    let mut usr1 = signal(SignalKind::user_defined1()).map_err(system("cannot listen for signals"))?;
    let config = source.load().map_err(Error::Config)?;
    raise_open_files(&config);
    let files = config.files.clone();
    let found = handover(&config)?;
    let is_foreign = matches!(found, HandoverPath::Foreign);
    let (predecessor, earlier) = match found {
        HandoverPath::Predecessor(process, sockets) => (Some(process), sockets),
        HandoverPath::Free | HandoverPath::Foreign => (None, Vec::new()),
    };
    let Running { mut reloader, jobs, mut inbox, mut heir, contact } =
        start(source, config, earlier, !is_foreign).await?;
    if let Some(predecessor) = predecessor {
        predecessor.release();
    }

    // A `Text` source may still name files: sets and secrets.
    let watch = reloader.source.watchable().then(|| Watch::start(files, jobs, reloader.shared.clone()));
    let mut handed_over = false;
    loop {
        tokio::select! {
            () = stop.wait() => break,
            _ = hup.recv() => {
                let order = ReloadOrder::from(Trigger::Signal, false);
                let Some((outcome, _)) = unless_stopped(&mut stop, reloader.reload(&order)).await else { break };
                retarget(watch.as_ref(), &reloader, &outcome);
            }
            _ = usr1.recv() => reloader.listeners.access_log().reopen(),
            Some(job) = inbox.recv() => {
                let reloaded = unless_stopped(&mut stop, reloader.reload(&job.order)).await;
                let Some((outcome, contents)) = reloaded else { break };
                retarget(watch.as_ref(), &reloader, &outcome);
                // Whoever asked may have gone.
                let _ = job.reply.send((outcome, contents));
            }
            Some(request) = next_heir(&mut heir) => match request {
                HeirRequest::Sockets(reply) => match reloader.listeners.sockets() {
                    Ok(sockets) => drop(reply.send(sockets)),
                    Err(error) => tracing::warn!(%error, "the listening sockets cannot be handed over"),
                },
                HeirRequest::Serves(pid) => {
                    tracing::info!(pid, "another process has taken over");
                    reloader.listeners.hand_over().await;
                    contact.inspect(AbortHandle::abort);
                    systemd::succeeded(pid);
                    handed_over = true;
                    break;
                }
            }
        }
    }
    drop(inbox);
    if let Some(heir) = heir {
        heir.end();
    }
    drain(reloader, &mut stop, handed_over).await
}

/// The result of a reload; `None` when a signal ends the process before it is done.
async fn unless_stopped<T>(stop: &mut Stop, reload: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        result = reload => Some(result),
        () = stop.wait() => None,
    }
}

/// What is at the `handover` path of the config when the process starts.
enum HandoverPath {
    /// Nothing, or a socket that nobody listens at: later processes take over there.
    Free,
    Predecessor(Predecessor, Vec<Listener>),
    /// A process that hands nothing over, perhaps of another program: its socket stays as it is.
    Foreign,
}

fn handover(config: &Config) -> Result<HandoverPath, Error> {
    let Some(path) = &config.server.handover else { return Ok(HandoverPath::Free) };
    handover::check_path(path).map_err(|(path, error)| Error::Handover { path, error })?;
    Ok(match Predecessor::ask(path) {
        Ok(None) => HandoverPath::Free,
        Ok(Some((predecessor, sockets))) => HandoverPath::Predecessor(predecessor, sockets),
        Err(error) => {
            tracing::error!(
                path = %path.display(),
                %error,
                "the process that listens there does not hand over its sockets; its socket stays, and no later process \
                 can take over from this one"
            );
            HandoverPath::Foreign
        }
    })
}

/// Never where nobody is waited for.
async fn next_heir(heir: &mut Option<Heir>) -> Option<HeirRequest> {
    match heir {
        Some(heir) => heir.requests.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits for the process that takes over one day, where the config says how it comes.
fn expect_heir(config: &Config) -> Option<Heir> {
    let path = config.server.handover.as_ref()?;
    let failed = |error: &io::Error| {
        tracing::error!(path = %path.display(), %error, "no other process can take over");
    };
    Heir::expect(path).inspect_err(failed).ok()
}

/// Binds, then starts the workers: an address in use is an error before anything runs. Whoever is told that the
/// gateway is ready finds everything that it offers.
/// `hands_over`: whether a later process can take over from this one.
async fn start(
    source: ConfigSource,
    config: Config,
    earlier: Vec<Listener>,
    hands_over: bool,
) -> Result<Running, Error> {
    let metrics = Metrics::new().map_err(Error::Metrics)?;
    for result in ReloadResult::ALL {
        Trigger::ALL.iter().for_each(|trigger| drop(metrics.config_reload(result.label(), trigger.label())));
    }
    let inherited = Inherited::from_environment();
    let prepared = listeners::bind_all(&config, &inherited, earlier).map_err(Error::Bind)?;
    let (addresses, admin) = prepared.addresses();
    metrics.gateways.set_least(config.store.gateways);
    let overrides = Rc::new(Live::default());
    let store_state = Rc::new(StoreState::load(&config, &metrics.gateways, &overrides));
    let stores = Stores::new(Arc::new(Memory::new(config.store.max_keys)), &metrics);
    let link = Rc::new(StoreLink::open(&config.store, &stores, &metrics));
    link.divide(&config, None);
    let count = config.server.workers;
    ErrorKind::ALL.iter().for_each(|kind| drop(metrics.store_error(kind.label())));
    Cutoff::ALL.iter().for_each(|reason| drop(metrics.http_rejected(*reason)));
    for reject in Reject::ALL {
        drop(metrics.http_rejected(*reject));
        if reject.depends() {
            drop(metrics.http_would_reject(*reject));
        }
    }
    let fleet = Fleet::new(&metrics).map_err(Error::Metrics)?;
    let resolving = Resolving::new(&fleet, &config);
    let mut book = Book::new(&metrics, &fleet);
    let mut acme = AcmeThread::new(&metrics);
    acme.provision(&config, None).await;
    let snapshot = Arc::new(Snapshot::new(1, config, &mut book));
    book.retire(&snapshot);
    metrics.config_loaded(&snapshot.config.hash, snapshot.generation, snapshot.loaded_at);
    certificates::show(&snapshot.config, &metrics);
    let current = Arc::new(ArcSwap::new(snapshot.clone()));
    let shared = Arc::new(SharedState::default());
    let (jobs, inbox) = mpsc::channel(JOBS);

    let workers =
        Workers::start(count, &current, &metrics, &stores, &fleet).map_err(system("cannot start the workers"))?;
    // The sockets are bound: whoever comes meanwhile waits there. A store that is away is no
    // reason not to start.
    let store = link.store();
    tokio::join!(workers.reach(&snapshot.config.store), store.first_attempt(), resolving.reach(&snapshot.config));
    overrides.prime(&snapshot.config, &store).await;
    store_state.start(&snapshot.config).await;
    let context = admin::AdminContext {
        current: current.clone(),
        metrics: metrics.clone(),
        shared: shared.clone(),
        jobs: jobs.clone(),
        limits: admin::Limits::new(current.clone(), link.clone()),
        cached: Default::default(),
        fleet: fleet.clone(),
    };
    spawn_local(report_left_out());
    spawn_local(servers::follow(fleet.clone()));
    spawn_local(probe::follow(fleet));
    spawn_local(resolving.clone().follow());
    let (followed, followers) = (overrides.clone(), (current.clone(), link.clone()));
    spawn_local(revive(metrics.store_task_restarts.clone(), move || {
        followed.clone().follow(followers.0.clone(), followers.1.clone())
    }));
    let kept = (store_state, current.clone());
    spawn_local(revive(metrics.store_task_restarts.clone(), move || kept.0.clone().follow(kept.1.clone())));
    if let Some(settings) = &snapshot.config.server.access_log {
        workers.access_log.open(settings);
    }
    let listeners =
        Listeners::open(workers, prepared, inherited, context).map_err(system("cannot serve a listener"))?;
    // What the texts of the config took.
    heap::give_back();
    let heir = if hands_over { expect_heir(&snapshot.config) } else { None };
    let contact = contact::announce(&source, shared.clone());
    shared.enter(Lifecycle::Ready);
    warn_of(&snapshot.config);
    acme.follow(&current);
    tracing::info!(listen = addresses.join(", "), admin, workers = count, "ready");
    systemd::ready();
    let loader = Loader::start().map_err(system("cannot start the thread that reads the config"))?;
    let loader = Rc::new(loader);
    let reloader =
        Reloader { source, loader, current, metrics, book, shared, listeners, overrides, link, resolving, acme };
    Ok(Running { reloader, jobs, inbox, heir, contact })
}

/// Reports how many log lines were lost, or left out of those of libraries. Never returns.
async fn report_left_out() {
    loop {
        tokio::time::sleep(LEFT_OUT_PERIOD).await;
        let lost = stderr::lost();
        if lost > 0 {
            tracing::warn!(lost, "log lines were lost: nobody read standard error");
        }
        for (library, left_out) in libraries::left_out() {
            tracing::warn!(library, left_out, "log lines of a library were left out");
        }
    }
}

/// After a failed load the files it read are watched as well: one of them holds the mistake.
fn retarget(watch: Option<&Watch>, reloader: &Reloader, outcome: &ReloadOutcome) {
    let Some(watch) = watch else { return };
    let mut files = reloader.current.load().config.files.clone();
    if let ReloadOutcome::Failed { failure: ReloadFailure::Config(report), .. } = outcome {
        files
            .extend(report.files().iter().filter(|file| !reloader.current.load().config.files.contains(file)).cloned());
    }
    watch.retarget(&files);
}

/// Readiness fails first, so that balancers send no more; then the listeners close, then requests
/// get their time to end.
async fn drain(reloader: Reloader, stop: &mut Stop, handed_over: bool) -> Result<(), Error> {
    let Reloader { current, shared, listeners, acme, link, metrics, .. } = reloader;
    // Proofs are looked for where nobody will listen, and who comes next waits for the lock.
    drop(acme);
    let server = current.load().config.server.clone();
    shared.enter(Lifecycle::Draining);
    listeners.leave();
    // Nobody has to go elsewhere when another process serves the same sockets.
    let delay = if handed_over { Duration::ZERO } else { server.shutdown_delay };
    if !handed_over {
        systemd::stopping();
    }
    tracing::info!(
        ?delay,
        timeout = ?server.shutdown_timeout,
        "draining; a second signal stops at once"
    );
    tokio::select! {
        () = stop.wait() => return Err(Error::Cut),
        () = tokio::time::sleep(delay) => {}
    }
    tokio::select! {
        () = stop.wait() => return Err(Error::Cut),
        whole = listeners.close_all().drain(server.shutdown_timeout) => {
            // It decides nothing any more; until now it had its share.
            link.store().leave(&metrics.gateways).await;
            if !whole {
                return Err(Error::ShutdownTimeout(server.shutdown_timeout));
            }
        }
    }
    tracing::info!("drained");
    Ok(())
}

/// Logs what a config that has come into force says and probably does not mean.
fn warn_of(config: &Config) {
    for line in config.warnings.iter().flat_map(Report::lines) {
        tracing::warn!("{line}");
    }
}

/// Takes all the file descriptors the system grants, and divides them; a connection through the gateway needs two.
fn raise_open_files(config: &Config) {
    let needed = u64::try_from(config.server.max_connections).unwrap_or(u64::MAX).saturating_mul(2);
    let granted = rlimit::increase_nofile_limit(u64::MAX).or_else(|_| Resource::NOFILE.get_soft());
    let Ok(granted) = granted else { return };
    descriptors::divide(granted, config.server.workers);
    if granted < needed {
        tracing::warn!(
            "server.max_connections = {} needs up to {needed} open files but the system grants {granted}: raise it \
             (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of docker) or lower max_connections",
            config.server.max_connections
        );
    }
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::System { doing, error }
}
