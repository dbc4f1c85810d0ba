//! The charges of a decision that its outcome may change, for the receipt.

use std::sync::Arc;

use crate::limiting::decision::Check;
use crate::limiting::limit::Limit;
use crate::limiting::receipts::Receipt;
use crate::limiting::receipts::bundle::ReceiptBundle;
use crate::limiting::{Evaluation, Limiter, Outcome, Verdict};
use crate::proxy::steps::limits::EvaluatedLimits;

/// Checks whose charges the outcome of the request may change.
pub struct ChargedChecks {
    /// Each with the index of its limit, and the values of its key.
    checks: Vec<(usize, Check, String)>,
    /// Clock of the store before the charges were made; `None` if it is not known.
    clock_ms: Option<i64>,
}

impl ChargedChecks {
    /// Finds these checks before they are decided.
    pub async fn find(limiter: &Limiter, limits: &[Arc<Limit>], evaluated: &EvaluatedLimits<'_>) -> ChargedChecks {
        let EvaluatedLimits { facts, evaluations, .. } = evaluated;
        let find = |(index, evaluation): (usize, &Evaluation)| match evaluation {
            Evaluation::Check(check) if check.cost > 0 && may_change(&limits[index]) => {
                let values = limits[index].budget_names("", facts, true).ok().and_then(|names| names.values);
                Some((index, check.clone(), values.unwrap_or_default()))
            }
            _ => None,
        };
        let checks: Vec<_> = evaluations.iter().enumerate().filter_map(find).collect();
        // Read before the decision, so that no receipt outlives its charge.
        let clock_ms = if checks.is_empty() { None } else { limiter.store().read_clock().await.ok() };
        ChargedChecks { checks, clock_ms }
    }

    /// Returns the receipts of those that the verdict charged; `None` if it charged none.
    pub fn into_bundle(self, limiter: &Limiter, name: &str, verdict: &Verdict) -> Option<ReceiptBundle> {
        let clock_ms = self.clock_ms;
        let charge = |(index, check, who): (usize, Check, String)| {
            let result = verdict.checks.iter().find(|result| result.limit == index)?;
            let answer = result.outcome.answer().filter(|_| result.is_charged)?;
            let is_local = matches!(result.outcome, Outcome::Local(_));
            let rule = if is_local { limiter.local_rule(&check.rule) } else { check.rule.clone() };
            let now_ms = if is_local { limiter.memory_now_ms() } else { clock_ms? };
            Some(Receipt::of_charge(check, answer, who, is_local, (now_ms, &rule)))
        };
        let charges: Vec<Receipt> = self.checks.into_iter().filter_map(charge).collect();
        (!charges.is_empty()).then(|| ReceiptBundle { name: name.to_owned(), charges })
    }
}

/// Returns whether the response to a request may change what the limit charged.
pub fn may_change(limit: &Limit) -> bool {
    limit.charge_rules.as_ref().is_some_and(|rules| rules.depends_on_response())
}
