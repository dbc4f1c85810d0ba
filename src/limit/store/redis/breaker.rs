//! Circuit breaker: after some failed calls in a row the store is left alone for a while, so that
//! its outage costs a request nothing. Pure: the caller (`health.rs`) passes the time in.

use std::time::{Duration, Instant};

/// Failed calls in a row that open it.
const FAILURES: u32 = 3;
/// How long it stays open at first; doubles with each probe that fails.
const OPEN_MIN: Duration = Duration::from_millis(100);
const OPEN_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Breaker {
    state: State,
    open_for: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until: Instant,
    },
    /// One call tells whether the store is back.
    HalfOpen {
        probing: bool,
    },
}

/// The state as metrics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Closed = 0,
    HalfOpen = 1,
    Open = 2,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker { state: State::Closed { failures: 0 }, open_for: OPEN_MIN }
    }
}

impl Breaker {
    /// Whether a decision that comes now need not even queue.
    pub fn refuses(&self, now: Instant) -> bool {
        match self.state {
            State::Closed { .. } => false,
            State::Open { until } => now < until,
            State::HalfOpen { probing } => probing,
        }
    }

    /// Asks to make a call. After `true` the caller owes [`Breaker::succeeded`] or
    /// [`Breaker::failed`].
    pub fn begin(&mut self, now: Instant) -> bool {
        if self.refuses(now) {
            return false;
        }
        if self.phase() != Phase::Closed {
            self.state = State::HalfOpen { probing: true };
        }
        true
    }

    pub fn succeeded(&mut self) {
        *self = Breaker::default();
    }

    /// True if this failure opened it.
    pub fn failed(&mut self, now: Instant) -> bool {
        match self.state {
            State::Closed { failures } if failures + 1 < FAILURES => {
                self.state = State::Closed { failures: failures + 1 };
                return false;
            }
            State::Closed { .. } => self.open_for = OPEN_MIN,
            State::Open { .. } => return false,
            State::HalfOpen { .. } => self.open_for = (self.open_for * 2).min(OPEN_MAX),
        }
        self.state = State::Open { until: now + self.open_for };
        true
    }

    pub fn phase(&self) -> Phase {
        match self.state {
            State::Closed { .. } => Phase::Closed,
            State::HalfOpen { .. } => Phase::HalfOpen,
            State::Open { .. } => Phase::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES {
            assert!(breaker.begin(now));
            assert_eq!(breaker.failed(now), failure == FAILURES);
        }
        breaker
    }

    #[test]
    fn opens_after_failures_in_a_row_only() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.failed(now);
            breaker.failed(now);
            assert_eq!(breaker.phase(), Phase::Closed);
            breaker.succeeded();
        }
        let breaker = opened(now);
        assert_eq!(breaker.phase(), Phase::Open);
        assert!(breaker.refuses(now + OPEN_MIN - Duration::from_nanos(1)));
        assert!(!breaker.refuses(now + OPEN_MIN));
    }

    #[test]
    fn half_open_lets_one_call_through() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + OPEN_MIN;
        assert!(breaker.begin(later));
        assert_eq!(breaker.phase(), Phase::HalfOpen);
        assert!(breaker.refuses(later));
        assert!(!breaker.begin(later));
        breaker.succeeded();
        assert_eq!(breaker.phase(), Phase::Closed);
        assert!(breaker.begin(later));
    }

    #[test]
    fn stays_open_twice_as_long_after_each_failed_probe() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for open_ms in [100, 200, 400, 800, 1600, 2000, 2000] {
            let open = Duration::from_millis(open_ms);
            assert!(!breaker.begin(now + open - Duration::from_nanos(1)));
            now += open;
            assert!(breaker.begin(now));
            assert!(breaker.failed(now));
        }
        now += OPEN_MAX;
        assert!(breaker.begin(now));
        breaker.succeeded();
        assert!(!breaker.failed(now) && !breaker.failed(now) && breaker.failed(now));
        assert!(breaker.refuses(now + OPEN_MIN - Duration::from_nanos(1)) && !breaker.refuses(now + OPEN_MIN));
    }
}
