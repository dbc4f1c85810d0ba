//! The text of an answer, by which gateways that share a store tell each other what they have answered (`once`). Limits
//! have their names in it, since the configs of two gateways may differ for a while.

use std::sync::Arc;

use http::HeaderValue;
use serde_json::{Value, json};

use crate::limiting::algorithm::Rule;
use crate::limiting::answer::{Answer, BanAnswer};
use crate::limiting::limit::Limit;
use crate::limiting::source::UnreadableBody;
use crate::limiting::{ChainState, LimitResult, Outcome, Verdict};
use crate::route::Route;

/// An answer, without what its charges hold, and without candidates: those of two gateways or configs may differ.
#[derive(Clone, Debug)]
pub struct RecentAnswer {
    pub refused: bool,
    /// The results of limits in effect, with indexes among these.
    pub checks: Vec<LimitResult>,
    /// The receipt of the admission.
    pub receipt: Option<HeaderValue>,
}

const CHAIN_STATES: [ChainState; 3] = [ChainState::InForce, ChainState::HandedOver, ChainState::NotYet];
/// Outcomes without an answer of a store. A missing key also has the number of its part.
const OUTCOMES: [Outcome; 9] = [
    Outcome::Open,
    Outcome::Closed,
    Outcome::RepeatedKey,
    Outcome::NotInteger,
    Outcome::Blocked,
    Outcome::QueueFull,
    Outcome::Unlimited,
    Outcome::UnreadableKey(UnreadableBody::Type),
    Outcome::MissingKey { part: 0 },
];

impl RecentAnswer {
    /// Makes the answer of a decision on `route`.
    pub fn new(verdict: &Verdict, route: &Route, receipt: Option<HeaderValue>) -> RecentAnswer {
        let in_force: Vec<usize> = limits_in_force(route).map(|(index, _)| index).collect();
        let checks = verdict.checks.iter().filter_map(|checked| {
            let limit = in_force.iter().position(|index| *index == checked.limit)?;
            Some(LimitResult { limit, ..checked.clone() })
        });
        RecentAnswer { refused: verdict.refused, checks: checks.collect(), receipt }
    }

    /// Returns the answer as a verdict on `route` that charged nothing.
    pub fn to_verdict(&self, route: &Route) -> Verdict {
        let in_force: Vec<usize> = limits_in_force(route).map(|(index, _)| index).collect();
        let checks = self.checks.iter().filter_map(|checked| {
            let limit = *in_force.get(checked.limit)?;
            let outcome = checked.outcome.repeated();
            Some(LimitResult { limit, outcome, is_charged: false, ..checked.clone() })
        });
        Verdict { refused: self.refused, checks: checks.collect(), ..Verdict::default() }
    }
}

/// Returns the limits of a route that are not candidates, with their indexes.
fn limits_in_force(route: &Route) -> impl Iterator<Item = (usize, &Arc<Limit>)> {
    route.limits.iter().enumerate().filter(|(_, limit)| limit.candidate_of.is_none())
}

/// Writes an answer about a request on `route`.
pub fn write_answer(answer: &RecentAnswer, route: &Route) -> String {
    let limits: Vec<&Arc<Limit>> = limits_in_force(route).map(|(_, limit)| limit).collect();
    let checks: Vec<Value> = answer
        .checks
        .iter()
        .map(|checked| {
            let limit = limits[checked.limit];
            let numbers = |answer: &Answer| {
                json!([
                    answer.admitted,
                    answer.remaining,
                    answer.retry_ms,
                    answer.reset_ms,
                    answer.receipt,
                    matches!(checked.outcome, Outcome::Local(_)),
                    answer.is_banned()
                ])
            };
            let outcome = match checked.outcome {
                Outcome::Store(answer) | Outcome::Local(answer) => numbers(&answer),
                Outcome::MissingKey { part } => json!(OUTCOMES.len() - 1 + part),
                other => json!(OUTCOMES.iter().position(|outcome| *outcome == other)),
            };
            let chain_state = CHAIN_STATES.iter().position(|chain_state| *chain_state == checked.chain_state);
            let rule = checked.override_rule.as_ref().map(|rule| rule.encode_rule());
            json!([limit.name, limit.rule.name(), chain_state, outcome, rule])
        })
        .collect();
    let receipt = answer.receipt.as_ref().and_then(|receipt| receipt.to_str().ok());
    json!([2, answer.refused, receipt, checks]).to_string()
}

/// Reads an answer about a request on `route`; `None` if this gateway has other limits there.
pub fn read_answer(text: &str, route: &Route) -> Option<RecentAnswer> {
    let answer: Value = serde_json::from_str(text).ok().filter(|answer: &Value| answer[0] == 2)?;
    let checks = answer[3].as_array()?.iter().map(|checked| read_check(checked, route)).collect::<Option<_>>()?;
    let receipt = answer[2].as_str().and_then(|receipt| HeaderValue::from_str(receipt).ok());
    Some(RecentAnswer { refused: answer[1].as_bool()?, checks, receipt })
}

fn read_check(checked: &Value, route: &Route) -> Option<LimitResult> {
    let (name, algorithm) = (checked[0].as_str()?, checked[1].as_str()?);
    let is_meant = |limit: &Limit| limit.name == name && limit.rule.name() == algorithm;
    let limit = limits_in_force(route).position(|(_, limit)| is_meant(limit))?;
    let chain_state = *CHAIN_STATES.get(usize::try_from(checked[2].as_u64()?).ok()?)?;
    let outcome = match &checked[3] {
        Value::Number(number) => {
            let number = usize::try_from(number.as_u64()?).ok()?;
            let missing = OUTCOMES.len() - 1;
            match number.checked_sub(missing) {
                Some(part) => Outcome::MissingKey { part },
                None => OUTCOMES[number],
            }
        }
        numbers => {
            let answer = Answer {
                admitted: numbers[0].as_bool()?,
                remaining: numbers[1].as_i64()?,
                retry_ms: numbers[2].as_i64()?,
                reset_ms: numbers[3].as_i64()?,
                receipt: numbers[4].as_i64()?,
                ban: if numbers[6].as_bool()? { BanAnswer::InForce } else { BanAnswer::None },
            };
            if numbers[5].as_bool()? { Outcome::Local(answer) } else { Outcome::Store(answer) }
        }
    };
    let override_rule = match checked[4].as_str() {
        Some(rule) => Some(Arc::new(Rule::decode_rule(algorithm, rule)?)),
        None => None,
    };
    Some(LimitResult { override_rule, ..LimitResult::uncharged(limit, outcome, chain_state) })
}
