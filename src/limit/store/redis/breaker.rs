//! Circuit breaker: after some failed calls in a row, requests no longer wait for the server. Only probes reach it,
//! one at a time, until one of them succeeds. Pure: the caller (`health.rs`) passes the time in.

use std::time::{Duration, Instant};

/// Failed calls in a row that open it.
const FAILURES: u32 = 3;
/// How long it stays open at first; doubles with each probe that fails.
const OPEN_MIN: Duration = Duration::from_millis(100);
const OPEN_MAX: Duration = Duration::from_millis(800);

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
    /// A probe is under way.
    HalfOpen,
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
    /// Whether a decision need not even queue.
    pub fn refuses(&self) -> bool {
        self.phase() != BreakerPhase::Closed
    }

    /// When the next probe is due; `None` while it is closed or a probe is under way.
    pub fn probe_at(&self) -> Option<Instant> {
        match self.state {
            BreakerState::Open { until } => Some(until),
            BreakerState::Closed { .. } | BreakerState::HalfOpen => None,
        }
    }

    /// Asks to make a call. The permit is owed to [`Breaker::succeeded`] or [`Breaker::failed`].
    pub fn begin(&self) -> Option<CallPermit> {
        (!self.refuses()).then_some(CallPermit(self.round))
    }

    /// The same for a probe of an open breaker.
    pub fn begin_probe(&mut self, now: Instant) -> Option<CallPermit> {
        self.probe_at().filter(|due| *due <= now)?;
        self.round += 1;
        self.state = BreakerState::HalfOpen;
        Some(CallPermit(self.round))
    }

    pub fn succeeded(&mut self, permit: CallPermit) {
        // An answer to a call of before it opened says nothing of the probe's.
        if self.phase() == BreakerPhase::Closed || permit.0 == self.round {
            *self = Breaker { round: self.round, ..Breaker::default() };
        }
    }

    /// True if this failure opened it.
    pub fn failed(&mut self, now: Instant, permit: CallPermit) -> bool {
        if permit.0 != self.round {
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
            BreakerState::HalfOpen => self.open_for = (self.open_for * 2).min(OPEN_MAX),
        }
        self.state = BreakerState::Open { until: now + self.open_for };
        true
    }

    pub fn phase(&self) -> BreakerPhase {
        match self.state {
            BreakerState::Closed { .. } => BreakerPhase::Closed,
            BreakerState::HalfOpen => BreakerPhase::HalfOpen,
            BreakerState::Open { .. } => BreakerPhase::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(breaker: &mut Breaker, now: Instant) -> bool {
        let permit = breaker.begin().or_else(|| breaker.begin_probe(now)).unwrap();
        breaker.failed(now, permit)
    }

    fn succeeds(breaker: &mut Breaker, now: Instant) {
        let permit = breaker.begin().or_else(|| breaker.begin_probe(now)).unwrap();
        breaker.succeeded(permit);
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
        assert_eq!((breaker.phase(), breaker.begin()), (BreakerPhase::Open, None));
        assert_eq!(breaker.probe_at(), Some(now + OPEN_MIN));
    }

    #[test]
    fn calls_under_way_together_fail_as_one() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES {
            let permits: Vec<CallPermit> = (0..8).map(|_| breaker.begin().unwrap()).collect();
            let opened: Vec<bool> = permits.into_iter().map(|permit| breaker.failed(now, permit)).collect();
            assert_eq!(opened.iter().filter(|opened| **opened).count(), usize::from(failure == FAILURES));
            assert_eq!(opened[0], failure == FAILURES);
        }
    }

    #[test]
    fn half_open_lets_one_probe_through_and_believes_only_that() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        let early = [(); 3].map(|()| breaker.begin().unwrap());
        for _ in 0..FAILURES {
            fails(&mut breaker, now);
        }
        breaker.succeeded(early[0]);
        assert_eq!(breaker.phase(), BreakerPhase::Open);
        let later = now + OPEN_MIN;
        let probe = breaker.begin_probe(later).unwrap();
        assert_eq!(breaker.phase(), BreakerPhase::HalfOpen);
        assert_eq!((breaker.begin(), breaker.begin_probe(later), breaker.probe_at()), (None, None, None));
        breaker.succeeded(early[1]);
        assert!(!breaker.failed(later, early[2]));
        assert_eq!(breaker.phase(), BreakerPhase::HalfOpen);
        breaker.succeeded(probe);
        assert_eq!(breaker.phase(), BreakerPhase::Closed);
        assert!(breaker.begin().is_some());
    }

    #[test]
    fn stays_open_twice_as_long_after_each_failed_probe() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for open_ms in [100, 200, 400, 800, 800] {
            let open = Duration::from_millis(open_ms);
            assert_eq!(breaker.begin_probe(now + open - Duration::from_nanos(1)), None);
            now += open;
            assert!(fails(&mut breaker, now));
        }
        now += OPEN_MAX;
        succeeds(&mut breaker, now);
        assert!(!fails(&mut breaker, now) && !fails(&mut breaker, now) && fails(&mut breaker, now));
        assert_eq!(breaker.probe_at(), Some(now + OPEN_MIN));
    }
}
