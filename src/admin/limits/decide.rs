//! Decides limits that a caller names, and formats the decision with receipts. The decision takes the steps of
//! `proxy::steps::limits`, as for a proxied request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::admin::limits::labels::{DecidedBy, NotAskedReason};
use crate::admin::limits::requests::{DecisionRequest, NamedValues};
use crate::limiting::answer::{Answer, NEVER, Policy};
use crate::limiting::decision::{Check, Op};
use crate::limiting::integers::COST_MAX;
use crate::limiting::limit::Limit;
use crate::limiting::limit::cost::Cost;
use crate::limiting::receipts::Receipt;
use crate::limiting::source::Facts;
use crate::limiting::{ChainState, Evaluation, LimitResult, Limiter, Outcome, Verdict};
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::steps::door::{Ask, LimitDoor};
use crate::proxy::steps::limits::apply_named_limits;

/// A decision that a caller of the admin API requests, as the steps of limits see it.
struct NamedDecision<'a> {
    limiter: &'a Limiter,
    parts: &'a NamedValues,
    /// The cost that the caller states.
    cost: Option<i64>,
    op: Op,
    /// The checks of the limits, for their receipts.
    checks: RefCell<Vec<Option<Check>>>,
    /// The time of the store, before it charged.
    clock_ms: Cell<Option<i64>>,
    answer: Value,
}

/// Makes one decision and returns it as JSON.
pub async fn decide_named(limiter: Rc<Limiter>, op: Op, decision: DecisionRequest) -> Value {
    let DecisionRequest { limits, parts, cost } = decision;
    let mut door = NamedDecision {
        limiter: &limiter,
        parts: &parts,
        cost,
        op,
        checks: RefCell::default(),
        clock_ms: Cell::default(),
        answer: Value::Null,
    };
    // The answer says which limits refuse.
    let _ = apply_named_limits(&mut door, limits.as_slice(), Ask { op, ..Ask::CHARGE }).await;
    door.answer
}

impl<'a> LimitDoor<'a> for NamedDecision<'a> {
    type Limits = [Arc<Limit>];
    /// The entry of each limit in the answer.
    type Note = Vec<Value>;

    fn limiter(&self) -> &'a Limiter {
        self.limiter
    }

    /// Evaluates the limits for the key and the cost that the caller states, whatever their `when`.
    fn evaluate(&self, limits: &[Arc<Limit>], _: &Facts<'_>) -> Vec<Evaluation> {
        let evaluate = |limit: &Arc<Limit>| match limit.is_tier_without(self.parts) {
            true => Evaluation::NotApplicable,
            false => self.limiter.evaluate(limit, self.parts, self.cost.unwrap_or_else(|| fixed_cost(limit))),
        };
        limits.iter().map(evaluate).collect()
    }

    async fn decide(&self, limits: &[Arc<Limit>], evaluations: Vec<Evaluation>, ask: Ask) -> Verdict {
        self.checks.replace(evaluations.iter().map(|evaluation| evaluation.check().cloned()).collect());
        // Sent before the decision on the same connection, so that no receipt outlives its charge.
        let clock_ms = async {
            match ask.op {
                Op::Take => self.limiter.store().read_clock().await.ok(),
                _ => None,
            }
        };
        let decision = self.limiter.decide(ask.op, limits, evaluations, ask.holds);
        let (clock_ms, verdict) = tokio::join!(biased; clock_ms, decision);
        self.clock_ms.set(clock_ms);
        verdict
    }

    fn note_decision(&self, limits: &[Arc<Limit>], _: usize, _: &Facts<'_>, verdict: &Verdict) -> Vec<Value> {
        let checks = self.checks.take();
        let format = |(index, (limit, check)): (usize, (&Arc<Limit>, Option<Check>))| {
            if limit.is_tier_without(self.parts) {
                return format_not_asked(limit, NotAskedReason::Ipv6Only);
            }
            let checked = verdict.checks.iter().find(|checked| checked.limit == index);
            self.format_limit(limit, check, checked, verdict)
        };
        limits.iter().zip(checks).enumerate().map(format).collect()
    }

    fn record_decision(&mut self, _: &[Arc<Limit>], _: &ClientAddress, verdict: Verdict, entries: Vec<Value>) {
        self.answer = json!({ "admitted": !verdict.refused, "limits": entries });
    }
}

impl NamedDecision<'_> {
    /// Formats one limit of a decision.
    fn format_limit(
        &self,
        limit: &Limit,
        check: Option<Check>,
        checked: Option<&LimitResult>,
        verdict: &Verdict,
    ) -> Value {
        let Some(&LimitResult { outcome, chain_state, is_charged, .. }) = checked else {
            let why = match check {
                None => NotAskedReason::KeyAbsent,
                // An override may block another tier. Tiers are not part of chains.
                Some(_) if verdict.refused || limit.tier_of.is_some() => NotAskedReason::RefusedBefore,
                Some(_) => NotAskedReason::BaseHasRoom,
            };
            return format_not_asked(limit, why);
        };
        if chain_state == ChainState::NotYet {
            return format_not_asked(limit, NotAskedReason::BaseHasRoom);
        }
        let Some((answer, check)) = outcome.answer().zip(check) else {
            let mut entry = format_unasked(outcome);
            entry["limit"] = limit.name.as_str().into();
            entry["asked"] = true.into();
            entry["source"] = DecidedBy::None.label().into();
            return entry;
        };
        let mut entry = format_numbers(answer, check.rule.policy());
        entry["limit"] = limit.name.as_str().into();
        entry["asked"] = true.into();
        entry["mode"] = limit.mode.label().into();
        if limit.forwards_excess() {
            entry["over"] = limit.over.text().into();
        }
        let local = matches!(outcome, Outcome::Local(_));
        entry["source"] = if local { DecidedBy::Local } else { DecidedBy::Store }.label().into();
        // A receipt contains the key, which the caller may not know.
        if self.op == Op::Take && is_charged && check.cost > 0 && !self.parts.hides_key_of(limit) {
            let names = limit.budget_names("", self.parts, true).ok();
            let key_values = names.and_then(|names| names.values).unwrap_or_default();
            let clock_ms = self.clock_ms.get().unwrap_or_else(|| self.limiter.memory_now_ms());
            let made_by = self.limiter.time_and_rule(local, &check.rule, Some(clock_ms));
            let receipt = made_by.and_then(|(now_ms, rule)| {
                Receipt::of_charge(check, answer, key_values, local, (now_ms, &rule)).to_token()
            });
            if let Some(token) = receipt {
                entry["receipt"] = token.into();
            }
        }
        entry
    }
}

fn format_not_asked(limit: &Limit, why: NotAskedReason) -> Value {
    json!({ "limit": limit.name, "asked": false, "reason": why.label() })
}

/// Formats a limit that was decided without a store.
pub fn format_unasked(outcome: Outcome) -> Value {
    match outcome.is_admitted() {
        true => json!({ "admitted": true }),
        false => {
            json!({ "admitted": false, "reason": outcome.end().label() })
        }
    }
}

/// Formats the numbers of a decision. `retry_after_ms` is null if waiting cannot help.
pub fn format_numbers(answer: &Answer, policy: Policy) -> Value {
    let mut numbers = json!({
        "admitted": answer.admitted,
        "remaining": answer.remaining,
        "reset_ms": answer.reset_ms,
        "policy": { "quota": policy.quota, "window_ms": policy.window_ms },
    });
    if answer.admitted {
        if answer.retry_ms > 0 {
            numbers["hold_ms"] = answer.retry_ms.into();
        }
    } else {
        let never = answer.retry_ms == NEVER;
        numbers["retry_after_ms"] = if never { Value::Null } else { answer.retry_ms.into() };
        numbers["reason"] = Outcome::Store(*answer).end().label().into();
    }
    numbers
}

/// Returns the cost of a request if it does not depend on the request.
pub fn fixed_cost(limit: &Limit) -> i64 {
    match &limit.cost {
        Cost::Fixed(cost) => (*cost).min(COST_MAX),
        Cost::ByCall(prices) => prices.default,
        _ => 1,
    }
}
