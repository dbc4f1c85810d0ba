//! Rate limit for log lines that a peer can trigger: the first line is logged at once, then one per ten seconds with
//! the number of lines left out in between.
//!
//! Input: a call per event. Output: whether to log it, and how many events were left out. `libraries` applies the same
//! limit to log lines of libraries, and `stderr` keeps a reader that stalls from blocking a thread.

#[cfg(not(loom))]
pub mod libraries;
#[cfg(not(loom))]
pub mod stderr;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

use crate::rate::{SharedBucket, monotonic_ms};

/// Interval between two lines.
const PERIOD_MS: u64 = 10_000;

/// State of one kind of line. All threads share it.
#[derive(Default)]
pub struct LogSampler {
    bucket: SharedBucket,
    left_out: AtomicU64,
}

impl LogSampler {
    /// Returns the number of lines left out since the last one, or `None` if this line must be left out too.
    pub fn take_turn(&self) -> Option<u64> {
        self.take_turn_every(PERIOD_MS)
    }

    /// Does the same with another interval.
    pub fn take_turn_every(&self, period_ms: u64) -> Option<u64> {
        self.take_turn_at(monotonic_ms(), period_ms)
    }

    /// Likewise, at a given time.
    pub fn take_turn_at(&self, now_ms: u64, period_ms: u64) -> Option<u64> {
        // Of several threads that arrive together, one logs the line.
        if !self.bucket.take(now_ms, period_ms, period_ms) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_immediate_and_later_ones_count_dropped_lines() {
        let line = LogSampler::default();
        assert_eq!(line.take_turn_at(5, PERIOD_MS), Some(0));
        for now_ms in [5, 6, 5 + PERIOD_MS - 1] {
            assert_eq!(line.take_turn_at(now_ms, PERIOD_MS), None);
        }
        assert_eq!(line.take_turn_at(5 + PERIOD_MS, PERIOD_MS), Some(3));
        assert_eq!(line.take_turn_at(u64::MAX, PERIOD_MS), Some(0));
    }

    #[test]
    fn of_many_threads_one_has_the_line_and_none_is_lost() {
        let line = LogSampler::default();
        let told: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..100).filter(|_| line.take_turn_at(1, PERIOD_MS).is_some()).count()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((told, line.take_turn_at(1 + PERIOD_MS, PERIOD_MS)), (1, Some(799)));
    }
}
