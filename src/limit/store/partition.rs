//! The states of one limit's keys in one shard, bounded in keys: what has expired goes as new keys
//! come, and when that is not enough, what is least used. Called by `memory`, and by the replay.

use std::cmp::Reverse;
use std::hash::{BuildHasherDefault, Hasher};

use indexmap::map::RawEntryApiV1;
use indexmap::map::raw_entry_v1::RawEntryMut;
use indexmap::{Equivalent, IndexMap};

use crate::limit::algo::State;

#[derive(Default)]
pub struct Partition<K> {
    /// The spent ones first. Nothing is hashed here.
    entries: IndexMap<K, Entry, ()>,
    /// How many are spent: those that refuse, or did when they were last charged.
    spent: usize,
    /// Where the next look for expired entries goes on,
    cursor: usize,
    /// and where the next one for an entry that can go.
    hand: usize,
    forgotten: u64,
}

/// What is kept of a key.
pub struct Entry {
    pub state: State,
    pub expires_ms: i64,
}

/// A key with its hash, by which the caller has found the partition already.
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

/// How many keys there may be, and what is `left` to one of them now.
pub struct Room<F: Fn(&State) -> i64> {
    pub max_keys: usize,
    pub left: F,
}

/// Entries looked at for expiry with each new key, so that a store never stops to clean up.
const SWEEP: usize = 4;
/// Entries looked at when one must go to make room.
const EVICTION_SAMPLE: usize = 16;
/// Entries that go for a new one where there may be fewer than there are.
const EVICTIONS: usize = 4;
/// Spent keys go once no more than this part of all is not spent: else keys that nobody has met before
/// would push out each other, and never be spent.
const UNSPENT_PART: usize = 8;

impl<K> Partition<K> {
    pub fn live<Q: Equivalent<K> + ?Sized>(&self, key: Hashed<Q>, now_ms: i64) -> Option<&State> {
        self.entry(key, now_ms).map(|entry| &entry.state)
    }

    pub fn entry<Q: Equivalent<K> + ?Sized>(&self, Hashed { hash, key }: Hashed<Q>, now_ms: i64) -> Option<&Entry> {
        let (_, entry) = self.entries.raw_entry_v1().from_hash(hash, |held| key.equivalent(held))?;
        (now_ms < entry.expires_ms).then_some(entry)
    }

    /// Whether the key refuses, as of when it was stored.
    pub fn is_spent<Q: Equivalent<K> + ?Sized>(&self, key: Hashed<Q>) -> bool {
        self.index(key).is_some_and(|index| index < self.spent)
    }

    fn index<Q: Equivalent<K> + ?Sized>(&self, Hashed { hash, key }: Hashed<Q>) -> Option<usize> {
        self.entries.raw_entry_v1().index_from_hash(hash, |held| key.equivalent(held))
    }

    /// `own` makes the key that is kept, of a new one; `spent`: it refuses from now on. Says how many
    /// keys in use had to go for it.
    pub fn store<Q: Equivalent<K> + ?Sized>(
        &mut self,
        key: Hashed<Q>,
        own: impl FnOnce() -> K,
        entry: Entry,
        spent: bool,
        now_ms: i64,
        room: &Room<impl Fn(&State) -> i64>,
    ) -> u64 {
        let before = self.forgotten;
        let index = match self.index(key) {
            Some(index) => {
                self.entries[index] = entry;
                index
            }
            None => {
                self.sweep(now_ms);
                for _ in 0..EVICTIONS {
                    if self.entries.len() >= room.max_keys {
                        self.evict(now_ms, &room.left);
                    }
                }
                // Behind the spent ones.
                let index = self.entries.len();
                match self.entries.raw_entry_mut_v1().from_hash(key.hash, |_| false) {
                    RawEntryMut::Vacant(vacant) => vacant.insert_hashed_nocheck(key.hash, own(), entry),
                    RawEntryMut::Occupied(occupied) => occupied.into_key_value_mut(),
                };
                index
            }
        };
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
        self.forgotten - before
    }

    pub fn remove<Q: Equivalent<K> + ?Sized>(&mut self, key: Hashed<Q>) {
        if let Some(index) = self.index(key) {
            self.remove_at(index);
        }
    }

    /// Keys held, expired ones included until they are met.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Keys still in use that had to go to make room for others.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn remove_at(&mut self, mut index: usize) {
        if index < self.spent {
            self.spent -= 1;
            self.entries.swap_indices(index, self.spent);
            index = self.spent;
        }
        self.entries.swap_remove_index(index);
    }

    fn sweep(&mut self, now_ms: i64) {
        for _ in 0..SWEEP {
            if self.entries.is_empty() {
                return;
            }
            self.cursor %= self.entries.len();
            if self.entries[self.cursor].expires_ms <= now_ms {
                self.remove_at(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Forgets the sampled key that needs its state least, one that is not spent if there is any to
    /// spare: the one with most left to it, of equals the one that expires first.
    fn evict(&mut self, now_ms: i64, left: &impl Fn(&State) -> i64) {
        let len = self.entries.len();
        let unspent = len - self.spent;
        let (start, count) = match self.spent > 0 && unspent <= len / UNSPENT_PART {
            true => (0, self.spent),
            false => (self.spent, unspent),
        };
        let sample = (0..EVICTION_SAMPLE.min(count)).map(|i| start + (self.hand + i) % count);
        let worth = |index: &usize| {
            let Entry { state, expires_ms } = &self.entries[*index];
            let live = *expires_ms > now_ms;
            (live, Reverse(if live { left(state) } else { 0 }), *expires_ms)
        };
        if let Some(victim) = sample.min_by_key(worth) {
            self.forgotten += u64::from(self.entries[victim].expires_ms > now_ms);
            self.remove_at(victim);
        }
        self.hand = self.hand.wrapping_add(1);
    }
}

/// For sets and maps of what is a hash already.
pub type ByHash = BuildHasherDefault<Same>;

#[derive(Default)]
pub struct Same(u64);

impl Hasher for Same {
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
    use crate::limit::algo::{Rule, fixed_window::FixedWindow};

    const NOW: i64 = 1_795_000_000_000;

    fn rule() -> Rule {
        Rule::FixedWindow(FixedWindow { limit: 9, window_ms: 1000, clock: false })
    }

    /// A key of which `used` of nine are used, and whether it is spent.
    fn entry(used: i64, life_ms: i64) -> (Entry, bool) {
        let state = rule().decide(None, NOW, used, 0).next.unwrap().0;
        (Entry { state, expires_ms: NOW + life_ms }, used == 9)
    }

    fn room(max_keys: usize) -> Room<impl Fn(&State) -> i64> {
        Room { max_keys, left: |state: &State| rule().decide(Some(state), NOW, 0, 0).answer.remaining }
    }

    fn hashed(key: &str) -> Hashed<'_, str> {
        Hashed { hash: BuildHasherDefault::<DefaultHasher>::default().hash_one(key), key }
    }

    fn holds(partition: &Partition<String>, key: impl AsRef<str>) -> bool {
        partition.entry(hashed(key.as_ref()), 0).is_some()
    }

    fn put(partition: &mut Partition<String>, key: &str, (entry, spent): (Entry, bool), max_keys: usize) -> u64 {
        partition.store(hashed(key), || key.to_owned(), entry, spent, NOW, &room(max_keys))
    }

    #[test]
    fn what_is_used_least_makes_room_and_of_that_what_expires_first() {
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
        assert_eq!(partition.forgotten(), 4);
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

    /// However many are spent, some room is left to the others, or they would never be.
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

    proptest! {
        /// Against a plain map: nothing is lost that need not be, and the spent ones stand first.
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
