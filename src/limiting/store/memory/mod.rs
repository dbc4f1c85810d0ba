//! The in-memory store. It is used without Redis, and instead of Redis while that is unavailable. All workers share
//! it. It consists of 64 shards with a lock each, so that workers rarely wait for each other. The number of keys is
//! bounded, for all limits together. `locked` runs operations on the shards of one request.
//!
//! Input: the checks of a decision and the time. Output: an answer per check, and the new states.

mod locked;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use arc_swap::ArcSwap;
use indexmap::IndexMap;
use prometheus::IntCounter;
use tokio::task::yield_now;

use crate::limiting::algorithm::{Rule, State};
use crate::limiting::clock;
use crate::limiting::clock::SteadyClock;
use crate::limiting::decision::{Check, Decision, Op};
use crate::limiting::limit::Limit;
use crate::limiting::partition::{Hashed, KeyCount, Partition, PrehashedState};
use crate::limiting::store::memory::locked::{FewVec, KeyLocation, LockedShards};
use crate::limiting::store::once::{MarkUse, SingleUseMark, UsedMarks};
use crate::limiting::store::shares::{KeyShare, KeyShares};
use crate::telemetry::sampled::LogSampler;

/// Limit state in this process, shared by all workers.
pub struct MemoryStore {
    shards: Vec<Mutex<MemoryShard>>,
    hasher: RandomState,
    shares: ArcSwap<KeyShares>,
    /// Held while keys move to new shares. Of two moves at once, some keys would end in the older shares.
    moving: Mutex<()>,
    clock: SteadyClock,
    marks: Mutex<UsedMarks>,
    /// Number of live keys that were evicted, and the time of the last on the store's clock.
    evicted: AtomicU64,
    evicted_at_ms: AtomicI64,
    eviction_log: LogSampler,
}

/// Keys in use that were evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evictions {
    pub count: u64,
    /// Time since the last one; `None` if there was none.
    pub seconds_ago: Option<i64>,
}

/// The keys of one shard.
#[derive(Default)]
struct MemoryShard {
    /// The keys of each limit, by its id.
    limits: IndexMap<u64, LimitKeys, PrehashedState>,
    /// Index of the limit whose expired keys are removed next.
    hand: usize,
}

/// The keys of one limit in one shard.
struct LimitKeys {
    partition: Partition<Box<str>>,
    share: Arc<KeyShare>,
    /// The rule of the latest new key. It says how much is left to a key that may be evicted.
    rule: Arc<Rule>,
}

impl MemoryShard {
    /// Removes a few expired keys, of one limit after the other: those of a limit without new keys would otherwise stay
    /// in the pool. The limit whose id is `kept` stays even without keys, because it gets a new one.
    fn sweep(&mut self, kept: u64, now: DecisionTime) {
        for _ in 0..EMPTY_SKIPPED {
            if self.hand >= self.limits.len() {
                self.hand = 0;
            }
            let Some((id, keys)) = self.limits.get_index_mut(self.hand) else { return };
            let before = keys.partition.key_count();
            if before.len == 0 && *id == kept {
                self.hand += 1;
                return;
            }
            if before.len == 0 {
                self.limits.swap_remove_index(self.hand);
                continue;
            }
            if keys.partition.sweep(now.for_rule(&keys.rule)) {
                self.hand += 1;
            }
            return keys.record_change(before);
        }
    }
}

impl LimitKeys {
    /// Records the change since `before` in the share of the limit.
    fn record_change(&self, before: KeyCount) {
        self.share.record_change(before, self.partition.key_count());
    }

    /// Moves the keys to the share of a new config.
    fn move_to(&mut self, share: &Arc<KeyShare>) {
        let all = self.partition.key_count();
        share.record_change(KeyCount::default(), all);
        std::mem::replace(&mut self.share, share.clone()).record_change(all, KeyCount::default());
    }
}

/// Number of shards. A `u64` with a bit for each represents the set of shards of a decision.
const SHARDS: usize = u64::BITS as usize;

/// Maximum number of limits without keys that a search for expired ones passes.
const EMPTY_SKIPPED: usize = 8;
/// Interval between two log lines about evictions.
const EVICTION_LOG_MS: u64 = 600_000;

/// Time of a decision.
#[derive(Clone, Copy)]
struct DecisionTime {
    steady_ms: i64,
    /// Time of the wall clock, which calendar windows follow.
    wall_ms: i64,
}

impl DecisionTime {
    fn for_rule(self, rule: &Rule) -> i64 {
        if rule.is_calendar() { self.wall_ms } else { self.steady_ms }
    }
}

impl MemoryStore {
    /// Creates a store. Each limit may have `max_keys` until [`MemoryStore::set_shares`] sets the shares.
    pub fn new(max_keys: usize) -> MemoryStore {
        MemoryStore {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shares: ArcSwap::from_pointee(KeyShares::undivided(max_keys)),
            moving: Mutex::default(),
            clock: SteadyClock::start(),
            marks: Mutex::default(),
            evicted: AtomicU64::new(0),
            evicted_at_ms: AtomicI64::new(0),
            eviction_log: LogSampler::default(),
        }
    }

    /// Lets `limits` share `max_keys`. Keys of a limit that is not among them are kept until the next
    /// call. `counter` returns the eviction counter of a limit by its name.
    pub fn set_shares(&self, max_keys: usize, limits: &[Arc<Limit>], counter: impl Fn(&str) -> Option<IntCounter>) {
        let _moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let shares = Arc::new(self.shares.load().next_config(max_keys, limits, counter));
        self.shares.store(shares.clone());
        for i in 0..SHARDS {
            let mut shard = self.lock(i);
            let closed_limits: Vec<LimitKeys> =
                shard.limits.extract_if(.., |id, _| !shares.keeps_limit(*id)).map(|(_, keys)| keys).collect();
            shard.limits.iter_mut().for_each(|(id, keys)| keys.move_to(shares.share_of(*id)));
            drop(shard);
            // Dropping many keys takes time, so it happens after the shard is unlocked.
            drop(closed_limits);
        }
    }

    /// Reads the clock of the store in ms. All decisions use it, except those of calendar windows.
    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Uses a mark, which is possible once in this process.
    pub fn use_mark(&self, mark: SingleUseMark, now_ms: i64) -> MarkUse {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).use_mark(mark, now_ms)
    }

    /// Runs `op` on all `checks` at the time `now_ms`.
    pub fn run(&self, op: Op, checks: &[Check], now_ms: i64) -> Decision {
        self.run_with_clock(|| DecisionTime { steady_ms: now_ms, wall_ms: now_ms }, op, checks)
    }

    /// Runs `op` on all `checks` now. The clock is read after their shards are locked, so that the time of a key never
    /// goes back when several workers use it.
    pub fn run_now(&self, op: Op, checks: &[Check]) -> Decision {
        let now = || {
            let steady_ms = self.now_ms();
            let has_calendar = checks.iter().any(|check| check.rule.is_calendar());
            DecisionTime { steady_ms, wall_ms: if has_calendar { clock::now_ms() } else { steady_ms } }
        };
        self.run_with_clock(now, op, checks)
    }

    fn run_with_clock(&self, now: impl FnOnce() -> DecisionTime, op: Op, checks: &[Check]) -> Decision {
        let mut shards = self.lock_for(checks, now);
        match op {
            Op::Take | Op::Peek => shards.decide(checks, op == Op::Take),
            Op::Adjust => shards.adjust(checks),
            Op::Reset => shards.reset(checks),
        }
    }

    /// Locks the shards of `checks` in the order of their index, which prevents deadlocks.
    fn lock_for(&self, checks: &[Check], now: impl FnOnce() -> DecisionTime) -> LockedShards<'_> {
        let mut homes: FewVec<_> = checks.iter().map(|check| self.location_of(&check.key)).collect();
        homes.extend(checks.iter().filter_map(|check| Some(self.location_of(&check.ban.as_ref()?.key))));
        let shard_bits = homes.iter().fold(0_u64, |shard_bits, home| shard_bits | 1 << home.shard);
        let mut shards = FewVec::new();
        let mut left = shard_bits;
        while left != 0 {
            shards.push(self.lock(left.trailing_zeros() as usize));
            left &= left - 1;
        }
        LockedShards { memory: self, homes, wanted: shard_bits, shards, now: now() }
    }

    /// Returns the state of a key, and the ms until it expires.
    pub fn state(&self, key: &str, now_ms: i64) -> Option<(State, i64)> {
        let KeyLocation { hash, shard } = self.location_of(key);
        let shard = self.lock(shard);
        let entry = shard.limits.values().find_map(|keys| keys.partition.live_entry(Hashed { hash, key }, now_ms))?;
        Some((entry.state.clone(), entry.expires_ms - now_ms))
    }

    /// Calls `visit` with the keys of the limits whose ids are `limits`. Each shard is locked only while its keys are
    /// copied, and other tasks of the thread run between two shards.
    pub async fn visit_keys(&self, limits: &[u64], visit: &mut impl FnMut(&str)) {
        let mut lines = String::new();
        for shard in 0..SHARDS {
            lines.clear();
            self.copy_keys(shard, limits, &mut lines);
            lines.lines().for_each(&mut *visit);
            yield_now().await;
        }
    }

    /// Appends a line for each key of these limits in one shard.
    fn copy_keys(&self, shard: usize, limits: &[u64], lines: &mut String) {
        let shard = self.lock(shard);
        for keys in limits.iter().filter_map(|id| shard.limits.get(id)) {
            keys.partition.keys().for_each(|key| lines.extend([key, "\n"]));
        }
    }

    /// Returns the number of keys, including expired ones that have not been removed yet.
    pub fn len(&self) -> usize {
        (0..SHARDS).map(|i| self.lock(i).limits.values().map(|keys| keys.partition.len()).sum::<usize>()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of live keys that were evicted.
    pub fn evicted_count(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns the number of live keys that were evicted, and when the last one was.
    pub fn evictions(&self) -> Evictions {
        let count = self.evicted_count();
        let passed_ms = self.now_ms().saturating_sub(self.evicted_at_ms.load(Ordering::Relaxed));
        Evictions { count, seconds_ago: (count > 0).then_some(passed_ms.max(0) / 1000) }
    }

    /// Counts a live key of a limit that was evicted, and logs it. A store that serves no requests, as in a replay, has
    /// no counters and logs nothing.
    fn report_eviction(&self, share: &KeyShare, now: DecisionTime) {
        self.evicted_at_ms.store(now.steady_ms, Ordering::Relaxed);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        let Some(counter) = &share.evicted else { return };
        counter.inc();
        if let Some(left_out) = self.eviction_log.take_turn_every(EVICTION_LOG_MS) {
            let (option, bound) = share.bound();
            let name = &share.name;
            tracing::warn!(
                left_out,
                "limit {name}: a key in use was evicted, because memory has all {bound} keys that {option} allows; its \
                 client has a full budget again; raise {option}"
            );
        }
    }

    /// Returns the hash and the shard of a key. The shard depends on bits of the hash that the map of a shard does not
    /// use.
    fn location_of(&self, key: &str) -> KeyLocation {
        let hash = self.hasher.hash_one(key);
        KeyLocation { hash, shard: (hash >> 40) as usize % SHARDS }
    }

    /// Locks a shard. A panic in another worker leaves complete entries, so the shard remains usable.
    fn lock(&self, shard: usize) -> MutexGuard<'_, MemoryShard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a shard, or returns `None` if another decision has locked it.
    fn try_lock(&self, shard: usize) -> Option<MutexGuard<'_, MemoryShard>> {
        match self.shards[shard].try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests;
