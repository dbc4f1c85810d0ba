//! The hot keys of a store, shared by all workers. Requests read the map without a lock; only a key that becomes hot
//! or cools down changes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use prometheus::IntGauge;

use crate::limiting::decision::Check;
use crate::limiting::hot_keys::hot_key::HotKey;
use crate::limiting::hot_keys::rate_sketch::RateSketch;
use crate::limiting::partition::PrehashedState;
use crate::limiting::usage::hash_key;
use crate::telemetry::metrics::LimitRegistry;

/// Maximum number of keys of a store that have leases at the same time. Further hot keys are decided by the store.
pub const KEYS_MAX: usize = 1024;

/// Hot keys by the hash of their state key. Of two keys with the same hash, one has leases.
type KeyMap = HashMap<u64, Arc<HotKey>, PrehashedState>;

/// The hot keys of one store.
pub struct HotKeys {
    keys: ArcSwap<KeyMap>,
    /// Held while the map is changed.
    changes: Mutex<()>,
    /// Made by the first decision of a limit with leases.
    sketch: OnceLock<RateSketch>,
    limits: Arc<LimitRegistry>,
    shown: IntGauge,
}

impl HotKeys {
    /// Makes an empty table, which counts leases in the records of `limits` and the number of keys in `shown`.
    pub fn new(limits: Arc<LimitRegistry>, shown: IntGauge) -> HotKeys {
        HotKeys { keys: ArcSwap::default(), changes: Mutex::default(), sketch: OnceLock::new(), limits, shown }
    }

    /// Counts a decision of `check` at `now_ms`, and returns its key if it is hot.
    pub fn find_hot(&self, check: &Check, now_ms: u64) -> Option<Arc<HotKey>> {
        let hash = hash_key(&check.key);
        let hot_key = self.keys.load().get(&hash).cloned();
        let key = match hot_key {
            Some(key) if key.is_for(check) => key,
            hot_key => {
                let count = self.sketch.get_or_init(RateSketch::default).count(hash, now_ms);
                if count <= check.limit.lease?.hot_after {
                    // A key whose rule has changed must not keep its leases until it is hot again.
                    hot_key
                        .filter(|hot_key| *hot_key.key == *check.key)
                        .iter()
                        .for_each(|hot_key| self.remove(hash, hot_key));
                    return None;
                }
                self.add(hash, check, now_ms)?
            }
        };
        key.count_demand(check.cost.unsigned_abs());
        Some(key)
    }

    /// Returns the hot key `key`, without counting a decision.
    pub fn find(&self, key: &str) -> Option<Arc<HotKey>> {
        self.keys.load().get(&hash_key(key)).filter(|known| *known.key == *key).cloned()
    }

    /// Number of hot keys.
    pub fn len(&self) -> usize {
        self.keys.load().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the key of `check`. Returns `None` if there are too many, or another worker changes the map now.
    fn add(&self, hash: u64, check: &Check, now_ms: u64) -> Option<Arc<HotKey>> {
        let _changing = self.changes.try_lock().ok()?;
        let keys = self.keys.load();
        if let Some(key) = keys.get(&hash) {
            if key.is_for(check) {
                return Some(key.clone());
            }
            // Another key with the same hash keeps its leases; those under other rules end.
            if *key.key != *check.key {
                return None;
            }
        }
        let mut keys = KeyMap::clone(&keys);
        keys.retain(|_, key| !key.is_idle(now_ms));
        if keys.len() >= KEYS_MAX {
            return None;
        }
        let counts = self.limits.find(&check.limit.name)?.leases.clone();
        let key = Arc::new(HotKey::new(check, counts, now_ms)?);
        keys.insert(hash, key.clone());
        self.publish(keys);
        Some(key)
    }

    /// Forgets `key` if it is no longer hot.
    pub fn remove_idle(&self, key: &Arc<HotKey>, now_ms: u64) {
        if key.is_idle(now_ms) {
            self.remove(hash_key(&key.key), key);
        }
    }

    fn remove(&self, hash: u64, key: &Arc<HotKey>) {
        let Ok(_changing) = self.changes.try_lock() else { return };
        let keys = self.keys.load();
        if keys.get(&hash).is_some_and(|own| Arc::ptr_eq(own, key)) {
            let mut keys = KeyMap::clone(&keys);
            keys.remove(&hash);
            self.publish(keys);
        }
    }

    fn publish(&self, keys: KeyMap) {
        self.shown.set(i64::try_from(keys.len()).unwrap_or(i64::MAX));
        self.keys.store(Arc::new(keys));
    }
}

impl Drop for HotKeys {
    fn drop(&mut self) {
        self.shown.set(0);
    }
}
