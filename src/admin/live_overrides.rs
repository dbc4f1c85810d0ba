//! Live overrides: hashes in Redis that operators edit, `PREFIX:overrides:LIMIT` with one field per key. Every gateway
//! reads them on its own. The control thread runs it; the reloader applies overrides to a new config before it comes
//! into force. The admin API changes single entries. With a memory store, they are in this process, and in its state
//! file if there is one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::IntGaugeVec;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::admin::store_link::StoreLink;
use crate::config::Config;
use crate::labels::labels;
use crate::limiting::clock;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::{ENTRIES_MAX, HashChange, RawOverrides};
use crate::limiting::store::Store;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::StoreMetrics;

pub struct LiveOverrides {
    known: RefCell<KnownOverrides>,
    /// Incremented with each change by the admin API: what was read before is outdated.
    changes: Cell<u64>,
    metrics: StoreMetrics,
}

labels! {
    /// Where a changed entry is kept.
    OverrideKeeper:
    /// In Redis, for all gateways.
    Redis = "redis",
    /// In the memory of the gateway, and in its state file.
    StateFile = "state_file",
    /// In the memory of the gateway, until it stops.
    Memory = "memory",
}

/// Result of a change by the admin API.
pub struct ChangedOverride {
    pub existed: bool,
    pub keeper: OverrideKeeper,
    /// The change is in force in this gateway; else it is with the next reading.
    pub is_applied: bool,
}

/// Why a change by the admin API was not made.
pub enum OverrideFault {
    /// What is wrong with the entry.
    Invalid(String),
    /// The store did not make it, or not in time.
    Unavailable(String),
}

#[derive(Default)]
struct KnownOverrides {
    /// The entries in force, by limit.
    good: BTreeMap<String, RawOverrides>,
    /// The contents that were read last, with mistakes, by limit.
    read: BTreeMap<String, RawOverrides>,
    /// Incremented with each change of `good`.
    revision: u64,
    /// Current mistakes by limit; each is logged once.
    logged: BTreeMap<String, String>,
    /// When mistakes of a limit were last logged.
    logged_at: BTreeMap<String, Instant>,
    /// `good` is about the memory store, not about Redis.
    are_local: bool,
}

/// Result of one reading: hashes or their mistakes, by limit. A limit whose server did not respond is missing.
#[derive(Default)]
struct OverrideReading {
    found: BTreeMap<String, Result<RawOverrides, String>>,
    failure: Option<String>,
}

const READ_INTERVAL: Duration = Duration::from_secs(2);
/// Additional interval for each entry beyond [`ENTRIES_MAX`]: 20 s for a million.
const PAUSE_PER_FIELD: Duration = Duration::from_micros(20);
/// Minimum interval between log lines about a hash whose mistakes keep changing.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl LiveOverrides {
    /// Creates the series of the limits of `config`.
    pub fn new(metrics: StoreMetrics, config: &Config) -> LiveOverrides {
        let overrides = LiveOverrides { known: RefCell::default(), changes: Cell::default(), metrics };
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

    /// Returns a number that changes with the overrides in force.
    pub fn revision(&self) -> u64 {
        self.known.borrow().revision
    }

    /// Returns the overrides in force for the limits of `config`.
    pub fn overrides_for(&self, config: &Config) -> BTreeMap<String, RawOverrides> {
        let good = &self.known.borrow().good;
        let entry = |limit: &Arc<Limit>| Some((limit.name.clone(), good.get(&limit.name)?.clone()));
        config.limits.iter().filter_map(entry).filter(|(_, raw)| !raw.is_empty()).collect()
    }

    /// Applies known overrides to the limits of a config. Entries that no longer fit their limit are dropped; the next
    /// reading reports them.
    pub fn apply_known(&self, config: &Config) {
        let KnownOverrides { good, read, are_local, revision, .. } = &mut *self.known.borrow_mut();
        // The entries of one store are not about another.
        if *are_local == config.store.is_shared() {
            *are_local = !config.store.is_shared();
            *revision += 1;
            good.clear();
        }
        // The limit may read the same contents in another way now.
        read.clear();
        self.metrics.live_overrides.reset();
        self.metrics.rejected_overrides.reset();
        for limit in config.limits.iter() {
            let entries = good.get(&limit.name).map_or(0, RawOverrides::len);
            let entries = i64::try_from(entries).unwrap_or(i64::MAX);
            self.metrics.live_overrides.with_label_values(&[&limit.name]).set(entries);
            self.metrics.rejected_overrides.with_label_values(&[&limit.name]).set(0);
        }
        for limit in config.limits.iter() {
            let Some(raw) = good.get_mut(&limit.name) else { continue };
            if let Some(mistakes) = limit.overrides.set_live(&limit.key, raw, None).describe() {
                tracing::warn!(limit = limit.name, "live overrides left out, as they do not fit the limit: {mistakes}");
            }
        }
    }

    /// Reads a new store once, before any request is decided there.
    pub async fn read_first(&self, config: &Config, store: &Store) {
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
        // Another spelling would count as a mistake beside the new entry. In a large set it is not searched for.
        let spellings = {
            let known = self.known.borrow();
            let known = known.read.get(&limit.name).or(known.good.get(&limit.name));
            let small = known.filter(|raw| raw.len() <= ENTRIES_MAX);
            small.map(|raw| limit.overrides.find_spellings(&limit.key, raw, field)).unwrap_or_default()
        };
        let change = HashChange { field, value, spellings };
        let key = override_key(config, limit);
        let Some(outcome) = store.change_hash(&key, &change).await else {
            return self.change_local(config, limit, &change);
        };
        self.changes.update(|changes| changes + 1);
        let existed = outcome.map_err(OverrideFault::Unavailable)?;
        let is_small = self.known.borrow().good.get(&limit.name).is_none_or(|known| known.len() <= ENTRIES_MAX);
        let read = if is_small { store.read_hashes(std::slice::from_ref(&key)).await } else { None };
        let read = read.into_iter().flatten().next().and_then(Result::ok);
        let is_applied = read.is_some();
        if let Some(raw) = read {
            self.changes.update(|changes| changes + 1);
            self.accept_reading(config, [(limit.name.clone(), raw)].into());
        }
        Ok(ChangedOverride { existed, keeper: OverrideKeeper::Redis, is_applied })
    }

    /// Makes a change of the overrides in this process.
    fn change_local(
        &self,
        config: &Config,
        limit: &Arc<Limit>,
        change: &HashChange<'_>,
    ) -> Result<ChangedOverride, OverrideFault> {
        let mut known = self.known.borrow_mut();
        let raw = known.good.entry(limit.name.clone()).or_default();
        let mut existed = raw.remove(change.field.as_bytes()).is_some();
        change.spellings.iter().for_each(|other| existed |= raw.remove(other).is_some());
        if let Some(value) = change.value {
            if raw.len() >= ENTRIES_MAX {
                raw.retain(|field, value| !is_over(limit, field, value));
            }
            if raw.len() >= ENTRIES_MAX {
                let what = format!("`{}` has {ENTRIES_MAX} live overrides; remove some", limit.name);
                return Err(OverrideFault::Invalid(what));
            }
            raw.insert(change.field.as_bytes().to_vec(), value.as_bytes().to_vec());
        }
        let skipped = limit.overrides.set_live(&limit.key, raw, None);
        let entries = i64::try_from(raw.len()).unwrap_or(i64::MAX);
        self.metrics.live_overrides.with_label_values(&[&limit.name]).set(entries);
        known.revision += 1;
        let is_saved = config.store.state.is_some();
        match skipped.describe().filter(|_| change.value.is_some()) {
            Some(mistakes) => Err(OverrideFault::Invalid(mistakes)),
            None => {
                let keeper = if is_saved { OverrideKeeper::StateFile } else { OverrideKeeper::Memory };
                Ok(ChangedOverride { existed, keeper, is_applied: true })
            }
        }
    }

    /// Reads the hashes periodically. Never returns.
    pub async fn run(self: Rc<LiveOverrides>, current: CurrentSnapshot, link: Rc<StoreLink>) {
        let mut failing = false;
        let mut pause = Duration::ZERO;
        let mut ticks = interval(READ_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // A large set takes longer to read, so it is read less often.
            sleep(pause).await;
            let (snapshot, before) = (current.load_full(), self.changes.get());
            let Some(OverrideReading { found, failure }) = read_overrides(&link.store(), &snapshot.config).await else {
                self.known.borrow_mut().logged.clear();
                failing = false;
                continue;
            };
            let fields: usize = found.values().flatten().map(RawOverrides::len).sum();
            pause =
                PAUSE_PER_FIELD.saturating_mul(u32::try_from(fields.saturating_sub(ENTRIES_MAX)).unwrap_or(u32::MAX));
            // A reload may have happened meanwhile; new limits wait for the next reading.
            let now = current.load();
            if now.config.store == snapshot.config.store && self.changes.get() == before {
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
        let KnownOverrides { good, read, revision, logged, logged_at, .. } = &mut *self.known.borrow_mut();
        for limit in config.limits.iter() {
            let Some(found) = found.remove(&limit.name) else { continue };
            let (entries, rejected) = (self.metrics.live_overrides.clone(), self.metrics.rejected_overrides.clone());
            let count = |gauge: IntGaugeVec, count: usize| {
                gauge.with_label_values(&[&limit.name]).set(i64::try_from(count).unwrap_or(i64::MAX));
            };
            // What the server has, of which only a part applies if entries have mistakes.
            let is_known = found.as_ref().is_ok_and(|raw| {
                read.get(&limit.name).map_or(raw.is_empty() && !good.contains_key(&limit.name), |known| raw == known)
            });
            if is_known && !logged.contains_key(&limit.name) {
                count(entries, good.get(&limit.name).map_or(0, RawOverrides::len));
                count(rejected, 0);
                continue;
            }
            let mistakes = match found {
                Ok(raw) => {
                    let mut kept = raw.clone();
                    let skipped = limit.overrides.set_live(&limit.key, &mut kept, good.get(&limit.name));
                    if good.get(&limit.name).map_or(!kept.is_empty(), |known| *known != kept) {
                        match good.get(&limit.name).map_or(0, RawOverrides::len) {
                            before @ 1.. if kept.is_empty() => {
                                tracing::warn!(limit = limit.name, before, "the overrides in Redis are gone");
                            }
                            _ => tracing::info!(
                                limit = limit.name,
                                entries = kept.len(),
                                "overrides in Redis are active"
                            ),
                        }
                        *revision += 1;
                    }
                    count(entries, kept.len());
                    count(rejected, skipped.count);
                    good.insert(limit.name.clone(), kept);
                    read.insert(limit.name.clone(), raw);
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
                // The next reading finds the mistakes again.
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

/// Returns whether the time of an entry has passed.
fn is_over(limit: &Limit, field: &[u8], value: &[u8]) -> bool {
    let entry = str::from_utf8(field).ok().zip(str::from_utf8(value).ok());
    let entry = entry.and_then(|(field, value)| limit.overrides.check_entry(&limit.key, field, value).ok());
    entry.and_then(|entry| entry.until_ms).is_some_and(|until_ms| until_ms <= clock::now_ms())
}

/// Returns the key of the hash of a limit.
fn override_key(config: &Config, limit: &Limit) -> String {
    format!("{}:overrides:{}", config.store.prefix, limit.name)
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
