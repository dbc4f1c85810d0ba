//! Fixed window; twin of `lua/fixed_window.lua`, same names, same order. At most `limit` in each
//! window, hence at most twice that in any stretch as long as a window.

use super::counted::{State, Window};
use super::{Algorithm, Policy, Step};

#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    pub limit: i64,
    pub window_ms: i64,
    /// Windows start at multiples of `window_ms` since the epoch, not with their first request.
    pub clock: bool,
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
        self.window_at(state, now).decide(self.limit, now, cost)
    }

    fn adjust(&self, state: Option<&State>, now: i64, delta: i64, receipt: i64) -> Option<(State, i64)> {
        self.window_at(state, now).adjust(now, delta, receipt)
    }

    fn text(state: &State) -> String {
        state.text()
    }

    fn share(&self, n: i64) -> FixedWindow {
        FixedWindow { limit: (self.limit / n).max(1), ..*self }
    }
}

impl FixedWindow {
    /// The id of a window is its start.
    fn window_at(&self, state: Option<&State>, now: i64) -> Window {
        let FixedWindow { window_ms: window, clock, .. } = *self;

        let (mut count, mut start, mut mended) = (0, now, false);
        if let Some(state) = state {
            (count, start) = (state.count, state.id);
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
        Window { count, id: start, end: start + window, mended }
    }
}
