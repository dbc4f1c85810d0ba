//! Small rate limits of the gateway's own: of frames, log lines, events and retries. The limits of routes are in
//! `limiting`.
//!
//! - [`Bucket`] belongs to one connection or task, and also holds tokens that were earned.
//! - [`SharedBucket`] is shared by threads without a lock.
//! - [`RecentCounts`] counts in the parts of a window that slides.
//!
//! Time is an argument; [`monotonic_ms`] is a clock for callers that have none.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
use std::sync::LazyLock;
use std::time::Instant;

/// Returns the time since the first call of this function in the process, in milliseconds.
pub fn monotonic_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// A token bucket: permits a number of events at once, and a number per second in the long run. Tokens can also be
/// earned. These do not count towards the size of the bucket, because a peer acknowledges a burst only after it was
/// sent.
#[derive(Debug)]
pub struct Bucket {
    tokens: u32,
    most: u32,
    per_second: u32,
    /// The time up to which tokens have been added.
    filled_ms: u64,
    earned: u32,
    earned_most: u32,
}

impl Bucket {
    /// Makes a full bucket that holds `most` tokens and gets `per_second`. At most `earned_most` earned tokens are
    /// kept.
    pub fn new((most, per_second): (u32, u32), earned_most: u32, now_ms: u64) -> Bucket {
        Bucket { tokens: most, most, per_second, filled_ms: now_ms, earned: 0, earned_most }
    }

    /// Adds `count` tokens beside the bucket.
    pub fn earn(&mut self, count: u32) {
        self.earned = self.earned.saturating_add(count).min(self.earned_most);
    }

    /// Adds the tokens of the time since the last call.
    pub fn fill(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.filled_ms);
        let tokens = u32::try_from(passed_ms.saturating_mul(u64::from(self.per_second)) / 1000).unwrap_or(u32::MAX);
        if tokens > 0 {
            self.filled_ms = now_ms;
            self.tokens = self.tokens.saturating_add(tokens).min(self.most);
        }
    }

    /// Takes a token. Returns false if there is none.
    pub fn take(&mut self) -> bool {
        let tokens = if self.tokens > 0 { &mut self.tokens } else { &mut self.earned };
        let rest = tokens.checked_sub(1);
        *tokens = rest.unwrap_or(0);
        rest.is_some()
    }

    /// Takes a token, and reads the clock only if the bucket is empty. After a pause, twice as many events pass at
    /// once.
    pub fn take_at(&mut self, now_ms: impl FnOnce() -> u64) -> bool {
        self.take() || {
            self.fill(now_ms());
            self.take()
        }
    }
}

/// A token bucket in one integer (GCRA). Its events are evenly spaced once it is empty, so those that pass are a sample
/// of all.
#[derive(Debug, Default)]
pub struct SharedBucket {
    /// When the bucket is full again.
    full_at: AtomicU64,
}

impl SharedBucket {
    /// Takes a token. A token is added every `interval`, and the bucket holds those of `burst`.
    pub fn take(&self, now: u64, interval: u64, burst: u64) -> bool {
        let charge = |full_at: u64| {
            let next = full_at.max(now).saturating_add(interval);
            (next <= now.saturating_add(burst)).then_some(next)
        };
        self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge).is_ok()
    }
}

/// Counts of the last `N` parts of time, such as seconds; the current part included.
#[derive(Debug)]
pub struct RecentCounts<const N: usize> {
    counts: [u64; N],
    current: u64,
}

impl<const N: usize> Default for RecentCounts<N> {
    fn default() -> RecentCounts<N> {
        RecentCounts { counts: [0; N], current: 0 }
    }
}

impl<const N: usize> RecentCounts<N> {
    /// Adds to the count of `part`, or of the latest part if time went back. Returns the part.
    pub fn add(&mut self, part: u64, count: u64) -> u64 {
        self.advance(part);
        self.counts[place::<N>(self.current)] += count;
        self.current
    }

    /// Takes back what was added to `part`, unless the part has left the window.
    pub fn take_back(&mut self, part: u64, count: u64) {
        if self.current - part < N as u64 {
            self.counts[place::<N>(part)] -= count;
        }
    }

    /// Returns the sum of the window that ends with `part`.
    pub fn sum(&mut self, part: u64) -> u64 {
        self.advance(part);
        self.counts.iter().sum()
    }

    fn advance(&mut self, part: u64) {
        for new in (self.current + 1..=part).rev().take(N) {
            self.counts[place::<N>(new)] = 0;
        }
        self.current = self.current.max(part);
    }
}

fn place<const N: usize>(part: u64) -> usize {
    usize::try_from(part % N as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_permitted_at_once_by_time_and_by_use() {
        let mut bucket = Bucket::new((3, 10), 100, 0);
        let mut count = |now_ms: u64| (0..1000).take_while(|_| bucket.take_at(|| now_ms)).count();
        assert_eq!([count(0), count(99), count(100), count(350), count(60_000)], [3, 0, 1, 2, 3]);
        // Tokens that are earned while the bucket is full are kept.
        let mut bucket = Bucket::new((3, 0), 100, 0);
        bucket.earn(5);
        assert_eq!((0..1000).take_while(|_| bucket.take()).count(), 8);
        bucket.earn(u32::MAX);
        assert_eq!((0..1000).take_while(|_| bucket.take()).count(), 100);
    }

    #[test]
    fn a_second_of_events_passes_at_once_and_then_one_per_interval() {
        let bucket = SharedBucket::default();
        let passed = |ms: u64, count: usize| (0..count).filter(|_| bucket.take(ms, 100, 1000)).count();
        assert_eq!(passed(0, 100), 10);
        assert_eq!([99, 100, 150, 200].map(|ms| passed(ms, 100)), [0, 1, 0, 1]);
        assert_eq!(passed(5000, 100), 10);
        assert!(bucket.take(u64::MAX, 1000, 1000));
    }

    #[test]
    fn counts_leave_the_window() {
        let mut counts = RecentCounts::<3>::default();
        assert_eq!([(0, 1), (1, 2), (2, 4), (0, 8)].map(|(part, count)| counts.add(part, count)), [0, 1, 2, 2]);
        counts.take_back(1, 1);
        assert_eq!([2, 3, 4, 4, 5, 1].map(|part| counts.sum(part)), [14, 13, 12, 12, 0, 0]);
        counts.take_back(1, 1);
        assert_eq!((counts.add(u64::MAX - 9, 7), counts.sum(u64::MAX - 7)), (u64::MAX - 9, 7));
    }
}
