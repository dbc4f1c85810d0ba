//! Bounded-memory counts of keys: the number of distinct ones, and the most frequent ones. Called by the tally.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use crate::limiting::store::partition::PrehashedState;

/// Distinct keys by hash: exact up to a bound, then estimated (HyperLogLog, standard error below 1 %).
#[derive(Default)]
pub struct Distinct {
    exact: HashSet<u64, PrehashedState>,
    registers: Vec<u8>,
}

const EXACT_MAX: usize = 65_536;
/// Number of hash bits that select a register.
const BITS: u32 = 14;

impl Distinct {
    pub fn add_key(&mut self, hash: u64) {
        if self.registers.is_empty() {
            self.exact.insert(hash);
            if self.exact.len() <= EXACT_MAX {
                return;
            }
            self.registers = vec![0; 1 << BITS];
            for hash in std::mem::take(&mut self.exact) {
                self.register(hash);
            }
            return;
        }
        self.register(hash);
    }

    #[expect(clippy::cast_possible_truncation, reason = "14 bits, and at most 51 zeros")]
    fn register(&mut self, hash: u64) {
        let register = &mut self.registers[(hash >> (64 - BITS)) as usize];
        let zeros = ((hash << BITS) | (1 << (BITS - 1))).leading_zeros() as u8;
        *register = (*register).max(zeros + 1);
    }

    /// Returns the number of keys and whether it is exact.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an estimate, rounded")]
    #[expect(clippy::cast_sign_loss, reason = "positive")]
    pub fn estimate_count(&self) -> (u64, bool) {
        if self.registers.is_empty() {
            return (self.exact.len() as u64, true);
        }
        let m = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|register| f64::from(-i32::from(*register)).exp2()).sum();
        let raw = 0.7213 / (1.0 + 1.079 / m) * m * m / sum;
        let empty = self.registers.iter().filter(|register| **register == 0).count() as f64;
        let estimate = if raw < 2.5 * m && empty > 0.0 { m * (m / empty).ln() } else { raw };
        (estimate.round() as u64, false)
    }
}

/// The most frequent keys (Misra-Gries). A count may be too low by at most `missed`, and is never too high.
pub struct Frequent {
    counts: HashMap<Box<str>, u64>,
    capacity: usize,
    pub missed: u64,
}

impl Frequent {
    pub fn new(capacity: usize) -> Frequent {
        Frequent { counts: HashMap::new(), capacity, missed: 0 }
    }

    pub fn add_key(&mut self, key: &str) {
        if let Some(count) = self.counts.get_mut(key) {
            *count += 1;
            return;
        }
        self.counts.insert(key.into(), 1);
        if self.counts.len() >= 2 * self.capacity {
            self.drop_half();
        }
    }

    /// Keeps the first half and subtracts the count of the first dropped key from the rest. Halving costs one sort per
    /// half of the capacity.
    fn drop_half(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        counts.sort_unstable_by_key(|count| Reverse(*count));
        let less = counts[self.capacity];
        self.missed += less;
        self.counts.retain(|_, count| {
            *count = count.saturating_sub(less);
            *count > 0
        });
    }

    /// Returns the `n` most frequent keys; ties are sorted by name.
    pub fn list_top(&self, n: usize) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> = self.counts.iter().map(|(key, count)| (&**key, *count)).collect();
        all.sort_unstable_by_key(|(key, count)| (Reverse(*count), *key));
        all.truncate(n);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use super::*;

    #[test]
    fn distinct_keys_are_exact_then_close() {
        let mut distinct = Distinct::default();
        for i in 0..1_000_000_u64 {
            let mut hasher = DefaultHasher::new();
            i.hash(&mut hasher);
            distinct.add_key(hasher.finish());
            if i == 999 {
                assert_eq!(distinct.estimate_count(), (1000, true));
            }
        }
        let (count, exact) = distinct.estimate_count();
        assert!(!exact && (970_000..1_030_000).contains(&count), "{count}");
    }

    #[test]
    fn the_heaviest_keys_survive_a_crowd() {
        let mut frequent = Frequent::new(100);
        for i in 0..100_000 {
            frequent.add_key(&i.to_string());
            if i % 10 == 0 {
                frequent.add_key("heavy");
            }
        }
        assert!(frequent.counts.len() < 200);
        let (key, count) = frequent.list_top(1)[0];
        assert!(key == "heavy" && count <= 10_000 && count + frequent.missed >= 10_000, "{count}");
    }
}
