//! Records the keys of decisions in the thread that decides. The control thread collects the records every few seconds.
//! Both hold the lock only for one record or one exchange of pointers.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limiting::decision::{Check, Decision, Role};
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::ledger::recorder::{LedgerRecorder, LedgerRecorders};
use crate::limiting::limit::Limit;
use crate::limiting::partition::PrehashedState;
use crate::limiting::usage::sketch::{DistinctKeys, FrequentKeys};
use crate::limiting::usage::{ADMITTED_SAMPLE, KeyOutcome, hash_key};

/// Number of keys per limit and outcome whose counts survive when there are more: an error of at most 1/256 of all.
pub const CAPACITY: usize = 256;
/// Distinct keys are exact up to this number, then estimated.
const EXACT_MAX: usize = 256;
/// 2^11 registers: the standard error is 2.3 %.
const REGISTER_BITS: u32 = 11;
/// Maximum number of bytes that the keys of a recorder take before they are collected, over all limits. The control
/// thread collects every other second; if it cannot, further keys are only part of the totals.
pub const BYTES_MAX: usize = 8 * 1024 * 1024;

/// Recorders of all threads that decide.
#[derive(Clone, Default)]
pub struct UsageRecorders(Arc<Mutex<Vec<Arc<UsageRecorder>>>>);

/// The decisions of one thread since the last collection.
#[derive(Default)]
pub struct UsageRecorder(Mutex<RecordedUsage>);

/// Decisions by limit.
#[derive(Default)]
pub struct RecordedUsage {
    /// Usage by [`LimitRef::id`](crate::limiting::decision::LimitRef::id), which is the same after a reload.
    pub limits: HashMap<u64, LimitUsage, PrehashedState>,
    /// About how much memory `limits` takes.
    bytes: usize,
}

/// Decisions of one limit.
#[derive(Clone, Default)]
pub struct LimitUsage {
    outcomes: [Option<Box<OutcomeUsage>>; KeyOutcome::ALL.len()],
}

/// Decisions of one limit with one outcome.
#[derive(Clone)]
pub struct OutcomeUsage {
    pub total: u64,
    pub frequent: FrequentKeys,
    pub distinct: DistinctKeys,
}

impl Default for OutcomeUsage {
    fn default() -> OutcomeUsage {
        OutcomeUsage {
            total: 0,
            frequent: FrequentKeys::new(CAPACITY),
            distinct: DistinctKeys::new(EXACT_MAX, REGISTER_BITS),
        }
    }
}

impl UsageRecorders {
    /// Creates a recorder for a thread. It is forgotten once the thread has dropped it and its records are collected.
    pub fn register(&self) -> Arc<UsageRecorder> {
        let recorder = Arc::new(UsageRecorder::default());
        self.lock().push(recorder.clone());
        recorder
    }

    /// Takes the records of all threads.
    pub fn collect(&self) -> Vec<RecordedUsage> {
        let mut recorders = self.lock();
        let collected = recorders.iter().map(|recorder| std::mem::take(&mut *recorder.lock())).collect();
        recorders.retain(|recorder| Arc::strong_count(recorder) > 1);
        collected
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<UsageRecorder>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UsageRecorder {
    /// Counts a decision of the limit with the id `limit`, `weight` times.
    pub fn record(&self, limit: u64, outcome: KeyOutcome, state_key: &str, weight: u64) {
        let key = state_key_parts(state_key);
        let hash = hash_key(key);
        let mut recorded = self.lock();
        let RecordedUsage { limits, bytes } = &mut *recorded;
        let usage = limits.entry(limit).or_default().outcome_mut(outcome);
        usage.total += weight;
        if usage.frequent.add_known(hash, weight) {
            return;
        }
        if *bytes >= BYTES_MAX {
            usage.frequent.missed += weight;
            return;
        }
        let before = usage.memory();
        usage.distinct.add_key(hash);
        usage.frequent.add_new(hash, key, weight);
        *bytes = (*bytes + usage.memory()).saturating_sub(before);
    }

    fn lock(&self) -> MutexGuard<'_, RecordedUsage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records the decisions of one thread: all refusals, and a random sample of the admissions.
pub struct DecisionRecorder {
    recorder: Arc<UsageRecorder>,
    /// Number of admissions until the next one is recorded.
    until_sample: Cell<u64>,
    /// Usage of the limits that keep it by day: all decisions, none sampled.
    pub ledger: Arc<LedgerRecorder>,
}

impl DecisionRecorder {
    pub fn new(recorders: &UsageRecorders, ledgers: &LedgerRecorders) -> DecisionRecorder {
        DecisionRecorder { recorder: recorders.register(), until_sample: Cell::new(1), ledger: ledgers.register() }
    }

    /// Records what the limits of `checks` decided.
    pub fn record_decision(&self, checks: &[Check], decision: &Decision) {
        self.ledger.record_decision(checks, decision);
        let is_sampled = decision.admitted && self.take_sample();
        if !is_sampled && decision.answers.iter().all(|answer| answer.admitted) {
            return;
        }
        for (check, answer) in checks.iter().zip(&decision.answers) {
            let (outcome, weight) = match answer.admitted {
                true if is_sampled => (KeyOutcome::Admitted, ADMITTED_SAMPLE),
                true => continue,
                // The limit that comes after it decides in its place.
                false if check.role.base => continue,
                // Only what differs from the incumbent is recorded.
                false if check.role.is_candidate() => continue,
                false => (refused_outcome(check.role), 1),
            };
            if decision.is_applicable(check.role) {
                self.recorder.record(check.limit.id, outcome, &check.counted_key(), weight);
            }
        }
    }

    /// Records a decision of `limit` about a key that no check has: by an override, or by the comparison of a
    /// candidate.
    pub fn record_key(&self, limit: &Limit, outcome: KeyOutcome, state_key: &str) {
        if outcome == KeyOutcome::Refused {
            self.ledger.record_refused(&limit.store_ref, state_key);
        }
        self.recorder.record(limit.store_ref.id, outcome, state_key, 1);
    }

    /// Returns whether to record this admission. The gaps between samples are random, so that no pattern of requests
    /// escapes.
    fn take_sample(&self) -> bool {
        let left = self.until_sample.get() - 1;
        let next = if left == 0 { rand::random_range(1..2 * ADMITTED_SAMPLE) } else { left };
        self.until_sample.set(next);
        left == 0
    }
}

fn refused_outcome(role: Role) -> KeyOutcome {
    match role {
        Role { shadow: true, .. } => KeyOutcome::WouldRefuse,
        Role { forwards: true, .. } => KeyOutcome::Exceeded,
        _ => KeyOutcome::Refused,
    }
}

impl LimitUsage {
    pub fn outcome(&self, outcome: KeyOutcome) -> Option<&OutcomeUsage> {
        self.outcomes[outcome as usize].as_deref()
    }

    fn outcome_mut(&mut self, outcome: KeyOutcome) -> &mut OutcomeUsage {
        self.outcomes[outcome as usize].get_or_insert_default()
    }

    pub fn merge(&mut self, other: &LimitUsage) {
        for (own, others) in self.outcomes.iter_mut().zip(&other.outcomes) {
            if let Some(others) = others {
                own.get_or_insert_default().merge(others);
            }
        }
    }

    /// Returns about how much memory the keys take, in bytes.
    pub fn memory(&self) -> usize {
        self.outcomes.iter().flatten().map(|usage| usage.memory()).sum()
    }

    /// Keeps at most `capacity` keys per outcome.
    pub fn shrink_to(&mut self, capacity: usize) {
        self.outcomes.iter_mut().flatten().for_each(|usage| usage.frequent.shrink_to(capacity));
    }
}

impl OutcomeUsage {
    fn memory(&self) -> usize {
        self.frequent.memory() + self.distinct.memory()
    }

    pub fn merge(&mut self, other: &OutcomeUsage) {
        self.total += other.total;
        self.frequent.merge(&other.frequent);
        self.distinct.merge(&other.distinct);
    }
}
