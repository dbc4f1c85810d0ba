//! How long requests recently held the slots of `concurrency` limits on this gateway. The limiter estimates the
//! `Retry-After` of a refused request from these times, because a lease only says when a slot becomes free at the
//! latest. All workers share one value; the charge manager records each release.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::limiting::limit::LimitTable;

/// Hold times by the id of the limit, for the active limits.
#[derive(Default)]
pub struct HoldTimes(ArcSwap<HashMap<u64, Arc<HoldTime>>>);

/// Exponentially weighted mean in microseconds; 0 until the first release.
#[derive(Default)]
struct HoldTime(AtomicU64);

/// The latest release has the weight 1/8 in the mean. After about twenty more releases it hardly counts.
const MEAN_WEIGHT: u64 = 8;
/// Shortest wait. Many clients receive the same estimate and return at the same time, so it must not be too short.
const WAIT_MIN_MS: i64 = 1000;

impl HoldTimes {
    /// Applies the limits of a new config, and keeps the hold times of limits that remain.
    pub fn apply_limits(&self, limits: &LimitTable) {
        self.0.rcu(|known| {
            let slots = limits.iter().filter(|limit| limit.rule.lease_ms().is_some());
            let times =
                slots.map(|limit| (limit.store_ref.id, known.get(&limit.store_ref.id).cloned().unwrap_or_default()));
            times.collect::<HashMap<_, _>>()
        });
    }

    /// Records that a request has held slots of `limit` for the time `held`.
    pub fn record_hold(&self, limit: u64, held: Duration) {
        if let Some(known) = self.0.load().get(&limit) {
            known.record_hold(u64::try_from(held.as_micros()).unwrap_or(u64::MAX >> 1));
        }
    }

    /// Estimates the time in ms until `missing` of `in_flight` slots, all of which are in use, become free; at least
    /// [`WAIT_MIN_MS`]. Returns `None` until the first release.
    pub fn estimate_wait_ms(&self, limit: u64, missing: i64, in_flight: i64) -> Option<i64> {
        let mean_us = self.0.load().get(&limit)?.0.load(Ordering::Relaxed);
        if mean_us == 0 {
            return None;
        }
        let all_us = u128::from(mean_us) * u128::try_from(missing.max(1)).unwrap_or(1);
        let wait_ms = all_us.div_ceil(1000 * u128::try_from(in_flight.max(1)).unwrap_or(1));
        Some(i64::try_from(wait_ms).unwrap_or(i64::MAX).max(WAIT_MIN_MS))
    }
}

impl HoldTime {
    fn record_hold(&self, held_us: u64) {
        let held_us = held_us.clamp(1, u64::MAX >> 1);
        let next = |mean: u64| match mean {
            0 => held_us,
            _ => (mean - mean / MEAN_WEIGHT + held_us / MEAN_WEIGHT).max(1),
        };
        // Two workers may store at the same time and one release is lost, which hardly changes the mean.
        self.0.store(next(self.0.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(held_ms: &[u64]) -> HoldTimes {
        let times = HoldTimes(ArcSwap::from_pointee(HashMap::from([(7, Arc::default())])));
        held_ms.iter().for_each(|ms| times.record_hold(7, Duration::from_millis(*ms)));
        times
    }

    #[test]
    fn the_estimated_wait_follows_recent_hold_times() {
        assert_eq!(known(&[]).estimate_wait_ms(7, 1, 1), None, "nothing is known");
        assert_eq!(known(&[6000]).estimate_wait_ms(8, 1, 1), None, "of another limit");
        assert_eq!(known(&[6000]).estimate_wait_ms(7, 1, 1), Some(6000));
        assert_eq!(known(&[6000]).estimate_wait_ms(7, 1, 4), Some(1500), "one of four ends sooner");
        assert_eq!(known(&[6000]).estimate_wait_ms(7, 3, 4), Some(4500), "three of them later");
        assert_eq!(known(&[6000]).estimate_wait_ms(7, 1, 5000), Some(WAIT_MIN_MS));
        assert_eq!(known(&[10_001]).estimate_wait_ms(7, 1, 3), Some(3334), "rounded up");
        assert_eq!(known(&[0]).estimate_wait_ms(7, 1, 1), Some(WAIT_MIN_MS));
    }

    #[test]
    fn old_results_count_no_more() {
        let mut held = vec![100_000];
        held.extend([2000; 60]);
        let wait_ms = known(&held).estimate_wait_ms(7, 1, 1).unwrap();
        assert!((2000..2100).contains(&wait_ms), "{wait_ms}");
        assert_eq!(known(&[u64::MAX; 3]).estimate_wait_ms(7, i64::MAX, 1), Some(i64::MAX), "no overflow");
    }
}
