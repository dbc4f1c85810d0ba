//! The keys of one limit in one shard of memory. Each new key removes a few expired ones. If there are still too many
//! keys, the ones with the least usage are evicted. `memory` decides over all shards and limits when to evict, and of
//! which limit; the replay uses a single partition.

use std::cmp::Reverse;
use std::hash::{BuildHasherDefault, Hasher};

use indexmap::map::RawEntryApiV1;
use indexmap::map::raw_entry_v1::RawEntryMut;
use indexmap::{Equivalent, IndexMap};

use crate::limiting::algorithm::State;

/// Keys and states of one limit in one shard.
#[derive(Default)]
pub struct Partition<K> {
    /// Entries, the spent ones first. The map has no hasher: callers pass the hash.
    entries: IndexMap<K, Entry, ()>,
    /// Number of spent entries: keys that refuse, or did so when they were last charged.
    spent: usize,
    /// Index where the next search for expired entries starts.
    cursor: usize,
    /// Offset where the next search for an entry to evict starts.
    hand: usize,
    /// Number of live entries that were evicted.
    evicted: u64,
}

/// State of a key, and when it expires.
pub struct Entry {
    pub state: State,
    pub expires_ms: i64,
}

/// A key with its hash, which the caller has already computed to find the partition.
pub struct Hashed<'q, Q: ?Sized> {
    pub hash: u64,
    pub key: &'q Q,
}

impl<Q: ?Sized> Clone for Hashed<'_, Q> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q: ?Sized> Copy for Hashed<'_, Q> {}

/// Number of keys, and how many of them are spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCount {
    pub len: usize,
    pub spent: usize,
}

impl KeyCount {
    /// Returns whether a new key should evict a spent one, if `max_keys` are allowed.
    pub fn evicts_spent(self, max_keys: usize) -> bool {
        self.spent > 0 && self.len.saturating_sub(self.spent) <= max_keys / UNSPENT_PART
    }
}

/// The key of a sample that is needed least.
pub struct EvictionCandidate {
    index: usize,
    pub rank: EvictionRank,
    pub sample_size: usize,
}

/// Rank of a key for eviction: is it live, how many units are left (most first), and when does it expire? The key with
/// the smallest rank is evicted.
pub type EvictionRank = (bool, Reverse<i64>, i64);

/// Entries checked for expiry with each new key, so that the store never pauses to clean up.
const SWEEP: usize = 4;
/// Entries compared when one has to be evicted.
pub const EVICTION_SAMPLE: usize = 16;
/// A full partition grows by this fraction of its keys, an eighth.
const GROWTH_PART: usize = 8;
/// Capacity that a partition keeps even if it is empty.
const CAPACITY_KEPT: usize = 64;
/// Maximum number of entries evicted for a new one, after the bound was lowered.
pub const EVICTIONS: usize = 4;
/// Spent keys are evicted once no more than this fraction of the keys, an eighth, is not spent. Otherwise new keys
/// would only evict each other, and none would ever become spent.
const UNSPENT_PART: usize = 8;

impl<K> Partition<K> {
    /// Returns the state of a key that has not expired.
    pub fn live_state<Q: Equivalent<K> + ?Sized>(&self, key: Hashed<Q>, now_ms: i64) -> Option<&State> {
        self.live_entry(key, now_ms).map(|entry| &entry.state)
    }

    /// Returns the entry of a key that has not expired.
    pub fn live_entry<Q: Equivalent<K> + ?Sized>(
        &self,
        Hashed { hash, key }: Hashed<Q>,
        now_ms: i64,
    ) -> Option<&Entry> {
        let (_, entry) = self.entries.raw_entry_v1().from_hash(hash, |held| key.equivalent(held))?;
        (now_ms < entry.expires_ms).then_some(entry)
    }

    /// Returns whether the key refused when it was last stored.
    pub fn is_spent<Q: Equivalent<K> + ?Sized>(&self, key: Hashed<Q>) -> bool {
        self.index(key).is_some_and(|index| index < self.spent)
    }

    /// Returns all keys, including expired ones that have not been removed yet.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    fn index<Q: Equivalent<K> + ?Sized>(&self, Hashed { hash, key }: Hashed<Q>) -> Option<usize> {
        self.entries.raw_entry_v1().index_from_hash(hash, |held| key.equivalent(held))
    }

    /// Replaces the entry of an existing key, or returns `entry` if there is no such key. `spent` says that the key
    /// refuses from now on.
    pub fn replace<Q: Equivalent<K> + ?Sized>(
        &mut self,
        key: Hashed<Q>,
        entry: Entry,
        spent: bool,
    ) -> Result<(), Entry> {
        let Some(index) = self.index(key) else { return Err(entry) };
        self.entries[index] = entry;
        self.set_spent(index, spent);
        Ok(())
    }

    /// Inserts an entry for a key that does not exist.
    pub fn insert(&mut self, hash: u64, key: K, entry: Entry, spent: bool) {
        // The new entry comes after the spent ones.
        let index = self.entries.len();
        if index == self.entries.capacity() {
            // Not to twice the size: most of that would stay unused. On average, each entry moves eight times.
            self.entries.reserve_exact(index / GROWTH_PART + 4);
        }
        match self.entries.raw_entry_mut_v1().from_hash(hash, |_| false) {
            RawEntryMut::Vacant(vacant) => vacant.insert_hashed_nocheck(hash, key, entry),
            RawEntryMut::Occupied(occupied) => occupied.into_key_value_mut(),
        };
        self.set_spent(index, spent);
    }

    /// Stores an entry if all keys are in this partition, which may have `max_keys`. `own` creates the stored form of a
    /// new key; `left` returns how much is left to a key now.
    pub fn store<Q: Equivalent<K> + ?Sized>(
        &mut self,
        key: Hashed<Q>,
        own: impl FnOnce() -> K,
        (entry, spent): (Entry, bool),
        now_ms: i64,
        max_keys: usize,
        left: impl Fn(&State) -> i64,
    ) {
        let Err(entry) = self.replace(key, entry, spent) else { return };
        self.sweep(now_ms);
        for _ in 0..EVICTIONS.min((self.len() + 1).saturating_sub(max_keys)) {
            let of_spent = self.key_count().evicts_spent(max_keys);
            if let Some(candidate) = self.find_evictable(of_spent, EVICTION_SAMPLE, now_ms, &left) {
                self.evict(&candidate);
            }
        }
        self.insert(key.hash, own(), entry, spent);
    }

    fn set_spent(&mut self, index: usize, spent: bool) {
        match (index < self.spent, spent) {
            (false, true) => {
                self.entries.swap_indices(index, self.spent);
                self.spent += 1;
            }
            (true, false) => {
                self.spent -= 1;
                self.entries.swap_indices(index, self.spent);
            }
            _ => {}
        }
    }

    pub fn remove<Q: Equivalent<K> + ?Sized>(&mut self, key: Hashed<Q>) {
        if let Some(index) = self.index(key) {
            self.remove_at(index);
        }
    }

    /// Returns the number of keys, including expired ones that have not been removed yet.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn key_count(&self) -> KeyCount {
        KeyCount { len: self.entries.len(), spent: self.spent }
    }

    /// Returns the number of live keys that were evicted.
    pub fn evicted_count(&self) -> u64 {
        self.evicted
    }

    /// Removes an entry. Unused memory is freed, because another limit may use as much.
    fn remove_at(&mut self, mut index: usize) {
        if index < self.spent {
            self.spent -= 1;
            self.entries.swap_indices(index, self.spent);
            index = self.spent;
        }
        self.entries.swap_remove_index(index);
        let len = self.entries.len();
        if self.entries.capacity() > CAPACITY_KEPT && len < self.entries.capacity() / 4 {
            self.entries.shrink_to(2 * len);
        }
    }

    /// Removes a few expired keys. Returns whether the search has reached the end; the next one starts anew.
    pub fn sweep(&mut self, now_ms: i64) -> bool {
        for _ in 0..SWEEP {
            if self.cursor >= self.entries.len() {
                break;
            }
            if self.entries[self.cursor].expires_ms <= now_ms {
                self.remove_at(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
        let is_at_end = self.cursor >= self.entries.len();
        if is_at_end {
            self.cursor = 0;
        }
        is_at_end
    }

    /// Compares a sample of keys, spent ones or others, and returns the one that needs its state least: the one with
    /// the most left, among equals the one that expires first.
    pub fn find_evictable(
        &mut self,
        of_spent: bool,
        sample: usize,
        now_ms: i64,
        left: &impl Fn(&State) -> i64,
    ) -> Option<EvictionCandidate> {
        let (start, count) = if of_spent { (0, self.spent) } else { (self.spent, self.len() - self.spent) };
        let looked_at = sample.min(count);
        let positions = (0..looked_at).map(|i| start + (self.hand + i) % count);
        let worth = |index: usize| {
            let Entry { state, expires_ms } = &self.entries[index];
            let live = *expires_ms > now_ms;
            (live, Reverse(if live { left(state) } else { 0 }), *expires_ms)
        };
        let (worth, index) = positions.map(|index| (worth(index), index)).min_by_key(|(worth, _)| *worth)?;
        self.hand = self.hand.wrapping_add(1);
        Some(EvictionCandidate { index, rank: worth, sample_size: looked_at })
    }

    /// Evicts the key that [`Partition::find_evictable`] just found. Returns whether it was live.
    pub fn evict(&mut self, candidate: &EvictionCandidate) -> bool {
        let (live, ..) = candidate.rank;
        self.evicted += u64::from(live);
        self.remove_at(candidate.index);
        live
    }
}

/// Hasher for keys that are hashes already.
pub type PrehashedState = BuildHasherDefault<PrehashedHasher>;

/// Returns a hash as it is.
#[derive(Default)]
pub struct PrehashedHasher(u64);

impl Hasher for PrehashedHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::{BuildHasher, DefaultHasher};

    use proptest::prelude::*;

    use super::*;
    use crate::limiting::algorithm::Rule;
    use crate::limiting::algorithm::fixed_window::FixedWindow;

    const NOW: i64 = 1_795_000_000_000;

    fn rule() -> Rule {
        Rule::FixedWindow(FixedWindow { limit: 9, window_ms: 1000, clock: false })
    }

    /// State of a key with `used` of nine units, and whether it is spent.
    fn entry(used: i64, life_ms: i64) -> (Entry, bool) {
        let state = rule().decide(None, NOW, used, 0).next.unwrap().0;
        (Entry { state, expires_ms: NOW + life_ms }, used == 9)
    }

    fn hashed(key: &str) -> Hashed<'_, str> {
        Hashed { hash: BuildHasherDefault::<DefaultHasher>::default().hash_one(key), key }
    }

    fn holds(partition: &Partition<String>, key: impl AsRef<str>) -> bool {
        partition.live_entry(hashed(key.as_ref()), 0).is_some()
    }

    /// Stores a key, and returns how many keys were evicted for it.
    fn put(partition: &mut Partition<String>, key: &str, entry: (Entry, bool), max_keys: usize) -> u64 {
        let before = partition.evicted_count();
        let left = |state: &State| rule().decide(Some(state), NOW, 0, 0).answer.remaining;
        partition.store(hashed(key), || key.to_owned(), entry, NOW, max_keys, left);
        partition.evicted_count() - before
    }

    #[test]
    fn the_least_used_key_is_evicted_and_of_equals_the_first_to_expire() {
        let mut partition = Partition::<String>::default();
        for (i, (used, life_ms)) in [(1, 70), (1, 30), (5, 20), (9, 10), (1, 80)].into_iter().enumerate() {
            put(&mut partition, &format!("k{i}"), entry(used, life_ms), 5);
        }
        for victim in ["k1", "k0", "k4", "k2"] {
            assert!(holds(&partition, victim));
            assert_eq!(put(&mut partition, &format!("new-{victim}"), entry(6, 1000), 5), 1);
            assert!(!holds(&partition, victim), "{victim} stays");
            assert_eq!(partition.len(), 5);
        }
        assert!(holds(&partition, "k3"), "it is spent");
        assert_eq!(partition.evicted_count(), 4);
    }

    #[test]
    fn a_spent_key_is_the_last_to_go() {
        let mut partition = Partition::<String>::default();
        for i in 0..100 {
            put(&mut partition, &format!("spent-{i}"), entry(9, 1), 200);
        }
        for i in 0..10_000 {
            put(&mut partition, &format!("new-{i}"), entry(8, 1000), 200);
        }
        assert!((0..100).all(|i| holds(&partition, format!("spent-{i}"))));
        assert_eq!((partition.len(), partition.spent), (200, 100));
    }

    /// However many keys are spent, some capacity is left to others, or they could never become spent.
    #[test]
    fn spent_keys_do_not_take_all_the_room() {
        let mut partition = Partition::<String>::default();
        for i in 0..1000 {
            put(&mut partition, &format!("spent-{i}"), entry(9, 1000), 160);
        }
        for i in 0..1000 {
            put(&mut partition, &format!("new-{i}"), entry(1, 1000), 160);
        }
        assert_eq!((partition.len(), partition.spent), (160, 139));
    }

    #[test]
    fn less_room_is_reached_with_a_few_new_keys() {
        let mut partition = Partition::<String>::default();
        for i in 0..100 {
            put(&mut partition, &format!("k{i}"), entry(1, 1000), 100);
        }
        for i in 0..30 {
            put(&mut partition, &format!("new-{i}"), entry(1, 1000), 10);
        }
        assert_eq!(partition.len(), 10);
    }

    /// Another limit may use the memory of evicted keys.
    #[test]
    fn a_partition_that_gets_small_frees_its_memory() {
        let mut partition = Partition::<String>::default();
        for i in 0..10_000 {
            put(&mut partition, &format!("k{i}"), entry(1, 1000), 10_000);
        }
        for i in 0..10_000 {
            partition.remove(hashed(&format!("k{i}")));
            assert!(partition.entries.capacity() <= CAPACITY_KEPT.max(4 * partition.len() + 4), "{}", partition.len());
        }
    }

    proptest! {
        /// Compares the partition with a plain map: no key is lost unnecessarily, and spent keys come first.
        #[test]
        fn the_order_of_entries_is_no_matter(steps in prop::collection::vec((0_u8..4, 0_u8..40, 1_i64..10), 1..300)) {
            let mut partition = Partition::<String>::default();
            let mut model = HashMap::new();
            for (what, key, used) in steps {
                let key = key.to_string();
                if what == 0 {
                    partition.remove(hashed(&key));
                    model.remove(&key);
                } else {
                    let lost = put(&mut partition, &key, entry(used, 1000), 100);
                    prop_assert_eq!(lost, 0);
                    model.insert(key, used == 9);
                }
                prop_assert_eq!(partition.len(), model.len());
                for (index, (key, _)) in partition.entries.iter().enumerate() {
                    prop_assert_eq!(model.get(key), Some(&(index < partition.spent)));
                }
            }
        }
    }
}
