//! The locked shards of one request: decides, stores new states, and evicts keys to make way for new ones.

use std::sync::{Arc, MutexGuard};

use smallvec::SmallVec;

use crate::limiting::algorithm::{State, Step};
use crate::limiting::answer::{Answer, BanAnswer};
use crate::limiting::decision::{Check, CheckCharges, Decision, StateRef};
use crate::limiting::partition::{EVICTION_SAMPLE, EVICTIONS, Entry, EvictionCandidate, Hashed, KeyCount, Partition};
use crate::limiting::store::memory::{DecisionTime, LimitKeys, MemoryShard, MemoryStore, SHARDS};
use crate::limiting::store::shares::KeyShare;

/// A list with an element for each check. Most requests have few checks, and allocate nothing for it.
pub type FewVec<T> = SmallVec<[T; 4]>;

/// The locked shards of one request's keys.
pub struct LockedShards<'a> {
    pub memory: &'a MemoryStore,
    /// Location of the key of each check, then of each ban.
    pub homes: FewVec<KeyLocation>,
    /// Set of the locked shards, as bits.
    pub wanted: u64,
    /// The locked shards in the order of their index.
    pub shards: FewVec<MutexGuard<'a, MemoryShard>>,
    pub now: DecisionTime,
}

/// Location of a key.
pub struct KeyLocation {
    pub hash: u64,
    pub shard: usize,
}

impl LockedShards<'_> {
    /// Returns the index in `shards` of the shard of check `i`.
    fn shard_index(&self, i: usize) -> usize {
        self.index_of_shard(self.homes[i].shard)
    }

    fn index_of_shard(&self, shard: usize) -> usize {
        (self.wanted & ((1 << shard) - 1)).count_ones() as usize
    }

    fn is_locked(&self, shard: usize) -> bool {
        self.wanted & (1 << shard) != 0
    }

    fn hashed<'c>(&self, i: usize, of: StateRef<'c>) -> Hashed<'c, str> {
        Hashed { hash: self.homes[i].hash, key: of.key }
    }

    fn live_state(&self, i: usize, of: StateRef) -> Option<&State> {
        let keys = self.shards[self.shard_index(i)].limits.get(&of.limit.id)?;
        keys.partition.live_state(self.hashed(i, of), self.now.for_rule(of.rule))
    }

    fn is_spent(&self, i: usize, of: StateRef) -> bool {
        let keys = self.shards[self.shard_index(i)].limits.get(&of.limit.id);
        keys.is_some_and(|keys| keys.partition.is_spent(self.hashed(i, of)))
    }

    /// Decides check `i` alone, if it `applies`. The second value is the step of its ban, whose home has the index
    /// `ban_home`.
    fn decide_one(
        &self,
        i: usize,
        check: &Check,
        ban_home: usize,
        applies: bool,
    ) -> (Step<State>, Option<Step<State>>) {
        let (state, now_ms) = (self.live_state(i, check.state_ref()), self.now.for_rule(&check.rule));
        let mut step = check.decide(state, now_ms);
        if !applies {
            // The limit before it still has capacity.
            step.answer.admitted = true;
            step.answer.retry_ms = 0;
            step.next = None;
            return (step, None);
        }
        let Some(ban) = &check.ban else { return (step, None) };
        let of = ban.state_ref();
        let ban_step = ban.decide(self.live_state(ban_home, of), self.now.for_rule(of.rule), &step.answer);
        if step.answer.admitted && !ban_step.answer.admitted {
            // The key is banned. The limit, which admits, is not charged.
            step = Step { answer: check.rule.decide(state, now_ms, 0, check.tag).answer, next: None };
        }
        step.answer = step.answer.with_ban(&ban_step.answer);
        (step, Some(ban_step))
    }

    /// Decides by all `checks` together. With `keep`, charges are stored. `lua/gate.lua` does the same in Redis.
    pub fn decide(&mut self, checks: &[Check], keep: bool) -> Decision {
        let mut admitted = true;
        let mut steps: FewVec<Step<State>> = FewVec::new();
        let (mut bans, mut ban_home) = (Vec::new(), checks.len());
        for (i, check) in checks.iter().enumerate() {
            let applies = check.role.after.is_none_or(|base| !steps.get(base).is_some_and(has_admitted));
            let (step, ban_step) = self.decide_one(i, check, ban_home, applies);
            if let Some(ban) = &check.ban {
                bans.extend(ban_step.and_then(|step| Some((ban_home, ban.state_ref(), step.next?))));
                ban_home += 1;
            }
            admitted &= step.answer.admitted || !check.role.can_refuse();
            steps.push(step);
        }
        let charges = CheckCharges::find(checks, admitted, |i| steps.get(i).is_some_and(has_admitted));
        let mut answers = Vec::with_capacity(checks.len());
        // By reference: the list would be copied otherwise.
        for (i, (check, step)) in checks.iter().zip(&mut steps).enumerate() {
            // A refusal may have a state to store as well.
            let is_stored = charges.contains(i) || !step.answer.admitted;
            if keep
                && is_stored
                && let Some(next) = step.next.take()
            {
                // The key is spent if another request like this one would be refused.
                let spent = !step.answer.admitted || step.answer.remaining < check.cost.max(1);
                self.store(i, check.state_ref(), next, spent);
            }
            answers.push(if charges.is_withheld(i) {
                // Another check refused, so this one is not charged: answer with what it has without the charge.
                let state = self.live_state(i, check.state_ref());
                check.rule.decide(state, self.now.for_rule(&check.rule), 0, check.tag).answer
            } else {
                step.answer
            });
        }
        if keep {
            // A key whose refusals are counted is needed as much as one that is banned: it refuses.
            bans.into_iter().for_each(|(home, of, next)| self.store(home, of, next, true));
        }
        Decision { admitted, answers }
    }

    /// Corrects charges by their receipts.
    pub fn adjust(&mut self, checks: &[Check]) -> Decision {
        let answers = checks.iter().enumerate().map(|(i, check)| {
            let now_ms = self.now.for_rule(&check.rule);
            let next = check.rule.adjust(self.live_state(i, check.state_ref()), now_ms, check.cost, check.tag);
            let (admitted, units) = (next.is_some(), next.as_ref().map_or(0, |(_, _, units)| *units));
            if let Some((state, ttl_ms, _)) = next {
                let spent = match check.cost {
                    // Nothing changes, so the key remains spent or not.
                    0 => self.is_spent(i, check.state_ref()),
                    _ => check.rule.decide(Some(&state), now_ms, 0, check.tag).answer.remaining < 1,
                };
                self.store(i, check.state_ref(), (state, ttl_ms), spent);
            }
            Answer { admitted, remaining: units, retry_ms: 0, reset_ms: 0, receipt: check.tag, ban: BanAnswer::None }
        });
        Decision { answers: answers.collect(), admitted: true }
    }

    /// Deletes the state of the keys, and lifts their bans.
    pub fn reset(&mut self, checks: &[Check]) -> Decision {
        let bans = checks.iter().filter_map(|check| Some(check.ban.as_ref()?.state_ref()));
        for (i, of) in checks.iter().map(Check::state_ref).chain(bans).enumerate() {
            let (place, key) = (self.shard_index(i), self.hashed(i, of));
            if let Some(keys) = self.shards[place].limits.get_mut(&of.limit.id) {
                let before = keys.partition.key_count();
                keys.partition.remove(key);
                keys.record_change(before);
            }
        }
        let answer =
            Answer { admitted: true, remaining: 0, retry_ms: 0, reset_ms: 0, receipt: 0, ban: BanAnswer::None };
        Decision { answers: vec![answer; checks.len()], admitted: true }
    }

    fn store(&mut self, i: usize, of: StateRef, (state, ttl_ms): (State, i64), spent: bool) {
        let (key, now_ms) = (self.hashed(i, of), self.now.for_rule(of.rule));
        let entry = Entry { state, expires_ms: now_ms.saturating_add(ttl_ms) };
        let keys = self.keys(i, of);
        let before = keys.partition.key_count();
        let Err(entry) = keys.partition.replace(key, entry, spent) else { return keys.record_change(before) };
        keys.partition.sweep(now_ms);
        keys.record_change(before);
        let (place, now) = (self.shard_index(i), self.now);
        self.shards[place].sweep(of.limit.id, now);
        let keys = self.keys(i, of);
        if !Arc::ptr_eq(&keys.rule, of.rule) {
            keys.rule = of.rule.clone();
        }
        let share = keys.share.clone();
        for _ in 0..share.count_new_key().min(EVICTIONS) {
            self.evict(i, of, &share);
        }
        let keys = self.keys(i, of);
        let KeyCount { len, spent: before } = keys.partition.key_count();
        keys.partition.insert(key.hash, key.key.into(), entry, spent);
        keys.record_change(KeyCount { len: len + 1, spent: before });
    }

    fn keys(&mut self, i: usize, of: StateRef) -> &mut LimitKeys {
        let (place, id) = (self.shard_index(i), of.limit.id);
        let limits = &mut self.shards[place].limits;
        // Almost always present, and an entry of the map costs twice as much as an index.
        let index = limits.get_index_of(&id).unwrap_or_else(|| {
            let share = self.memory.shares.load().share_of(id).clone();
            limits.insert_full(id, LimitKeys { partition: Partition::default(), share, rule: of.rule.clone() }).0
        });
        &mut limits[index]
    }

    /// Evicts a key for the new key with index `i`, whose limit has `own`. The numbers of all keys determine which
    /// limit loses one, and whether it is a spent one. The key itself is searched in the shard of the new one, and if
    /// that has few, in others. Shards that another decision has locked are skipped: if no key is found for that
    /// reason, the next new keys evict more.
    fn evict(&mut self, i: usize, of: StateRef, own: &KeyShare) {
        let (memory, now) = (self.memory, self.now);
        let shares = memory.shares.load();
        let donor = shares.find_donor(own);
        let is_own = std::ptr::eq(donor, own);
        let id = if is_own { of.limit.id } else { donor.id };
        let KeyCount { len, spent } = donor.key_count();
        // The count of the limit itself already includes the new key.
        let of_spent = donor.evicts_spent(KeyCount { len: len.saturating_sub(usize::from(is_own)), spent });
        let mut victim: Option<(EvictionCandidate, usize, Option<MutexGuard<MemoryShard>>)> = None;
        let (home, mut looked_at) = (self.homes[i].shard, 0);
        for shard in (home..home + SHARDS).map(|shard| shard % SHARDS) {
            let mut guard = if self.is_locked(shard) { None } else { memory.try_lock(shard) };
            let Some(keys) = self.shard_in(shard, &mut guard).and_then(|held| held.limits.get_mut(&id)) else {
                continue;
            };
            let now_ms = now.for_rule(&keys.rule);
            let left = |state: &State| keys.rule.decide(Some(state), now_ms, 0, 0).answer.remaining;
            if let Some(candidate) = keys.partition.find_evictable(of_spent, EVICTION_SAMPLE - looked_at, now_ms, &left)
            {
                looked_at += candidate.sample_size;
                if victim.as_ref().is_none_or(|(best, ..)| candidate.rank < best.rank) {
                    victim = Some((candidate, shard, guard));
                }
            }
            if looked_at >= EVICTION_SAMPLE {
                break;
            }
        }
        let Some((candidate, shard, mut guard)) = victim else { return };
        let Some(keys) = self.shard_in(shard, &mut guard).and_then(|held| held.limits.get_mut(&id)) else { return };
        let before = keys.partition.key_count();
        let was_in_use = keys.partition.evict(&candidate);
        keys.record_change(before);
        if was_in_use {
            drop(guard);
            memory.report_eviction(donor, now);
        }
    }

    /// Returns a shard: one that this decision has locked, or the one of `guard`.
    fn shard_in<'s>(
        &'s mut self,
        shard: usize,
        guard: &'s mut Option<MutexGuard<MemoryShard>>,
    ) -> Option<&'s mut MemoryShard> {
        if self.is_locked(shard) {
            let place = self.index_of_shard(shard);
            return self.shards.get_mut(place).map(|held| &mut **held);
        }
        guard.as_mut().map(|guard| &mut **guard)
    }
}

fn has_admitted(step: &Step<State>) -> bool {
    step.answer.admitted
}
