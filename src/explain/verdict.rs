//! Describes the end of an explanation: whether the request passes, and which limit decides that.

use std::sync::Arc;

use crate::ends::End;
use crate::explain::explanation::{LimitEffect, LimitReport, PREFLIGHT, RequestDecision, VerdictReport};
use crate::explain::walk::Findings;
use crate::limiting::Verdict;
use crate::limiting::answer::NEVER;
use crate::limiting::limit::Limit;
use crate::limiting::limit::over::Over;
use crate::proxy::steps::response::problem;
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;

/// Describes a head that the parser rejects.
pub fn describe_rejected_head(end: End) -> VerdictReport {
    VerdictReport {
        detail: "the parser rejects the request line or a header".to_owned(),
        ..report_end(RequestDecision::Reject, end)
    }
}

/// Reports how the request ends.
fn report_end(decision: RequestDecision, end: End) -> VerdictReport {
    VerdictReport {
        decision: decision.label().to_owned(),
        status: Some(end.status().as_u16()),
        reason: Some(end.label().to_owned()),
        setting: end.row().setting.map(str::to_owned),
        ..VerdictReport::default()
    }
}

/// Describes the verdict of an admitted request.
pub fn describe_admission(found: &Findings, route: Option<&Route>, status: Option<u16>) -> VerdictReport {
    let limits = route.map_or(&[][..], |route| &route.limits);
    let delay = found.admission.verdict.as_ref().and_then(|verdict| verdict.delay_ms(limits));
    let excess = found.admission.verdict.as_ref().and_then(|verdict| find_exceeded(verdict, limits));
    let decision = match (excess, delay) {
        (Some((_, decision)), _) => decision,
        (None, Some(_)) => RequestDecision::Delay,
        (None, None) => found.decision,
    };
    let is_unknown = |limit: &LimitReport| limit.effect == LimitEffect::Unknown.label();
    let has_unknown = found.explanation.limits.iter().any(is_unknown);
    let is_preflight = found.explanation.action.as_ref().is_some_and(|action| action.kind == PREFLIGHT);
    let detail = match (decision, delay) {
        _ if is_preflight => "the gateway answers the preflight, before `deny`, `auth` and limits".to_owned(),
        (RequestDecision::Annotate, _) => "it is over the limit, and is forwarded with x-limit-exceeded".to_owned(),
        (RequestDecision::Divert, _) => {
            "it is over the limit, and is forwarded to another upstream with x-limit-exceeded".to_owned()
        }
        (_, Some((place, delay_ms))) => format!("limit {} delays it by {delay_ms} ms", limits[place].name),
        (RequestDecision::Bypass, _) => "the client is on the route's `allow` list, so no limit applies".to_owned(),
        _ if has_unknown => "the limits that are known admit it".to_owned(),
        _ if limits.is_empty() => "no limit applies".to_owned(),
        _ => "all limits admit it".to_owned(),
    };
    VerdictReport {
        decision: decision.label().to_owned(),
        status,
        limit: excess.map(|(place, _)| place).or(delay.map(|(place, _)| place)).map(|place| limits[place].name.clone()),
        delay_ms: delay.map(|(_, delay_ms)| delay_ms),
        detail,
        ..VerdictReport::default()
    }
}

/// Returns the limit that decides how a request over limits is forwarded, and how: the first that diverts it, or the
/// first that annotates it.
fn find_exceeded(verdict: &Verdict, limits: &[Arc<Limit>]) -> Option<(usize, RequestDecision)> {
    let places = verdict.excesses(limits).map(|checked| match &limits[checked.limit].over {
        Over::Divert(_) => (checked.limit, RequestDecision::Divert),
        Over::Refuse | Over::Delay | Over::Annotate => (checked.limit, RequestDecision::Annotate),
    });
    places.min_by_key(|(place, decision)| (*decision != RequestDecision::Divert, *place))
}

/// Describes the verdict of a request that was refused at `now_ms`.
pub fn describe_refusal(found: &Findings, route: Option<&Route>, refusal: &Refusal, now_ms: i64) -> VerdictReport {
    let decision = match refusal.end {
        End::NoRoute => RequestDecision::NoRoute,
        End::Denied => RequestDecision::Deny,
        End::CredentialsMissing | End::CredentialsInvalid => RequestDecision::Unauthorized,
        end if end.is_by_limit() => RequestDecision::Refuse,
        _ => RequestDecision::Reject,
    };
    let refusing = found.admission.verdict.as_ref().zip(route).filter(|_| refusal.end.is_by_limit());
    let refusing = refusing.and_then(|(verdict, route)| Some((route, verdict.longest_refusal(&route.limits)?)));
    let end = refusing.map_or(refusal.end, |(_, checked)| checked.outcome.end());
    let mut report = VerdictReport { detail: refusal.detail().to_owned(), ..report_end(decision, end) };
    let Some((route, checked)) = refusing else { return report };
    let limit = &route.limits[checked.limit];
    let status = problem::limit_refusal_status(limit.refusal_response(&route.refuse), checked.outcome);
    report.status = Some(status.as_u16());
    report.limit = Some(limit.name.clone());
    report.detail = problem::refusal_title(checked.outcome, limit).into_owned();
    report.retry_after_ms =
        checked.outcome.answer().map(|answer| answer.retry_ms).filter(|retry_ms| *retry_ms != NEVER);
    report.passes_at = report.retry_after_ms.and_then(|retry_ms| format_instant(now_ms.checked_add(retry_ms)?));
    report
}

/// Formats a time, in ms since 1970.
pub fn format_instant(ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(ms).ok().map(|instant| instant.to_string())
}
