//! The rate limit response fields, by dialect. Called by the tail of `gateway` for every answer
//! of a limited route, admitted or refused.

use std::fmt::Write;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::Dialect;
use crate::limit::Verdict;
use crate::limit::rule::{Answer, Limit, Mode, NEVER};
use crate::route::Route;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Adds the fields of each of `dialects`, replacing any that came from the upstream: only this
/// gateway knows both quotas, and a client must not read two.
pub fn describe(headers: &mut HeaderMap, dialects: &[Dialect], route: &Route, verdict: &Verdict) {
    for dialect in dialects {
        match dialect {
            Dialect::Draft11 => draft_11(headers, route, verdict),
        }
    }
}

/// draft-ietf-httpapi-ratelimit-headers-11: two lists of quoted policy names with parameters.
fn draft_11(headers: &mut HeaderMap, route: &Route, verdict: &Verdict) {
    let (mut policies, mut states) = (String::with_capacity(64), String::with_capacity(64));
    for (limit, answer) in shown(route, verdict) {
        let separator = if policies.is_empty() { "" } else { ", " };
        let policy = limit.rule.policy();
        // A policy name holds no character that a quoted string would escape.
        let _ = write!(policies, "{separator}\"{}\";q={};w={}", limit.name, policy.quota, seconds(policy.window_ms));
        let _ = write!(states, "{separator}\"{}\";r={};t={}", limit.name, answer.remaining, window_s(answer));
    }
    for (name, value) in [(RATELIMIT_POLICY, policies), (RATELIMIT, states)] {
        if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_maybe_shared(bytes::Bytes::from(value))) {
            headers.insert(name, value);
        }
    }
}

/// Enforced limits that answered; a shadow limit is the operator's business alone.
fn shown<'a>(route: &'a Route, verdict: &'a Verdict) -> impl Iterator<Item = (&'a Limit, &'a Answer)> {
    verdict
        .checks
        .iter()
        .filter_map(|checked| Some((&*route.limits[checked.limit], checked.outcome.answer()?)))
        .filter(|(limit, _)| limit.mode == Mode::Enforce)
}

/// Within this many seconds no more than the remaining quota should be used: the wait of a
/// refused request, else the time until the quota is whole again.
fn window_s(answer: &Answer) -> i64 {
    match answer.retry_ms {
        0 | NEVER => seconds(answer.reset_ms),
        wait_ms => seconds(wait_ms),
    }
}

/// Whole seconds, rounded up, at least 1.
fn seconds(ms: i64) -> i64 {
    (ms.div_euclid(1000) + i64::from(ms % 1000 != 0)).max(1)
}
