//! Limit state in this process: the embedded store, and the stand-in while Redis is away. Shared
//! by all workers, sharded so that they seldom meet, bounded in keys.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shard::Shard;
use crate::limit::algo::{State, Step};
use crate::limit::answer::Answer;
use crate::limit::clock::now_ms;
use crate::limit::decision::{Check, Decision, Op};

type TextShard = Shard<Box<str>>;

pub struct Memory {
    shards: Vec<Mutex<TextShard>>,
    hasher: RandomState,
    max_keys_per_shard: usize,
}

const SHARDS: usize = 64;

impl Memory {
    pub fn new(max_keys: usize) -> Memory {
        Memory {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            max_keys_per_shard: (max_keys / SHARDS).max(1),
        }
    }

    /// Runs `op` on all `checks` at `now_ms`.
    pub fn run(&self, op: Op, checks: &[Check], now_ms: i64) -> Decision {
        self.run_by(|| now_ms, op, checks)
    }

    /// Runs `op` on all `checks` by this machine's clock, read once their keys are locked: workers
    /// that meet at a key must not turn its time back.
    pub fn run_now(&self, op: Op, checks: &[Check]) -> Decision {
        self.run_by(now_ms, op, checks)
    }

    fn run_by(&self, clock: impl FnOnce() -> i64, op: Op, checks: &[Check]) -> Decision {
        let mut locked = self.lock_for(checks, clock);
        match op {
            Op::Take | Op::Peek => locked.decide(checks, op == Op::Take),
            Op::Adjust => locked.adjust(checks),
            Op::Reset => locked.reset(checks),
        }
    }

    /// The shards concerned are locked in index order, so two decisions cannot wait for each other.
    fn lock_for(&self, checks: &[Check], clock: impl FnOnce() -> i64) -> Locked<'_> {
        let homes: Vec<usize> = checks.iter().map(|check| self.home(&check.key)).collect();
        let mut order = homes.clone();
        order.sort_unstable();
        order.dedup();
        let slots = homes.iter().map(|home| order.partition_point(|shard| shard < home)).collect();
        let shards = order.into_iter().map(|shard| self.lock(shard)).collect();
        Locked { slots, shards, max_keys: self.max_keys_per_shard, now_ms: clock() }
    }

    /// What is held for a key, and for how many ms more.
    pub fn state(&self, key: &str, now_ms: i64) -> Option<(State, i64)> {
        let shard = self.lock(self.home(key));
        let (state, expires_ms) = shard.entry(key, now_ms)?;
        Some((state.clone(), expires_ms - now_ms))
    }

    /// Keys held, expired ones included until they are met.
    pub fn len(&self) -> usize {
        (0..SHARDS).map(|i| self.lock(i).len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys still in use that had to go to make room for others.
    pub fn forgotten(&self) -> u64 {
        (0..SHARDS).map(|i| self.lock(i).forgotten()).sum()
    }

    #[expect(clippy::cast_possible_truncation, reason = "below SHARDS")]
    fn home(&self, key: &str) -> usize {
        (self.hasher.hash_one(key) % SHARDS as u64) as usize
    }

    /// A panic while holding a shard leaves whole entries, so the shard stays usable.
    fn lock(&self, shard: usize) -> MutexGuard<'_, TextShard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shards of one request's keys.
struct Locked<'a> {
    shards: Vec<MutexGuard<'a, TextShard>>,
    /// Per check: its place in `shards`.
    slots: Vec<usize>,
    max_keys: usize,
    now_ms: i64,
}

impl Locked<'_> {
    fn decide(&mut self, checks: &[Check], keep: bool) -> Decision {
        let mut admitted = true;
        let mut steps = Vec::with_capacity(checks.len());
        for (i, check) in checks.iter().enumerate() {
            let state = self.shards[self.slots[i]].live(check.key.as_str(), self.now_ms);
            let mut step = check.rule.decide(state, self.now_ms, check.cost, check.tag);
            if check.role.after.is_some_and(|base| steps.get(base).is_some_and(passed)) {
                // Not its turn: the limit before it still has room.
                step.answer.admitted = true;
                step.answer.retry_ms = 0;
                step.next = None;
            }
            admitted &= step.answer.admitted || check.role.shadow || check.role.base;
            steps.push(step);
        }
        let mut answers = Vec::with_capacity(checks.len());
        for (i, (check, step)) in checks.iter().zip(steps).enumerate() {
            let own = check.role.shadow || !step.answer.admitted;
            if let (Some(next), true) = (step.next, keep && (admitted || own)) {
                self.store(i, &check.key, next);
            }
            answers.push(if admitted || own {
                step.answer
            } else {
                // What the limit would have left is not what it has: nothing is charged.
                let state = self.shards[self.slots[i]].live(check.key.as_str(), self.now_ms);
                check.rule.decide(state, self.now_ms, 0, check.tag).answer
            });
        }
        Decision { admitted, answers }
    }

    fn adjust(&mut self, checks: &[Check]) -> Decision {
        let answers = checks.iter().enumerate().map(|(i, check)| {
            let state = self.shards[self.slots[i]].live(check.key.as_str(), self.now_ms);
            let next = check.rule.adjust(state, self.now_ms, check.cost, check.tag);
            let admitted = next.is_some();
            if let Some(next) = next {
                self.store(i, &check.key, next);
            }
            Answer { admitted, remaining: 0, retry_ms: 0, reset_ms: 0, receipt: check.tag }
        });
        Decision { answers: answers.collect(), admitted: true }
    }

    fn reset(&mut self, checks: &[Check]) -> Decision {
        let answers = checks.iter().enumerate().map(|(i, check)| {
            self.shards[self.slots[i]].remove(check.key.as_str());
            Answer { admitted: true, remaining: 0, retry_ms: 0, reset_ms: 0, receipt: 0 }
        });
        Decision { answers: answers.collect(), admitted: true }
    }

    fn store(&mut self, check: usize, key: &str, (state, ttl_ms): (State, i64)) {
        let expires_ms = self.now_ms.saturating_add(ttl_ms);
        self.shards[self.slots[check]].store(key, || key.into(), state, expires_ms, self.now_ms, self.max_keys);
    }
}

fn passed(step: &Step<State>) -> bool {
    step.answer.admitted
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::algo::{Rule, fixed_window::FixedWindow};
    use crate::limit::key::{Cost, Key, KeyPart, Missing};
    use crate::limit::rule::{Limit, Mode, OnError};

    const NOW: i64 = 1_795_000_000_000;

    fn limit(name: &str, limit: i64, window_ms: i64, mode: Mode) -> Arc<Limit> {
        Arc::new(Limit {
            name: name.to_owned(),
            rule: Arc::new(Rule::FixedWindow(FixedWindow { limit, window_ms, clock: false })),
            key: Key(vec![KeyPart::All]),
            missing: Missing::Skip,
            repeated: Default::default(),
            cost: Cost::Fixed(1),
            mode,
            on_error: OnError::Local,
            when: Default::default(),
            overrides: Default::default(),
            after: None,
            afterwards: None,
        })
    }

    fn check(limit: &Arc<Limit>, key: &str, cost: i64) -> Check {
        Check::new(limit, key.to_owned(), cost)
    }

    #[test]
    fn a_million_clients_stay_within_the_bound() {
        let memory = Memory::new(100_000);
        let limit = limit("any", 9, 3_600_000, Mode::Enforce);
        for i in 0..1_000_000 {
            memory.run(Op::Take, &[check(&limit, &i.to_string(), 1)], NOW);
            if i % 50_000 == 0 {
                assert!(memory.len() <= 100_000);
            }
        }
        assert!((95_000..=100_000).contains(&memory.len()), "{} keys", memory.len());
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
}
