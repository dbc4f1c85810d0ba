//! Refusals that a worker remembers, so that a key known to be exhausted costs Redis nothing.
//! Exact: what is refused from memory, the store would have refused too. Asked by
//! [`super::Limiter`] in front of the Redis store.
//!
//! Only limits whose charges never come back early are remembered, hence none with leases, queues,
//! refunds or settled costs; and on a cluster none that are asked together with limits of other keys,
//! as what one decision has charged for the moment may have refused another. What an operator gives back or resets in this process drops all that
//! is remembered; another gateway's takes effect here after [`LONGEST`] at the latest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indexmap::IndexMap;

use super::algo::Rule;
use super::answer::{Answer, NEVER};
use super::decision::{Check, Decision, Role};

#[derive(Default)]
pub struct Denials {
    entries: IndexMap<Box<str>, Denial>,
    /// Where the next look for entries that are over goes on.
    cursor: usize,
    epoch: u64,
}

struct Denial {
    rule: Arc<Rule>,
    cost: i64,
    answer: Answer,
    /// When the answer came: its times count from here.
    since: Instant,
    /// Refused without asking until then.
    until: Instant,
}

/// When a decision left for the store, and what had been given back until then.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    at: Instant,
    epoch: u64,
}

/// Refusals remembered per worker.
pub const ENTRIES_MAX: usize = 16_384;
/// A refusal is believed this long at most.
pub const LONGEST: Duration = Duration::from_secs(1);
/// Entries looked at with each new one, so that those that are over go.
const SWEEP: usize = 4;

/// Counts what was given back or reset in this process.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// To be called after charges were changed outside of a decision.
pub fn given_back() {
    EPOCH.fetch_add(1, Ordering::AcqRel);
}

/// Whether a refusal of this check may be remembered.
pub fn fit(check: &Check) -> bool {
    check.role == Role::default() && check.limit.afterwards.is_none() && !check.rule.delays()
}

impl Asked {
    pub fn at(at: Instant) -> Asked {
        Asked { at, epoch: EPOCH.load(Ordering::Acquire) }
    }
}

impl Denials {
    /// The checks that are known to refuse, with the answers the store would give now.
    pub fn known(&mut self, checks: &[Check], now: Instant) -> Vec<(usize, Answer)> {
        self.forget_outdated();
        // A shadow limit counts what is refused, so it must be asked.
        if self.entries.is_empty() || checks.iter().any(|check| check.role.shadow) {
            return Vec::new();
        }
        let known = checks.iter().enumerate().filter(|(_, check)| fit(check));
        known.filter_map(|(i, check)| Some((i, self.entries.get(check.key.as_str())?.answer(check, now)?))).collect()
    }

    /// Remembers what the store refuses, as of now, where it is `lasting`; it was asked at `asked`.
    pub fn learn_all(&mut self, checks: &[Check], decision: &Decision, asked: Asked, lasting: impl Fn(&Check) -> bool) {
        let now = Instant::now();
        for (check, answer) in checks.iter().zip(&decision.answers).filter(|(check, _)| lasting(check)) {
            self.learn(check, *answer, asked, now);
        }
    }

    /// Remembers that the store refused `check`; it was asked at `asked` and answered by `now`.
    pub fn learn(&mut self, check: &Check, answer: Answer, asked: Asked, now: Instant) {
        self.forget_outdated();
        if answer.admitted || !fit(check) || asked.epoch != self.epoch {
            return;
        }
        let wait = match u64::try_from(answer.retry_ms) {
            // Whole milliseconds of another clock, which may go a little faster than ours.
            Ok(ms) => Duration::from_millis((ms.saturating_sub(1)).saturating_sub(ms / 1000)).min(LONGEST),
            Err(_) => LONGEST,
        };
        let until = asked.at + wait;
        if until <= now {
            return;
        }
        self.sweep(now);
        let denial = Denial { rule: check.rule.clone(), cost: check.cost, answer, since: now, until };
        match self.entries.get_mut(check.key.as_str()) {
            Some(entry) => *entry = denial,
            None => drop(self.entries.insert(check.key.as_str().into(), denial)),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn forget_outdated(&mut self) {
        let epoch = EPOCH.load(Ordering::Acquire);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.entries.clear();
        }
    }

    fn sweep(&mut self, now: Instant) {
        for _ in 0..SWEEP.min(self.entries.len()) {
            self.cursor %= self.entries.len().max(1);
            if self.entries.get_index(self.cursor).is_some_and(|(_, entry)| entry.until <= now) {
                self.entries.swap_remove_index(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
        if self.entries.len() >= ENTRIES_MAX {
            self.cursor %= self.entries.len();
            self.entries.swap_remove_index(self.cursor);
        }
    }
}

impl Denial {
    /// `None` when the store might admit `check` by now.
    fn answer(&self, check: &Check, now: Instant) -> Option<Answer> {
        // Who asks for less may be admitted; who asks for more would have to wait longer.
        if now >= self.until || check.cost != self.cost || *self.rule != *check.rule {
            return None;
        }
        let gone = i64::try_from(now.duration_since(self.since).as_millis()).unwrap_or(i64::MAX);
        let left = |ms: i64| if ms == NEVER { NEVER } else { (ms - gone).max(1) };
        let Answer { retry_ms, reset_ms, .. } = self.answer;
        Some(Answer { retry_ms: left(retry_ms), reset_ms: left(reset_ms), ..self.answer })
    }
}
