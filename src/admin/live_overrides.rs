//! Live overrides: hashes in Redis that operators edit, `PREFIX:overrides:LIMIT` with one field per key. Every gateway
//! reads them on its own. The control thread runs it; the reloader applies overrides to a new config before it comes
//! into force. The admin API changes single entries. With a memory store, they are in this process, and in its state
//! file if there is one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prometheus::IntGaugeVec;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::admin::store_link::StoreLink;
use crate::config::Config;
use crate::labels::labels;
use crate::limiting::clock;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::row_table::ReplacedRows;
use crate::limiting::overrides::{ENTRIES_MAX, HashChange, LIVE_ENTRIES_MAX, Overrides, RawOverrides};
use crate::limiting::store::Store;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::StoreMetrics;

pub struct LiveOverrides {
    known: RefCell<KnownOverrides>,
    /// The change in the list of changes that was read last.
    last_change: RefCell<Option<String>>,
    /// The limits whose live overrides the state file does not have.
    unsaved: RefCell<BTreeSet<String>>,
    /// The revision that the last write of the state file was about, whether it succeeded or not.
    saved: watch::Sender<u64>,
    /// Notified of changes that wait for the state file.
    unsaved_change: Notify,
    metrics: StoreMetrics,
}

labels! {
    /// The place that keeps a changed entry.
    OverrideKeeper:
    /// Redis keeps it, for all gateways.
    Redis = "redis",
    /// The gateway keeps it in memory and in its state file.
    StateFile = "state_file",
    /// The gateway keeps it in memory until it stops: also if the state file has no space for the overrides of the
    /// limit, or could not be written.
    Memory = "memory",
}

/// An active entry as it is written.
pub struct LiveEntry {
    pub limit: String,
    pub field: Vec<u8>,
    pub value: Vec<u8>,
}

/// Result of a change by the admin API.
pub struct ChangedOverride {
    pub existed: bool,
    pub keeper: OverrideKeeper,
    /// The change is active in this gateway; else it is with the next reading.
    pub is_applied: bool,
}

/// Why a change by the admin API was not made.
pub enum OverrideFault {
    /// The entry is wrong, and the text says why.
    Invalid(String),
    /// The store did not make it, or not in time.
    Unavailable(String),
}

#[derive(Default)]
struct KnownOverrides {
    /// The active entries, by limit.
    good: BTreeMap<String, RawOverrides>,
    /// The overrides that have the entries in `good`, by limit. Those of a new config get them when it is loaded.
    tables: BTreeMap<String, Weak<Overrides>>,
    /// Entries that were changed since the reading under way began, by limit. The values that it finds for them are
    /// outdated.
    changed: BTreeMap<String, BTreeSet<String>>,
    /// How many entries of a limit were left when those that had ended were last removed.
    left: BTreeMap<String, usize>,
    /// Incremented with each change of `good`.
    revision: u64,
    /// Current errors by limit; each is logged once.
    logged: BTreeMap<String, String>,
    /// When errors of a limit were last logged.
    logged_at: BTreeMap<String, Instant>,
    /// `good` is about the memory store, not about Redis.
    are_local: bool,
}

/// Result of one reading: hashes or their errors, by limit. A limit whose server did not respond is missing.
#[derive(Default)]
struct OverrideReading {
    found: BTreeMap<String, Result<RawOverrides, String>>,
    failure: Option<String>,
}

const READ_INTERVAL: Duration = Duration::from_secs(2);
/// Additional interval for each entry beyond [`ENTRIES_MAX`]: 20 s for a million.
const PAUSE_PER_FIELD: Duration = Duration::from_micros(20);
/// How long a change waits for the state file: for a write that runs, the pause after it, and its own.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of entries from which the memory store removes ended ones.
const PRUNED_FROM: usize = 1000;
/// Minimum interval between log lines about a hash whose errors keep changing.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl LiveOverrides {
    /// Creates the series of the limits of `config`.
    pub fn new(metrics: StoreMetrics, config: &Config) -> LiveOverrides {
        let overrides = LiveOverrides {
            known: RefCell::default(),
            last_change: RefCell::default(),
            unsaved: RefCell::default(),
            saved: watch::Sender::new(0),
            unsaved_change: Notify::new(),
            metrics,
        };
        overrides.apply_known(config);
        overrides
    }

    /// Applies the overrides of an earlier process: with Redis, until it is available.
    pub fn restore_saved(&self, good: BTreeMap<String, RawOverrides>) {
        let entries: usize = good.values().map(RawOverrides::len).sum();
        if entries > 0 {
            let until = if self.known.borrow().are_local { "" } else { " until the store is available" };
            tracing::info!(entries, "live overrides from the state file apply{until}");
        }
        self.known.borrow_mut().good = good;
    }

    /// Notes that the state file was written at a revision. `unsaved` has the limits whose overrides were omitted or
    /// could not be written.
    pub fn note_saved(&self, revision: u64, unsaved: BTreeSet<String>) {
        *self.unsaved.borrow_mut() = unsaved;
        self.saved.send_replace(revision);
    }

    /// Waits for a change that the state file should have at once.
    pub async fn wait_for_change(&self) {
        self.unsaved_change.notified().await;
    }

    /// Waits until the state file has the overrides of a limit. Returns false if it does not get them.
    async fn wait_until_saved(&self, limit: &str) -> bool {
        let (revision, mut saved) = (self.revision(), self.saved.subscribe());
        let is_unsaved = || self.unsaved.borrow().contains(limit);
        if is_unsaved() {
            return false;
        }
        self.unsaved_change.notify_one();
        let wait = timeout(SAVE_TIMEOUT, saved.wait_for(|written| *written >= revision));
        wait.await.is_ok_and(|written| written.is_ok()) && !is_unsaved()
    }

    /// Returns a number that changes with the active overrides.
    pub fn revision(&self) -> u64 {
        self.known.borrow().revision
    }

    /// Returns the active overrides for the limits of `config`.
    pub fn overrides_for(&self, config: &Config) -> BTreeMap<String, RawOverrides> {
        let good = &self.known.borrow().good;
        let entry = |limit: &Arc<Limit>| Some((limit.name.clone(), good.get(&limit.name)?.clone()));
        config.limits.iter().filter_map(entry).filter(|(_, raw)| !raw.is_empty()).collect()
    }

    /// Returns up to `most` entries of the limits that are `wanted`, by their names and then by their fields as they are
    /// written, from the first one `after` an entry.
    pub fn list_page(
        &self,
        wanted: impl Fn(&str) -> bool,
        after: Option<(&str, &[u8])>,
        most: usize,
    ) -> Vec<LiveEntry> {
        let good = &self.known.borrow().good;
        let first = after.map_or("", |(limit, _)| limit);
        let limits = good.range::<str, _>((Bound::Included(first), Bound::Unbounded));
        let entries = limits.filter(|(name, _)| wanted(name)).flat_map(|(name, raw)| {
            let start = match after {
                Some((limit, field)) if limit == name => Bound::Excluded(field),
                _ => Bound::Unbounded,
            };
            let fields = raw.range::<[u8], _>((start, Bound::Unbounded));
            fields.map(move |(field, value)| LiveEntry {
                limit: name.clone(),
                field: field.clone(),
                value: value.clone(),
            })
        });
        entries.take(most).collect()
    }

    /// Returns the value of an entry as it is written.
    pub fn find_value(&self, limit: &str, field: &[u8]) -> Option<Vec<u8>> {
        self.known.borrow().good.get(limit)?.get(field).cloned()
    }

    /// Returns how many entries each of the limits that are `wanted` has; those without any are left out.
    pub fn count_entries(&self, wanted: impl Fn(&str) -> bool) -> Vec<(String, usize)> {
        let good = &self.known.borrow().good;
        let counts = good.iter().filter(|(name, raw)| !raw.is_empty() && wanted(name));
        counts.map(|(name, raw)| (name.clone(), raw.len())).collect()
    }

    /// Applies known overrides to the limits of a config. Entries that no longer fit their limit are dropped; the next
    /// reading reports them.
    pub fn apply_known(&self, config: &Config) {
        let KnownOverrides { good, tables, left, are_local, revision, .. } = &mut *self.known.borrow_mut();
        // Entries of one store do not apply to another store.
        if *are_local == config.store.is_shared() {
            *are_local = !config.store.is_shared();
            *revision += 1;
            good.clear();
            left.clear();
        }
        self.metrics.live_overrides.reset();
        self.metrics.rejected_overrides.reset();
        for limit in config.limits.iter() {
            let entries = good.get(&limit.name).map_or(0, RawOverrides::len);
            let entries = i64::try_from(entries).unwrap_or(i64::MAX);
            self.metrics.live_overrides.with_label_values(&[&limit.name]).set(entries);
            self.metrics.rejected_overrides.with_label_values(&[&limit.name]).set(0);
        }
        for limit in config.limits.iter() {
            let raw = good.entry(limit.name.clone()).or_default();
            tables.remove(&limit.name);
            synchronize(limit, raw, tables);
        }
    }

    /// Reads a new store once, before any request is decided there.
    pub async fn read_first(&self, config: &Config, store: &Store) {
        // Those were changes of another store.
        self.known.borrow_mut().changed.clear();
        if let Some(reading) = read_overrides(store, config).await {
            self.accept_reading(config, reading.found);
        }
    }

    /// Sets the live override of one key of `limit`, or removes it. `field` is canonical.
    pub async fn change_entry(
        &self,
        config: &Config,
        limit: &Arc<Limit>,
        store: &Store,
        (field, value): (&str, Option<&str>),
    ) -> Result<ChangedOverride, OverrideFault> {
        if let Some(value) = value {
            limit.overrides.check_entry(&limit.key, field, value).map_err(OverrideFault::Invalid)?;
        }
        // Another spelling would count as an error beside the new entry.
        let spelling = limit.overrides.find_spelling(field);
        let change = HashChange { field, value, spellings: spelling.into_iter().collect() };
        let Some(outcome) = store.change_hash(&override_key(config, limit), &change).await else {
            let existed = self.change_local(limit, &change)?;
            let is_saved = config.store.state.is_some() && self.wait_until_saved(&limit.name).await;
            let keeper = if is_saved { OverrideKeeper::StateFile } else { OverrideKeeper::Memory };
            return Ok(ChangedOverride { existed, keeper, is_applied: true });
        };
        let existed = outcome.map_err(OverrideFault::Unavailable)?;
        // The other gateways read the entry in the hash. Without the hint, they find it with their next reading.
        if let Some(Err(failure)) = store.announce_change(&change_list_key(config), &limit.name, field).await {
            tracing::warn!("cannot announce a change of the live overrides to the other gateways: {failure}");
        }
        let is_applied = self.apply_change(limit, &change).is_ok();
        Ok(ChangedOverride { existed, keeper: OverrideKeeper::Redis, is_applied })
    }

    /// Makes a change of the overrides in this process. Returns whether the key had an entry.
    fn change_local(&self, limit: &Arc<Limit>, change: &HashChange<'_>) -> Result<bool, OverrideFault> {
        self.prune_ended(limit, clock::now_ms());
        let existed = {
            let mut current = self.known.borrow_mut();
            let raw = current.good.entry(limit.name.clone()).or_default();
            let spellings = change.spellings.iter().map(Vec::as_slice).chain([change.field.as_bytes()]);
            let existed = spellings.into_iter().any(|field| raw.contains_key(field));
            if change.value.is_some() && !existed && raw.len() >= LIVE_ENTRIES_MAX {
                let what = format!("`{}` has {LIVE_ENTRIES_MAX} live overrides; remove some", limit.name);
                return Err(OverrideFault::Invalid(what));
            }
            existed
        };
        self.apply_change(limit, change).map_err(OverrideFault::Invalid)?;
        Ok(existed)
    }

    /// Removes the entries of a limit that have ended, if there may be many: else they would fill the state file.
    fn prune_ended(&self, limit: &Arc<Limit>, now_ms: i64) {
        let KnownOverrides { good, tables, left, revision, .. } = &mut *self.known.borrow_mut();
        let raw = good.entry(limit.name.clone()).or_default();
        // Each search goes through all entries, so it waits until there are twice as many as the last one left.
        let searched_from = left.get(&limit.name).map_or(0, |left| left.saturating_mul(2)).max(PRUNED_FROM);
        if raw.len() < searched_from.min(LIVE_ENTRIES_MAX) {
            return;
        }
        synchronize(limit, raw, tables);
        let expired_fields = limit.overrides.list_ended(now_ms);
        for field in &expired_fields {
            // Removing cannot fail.
            let _ = limit.overrides.change_live(&limit.key, raw, (field, None));
        }
        left.insert(limit.name.clone(), raw.len());
        if !expired_fields.is_empty() {
            *revision += 1;
            tracing::info!(
                limit = limit.name,
                ended = expired_fields.len(),
                "live overrides that have ended are removed"
            );
        }
    }

    /// Applies a change of one entry, without a look at the others.
    fn apply_change(&self, limit: &Arc<Limit>, change: &HashChange<'_>) -> Result<(), String> {
        let KnownOverrides { good, tables, changed, revision, .. } = &mut *self.known.borrow_mut();
        let raw = good.entry(limit.name.clone()).or_default();
        synchronize(limit, raw, tables);
        let changed_fields = changed.entry(limit.name.clone()).or_default();
        for other in &change.spellings {
            limit.overrides.change_live(&limit.key, raw, (other, None))?;
            changed_fields.extend(String::from_utf8(other.clone()));
        }
        let entry = (change.field.as_bytes(), change.value.map(str::as_bytes));
        let result = limit.overrides.change_live(&limit.key, raw, entry);
        changed_fields.insert(change.field.to_owned());
        *revision += 1;
        let entries = i64::try_from(raw.len()).unwrap_or(i64::MAX);
        self.metrics.live_overrides.with_label_values(&[&limit.name]).set(entries);
        result
    }

    /// Applies the changes that other gateways announced since the last call: before their overrides are shown or changed,
    /// and periodically.
    pub async fn catch_up(&self, config: &Config, store: &Store) {
        let last = self.last_change.borrow().clone();
        let read = store.read_changes(&change_list_key(config), last.as_deref()).await.and_then(Result::ok);
        // After a failure, and with another store, only changes from now on are followed; the readings find the others.
        *self.last_change.borrow_mut() = read.as_ref().map(|(last, _)| last.clone());
        let Some((_, changes)) = read else { return };
        for limit in config.limits.iter() {
            let fields = changes.iter().filter(|(name, _)| *name == limit.name).map(|(_, field)| field.clone());
            let fields: Vec<String> = fields.collect::<BTreeSet<String>>().into_iter().collect();
            if fields.is_empty() {
                continue;
            }
            let before: Vec<_> = fields.iter().map(|field| self.find_value(&limit.name, field.as_bytes())).collect();
            let Some(Ok(values)) = store.read_fields(&override_key(config, limit), &fields).await else { continue };
            for ((field, before), value) in fields.iter().zip(before).zip(values) {
                // A change of this gateway since then is newer.
                if self.find_value(&limit.name, field.as_bytes()) != before {
                    continue;
                }
                let spellings = limit.overrides.find_spelling(field).into_iter().collect();
                let value = value.as_deref().map(String::from_utf8_lossy);
                // An error is counted and logged by the next reading.
                let _ = self.apply_change(limit, &HashChange { field, value: value.as_deref(), spellings });
            }
        }
    }

    /// Reads the hashes and the list of changes periodically. Never returns.
    pub async fn run(self: Rc<LiveOverrides>, current: CurrentSnapshot, link: Rc<StoreLink>) {
        // A large hash takes a while to read, during which single changes apply.
        tokio::join!(self.read_all(&current, &link), self.follow_all_changes(&current, &link));
    }

    async fn follow_all_changes(&self, current: &CurrentSnapshot, link: &StoreLink) {
        let mut ticks = interval(READ_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.catch_up(&current.load_full().config, &link.store()).await;
        }
    }

    async fn read_all(&self, current: &CurrentSnapshot, link: &StoreLink) {
        let mut failing = false;
        let mut pause = Duration::ZERO;
        let mut ticks = interval(READ_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // A large set takes longer to read, so it is read less often.
            sleep(pause).await;
            let snapshot = current.load_full();
            self.known.borrow_mut().changed.clear();
            let Some(OverrideReading { found, failure }) = read_overrides(&link.store(), &snapshot.config).await else {
                self.known.borrow_mut().logged.clear();
                failing = false;
                continue;
            };
            let fields: usize = found.values().flatten().map(RawOverrides::len).sum();
            pause =
                PAUSE_PER_FIELD.saturating_mul(u32::try_from(fields.saturating_sub(ENTRIES_MAX)).unwrap_or(u32::MAX));
            // A reload may have happened in the meantime; new limits wait for the next reading.
            let now = current.load();
            if now.config.store == snapshot.config.store {
                self.accept_reading(&now.config, found);
            }
            if let Some(failure) = &failure
                && !failing
            {
                tracing::warn!("cannot read overrides from Redis; keeping the last known ones: {failure}");
            }
            failing = failure.is_some();
        }
    }

    fn accept_reading(&self, config: &Config, mut found: BTreeMap<String, Result<RawOverrides, String>>) {
        let KnownOverrides { good, tables, changed, revision, logged, logged_at, .. } = &mut *self.known.borrow_mut();
        for limit in config.limits.iter() {
            let Some(found) = found.remove(&limit.name) else { continue };
            let (entries, rejected) = (self.metrics.live_overrides.clone(), self.metrics.rejected_overrides.clone());
            let count = |gauge: IntGaugeVec, count: usize| {
                gauge.with_label_values(&[&limit.name]).set(i64::try_from(count).unwrap_or(i64::MAX));
            };
            let mistakes = match found {
                Ok(mut raw) => {
                    let known = good.entry(limit.name.clone()).or_default();
                    synchronize(limit, known, tables);
                    for field in changed.remove(&limit.name).unwrap_or_default() {
                        match known.get(field.as_bytes()) {
                            Some(value) => drop(raw.insert(field.into_bytes(), value.clone())),
                            None => drop(raw.remove(field.as_bytes())),
                        }
                    }
                    let before = known.len();
                    let ReplacedRows { changed, rejected: skipped } =
                        limit.overrides.replace_live(&limit.key, known, &raw);
                    match known.len() {
                        _ if changed == 0 => {}
                        0 => tracing::warn!(limit = limit.name, before, "the overrides in Redis are gone"),
                        entries => tracing::info!(limit = limit.name, entries, "overrides in Redis are active"),
                    }
                    *revision += u64::from(changed > 0);
                    count(entries, known.len());
                    count(rejected, skipped.count);
                    skipped
                        .describe()
                        .map(|mistakes| format!("live overrides skipped, the others are active: {mistakes}"))
                }
                Err(mistake) => {
                    count(rejected, 1);
                    Some(format!("live overrides rejected, keeping the previous set: {mistake}"))
                }
            };
            match mistakes {
                None => drop(logged.remove(&limit.name)),
                Some(mistakes) if logged.get(&limit.name) == Some(&mistakes) => {}
                // The next reading finds the errors again.
                Some(_) if logged_at.get(&limit.name).is_some_and(|at| at.elapsed() < LOG_INTERVAL) => {}
                Some(mistakes) => {
                    tracing::error!(limit = limit.name, "{mistakes}");
                    logged_at.insert(limit.name.clone(), Instant::now());
                    logged.insert(limit.name.clone(), mistakes);
                }
            }
        }
    }
}

/// Gives the limit the entries that are active, if it does not have them: between the load of a config and its
/// activation, changes apply to the limit of the old one.
fn synchronize(limit: &Limit, known: &mut RawOverrides, tables: &mut BTreeMap<String, Weak<Overrides>>) {
    if tables.get(&limit.name).is_some_and(|table| table.as_ptr() == Arc::as_ptr(&limit.overrides)) {
        return;
    }
    if let Some(mistakes) = limit.overrides.set_live(&limit.key, known).describe() {
        tracing::warn!(limit = limit.name, "live overrides left out, as they do not fit the limit: {mistakes}");
    }
    tables.insert(limit.name.clone(), Arc::downgrade(&limit.overrides));
}

/// Returns the key of the hash of a limit.
fn override_key(config: &Config, limit: &Limit) -> String {
    format!("{}:overrides:{}", config.store.prefix, limit.name)
}

/// Returns the key of the list of changes.
fn change_list_key(config: &Config) -> String {
    format!("{}:override-changes", config.store.prefix)
}

/// Reads the hashes; `None` if the store has none.
async fn read_overrides(store: &Store, config: &Config) -> Option<OverrideReading> {
    let keys: Vec<String> = config.limits.iter().map(|limit| override_key(config, limit)).collect();
    let mut reading = OverrideReading::default();
    for (limit, found) in config.limits.iter().zip(store.read_hashes(&keys).await?) {
        match found {
            Ok(found) => drop(reading.found.insert(limit.name.clone(), found)),
            Err(failure) => reading.failure = Some(failure),
        }
    }
    Some(reading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn entries_that_have_ended_are_removed_before_there_are_many() {
        let text = "[[route]]\nrespond = { body = \"in\" }\nlimits = [\"q\"]\n\
            [limit.q]\nalgorithm = \"fixed_window\"\nrate = \"1/h\"\nkey = \"header:x-k\"\n";
        let config = load_text("c", text).unwrap();
        let live = LiveOverrides::new(Metrics::new().unwrap().store, &config);
        let limit = &config.limits[0];
        let set = |field: &str, value: &str| {
            let change = HashChange { field, value: Some(value), spellings: Vec::new() };
            assert!(live.change_local(limit, &change).is_ok(), "{field}");
        };
        set("evil", "rate=0");
        for i in 0..2 * PRUNED_FROM {
            set(&i.to_string(), "rate=0;until=2020-01-01T00:00:00Z");
        }
        let known = &live.overrides_for(&config)["q"];
        assert!(known.len() <= PRUNED_FROM, "{}", known.len());
        assert!(known.contains_key(&b"evil"[..]));
        assert!(limit.overrides.find("evil").is_some());
    }
}
