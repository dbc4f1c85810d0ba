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
    state: BreakerState,
    open_for: Duration,
    /// Grows with each failure that counts, and with each probe.
    round: u64,
}

/// A call under way: the round in which it left. Calls that were under way together when one of
/// them failed meet the same trouble, so only the first failure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPermit(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
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
pub enum BreakerPhase {
    Closed = 0,
    HalfOpen = 1,
    Open = 2,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker { state: BreakerState::Closed { failures: 0 }, open_for: OPEN_MIN, round: 0 }
    }
}

impl Breaker {
    /// Whether a decision that comes `now` need not even queue.
    pub fn refuses(&self, now: Instant) -> bool {
        match self.state {
            BreakerState::Closed { .. } => false,
            BreakerState::Open { until } => now < until,
            BreakerState::HalfOpen { probing } => probing,
        }
    }

    /// Asks to make a call. The ticket is owed to [`Breaker::succeeded`] or [`Breaker::failed`].
    pub fn begin(&mut self, now: Instant) -> Option<CallPermit> {
        if self.refuses(now) {
            return None;
        }
        if self.phase() != BreakerPhase::Closed {
            self.round += 1;
            self.state = BreakerState::HalfOpen { probing: true };
        }
        Some(CallPermit(self.round))
    }

    pub fn succeeded(&mut self, ticket: CallPermit) {
        // An answer to a call of before it opened says nothing of the probe's.
        if self.phase() == BreakerPhase::Closed || ticket.0 == self.round {
            *self = Breaker { round: self.round, ..Breaker::default() };
        }
    }

    /// True if this failure opened it.
    pub fn failed(&mut self, now: Instant, ticket: CallPermit) -> bool {
        if ticket.0 != self.round {
            return false;
        }
        self.round += 1;
        match self.state {
            BreakerState::Closed { failures } if failures + 1 < FAILURES => {
                self.state = BreakerState::Closed { failures: failures + 1 };
                return false;
            }
            BreakerState::Closed { .. } => self.open_for = OPEN_MIN,
            BreakerState::Open { .. } => return false,
            BreakerState::HalfOpen { .. } => self.open_for = (self.open_for * 2).min(OPEN_MAX),
        }
        self.state = BreakerState::Open { until: now + self.open_for };
        true
    }

    pub fn phase(&self) -> BreakerPhase {
        match self.state {
            BreakerState::Closed { .. } => BreakerPhase::Closed,
            BreakerState::HalfOpen { .. } => BreakerPhase::HalfOpen,
            BreakerState::Open { .. } => BreakerPhase::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(breaker: &mut Breaker, now: Instant) -> bool {
        let ticket = breaker.begin(now).unwrap();
        breaker.failed(now, ticket)
    }

    fn succeeds(breaker: &mut Breaker, now: Instant) {
        let ticket = breaker.begin(now).unwrap();
        breaker.succeeded(ticket);
    }

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES {
            assert_eq!(fails(&mut breaker, now), failure == FAILURES);
        }
        breaker
    }

    #[test]
    fn opens_after_failures_in_a_row_only() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            fails(&mut breaker, now);
            fails(&mut breaker, now);
            assert_eq!(breaker.phase(), BreakerPhase::Closed);
            succeeds(&mut breaker, now);
        }
        let breaker = opened(now);
        assert_eq!(breaker.phase(), BreakerPhase::Open);
        assert!(breaker.refuses(now + OPEN_MIN - Duration::from_nanos(1)));
        assert!(!breaker.refuses(now + OPEN_MIN));
    }

    #[test]
    fn calls_under_way_together_fail_as_one() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES {
            let tickets: Vec<CallPermit> = (0..8).map(|_| breaker.begin(now).unwrap()).collect();
            let opened: Vec<bool> = tickets.into_iter().map(|ticket| breaker.failed(now, ticket)).collect();
            assert_eq!(opened.iter().filter(|opened| **opened).count(), usize::from(failure == FAILURES));
            assert_eq!(opened[0], failure == FAILURES);
        }
    }

    #[test]
    fn half_open_lets_one_call_through_and_believes_only_that() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        let early = [breaker.begin(now).unwrap(), breaker.begin(now).unwrap(), breaker.begin(now).unwrap()];
        for _ in 0..FAILURES {
            fails(&mut breaker, now);
        }
        breaker.succeeded(early[0]);
        assert_eq!(breaker.phase(), BreakerPhase::Open);
        let later = now + OPEN_MIN;
        let probe = breaker.begin(later).unwrap();
        assert_eq!(breaker.phase(), BreakerPhase::HalfOpen);
        assert!(breaker.refuses(later));
        assert_eq!(breaker.begin(later), None);
        breaker.succeeded(early[1]);
        assert!(!breaker.failed(later, early[2]));
        assert_eq!(breaker.phase(), BreakerPhase::HalfOpen);
        breaker.succeeded(probe);
        assert_eq!(breaker.phase(), BreakerPhase::Closed);
        assert!(breaker.begin(later).is_some());
    }

    #[test]
    fn stays_open_twice_as_long_after_each_failed_probe() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for open_ms in [100, 200, 400, 800, 1600, 2000, 2000] {
            let open = Duration::from_millis(open_ms);
            assert_eq!(breaker.begin(now + open - Duration::from_nanos(1)), None);
            now += open;
            assert!(fails(&mut breaker, now));
        }
        now += OPEN_MAX;
        succeeds(&mut breaker, now);
        assert!(!fails(&mut breaker, now) && !fails(&mut breaker, now) && fails(&mut breaker, now));
        assert!(breaker.refuses(now + OPEN_MIN - Duration::from_nanos(1)) && !breaker.refuses(now + OPEN_MIN));
    }
}
