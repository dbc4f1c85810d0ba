//! Fixed window; twin of `lua/fixed_window.lua`, same names, same order. At most `limit` in each
//! window, hence at most twice that in any stretch as long as a window.


use super::{Algorithm, Policy, Step};
use crate::limit::answer::{Answer, NEVER};

#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    pub limit: i64,
    pub window_ms: i64,
    /// Windows start at multiples of `window_ms` since the epoch, not with their first request.
    pub clock: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    count: i64,
    start_ms: i64,
}

impl Algorithm for FixedWindow {
    type State = State;

    fn params(&self, _now: i64) -> Vec<i64> {
        vec![self.limit, self.window_ms, i64::from(self.clock)]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window_ms: self.window_ms }
    }

    fn decide(&self, state: Option<&State>, now: i64, cost: i64, _tag: i64) -> Step<State> {
        let FixedWindow { limit, window_ms: window, .. } = *self;
        let (mut count, start, mended) = self.window_at(state, now);

        let admitted = cost == 0 || count + cost <= limit;
        if admitted {
            count += cost;
        }

        let left = start + window - now;
        let mut retry_ms = 0;
        if cost > limit {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = left;
        }
        let store = cost > 0 && (admitted || mended);
        let remaining = (limit - count).max(0);
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms: left, receipt: start },
            next: store.then_some((State { count, start_ms: start }, left)),
        }
    }

    /// The receipt is the start of the window charged; when that window is over nothing is given
    /// back.
    fn adjust(&self, state: Option<&State>, now: i64, delta: i64, receipt: i64) -> Option<(State, i64)> {
        let (count, start, _) = self.window_at(state, now);
        if delta < 0 && (count == 0 || start != receipt) {
            return None;
        }
        Some((State { count: (count + delta).max(0), start_ms: start }, start + self.window_ms - now))
    }

    fn text(state: &State) -> String {
        format!("{} {}", state.count, state.start_ms)
    }

    fn share(&self, n: i64) -> FixedWindow {
        FixedWindow { limit: (self.limit / n).max(1), ..*self }
    }
}

impl FixedWindow {
    /// What the window that holds now has counted, its start, and whether that has to be stored
    /// even after a refusal.
    fn window_at(&self, state: Option<&State>, now: i64) -> (i64, i64, bool) {
        let FixedWindow { window_ms: window, clock, .. } = *self;

        let (mut count, mut start, mut mended) = (0, now, false);
        if let Some(state) = state {
            (count, start) = (state.count, state.start_ms);
            // A start further ahead than a whole window was left by another clock. It must be mended
            // for good, or the window would start anew with each refusal.
            if start > now + window {
                (start, mended) = (now, true);
            }
        }
        let at = now.max(start);
        if clock {
            let aligned = at - at % window;
            if start < aligned {
                count = 0;
            }
            start = aligned;
        } else if at >= start + window {
            (count, start) = (0, at);
        }
        (count, start, mended)
    }
}
