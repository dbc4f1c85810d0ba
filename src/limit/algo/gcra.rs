//! GCRA in exact integers; twin of `lua/gcra.lua`, same names, same order.
//!
//! One stamp, the theoretical arrival time, kept in whole milliseconds and a fraction in units of
//! 1/`rate` ms, so nothing rounds at any rate. While the clock does not run backwards the verdicts
//! are those of a token bucket with the same numbers; after it did they are never more generous.

use super::{Algorithm, Policy, Step, div_ceil};
use crate::limit::answer::{Answer, NEVER};

/// `rate` units every `per_ms`; `burst` at most at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Gcra {
    pub rate: i64,
    pub per_ms: i64,
    pub burst: i64,
}

/// The theoretical arrival time is `tat_ms` and `fraction` / `rate` ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    tat_ms: i64,
    fraction: i64,
    rate: i64,
    per_ms: i64,
}

impl Algorithm for Gcra {
    type State = State;

    fn params(&self, _now: i64) -> Vec<i64> {
        vec![self.rate, self.per_ms, self.burst]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.burst, window_ms: div_ceil(self.burst * self.per_ms, self.rate) }
    }

    fn share(&self, n: i64) -> Gcra {
        Gcra { per_ms: self.per_ms * n, burst: (self.burst / n).max(1), ..*self }
    }

    fn decide(&self, state: Option<&State>, now: i64, cost: i64, _tag: i64) -> Step<State> {
        let Gcra { rate, per_ms: per, burst } = *self;
        let Backlog { mut used, full, mended } = self.backlog(state, now);

        let need = cost.min(burst + 1) * per;
        let over = used + need - full;
        let admitted = cost == 0 || over <= 0;
        if admitted {
            used += need;
        }

        let mut retry_ms = 0;
        if cost > burst {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = div_ceil(over, rate);
        }
        let (remaining, reset_ms) = ((full - used) / per, div_ceil(used, rate));
        let store = cost > 0 && (admitted || mended);
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt: 0 },
            next: store.then(|| self.stamp(now, used)),
        }
    }

    /// Units given back move the time to now at most; units taken on top a whole burst ahead at
    /// most.
    fn adjust(&self, state: Option<&State>, now: i64, delta: i64, _receipt: i64) -> Option<(State, i64)> {
        let Backlog { used, full, .. } = self.backlog(state, now);
        if delta < 0 && used == 0 {
            return None;
        }
        let change = delta.clamp(-self.burst, self.burst) * self.per_ms;
        Some(self.stamp(now, (used + change).min(full).max(0)))
    }

    fn text(state: &State) -> String {
        format!("{} {} {} {}", state.tat_ms, state.fraction, state.rate, state.per_ms)
    }
}

/// What is still ahead of now, in units of 1/`rate` ms (which are units of token / `per_ms` as
/// well), that of a whole burst, and whether the state has to be stored even after a refusal.
struct Backlog {
    used: i64,
    full: i64,
    mended: bool,
}

impl Gcra {
    fn backlog(&self, state: Option<&State>, now: i64) -> Backlog {
        let Gcra { rate, per_ms: per, burst } = *self;
        let full = burst * per;
        let Some(state) = state.filter(|state| state.tat_ms >= now) else {
            return Backlog { used: 0, full, mended: false };
        };

        let ahead = state.tat_ms - now;
        if state.rate != rate || state.per_ms != per {
            return Backlog { used: rescale(ahead, state, per, full), full, mended: true };
        }
        // Further ahead than a whole burst was left by another clock, or by a larger burst. It must
        // be mended for good, or the wait would start anew with each refusal.
        if ahead > div_ceil(full, rate) {
            return Backlog { used: full, full, mended: true };
        }
        let used = ahead * rate + state.fraction;
        Backlog { used: used.min(full), full, mended: used > full }
    }

    fn stamp(&self, now: i64, used: i64) -> (State, i64) {
        let Gcra { rate, per_ms, .. } = *self;
        (State { tat_ms: now + used / rate, fraction: used % rate, rate, per_ms }, div_ceil(used, rate) + 1)
    }
}

/// The tokens of a backlog at another rate, in today's units: the same operations in the same
/// order as the twin, in doubles, so both round alike.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most `full`, below 2^53")]
fn rescale(ahead: i64, state: &State, per: i64, full: i64) -> i64 {
    let used = (ahead as f64 * state.rate as f64 + state.fraction as f64) / state.per_ms.max(1) as f64 * per as f64;
    used.ceil().min(full as f64) as i64
}
