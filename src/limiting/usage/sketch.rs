//! Counts of keys in bounded memory: the number of distinct keys, and the most frequent keys. Both can be merged.
//! Called by `recorder` and `history`, and by the replay.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use crate::limiting::partition::PrehashedState;

/// Distinct keys by hash: exact up to a bound, then estimated (HyperLogLog).
///
/// P. Flajolet, É. Fusy, O. Gandouet, F. Meunier: HyperLogLog (AofA 2007). The standard error of `m` registers is
/// `1.04 / sqrt(m)`.
#[derive(Clone)]
pub struct DistinctKeys {
    exact: HashSet<u64, PrehashedState>,
    exact_max: usize,
    registers: Vec<u8>,
    /// Number of hash bits that select a register.
    bits: u32,
}

impl DistinctKeys {
    /// Counts up to `exact_max` keys exactly, and estimates more with `2^bits` registers of a byte each.
    pub fn new(exact_max: usize, bits: u32) -> DistinctKeys {
        DistinctKeys { exact: HashSet::default(), exact_max, registers: Vec::new(), bits }
    }

    pub fn add_key(&mut self, hash: u64) {
        if self.registers.is_empty() {
            self.exact.insert(hash);
            if self.exact.len() <= self.exact_max {
                return;
            }
            self.start_estimating();
        }
        self.register(hash);
    }

    /// Adds the keys of `other`, which must have the same number of registers.
    pub fn merge(&mut self, other: &DistinctKeys) {
        debug_assert_eq!(self.bits, other.bits, "registers of different hashes");
        if !other.registers.is_empty() {
            self.start_estimating();
        }
        for (own, others) in self.registers.iter_mut().zip(&other.registers) {
            *own = (*own).max(*others);
        }
        other.exact.iter().for_each(|hash| self.add_key(*hash));
    }

    fn start_estimating(&mut self) {
        if self.registers.is_empty() {
            self.registers = vec![0; 1 << self.bits];
            std::mem::take(&mut self.exact).into_iter().for_each(|hash| self.register(hash));
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bits, and at most 64 zeros")]
    fn register(&mut self, hash: u64) {
        let register = &mut self.registers[(hash >> (64 - self.bits)) as usize];
        let zeros = ((hash << self.bits) | (1 << (self.bits - 1))).leading_zeros() as u8;
        *register = (*register).max(zeros + 1);
    }

    /// Returns about how much memory the keys take, in bytes.
    pub fn memory(&self) -> usize {
        self.registers.len() + self.exact.capacity() * EXACT_BYTES
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

/// The most frequent keys, by hash.
///
/// J. Misra, D. Gries: Finding repeated elements (1982). Every count is at least `count` and at most `count + missed`.
/// With `n` counted in all and a capacity of `k`, `missed` is at most `n / k`, also after merging (P. Agarwal et al.:
/// Mergeable summaries, 2012).
#[derive(Clone)]
pub struct FrequentKeys {
    counts: HashMap<u64, KeyCounter, PrehashedState>,
    capacity: usize,
    /// The keys in the order in which they came. A flood of keys that occur once must not cost an allocation for each.
    text: String,
    pub missed: u64,
}

/// The least that a key was counted, and its place in the text.
#[derive(Clone, Copy)]
struct KeyCounter {
    start: u32,
    len: u32,
    count: u64,
}

/// Memory of a hash in a set, with a part of the space that the set leaves free.
const EXACT_BYTES: usize = 12;
/// Memory of a counter besides the text of its key, likewise.
const COUNTER_BYTES: usize = 32;

impl FrequentKeys {
    /// Keeps up to twice `capacity` keys.
    pub fn new(capacity: usize) -> FrequentKeys {
        FrequentKeys { counts: HashMap::default(), capacity, text: String::new(), missed: 0 }
    }

    /// Adds `weight` to the count of the key with this hash. Returns false if the key is not counted.
    pub fn add_known(&mut self, hash: u64, weight: u64) -> bool {
        let count = self.counts.get_mut(&hash);
        count.map(|counter| counter.count += weight).is_some()
    }

    /// Counts `key` `weight` times. Equal keys must have equal hashes, and a client must not be able to choose two keys
    /// with the same hash.
    pub fn add_key(&mut self, hash: u64, key: &str, weight: u64) {
        if !self.add_known(hash, weight) {
            self.add_new(hash, key, weight);
        }
    }

    /// Counts `key`, which is not among those counted.
    pub fn add_new(&mut self, hash: u64, key: &str, weight: u64) {
        // A longer text is not reached: the number of keys and their length are bounded.
        let (Ok(start), Ok(len)) = (u32::try_from(self.text.len()), u32::try_from(key.len())) else {
            self.missed += weight;
            return;
        };
        self.text.push_str(key);
        self.counts.insert(hash, KeyCounter { start, len, count: weight });
        if self.counts.len() >= 2 * self.capacity {
            self.drop_rare(self.capacity);
        }
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &FrequentKeys) {
        self.missed += other.missed;
        for (hash, counter) in &other.counts {
            self.add_key(*hash, other.key_of(counter), counter.count);
        }
        // Merged counts are kept for long, so they take no more memory than they need.
        self.counts.shrink_to(0);
        self.text.shrink_to(0);
    }

    /// Keeps at most `capacity` keys, in as little memory as they need.
    pub fn shrink_to(&mut self, capacity: usize) {
        self.drop_rare(capacity);
        self.counts.shrink_to(0);
        self.text.shrink_to(0);
    }

    fn key_of(&self, counter: &KeyCounter) -> &str {
        let start = counter.start as usize;
        self.text.get(start..start + counter.len as usize).unwrap_or_default()
    }

    /// Keeps at most `capacity` keys and subtracts the largest dropped count from the rest. Called when the number of
    /// keys has doubled, so a new key costs the share of one sort. The memory is used again.
    fn drop_rare(&mut self, capacity: usize) {
        let mut counts: Vec<u64> = self.counts.values().map(|counter| counter.count).collect();
        if counts.len() <= capacity {
            return;
        }
        let (_, largest_dropped, _) = counts.select_nth_unstable_by_key(capacity, |count| Reverse(*count));
        let less = *largest_dropped;
        self.missed += less;
        let reduce = |count: u64| count.saturating_sub(less);
        if self.counts.values().all(|counter| reduce(counter.count) == 0) {
            self.counts.clear();
            self.text.clear();
            return;
        }
        self.counts.retain(|_, counter| reduce(counter.count) > 0);
        let mut text = String::with_capacity(self.text.capacity());
        for counter in self.counts.values_mut() {
            let start = counter.start as usize;
            let at = u32::try_from(text.len()).unwrap_or(u32::MAX);
            text.push_str(self.text.get(start..start + counter.len as usize).unwrap_or_default());
            (counter.start, counter.count) = (at, reduce(counter.count));
        }
        self.text = text;
    }

    /// Returns the least count of each key.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.values().map(|counter| counter.count)
    }

    /// Returns about how much memory the keys take, in bytes.
    pub fn memory(&self) -> usize {
        self.counts.capacity() * COUNTER_BYTES + self.text.capacity()
    }

    /// Returns the hashes of the keys that are counted now.
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        self.counts.keys().copied()
    }

    /// Returns the number of keys that are counted now.
    pub fn key_count(&self) -> usize {
        self.counts.len()
    }

    /// Returns the least count of the key with that hash.
    pub fn count_of(&self, hash: u64) -> Option<u64> {
        self.counts.get(&hash).map(|counter| counter.count)
    }

    /// Returns the keys that are counted now.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.counts.values().map(|counter| self.key_of(counter))
    }

    /// Returns the `n` most frequent keys with their hashes and least counts; ties are sorted by name.
    pub fn list_top(&self, n: usize) -> Vec<(u64, &str, u64)> {
        let mut all: Vec<(u64, &str, u64)> =
            self.counts.iter().map(|(hash, counter)| (*hash, self.key_of(counter), counter.count)).collect();
        all.sort_unstable_by_key(|(_, key, count)| (Reverse(*count), *key));
        all.truncate(n);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use proptest::prelude::*;

    use super::*;

    fn hash_of(key: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn distinct_keys_are_exact_then_close() {
        let mut distinct = DistinctKeys::new(65_536, 14);
        let mut halves = [DistinctKeys::new(256, 11), DistinctKeys::new(256, 11)];
        for i in 0..1_000_000_u64 {
            distinct.add_key(hash_of(i));
            halves[usize::from(i % 3 == 0)].add_key(hash_of(i));
            if i == 999 {
                assert_eq!(distinct.estimate_count(), (1000, true));
            }
        }
        let (count, exact) = distinct.estimate_count();
        assert!(!exact && (970_000..1_030_000).contains(&count), "{count}");
        let [mut merged, other] = halves;
        merged.merge(&other);
        let (count, _) = merged.estimate_count();
        // Three standard errors of 2,048 registers.
        assert!((930_000..1_070_000).contains(&count), "{count}");
        let mut few = DistinctKeys::new(256, 11);
        few.add_key(1);
        few.merge(&merged);
        assert!(few.estimate_count().0.abs_diff(count) < 1000);
    }

    #[test]
    fn the_heaviest_keys_survive_a_crowd() {
        let mut frequent = FrequentKeys::new(100);
        for i in 0..100_000 {
            frequent.add_key(hash_of(i), &i.to_string(), 1);
            if i % 10 == 0 {
                frequent.add_key(1, "heavy", 1);
            }
        }
        assert!(frequent.key_count() < 200);
        let (_, key, count) = frequent.list_top(1)[0];
        assert!(key == "heavy" && count <= 10_000 && count + frequent.missed >= 10_000, "{count}");
    }

    proptest! {
        #[test]
        fn counts_stay_within_their_bounds(
            keys in prop::collection::vec((0_u64..60, 1_u64..9), 0..600),
            split in 0_usize..600,
        ) {
            const CAPACITY: usize = 8;
            let (first, second) = keys.split_at(split.min(keys.len()));
            let mut merged = FrequentKeys::new(CAPACITY);
            for part in [first, second] {
                let mut counted = FrequentKeys::new(CAPACITY);
                part.iter().for_each(|(key, weight)| counted.add_key(*key, &key.to_string(), *weight));
                merged.merge(&counted);
            }
            merged.shrink_to(CAPACITY);
            prop_assert!(merged.key_count() <= CAPACITY);
            let total: u64 = keys.iter().map(|(_, weight)| weight).sum();
            prop_assert!(merged.missed <= total / CAPACITY as u64, "{} of {total}", merged.missed);
            for key in 0..60 {
                let exact: u64 = keys.iter().filter(|(other, _)| *other == key).map(|(_, weight)| weight).sum();
                let least = merged.count_of(key).unwrap_or(0);
                prop_assert!(least <= exact && exact <= least + merged.missed, "{least} {exact} {}", merged.missed);
            }
        }
    }
}
