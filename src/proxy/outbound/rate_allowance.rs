//! Bounds the rate of things that a server may send and that cost work without use. Used for interim responses and
//! HTTP/2 frames.

use std::time::Instant;

use crate::proxy::head::frame_head::EARNED_MAX;

/// A token bucket: a number of events at once, and a number per second in the long run, beside those that were earned.
/// Reads the clock only when it is used up.
#[derive(Debug)]
pub struct RateAllowance {
    left: u32,
    most: u32,
    per_second: u32,
    /// Events that were earned and not used yet. They are kept beside the bucket, because a server acknowledges a burst
    /// only after it has been sent.
    earned: u32,
    /// The time until which events were credited.
    credited: Instant,
}

impl RateAllowance {
    pub fn new(most: u32, per_second: u32) -> RateAllowance {
        RateAllowance { left: most, most, per_second, earned: 0, credited: Instant::now() }
    }

    /// Permits `count` more events.
    pub fn earn(&mut self, count: u32) {
        self.earned = self.earned.saturating_add(count).min(EARNED_MAX);
    }

    /// Records an event. Returns false if it exceeds the rate.
    pub fn spend(&mut self) -> bool {
        self.take_one() || self.spend_at(Instant::now())
    }

    fn spend_at(&mut self, now: Instant) -> bool {
        let passed_ms = now.saturating_duration_since(self.credited).as_millis();
        let refilled = u32::try_from(passed_ms.saturating_mul(u128::from(self.per_second)) / 1000).unwrap_or(u32::MAX);
        if refilled > 0 {
            self.credited = now;
            self.left = self.left.saturating_add(refilled).min(self.most);
        }
        self.take_one()
    }

    /// Takes one of the events that are left. Returns false if there are none.
    fn take_one(&mut self) -> bool {
        let tokens = if self.earned > 0 { &mut self.earned } else { &mut self.left };
        let rest = tokens.checked_sub(1);
        *tokens = rest.unwrap_or(0);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_are_permitted_at_once_by_time_and_by_use() {
        let mut allowance = RateAllowance::new(3, 10);
        let begun = allowance.credited;
        let mut count = |after_ms: u64| {
            let now = begun + Duration::from_millis(after_ms);
            (0..100).take_while(|_| allowance.take_one() || allowance.spend_at(now)).count()
        };
        assert_eq!([count(0), count(99), count(100), count(350), count(60_000)], [3, 0, 1, 2, 3]);
        // What is earned while the bucket is full is kept.
        let mut allowance = RateAllowance::new(3, 0);
        allowance.earn(5);
        assert_eq!((0..100).take_while(|_| allowance.spend()).count(), 8);
        allowance.earn(u32::MAX);
        assert_eq!(allowance.earned, EARNED_MAX);
    }
}
