//! Records the usage of keys in the thread that decides. The control thread collects the records every second. Both
//! hold the lock only for one decision or one exchange of pointers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limiting::clock;
use crate::limiting::decision::{Check, Decision, LimitRef};
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::ledger::{DAY_MS, DayUsage, LedgerDay};

/// Recorders of all threads that decide.
#[derive(Clone, Default)]
pub struct LedgerRecorders(Arc<Mutex<Vec<Arc<LedgerRecorder>>>>);

/// The usage that one thread has recorded since the last collection.
#[derive(Default)]
pub struct LedgerRecorder(Mutex<RecordedDays>);

/// Usage by key, as its state key has it.
pub type KeyUsage = HashMap<Box<str>, DayUsage>;

/// Usage by limit and day, then by key.
#[derive(Default)]
pub struct RecordedDays {
    /// The counts by the id of the limit and the day.
    pub days: HashMap<(u64, i64), RecordedDay>,
    /// Decisions that had no space, by the name of the limit.
    pub lost: HashMap<String, u64>,
    /// About how much memory the keys take.
    bytes: usize,
}

/// Usage of one limit on one day.
pub struct RecordedDay {
    pub day: LedgerDay,
    /// The number of days for which usage is kept.
    pub kept_days: u16,
    pub keys: KeyUsage,
}

/// Maximum number of bytes that the keys of a recorder take before they are collected.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Memory of an entry besides the text of its key.
const ENTRY_BYTES: usize = 96;

impl LedgerRecorders {
    /// Creates a recorder for a thread. It is forgotten once the thread has dropped it and its records are collected.
    pub fn register(&self) -> Arc<LedgerRecorder> {
        let recorder = Arc::new(LedgerRecorder::default());
        self.lock().push(recorder.clone());
        recorder
    }

    /// Takes the records of all threads.
    pub fn collect(&self) -> Vec<RecordedDays> {
        let mut recorders = self.lock();
        let collected = recorders.iter().map(|recorder| std::mem::take(&mut *recorder.lock())).collect();
        recorders.retain(|recorder| Arc::strong_count(recorder) > 1);
        collected
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<LedgerRecorder>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LedgerRecorder {
    /// Records a decision about `checks` that was made to charge them.
    pub fn record_decision(&self, checks: &[Check], decision: &Decision) {
        if checks.iter().all(|check| check.limit.usage_days.is_none()) {
            return;
        }
        let charges = decision.find_charged(checks);
        for (place, (check, answer)) in checks.iter().zip(&decision.answers).enumerate() {
            if charges.contains(place) {
                self.record_admitted(check);
            } else if !answer.admitted && !check.role.base && decision.is_applicable(check.role) {
                self.record_refused(&check.limit, &check.counted_key());
            }
        }
    }

    /// Records that the limit of `check` admits and charges it.
    pub fn record_admitted(&self, check: &Check) {
        let usage = DayUsage { admitted: 1, refused: 0, units: check.cost };
        self.record(&check.limit, &check.counted_key(), usage);
    }

    /// Records that a limit refuses a key.
    pub fn record_refused(&self, limit: &LimitRef, state_key: &str) {
        self.record(limit, state_key, DayUsage { refused: 1, ..DayUsage::default() });
    }

    /// Records that charges are corrected by the cost of each check. The end of a slot is not a correction.
    pub fn record_corrections<'c>(&self, corrections: impl Iterator<Item = &'c Check>) {
        corrections.for_each(|check| self.record_correction(check));
    }

    pub fn record_correction(&self, check: &Check) {
        if check.rule.lease_ms().is_none() {
            let usage = DayUsage { units: check.cost, ..DayUsage::default() };
            self.record(&check.limit, &check.counted_key(), usage);
        }
    }

    fn record(&self, limit: &LimitRef, state_key: &str, usage: DayUsage) {
        let Some(kept_days) = limit.usage_days else { return };
        let (key, day) = (state_key_parts(state_key), clock::now_ms().div_euclid(DAY_MS));
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let RecordedDays { days, lost, bytes } = &mut *recorded;
        let RecordedDay { keys, .. } = days.entry((limit.id, day)).or_insert_with(|| {
            let day = LedgerDay { limit: limit.name.clone(), day };
            RecordedDay { day, kept_days, keys: KeyUsage::new() }
        });
        if let Some(known) = keys.get_mut(key) {
            known.add(usage);
        } else if *bytes < BYTES_MAX {
            *bytes += key.len() + ENTRY_BYTES;
            keys.insert(key.into(), usage);
        } else {
            *lost.entry(limit.name.clone()).or_default() += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, RecordedDays> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
