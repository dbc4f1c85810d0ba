//! Decides the limits of a route for an explanation, and describes each of them.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use crate::ends::End;
use crate::explain::conditions::describe_conditions;
use crate::explain::explanation::{LimitEffect, RequestDecision};
use crate::explain::limit_report::{LimitFacts, describe_limit, set_effect};
use crate::explain::walk::{ExplainWalk, Findings};
use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, Op, Role};
use crate::limiting::limit::Limit;
use crate::limiting::source::jwt::{TokenClaims, TokenVerifier};
use crate::limiting::source::{Facts, UnreadableBody};
use crate::limiting::{Evaluation, Limiter, clock};
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::steps::limits::{head_facts, needs_key_body};
use crate::proxy::steps::request_body::{KeyBody, find_readable_kind};
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::tls::ClientCertificate;

/// Decides the limits of the route, except those of `auth`.
pub async fn apply_limits(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    routed: RoutedRequest<'_>,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let route = routed.route;
    let range = route.auth_limit_count()..route.limits.len();
    if range.is_empty() {
        return Ok(());
    }
    if route.allow.contains(routed.identity.ip) {
        found.decision = RequestDecision::Bypass;
        skip_limits(found, route, range);
        return Ok(());
    }
    let needs_claims = route.limits[range.clone()].iter().any(|limit| limit.needs_claims());
    let claims = if needs_claims { find_claims(walk, found, headers) } else { None };
    let certificate = walk.input.certificate_subject.as_deref().map(ClientCertificate::from_subject);
    let user = found.user.clone();
    let body_length = walk.parsed.body_length.or(walk.input.body.as_ref().map(|body| body.len() as u64));
    let facts = Facts {
        claims,
        certificate: certificate.as_ref(),
        user: user.as_deref(),
        body_length,
        ..head_facts(routed, headers)
    };
    let body = read_key_body(walk, found, route, &facts)?;
    let facts = Facts { body: body.facts(), ..facts };
    decide_range(walk, found, route, range, &facts).await
}

/// Decides the limits that `auth` lists.
pub async fn apply_auth_limits(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    routed: RoutedRequest<'_>,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let (route, listed) = (routed.route, 0..routed.route.auth_limit_count());
    if listed.is_empty() {
        return Ok(());
    }
    if route.allow.contains(routed.identity.ip) {
        skip_limits(found, route, listed);
        return Ok(());
    }
    let certificate = walk.input.certificate_subject.as_deref().map(ClientCertificate::from_subject);
    let facts = Facts { certificate: certificate.as_ref(), ..head_facts(routed, headers) };
    decide_range(walk, found, route, listed, &facts).await
}

/// Decides all limits of the route for a question of another proxy.
pub async fn apply_limits_of_question(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    routed: RoutedRequest<'_>,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let (route, all) = (routed.route, 0..routed.route.limits.len());
    if all.is_empty() {
        return Ok(());
    }
    if route.allow.contains(routed.identity.ip) {
        found.decision = RequestDecision::Bypass;
        skip_limits(found, route, all);
        return Ok(());
    }
    let needs_claims = route.limits.iter().any(|limit| limit.needs_claims());
    let claims = if needs_claims { find_claims(walk, found, headers) } else { None };
    let facts = Facts { claims, ..head_facts(routed, headers) };
    decide_range(walk, found, route, all, &facts).await
}

fn skip_limits(found: &mut Findings, route: &Route, range: Range<usize>) {
    for index in range {
        let mut report = describe_limit(&route.limits[index], index < route.auth_limit_count());
        set_effect(&mut report, LimitEffect::Skipped, "the client is on the route's `allow` list");
        found.explanation.limits.push(report);
    }
}

fn find_claims(walk: &ExplainWalk<'_>, found: &Findings, headers: &HeaderMap) -> Option<TokenClaims> {
    match &found.claims {
        Some(claims) => Some(TokenClaims::One(claims.clone())),
        None => read_claims(walk, walk.context.config.jwt.as_ref()?, headers),
    }
}

/// Verifies the token of a request. An explanation leaves no trace in the cache of verified tokens.
pub fn read_claims(walk: &ExplainWalk<'_>, verifier: &TokenVerifier, headers: &HeaderMap) -> Option<TokenClaims> {
    let now_s = clock::now_ms() / 1000;
    match walk.context.op {
        Op::Take => verifier.verify_request(headers, now_s),
        _ => verifier.verify_without_cache(headers, now_s),
    }
}

/// Returns the body for limit keys, if a limit that applies reads it.
fn read_key_body(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    route: &Route,
    facts: &Facts<'_>,
) -> Result<KeyBody, Refusal> {
    let Some(max) = route.key_body.and_then(|max| usize::try_from(max).ok()) else { return Ok(KeyBody::None) };
    if walk.parsed.body_length == Some(0) || !needs_key_body(route, facts) {
        return Ok(KeyBody::None);
    }
    let least = walk.parsed.body_length.unwrap_or(0);
    let kind = match find_readable_kind(facts.headers, least, max) {
        Ok(kind) => kind,
        Err(why) => return Ok(KeyBody::UnreadableBody(why)),
    };
    if least > route.max_body {
        return Err(End::AnnouncedTooLarge.into());
    }
    match &walk.input.body {
        Some(body) if body.len() > max => Ok(KeyBody::UnreadableBody(UnreadableBody::TooLong)),
        Some(body) => Ok(KeyBody::Whole(kind, Bytes::copy_from_slice(body))),
        None => {
            found.is_body_unknown = true;
            found.explanation.notes.push("a limit reads the body, which was not given".to_owned());
            Ok(KeyBody::None)
        }
    }
}

/// Decides the limits in `range` together, and describes each.
async fn decide_range(
    walk: &ExplainWalk<'_>,
    found: &mut Findings,
    route: &Route,
    range: Range<usize>,
    facts: &Facts<'_>,
) -> Result<(), Refusal> {
    let (first, limits) = (range.start, &route.limits[range]);
    let limiter = walk.context.limiter;
    let unknown = find_unknown(walk, limits, found);
    let mut evaluations = limiter.evaluate_all(limits, facts);
    for (evaluation, unknown) in evaluations.iter_mut().zip(&unknown) {
        if unknown.is_some() {
            *evaluation = Evaluation::NotApplicable;
        }
    }
    let checks = list_checks(&evaluations);
    let states = match walk.context.op {
        Op::Peek => read_states(limiter, &checks).await,
        _ => vec![None; limits.len()],
    };
    let mut verdict = limiter.decide(walk.context.op, limits, evaluations, false).await;
    verdict.comparisons.retain(|compared| {
        let incumbent = limits[compared.candidate].candidate_of.as_ref();
        let incumbent = incumbent.and_then(|name| limits.iter().position(|limit| limit.name == *name));
        unknown[compared.candidate].is_none() && incumbent.is_none_or(|incumbent| unknown[incumbent].is_none())
    });
    for (index, limit) in limits.iter().enumerate() {
        let checked = verdict.checks.iter().find(|checked| checked.limit == index);
        let limit_facts =
            LimitFacts { limits, index, facts, check: checks[index].as_ref(), checked, verdict: &verdict };
        let mut report = describe_limit(limit, first + index < route.auth_limit_count());
        if !is_hidden(walk, limit) {
            report.conditions = describe_conditions(limit, facts, walk.context.display);
        }
        report.compared = verdict.effect_of(index).map(|effect| effect.label().to_owned());
        match unknown[index] {
            Some(why) => set_effect(&mut report, LimitEffect::Unknown, why),
            None => limit_facts.describe(&mut report, walk.context.display, states[index]),
        }
        found.explanation.limits.push(report);
        found.charges.extend(limit_facts.made_charge().filter(|_| walk.context.op == Op::Take));
    }
    let is_refused = verdict.refused;
    verdict.shift_indexes(first);
    found.verdict = Some(match found.verdict.take() {
        Some(earlier) => earlier.followed_by(verdict),
        None => verdict,
    });
    if is_refused { Err(End::Exhausted.into()) } else { Ok(()) }
}

/// Returns whether an explanation of the limit would let the caller test a guess of a hidden value.
fn is_hidden(walk: &ExplainWalk<'_>, limit: &Limit) -> bool {
    !walk.context.explains_hidden && walk.context.display.hides_any(limit.sources())
}

/// Returns for each limit why it cannot be decided; `None` if it can.
fn find_unknown(walk: &ExplainWalk<'_>, limits: &[Arc<Limit>], found: &Findings) -> Vec<Option<&'static str>> {
    let mut unknown: Vec<Option<&'static str>> = Vec::with_capacity(limits.len());
    for limit in limits {
        let base = limit.after.as_ref().and_then(|name| limits.iter().position(|base| base.name == *name));
        let reads_user = || limit.sources().any(|source| source.is_user());
        unknown.push(match base.and_then(|base| unknown.get(base).copied().flatten()) {
            Some(why) => Some(why),
            None if is_hidden(walk, limit) => {
                Some("the config hides values that it reads; the role `limits` sees more")
            }
            None if found.is_user_unknown && reads_user() => Some("only the auth server knows the identity"),
            None if found.is_body_unknown && limit.key.reads_body() => Some("the body was not given"),
            None => None,
        });
    }
    unknown
}

/// Returns the check of each evaluation that needs the store.
pub fn list_checks(evaluations: &[Evaluation]) -> Vec<Option<Check>> {
    let check = |evaluation: &Evaluation| match evaluation {
        Evaluation::Check(check) => Some(check.clone()),
        _ => None,
    };
    evaluations.iter().map(check).collect()
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
