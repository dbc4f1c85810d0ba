//! One reload: load, validate, bind, swap, account. A config that is invalid or cannot be listened
//! for changes nothing and is loudly visible. Called by the control loop, one reload at a time.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::task::spawn_local;

use super::acme::AcmeThread;
use super::certificates;
use super::diff::Diff;
use super::job::{Applied, Contents, ReloadFailure, ReloadOrder, ReloadOutcome, Trigger};
use super::link::StoreLink;
use super::listeners::Listeners;
use super::loader::Loader;
use super::overrides::Live;
use super::resolve::Resolving;
use super::shared::{SharedState, rfc3339};
use super::source::ConfigSource;
use super::systemd;
use super::watch;
use crate::config::{Config, Report};
use crate::heap;
use crate::metrics::Metrics;
use crate::snapshot::{Book, Current, Snapshot};

pub struct Reloader {
    pub source: ConfigSource,
    pub loader: Rc<Loader>,
    pub current: Current,
    pub metrics: Metrics,
    pub book: Book,
    pub shared: Arc<SharedState>,
    pub listeners: Listeners,
    pub overrides: Rc<Live>,
    pub link: Rc<StoreLink>,
    pub resolving: Rc<Resolving>,
    pub acme: AcmeThread,
}

/// A file met half written is read once more after this long, before it is called invalid.
const SECOND_LOOK: Duration = Duration::from_millis(250);
/// Files must rest for this long around a load,
const STEADY: Duration = Duration::from_millis(20);
/// which is tried this often: a file that never rests is loaded all the same.
const STEADY_ATTEMPTS: usize = 10;

/// Without file descriptors to read by it is tried again after this long, this often at most.
const SHORTAGE: Duration = Duration::from_millis(500);
const SHORTAGE_ATTEMPTS: usize = 20;

/// Long enough for every worker to have noticed a new config, and for most requests under the old one.
const LET_GO: Duration = Duration::from_secs(1);

impl Reloader {
    /// Loads the config and puts it in force, unless it is invalid, the same, or a dry run. Says
    /// also what the files of the order held.
    pub async fn reload(&mut self, order: &ReloadOrder) -> (ReloadOutcome, Contents) {
        let ReloadOrder { trigger, dry_run, verify, .. } = *order;
        let generation = self.current.load().generation;
        let is_told = !dry_run && !verify;
        if is_told {
            systemd::reloading();
        }
        let (result, contents) = self.load(order).await;
        let outcome = match result {
            Err(failure) => ReloadOutcome::Failed { generation, failure },
            Ok(config) if config.hash == self.current.load().config.hash => {
                ReloadOutcome::Unchanged { generation, warnings: warnings(&config) }
            }
            Ok(config) if dry_run => self.rehearse(config),
            Ok(config) => self.apply(config).await,
        };
        let is_broken = self.metrics.reload_successful.get() == 0;
        let quiet = verify && !is_broken && matches!(outcome, ReloadOutcome::Unchanged { .. });
        if !dry_run && !quiet {
            self.account(&outcome, trigger);
        }
        if is_told {
            let has_failed = matches!(outcome, ReloadOutcome::Failed { .. });
            systemd::reloaded(self.current.load().generation, has_failed);
        }
        spawn_local(give_back(self.loader.clone()));
        (outcome, contents)
    }

    /// People who ask have finished writing; those who save may be in the midst of it.
    async fn load(&self, order: &ReloadOrder) -> (Result<Config, ReloadFailure>, Contents) {
        let mut first = self.load_steady(&order.files).await;
        if first.0.is_ok() || order.trigger != Trigger::File {
            return first;
        }
        for _ in 0..SHORTAGE_ATTEMPTS {
            let files = order.files.clone();
            let is_short = self.loader.run(move || watch::are_unreadable(&files)).await;
            if first.0.is_ok() || is_short != Ok(true) {
                break;
            }
            // Nobody has saved anything: there are no descriptors to read by.
            tokio::time::sleep(SHORTAGE).await;
            first = self.load_steady(&order.files).await;
        }
        if first.0.is_ok() {
            return first;
        }
        tokio::time::sleep(SECOND_LOOK).await;
        self.load_steady(&order.files).await
    }

    /// A file cut short by a save in progress can be a valid config, so what was loaded counts
    /// only if nothing changed around it.
    async fn load_steady(&self, files: &[PathBuf]) -> (Result<Config, ReloadFailure>, Contents) {
        let read = |source: ConfigSource, files: Vec<PathBuf>| move || (watch::contents(&files), source.load());
        let mut attempts = 0;
        loop {
            let (before, result) = match self.loader.run(read(self.source.clone(), files.to_vec())).await {
                Ok((before, result)) => (before, result.map_err(ReloadFailure::Config)),
                Err(hung) => return (Err(ReloadFailure::Hung(hung)), Contents::default()),
            };
            attempts += 1;
            if files.is_empty() || attempts == STEADY_ATTEMPTS {
                return (result, before);
            }
            tokio::time::sleep(STEADY).await;
            let files = files.to_vec();
            if self.loader.run(move || watch::contents(&files)).await == Ok(before) {
                return (result, before);
            }
        }
    }

    fn rehearse(&self, mut config: Config) -> ReloadOutcome {
        let current = self.current.load();
        let restart = keep_fixed(&mut config, &current.config);
        let diff = Diff::between(&current.config, &config);
        ReloadOutcome::Valid(Applied { generation: current.generation, diff, restart, warnings: warnings(&config) })
    }

    async fn apply(&mut self, mut config: Config) -> ReloadOutcome {
        let old = self.current.load_full();
        let restart = keep_fixed(&mut config, &old.config);
        let diff = Diff::between(&old.config, &config);
        let warnings = warnings(&config);
        let prepared = match self.listeners.prepare(&config).await {
            Ok(prepared) => prepared,
            Err(error) => {
                return ReloadOutcome::Failed { generation: old.generation, failure: ReloadFailure::Bind(error) };
            }
        };
        // The old store decides until the new one can, and names are known by then.
        let (store, (), ()) = tokio::join!(
            self.link.reach(&config.store),
            self.listeners.reach(&config.store),
            self.resolving.reach(&config)
        );
        self.overrides.dress(&config);
        if config.store != old.config.store {
            self.overrides.prime(&config, &store.store()).await;
        }
        self.acme.provision(&config, Some(&old.config)).await;
        config.keep_sessions(&old.config);
        let generation = old.generation + 1;
        let snapshot = Arc::new(Snapshot::new(generation, config, &mut self.book));
        self.link.divide(&snapshot.config, Some(&old.config));
        self.metrics.gateways.set_least(snapshot.config.store.gateways);
        self.current.store(snapshot.clone());
        self.link.exchange(store);
        if let Some(settings) = &snapshot.config.server.access_log {
            self.listeners.access_log().open(settings);
        }
        self.listeners.exchange(prepared, &snapshot.config);
        self.acme.follow(&self.current);
        self.metrics.config_loaded(&snapshot.config.hash, generation, snapshot.loaded_at);
        certificates::show(&snapshot.config, &self.metrics);
        // Only now: until the swap, requests counted on the series of the old config.
        self.book.retire(&snapshot);
        self.resolving.settle(&snapshot.config);
        ReloadOutcome::Applied(Applied { generation, diff, restart, warnings })
    }

    /// Counts, logs and remembers.
    fn account(&self, outcome: &ReloadOutcome, trigger: Trigger) {
        self.metrics.config_reload(outcome.result().label(), trigger.label()).inc();
        let overtakes = trigger != Trigger::File;
        let trigger = trigger.label();
        match outcome {
            ReloadOutcome::Applied(applied) => {
                tracing::info!(trigger, generation = applied.generation, "config reloaded: {}", applied.diff);
                super::warn_of(&self.current.load().config);
                for key in &applied.restart {
                    tracing::warn!("the change of {key} needs a restart; until then the old value stays in force");
                }
            }
            ReloadOutcome::Unchanged { generation, .. } => {
                // The way back from a bad save: the file again holds what is in force.
                if self.metrics.reload_successful.get() == 0 {
                    tracing::info!(trigger, "config is valid again; generation {generation} stays in force");
                } else if overtakes {
                    tracing::info!(trigger, "config unchanged; generation {generation} stays in force");
                } else {
                    tracing::debug!(trigger, generation, "config unchanged");
                }
                self.metrics.reload_successful.set(1);
            }
            ReloadOutcome::Failed { generation, failure } => {
                self.metrics.reload_successful.set(0);
                tracing::error!(trigger, "config not reloaded, generation {generation} stays in force\n{failure}");
            }
            ReloadOutcome::Valid(_) => {}
        }
        let mut record = outcome.json();
        record["trigger"] = trigger.into();
        record["at"] = rfc3339(SystemTime::now()).into();
        self.shared.remember_reload(record, overtakes);
    }
}

fn warnings(config: &Config) -> Value {
    config.warnings.as_ref().map_or_else(|| json!([]), Report::json)
}

/// Once the workers have let go of the config of before.
async fn give_back(loader: Rc<Loader>) {
    tokio::time::sleep(LET_GO).await;
    heap::give_back();
    // What the texts of the config took is that thread's. It may be busy with the next load.
    let _ = loader.run(heap::give_back).await;
}

/// Carries over what is fixed when the process starts, and names what would have changed.
fn keep_fixed(config: &mut Config, old: &Config) -> Vec<&'static str> {
    let mut restart = Vec::new();
    if config.server.workers != old.server.workers {
        config.server.workers = old.server.workers;
        restart.push("server.workers");
    }
    if config.server.handover != old.server.handover {
        config.server.handover.clone_from(&old.server.handover);
        restart.push("server.handover");
    }
    restart
}
