//! A reload: load, validate, bind, swap, report. An invalid config, or one whose addresses cannot be bound, changes
//! nothing and is reported. Called by the control loop, one reload at a time.
//!
//! Input: a [`ReloadOrder`], or a change of the config that the admin listener requests: `change` edits files and rolls
//! back, and `disk` checks and writes the files for it. Output: a new snapshot, an entry of the history, and the
//! outcome.
//!
//! To add a change, add it to `ConfigChange` in `reload::change`, and make it in `change`.

mod change;
mod disk;
pub mod override_files;
pub mod set_files;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tokio::task::spawn_local;

use crate::acme::{self, AcmeThread};
use crate::admin::lifecycle::{SharedState, format_rfc3339};
use crate::admin::live_overrides::LiveOverrides;
use crate::admin::store_link::StoreLink;
use crate::config::{Config, Report};
use crate::control::development_certs::DevelopmentCerts;
use crate::control::listeners::Listeners;
pub use crate::control::reload::disk::remove_edit_leftovers;
use crate::control::resolve::HostnameUpdater;
use crate::control::source::ConfigSource;
use crate::control::{systemd, watch};
use crate::heap;
use crate::jwks::JwksThread;
use crate::local_ca::{self, LocalCas};
use crate::reload::diff::Diff;
use crate::reload::history::HistoryEntry;
use crate::reload::job::{AppliedReload, ContentDigest, ReloadFailure, ReloadOrder, ReloadOutcome, Trigger};
use crate::reload::loader::Loader;
use crate::reload::open_files::{self, Writer};
use crate::snapshot::{CurrentSnapshot, PersistentState, Snapshot};
use crate::telemetry::metrics::Metrics;
use crate::worker::BindError;

pub struct Reloader {
    pub source: ConfigSource,
    pub loader: Rc<Loader>,
    pub current: CurrentSnapshot,
    pub metrics: Metrics,
    pub state: PersistentState,
    pub shared: Arc<SharedState>,
    pub listeners: Listeners,
    pub overrides: Rc<LiveOverrides>,
    pub link: Rc<StoreLink>,
    pub dns: Rc<HostnameUpdater>,
    pub fetchers: Fetchers,
    pub certs: Rc<DevelopmentCerts>,
}

/// Delay after which a file that looks invalid is read again, because it may be half written.
const REREAD_DELAY: Duration = Duration::from_millis(250);
/// Files must be unchanged for this long around a load.
const STABLE_TIME: Duration = Duration::from_millis(20);
/// Number of attempts; a file that never stops changing is loaded anyway.
const STABLE_ATTEMPTS: usize = 10;

/// Longest wait of a reload for files that are being written, and the pause before it looks again.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);
const WRITER_PAUSE: Duration = Duration::from_millis(100);

/// Pause before reading again when file descriptors are exhausted.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(500);
const DESCRIPTOR_ATTEMPTS: usize = 20;

/// Time after which every worker uses the new config and most requests under the old one have ended.
const OLD_CONFIG_LIFETIME: Duration = Duration::from_secs(1);

impl Reloader {
    /// Loads the config and activates it, unless it is invalid, unchanged, or a dry run. Also returns a digest of
    /// the files.
    pub async fn reload(&mut self, order: &ReloadOrder) -> (ReloadOutcome, ContentDigest) {
        let ReloadOrder { trigger, dry_run, verify, .. } = *order;
        let generation = self.current.load().generation;
        let is_announced = !dry_run && !verify;
        if is_announced {
            self.announce_reload();
        }
        if !dry_run && !matches!(trigger, Trigger::Edit | Trigger::Rollback) {
            self.shared.set_written(None);
        }
        let (result, contents) = self.load_config(order).await;
        let outcome = match result {
            Err(failure) => ReloadOutcome::Failed { generation, failure },
            Ok(config) if config.hash == self.current.load().config.hash => {
                if !dry_run || verify {
                    self.end_pin();
                }
                if !dry_run {
                    self.complete_activation().await;
                }
                ReloadOutcome::Unchanged { generation, warnings: warnings_json(&config) }
            }
            Ok(config) if self.shared.history.pin().is_some_and(|pin| pin.files_hash == config.hash) => {
                ReloadOutcome::Unchanged { generation, warnings: warnings_json(&self.current.load().config) }
            }
            Ok(config) if dry_run => self.dry_run(config),
            Ok(config) => {
                let outcome = self.apply_config(config, trigger, order.token.clone()).await;
                if matches!(outcome, ReloadOutcome::Applied(_)) {
                    self.end_pin();
                }
                outcome
            }
        };
        let is_broken = self.metrics.reload_successful.get() == 0;
        let is_recorded = match outcome {
            // The watcher has looked whether it missed an edit, and found none.
            ReloadOutcome::Unchanged { .. } if verify => is_broken,
            _ => !dry_run,
        };
        if is_recorded {
            self.record_outcome(&outcome, trigger);
        }
        if is_announced {
            self.announce_end(&outcome);
        }
        spawn_local(trim_heap_later(self.loader.clone()));
        (outcome, contents)
    }

    fn announce_reload(&self) {
        systemd::notify_reloading();
    }

    fn announce_end(&self, outcome: &ReloadOutcome) {
        let has_failed = matches!(outcome, ReloadOutcome::Failed { .. });
        systemd::notify_reloaded(self.current.load().generation, has_failed);
    }

    /// Records that the files contain the active config again.
    fn end_pin(&self) {
        if let Some(pin) = self.shared.history.pin() {
            self.shared.history.set_pin(None);
            self.metrics.config_pinned.set(0);
            tracing::info!("the rollback to generation {} has ended; the files are active again", pin.generation);
        }
    }

    /// Loads the config once no program has its files open for writing. Waits for that only a moment: a manual reload
    /// follows a finished edit, and the watcher has already waited longer.
    async fn load_config(&self, order: &ReloadOrder) -> (Result<Config, ReloadFailure>, ContentDigest) {
        let until = Instant::now() + CLOSE_WAIT_MAX;
        loop {
            let files = self.current.load().config.files.clone();
            let mut writer = None;
            if self.shared.open_files.find_path(&files).is_some() {
                writer = self.find_writer(files.clone()).await;
            }
            if writer.is_none() {
                let result = self.load_files(order).await;
                if matches!(result.0, Err(ReloadFailure::Hung(_))) {
                    return result;
                }
                // Nobody asked for a reload, and there is none if the files contain what is active.
                let is_active = |config: &Config| config.hash == self.current.load().config.hash;
                if order.trigger == Trigger::File && result.0.as_ref().is_ok_and(is_active) {
                    return result;
                }
                let files = result.0.as_ref().map_or(files, |config| config.files.clone());
                // After the load, so that no program can have opened a file before it unnoticed.
                writer = self.find_writer(files).await;
                if writer.is_none() {
                    return result;
                }
            }
            if let Some(Writer { path, process }) = writer
                && Instant::now() >= until
            {
                return (Err(ReloadFailure::BeingWritten { path, writer: process }), ContentDigest::default());
            }
            tokio::time::sleep(WRITER_PAUSE).await;
        }
    }

    /// Finds a program that has one of `files` open: one that can be seen, or one of which only events tell.
    async fn find_writer(&self, files: Vec<PathBuf>) -> Option<Writer> {
        let open = self.shared.open_files.find_path(&files);
        let writer = self.loader.run_task(move || open_files::find_writer(&files)).await.ok().flatten();
        writer.or_else(|| Some(Writer { path: open?, process: "a program".to_owned() }))
    }

    /// Returns the files with overrides that a program is still writing. They do not delay the reload of the config.
    async fn list_unfinished_overrides(&self, config: &Config) -> Vec<PathBuf> {
        let files = override_files::list_override_files(config);
        if files.is_empty() {
            return files;
        }
        let (all, open_files) = (files.clone(), self.shared.open_files.clone());
        let list = move || {
            files.into_iter().filter(|path| override_files::find_program(path, &open_files).is_some()).collect()
        };
        self.loader.run_task(list).await.unwrap_or(all)
    }

    /// Loads the config. A watched file may still be being written, so one that looks invalid is read again.
    async fn load_files(&self, order: &ReloadOrder) -> (Result<Config, ReloadFailure>, ContentDigest) {
        let mut first = self.load_stable(&order.files).await;
        if first.0.is_ok() || order.trigger != Trigger::File {
            return first;
        }
        for _ in 0..DESCRIPTOR_ATTEMPTS {
            let files = order.files.clone();
            let is_short = self.loader.run_task(move || watch::are_unreadable(&files)).await;
            if first.0.is_ok() || is_short != Ok(true) {
                break;
            }
            // No file was edited. The read failed because no file descriptors are left.
            tokio::time::sleep(DESCRIPTOR_PAUSE).await;
            first = self.load_stable(&order.files).await;
        }
        if first.0.is_ok() {
            return first;
        }
        tokio::time::sleep(REREAD_DELAY).await;
        self.load_stable(&order.files).await
    }

    /// Loads until nothing changed around the load, because a file cut short by a save in progress can be a valid
    /// config.
    async fn load_stable(&self, files: &[PathBuf]) -> (Result<Config, ReloadFailure>, ContentDigest) {
        let read =
            |source: ConfigSource, files: Vec<PathBuf>| move || (watch::digest_contents(&files), source.load_config());
        let mut attempts = 0;
        loop {
            let (before, result) = match self.loader.run_task(read(self.source.clone(), files.to_vec())).await {
                Ok((before, result)) => (before, result.map_err(ReloadFailure::Config)),
                Err(hung) => return (Err(ReloadFailure::Hung(hung)), ContentDigest::default()),
            };
            attempts += 1;
            if files.is_empty() || attempts == STABLE_ATTEMPTS {
                return (result, before);
            }
            tokio::time::sleep(STABLE_TIME).await;
            let files = files.to_vec();
            if self.loader.run_task(move || watch::digest_contents(&files)).await == Ok(before) {
                return (result, before);
            }
        }
    }

    fn dry_run(&self, mut config: Config) -> ReloadOutcome {
        let current = self.current.load();
        set_files::keep_networks(&mut config, &current.config);
        let diff = Diff::compare(&current.config, &config);
        let restart = keep_restart_settings(&mut config, &current.config);
        ReloadOutcome::Valid(AppliedReload {
            generation: current.generation,
            diff,
            restart,
            warnings: warnings_json(&config),
            failures: Vec::new(),
        })
    }

    async fn apply_config(&mut self, mut config: Config, trigger: Trigger, token: Option<String>) -> ReloadOutcome {
        let old = self.current.load_full();
        set_files::keep_networks(&mut config, &old.config);
        let diff = Diff::compare(&old.config, &config);
        let restart = keep_restart_settings(&mut config, &old.config);
        let warnings = warnings_json(&config);
        let cas = match self.open_cas(&config).await {
            Ok(cas) => cas,
            Err(failure) => return ReloadOutcome::Failed { generation: old.generation, failure },
        };
        let bindings = match self.listeners.prepare_added(&config, &old.config).await {
            Ok(bindings) => bindings,
            Err(error) => {
                return ReloadOutcome::Failed { generation: old.generation, failure: ReloadFailure::Bind(error) };
            }
        };
        // The old store decides until the new one is ready, and hostnames are resolved by then.
        let (store, (), ()) = tokio::join!(
            self.link.prepare_store(&config.store),
            self.listeners.connect_store(&config.store),
            self.dns.resolve_new_names(&config)
        );
        self.overrides.apply_known(&config);
        if config.store != old.config.store {
            self.overrides.read_first(&config, &store.store()).await;
        }
        let revision = self.overrides.revision();
        override_files::adopt_rows(&config, &old.config, &self.list_unfinished_overrides(&config).await);
        self.fetchers.acme.provide_known(&config, Some(&old.config)).await;
        config.adopt_sessions(&old.config);
        self.certs.issue_all(&config, cas);
        // The old config may have got changes in the meantime.
        if self.overrides.revision() != revision {
            self.overrides.apply_known(&config);
        }
        let generation = old.generation + 1;
        let entry =
            HistoryEntry::new(generation, &config.hash, trigger.label(), std::mem::take(&mut config.config_files));
        let snapshot = Arc::new(Snapshot::new(generation, config, &mut self.state));
        self.link.divide_keys(&snapshot.config, Some(&old.config));
        self.link.gateways().set_minimum(snapshot.config.store.gateways);
        self.current.store(snapshot.clone());
        self.shared.history.add_entry(entry.with_diff(&diff).with_token(token));
        self.link.replace_store(store);
        if let Some(settings) = &snapshot.config.server.access_log {
            self.listeners.access_log().open_target(settings);
        }
        self.listeners.open_audit_log();
        let failures = self.listeners.exchange_listeners(bindings, &snapshot.config);
        self.fetchers.update(&self.current);
        self.certs.start_renewal(&self.current, &self.metrics);
        self.metrics.record_config(&snapshot.config.hash, generation, snapshot.loaded_at);
        acme::export_expiry(&snapshot.config, &self.metrics);
        set_files::report_rows(&snapshot.config, &self.metrics.store);
        // Only after the swap, because until then requests counted on the series of the old config.
        self.state.drop_unused(&snapshot);
        self.dns.forget_unused(&snapshot.config);
        ReloadOutcome::Applied(AppliedReload { generation, diff, restart, warnings, failures })
    }

    /// Returns whether a part of the active config could not be applied, such as the mode of a socket.
    pub fn is_incomplete(&self) -> bool {
        self.metrics.config_unapplied.get() > 0
    }

    /// Tries again to apply the parts of the active config that could not be applied.
    pub async fn complete_activation(&mut self) {
        if !self.is_incomplete() {
            return;
        }
        let config = self.current.load_full();
        let failures = match self.listeners.prepare_added(&config.config, &config.config).await {
            Ok(bindings) => self.listeners.exchange_listeners(bindings, &config.config),
            Err(error) => vec![error],
        };
        self.report_unapplied(&failures);
    }

    /// Remembers the parts of the active config that could not be applied, and logs those that are new.
    fn report_unapplied(&self, failures: &[BindError]) {
        let before = self.shared.unapplied();
        let errors: Vec<String> = failures.iter().map(ToString::to_string).collect();
        for error in errors.iter().filter(|error| !before.contains(error)) {
            tracing::error!("{error}; the rest of the config is active");
        }
        if errors.is_empty() && !before.is_empty() {
            tracing::info!("all of the config is active now");
        }
        self.metrics.config_unapplied.set(i64::try_from(errors.len()).unwrap_or(i64::MAX));
        self.shared.set_unapplied(errors);
    }

    /// Opens the CAs of development certificates on the loader's thread.
    async fn open_cas(&self, config: &Config) -> Result<LocalCas, ReloadFailure> {
        let directories = local_ca::list_directories(config);
        if directories.is_empty() {
            return Ok(LocalCas::default());
        }
        let result = self.loader.run_task(move || local_ca::open_all(directories)).await;
        result.map_err(ReloadFailure::Hung)?.map_err(ReloadFailure::LocalCa)
    }

    /// Counts, logs and remembers the outcome.
    fn record_outcome(&self, outcome: &ReloadOutcome, trigger: Trigger) {
        self.metrics.reload_counter(outcome.result().label(), trigger.label()).inc();
        let overtakes = trigger != Trigger::File;
        let trigger = trigger.label();
        match outcome {
            ReloadOutcome::Applied(applied) => {
                tracing::info!(trigger, generation = applied.generation, "config reloaded: {}", applied.diff);
                for (is_weaker, line) in applied.diff.marked_lines() {
                    match is_weaker {
                        true => tracing::warn!("config changed: {line}"),
                        false => tracing::info!("config changed: {line}"),
                    }
                }
                super::log_warnings(&self.current.load().config);
                for key in &applied.restart {
                    tracing::warn!("the change of {key} needs a restart; until then the old value stays active");
                }
                self.report_unapplied(&applied.failures);
            }
            ReloadOutcome::Unchanged { generation, .. } => {
                // The user undid a bad edit: the file again contains the active config.
                if self.metrics.reload_successful.get() == 0 {
                    tracing::info!(trigger, "config is valid again; generation {generation} stays active");
                } else if overtakes {
                    tracing::info!(trigger, "config unchanged; generation {generation} stays active");
                } else {
                    tracing::debug!(trigger, generation, "config unchanged");
                }
                self.metrics.reload_successful.set(1);
            }
            ReloadOutcome::Failed { generation, failure } => {
                self.metrics.reload_successful.set(0);
                tracing::error!(trigger, "config not reloaded, generation {generation} stays active\n{failure}");
            }
            ReloadOutcome::Valid(_) => {}
        }
        let mut record = outcome.to_json();
        record["trigger"] = trigger.into();
        record["at"] = format_rfc3339(SystemTime::now()).into();
        self.shared.remember_reload(record, overtakes);
    }
}

fn warnings_json(config: &Config) -> Value {
    config.warnings.as_ref().map_or_else(|| json!([]), Report::to_json)
}

/// Returns memory to the system once the workers have dropped the old config.
async fn trim_heap_later(loader: Rc<Loader>) {
    tokio::time::sleep(OLD_CONFIG_LIFETIME).await;
    heap::release_free_memory();
    // The memory of the config texts belongs to the loader's thread, which may be busy with the next load.
    let _ = loader.run_task(heap::release_free_memory).await;
}

/// Keeps settings that are fixed at the start, and returns the names of those that would have changed.
fn keep_restart_settings(config: &mut Config, old: &Config) -> Vec<&'static str> {
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

/// Handles of the threads, which end with this value.
pub struct Fetchers {
    pub acme: AcmeThread,
    jwks: JwksThread,
}

impl Fetchers {
    pub fn new(metrics: &Metrics) -> Fetchers {
        Fetchers { acme: AcmeThread::new(metrics), jwks: JwksThread::new(metrics) }
    }

    /// Has the threads serve the config that has become active.
    pub fn update(&mut self, current: &CurrentSnapshot) {
        self.acme.update(current);
        self.jwks.update(current);
    }
}
