//! GCRA in exact integers; twin of `lua/gcra.lua`. In its form of a continuous-state leaky bucket
//! (ITU-T I.371): what is left of the backlog as of the last conformance time. Its verdicts are those
//! of a token bucket with the same numbers, and that decides them.

use super::params::{Given, Misfit, Param, RATE, Rate};
use super::records::{self, RecordsState};
use super::refill::RefillRecord;
use super::token_bucket::{BURST, TokenBucket, sizes};
use super::{Algorithm, Number, Policy, Step};

/// `rate` units every `per_ms`; `burst` at most at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Gcra {
    pub rate: i64,
    pub per_ms: i64,
    pub burst: i64,
    /// Charges may have to be given back.
    pub refunds: bool,
}

impl Algorithm for Gcra {
    type State = RecordsState<RefillRecord>;

    const LEADING: Param = RATE.param;
    const OTHERS: &'static [Param] = &[BURST.param];

    const NUMBER: Number = TokenBucket::NUMBER;

    const OWN_NUMBERS: bool = true;

    fn build(given: &Given) -> Result<Gcra, Misfit> {
        let (Rate { count: rate, per_ms }, burst) = sizes(given, false)?;
        Ok(Gcra { rate, per_ms, burst, refunds: given.refunds })
    }

    fn params(&self, now: i64) -> Vec<i64> {
        if self.refunds { self.bucket().params(now) } else { vec![self.rate, self.per_ms, self.burst] }
    }

    fn note(&self) -> String {
        self.bucket().note()
    }

    fn noted(note: &str) -> Option<Gcra> {
        let TokenBucket { rate, per_ms, burst, refunds, .. } = TokenBucket::noted(note)?;
        Some(Gcra { rate, per_ms, burst, refunds })
    }

    fn policy(&self) -> Policy {
        self.bucket().policy()
    }

    fn work(&self, most_cost: i64, correction: bool) -> i64 {
        self.bucket().work(most_cost, correction)
    }

    fn share(&self, n: i64) -> Gcra {
        Gcra { per_ms: self.per_ms * n, burst: (self.burst / n).max(1), ..*self }
    }

    fn numbered(&self, burst: i64) -> Gcra {
        Gcra { burst, ..*self }
    }

    fn largest(&self) -> i64 {
        self.bucket().largest()
    }

    fn told_number(&self) -> String {
        self.bucket().told_number()
    }

    fn decide(&self, state: Option<&Self::State>, now: i64, cost: i64, _tag: i64) -> Step<Self::State> {
        records::decide(&self.bucket(), state, now, cost)
    }

    fn adjust(&self, state: Option<&Self::State>, now: i64, delta: i64, receipt: i64) -> Option<(Self::State, i64)> {
        records::adjust(&self.bucket(), state, now, delta, receipt)
    }

    fn text(state: &Self::State) -> String {
        records::text(state, |record| record.text(4))
    }
}

impl Gcra {
    fn bucket(&self) -> TokenBucket {
        let Gcra { rate, per_ms, burst, refunds } = *self;
        TokenBucket { rate, per_ms, burst, debt: 0, interval: false, empty: false, refunds }
    }
}
