//! The answer to a rate limit request: a status for each descriptor, and what Envoy adds to the response of its client.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, VARY};
use http::{HeaderMap, Response};

use crate::ends::End;
use crate::envoy::rate_limit::{
    CurrentLimit, DescriptorStatus, LimitCode, Metadata, MetadataField, RateLimitResponse, WindowUnit,
};
use crate::envoy::{Duration, HeaderPair};
use crate::limiting::answer::{Answer, NEVER};
use crate::limiting::limit::over::EXCEEDED_HEADER;
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::{ChainState, LimitResult, Outcome, STORE_RETRY_MS, Verdict, clock};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::RequestContext;
use crate::proxy::render::call_ids::CallIds;
use crate::proxy::steps::response::problem::forbid_caching;
use crate::proxy::steps::response::refusal_response::ErrorFormat;
use crate::proxy::words::refusal::Refusal;
use crate::route::error_pages::PageFormat;

/// The status of a descriptor without limits.
pub fn unlimited(remaining: u32) -> DescriptorStatus {
    DescriptorStatus { code: LimitCode::Ok.into(), limit_remaining: remaining, ..DescriptorStatus::default() }
}

/// Returns the status of a descriptor from the results of its limits: of those that are enforced, or if none is, of
/// those that let the request pass although it is over them. Candidates are not shown.
pub fn describe_results<'r>(results: impl Iterator<Item = (&'r Arc<Limit>, &'r LimitResult)>) -> DescriptorStatus {
    let results =
        results.filter(|(limit, result)| limit.candidate_of.is_none() && result.chain_state == ChainState::InForce);
    // The limit that refuses for longest, or the one that leaves least.
    let strictest = results.min_by_key(|(limit, result)| {
        let rank = match (result.outcome.is_admitted(), result.outcome.answer()) {
            (false, answer) => (false, -wait_ms(answer).unwrap_or(i64::MAX)),
            (true, answer) => (true, answer.map_or(i64::MAX, |answer| answer.remaining)),
        };
        (limit.mode == Mode::Shadow || result.outcome.is_forwarded_by(limit), rank)
    });
    let Some((limit, result)) = strictest else { return unlimited(0) };
    let is_over = !result.outcome.is_admitted();
    let code = if result.outcome.is_refused_by(limit) { LimitCode::OverLimit } else { LimitCode::Ok };
    let wait = match result.outcome {
        Outcome::Closed => Some(STORE_RETRY_MS),
        outcome if is_over => wait_ms(outcome.answer()),
        outcome => outcome.answer().map(|answer| answer.reset_ms),
    };
    let remaining = match result.outcome {
        Outcome::Unlimited => u32::MAX,
        outcome => outcome.answer().map_or(0, |answer| saturate(answer.remaining)),
    };
    DescriptorStatus {
        code: code.into(),
        current_limit: describe_limit(limit, result),
        limit_remaining: remaining,
        duration_until_reset: wait.map(|ms| Duration::from_ms(ms.max(0))),
    }
}

/// Returns the status of a descriptor that refunded, from the state of its limits afterwards.
pub fn describe_refunds<'r>(states: impl Iterator<Item = (&'r Arc<Limit>, Option<&'r Answer>)>) -> DescriptorStatus {
    let states = states.filter_map(|(limit, answer)| Some((limit, answer?)));
    let states = states.filter(|(limit, _)| limit.candidate_of.is_none());
    let Some((limit, answer)) = states.min_by_key(|(limit, answer)| (limit.mode == Mode::Shadow, answer.remaining))
    else {
        return unlimited(0);
    };
    let outcome = Outcome::Store(Answer { admitted: true, ..*answer });
    let result = LimitResult::uncharged(0, outcome, ChainState::InForce);
    describe_results(std::iter::once((limit, &result)))
}

/// Returns how long a refusal lasts; `None` if waiting does not help.
fn wait_ms(answer: Option<&Answer>) -> Option<i64> {
    answer.map(|answer| answer.retry_ms).filter(|ms| *ms != NEVER)
}

/// Returns the numbers that apply to the key; `None` if nothing limits it, or if the store does not respond. A key that
/// an override blocks has a quota of 0.
fn describe_limit(limit: &Limit, result: &LimitResult) -> Option<CurrentLimit> {
    let rule = result.override_rule.as_deref().unwrap_or(&limit.rule);
    let policy = rule.policy_at(clock::now_ms());
    let quota = match result.outcome {
        Outcome::Blocked => 0,
        outcome => outcome.answer().map(|_| policy.quota)?,
    };
    Some(CurrentLimit {
        requests_per_unit: saturate(quota),
        unit: WindowUnit::from_window_ms(policy.window_ms).into(),
        name: limit.name.clone(),
    })
}

fn saturate(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Returns the answer: the statuses, and the headers and the body that the response of Envoy's client gets. `verdict`
/// has each limit at most once.
pub fn build_answer(
    request: &RequestContext<'_>,
    statuses: Vec<DescriptorStatus>,
    verdict: Option<&Verdict>,
) -> RateLimitResponse {
    let is_refused = verdict.is_some_and(|verdict| verdict.refused);
    let code = if is_refused { LimitCode::OverLimit } else { LimitCode::Ok };
    let (request_headers, metadata) = match (verdict, request.route) {
        (Some(verdict), Some((_, route))) if !is_refused => list_exceeded(verdict, &route.limits),
        _ => Default::default(),
    };
    let (headers, body) = verdict.map_or_else(Default::default, |verdict| build_client_response(request, verdict));
    RateLimitResponse {
        overall_code: code.into(),
        statuses,
        response_headers_to_add: list_headers(&headers),
        request_headers_to_add: request_headers,
        raw_body: body,
        dynamic_metadata: metadata,
    }
}

/// Names the limits that a request exceeds and that let it pass: in a header of the request, those that forward it, and
/// in the metadata also those in shadow mode.
fn list_exceeded(verdict: &Verdict, limits: &[Arc<Limit>]) -> (Vec<HeaderPair>, Option<Metadata>) {
    let name = |result: &LimitResult| limits[result.limit].listed_name();
    let exceeded: Vec<&str> = verdict.excesses(limits).map(name).collect();
    let shadow: Vec<&str> = verdict.refusals_of(limits, Mode::Shadow).map(name).collect();
    if exceeded.is_empty() && shadow.is_empty() {
        return Default::default();
    }
    let mut fields = Vec::new();
    for (key, names) in [("exceeded", &exceeded), ("would_refuse", &shadow)] {
        if !names.is_empty() {
            fields.push(MetadataField::of_texts(key, names.iter().copied()));
        }
    }
    let header = HeaderPair {
        key: Bytes::copy_from_slice(EXCEEDED_HEADER.as_str().as_bytes()),
        value: Bytes::from(exceeded.join(", ")),
        raw_value: Bytes::new(),
    };
    let headers = if exceeded.is_empty() { Vec::new() } else { vec![header] };
    (headers, Some(Metadata { fields }))
}

/// Builds what a client of the other proxy gets: the rate limit headers and, of a refused request, the whole response.
fn build_client_response(request: &RequestContext<'_>, verdict: &Verdict) -> (HeaderMap, Bytes) {
    let mut response = build_verdict_response(request, verdict);
    let body = response.body_mut().take_full().unwrap_or_default();
    (std::mem::take(response.headers_mut()), body)
}

/// Builds the response to a request with this verdict as the gateway itself would send it.
pub fn build_verdict_response(request: &RequestContext<'_>, verdict: &Verdict) -> Response<ResponseBody> {
    let view = request.view;
    let Some((index, route)) = request.route else {
        return Response::new(ResponseBody::full(Bytes::new()));
    };
    let mut response = match verdict.refused {
        true => {
            let format = ErrorFormat {
                format: PageFormat::Json,
                pages: None,
                request_id: None,
                hint: None,
                is_for_proxy: false,
                call_ids: &CallIds::Unknown,
            };
            Refusal::from(End::Exhausted).to_response(Some(route), Some(verdict), format)
        }
        false => Response::new(ResponseBody::full(Bytes::new())),
    };
    if verdict.refused {
        forbid_caching(&mut response);
    }
    let dialects = route.ratelimit_headers.as_ref().unwrap_or(&view.snapshot.config.ratelimit_headers);
    view.ratelimit.add_headers(&mut response, dialects, (index, route), verdict);
    // `Vary` describes how the gateway chose the format of this response. The client of the other proxy did not ask for
    // that format.
    [VARY, CONTENT_LENGTH].iter().for_each(|name| drop(response.headers_mut().remove(name)));
    response
}

/// Converts headers to fields of a message.
pub fn list_headers(headers: &HeaderMap) -> Vec<HeaderPair> {
    let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| HeaderPair {
        key: Bytes::copy_from_slice(name.as_str().as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        raw_value: Bytes::new(),
    };
    headers.iter().map(field).collect()
}
