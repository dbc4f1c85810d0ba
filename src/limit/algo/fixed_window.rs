//! Fixed window; twin of `lua/fixed_window.lua`, same names, same order. At most `limit` in each
//! window, hence at most twice that in any stretch as long as a window.

use super::{Algorithm, Policy, Step};
use crate::limit::rule::{Answer, NEVER};

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

    fn params(&self) -> Vec<i64> {
        vec![self.limit, self.window_ms, i64::from(self.clock)]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window_ms: self.window_ms }
    }

    fn decide(&self, state: Option<&State>, now: i64, cost: i64) -> Step<State> {
        let FixedWindow { limit, window_ms: window, clock } = *self;

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
        Step {
            answer: Answer {
                admitted,
                remaining: (limit - count).max(0),
                retry_ms,
                reset_ms: left,
            },
            next: (cost > 0 && (admitted || mended)).then_some((State { count, start_ms: start }, left)),
        }
    }

    fn text(state: &State) -> String {
        format!("{} {}", state.count, state.start_ms)
    }
}
