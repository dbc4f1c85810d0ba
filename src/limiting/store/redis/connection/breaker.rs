//! Circuit breaker. After three failed calls in a row it opens: requests no longer wait for the server, and only probes
//! are sent, one at a time. It closes when a probe succeeds. This file is pure state; the caller passes the time.

use std::time::{Duration, Instant};

/// Number of failed calls in a row that open the breaker.
const FAILURES: u32 = 3;
/// How long the breaker is open before the first probe. Doubles with each failed probe.
const OPEN_MIN: Duration = Duration::from_millis(100);
/// Longest time between two probes.
const OPEN_MAX: Duration = Duration::from_millis(800);

/// State of the circuit breaker of one server.
#[derive(Debug)]
pub struct Breaker {
    state: BreakerState,
    open_for: Duration,
    /// Increases with each failure that counts, and with each probe.
    round: u64,
}

/// Permission for one call. It contains the round in which the call started: if several calls of a round fail, they
/// have the same cause, so only the first failure counts.
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

/// State as shown by metrics.
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
    /// Returns whether decisions are refused without a call.
    pub fn is_open(&self) -> bool {
        self.phase() != BreakerPhase::Closed
    }

    /// Returns when the next probe is due; `None` while the breaker is closed or a probe is under way.
    pub fn probe_at(&self) -> Option<Instant> {
        match self.state {
            BreakerState::Open { until } => Some(until),
            BreakerState::Closed { .. } | BreakerState::HalfOpen => None,
        }
    }

    /// Starts a call, if the breaker is closed. The caller has to pass the permit to [`Breaker::record_success`] or
    /// [`Breaker::record_failure`].
    pub fn begin_call(&self) -> Option<CallPermit> {
        (!self.is_open()).then_some(CallPermit(self.round))
    }

    /// Starts a probe, if the breaker is open and one is due.
    pub fn begin_probe(&mut self, now: Instant) -> Option<CallPermit> {
        self.probe_at().filter(|due| *due <= now)?;
        self.round += 1;
        self.state = BreakerState::HalfOpen;
        Some(CallPermit(self.round))
    }

    /// Records a successful call.
    pub fn record_success(&mut self, permit: CallPermit) {
        // A late reply to a call from before the breaker opened does not close it; only the probe does.
        if self.phase() == BreakerPhase::Closed || permit.0 == self.round {
            *self = Breaker { round: self.round, ..Breaker::default() };
        }
    }

    /// Records a failed call. Returns true if this failure opened the breaker.
    pub fn record_failure(&mut self, now: Instant, permit: CallPermit) -> bool {
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
        let permit = breaker.begin_call().or_else(|| breaker.begin_probe(now)).unwrap();
        breaker.record_failure(now, permit)
    }

    fn succeeds(breaker: &mut Breaker, now: Instant) {
        let permit = breaker.begin_call().or_else(|| breaker.begin_probe(now)).unwrap();
        breaker.record_success(permit);
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
        assert_eq!((breaker.phase(), breaker.begin_call()), (BreakerPhase::Open, None));
        assert_eq!(breaker.probe_at(), Some(now + OPEN_MIN));
    }

    #[test]
    fn calls_under_way_together_fail_as_one() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES {
            let permits: Vec<CallPermit> = (0..8).map(|_| breaker.begin_call().unwrap()).collect();
            let opened: Vec<bool> = permits.into_iter().map(|permit| breaker.record_failure(now, permit)).collect();
            assert_eq!(opened.iter().filter(|opened| **opened).count(), usize::from(failure == FAILURES));
            assert_eq!(opened[0], failure == FAILURES);
        }
    }

    #[test]
    fn a_half_open_breaker_admits_one_probe_and_counts_only_its_result() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        let early = [(); 3].map(|()| breaker.begin_call().unwrap());
        for _ in 0..FAILURES {
            fails(&mut breaker, now);
        }
        breaker.record_success(early[0]);
        assert_eq!(breaker.phase(), BreakerPhase::Open);
        let later = now + OPEN_MIN;
        let probe = breaker.begin_probe(later).unwrap();
        assert_eq!(breaker.phase(), BreakerPhase::HalfOpen);
        assert_eq!((breaker.begin_call(), breaker.begin_probe(later), breaker.probe_at()), (None, None, None));
        breaker.record_success(early[1]);
        assert!(!breaker.record_failure(later, early[2]));
        assert_eq!(breaker.phase(), BreakerPhase::HalfOpen);
        breaker.record_success(probe);
        assert_eq!(breaker.phase(), BreakerPhase::Closed);
        assert!(breaker.begin_call().is_some());
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
