//! How many keys in memory each limit may have, so that the keys of one limit do not evict those of another. The
//! control thread sets the shares with each config.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::IntCounter;

use crate::limiting::limit::Limit;
use crate::limiting::store::partition::{KeyCount, PrehashedState};

/// The shares of all limits, by the id of the limit.
pub struct KeyShares {
    current: ShareTable,
    /// Shares of limits that the last reload removed; the next reload may bring them back.
    leaving: ShareTable,
    /// Share of any other limit. It is everything until the limits are known, then the minimum: requests may still use
    /// an old config.
    other: Arc<KeyShare>,
    divided: bool,
}

type ShareTable = HashMap<u64, Arc<KeyShare>, PrehashedState>;

/// Share of one limit.
pub struct KeyShare {
    pub max_keys: usize,
    /// Counts live keys that were evicted.
    pub evicted: Option<IntCounter>,
    totals: KeyTotals,
}

/// Number of keys of a limit in all shards together.
#[derive(Default)]
struct KeyTotals {
    len: AtomicUsize,
    spent: AtomicUsize,
}

/// Smallest share of a limit.
pub const SHARE_MIN: usize = 64;

impl KeyShare {
    fn new(max_keys: usize, evicted: Option<IntCounter>) -> Arc<KeyShare> {
        Arc::new(KeyShare { max_keys, evicted, totals: KeyTotals::default() })
    }

    /// Records a change of the keys in one shard.
    pub fn record_change(&self, before: KeyCount, after: KeyCount) {
        // Additions wrap, so negative differences are subtracted.
        if after.len != before.len {
            self.totals.len.fetch_add(after.len.wrapping_sub(before.len), Ordering::Relaxed);
        }
        if after.spent != before.spent {
            self.totals.spent.fetch_add(after.spent.wrapping_sub(before.spent), Ordering::Relaxed);
        }
    }

    /// Counts a new key. Returns how many there were before.
    pub fn count_new_key(&self) -> usize {
        self.totals.len.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of keys in all shards. Other workers may change it at the same time.
    pub fn key_count(&self) -> KeyCount {
        KeyCount { len: self.totals.len.load(Ordering::Relaxed), spent: self.totals.spent.load(Ordering::Relaxed) }
    }
}

impl KeyShares {
    /// Gives every limit all keys, as the limits are not known yet.
    pub fn undivided(max_keys: usize) -> KeyShares {
        KeyShares {
            current: ShareTable::default(),
            leaving: ShareTable::default(),
            other: KeyShare::new(max_keys, None),
            divided: false,
        }
    }

    /// Returns the shares for a new config. `counter` returns the eviction counter of a limit by its name.
    pub fn next_config(
        &self,
        max_keys: usize,
        limits: &[Arc<Limit>],
        counter: impl Fn(&str) -> Option<IntCounter>,
    ) -> KeyShares {
        let shares = divide_keys(max_keys, limits);
        let current: ShareTable = limits
            .iter()
            .zip(shares)
            .map(|(limit, max_keys)| (limit.store_ref.id, KeyShare::new(max_keys, counter(&limit.name))))
            .collect();
        let gone = self.current.iter().filter(|(id, _)| !current.contains_key(id));
        let leaving = gone.map(|(id, share)| (*id, share.clone())).collect();
        KeyShares { current, leaving, other: KeyShare::new(SHARE_MIN, None), divided: true }
    }

    /// Returns the share of a limit.
    pub fn share_of(&self, id: u64) -> &Arc<KeyShare> {
        self.current.get(&id).or_else(|| self.leaving.get(&id)).unwrap_or(&self.other)
    }

    /// Returns whether the keys of a limit are kept.
    pub fn keeps_limit(&self, id: u64) -> bool {
        !self.divided || self.current.contains_key(&id) || self.leaving.contains_key(&id)
    }
}

/// Divides `max_keys` among limits: each gets its own `max_keys`, and those without get equal parts of the rest.
pub fn divide_keys(max_keys: usize, limits: &[Arc<Limit>]) -> Vec<usize> {
    let own: usize = limits.iter().filter_map(|limit| limit.max_keys).sum();
    let others = limits.iter().filter(|limit| limit.max_keys.is_none()).count();
    let part = (max_keys.saturating_sub(own) / others.max(1)).max(SHARE_MIN);
    limits.iter().map(|limit| limit.max_keys.unwrap_or(part)).collect()
}
