//! Sharded counters: each worker writes its own shard, so that no core waits for a cache line that another core
//! writes. Readers add the shards up.

use std::iter::successors;
use std::ops::Deref;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread writes and every thread may read: a relaxed load and a store, without a lock prefix.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    /// The atomics of loom are not made at compile time.
    #[cfg(not(loom))]
    pub const fn new() -> Count {
        Count(AtomicU64::new(0))
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `more`. Only the owning thread may call it.
    pub fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    pub fn inc(&self) {
        self.add(1);
    }

    /// Subtracts 1. A shard may go below zero when another shard counted the increment: only the sum has a meaning.
    pub fn dec(&self) {
        self.0.store(self.get().wrapping_sub(1), Ordering::Relaxed);
    }
}

/// One `T` per worker that counts: a list that only grows and is read without a lock.
pub struct Shards<T>(OnceLock<Arc<Shard<T>>>);

/// The shard of one worker.
pub struct Shard<T> {
    counts: T,
    worker: usize,
    next: Shards<T>,
}

impl<T> Default for Shards<T> {
    fn default() -> Shards<T> {
        Shards(OnceLock::new())
    }
}

impl<T: Default> Shards<T> {
    /// Returns the shard of `worker`, creating it if it is new.
    pub fn shard_for(&self, worker: usize) -> Arc<Shard<T>> {
        let mut link = self;
        loop {
            let new_shard = || Arc::new(Shard { counts: T::default(), worker, next: Shards::default() });
            let shard = link.0.get_or_init(new_shard);
            if shard.worker == worker {
                return shard.clone();
            }
            link = &shard.next;
        }
    }
}

impl<T> Shards<T> {
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        successors(self.0.get(), |shard| shard.next.0.get()).map(|shard| &shard.counts)
    }
}

impl<T> Deref for Shard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_a_part_and_all_make_the_sum() {
        let shards = Shards::<Count>::default();
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let shards = &shards;
                scope.spawn(move || (0..1000).for_each(|_| shards.shard_for(worker).inc()));
            }
        });
        assert_eq!(shards.iter().map(Count::get).collect::<Vec<_>>(), [1000; 4]);
    }
}
