//! GCRA in exact integers. Twin of `lua/gcra.lua`. In the form of a continuous-state leaky bucket (ITU-T I.371), it
//! stores the backlog at the last conforming request. Its decisions equal those of a token bucket with the same
//! numbers, so it uses that implementation.

use crate::limiting::algorithm::params::{OptionError, OptionValues, Param, RATE, Rate};
use crate::limiting::algorithm::records::RecordsState;
use crate::limiting::algorithm::refill::RefillRecord;
use crate::limiting::algorithm::token_bucket::{BURST, TokenBucket, read_rate_and_burst};
use crate::limiting::algorithm::{Algorithm, Corrected, LeaseBasis, Number, Policy, Step, records};

/// A rate of `rate` units every `per_ms`, and at most `burst` at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Gcra {
    pub rate: i64,
    pub per_ms: i64,
    pub burst: i64,
    /// The limit may refund charges.
    pub refunds: bool,
}

impl Algorithm for Gcra {
    type State = RecordsState<RefillRecord>;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[BURST.param];

    const NUMBER: Number = TokenBucket::NUMBER;

    const CORRECTS_BY_OWN_RULE: bool = true;

    fn build(options: &OptionValues) -> Result<Gcra, OptionError> {
        let (Rate { count: rate, per_ms }, burst) = read_rate_and_burst(options, false)?;
        Ok(Gcra { rate, per_ms, burst, refunds: options.refunds })
    }

    fn params(&self, now: i64) -> Vec<i64> {
        if self.refunds { self.bucket().params(now) } else { vec![self.rate, self.per_ms, self.burst] }
    }

    fn encode_rule(&self) -> String {
        self.bucket().encode_rule()
    }

    fn decode_rule(encoded: &str) -> Option<Gcra> {
        let TokenBucket { rate, per_ms, burst, refunds, .. } = TokenBucket::decode_rule(encoded)?;
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

    fn with_number(&self, burst: i64) -> Gcra {
        Gcra { burst, ..*self }
    }

    fn max_number(&self) -> i64 {
        self.bucket().max_number()
    }

    fn late_debt(&self) -> Option<i64> {
        self.bucket().late_debt()
    }

    fn lease_basis(&self) -> Option<LeaseBasis> {
        self.bucket().lease_basis()
    }

    fn describe_number(&self) -> String {
        self.bucket().describe_number()
    }

    fn decide(&self, state: Option<&Self::State>, now: i64, cost: i64, _tag: i64) -> Step<Self::State> {
        records::decide(&self.bucket(), state, now, cost)
    }

    fn adjust(
        &self,
        state: Option<&Self::State>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<Self::State>> {
        records::adjust(&self.bucket(), state, now, delta, receipt)
    }

    fn text(state: &Self::State) -> String {
        records::text(state, |record| record.text(4))
    }
}

impl Gcra {
    /// Returns the token bucket with the same decisions.
    pub fn bucket(&self) -> TokenBucket {
        let Gcra { rate, per_ms, burst, refunds } = *self;
        TokenBucket { rate, per_ms, burst, debt: 0, interval: false, empty: false, refunds }
    }
}
