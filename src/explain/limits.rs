//! Decides the limits of a route for an explanation, and describes each of them.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use crate::explain::conditions::describe_conditions;
use crate::explain::explanation::{LimitEffect, LimitReport, LimitState, RequestDecision, TenantReport};
use crate::explain::walk::{ExplainWalk, Findings, MadeCharge};
use crate::limiting::algorithm::fair::TenantShare;
use crate::limiting::answer::{Answer, NEVER};
use crate::limiting::decision::{Check, Op, Role};
use crate::limiting::jwt::{TokenClaims, TokenVerifier};
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::over::Over;
use crate::limiting::override_table::OverrideBudget;
use crate::limiting::source::{Facts, UnreadableBody};
use crate::limiting::{Evaluation, LimitResult, Limiter, Outcome, Standing, Verdict, clock};
use crate::proxy::limits::{head_facts, needs_key_body};
use crate::proxy::request_body::{KeyBody, find_readable_kind};
use crate::proxy::request_context::RoutedRequest;
use crate::proxy::response::problem::refusal_title;
use crate::proxy::response::refusal::Refusal;
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
        return Err(Refusal::TooLarge);
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
    let checks: Vec<Option<Check>> = evaluations
        .iter()
        .map(|evaluation| match evaluation {
            Evaluation::Check(check) => Some(check.clone()),
            _ => None,
        })
        .collect();
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
            None => limit_facts.describe(&mut report, walk, states[index]),
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
    if is_refused { Err(Refusal::Limited) } else { Ok(()) }
}

/// Reports whether an explanation of the limit would let the caller test a guess of a hidden value.
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

/// Returns the answer to a cost of 0 for each key, which tells what it has left before the request. Decides nothing; `None` if the store is unavailable.
async fn read_states(limiter: &Limiter, checks: &[Option<Check>]) -> Vec<Option<Answer>> {
    let asked: Vec<Check> = checks
        .iter()
        .flatten()
        .map(|check| Check { cost: 0, role: Role { shadow: true, ..Role::default() }, ..check.clone() })
        .collect();
    let answers = match asked.is_empty() {
        true => Vec::new(),
        false => limiter
            .store()
            .decide(Op::Peek, &Rc::new(asked))
            .await
            .map_or_else(|_| Vec::new(), |decision| decision.answers),
    };
    let mut answers = answers.into_iter();
    checks.iter().map(|check| check.as_ref().and_then(|_| answers.next())).collect()
}

fn describe_limit(limit: &Limit, before_auth: bool) -> LimitReport {
    LimitReport {
        name: limit.name.clone(),
        mode: limit.mode.label().to_owned(),
        over: limit.over.text(),
        algorithm: limit.rule.name().to_owned(),
        rule: limit.rule.describe(),
        before_auth,
        after: limit.after.clone(),
        lease: limit.store_ref.lease.map(|terms| terms.describe()),
        candidate_of: limit.candidate_of.clone(),
        tier_of: limit.tier_of.clone(),
        ..LimitReport::default()
    }
}

fn set_effect(report: &mut LimitReport, effect: LimitEffect, detail: impl Into<String>) {
    report.effect = effect.label().to_owned();
    report.detail = detail.into();
}

/// One limit of a decision.
struct LimitFacts<'d> {
    limits: &'d [Arc<Limit>],
    index: usize,
    facts: &'d Facts<'d>,
    check: Option<&'d Check>,
    checked: Option<&'d LimitResult>,
    verdict: &'d Verdict,
}

impl LimitFacts<'_> {
    fn limit(&self) -> &Arc<Limit> {
        &self.limits[self.index]
    }

    fn describe(&self, report: &mut LimitReport, walk: &ExplainWalk<'_>, before: Option<Answer>) {
        let limit = self.limit();
        if limit.applies_to(self.facts) == Ok(true) {
            let mut key = String::new();
            let shown = walk.context.display.write_key(&mut key, limit.counted_key(), self.facts, limit.repeated);
            report.key = shown.ok().map(|()| key);
            self.describe_override(report);
        }
        report.cost = self.check.map(|check| check.cost);
        let reserve = limit.cost.reserve().filter(|_| self.check.is_some());
        let estimate = reserve.and_then(|reserve| reserve.estimate(self.facts, limit.repeated, limit.not_integer).ok());
        report.estimate = estimate.map(|reservation| reservation.to_string());
        let Some(LimitResult { outcome, standing, .. }) = self.checked else {
            let (effect, detail) = self.why_not_checked();
            return set_effect(report, effect, detail);
        };
        if let (Some(answer), Some(check)) = (outcome.answer(), self.check) {
            report.state = Some(describe_state(answer, check, before.map(|answer| answer.remaining), *outcome));
            report.fair = before.and_then(|answer| check.rule.standing_of(&answer)).map(describe_tenant);
        }
        let (effect, detail) = self.describe_outcome(*outcome, *standing, report.state.as_ref());
        set_effect(report, effect, detail);
    }

    fn describe_override(&self, report: &mut LimitReport) {
        let limit = self.limit();
        if !limit.overrides.has_any() {
            return;
        }
        let names = limit.budget_names("", self.facts, true).ok();
        let values = names.and_then(|names| names.values);
        report.overridden = values.and_then(|values| limit.overrides.find(&values)).map(|budget| match budget {
            OverrideBudget::Rule(rule) => {
                report.rule = rule.describe();
                rule.describe()
            }
            OverrideBudget::Blocked => "blocked".to_owned(),
            OverrideBudget::Unlimited => "unlimited".to_owned(),
        });
    }

    /// Returns why there is no result of the limit.
    fn why_not_checked(&self) -> (LimitEffect, String) {
        let limit = self.limit();
        if self.check.is_some() && self.verdict.refused {
            return (LimitEffect::NotReached, "another limit refused before".to_owned());
        }
        if limit.applies_to(self.facts) == Ok(false) {
            return (LimitEffect::Skipped, "a condition of `when` is false".to_owned());
        }
        let absent = limit
            .key
            .0
            .iter()
            .find(|part| !part.sources().is_empty() && matches!(part.value(self.facts, limit.repeated), Ok(None)));
        match (absent, &limit.after) {
            (Some(part), _) => {
                (LimitEffect::Skipped, format!("the request has no {} (missing = \"skip\")", part.display_name()))
            }
            (None, Some(base)) => {
                (LimitEffect::Skipped, format!("the limit {base}, which it comes after, does not apply"))
            }
            (None, None) => (LimitEffect::Skipped, "it does not apply".to_owned()),
        }
    }

    fn describe_outcome(
        &self,
        outcome: Outcome,
        standing: Standing,
        state: Option<&LimitState>,
    ) -> (LimitEffect, String) {
        let limit = self.limit();
        match standing {
            Standing::NotYet => {
                let base = limit.after.as_deref().unwrap_or_default();
                return (LimitEffect::Skipped, format!("the limit {base} still has capacity"));
            }
            Standing::HandedOver => {
                let next = self.limits.iter().find(|next| next.after.as_ref() == Some(&limit.name));
                let next = next.map_or("", |next| &next.name);
                let why = if outcome == Outcome::Blocked { "its override blocks the key" } else { "it is exhausted" };
                return (LimitEffect::HandsOver, format!("{why}, and the limit {next} decides instead"));
            }
            Standing::InForce => {}
        }
        if !outcome.is_admitted() {
            let effect = match &limit.over {
                _ if limit.mode == Mode::Shadow => LimitEffect::WouldRefuse,
                Over::Annotate if outcome.is_over() => LimitEffect::Annotates,
                Over::Divert(_) if outcome.is_over() => LimitEffect::Diverts,
                _ => LimitEffect::Refuses,
            };
            return (effect, self.describe_refusal(outcome, state));
        }
        match (outcome, state) {
            (Outcome::Unlimited, _) => (LimitEffect::Admits, "the override of this key is unlimited".to_owned()),
            (Outcome::Open, _) => (LimitEffect::Admits, "the store is unavailable (on_error = \"open\")".to_owned()),
            (_, Some(state)) => {
                let left = format!("{} of {} left after it", state.remaining_after, state.quota);
                match outcome.answer().map_or(0, |answer| answer.retry_ms) {
                    0 => (LimitEffect::Admits, left),
                    delay_ms => (LimitEffect::Delays, format!("it waits {delay_ms} ms in the queue; {left}")),
                }
            }
            (_, None) => (LimitEffect::Admits, String::new()),
        }
    }

    fn describe_refusal(&self, outcome: Outcome, state: Option<&LimitState>) -> String {
        let limit = self.limit();
        let cost = self.check.map_or(1, |check| check.cost);
        match (outcome, state) {
            (Outcome::Store(answer) | Outcome::Local(answer), Some(state)) if answer.retry_ms == NEVER => {
                format!("it costs {cost}, more than the {} that can ever be left", state.quota)
            }
            (Outcome::Store(answer) | Outcome::Local(answer), Some(state)) => {
                let left = state.remaining.unwrap_or(state.remaining_after);
                let wait = format_wait(answer.retry_ms);
                format!("{left} of {} left, and it costs {cost}; passes in {wait}", state.quota)
            }
            _ => refusal_title(outcome, limit).into_owned(),
        }
    }

    /// Returns the charge of the limit, if the request was charged.
    fn made_charge(&self) -> Option<MadeCharge> {
        let (limit, check) = (self.limit(), self.check?);
        let checked = self.checked.filter(|checked| checked.standing == Standing::InForce)?;
        let answer = checked.outcome.answer().filter(|answer| answer.admitted)?;
        let is_tried = limit.mode == Mode::Shadow
            && (limit.candidate_of.is_none() || self.verdict.effect_of(self.index).is_some());
        let is_charged = !self.verdict.refused || is_tried;
        is_charged
            .then(|| MadeCharge { limit: limit.clone(), check: check.clone().correction(check.cost, answer.receipt) })
    }
}

fn describe_tenant(share: TenantShare) -> TenantReport {
    let TenantShare { active, weight, total_weight, rate, backlog, reserve } = share;
    TenantReport { weight, total_weight, active, rate_per_second: rate, must_leave: backlog, reserve }
}

fn describe_state(answer: &Answer, check: &Check, remaining: Option<i64>, outcome: Outcome) -> LimitState {
    let policy = check.rule.policy();
    let is_local = matches!(outcome, Outcome::Local(_));
    LimitState {
        quota: policy.quota,
        window_ms: policy.window_ms,
        remaining,
        remaining_after: answer.remaining,
        retry_after_ms: (!answer.admitted && answer.retry_ms != NEVER).then_some(answer.retry_ms),
        reset_ms: answer.reset_ms,
        source: if is_local { "local" } else { "store" }.to_owned(),
    }
}

/// Formats a wait with the precision that matters: `430 ms`, `12.5 s`, `3 h 2 min`.
fn format_wait(ms: i64) -> String {
    let (seconds, minutes) = (ms / 1000, ms / 60_000);
    match ms {
        ..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{seconds}.{} s", ms % 1000 / 100),
        60_000..3_600_000 => format!("{minutes} min {} s", seconds % 60),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}
