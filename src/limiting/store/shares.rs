//! How many keys in memory each limit may have. Limits share one pool; a limit with its own `max_keys` has that many
//! for itself. A limit evicts only when the pool is full: then the limit with the most keys gives one up, so none falls
//! below its equal part of the pool, its floor. Limits that the last reload removed give up their keys first, and have
//! no floor. The control thread sets the shares with each config.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::IntCounter;

use crate::limiting::limit::Limit;
use crate::limiting::partition::{KeyCount, PrehashedState};

/// The shares of all limits, by the id of the limit.
pub struct KeyShares {
    current: ShareTable,
    /// Shares of limits that the last reload removed; the next reload may bring them back.
    leaving: ShareTable,
    /// The shares of both that are in the pool.
    pooled: Vec<Arc<KeyShare>>,
    /// Share of any other limit. It is everything until the limits are known, then the minimum: requests may still use
    /// an old config.
    other: Arc<KeyShare>,
    divided: bool,
}

type ShareTable = HashMap<u64, Arc<KeyShare>, PrehashedState>;

/// Share of one limit.
pub struct KeyShare {
    pub id: u64,
    /// Name of the limit, for the log.
    pub name: String,
    capacity: Capacity,
    /// The last reload removed the limit.
    is_leaving: bool,
    /// Counts live keys that were evicted.
    pub evicted: Option<IntCounter>,
    totals: KeyTotals,
}

/// The place in which the keys of a limit have their capacity.
enum Capacity {
    /// The limit has this many keys for itself.
    Own(usize),
    Pool(Arc<KeyPool>),
}

/// The keys that limits share.
pub struct KeyPool {
    max_keys: usize,
    /// Number of keys of a limit that the other limits never evict.
    floor: usize,
    len: AtomicUsize,
    /// Index of the limit that gave up the last key.
    donor: AtomicUsize,
    /// Index of the limit that is compared with it next.
    hand: AtomicUsize,
}

/// Number of keys of a limit in all shards together.
#[derive(Default)]
struct KeyTotals {
    len: AtomicUsize,
    spent: AtomicUsize,
}

/// Smallest `max_keys` of a limit, and the smallest floor that limits with their own `max_keys` must leave to others.
pub const SHARE_MIN: usize = 64;
/// Number of limits compared to find the one with the most keys, so that the cost does not grow with their number.
const LIMITS_COMPARED: usize = 16;

impl KeyShare {
    fn new(id: u64, name: &str, capacity: Capacity, evicted: Option<IntCounter>) -> KeyShare {
        KeyShare { id, name: name.to_owned(), capacity, is_leaving: false, evicted, totals: KeyTotals::default() }
    }

    /// Returns whether the limit has keys, and its last config was the one before.
    fn gives_up_first(&self, count: KeyCount) -> bool {
        self.is_leaving && count.len > 0
    }

    /// Records a change of the keys in one shard.
    pub fn record_change(&self, before: KeyCount, after: KeyCount) {
        // Additions wrap, so negative differences are subtracted.
        if after.len != before.len {
            let added = after.len.wrapping_sub(before.len);
            self.totals.len.fetch_add(added, Ordering::Relaxed);
            if let Capacity::Pool(pool) = &self.capacity {
                pool.len.fetch_add(added, Ordering::Relaxed);
            }
        }
        if after.spent != before.spent {
            self.totals.spent.fetch_add(after.spent.wrapping_sub(before.spent), Ordering::Relaxed);
        }
    }

    /// Counts a new key. Returns how many keys are too many with it.
    pub fn count_new_key(&self) -> usize {
        let before = self.totals.len.fetch_add(1, Ordering::Relaxed);
        match &self.capacity {
            Capacity::Own(max_keys) => (before + 1).saturating_sub(*max_keys),
            Capacity::Pool(pool) => (pool.len.fetch_add(1, Ordering::Relaxed) + 1).saturating_sub(pool.max_keys),
        }
    }

    /// Returns the number of keys in all shards. Other workers may change it at the same time.
    pub fn key_count(&self) -> KeyCount {
        KeyCount { len: self.totals.len.load(Ordering::Relaxed), spent: self.totals.spent.load(Ordering::Relaxed) }
    }

    /// Returns whether the limit should give up a spent key. `count` is the number of its keys without the new one.
    pub fn evicts_spent(&self, count: KeyCount) -> bool {
        match &self.capacity {
            Capacity::Own(max_keys) => count.evicts_spent(*max_keys),
            Capacity::Pool(_) => count.evicts_spent(count.len),
        }
    }

    /// Returns the option that bounds the number of keys, and its value, for the log.
    pub fn bound(&self) -> (&'static str, usize) {
        match &self.capacity {
            Capacity::Own(max_keys) => ("`max_keys` of the limit", *max_keys),
            Capacity::Pool(pool) => ("`max_keys` of [store]", pool.max_keys),
        }
    }
}

impl KeyPool {
    fn new(division: KeyDivision) -> Arc<KeyPool> {
        let KeyDivision { pool, floor } = division;
        let [len, donor, hand] = [const { AtomicUsize::new(0) }; 3];
        Arc::new(KeyPool { max_keys: pool, floor, len, donor, hand })
    }

    /// Returns whether a limit with this number of keys can give up one that is not spent.
    fn has_spare_key(&self, count: KeyCount) -> bool {
        count.len > self.floor && !count.evicts_spent(count.len)
    }
}

impl KeyShares {
    /// Gives every limit all keys, as the limits are not known yet.
    pub fn undivided(max_keys: usize) -> KeyShares {
        KeyShares {
            current: ShareTable::default(),
            leaving: ShareTable::default(),
            pooled: Vec::new(),
            other: Arc::new(KeyShare::new(0, "", Capacity::Own(max_keys), None)),
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
        let pool = KeyPool::new(KeyDivision::new(max_keys, limits));
        let capacity = |own: Option<usize>| own.map_or_else(|| Capacity::Pool(pool.clone()), Capacity::Own);
        let share_of = |limit: &Arc<Limit>| {
            let id = limit.store_ref.id;
            (id, Arc::new(KeyShare::new(id, &limit.name, capacity(limit.max_keys), counter(&limit.name))))
        };
        // Bans have as many keys as their limit, apart from those.
        let ban_share_of = |limit: &Arc<Limit>| {
            let id = limit.ban.as_ref()?.store_ref.id;
            let name = format!("{} (bans)", limit.name);
            Some((id, Arc::new(KeyShare::new(id, &name, capacity(limit.max_keys), counter(&limit.name)))))
        };
        let bans = limits.iter().filter_map(ban_share_of);
        let current: ShareTable = limits.iter().map(share_of).chain(bans).collect();
        let closed_shares = self.current.values().filter(|share| !current.contains_key(&share.id));
        let leaving: ShareTable = closed_shares
            .map(|share| {
                let own = match share.capacity {
                    Capacity::Own(max_keys) => Some(max_keys),
                    Capacity::Pool(_) => None,
                };
                let left = KeyShare::new(share.id, &share.name, capacity(own), share.evicted.clone());
                (share.id, Arc::new(KeyShare { is_leaving: true, ..left }))
            })
            .collect();
        let is_pooled = |share: &&Arc<KeyShare>| matches!(share.capacity, Capacity::Pool(_));
        let pooled = current.values().chain(leaving.values()).filter(is_pooled).cloned().collect();
        KeyShares {
            current,
            leaving,
            pooled,
            other: Arc::new(KeyShare::new(0, "", Capacity::Own(SHARE_MIN), None)),
            divided: true,
        }
    }

    /// Returns the share of a limit.
    pub fn share_of(&self, id: u64) -> &Arc<KeyShare> {
        self.current.get(&id).or_else(|| self.leaving.get(&id)).unwrap_or(&self.other)
    }

    /// Returns whether the keys of a limit are kept.
    pub fn keeps_limit(&self, id: u64) -> bool {
        !self.divided || self.current.contains_key(&id) || self.leaving.contains_key(&id)
    }

    /// Returns the limit that gives up a key for a new one of `own`, which already counts it: one that the last reload
    /// removed, or the one with the most keys, if it has more than `own` and a key that is not spent. Otherwise `own`
    /// gives up one of its keys. If it has fewer than its floor, the limit with the most keys gives up one, be it
    /// spent.
    pub fn find_donor<'s>(&'s self, own: &'s KeyShare) -> &'s KeyShare {
        let Capacity::Pool(pool) = &own.capacity else { return own };
        let key_count = own.key_count().len.saturating_sub(1);
        let Some(donor) = self.compare_limits(pool, LIMITS_COMPARED) else { return own };
        let count = donor.key_count();
        if donor.gives_up_first(count) || pool.has_spare_key(count) && count.len > key_count {
            return donor;
        }
        if key_count >= pool.floor.max(1) {
            return own;
        }
        // Not all limits can be at their floors while the pool is full and this one is below, but it may take all to
        // find one that is not.
        self.compare_limits(pool, self.pooled.len()).unwrap_or(own)
    }

    /// Compares the previous donor with the next `count` limits, and returns the best.
    fn compare_limits(&self, pool: &KeyPool, count: usize) -> Option<&KeyShare> {
        let all = self.pooled.len().max(1);
        let from = pool.hand.fetch_add(count, Ordering::Relaxed);
        let next = (0..count.min(all)).map(|step| from.wrapping_add(step) % all);
        let rank = |index: &usize| {
            self.pooled.get(*index).map(|share| {
                let count = share.key_count();
                (share.gives_up_first(count), pool.has_spare_key(count), count.len)
            })
        };
        let best = next.chain([pool.donor.load(Ordering::Relaxed) % all]).max_by_key(rank)?;
        pool.donor.store(best, Ordering::Relaxed);
        self.pooled.get(best).map(|share| &**share)
    }
}

/// How the keys of the store are divided among the limits of a config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDivision {
    /// Number of keys that the limits without their own `max_keys` share.
    pub pool: usize,
    /// Number of keys of such a limit that others never evict.
    pub floor: usize,
}

impl KeyDivision {
    pub fn new(max_keys: usize, limits: &[Arc<Limit>]) -> KeyDivision {
        let own: usize = limits.iter().filter_map(|limit| limit.max_keys).sum();
        let pool = max_keys.saturating_sub(own).max(SHARE_MIN);
        let pools = |limit: &Arc<Limit>| 1 + usize::from(limit.ban.is_some());
        let sharing: usize = limits.iter().filter(|limit| limit.max_keys.is_none()).map(pools).sum();
        KeyDivision { pool, floor: pool / sharing.max(1) }
    }

    /// Returns how many keys a limit has for sure, and how many at most.
    pub fn bounds_of(self, limit: &Limit) -> (usize, usize) {
        limit.max_keys.map_or((self.floor, self.pool), |own| (own, own))
    }
}
