//! How fast a peer has to move what waits for it: on average, after some time. Kept for request bodies by
//! `upload`, for answers by the connections, the streams and the tunnels.

use std::cell::Cell;
use std::time::Duration;

/// The peer has `patience` in advance, spends it while it is waited for, and earns it back with the bytes that it
/// moves, never more than it had at first: neither a quick start nor hours of good conduct pay for a stall.
pub struct Pace {
    patience_ms: Cell<i64>,
    /// Bytes per second; 0: any byte earns all of it.
    rate: Cell<u64>,
    /// Below 0 it owes some: one more byte does not save it.
    left_ms: Cell<i64>,
    waits_since_ms: Cell<Option<u64>>,
}

impl Pace {
    pub fn new(patience: Duration, rate: u64) -> Pace {
        let patience_ms = ms(patience);
        Pace {
            patience_ms: Cell::new(patience_ms),
            rate: Cell::new(rate),
            left_ms: Cell::new(patience_ms),
            waits_since_ms: Cell::new(None),
        }
    }

    /// Of a peer that nobody waits for.
    pub fn none() -> Pace {
        Pace::new(Duration::MAX, 0)
    }

    /// From now on it is another pace; what waits goes on waiting.
    pub fn follow(&self, patience: Duration, rate: u64) {
        let patience_ms = ms(patience);
        self.patience_ms.set(patience_ms);
        self.rate.set(rate);
        self.left_ms.set(patience_ms);
    }

    /// Nothing waits for it any more, and nothing did.
    pub fn reset(&self) {
        self.waits_since_ms.set(None);
        self.left_ms.set(self.patience_ms.get());
    }

    /// Something waits for the peer, perhaps since before.
    pub fn wait(&self, now_ms: u64) {
        if self.waits_since_ms.get().is_none() {
            self.waits_since_ms.set(Some(now_ms));
        }
    }

    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms.get().unsigned_abs())
    }

    pub fn waits(&self) -> bool {
        self.waits_since_ms.get().is_some()
    }

    /// The peer has moved so many bytes, after a wait or without one.
    pub fn moved(&self, now_ms: u64, bytes: u64) {
        let most = self.patience_ms.get();
        let earned = match self.rate.get() {
            0 if bytes > 0 => None,
            rate => i64::try_from(bytes.saturating_mul(1000) / rate.max(1)).ok(),
        };
        let left = earned.map_or(most, |earned| self.left_ms(now_ms).saturating_add(earned).min(most));
        self.left_ms.set(left);
        self.waits_since_ms.set(None);
    }

    /// What it has left.
    pub fn left(&self, now_ms: u64) -> Duration {
        Duration::from_millis(u64::try_from(self.left_ms(now_ms)).unwrap_or(0))
    }

    /// Its pause is no longer than it may be, but it has been too slow before.
    pub fn is_below_average(&self) -> bool {
        self.left_ms.get() < self.patience_ms.get()
    }

    fn left_ms(&self, now_ms: u64) -> i64 {
        let spent = self.waits_since_ms.get().map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        self.left_ms.get().saturating_sub(i64::try_from(spent).unwrap_or(i64::MAX))
    }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left after waits of `pause_ms`, each for `bytes`.
    fn left_after(pace: &Pace, times: u64, pause_ms: u64, bytes: u64) -> u128 {
        for round in 0..times {
            pace.wait(round * pause_ms);
            pace.moved((round + 1) * pause_ms, bytes);
        }
        pace.left(times * pause_ms).as_millis()
    }

    fn pace() -> Pace {
        Pace::new(Duration::from_secs(10), 100)
    }

    #[test]
    fn who_keeps_up_may_go_on_for_ever_and_who_does_not_runs_out_of_time() {
        assert_eq!(left_after(&pace(), 100_000, 1000, 100), 10_000);
        assert_eq!(left_after(&pace(), 10, 1000, 50), 5_000);
        assert_eq!(left_after(&pace(), 20, 1000, 50), 0);
        let owes = pace();
        assert_eq!(left_after(&owes, 20, 2000, 1), 0);
        owes.moved(40_000, 100);
        assert_eq!(owes.left(40_000).as_millis(), 0, "it owes more than that");
        // In large pieces as in small ones.
        assert_eq!(left_after(&pace(), 10, 9000, 900), 10_000);
    }

    #[test]
    fn a_quick_start_pays_for_no_stall() {
        let pace = pace();
        pace.moved(0, 1 << 40);
        assert!(!pace.is_below_average());
        pace.wait(0);
        pace.wait(4_000);
        assert_eq!(pace.left(9_999).as_millis(), 1);
        assert_eq!(pace.left(20_000).as_millis(), 0);
    }

    #[test]
    fn nobody_is_charged_for_what_does_not_wait() {
        let pace = pace();
        pace.wait(0);
        pace.moved(5_000, 0);
        assert!(pace.is_below_average() && !pace.waits());
        assert_eq!(pace.left(1 << 40).as_millis(), 5_000);
    }

    #[test]
    fn without_a_rate_any_byte_will_do() {
        let pace = Pace::new(Duration::from_secs(10), 0);
        pace.wait(0);
        pace.moved(9_000, 0);
        assert_eq!(pace.left(9_000).as_millis(), 1_000);
        pace.moved(9_000, 1);
        assert_eq!(pace.left(9_000).as_millis(), 10_000);
    }
}
