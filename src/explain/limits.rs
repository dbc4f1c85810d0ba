//! Asks the limits of a route for an explanation, and describes each of them.

use std::rc::Rc;
use std::sync::Arc;

use crate::explain::conditions::describe_conditions;
use crate::explain::explanation::{LimitEffect, LimitReport};
use crate::explain::limit_report::{LimitFacts, describe_limit, set_effect};
use crate::explain::walk::{AskedLimits, ExplainWalk, MadeCharge};
use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, Op, Role};
use crate::limiting::limit::Limit;
use crate::limiting::source::Facts;
use crate::limiting::{Evaluation, Limiter, Verdict};
use crate::route::Route;

/// The limits of one decision, described.
pub struct DescribedLimits {
    pub reports: Vec<LimitReport>,
    pub charges: Vec<MadeCharge>,
}

/// Evaluates `limits`. Those whose values are unknown do not apply.
pub fn evaluate_known(walk: &ExplainWalk<'_>, limits: &[Arc<Limit>], facts: &Facts<'_>) -> Vec<Evaluation> {
    let mut evaluations = walk.context.limiter.evaluate_all(limits, facts, facts);
    let unknown = find_unknown(walk, limits);
    for (evaluation, unknown) in evaluations.iter_mut().zip(&unknown) {
        if unknown.is_some() {
            *evaluation = Evaluation::NotApplicable;
        }
    }
    walk.asked.replace(AskedLimits { unknown, ..AskedLimits::default() });
    evaluations
}

/// Decides `limits`.
pub async fn ask_limits(walk: &ExplainWalk<'_>, limits: &[Arc<Limit>], evaluations: Vec<Evaluation>) -> Verdict {
    let (limiter, op) = (walk.context.limiter, walk.context.op);
    let checks = list_checks(&evaluations);
    let states = match op {
        Op::Peek => read_states(limiter, &checks).await,
        _ => vec![None; limits.len()],
    };
    let before = walk.asked.take();
    walk.asked.replace(AskedLimits { checks, states, ..before });
    limiter.decide(op, limits, evaluations, false).await
}

/// Describes the limits that were asked last, the first of which has index `first` on the route.
pub fn describe_limits(
    walk: &ExplainWalk<'_>,
    route: &Route,
    first: usize,
    facts: &Facts<'_>,
    verdict: &Verdict,
) -> DescribedLimits {
    let AskedLimits { unknown, refusing, checks, states } = walk.asked.take();
    let (limits, asked) = (&route.limits, &route.limits[first..first + unknown.len()]);
    let is_known = |place: usize| unknown[place].is_none();
    let mut description = DescribedLimits { reports: Vec::with_capacity(unknown.len()), charges: Vec::new() };
    for (place, (unknown, check)) in unknown.iter().zip(&checks).enumerate() {
        let index = first + place;
        let limit = &limits[index];
        let checked = verdict.checks.iter().find(|checked| checked.limit == index);
        let limit_facts = LimitFacts { limits, index, facts, check: check.as_ref(), checked, verdict };
        let mut report = describe_limit(limit, index < route.auth_limit_count());
        if !is_hidden(walk, limit) {
            report.conditions = describe_conditions(limit, facts, walk.context.display);
        }
        let incumbent = limit.candidate_of.as_ref();
        let incumbent = incumbent.and_then(|name| asked.iter().position(|limit| limit.name == *name));
        let effect = verdict.effect_of(index).filter(|_| is_known(place) && incumbent.is_none_or(is_known));
        report.compared = effect.map(|effect| effect.label().to_owned());
        match unknown {
            _ if !refusing.is_empty() && !refusing.contains(&limit.name) => {
                set_effect(&mut report, LimitEffect::NotReached, "the request is refused before its body is read");
            }
            Some(why) => set_effect(&mut report, LimitEffect::Unknown, *why),
            None => limit_facts.describe(&mut report, walk.context.display, states[place]),
        }
        description.reports.push(report);
        description.charges.extend(limit_facts.made_charge().filter(|_| walk.context.op == Op::Take));
    }
    description
}

/// Returns whether an explanation of the limit would let the caller test a guess of a hidden value.
fn is_hidden(walk: &ExplainWalk<'_>, limit: &Limit) -> bool {
    !walk.context.explains_hidden && walk.context.display.hides_any(limit.sources())
}

/// Returns for each limit why it cannot be decided; `None` if it can.
fn find_unknown(walk: &ExplainWalk<'_>, limits: &[Arc<Limit>]) -> Vec<Option<&'static str>> {
    let mut unknown: Vec<Option<&'static str>> = Vec::with_capacity(limits.len());
    for limit in limits {
        let base = limit.after.as_ref().and_then(|name| limits.iter().position(|base| base.name == *name));
        let reads_user = || limit.sources().any(|source| source.is_user());
        unknown.push(match base.and_then(|base| unknown.get(base).copied().flatten()) {
            Some(why) => Some(why),
            None if is_hidden(walk, limit) => {
                Some("the config hides values that it reads; the role `limits` sees more")
            }
            None if walk.is_user_unknown && reads_user() => Some("only the auth server knows the identity"),
            None if walk.is_body_unknown && (limit.has_key_in_body() || limit.reads_calls()) => {
                Some("the body was not given")
            }
            None => None,
        });
    }
    unknown
}

/// Returns the check of each evaluation that needs the store.
pub fn list_checks(evaluations: &[Evaluation]) -> Vec<Option<Check>> {
    evaluations.iter().map(|evaluation| evaluation.check().cloned()).collect()
}

/// Returns the answer to a cost of 0 for each key, which contains what it has left before the request. Decides nothing;
/// `None` if the store is unavailable.
pub async fn read_states(limiter: &Limiter, checks: &[Option<Check>]) -> Vec<Option<Answer>> {
    let checks_to_peek: Vec<Check> = checks
        .iter()
        .flatten()
        .map(|check| Check { cost: 0, role: Role { shadow: true, ..Role::default() }, ..check.clone() })
        .collect();
    let answers = match checks_to_peek.is_empty() {
        true => Vec::new(),
        false => limiter
            .store()
            .decide(Op::Peek, &Rc::new(checks_to_peek))
            .await
            .map_or_else(|_| Vec::new(), |decision| decision.answers),
    };
    let mut answers = answers.into_iter();
    checks.iter().map(|check| check.as_ref().and_then(|_| answers.next())).collect()
}
