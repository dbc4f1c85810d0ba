//! Refusals that this process knows without asking a store. A request that is refused in any case is refused before its
//! body is read.

use std::slice;

use crate::limiting::chain::{ChainState, Evaluation};
use crate::limiting::decision::{Check, Op};
use crate::limiting::limit::Limit;
use crate::limiting::limiter::Limiter;
use crate::limiting::source::Facts;
use crate::limiting::store::Store;
use crate::limiting::verdict::Outcome;

impl Limiter {
    /// Returns whether `limit`, whose `evaluation` this is, certainly refuses a request whose body was not read. Sends
    /// nothing to Redis, and charges nothing. `facts` do not include the body.
    pub fn knows_refusal(&self, limit: &Limit, evaluation: &Evaluation, facts: &Facts) -> bool {
        if limit.depends_on_body(facts) || !limit.decides_alone() {
            return false;
        }
        match evaluation {
            Evaluation::Check(check) => !check.role.base && self.store().is_known_to_refuse(check),
            Evaluation::Blocked(ChainState::InForce, _) => Outcome::Blocked.is_refused_by(limit),
            Evaluation::MissingKey(part) => Outcome::MissingKey { part: *part }.is_refused_by(limit),
            _ => false,
        }
    }
}

impl Store {
    /// Returns whether the store would refuse `check`, if this process knows that.
    fn is_known_to_refuse(&self, check: &Check) -> bool {
        let checks = slice::from_ref(check);
        match self.run_in_process(Op::Peek, checks) {
            Some(decision) => !decision.admitted,
            None => self.known_refusals(checks).is_some(),
        }
    }
}
