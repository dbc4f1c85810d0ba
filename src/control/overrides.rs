//! Live overrides: hashes in Redis that operators edit, `PREFIX:overrides:LIMIT` with one field per key. Every gateway
//! reads them on its own. The control thread runs it; the reloader applies overrides to a new config before it comes
//! into force.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::admin::store_link::StoreLink;
use crate::config::Config;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::RawOverrides;
use crate::limiting::store::Store;
use crate::snapshot::CurrentSnapshot;

#[derive(Default)]
pub struct LiveOverrides(RefCell<KnownOverrides>);

#[derive(Default)]
struct KnownOverrides {
    /// The last contents without mistakes, by limit.
    good: BTreeMap<String, RawOverrides>,
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
/// Minimum interval between log lines about a hash whose mistakes keep changing.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl LiveOverrides {
    /// Applies the overrides of an earlier process until the store is available.
    pub fn restore_saved(&self, good: BTreeMap<String, RawOverrides>) {
        let entries: usize = good.values().map(RawOverrides::len).sum();
        if entries > 0 {
            tracing::info!(entries, "live overrides from the state file apply until the store is available");
        }
        self.0.borrow_mut().good = good;
    }

    /// Returns a number that changes with the overrides in force.
    pub fn revision(&self) -> u64 {
        self.0.borrow().revision
    }

    /// Returns the overrides in force for the limits of `config`.
    pub fn overrides_for(&self, config: &Config) -> BTreeMap<String, RawOverrides> {
        let good = &self.0.borrow().good;
        let entry = |limit: &Arc<Limit>| Some((limit.name.clone(), good.get(&limit.name)?.clone()));
        config.limits.iter().filter_map(entry).filter(|(_, raw)| !raw.is_empty()).collect()
    }

    /// Applies known overrides to the limits of a config. Entries that no longer fit their limit are dropped; the next
    /// reading reports them.
    pub fn apply_known(&self, config: &Config) {
        let good = &mut self.0.borrow_mut().good;
        if !config.store.is_shared() {
            good.clear();
        }
        for limit in config.limits.iter() {
            let Some(raw) = good.get(&limit.name) else { continue };
            if let Err(mistake) = limit.overrides.set_live(&limit.key, raw) {
                tracing::warn!(limit = limit.name, "live overrides left out, as they do not fit the limit: {mistake}");
                good.remove(&limit.name);
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
        let mut ticks = interval(READ_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let snapshot = current.load_full();
            let Some(OverrideReading { found, failure }) = read_overrides(&link.store(), &snapshot.config).await else {
                self.0.borrow_mut().logged.clear();
                failing = false;
                continue;
            };
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
        let KnownOverrides { good, revision, logged, logged_at } = &mut *self.0.borrow_mut();
        for limit in config.limits.iter() {
            let Some(found) = found.remove(&limit.name) else { continue };
            if found.as_ref().is_ok_and(|raw| good.get(&limit.name).map_or(raw.is_empty(), |known| raw == known)) {
                logged.remove(&limit.name);
                continue;
            }
            match found.and_then(|raw| limit.overrides.set_live(&limit.key, &raw).map(|_| raw)) {
                Ok(raw) => {
                    tracing::info!(limit = limit.name, entries = raw.len(), "overrides in Redis are in force");
                    good.insert(limit.name.clone(), raw);
                    *revision += 1;
                    logged.remove(&limit.name);
                }
                Err(mistake) if logged.get(&limit.name) == Some(&mistake) => {}
                // The next reading finds the mistake again.
                Err(_) if logged_at.get(&limit.name).is_some_and(|at| at.elapsed() < LOG_INTERVAL) => {}
                Err(mistake) => {
                    tracing::error!(limit = limit.name, "live overrides rejected, keeping the previous set: {mistake}");
                    logged_at.insert(limit.name.clone(), Instant::now());
                    logged.insert(limit.name.clone(), mistake);
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
