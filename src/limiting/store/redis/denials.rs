//! Refusals that a worker remembers, so that requests of an exhausted key cost Redis nothing. The result is exact:
//! Redis would refuse the request too, with the same headers and no longer wait.
//!
//! - A request is refused from memory only if a refusal of each of its limits is remembered. Otherwise the wait of
//!   another limit might be longer, and its headers are unknown.
//! - Only refusals of one unit are remembered, or of a cost that never fits. Until the wait is over, such a key admits
//!   nothing, so the wait cannot grow. A key that refuses more units may still admit smaller charges.
//! - Only limits whose charges are never released early are remembered: none with leases, queues, refunds or settled
//!   costs. Nor are those whose other requests of the key may be admitted meanwhile, so that the wait grows: limits
//!   whose rate or day is in the request, and those with `distinct`. Of a limit with `ban`, only bans are remembered,
//!   whatever else the limit does. On a cluster nothing is remembered, because a decision may charge one slot for a
//!   moment and then refund it.
//! - Of a budget that tenants share, the refusals of each tenant are remembered apart. A wait already includes that
//!   other tenants become inactive.
//! - A refund or reset by an operator in this process clears the memory. One in another gateway takes effect here
//!   within [`AGE_MAX`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indexmap::{Equivalent, IndexMap};

use crate::limiting::algorithm::Rule;
use crate::limiting::answer::{Answer, NEVER};
use crate::limiting::decision::{Check, Decision, Role};

/// The refusals that one worker remembers.
pub struct DenialCache {
    entries: IndexMap<DenialKey, Denial>,
    /// Index where the next search for outdated entries starts.
    cursor: usize,
    invalidations: Invalidations,
    /// Number of invalidations that this worker has applied.
    applied: u64,
}

/// Counts refunds and resets outside of decisions. All handles of a process share one counter.
#[derive(Clone, Debug, Default)]
pub struct Invalidations(Arc<AtomicU64>);

/// A state key, and the tenant that shares it: others may still be admitted.
#[derive(Debug, Hash, PartialEq, Eq)]
struct DenialKey {
    key: Box<str>,
    tenant: Option<Box<str>>,
}

/// The key of a check, to look a denial up.
#[derive(Hash)]
struct DeniedCheck<'c> {
    key: &'c str,
    tenant: Option<&'c str>,
}

impl<'c> From<&'c Check> for DeniedCheck<'c> {
    fn from(check: &'c Check) -> DeniedCheck<'c> {
        DeniedCheck { key: &check.key, tenant: check.tenant.as_deref() }
    }
}

impl Equivalent<DenialKey> for DeniedCheck<'_> {
    fn equivalent(&self, held: &DenialKey) -> bool {
        *self.key == *held.key && self.tenant == held.tenant.as_deref()
    }
}

struct Denial {
    rule: Arc<Rule>,
    cost: i64,
    answer: Answer,
    /// Time of the answer, which its waits start from.
    since: Instant,
    /// Instant until which requests are refused from memory.
    until: Instant,
}

/// When a decision was sent to the store, and the number of invalidations at that time.
#[derive(Clone, Copy, Debug)]
pub struct SentAt {
    at: Instant,
    applied: u64,
}

/// Maximum number of refusals that a worker remembers.
pub const ENTRIES_MAX: usize = 16_384;
/// Longest time that a refusal is remembered.
pub const AGE_MAX: Duration = Duration::from_secs(1);
/// Entries checked with each new one, to remove outdated ones.
const SWEEP: usize = 4;

/// Returns whether this refusal of the check may be remembered.
fn is_memorable(check: &Check, answer: &Answer) -> bool {
    let lasts = match check.ban {
        // Nothing ends a ban early, whatever the limit refunds. Before a ban, the store has to count every refusal.
        Some(_) => answer.is_banned(),
        None => is_lasting(check),
    };
    lasts && Role { link: None, ..check.role } == Role::default()
}

/// Returns whether any refusal of this check may be remembered.
pub fn has_memorable(check: &Check) -> bool {
    check.ban.is_some() || is_lasting(check)
}

/// Returns whether a key that refuses one unit of this check admits nothing until its wait is over.
fn is_lasting(check: &Check) -> bool {
    !check.limit.refundable && !check.limit.refusals_vary && !check.rule.has_queue()
}

impl Invalidations {
    /// Clears the memory of all workers, after charges were changed outside of a decision.
    pub fn invalidate_all(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl DenialCache {
    pub fn new(invalidations: Invalidations) -> DenialCache {
        DenialCache { entries: IndexMap::new(), cursor: 0, applied: invalidations.count(), invalidations }
    }

    /// Returns the state to pass to [`DenialCache::remember_refusal`], for a decision that is sent at `at`.
    pub fn sent_at(&self, at: Instant) -> SentAt {
        SentAt { at, applied: self.invalidations.count() }
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the answers that the store would give at `now`, if a refusal is remembered for each check.
    pub fn known_refusals(&mut self, checks: &[Check], now: impl FnOnce() -> Instant) -> Option<Vec<Answer>> {
        self.forget_outdated();
        if self.entries.is_empty() {
            return None;
        }
        let now = now();
        checks.iter().map(|check| self.entries.get(&DeniedCheck::from(check))?.answer_at(check, now)).collect()
    }

    /// Remembers the refusals of a decision that was sent at `asked` and has just arrived.
    pub fn remember_refusals(&mut self, checks: &[Check], decision: &Decision, asked: SentAt) {
        let now = Instant::now();
        for (check, answer) in checks.iter().zip(&decision.answers) {
            self.remember_refusal(check, *answer, asked, now);
        }
    }

    /// Remembers that the store refused `check`. The decision was sent at `asked` and arrived at `now`.
    pub fn remember_refusal(&mut self, check: &Check, answer: Answer, asked: SentAt, now: Instant) {
        self.forget_outdated();
        let stays = check.cost == 1 || answer.retry_ms == NEVER || answer.is_banned();
        if answer.admitted || !stays || !is_memorable(check, &answer) || asked.applied != self.applied {
            return;
        }
        let wait = match u64::try_from(answer.retry_ms) {
            // The wait was rounded to milliseconds of another clock, which may run a little faster than ours.
            Ok(ms) => Duration::from_millis((ms.saturating_sub(1)).saturating_sub(ms / 1000)).min(AGE_MAX),
            Err(_) => AGE_MAX,
        };
        let until = asked.at + wait;
        if until <= now {
            return;
        }
        self.sweep(now);
        let answer = Answer { ban: answer.ban.repeated(), ..answer };
        let denial = Denial { rule: check.rule.clone(), cost: check.cost, answer, since: now, until };
        match self.entries.get_mut(&DeniedCheck::from(check)) {
            Some(entry) => *entry = denial,
            None => {
                let key = DenialKey { key: check.key.as_str().into(), tenant: check.tenant.clone() };
                self.entries.insert(key, denial);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn forget_outdated(&mut self) {
        let invalidation_count = self.invalidations.count();
        if invalidation_count != self.applied {
            self.applied = invalidation_count;
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
    /// Returns the remembered answer, or `None` if the store might admit `check` by now.
    fn answer_at(&self, check: &Check, now: Instant) -> Option<Answer> {
        // A smaller cost may be admitted, and a larger one would have to wait longer.
        if now >= self.until
            || check.cost != self.cost
            || !is_memorable(check, &self.answer)
            || *self.rule != *check.rule
        {
            return None;
        }
        let age_ms = i64::try_from(now.duration_since(self.since).as_millis()).unwrap_or(i64::MAX);
        let left = |ms: i64| if ms == NEVER { NEVER } else { (ms - age_ms).max(1) };
        let Answer { retry_ms, reset_ms, .. } = self.answer;
        Some(Answer { retry_ms: left(retry_ms), reset_ms: left(reset_ms), ..self.answer })
    }
}
