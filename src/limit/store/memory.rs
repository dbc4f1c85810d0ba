//! Limit state in this process: the embedded store, and the stand-in while Redis is away. Shared
//! by all workers, sharded so that they seldom meet, bounded in keys, for each limit by its share.

mod locked;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use arc_swap::ArcSwap;
use locked::{Home, Locked};
use prometheus::IntCounter;

use super::once::{Mark, Marks, Use};
use super::partition::{ByHash, Hashed, KeyCount, Partition};
use super::shares::{Share, Shares};
use crate::limit::algo::{Rule, State};
use crate::limit::clock::{self, Steady};
use crate::limit::decision::{Check, Decision, Op};
use crate::limit::limits::Limit;

pub struct Memory {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    shares: ArcSwap<Shares>,
    clock: Steady,
    marks: Mutex<Marks>,
}

/// By the id of the limit.
type Shard = HashMap<u64, Keys, ByHash>;

/// A limit's keys in one shard.
struct Keys {
    partition: Partition<Box<str>>,
    share: Arc<Share>,
}

impl Keys {
    /// Counts what has become of them since `before`.
    fn count(&self, before: KeyCount) {
        self.share.count(before, self.partition.key_count());
    }

    /// Of another config. What it has is counted there from now on.
    fn move_to(&mut self, share: &Arc<Share>) {
        let all = self.partition.key_count();
        share.count(KeyCount::default(), all);
        std::mem::replace(&mut self.share, share.clone()).count(all, KeyCount::default());
    }
}

/// As many as a number has bits, of which the shards of a decision are a set.
const SHARDS: usize = u64::BITS as usize;

/// The time of a decision.
#[derive(Clone, Copy)]
struct Now {
    steady_ms: i64,
    /// By the wall clock, as calendars go.
    wall_ms: i64,
}

impl Now {
    fn of(self, rule: &Rule) -> i64 {
        if rule.is_calendar() { self.wall_ms } else { self.steady_ms }
    }
}

impl Memory {
    /// Each limit may have `max_keys` until [`Memory::divide`] says how many each has.
    pub fn new(max_keys: usize) -> Memory {
        Memory {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shares: ArcSwap::from_pointee(Shares::undivided(max_keys)),
            clock: Steady::start(),
            marks: Mutex::default(),
        }
    }

    /// Gives each of `limits` its share of `max_keys`. The keys of a limit that is not among them are
    /// kept until the next time. `counter` makes the counter of a limit's evictions by its name.
    pub fn divide(&self, max_keys: usize, limits: &[Arc<Limit>], counter: impl Fn(&str) -> Option<IntCounter>) {
        let shares = Arc::new(self.shares.load().next(max_keys, limits, counter));
        self.shares.store(shares.clone());
        for i in 0..SHARDS {
            let mut shard = self.lock(i);
            let gone: Vec<Keys> = shard.extract_if(|id, _| !shares.keeps(*id)).map(|(_, keys)| keys).collect();
            shard.iter_mut().for_each(|(id, keys)| keys.move_to(shares.of(*id)));
            drop(shard);
            // May be many: requests do not wait for it.
            drop(gone);
        }
    }

    /// The clock that all decisions but those of calendars go by.
    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Makes a mark that can be made once, as long as this process lives.
    pub fn once(&self, mark: Mark, now_ms: i64) -> Use {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).note(mark, now_ms)
    }

    /// Runs `op` on all `checks` at `now_ms`.
    pub fn run(&self, op: Op, checks: &[Check], now_ms: i64) -> Decision {
        self.run_by(|| Now { steady_ms: now_ms, wall_ms: now_ms }, op, checks)
    }

    /// Runs `op` on all `checks` by this machine's clock, read once their keys are locked: workers
    /// that meet at a key must not turn its time back.
    pub fn run_now(&self, op: Op, checks: &[Check]) -> Decision {
        let now = || {
            let steady_ms = self.now_ms();
            let dated = checks.iter().any(|check| check.rule.is_calendar());
            Now { steady_ms, wall_ms: if dated { clock::now_ms() } else { steady_ms } }
        };
        self.run_by(now, op, checks)
    }

    fn run_by(&self, now: impl FnOnce() -> Now, op: Op, checks: &[Check]) -> Decision {
        let mut locked = self.lock_for(checks, now);
        match op {
            Op::Take | Op::Peek => locked.decide(checks, op == Op::Take),
            Op::Adjust => locked.adjust(checks),
            Op::Reset => locked.reset(checks),
        }
    }

    /// The shards concerned are locked in index order, so two decisions cannot wait for each other.
    fn lock_for(&self, checks: &[Check], now: impl FnOnce() -> Now) -> Locked<'_> {
        let homes: Vec<Home> = checks.iter().map(|check| self.home(&check.key)).collect();
        let wanted = homes.iter().fold(0_u64, |wanted, home| wanted | 1 << home.shard);
        let mut shards = Vec::with_capacity(homes.len());
        let mut left = wanted;
        while left != 0 {
            shards.push(self.lock(left.trailing_zeros() as usize));
            left &= left - 1;
        }
        Locked { memory: self, homes, wanted, shards, now: now() }
    }

    /// What is held for a key, and for how many ms more.
    pub fn state(&self, key: &str, now_ms: i64) -> Option<(State, i64)> {
        let Home { hash, shard } = self.home(key);
        let shard = self.lock(shard);
        let entry = shard.values().find_map(|keys| keys.partition.entry(Hashed { hash, key }, now_ms))?;
        Some((entry.state.clone(), entry.expires_ms - now_ms))
    }

    /// Keys held, expired ones included until they are met.
    pub fn len(&self) -> usize {
        (0..SHARDS).map(|i| self.lock(i).values().map(|keys| keys.partition.len()).sum::<usize>()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys still in use that had to go to make room for others.
    pub fn forgotten(&self) -> u64 {
        (0..SHARDS).map(|i| self.lock(i).values().map(|keys| keys.partition.forgotten()).sum::<u64>()).sum()
    }

    /// By other bits of the hash than those that tell the keys of a shard apart.
    fn home(&self, key: &str) -> Home {
        let hash = self.hasher.hash_one(key);
        Home { hash, shard: (hash >> 40) as usize % SHARDS }
    }

    /// A panic while holding a shard leaves whole entries, so the shard stays usable.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while another decision is at it.
    fn try_lock(&self, shard: usize) -> Option<MutexGuard<'_, Shard>> {
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
    use crate::limit::algo::{Rule, fixed_window::FixedWindow};
    use crate::limit::limits::{Limit, Mode};

    const NOW: i64 = 1_795_000_000_000;

    fn limit(name: &str, limit: i64, window_ms: i64, mode: Mode) -> Arc<Limit> {
        Limit::bare(name, Rule::FixedWindow(FixedWindow { limit, window_ms, clock: false }), mode)
    }

    fn check(limit: &Arc<Limit>, key: &str, cost: i64) -> Check {
        Check::new(limit, key.to_owned(), cost)
    }

    #[test]
    fn a_flood_of_clients_stays_within_the_bound() {
        let memory = Memory::new(20_000);
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
        let memory = Memory::new(1_000_000);
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
        let memory = Memory::new(100);
        let one = limit("one", 1, 1000, Mode::Enforce);
        assert!(memory.run(Op::Take, &[check(&one, "k", 1)], NOW).admitted);
        assert!(!memory.run(Op::Take, &[check(&one, "k", 1)], NOW + 999).admitted);
        assert!(memory.run(Op::Take, &[check(&one, "k", 1)], NOW + 1000).admitted);
    }

    #[test]
    fn threads_charge_all_limits_or_none() {
        let memory = Memory::new(10_000);
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
        let memory = Memory::new(6400);
        let (a, b) = (limit("a", 1, 3_600_000, Mode::Enforce), limit("b", 1, 3_600_000, Mode::Enforce));
        memory.divide(6400, &[a.clone(), b.clone()], |_| None);
        let admitted = |limit| memory.run(Op::Take, &[check(limit, "k", 1)], NOW).admitted;
        assert!(admitted(&a) && admitted(&b));
        memory.divide(6400, std::slice::from_ref(&b), |_| None);
        assert_eq!(memory.len(), 2);
        memory.divide(6400, &[a.clone(), b.clone()], |_| None);
        assert!(!admitted(&a) && !admitted(&b));
        memory.divide(6400, std::slice::from_ref(&b), |_| None);
        memory.divide(6400, std::slice::from_ref(&b), |_| None);
        assert_eq!(memory.len(), 1);
        // Of a request that holds a config of before.
        assert!(admitted(&a));
    }

    /// Small shares too: how keys fall on shards is no matter.
    #[test]
    fn a_spent_key_stays_while_more_than_an_eighth_is_not_spent() {
        for share in [64, 65, 128, 640, 6400] {
            let memory = Memory::new(share);
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

    /// What goes is what has most left to it, though it is alone in its shard.
    #[test]
    fn what_little_a_small_share_has_is_compared() {
        let memory = Memory::new(64);
        let limit = limit("own", 9, 3_600_000, Mode::Enforce);
        let ask = |key: String, cost| memory.run(Op::Take, &[check(&limit, &key, cost)], NOW).answers[0].remaining;
        assert_eq!(ask("used".to_owned(), 8), 1);
        (0..2000).for_each(|i| assert_eq!(ask(format!("new-{i}"), 1), 8));
        assert_eq!(ask("used".to_owned(), 0), 1);
    }

    /// Workers that make room at the same time wait for nobody, and keep within the bound.
    #[test]
    fn threads_that_make_room_stay_within_the_bound() {
        let memory = Memory::new(64);
        let limits = [limit("a", 1, 3_600_000, Mode::Enforce), limit("b", 9, 3_600_000, Mode::Enforce)];
        memory.divide(192, &limits, |_| None);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (memory, limits) = (&memory, &limits);
                scope.spawn(move || {
                    for i in 0..5000 {
                        let all = limits.each_ref().map(|limit| check(limit, &format!("{thread}-{i}"), 1));
                        memory.run(Op::Take, &all, NOW);
                        if i % 1000 == 0 {
                            memory.divide(192, limits, |_| None);
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
    fn limits_share_the_keys() {
        let memory = Memory::new(12_800);
        let mut own = limit("own", 9, 3_600_000, Mode::Enforce);
        Arc::get_mut(&mut own).unwrap().max_keys = Some(6400);
        let limits = [own, limit("a", 9, 3_600_000, Mode::Enforce), limit("b", 9, 3_600_000, Mode::Enforce)];
        memory.divide(12_800, &limits, |_| None);
        for (limit, share) in limits.iter().zip([6400, 3200, 3200]) {
            let before = memory.len();
            for i in 0..20_000 {
                memory.run(Op::Take, &[check(limit, &format!("{}{i}", limit.name), 1)], NOW);
            }
            assert_eq!(memory.len() - before, share, "{}", limit.name);
        }
    }
}
