//! Leaky bucket in exact integers; twin of `lua/leaky_bucket.lua`, same names, same order. Units
//! leave evenly, never closer than `per_ms / rate`; what comes faster waits for its slot, at most
//! `queue_ms`, and is refused beyond.
//!
//! The state counts what has not left, in units of unit x ms: nothing is rounded, and a changed
//! rate or queue keeps what was taken.

use super::token_bucket::rescale;
use super::{Algorithm, Policy, Step, div_ceil};
use crate::limit::answer::{Answer, NEVER};

/// `rate` units leave every `per_ms`; one waits at most `queue_ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    pub rate: i64,
    pub per_ms: i64,
    pub queue_ms: i64,
    /// Admit the same requests, but at once.
    pub nodelay: bool,
}

/// `used` unit x `per_ms` were taken and have not left as of `at_ms`: the next free slot is
/// `used / rate` ms after it, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    used: i64,
    at_ms: i64,
    per_ms: i64,
}

impl Algorithm for LeakyBucket {
    type State = State;

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        let LeakyBucket { rate, per_ms, queue_ms, nodelay } = *self;
        vec![rate, per_ms, queue_ms, i64::from(nodelay)]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.burst(), window_ms: div_ceil(self.full(), self.rate) }
    }

    /// The same longest wait, as far as that holds whole units.
    fn share(&self, n: i64) -> LeakyBucket {
        let units = (self.burst() / n).max(1);
        let per_ms = self.per_ms * n;
        let queue_ms = div_ceil((units - 1) * per_ms, self.rate);
        let part = LeakyBucket { per_ms, queue_ms, ..*self };
        if part.burst() > units { LeakyBucket { queue_ms: queue_ms - 1, ..part } } else { part }
    }

    fn delays(&self) -> bool {
        !self.nodelay && self.queue_ms > 0
    }

    fn decide(&self, state: Option<&State>, now: i64, cost: i64, _tag: i64) -> Step<State> {
        let LeakyBucket { rate, per_ms: per, nodelay, .. } = *self;
        let (mut used, mended) = self.level(state, now);
        let (full, burst) = (self.full(), self.burst());

        let need = cost.min(burst + 1) * per;
        let over = used + need - full;
        let admitted = cost == 0 || over <= 0;
        let mut retry_ms = 0;
        if cost > burst {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = div_ceil(over, rate);
        } else if cost > 0 && !nodelay {
            retry_ms = div_ceil(used, rate);
        }
        if admitted {
            used += need;
        }

        let reset_ms = div_ceil(used, rate);
        let store = cost > 0 && (admitted || mended);
        let remaining = (full - used) / per;
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt: self.slot(used, now) },
            next: store.then_some((State { used, at_ms: now, per_ms: per }, reset_ms)),
        }
    }

    /// The receipt is the slot after the charge. Where requests wait for their slots only the last
    /// one can be given back: those behind others would leave a hole.
    fn adjust(&self, state: Option<&State>, now: i64, delta: i64, receipt: i64) -> Option<(State, i64)> {
        let LeakyBucket { rate, per_ms: per, nodelay, .. } = *self;
        let (mut used, _) = self.level(state, now);
        if delta < 0 && (used == 0 || !nodelay && self.slot(used, now) != receipt) {
            return None;
        }
        let burst = self.burst();
        used = (used + delta.min(burst).max(-burst) * per).min(self.full()).max(0);
        Some((State { used, at_ms: now, per_ms: per }, div_ceil(used, rate).max(1)))
    }

    fn text(state: &State) -> String {
        format!("{} {} {}", state.used, state.at_ms, state.per_ms)
    }
}

impl LeakyBucket {
    /// What has not left by now, and whether that has to be stored even after a refusal.
    fn level(&self, state: Option<&State>, now: i64) -> (i64, bool) {
        let LeakyBucket { rate, per_ms: per, .. } = *self;
        let full = self.full();
        let Some(state) = state else { return (0, false) };

        let (mut used, at) = (state.used, state.at_ms);
        if state.per_ms != per {
            used = rescale(used, state.per_ms, per);
        }
        used = used.min(full);
        if at <= now {
            if now - at >= div_ceil(used, rate) {
                return (0, false);
            }
            return (used - (now - at) * rate, false);
        }
        // The clock went back: the slots stay where they are, but none may be further ahead than
        // the queue is long, and that for good.
        if at - now > (full - used) / rate {
            return (full, true);
        }
        (used + (at - now) * rate, false)
    }

    /// The most that can be taken and not have left: the queue, and one that goes at once.
    fn full(&self) -> i64 {
        self.queue_ms * self.rate + self.per_ms
    }

    /// Units that can be taken at once.
    fn burst(&self) -> i64 {
        self.full() / self.per_ms
    }

    /// The slot `used` after now, in microseconds.
    fn slot(&self, used: i64, now: i64) -> i64 {
        (now + used / self.rate) * 1000 + used % self.rate * 1000 / self.rate
    }
}
