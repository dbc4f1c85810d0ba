//! Decides a question by the limits, as a request that passes through the gateway would be decided. The gateway does
//! not see how that request ends, so charges stay as they are, unless the asking proxy settles them by receipt.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response};

use crate::limiting::decision::Check;
use crate::limiting::limit::Limit;
use crate::limiting::receipts::Receipt;
use crate::limiting::receipts::bundle::ReceiptBundle;
use crate::limiting::{Evaluation, Limiter, Outcome, Verdict};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::context::recent::{Recent, SharedAnswers, find_or_claim, recent_key};
use crate::proxy::context::recorded_answer::RecentAnswer;
use crate::proxy::doors::decide::question::ProxyQuestion;
use crate::proxy::steps::door::Ask;
use crate::proxy::steps::limits::{EvaluatedLimits, apply_decision, decide_limits, evaluate_described, is_exempt};
use crate::proxy::words::refusal::Refusal;
use crate::proxy::words::shown_keys::ShownKeys;
use crate::route::Route;
use crate::telemetry::metrics::QuestionResult;

/// Header of an admission with the receipt of its charges.
pub const X_LIMIT_RECEIPT: HeaderName = HeaderName::from_static("x-limit-receipt");

/// Decides a question. Clients on the `allow` list of a route are admitted without limits.
pub async fn decide_question(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    question: &ProxyQuestion<'_>,
) -> Result<Response<ResponseBody>, Refusal> {
    let route = routed.route;
    if is_exempt(request, routed, 0..route.limits.len()) {
        return Ok(admit(request, None));
    }
    let mut limits = evaluate_described(request, routed);
    let claim = match find_recent(request, route, question, &limits.evaluations).await {
        Some(Recent::Answered(answer)) => return replay_answer(request, route, &answer),
        Some(Recent::Claimed(claim)) => Some(claim),
        None => None,
    };
    let checks = ChargedChecks::find(&request.view.limiter, &route.limits, &limits).await;
    let decision = decide_limits(request, route, &mut limits, Ask::HOLD, None).await;
    let result = apply_decision(request, route, routed.identity, decision).await;
    request.account.keep_charges();
    let receipt = match (&result, &request.admission.verdict) {
        (Ok(()), Some(verdict)) => make_receipt(request, question, checks, verdict),
        _ => None,
    };
    if let (Some(claim), Some(verdict)) = (claim, &request.admission.verdict) {
        let answer = RecentAnswer::new(verdict, route, receipt.clone());
        claim.publish(shared_answers(request, route), answer).await;
    }
    result.map(|()| admit(request, receipt))
}

/// Finds the answer to an earlier question about the same request, or claims it. `None` if the question has no id.
async fn find_recent(
    request: &RequestContext<'_>,
    route: &Route,
    question: &ProxyQuestion<'_>,
    evaluations: &[Evaluation],
) -> Option<Recent> {
    let id = request.received.parts.headers.get(question.point.once.as_ref()?).filter(|id| !id.is_empty())?;
    let answers = &request.client.worker.process.recent_answers;
    // A candidate must not make two questions of one, nor one that only some gateways have.
    let in_force = evaluations.iter().zip(&route.limits).filter(|(_, limit)| limit.candidate_of.is_none());
    let key = recent_key(&question.name, id, in_force.map(|(evaluation, _)| evaluation));
    Some(find_or_claim(answers, shared_answers(request, route), key).await)
}

fn shared_answers<'a>(request: &RequestContext<'a>, route: &'a Route) -> SharedAnswers<'a> {
    let view = request.view;
    SharedAnswers { store: view.limiter.store(), prefix: &view.snapshot.config.store.prefix, route }
}

/// Answers like an earlier question, which was charged.
fn replay_answer(
    request: &mut RequestContext<'_>,
    route: &Route,
    answer: &RecentAnswer,
) -> Result<Response<ResponseBody>, Refusal> {
    request.view.questions.count(QuestionResult::Replayed);
    let verdict = answer.to_verdict(route);
    request.account.record_decision(route, &verdict, ShownKeys::default());
    let end = verdict.end(&route.limits);
    request.admission.verdict = Some(verdict);
    if answer.refused { Err(end.into()) } else { Ok(admit(request, answer.receipt.clone())) }
}

/// Makes the receipt of the charges that the outcome of the request may change; `None` if there are none.
fn make_receipt(
    request: &RequestContext<'_>,
    question: &ProxyQuestion<'_>,
    charged: ChargedChecks,
    verdict: &Verdict,
) -> Option<HeaderValue> {
    let mut bundle = charged.into_bundle(&request.view.limiter, &question.name, verdict)?;
    let config = &request.view.snapshot.config;
    let token = bundle.to_token(&config.admin.key_display.hasher).or_else(|| {
        // Candidates must not cost others their receipt.
        let find = |charge: &Receipt| question.find_limit(config, charge.limit_and_algorithm()?.0);
        bundle.charges.retain(|charge| find(charge).is_some_and(|limit| limit.candidate_of.is_none()));
        bundle.to_token(&config.admin.key_display.hasher).filter(|_| !bundle.charges.is_empty())
    });
    if token.is_none() {
        request.view.questions.count(QuestionResult::NoReceipt);
    }
    HeaderValue::try_from(token?).ok()
}

fn admit(request: &RequestContext<'_>, receipt: Option<HeaderValue>) -> Response<ResponseBody> {
    request.view.questions.count(QuestionResult::Admitted);
    let mut response = Response::new(ResponseBody::full(Bytes::new()));
    if let Some(receipt) = receipt {
        response.headers_mut().insert(X_LIMIT_RECEIPT, receipt);
    }
    response
}

/// Checks whose charges the outcome of the request may change.
struct ChargedChecks {
    /// Each with the index of its limit, and the values of its key.
    checks: Vec<(usize, Check, String)>,
    /// Clock of the store before the charges were made; `None` if it is not known.
    clock_ms: Option<i64>,
}

impl ChargedChecks {
    /// Finds these checks before they are decided.
    async fn find(limiter: &Limiter, limits: &[Arc<Limit>], evaluated: &EvaluatedLimits<'_>) -> ChargedChecks {
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
    fn into_bundle(self, limiter: &Limiter, name: &str, verdict: &Verdict) -> Option<ReceiptBundle> {
        let clock_ms = self.clock_ms;
        let charge = |(index, check, who): (usize, Check, String)| {
            let result = verdict.checks.iter().find(|result| result.limit == index)?;
            let answer = result.outcome.answer().filter(|_| result.is_charged)?;
            let is_local = matches!(result.outcome, Outcome::Local(_));
            let (now_ms, rule) = limiter.time_and_rule(is_local, &check.rule, clock_ms)?;
            Some(Receipt::of_charge(check, answer, who, is_local, (now_ms, &rule)))
        };
        let charges: Vec<Receipt> = self.checks.into_iter().filter_map(charge).collect();
        (!charges.is_empty()).then(|| ReceiptBundle { name: name.to_owned(), charges })
    }
}

/// Returns whether the outcome of the request may correct the charge of the limit.
fn may_change(limit: &Limit) -> bool {
    limit.charge_rules.as_ref().is_some_and(|rules| rules.depends_on_response())
}
