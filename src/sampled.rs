//! When a line of the log is due that could come as often as what it tells of: the first at once, then one
//! in ten seconds, which says how many were left out. Used wherever peers decide how often.

pub mod libraries;
pub mod stderr;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Between two lines.
const PERIOD_MS: u64 = 10_000;

/// One kind of line; all threads may share it.
#[derive(Default)]
pub struct Sampled {
    /// The first is due at once.
    due_ms: AtomicU64,
    left_out: AtomicU64,
}

impl Sampled {
    /// How many were left out since the last line, or `None` when this one is left out too.
    pub fn due(&self) -> Option<u64> {
        self.due_every(PERIOD_MS)
    }

    /// Likewise, with another time between two lines.
    pub fn due_every(&self, period_ms: u64) -> Option<u64> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.due_at(u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX), period_ms)
    }

    fn due_at(&self, now_ms: u64, period_ms: u64) -> Option<u64> {
        let due_ms = self.due_ms.load(Ordering::Relaxed);
        // Of threads that come at once, one has the line.
        let next_ms = now_ms.saturating_add(period_ms);
        let mine = now_ms >= due_ms
            && self.due_ms.compare_exchange(due_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !mine {
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
    fn the_first_line_comes_at_once_and_later_ones_count_what_was_left_out() {
        let line = Sampled::default();
        assert_eq!(line.due_at(5, PERIOD_MS), Some(0));
        for now_ms in [5, 6, 5 + PERIOD_MS - 1] {
            assert_eq!(line.due_at(now_ms, PERIOD_MS), None);
        }
        assert_eq!(line.due_at(5 + PERIOD_MS, PERIOD_MS), Some(3));
        assert_eq!(line.due_at(u64::MAX, PERIOD_MS), Some(0));
    }

    #[test]
    fn of_many_threads_one_has_the_line_and_none_is_lost() {
        let line = Sampled::default();
        let told: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..100).filter(|_| line.due_at(1, PERIOD_MS).is_some()).count()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((told, line.due_at(1 + PERIOD_MS, PERIOD_MS)), (1, Some(799)));
    }
}
