//! The usage that the store does not have yet. A day is saved in batches, one at a time. A batch keeps its number until
//! the store has it, so that the store can ignore one that it had already when a reply was lost. Owned by the control
//! thread.

use std::collections::{BTreeMap, HashMap};

use crate::limiting::ledger::recorder::{KeyUsage, RecordedDay, RecordedDays};
use crate::limiting::ledger::{DayUsage, LedgerDay};

/// Usage that waits to be saved.
#[derive(Default)]
pub struct PendingUsage {
    days: BTreeMap<LedgerDay, PendingDay>,
    /// Number of keys in `days`.
    keys: usize,
    /// The number of the last batch, of any day.
    number: u64,
}

#[derive(Default)]
struct PendingDay {
    /// Number of days for which the usage is kept, by the config at the first decision of the day that still waits.
    kept_days: u16,
    waiting: KeyUsage,
    /// The batch that is being saved. It does not change until the store has it.
    batch: Option<UsageBatch>,
}

/// Usage of some keys on one day.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageBatch {
    /// Counts the batches of this process, from 1. A later batch of the same day has a larger number.
    pub number: u64,
    /// Number of days for which the usage is kept.
    pub kept_days: u16,
    pub keys: Vec<(Box<str>, DayUsage)>,
}

/// Keys of a batch: less than a millisecond of work for Redis.
const BATCH_KEYS: usize = 250;
/// Maximum number of keys that wait. A key takes about 200 bytes.
const KEYS_MAX: usize = 200_000;

impl PendingUsage {
    /// Adds what a thread has recorded. Returns the decisions that are lost, by limit.
    pub fn add(&mut self, recorded: RecordedDays) -> HashMap<String, u64> {
        let mut lost = recorded.lost;
        for RecordedDay { day, kept_days, keys } in recorded.days.into_values() {
            for (key, usage) in keys {
                if !self.add_key((&day, kept_days), key, usage) {
                    *lost.entry(day.limit.clone()).or_default() += usage.admitted + usage.refused;
                }
            }
        }
        lost
    }

    /// Adds the usage of one key. Returns false if there is no space for it.
    fn add_key(&mut self, (day, kept_days): (&LedgerDay, u16), key: Box<str>, usage: DayUsage) -> bool {
        if let Some(known) = self.days.get_mut(day).and_then(|pending| pending.waiting.get_mut(&key)) {
            known.add(usage);
            return true;
        }
        if self.keys >= KEYS_MAX {
            return false;
        }
        self.keys += 1;
        let pending = self.days.entry(day.clone()).or_default();
        pending.kept_days = kept_days;
        pending.waiting.insert(key, usage);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Returns the number of decisions that wait.
    pub fn count_decisions(&self) -> u64 {
        let of_day = |pending: &PendingDay| {
            let batch = pending.batch.iter().flat_map(|batch| &batch.keys).map(|(_, usage)| usage);
            batch.chain(pending.waiting.values()).map(|usage| usage.admitted + usage.refused).sum::<u64>()
        };
        self.days.values().map(of_day).sum()
    }

    /// Returns the days with something to save.
    pub fn list_days(&self) -> Vec<LedgerDay> {
        self.days.keys().cloned().collect()
    }

    /// Returns the next batch of a day: the one whose outcome is unknown, or a new one.
    pub fn next_batch(&mut self, day: &LedgerDay) -> Option<UsageBatch> {
        let pending = self.days.get_mut(day)?;
        if pending.batch.is_none() && !pending.waiting.is_empty() {
            let keys: Vec<Box<str>> = pending.waiting.keys().take(BATCH_KEYS).cloned().collect();
            let keys = keys.into_iter().filter_map(|key| pending.waiting.remove_entry(&key)).collect();
            self.number += 1;
            pending.batch = Some(UsageBatch { number: self.number, kept_days: pending.kept_days, keys });
        }
        pending.batch.clone()
    }

    /// Forgets the batch of a day, which the store has now.
    pub fn finish_batch(&mut self, day: &LedgerDay) {
        let Some(pending) = self.days.get_mut(day) else { return };
        self.keys -= pending.batch.take().map_or(0, |batch| batch.keys.len());
        if pending.waiting.is_empty() {
            self.days.remove(day);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded((day, kept_days): (&LedgerDay, u16), keys: impl Iterator<Item = usize>) -> RecordedDays {
        let usage = DayUsage { admitted: 1, refused: 0, units: 2 };
        let keys = keys.map(|key| (format!("ip={key}").into_boxed_str(), usage)).collect();
        let mut recorded = RecordedDays::default();
        recorded.days.insert((1, day.day), RecordedDay { day: day.clone(), kept_days, keys });
        recorded
    }

    fn first_of_limit() -> LedgerDay {
        LedgerDay { limit: "l".to_owned(), day: 1 }
    }

    #[test]
    fn a_batch_stays_the_same_until_the_store_has_it() {
        let day = first_of_limit();
        let mut pending = PendingUsage::default();
        pending.add(recorded((&day, 90), 0..BATCH_KEYS + 10));
        let first = pending.next_batch(&day).unwrap();
        assert_eq!((first.number, first.keys.len()), (1, BATCH_KEYS));
        pending.add(recorded((&day, 90), 0..BATCH_KEYS));
        assert_eq!(pending.next_batch(&day).unwrap(), first, "what comes meanwhile waits");
        pending.finish_batch(&day);
        let second = pending.next_batch(&day).unwrap();
        assert_eq!((second.number, pending.count_decisions()), (2, 10 + BATCH_KEYS as u64));
        // Which keys a batch takes is random, and so is whether some are left.
        while pending.next_batch(&day).is_some() {
            pending.finish_batch(&day);
        }
        assert!(pending.is_empty() && pending.next_batch(&day).is_none());
        assert!(pending.list_days().is_empty());
    }

    /// The store ignores a batch with a number that it has had for the same limit and day.
    #[test]
    fn a_changed_retention_and_a_quiet_hour_do_not_begin_the_numbers_again() {
        let day = first_of_limit();
        let mut pending = PendingUsage::default();
        let mut last = 0;
        for kept_days in [90, 30, 90] {
            pending.add(recorded((&day, kept_days), 0..2));
            assert_eq!(pending.list_days(), std::slice::from_ref(&day));
            let batch = pending.next_batch(&day).unwrap();
            assert_eq!((batch.kept_days, batch.number > last), (kept_days, true));
            last = batch.number;
            pending.finish_batch(&day);
            assert!(pending.next_batch(&day).is_none() && pending.list_days().is_empty());
        }
    }

    #[test]
    fn what_has_no_space_is_counted() {
        let day = first_of_limit();
        let mut pending = PendingUsage::default();
        let lost = pending.add(recorded((&day, 90), 0..KEYS_MAX + 7));
        assert_eq!(lost, [("l".to_owned(), 7)].into());
        // Of known keys nothing is lost.
        assert!(pending.add(recorded((&day, 90), 0..1)).values().sum::<u64>() <= 1);
        assert_eq!(pending.keys, KEYS_MAX);
    }
}
