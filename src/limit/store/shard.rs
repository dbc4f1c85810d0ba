//! States by key, bounded in keys: what has expired goes as new keys come, and when that is not
//! enough, what expires first. Called by `memory`, and by the replay.

use std::hash::{BuildHasher, Hash, RandomState};

use indexmap::{Equivalent, IndexMap};

use crate::limit::algo::State;

#[derive(Default)]
pub struct Shard<K, S = RandomState> {
    entries: IndexMap<K, Entry, S>,
    /// Where the next look for expired entries goes on.
    cursor: usize,
    forgotten: u64,
}

struct Entry {
    state: State,
    expires_ms: i64,
}

/// Entries looked at for expiry with each new key, so that a store never stops to clean up.
const SWEEP: usize = 4;
/// Entries looked at when one must go to make room; the one that expires first goes.
const EVICTION_SAMPLE: usize = 16;

impl<K: Hash + Eq, S: BuildHasher> Shard<K, S> {
    pub fn live<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q, now_ms: i64) -> Option<&State> {
        self.entry(key, now_ms).map(|(state, _)| state)
    }

    /// The state and when it expires.
    pub fn entry<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q, now_ms: i64) -> Option<(&State, i64)> {
        let entry = self.entries.get(key).filter(|entry| now_ms < entry.expires_ms)?;
        Some((&entry.state, entry.expires_ms))
    }

    /// `own` makes the key that is kept, of a new one.
    pub fn store<Q: Hash + Equivalent<K> + ?Sized>(
        &mut self,
        key: &Q,
        own: impl FnOnce() -> K,
        state: State,
        expires_ms: i64,
        now_ms: i64,
        max_keys: usize,
    ) {
        if let Some(entry) = self.entries.get_mut(key) {
            *entry = Entry { state, expires_ms };
            return;
        }
        self.sweep(now_ms);
        if self.entries.len() >= max_keys {
            self.evict(now_ms);
        }
        self.entries.insert(own(), Entry { state, expires_ms });
    }

    pub fn remove<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) {
        self.entries.swap_remove(key);
    }

    /// Keys held, expired ones included until they are met.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys still in use that had to go to make room for others.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn sweep(&mut self, now_ms: i64) {
        for _ in 0..SWEEP {
            if self.entries.is_empty() {
                return;
            }
            self.cursor %= self.entries.len();
            if self.entries[self.cursor].expires_ms <= now_ms {
                self.entries.swap_remove_index(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Forgets the sampled key that needs its state least: its owner gets at most what was still
    /// charged to it once more.
    fn evict(&mut self, now_ms: i64) {
        let len = self.entries.len();
        let sample = (0..EVICTION_SAMPLE.min(len)).map(|i| (self.cursor + i) % len);
        if let Some(victim) = sample.min_by_key(|i| self.entries[*i].expires_ms) {
            self.forgotten += u64::from(self.entries[victim].expires_ms > now_ms);
            self.entries.swap_remove_index(victim);
        }
        self.cursor += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::algo::{Rule, fixed_window::FixedWindow};

    const NOW: i64 = 1_795_000_000_000;

    #[test]
    fn the_key_that_expires_first_makes_room() {
        let rule = Rule::FixedWindow(FixedWindow { limit: 9, window_ms: 1000, clock: false });
        let state = rule.decide(None, NOW, 1, 0).next.unwrap().0;
        let mut shard = Shard::<String>::default();
        for (i, life) in [70, 30, 90, 20, 80].into_iter().enumerate() {
            let key = format!("k{i}");
            shard.store(&key, || key.clone(), state.clone(), NOW + life, NOW, 5);
        }
        for victim in ["k3", "k1", "k0"] {
            assert!(shard.entries.contains_key(victim));
            let key = format!("new-{victim}");
            shard.store(&key, || key.clone(), state.clone(), NOW + 1000, NOW, 5);
            assert!(!shard.entries.contains_key(victim), "{victim} stays");
            assert_eq!(shard.entries.len(), 5);
        }
        assert_eq!(shard.forgotten(), 3);
    }
}
