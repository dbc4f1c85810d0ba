//! The shards of one decision, locked, and what it does to them: decides, stores, and makes room for new keys.
//! Made by `memory`.

use std::sync::MutexGuard;

use super::{Keys, Memory, Now, SHARDS, Shard};
use crate::limit::algo::{State, Step};
use crate::limit::answer::Answer;
use crate::limit::decision::{Check, Decision};
use crate::limit::store::partition::{Candidate, EVICTION_SAMPLE, EVICTIONS, Entry, Hashed, KeyCount, Partition};
use crate::limit::store::shares::Share;

/// The shards of one request's keys.
pub struct Locked<'a> {
    pub memory: &'a Memory,
    /// Of each check.
    pub homes: Vec<Home>,
    /// Which shards are locked, as bits,
    pub wanted: u64,
    /// and they, in order.
    pub shards: Vec<MutexGuard<'a, Shard>>,
    pub now: Now,
}

/// Where a key is.
pub struct Home {
    pub hash: u64,
    pub shard: usize,
}

impl Locked<'_> {
    /// The place in `shards` of that of check `i`.
    fn place(&self, i: usize) -> usize {
        self.place_of(self.homes[i].shard)
    }

    fn place_of(&self, shard: usize) -> usize {
        (self.wanted & ((1 << shard) - 1)).count_ones() as usize
    }

    fn is_locked(&self, shard: usize) -> bool {
        self.wanted & (1 << shard) != 0
    }

    fn hashed<'c>(&self, i: usize, check: &'c Check) -> Hashed<'c, str> {
        Hashed { hash: self.homes[i].hash, key: &check.key }
    }

    fn live(&self, i: usize, check: &Check) -> Option<&State> {
        let keys = self.shards[self.place(i)].get(&check.limit.id)?;
        keys.partition.live(self.hashed(i, check), self.now.of(&check.rule))
    }

    fn is_spent(&self, i: usize, check: &Check) -> bool {
        let keys = self.shards[self.place(i)].get(&check.limit.id);
        keys.is_some_and(|keys| keys.partition.is_spent(self.hashed(i, check)))
    }

    pub fn decide(&mut self, checks: &[Check], keep: bool) -> Decision {
        let mut admitted = true;
        let mut steps = Vec::with_capacity(checks.len());
        for (i, check) in checks.iter().enumerate() {
            let mut step = check.rule.decide(self.live(i, check), self.now.of(&check.rule), check.cost, check.tag);
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
                // The next one like this would be refused.
                let spent = !step.answer.admitted || step.answer.remaining < check.cost.max(1);
                self.store(i, check, next, spent);
            }
            answers.push(if admitted || own {
                step.answer
            } else {
                // What the limit would have left is not what it has: nothing is charged.
                check.rule.decide(self.live(i, check), self.now.of(&check.rule), 0, check.tag).answer
            });
        }
        Decision { admitted, answers }
    }

    pub fn adjust(&mut self, checks: &[Check]) -> Decision {
        let answers = checks.iter().enumerate().map(|(i, check)| {
            let now_ms = self.now.of(&check.rule);
            let next = check.rule.adjust(self.live(i, check), now_ms, check.cost, check.tag);
            let admitted = next.is_some();
            if let Some(next) = next {
                let spent = match check.cost {
                    // A renewal; what it takes to look is more than it is worth.
                    0 => self.is_spent(i, check),
                    _ => check.rule.decide(Some(&next.0), now_ms, 0, check.tag).answer.remaining < 1,
                };
                self.store(i, check, next, spent);
            }
            Answer { admitted, remaining: 0, retry_ms: 0, reset_ms: 0, receipt: check.tag }
        });
        Decision { answers: answers.collect(), admitted: true }
    }

    pub fn reset(&mut self, checks: &[Check]) -> Decision {
        let answers = checks.iter().enumerate().map(|(i, check)| {
            let (place, key) = (self.place(i), self.hashed(i, check));
            if let Some(keys) = self.shards[place].get_mut(&check.limit.id) {
                let before = keys.partition.key_count();
                keys.partition.remove(key);
                keys.count(before);
            }
            Answer { admitted: true, remaining: 0, retry_ms: 0, reset_ms: 0, receipt: 0 }
        });
        Decision { answers: answers.collect(), admitted: true }
    }

    fn store(&mut self, i: usize, check: &Check, (state, ttl_ms): (State, i64), spent: bool) {
        let (key, now_ms) = (self.hashed(i, check), self.now.of(&check.rule));
        let entry = Entry { state, expires_ms: now_ms.saturating_add(ttl_ms) };
        let keys = self.keys(i, check);
        let before = keys.partition.key_count();
        let Err(entry) = keys.partition.replace(key, entry, spent) else { return keys.count(before) };
        keys.partition.sweep(now_ms);
        keys.count(before);
        let share = keys.share.clone();
        let over = (share.admit() + 1).saturating_sub(share.max_keys);
        for _ in 0..over.min(EVICTIONS) {
            self.evict(i, check, &share);
        }
        let keys = self.keys(i, check);
        let KeyCount { len, spent: before } = keys.partition.key_count();
        keys.partition.insert(key.hash, key.key.into(), entry, spent);
        keys.count(KeyCount { len: len + 1, spent: before });
    }

    fn keys(&mut self, i: usize, check: &Check) -> &mut Keys {
        let (place, id) = (self.place(i), check.limit.id);
        self.shards[place].entry(id).or_insert_with(|| Keys {
            partition: Partition::default(),
            share: self.memory.shares.load().of(id).clone(),
        })
    }

    /// Forgets a key for one of check `i` that comes. Which kind goes is told by all that the limit has; the
    /// key itself is looked for in the shard of the new one, and if it has few, in others. Those that another
    /// decision holds are passed over: should no key be found for that, the next ones that come make up for it.
    fn evict(&mut self, i: usize, check: &Check, share: &Share) {
        let (id, now_ms) = (check.limit.id, self.now.of(&check.rule));
        let left = |state: &State| check.rule.decide(Some(state), now_ms, 0, 0).answer.remaining;
        let KeyCount { len, spent } = share.key_count();
        // Without the one that comes.
        let of_spent = KeyCount { len: len.saturating_sub(1), spent }.lets_spent_go(share.max_keys);
        let mut found: Option<(Candidate, usize, Option<MutexGuard<Shard>>)> = None;
        let (home, mut looked_at) = (self.homes[i].shard, 0);
        for shard in (home..home + SHARDS).map(|shard| shard % SHARDS) {
            let mut guard = if self.is_locked(shard) { None } else { self.memory.try_lock(shard) };
            let Some(keys) = self.shard_in(shard, &mut guard).and_then(|held| held.get_mut(&id)) else { continue };
            if let Some(candidate) = keys.partition.look(of_spent, EVICTION_SAMPLE - looked_at, now_ms, &left) {
                looked_at += candidate.looked_at;
                if found.as_ref().is_none_or(|(best, ..)| candidate.worth < best.worth) {
                    found = Some((candidate, shard, guard));
                }
            }
            if looked_at >= EVICTION_SAMPLE {
                break;
            }
        }
        let Some((candidate, shard, mut guard)) = found else { return };
        let Some(keys) = self.shard_in(shard, &mut guard).and_then(|held| held.get_mut(&id)) else { return };
        let before = keys.partition.key_count();
        let was_in_use = keys.partition.forget(&candidate);
        keys.count(before);
        if let (Some(counter), true) = (&share.evicted, was_in_use) {
            counter.inc();
        }
    }

    /// A shard that this decision holds, or that `guard` is of.
    fn shard_in<'s>(&'s mut self, shard: usize, guard: &'s mut Option<MutexGuard<Shard>>) -> Option<&'s mut Shard> {
        if self.is_locked(shard) {
            let place = self.place_of(shard);
            return self.shards.get_mut(place).map(|held| &mut **held);
        }
        guard.as_mut().map(|guard| &mut **guard)
    }
}

fn passed(step: &Step<State>) -> bool {
    step.answer.admitted
}
