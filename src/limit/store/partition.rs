//! The states of one limit's keys in one shard: what has expired goes as new keys come, and when that is
//! not enough, what is least used. Called by `memory`, which makes room over all shards, and by the replay.

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

/// How many keys there are, and how many of them are spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCount {
    pub len: usize,
    pub spent: usize,
}

impl KeyCount {
    /// Whether a spent key has to go for a new one where there may be `max_keys`.
    pub fn lets_spent_go(self, max_keys: usize) -> bool {
        self.spent > 0 && self.len.saturating_sub(self.spent) <= max_keys / UNSPENT_PART
    }
}

/// The least needed of the keys that were looked at.
pub struct Candidate {
    index: usize,
    pub worth: Worth,
    pub looked_at: usize,
}

/// Whether it is live, what is left to it, and when it expires: the least goes.
pub type Worth = (bool, Reverse<i64>, i64);

/// Entries looked at for expiry with each new key, so that a store never stops to clean up.
const SWEEP: usize = 4;
/// Entries looked at when one must go to make room.
pub const EVICTION_SAMPLE: usize = 16;
/// Entries that go for a new one where there may be fewer than there are.
pub const EVICTIONS: usize = 4;
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

    /// Keeps `entry` for a key that is there, or gives it back. `spent`: the key refuses from now on.
    pub fn replace<Q: Equivalent<K> + ?Sized>(
        &mut self,
        key: Hashed<Q>,
        entry: Entry,
        spent: bool,
    ) -> Result<(), Entry> {
        let Some(index) = self.index(key) else { return Err(entry) };
        self.entries[index] = entry;
        self.mark(index, spent);
        Ok(())
    }

    /// Keeps `entry` for a key that is not there.
    pub fn insert(&mut self, hash: u64, key: K, entry: Entry, spent: bool) {
        // Behind the spent ones.
        let index = self.entries.len();
        match self.entries.raw_entry_mut_v1().from_hash(hash, |_| false) {
            RawEntryMut::Vacant(vacant) => vacant.insert_hashed_nocheck(hash, key, entry),
            RawEntryMut::Occupied(occupied) => occupied.into_key_value_mut(),
        };
        self.mark(index, spent);
    }

    /// Keeps `entry` where all keys are in this partition, `max_keys` at most. `own` makes the key that is
    /// kept, of a new one; `left`: what is left to a key now.
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
            let of_spent = self.key_count().lets_spent_go(max_keys);
            if let Some(candidate) = self.look(of_spent, EVICTION_SAMPLE, now_ms, &left) {
                self.forget(&candidate);
            }
        }
        self.insert(key.hash, own(), entry, spent);
    }

    fn mark(&mut self, index: usize, spent: bool) {
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

    /// Keys held, expired ones included until they are met.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn key_count(&self) -> KeyCount {
        KeyCount { len: self.entries.len(), spent: self.spent }
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

    /// Lets go of a few keys that have expired, for one that comes.
    pub fn sweep(&mut self, now_ms: i64) {
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

    /// Looks at `sample` keys, spent ones or others, for the one that needs its state least: the one with
    /// most left to it, of equals the one that expires first.
    pub fn look(
        &mut self,
        of_spent: bool,
        sample: usize,
        now_ms: i64,
        left: &impl Fn(&State) -> i64,
    ) -> Option<Candidate> {
        let (start, count) = if of_spent { (0, self.spent) } else { (self.spent, self.len() - self.spent) };
        let looked_at = sample.min(count);
        let seen = (0..looked_at).map(|i| start + (self.hand + i) % count);
        let worth = |index: usize| {
            let Entry { state, expires_ms } = &self.entries[index];
            let live = *expires_ms > now_ms;
            (live, Reverse(if live { left(state) } else { 0 }), *expires_ms)
        };
        let (worth, index) = seen.map(|index| (worth(index), index)).min_by_key(|(worth, _)| *worth)?;
        self.hand = self.hand.wrapping_add(1);
        Some(Candidate { index, worth, looked_at })
    }

    /// Forgets what was just found; says whether it was in use.
    pub fn forget(&mut self, candidate: &Candidate) -> bool {
        let (live, ..) = candidate.worth;
        self.forgotten += u64::from(live);
        self.remove_at(candidate.index);
        live
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

    fn hashed(key: &str) -> Hashed<'_, str> {
        Hashed { hash: BuildHasherDefault::<DefaultHasher>::default().hash_one(key), key }
    }

    fn holds(partition: &Partition<String>, key: impl AsRef<str>) -> bool {
        partition.entry(hashed(key.as_ref()), 0).is_some()
    }

    /// Says how many keys had to go for it.
    fn put(partition: &mut Partition<String>, key: &str, entry: (Entry, bool), max_keys: usize) -> u64 {
        let before = partition.forgotten();
        let left = |state: &State| rule().decide(Some(state), NOW, 0, 0).answer.remaining;
        partition.store(hashed(key), || key.to_owned(), entry, NOW, max_keys, left);
        partition.forgotten() - before
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
