//! Counts that each worker keeps for itself, so that no core waits for a line of memory that another
//! writes. They are added up when they are shown.

use std::iter::successors;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A number that one thread writes and all may read: a load and a store, nothing locked.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    pub const fn new() -> Count {
        Count(AtomicU64::new(0))
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Only by the thread that the count belongs to.
    pub fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    pub fn inc(&self) {
        self.add(1);
    }

    /// May take away what was added to another thread's count: only the sum is a number.
    pub fn dec(&self) {
        self.0.store(self.get().wrapping_sub(1), Ordering::Relaxed);
    }
}

/// One `T` for each worker that counts: a list that only grows, read without a lock.
pub struct Shards<T>(OnceLock<Arc<Shard<T>>>);

/// The part of one worker.
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
    /// The part of `worker`, made when it is new.
    pub fn of(&self, worker: usize) -> Arc<Shard<T>> {
        let mut link = self;
        loop {
            let made = || Arc::new(Shard { counts: T::default(), worker, next: Shards::default() });
            let shard = link.0.get_or_init(made);
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
                scope.spawn(move || (0..1000).for_each(|_| shards.of(worker).inc()));
            }
        });
        assert_eq!(shards.iter().map(Count::get).collect::<Vec<_>>(), [1000; 4]);
    }
}
