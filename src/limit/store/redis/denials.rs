//! Refusals that a worker remembers, so that a key known to be exhausted costs Redis nothing.
//! Exact: what is refused from memory, the store would have refused too, with no longer wait and the same headers.
//! Kept and asked by [`super::Redis`].
//!
//! - A request is refused from memory only if a refusal of each of its limits is remembered: the wait of any
//!   other limit may have become the longest, and its headers are not known.
//! - Only refusals of one unit are remembered, or of a cost that never fits: until the wait is over, the key admits
//!   no charge at all, so the wait cannot grow. A refusal of more units leaves room for smaller charges.
//!
//! Only limits whose charges never come back early are remembered, hence none with leases, queues,
//! refunds or settled costs; and none on a cluster, as what one decision has charged for the moment may
//! have refused another. What an operator gives back or resets in this process drops all that is
//! remembered; another gateway's takes effect here after [`LONGEST`] at the latest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indexmap::IndexMap;

use crate::limit::algo::Rule;
use crate::limit::answer::{Answer, NEVER};
use crate::limit::decision::{Check, Decision, Role};

pub struct Denials {
    entries: IndexMap<Box<str>, Denial>,
    /// Where the next look for entries that are over goes on.
    cursor: usize,
    recalls: Recalls,
    /// Of those, what is known.
    recalled: u64,
}

/// Counts what was given back or reset outside of a decision, through whatever handle: all handles of
/// a process share one.
#[derive(Clone, Debug, Default)]
pub struct Recalls(Arc<AtomicU64>);

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
    recalled: u64,
}

/// Refusals remembered per worker.
pub const ENTRIES_MAX: usize = 16_384;
/// A refusal is believed this long at most.
pub const LONGEST: Duration = Duration::from_secs(1);
/// Entries looked at with each new one, so that those that are over go.
const SWEEP: usize = 4;

/// Whether a refusal of this check may be remembered.
pub fn fit(check: &Check) -> bool {
    check.role == Role::default() && check.limit.afterwards.is_none() && !check.rule.delays()
}

impl Recalls {
    /// To be called after charges were changed outside of a decision.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Denials {
    pub fn new(recalls: Recalls) -> Denials {
        Denials { entries: IndexMap::new(), cursor: 0, recalled: recalls.count(), recalls }
    }

    /// For a decision that leaves for the store at `at`.
    pub fn asked(&self, at: Instant) -> Asked {
        Asked { at, recalled: self.recalls.count() }
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// The answers that the store would give at `now`, if every one of the checks is known to refuse.
    pub fn known(&mut self, checks: &[Check], now: impl FnOnce() -> Instant) -> Option<Vec<Answer>> {
        self.forget_outdated();
        if self.entries.is_empty() {
            return None;
        }
        let now = now();
        checks.iter().map(|check| self.entries.get(check.key.as_str())?.answer(check, now)).collect()
    }

    /// Remembers what the store refuses, as of now; it was asked at `asked`.
    pub fn learn_all(&mut self, checks: &[Check], decision: &Decision, asked: Asked) {
        let now = Instant::now();
        for (check, answer) in checks.iter().zip(&decision.answers) {
            self.learn(check, *answer, asked, now);
        }
    }

    /// Remembers that the store refused `check`; it was asked at `asked` and answered by `now`.
    pub fn learn(&mut self, check: &Check, answer: Answer, asked: Asked, now: Instant) {
        self.forget_outdated();
        let stays = check.cost == 1 || answer.retry_ms == NEVER;
        if answer.admitted || !stays || !fit(check) || asked.recalled != self.recalled {
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
        let recalled = self.recalls.count();
        if recalled != self.recalled {
            self.recalled = recalled;
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
        if now >= self.until || check.cost != self.cost || !fit(check) || *self.rule != *check.rule {
            return None;
        }
        let gone = i64::try_from(now.duration_since(self.since).as_millis()).unwrap_or(i64::MAX);
        let left = |ms: i64| if ms == NEVER { NEVER } else { (ms - gone).max(1) };
        let Answer { retry_ms, reset_ms, .. } = self.answer;
        Some(Answer { retry_ms: left(retry_ms), reset_ms: left(reset_ms), ..self.answer })
    }
}
