//! Splits the evaluations of a request's limits into checks, which the store decides, and outcomes that are known
//! already. Called once per decision, by `Limiter::decide_until`.

use std::sync::Arc;

use crate::limiting::algorithm::Rule;
use crate::limiting::chain::{ChainState, Evaluation};
use crate::limiting::clock;
use crate::limiting::decision::{Check, FewVec, Op};
use crate::limiting::integers::ValueError;
use crate::limiting::limit::Limit;
use crate::limiting::limiter::Limiter;
use crate::limiting::usage::KeyOutcome;
use crate::limiting::verdict::{LimitResult, Outcome, RefusedKey, Verdict};

/// The checks of a request that the store decides.
pub struct SplitChecks {
    pub checks: Vec<Check>,
    /// The index of the limit of each check.
    pub indexes: FewVec<usize>,
    /// Rules of overrides, by the index of their limit.
    pub own_rules: Vec<(usize, Arc<Rule>)>,
    /// Costs of checks for concurrency slots, by the index of their limit.
    pub slots: Vec<(usize, i64)>,
    /// Checks of keys that overrides exempt, whose usage is kept.
    pub unlimited: Vec<Check>,
}

impl Limiter {
    /// Splits `evaluations`, one for each limit. The returned verdict contains the outcomes that need no store. With
    /// [`Op::Take`], records the keys that overrides block.
    pub(super) fn split_evaluations(
        &self,
        op: Op,
        limits: &[Arc<Limit>],
        evaluations: Vec<Evaluation>,
    ) -> (SplitChecks, Verdict) {
        let count = evaluations.len();
        let decided_ms = Some(clock::now_ms());
        let mut verdict = Verdict { checks: Vec::with_capacity(count), decided_ms, ..Verdict::default() };
        let (mut indexes, mut own_rules, mut slots) = (FewVec::new(), Vec::new(), Vec::new());
        let mut unlimited = Vec::new();
        // Collected in place: the checks need no allocation besides that of the evaluations.
        let checks = evaluations.into_iter().enumerate().filter_map(|(index, evaluation)| {
            let (outcome, chain_state) = match evaluation {
                Evaluation::Check(check) => {
                    if !check.rule.is_of_limit(&limits[index].rule) {
                        own_rules.push((index, check.rule.clone()));
                    }
                    if check.rule.lease_ms().is_some() {
                        slots.push((index, check.cost));
                    }
                    indexes.push(index);
                    return Some(check);
                }
                Evaluation::NotApplicable | Evaluation::Shared(_) => return None,
                Evaluation::MissingKey(part) => (Outcome::MissingKey { part }, ChainState::InForce),
                Evaluation::Unclear(ValueError::Ambiguous) => (Outcome::RepeatedKey, ChainState::InForce),
                Evaluation::Unclear(ValueError::Unreadable(why)) => (Outcome::UnreadableKey(why), ChainState::InForce),
                Evaluation::Unclear(ValueError::NotInteger) => (Outcome::NotInteger, ChainState::InForce),
                Evaluation::UnreadableBody(why) => (Outcome::UnreadableKey(why), ChainState::InForce),
                Evaluation::Unlimited(check) => {
                    unlimited.extend(check.map(|check| *check));
                    (Outcome::Unlimited, ChainState::InForce)
                }
                Evaluation::Blocked(chain_state, key) => {
                    if op == Op::Take && chain_state == ChainState::InForce {
                        let limit = &limits[index];
                        if limit.candidate_of.is_none() {
                            self.charges.decisions.record_key(limit, KeyOutcome::over(limit), &key);
                        }
                        verdict.refused_keys.push(RefusedKey { limit: index, key, cost: None });
                    }
                    (Outcome::Blocked, chain_state)
                }
            };
            verdict.refused |= chain_state == ChainState::InForce && outcome.is_refused_by(&limits[index]);
            verdict.checks.push(LimitResult::uncharged(index, outcome, chain_state));
            None
        });
        let checks = checks.collect();
        (SplitChecks { checks, indexes, own_rules, slots, unlimited }, verdict)
    }
}
