//! The in-memory store. It is used without Redis, and in place of Redis while that is unavailable. All workers share
//! it. It consists of 64 shards with a lock each, so that workers rarely wait for each other. The number of keys is
//! bounded, with a share for each limit. `locked` runs operations on the shards of one request.
//!
//! Input: the checks of a decision and the time. Output: an answer per check, and the new states.

mod locked;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use arc_swap::ArcSwap;
use prometheus::IntCounter;
use tokio::task::yield_now;

use crate::limiting::algorithm::{Rule, State};
use crate::limiting::clock;
use crate::limiting::clock::SteadyClock;
use crate::limiting::decision::{Check, Decision, Op};
use crate::limiting::limit::Limit;
use crate::limiting::store::memory::locked::{KeyLocation, LockedShards};
use crate::limiting::store::once::{MarkUse, SingleUseMark, UsedMarks};
use crate::limiting::store::partition::{Hashed, KeyCount, Partition, PrehashedState};
use crate::limiting::store::shares::{KeyShare, KeyShares};

/// Limit state in this process, shared by all workers.
pub struct MemoryStore {
    shards: Vec<Mutex<MemoryShard>>,
    hasher: RandomState,
    shares: ArcSwap<KeyShares>,
    clock: SteadyClock,
    marks: Mutex<UsedMarks>,
}

/// The keys of one shard, by the id of the limit.
type MemoryShard = HashMap<u64, LimitKeys, PrehashedState>;

/// The keys of one limit in one shard.
struct LimitKeys {
    partition: Partition<Box<str>>,
    share: Arc<KeyShare>,
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
            clock: SteadyClock::start(),
            marks: Mutex::default(),
        }
    }

    /// Gives each of `limits` its share of `max_keys`. Keys of a limit that is not among them are kept until the next
    /// call. `counter` returns the eviction counter of a limit by its name.
    pub fn set_shares(&self, max_keys: usize, limits: &[Arc<Limit>], counter: impl Fn(&str) -> Option<IntCounter>) {
        let shares = Arc::new(self.shares.load().next_config(max_keys, limits, counter));
        self.shares.store(shares.clone());
        for i in 0..SHARDS {
            let mut shard = self.lock(i);
            let gone: Vec<LimitKeys> =
                shard.extract_if(|id, _| !shares.keeps_limit(*id)).map(|(_, keys)| keys).collect();
            shard.iter_mut().for_each(|(id, keys)| keys.move_to(shares.share_of(*id)));
            drop(shard);
            // Dropping many keys takes time, so it happens after the shard is unlocked.
            drop(gone);
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
            let dated = checks.iter().any(|check| check.rule.is_calendar());
            DecisionTime { steady_ms, wall_ms: if dated { clock::now_ms() } else { steady_ms } }
        };
        self.run_with_clock(now, op, checks)
    }

    fn run_with_clock(&self, now: impl FnOnce() -> DecisionTime, op: Op, checks: &[Check]) -> Decision {
        let mut locked = self.lock_for(checks, now);
        match op {
            Op::Take | Op::Peek => locked.decide(checks, op == Op::Take),
            Op::Adjust => locked.adjust(checks),
            Op::Reset => locked.reset(checks),
        }
    }

    /// Locks the shards of `checks` in the order of their index, which prevents deadlocks.
    fn lock_for(&self, checks: &[Check], now: impl FnOnce() -> DecisionTime) -> LockedShards<'_> {
        let homes: Vec<KeyLocation> = checks.iter().map(|check| self.location_of(&check.key)).collect();
        let wanted = homes.iter().fold(0_u64, |wanted, home| wanted | 1 << home.shard);
        let mut shards = Vec::with_capacity(homes.len());
        let mut left = wanted;
        while left != 0 {
            shards.push(self.lock(left.trailing_zeros() as usize));
            left &= left - 1;
        }
        LockedShards { memory: self, homes, wanted, shards, now: now() }
    }

    /// Returns the state of a key, and the ms until it expires.
    pub fn state(&self, key: &str, now_ms: i64) -> Option<(State, i64)> {
        let KeyLocation { hash, shard } = self.location_of(key);
        let shard = self.lock(shard);
        let entry = shard.values().find_map(|keys| keys.partition.live_entry(Hashed { hash, key }, now_ms))?;
        Some((entry.state.clone(), entry.expires_ms - now_ms))
    }

    /// Calls `visit` with the keys of the limits whose ids are `limits`. Each shard is locked only while its keys are
    /// copied, and other tasks of the thread run between two shards.
    pub async fn visit_keys(&self, limits: &[u64], visit: &mut impl FnMut(&str)) {
        let mut copied = String::new();
        for shard in 0..SHARDS {
            copied.clear();
            self.copy_keys(shard, limits, &mut copied);
            copied.lines().for_each(&mut *visit);
            yield_now().await;
        }
    }

    /// Appends a line for each key of these limits in one shard.
    fn copy_keys(&self, shard: usize, limits: &[u64], lines: &mut String) {
        let shard = self.lock(shard);
        for keys in limits.iter().filter_map(|id| shard.get(id)) {
            keys.partition.keys().for_each(|key| lines.extend([key, "\n"]));
        }
    }

    /// Returns the number of keys, including expired ones that have not been removed yet.
    pub fn len(&self) -> usize {
        (0..SHARDS).map(|i| self.lock(i).values().map(|keys| keys.partition.len()).sum::<usize>()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of live keys that were evicted.
    pub fn evicted_count(&self) -> u64 {
        (0..SHARDS).map(|i| self.lock(i).values().map(|keys| keys.partition.evicted_count()).sum::<u64>()).sum()
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limiting::algorithm::Rule;
    use crate::limiting::algorithm::fixed_window::FixedWindow;
    use crate::limiting::limit::{Limit, Mode};

    const NOW: i64 = 1_795_000_000_000;

    fn limit(name: &str, limit: i64, window_ms: i64, mode: Mode) -> Arc<Limit> {
        Limit::bare(name, Rule::FixedWindow(FixedWindow { limit, window_ms, clock: false }), mode)
    }

    fn check(limit: &Arc<Limit>, key: &str, cost: i64) -> Check {
        Check::new(limit, key.to_owned(), cost)
    }

    #[test]
    fn a_flood_of_clients_stays_within_the_bound() {
        let memory = MemoryStore::new(20_000);
        let limit = limit("any", 9, 3_600_000, Mode::Enforce);
        for i in 0..200_000 {
            memory.run(Op::Take, &[check(&limit, &i.to_string(), 1)], NOW);
            if i % 10_000 == 0 {
                assert!(memory.len() <= 20_000);
            }
        }
        assert!((19_000..=20_000).contains(&memory.len()), "{} keys", memory.len());
    }

    #[test]
    fn expired_keys_are_forgotten_as_new_ones_come() {
        let memory = MemoryStore::new(1_000_000);
        let short = limit("short", 9, 1000, Mode::Enforce);
        for i in 0..10_000 {
            memory.run(Op::Take, &[check(&short, &format!("old-{i}"), 1)], NOW);
        }
        assert_eq!(memory.len(), 10_000);
        for i in 0..10_000 {
            memory.run(Op::Take, &[check(&short, &format!("new-{i}"), 1)], NOW + 1000);
        }
        assert!(memory.len() < 11_000, "{} keys", memory.len());
    }

    #[test]
    fn an_expired_key_is_a_new_one() {
        let memory = MemoryStore::new(100);
        let one = limit("one", 1, 1000, Mode::Enforce);
        assert!(memory.run(Op::Take, &[check(&one, "k", 1)], NOW).admitted);
        assert!(!memory.run(Op::Take, &[check(&one, "k", 1)], NOW + 999).admitted);
        assert!(memory.run(Op::Take, &[check(&one, "k", 1)], NOW + 1000).admitted);
    }

    #[test]
    fn threads_charge_all_limits_or_none() {
        let memory = MemoryStore::new(10_000);
        let wide = limit("wide", 5000, 3_600_000, Mode::Enforce);
        let narrow = limit("narrow", 300, 3_600_000, Mode::Enforce);
        let shadow = limit("shadow", 700, 3_600_000, Mode::Shadow);
        let ask = |cost| {
            let all = [(&wide, "a"), (&narrow, "b"), (&shadow, "c")];
            memory.run(Op::Take, &all.map(|(limit, key)| check(limit, key, cost)), NOW)
        };
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..1000).filter(|_| ask(1).admitted).count())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 300);
        let left: Vec<i64> = ask(0).answers.iter().map(|answer| answer.remaining).collect();
        assert_eq!(left, [4700, 0, 0], "a shadow limit is charged by its own verdict");
    }

    #[test]
    fn keys_of_a_limit_that_is_gone_are_kept_for_one_more_config() {
        let memory = MemoryStore::new(6400);
        let (a, b) = (limit("a", 1, 3_600_000, Mode::Enforce), limit("b", 1, 3_600_000, Mode::Enforce));
        memory.set_shares(6400, &[a.clone(), b.clone()], |_| None);
        let admitted = |limit| memory.run(Op::Take, &[check(limit, "k", 1)], NOW).admitted;
        assert!(admitted(&a) && admitted(&b));
        memory.set_shares(6400, std::slice::from_ref(&b), |_| None);
        assert_eq!(memory.len(), 2);
        memory.set_shares(6400, &[a.clone(), b.clone()], |_| None);
        assert!(!admitted(&a) && !admitted(&b));
        memory.set_shares(6400, std::slice::from_ref(&b), |_| None);
        memory.set_shares(6400, std::slice::from_ref(&b), |_| None);
        assert_eq!(memory.len(), 1);
        // A request may still use the previous config.
        assert!(admitted(&a));
    }

    /// The test includes small shares, where the distribution of keys over shards matters most.
    #[test]
    fn a_spent_key_stays_while_more_than_an_eighth_is_not_spent() {
        for share in [64, 65, 128, 640, 6400] {
            let memory = MemoryStore::new(share);
            let limit = limit("own", 2, 3_600_000, Mode::Enforce);
            let take = |key: String| memory.run(Op::Take, &[check(&limit, &key, 1)], NOW).admitted;
            let spent = share - share / 8 - 1;
            for i in 0..spent {
                assert!(take(format!("spent-{i}")) && take(format!("spent-{i}")));
            }
            for i in 0..4 * share {
                assert!(take(format!("new-{i}")));
                assert!(memory.len() <= share);
            }
            assert_eq!(memory.len(), share);
            assert_eq!((0..spent).filter(|i| take(format!("spent-{i}"))).count(), 0, "of {spent} in {share}");
        }
    }

    /// The key with the most left is evicted, even if it is alone in its shard.
    #[test]
    fn small_shares_compare_all_of_their_keys() {
        let memory = MemoryStore::new(64);
        let limit = limit("own", 9, 3_600_000, Mode::Enforce);
        let ask = |key: String, cost| memory.run(Op::Take, &[check(&limit, &key, cost)], NOW).answers[0].remaining;
        assert_eq!(ask("used".to_owned(), 8), 1);
        (0..2000).for_each(|i| assert_eq!(ask(format!("new-{i}"), 1), 8));
        assert_eq!(ask("used".to_owned(), 0), 1);
    }

    /// Workers that evict at the same time do not wait for each other, and respect the bound.
    #[test]
    fn threads_that_evict_stay_within_the_bound() {
        let memory = MemoryStore::new(64);
        let limits = [limit("a", 1, 3_600_000, Mode::Enforce), limit("b", 9, 3_600_000, Mode::Enforce)];
        memory.set_shares(192, &limits, |_| None);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (memory, limits) = (&memory, &limits);
                scope.spawn(move || {
                    for i in 0..5000 {
                        let all = limits.each_ref().map(|limit| check(limit, &format!("{thread}-{i}"), 1));
                        memory.run(Op::Take, &all, NOW);
                        if i % 1000 == 0 {
                            memory.set_shares(192, limits, |_| None);
                        }
                    }
                });
            }
        });
        for i in 0..100 {
            let all = limits.each_ref().map(|limit| check(limit, &format!("after-{i}"), 1));
            memory.run(Op::Take, &all, NOW);
        }
        assert_eq!(memory.len(), 192);
    }

    #[test]
    fn each_limit_has_its_share_of_the_keys() {
        let memory = MemoryStore::new(12_800);
        let mut own = limit("own", 9, 3_600_000, Mode::Enforce);
        Arc::get_mut(&mut own).unwrap().max_keys = Some(6400);
        let limits = [own, limit("a", 9, 3_600_000, Mode::Enforce), limit("b", 9, 3_600_000, Mode::Enforce)];
        memory.set_shares(12_800, &limits, |_| None);
        for (limit, share) in limits.iter().zip([6400, 3200, 3200]) {
            let before = memory.len();
            for i in 0..20_000 {
                memory.run(Op::Take, &[check(limit, &format!("{}{i}", limit.name), 1)], NOW);
            }
            assert_eq!(memory.len() - before, share, "{}", limit.name);
        }
    }
}
