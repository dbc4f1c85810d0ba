//! Live overrides: hashes in Redis that operators edit, `PREFIX:overrides:LIMIT` with one field per key. Every gateway
//! reads them on its own. The control thread runs it; the reloader applies overrides to a new config before it comes
//! into force.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::IntGaugeVec;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::admin::store_link::StoreLink;
use crate::config::Config;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::{ENTRIES_MAX, RawOverrides};
use crate::limiting::store::Store;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::StoreMetrics;

pub struct LiveOverrides {
    known: RefCell<KnownOverrides>,
    metrics: StoreMetrics,
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
        let overrides = LiveOverrides { known: RefCell::default(), metrics };
        overrides.apply_known(config);
        overrides
    }

    /// Applies the overrides of an earlier process until the store is available.
    pub fn restore_saved(&self, good: BTreeMap<String, RawOverrides>) {
        let entries: usize = good.values().map(RawOverrides::len).sum();
        if entries > 0 {
            tracing::info!(entries, "live overrides from the state file apply until the store is available");
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
        let KnownOverrides { good, read, .. } = &mut *self.known.borrow_mut();
        if !config.store.is_shared() {
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
            let snapshot = current.load_full();
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
            if now.config.store == snapshot.config.store {
                self.accept_reading(&now.config, found);
            }
            if let Some(failure) = &failure
                && !failing
            {
                tracing::warn!("cannot read the overrides in Redis, those known stay in force: {failure}");
            }
            failing = failure.is_some();
        }
    }

    fn accept_reading(&self, config: &Config, mut found: BTreeMap<String, Result<RawOverrides, String>>) {
        let KnownOverrides { good, read, revision, logged, logged_at } = &mut *self.known.borrow_mut();
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
                                "overrides in Redis are in force"
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
                        .map(|mistakes| format!("live overrides skipped, the others are in force: {mistakes}"))
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

/// Reads the hashes; `None` if the store has none.
async fn read_overrides(store: &Store, config: &Config) -> Option<OverrideReading> {
    let key = |limit: &Arc<Limit>| format!("{}:overrides:{}", config.store.prefix, limit.name);
    let keys: Vec<String> = config.limits.iter().map(key).collect();
    let mut reading = OverrideReading::default();
    for (limit, found) in config.limits.iter().zip(store.read_hashes(&keys).await?) {
        match found {
            Ok(found) => drop(reading.found.insert(limit.name.clone(), found)),
            Err(failure) => reading.failure = Some(failure),
        }
    }
    Some(reading)
}
