//! Decisions while the store is unavailable: each limit by its `on_error`.

use crate::limiting::answer::NEVER;
use crate::limiting::chain::{self, ChainState};
use crate::limiting::charges::ChargedAt;
use crate::limiting::charges::guard::guard_charges;
use crate::limiting::decision::{Check, ErrorKind, FewVec, Op, Role};
use crate::limiting::limit::OnError;
use crate::limiting::limiter::{CheckedLimits, Limiter, STORE_RETRY_MS, take_refused_keys};
use crate::limiting::verdict::{LimitResult, Outcome, Verdict};

impl Limiter {
    /// Decides without the store: each limit by its `on_error`, and those with `on_error = "local"` together. If too
    /// many decisions wait for a store that replies, every limit refuses: a flood of requests must not lift limits.
    pub(super) fn decide_without_store(
        &self,
        why: ErrorKind,
        op: Op,
        verdict: &mut Verdict,
        limits: &CheckedLimits,
        mut checks: Vec<Check>,
        hold: bool,
    ) {
        let on_error = limits.iter().map(|limit| match why {
            ErrorKind::Overloaded => OnError::Closed,
            _ => limit.on_error,
        });
        let on_error: Vec<OnError> = on_error.collect();
        let has_no_effect = chain::keep_local_checks(&mut checks, &on_error);
        let mut local = CheckedLimits { all: limits.all, indexes: FewVec::new() };
        let (mut local_checks, mut refusing) = (Vec::new(), Vec::new());
        for (((index, check), has_no_effect), on_error) in
            limits.indexes.iter().zip(checks).zip(has_no_effect).zip(on_error)
        {
            let limit = &limits.all[*index];
            if has_no_effect {
                let (outcome, chain_state) = (Outcome::Open, ChainState::NotYet);
                verdict.checks.push(LimitResult::uncharged(*index, outcome, chain_state));
                continue;
            }
            let outcome = match on_error {
                OnError::Open => Outcome::Open,
                OnError::Closed => Outcome::Closed,
                OnError::Local => {
                    local.indexes.push(*index);
                    local_checks.push(check);
                    continue;
                }
            };
            if op == Op::Take && check.limit.usage_days.is_some() {
                match outcome.is_admitted() {
                    true => self.charges.decisions.ledger.record_admitted(&check),
                    false => self.charges.decisions.ledger.record_refused(&check.limit, &check.counted_key()),
                }
            }
            if outcome.is_refused_by(limit) {
                verdict.refused = true;
                refusing.push(check.role.link.map(|link| link.group));
            }
            verdict.checks.push(LimitResult::uncharged(*index, outcome, ChainState::InForce));
        }
        if verdict.refused {
            // Only candidates whose incumbent alone refuses are still compared.
            let is_relevant = |check: &Check| {
                let incumbent = check.role.link.and_then(|link| link.incumbent);
                incumbent.is_some() && refusing.iter().all(|group| *group == incumbent)
            };
            let mut kept = local_checks.iter().map(is_relevant).collect::<Vec<_>>().into_iter();
            local.indexes.retain(|_| kept.next().unwrap_or_default());
            local_checks.retain(is_relevant);
        }
        if !local_checks.is_empty() {
            self.decide_locally(op, verdict, &local, local_checks, hold);
        }
    }

    /// Decides from memory, by this gateway's share of the limits.
    fn decide_locally(
        &self,
        op: Op,
        verdict: &mut Verdict,
        limits: &CheckedLimits,
        mut checks: Vec<Check>,
        hold: bool,
    ) {
        let most: Vec<i64> = checks.iter().map(|check| check.rule.max_cost()).collect();
        checks.iter_mut().for_each(|check| check.rule = self.gateways.local_rule(&check.rule));
        let roles: Vec<Role> = checks.iter().map(|check| check.role).collect();
        let mut decision = self.charges.local.run_now(op, &checks);
        if op == Op::Take {
            self.charges.decisions.record_decision(&checks, &decision);
        }
        for ((check, most), answer) in checks.iter().zip(most).zip(&mut decision.answers) {
            // A cost above the share may still fit the whole limit once the store is available.
            if answer.retry_ms == NEVER && check.cost <= most {
                answer.retry_ms = STORE_RETRY_MS;
            }
        }
        let charges = decision.find_charged(&checks);
        if hold {
            verdict.keep_refused(&limits.indexes, take_refused_keys(&mut checks, &decision));
        }
        if hold && op == Op::Take && checks.iter().any(Check::may_change) {
            let charged = (&decision, charges);
            verdict.guard = guard_charges(&self.charges, checks, limits.outcome_rules(), charged, ChargedAt::Local);
        }
        verdict.add_decision(&limits.indexes, &roles, (decision, charges), Outcome::Local);
    }
}
