//! What the store does not have yet. A day is saved in batches, one at a time. A batch keeps its number until the store
//! has it, so that the store can ignore one that it had already when a reply was lost. Owned by the control thread.

use std::collections::{BTreeMap, HashMap};

use crate::limiting::ledger::recorder::{KeyUsage, RecordedDays};
use crate::limiting::ledger::{DayUsage, LedgerDay};

/// Usage that waits to be saved.
#[derive(Default)]
pub struct PendingUsage {
    days: BTreeMap<LedgerDay, PendingDay>,
    /// Number of keys in `days`.
    keys: usize,
}

#[derive(Default)]
struct PendingDay {
    waiting: KeyUsage,
    /// The batch that is being saved. It does not change until the store has it.
    batch: Option<UsageBatch>,
    /// The number of the last batch.
    number: u64,
}

/// Usage of some keys on one day.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageBatch {
    /// Counts the batches of this process and day, from 1.
    pub number: u64,
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
        for (day, keys) in recorded.days.into_values() {
            for (key, usage) in keys {
                if !self.add_key(&day, key, usage) {
                    *lost.entry(day.limit.clone()).or_default() += usage.admitted + usage.refused;
                }
            }
        }
        lost
    }

    /// Adds the usage of one key. Returns false if there is no space for it.
    fn add_key(&mut self, day: &LedgerDay, key: Box<str>, usage: DayUsage) -> bool {
        if let Some(known) = self.days.get_mut(day).and_then(|pending| pending.waiting.get_mut(&key)) {
            known.add(usage);
            return true;
        }
        if self.keys >= KEYS_MAX {
            return false;
        }
        self.keys += 1;
        self.days.entry(day.clone()).or_default().waiting.insert(key, usage);
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
            pending.number += 1;
            pending.batch = Some(UsageBatch { number: pending.number, keys });
        }
        pending.batch.clone()
    }

    /// Forgets the batch of a day, which the store has now.
    pub fn finish_batch(&mut self, day: &LedgerDay) {
        if let Some(batch) = self.days.get_mut(day).and_then(|pending| pending.batch.take()) {
            self.keys -= batch.keys.len();
        }
    }

    /// Forgets days before `first` that have nothing to save. Their numbers of batches are needed no more.
    pub fn forget_before(&mut self, first: i64) {
        self.days.retain(|day, pending| day.day >= first || pending.batch.is_some() || !pending.waiting.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(day: &LedgerDay, keys: impl Iterator<Item = usize>) -> RecordedDays {
        let usage = DayUsage { admitted: 1, refused: 0, units: 2 };
        let keys = keys.map(|key| (format!("ip={key}").into_boxed_str(), usage)).collect();
        let mut recorded = RecordedDays::default();
        recorded.days.insert((1, day.day), (day.clone(), keys));
        recorded
    }

    #[test]
    fn a_batch_stays_the_same_until_the_store_has_it() {
        let day = LedgerDay { limit: "l".to_owned(), day: 1, kept_days: 90 };
        let mut pending = PendingUsage::default();
        pending.add(recorded(&day, 0..BATCH_KEYS + 10));
        let first = pending.next_batch(&day).unwrap();
        assert_eq!((first.number, first.keys.len()), (1, BATCH_KEYS));
        pending.add(recorded(&day, 0..BATCH_KEYS));
        assert_eq!(pending.next_batch(&day).unwrap(), first, "what comes meanwhile waits");
        pending.finish_batch(&day);
        let second = pending.next_batch(&day).unwrap();
        assert_eq!((second.number, pending.count_decisions()), (2, 10 + BATCH_KEYS as u64));
        // Which keys a batch takes is random, and so is whether some are left.
        while pending.next_batch(&day).is_some() {
            pending.finish_batch(&day);
        }
        assert!(pending.is_empty() && pending.next_batch(&day).is_none());
        pending.forget_before(2);
        assert!(pending.list_days().is_empty());
    }

    #[test]
    fn what_has_no_space_is_counted() {
        let day = LedgerDay { limit: "l".to_owned(), day: 1, kept_days: 90 };
        let mut pending = PendingUsage::default();
        let lost = pending.add(recorded(&day, 0..KEYS_MAX + 7));
        assert_eq!(lost, [("l".to_owned(), 7)].into());
        // Of known keys nothing is lost.
        assert!(pending.add(recorded(&day, 0..1)).values().sum::<u64>() <= 1);
        assert_eq!(pending.keys, KEYS_MAX);
    }
}
