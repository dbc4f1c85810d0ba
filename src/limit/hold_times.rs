//! How long requests lately held the slots of a limit, on this gateway: what a request that found none is
//! told to wait. A lease says only when a slot comes back at the latest. Shared by all workers; the desk
//! notes each release, the limiter asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::limits::LimitTable;

/// By the id of the limit, for as many as the config in force has.
#[derive(Default)]
pub struct HoldTimes(ArcSwap<HashMap<u64, Arc<HoldTime>>>);

/// Mean in microseconds, older releases counting less and less; 0 until the first.
#[derive(Default)]
struct HoldTime(AtomicU64);

/// Of the latest release in the mean: after some twenty it has forgotten what was before.
const PART: u64 = 8;
/// Shorter waits are not told: others are told the same, and all come back at once.
const LEAST_MS: i64 = 1000;

impl HoldTimes {
    /// Another config is in force: what is known of limits that stay is kept.
    pub fn follow(&self, limits: &LimitTable) {
        self.0.rcu(|known| {
            let slots = limits.iter().filter(|limit| limit.rule.lease_ms().is_some());
            let known = slots.map(|limit| (limit.id, known.get(&limit.id).cloned().unwrap_or_default()));
            known.collect::<HashMap<_, _>>()
        });
    }

    /// A request held slots of `limit` for that long.
    pub fn note(&self, limit: u64, held: Duration) {
        if let Some(known) = self.0.load().get(&limit) {
            known.note(u64::try_from(held.as_micros()).unwrap_or(u64::MAX >> 1));
        }
    }

    /// Until `missing` of `in_flight` slots that are all taken are likely to be free, at least
    /// [`LEAST_MS`]. `None` while no release is known.
    pub fn wait_ms(&self, limit: u64, missing: i64, in_flight: i64) -> Option<i64> {
        let mean_us = self.0.load().get(&limit)?.0.load(Ordering::Relaxed);
        if mean_us == 0 {
            return None;
        }
        let all_us = u128::from(mean_us) * u128::try_from(missing.max(1)).unwrap_or(1);
        let wait_ms = all_us.div_ceil(1000 * u128::try_from(in_flight.max(1)).unwrap_or(1));
        Some(i64::try_from(wait_ms).unwrap_or(i64::MAX).max(LEAST_MS))
    }
}

impl HoldTime {
    fn note(&self, held_us: u64) {
        let held_us = held_us.clamp(1, u64::MAX >> 1);
        let next = |mean: u64| match mean {
            0 => held_us,
            _ => (mean - mean / PART + held_us / PART).max(1),
        };
        // Of two releases at the same instant one may be left out, which a mean bears.
        self.0.store(next(self.0.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(held_ms: &[u64]) -> HoldTimes {
        let times = HoldTimes(ArcSwap::from_pointee(HashMap::from([(7, Arc::default())])));
        held_ms.iter().for_each(|ms| times.note(7, Duration::from_millis(*ms)));
        times
    }

    #[test]
    fn slots_come_back_as_often_as_they_lately_did() {
        assert_eq!(known(&[]).wait_ms(7, 1, 1), None, "nothing is known");
        assert_eq!(known(&[6000]).wait_ms(8, 1, 1), None, "of another limit");
        assert_eq!(known(&[6000]).wait_ms(7, 1, 1), Some(6000));
        assert_eq!(known(&[6000]).wait_ms(7, 1, 4), Some(1500), "one of four ends sooner");
        assert_eq!(known(&[6000]).wait_ms(7, 3, 4), Some(4500), "three of them later");
        assert_eq!(known(&[6000]).wait_ms(7, 1, 5000), Some(LEAST_MS));
        assert_eq!(known(&[10_001]).wait_ms(7, 1, 3), Some(3334), "rounded up");
        assert_eq!(known(&[0]).wait_ms(7, 1, 1), Some(LEAST_MS));
    }

    #[test]
    fn what_was_long_ago_counts_no_more() {
        let mut held = vec![100_000];
        held.extend([2000; 60]);
        let wait_ms = known(&held).wait_ms(7, 1, 1).unwrap();
        assert!((2000..2100).contains(&wait_ms), "{wait_ms}");
        assert_eq!(known(&[u64::MAX; 3]).wait_ms(7, i64::MAX, 1), Some(i64::MAX), "no overflow");
    }
}
