//! Limits the events of a tap. Workers share the limit without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A token bucket that holds the events of one second (GCRA). While more requests match, those that pass are evenly
/// spaced in time, so they are a sample of all.
pub struct EventRate {
    interval_ns: u64,
    /// Time since the start at which the bucket is full again.
    full_at_ns: AtomicU64,
}

const SECOND_NS: u64 = 1_000_000_000;

impl EventRate {
    pub fn new(per_second: u32) -> EventRate {
        EventRate { interval_ns: SECOND_NS / u64::from(per_second.max(1)), full_at_ns: AtomicU64::new(0) }
    }

    /// Returns whether an event may be sent at `now`, the time since the start.
    pub fn take_turn(&self, now: Duration) -> bool {
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        let charge = |full_at_ns: u64| {
            let next_ns = full_at_ns.max(now_ns) + self.interval_ns;
            (next_ns <= now_ns + SECOND_NS).then_some(next_ns)
        };
        self.full_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_events_passes_at_once_and_then_one_per_interval() {
        let rate = EventRate::new(10);
        let passed = |ms: u64, count: usize| (0..count).filter(|_| rate.take_turn(Duration::from_millis(ms))).count();
        assert_eq!(passed(0, 100), 10);
        assert_eq!([99, 100, 150, 200].map(|ms| passed(ms, 100)), [0, 1, 0, 1]);
        assert_eq!(passed(5000, 100), 10);
        assert!(EventRate::new(1).take_turn(Duration::ZERO));
    }
}
