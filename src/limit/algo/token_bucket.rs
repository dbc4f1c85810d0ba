//! Token bucket in exact integers; twin of `lua/token_bucket.lua`, same names, same order.
//!
//! The state counts what was taken and not yet refilled, in units of token x ms, so neither
//! refill nor charge ever divides. A raised or lowered burst therefore keeps what was consumed,
//! and a bucket that has refilled equals an absent one.

use super::{Algorithm, Policy, Step, div_ceil};
use crate::limit::answer::{Answer, NEVER};

/// `rate` tokens every `per_ms`; `burst` at most at once.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    pub rate: i64,
    pub per_ms: i64,
    pub burst: i64,
    /// Tokens that a request may take in advance while the bucket is not empty; later requests
    /// wait until they are repaid.
    pub debt: i64,
    /// Refill in lumps of `rate` every whole `per_ms` instead of continuously.
    pub interval: bool,
    /// A new bucket holds nothing instead of everything.
    pub empty: bool,
}

/// `used` token x `per_ms` were taken and not yet refilled as of `at_ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    used: i64,
    at_ms: i64,
    per_ms: i64,
}

/// How long a bucket that starts empty is remembered once it is full; a client idle for longer
/// starts empty again.
const EMPTY_KEPT_MS: i64 = 86_400_000;

impl Algorithm for TokenBucket {
    type State = State;

    fn params(&self, _now: i64) -> Vec<i64> {
        let TokenBucket { rate, per_ms, burst, debt, interval, empty } = *self;
        vec![rate, per_ms, burst, debt, i64::from(interval), i64::from(empty)]
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.burst, window_ms: div_ceil(self.burst * self.per_ms, self.rate) }
    }

    fn decide(&self, state: Option<&State>, now: i64, cost: i64, _tag: i64) -> Step<State> {
        let TokenBucket { per_ms: per, burst, debt, .. } = *self;
        let Level { mut used, at, full, floor_debt, lump, gain, mended } = self.level(state, now);

        let need = cost.min(burst + debt + 1) * per;
        let mut over = used + need - full;
        if debt > 0 {
            over = (over - floor_debt).max(over.min(used - full + 1));
        }
        let admitted = cost == 0 || over <= 0;
        if admitted {
            used += need;
        }

        let mut retry_ms = 0;
        if cost > burst + debt {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = at + div_ceil(over, gain) * lump - now;
        }
        let reset_ms = at + div_ceil(used, gain) * lump - now;
        let store = cost > 0 && (admitted || mended);
        let remaining = ((full - used) / per).max(0);
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms: reset_ms.max(0), receipt: 0 },
            next: store.then_some((State { used, at_ms: at, per_ms: per }, self.life(reset_ms))),
        }
    }

    /// Tokens given back fill the bucket at most; tokens taken on top empty it at most to its debt.
    fn adjust(&self, state: Option<&State>, now: i64, delta: i64, _receipt: i64) -> Option<(State, i64)> {
        let TokenBucket { per_ms: per, burst, debt, .. } = *self;
        let Level { mut used, mut at, full, floor_debt, lump, gain, .. } = self.level(state, now);
        if delta < 0 && (used == 0 || state.is_none()) {
            return None;
        }
        let change = delta.clamp(-burst - debt, burst + debt) * per;
        used = (used + change).min(full + floor_debt).max(0);
        if used == 0 {
            at = now.max(at);
        }
        let life = self.life(at + div_ceil(used, gain) * lump - now);
        Some((State { used, at_ms: at, per_ms: per }, life))
    }

    fn text(state: &State) -> String {
        format!("{} {} {}", state.used, state.at_ms, state.per_ms)
    }

    /// The refill of a continuous bucket is shared exactly, by a period n times as long.
    fn share(&self, n: i64) -> TokenBucket {
        let TokenBucket { rate, per_ms, burst, debt, .. } = *self;
        let (rate, per_ms) = match self.interval {
            true if rate >= n => (rate / n, per_ms),
            true => (1, per_ms * div_ceil(n, rate)),
            false => (rate, per_ms * n),
        };
        TokenBucket { rate, per_ms, burst: (burst / n).max(1), debt: debt / n, ..*self }
    }
}

/// What was taken and not yet refilled by now, the stamp it holds for, the sizes involved, and
/// whether the state has to be stored even after a refusal.
struct Level {
    used: i64,
    at: i64,
    full: i64,
    floor_debt: i64,
    lump: i64,
    gain: i64,
    mended: bool,
}

impl TokenBucket {
    fn level(&self, state: Option<&State>, now: i64) -> Level {
        let TokenBucket { rate, per_ms: per, burst, debt, interval, empty } = *self;
        let (full, floor_debt) = (burst * per, debt * per);
        let lump = if interval { per } else { 1 };
        let gain = rate * lump;

        let (mut used, mut at, mut mended) = (0, now, empty && state.is_none());
        if let Some(state) = state {
            (used, at) = (state.used, state.at_ms);
            if state.per_ms != per {
                used = rescale(used, state.per_ms, per);
            }
            used = used.min(full + floor_debt);
            // A stamp further ahead than a whole refill was left by another clock. It must be mended
            // for good, or the refill would start anew with each refusal.
            if at > now + div_ceil(full + floor_debt, gain) * lump {
                (at, mended) = (now, true);
            }
            let steps = (now - at).max(0) / lump;
            if steps >= div_ceil(used, gain) {
                (used, at) = (0, now.max(at));
            } else {
                (used, at) = (used - steps * gain, at + steps * lump);
            }
        } else if empty {
            used = full;
        }
        Level { used, at, full, floor_debt, lump, gain, mended }
    }

    fn life(&self, reset_ms: i64) -> i64 {
        reset_ms + 1 + if self.empty { EMPTY_KEPT_MS } else { 0 }
    }
}

/// The same operations in the same order as the twin, in doubles, so both round alike. The
/// result is at most one unit (a fraction of a token) above the true quotient.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "below 2^53")]
pub(super) fn rescale(used: i64, from_per: i64, to_per: i64) -> i64 {
    (used as f64 / from_per.max(1) as f64 * to_per as f64).ceil() as i64
}
