//! What windows that count have in common; twin of `lua/counted.lua`, same names, same order. Used
//! by `fixed_window` and `calendar`, which say what window it is.

use super::Step;
use crate::limit::answer::{Answer, NEVER};

/// `count` units were taken in the window `id`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    pub count: i64,
    pub id: i64,
}

/// The window that holds now.
pub struct Window {
    pub count: i64,
    pub id: i64,
    pub end: i64,
    /// It has to be stored even after a refusal.
    pub mended: bool,
}

impl Window {
    pub fn decide(mut self, limit: i64, now: i64, cost: i64) -> Step<State> {
        let admitted = cost == 0 || self.count + cost <= limit;
        if admitted {
            self.count += cost;
        }

        let left = self.end - now;
        let mut retry_ms = 0;
        if cost > limit {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = left;
        }
        let store = cost > 0 && (admitted || self.mended);
        let remaining = (limit - self.count).max(0);
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms: left, receipt: self.id },
            next: store.then_some((State { count: self.count, id: self.id }, left)),
        }
    }

    /// The receipt is the id of the window charged; when that window is over nothing is given back.
    pub fn adjust(self, now: i64, delta: i64, receipt: i64) -> Option<(State, i64)> {
        if delta < 0 && (self.count == 0 || self.id != receipt) {
            return None;
        }
        Some((State { count: (self.count + delta).max(0), id: self.id }, self.end - now))
    }
}

impl State {
    pub fn text(self) -> String {
        format!("{} {}", self.count, self.id)
    }
}
