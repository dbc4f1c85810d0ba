//! The rate limit response fields, by dialect. Called by the tail of `gateway` for every answer
//! of a limited route, admitted or refused.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::limit::algo::Rule;
use crate::limit::answer::{Answer, NEVER, Policy};
use crate::limit::limits::{Limit, Mode};
use crate::limit::{Checked, Standing, Verdict};
use crate::route::{Dialect, Route};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const DRAFT_03: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Structured fields hold no integer of more digits.
const INTEGER_MAX: i64 = 999_999_999_999_999;

/// What answers of a route say alike, by the place of the route; for one config.
#[derive(Default)]
pub struct Policies(RefCell<BTreeMap<usize, HeaderValue>>);

impl Policies {
    /// Adds the fields of each of `dialects`, replacing any that came from the upstream: only this
    /// gateway knows both quotas, and a client must not read two.
    ///
    /// A redirect gets none: a client that finds little left there would not follow it.
    pub fn describe<B>(
        &self,
        response: &mut Response<B>,
        dialects: &[Dialect],
        (place, route): (usize, &Route),
        verdict: &Verdict,
    ) {
        let redirect = response.status().is_redirection() && response.status() != StatusCode::NOT_MODIFIED;
        if redirect {
            return;
        }
        let headers = response.headers_mut();
        for dialect in dialects {
            match dialect {
                Dialect::Draft11 => self.draft_11(headers, place, route, verdict),
                Dialect::Draft07 => draft_07(headers, route, verdict),
                Dialect::Draft03 => draft_03(headers, route, verdict),
                Dialect::Legacy => legacy(headers, route, verdict),
            }
        }
    }

    /// draft-ietf-httpapi-ratelimit-headers-11: two lists of quoted policy names with parameters.
    fn draft_11(&self, headers: &mut HeaderMap, place: usize, route: &Route, verdict: &Verdict) {
        let mut states = String::with_capacity(64);
        for (limit, rule, answer) in shown(route, verdict) {
            let window_s = match counts_requests_in_flight(limit) {
                true => wait_s(answer),
                false => window_s(rule.policy(), answer),
            };
            named(&mut states, &limit.name);
            number(&mut states, "r", answer.remaining.min(INTEGER_MAX));
            number(&mut states, "t", window_s);
        }
        if states.is_empty() {
            return;
        }
        if is_usual(route, verdict) {
            let mut known = self.0.borrow_mut();
            let policies = known.entry(place).or_insert_with(|| value(policies_11(route, verdict)));
            headers.insert(RATELIMIT_POLICY, policies.clone());
        } else {
            headers.insert(RATELIMIT_POLICY, value(policies_11(route, verdict)));
        }
        headers.insert(RATELIMIT, value(states));
    }
}

/// Every limit of the route has answered, each by its own numbers. Those of a calendar change with its
/// windows: not every month has as many days.
fn is_usual(route: &Route, verdict: &Verdict) -> bool {
    let usual = |checked: &Checked| {
        checked.standing == Standing::InForce
            && checked.own.is_none()
            && checked.outcome.answer().is_some()
            && !route.limits[checked.limit].rule.is_calendar()
    };
    verdict.checks.len() == route.limits.len() && verdict.checks.iter().all(usual)
}

fn policies_11(route: &Route, verdict: &Verdict) -> String {
    let mut policies = String::with_capacity(64);
    for (limit, rule, _) in shown(route, verdict) {
        let policy = rule.policy();
        named(&mut policies, &limit.name);
        number(&mut policies, "q", policy.quota.min(INTEGER_MAX));
        if counts_requests_in_flight(limit) {
            policies.push_str(";qu=\"concurrent-requests\"");
        } else {
            number(&mut policies, "w", seconds(policy.window_ms));
        }
    }
    policies
}

/// A policy name holds no character that a quoted string would escape.
fn named(list: &mut String, name: &str) {
    list.push_str(if list.is_empty() { "\"" } else { ", \"" });
    list.push_str(name);
    list.push('"');
}

fn number(text: &mut String, parameter: &str, value: i64) {
    text.push(';');
    text.push_str(parameter);
    text.push('=');
    // Every answer of a limited route passes here; formatting by `write!` costs several times as much.
    text.push_str(itoa::Buffer::new().format(value));
}

/// The effective window: "use no more than so much within so many seconds", never faster than the
/// policy itself, or a client that comes back late in a window would be told to spend all that is
/// left in the seconds left. A refused client has to wait first, and its window ends with the wait.
fn window_s(policy: Policy, answer: &Answer) -> i64 {
    let wait_s = wait_s(answer);
    if !answer.admitted {
        return wait_s;
    }
    let (remaining, window_s, quota) = (answer.remaining.max(0), seconds(policy.window_ms), policy.quota.max(1));
    let spread_s = match remaining.checked_mul(window_s) {
        Some(product) => product / quota + i64::from(product % quota != 0),
        None => {
            let product = i128::from(remaining) * i128::from(window_s);
            let rounded = (product + i128::from(quota) - 1) / i128::from(quota);
            i64::try_from(rounded).unwrap_or(INTEGER_MAX)
        }
    };
    wait_s.max(spread_s.min(INTEGER_MAX))
}

/// Draft 07: one state, and all policies by their window.
fn draft_07(headers: &mut HeaderMap, route: &Route, verdict: &Verdict) {
    let Some(state) = Narrowest::of(route, verdict) else { return };
    let Narrowest { limit, remaining, reset_s } = state;
    headers.insert(RATELIMIT_POLICY, value(policies(route, verdict)));
    headers.insert(RATELIMIT, value(format!("limit={limit}, remaining={remaining}, reset={reset_s}")));
}

/// Draft 03: the same in three fields.
fn draft_03(headers: &mut HeaderMap, route: &Route, verdict: &Verdict) {
    let Some(state) = Narrowest::of(route, verdict) else { return };
    let limit = format!("{}, {}", state.limit, policies(route, verdict));
    state.write(headers, &DRAFT_03, limit);
}

/// The `X-` fields of most gateways: plain numbers, the reset in seconds from now, as most of them
/// have it (and as no clock of a client can get wrong).
fn legacy(headers: &mut HeaderMap, route: &Route, verdict: &Verdict) {
    let Some(state) = Narrowest::of(route, verdict) else { return };
    let limit = state.limit.to_string();
    state.write(headers, &LEGACY, limit);
}

/// What the dialects show that know one limit only: the one that refuses for longest, else the one
/// with the smallest share left.
struct Narrowest {
    limit: i64,
    remaining: i64,
    reset_s: i64,
}

impl Narrowest {
    fn of(route: &Route, verdict: &Verdict) -> Option<Narrowest> {
        let states = windowed(route, verdict).map(|(rule, answer)| (rule.policy().quota.max(1), answer));
        let (limit, answer) = states.min_by(|(quota, answer), (other_quota, other)| {
            let share = i128::from(answer.remaining) * i128::from(*other_quota);
            let other_share = i128::from(other.remaining) * i128::from(*quota);
            refused_for(other).cmp(&refused_for(answer)).then(share.cmp(&other_share))
        })?;
        Some(Narrowest {
            limit: limit.min(INTEGER_MAX),
            remaining: answer.remaining.min(INTEGER_MAX),
            reset_s: wait_s(answer),
        })
    }

    fn write(&self, headers: &mut HeaderMap, names: &[HeaderName; 3], limit: String) {
        let [limit_name, remaining_name, reset_name] = names.clone();
        headers.insert(limit_name, value(limit));
        headers.insert(remaining_name, HeaderValue::from(self.remaining));
        headers.insert(reset_name, HeaderValue::from(self.reset_s));
    }
}

/// 0 of an admitted request.
fn refused_for(answer: &Answer) -> i64 {
    match answer {
        Answer { admitted: true, .. } => 0,
        Answer { retry_ms: NEVER, .. } => i64::MAX,
        Answer { retry_ms, .. } => *retry_ms,
    }
}

/// `10;w=1, 500;w=3600`.
fn policies(route: &Route, verdict: &Verdict) -> String {
    let mut text = String::with_capacity(32);
    for (rule, _) in windowed(route, verdict) {
        let separator = if text.is_empty() { "" } else { ", " };
        let policy = rule.policy();
        let _ = write!(text, "{separator}{};w={}", policy.quota.min(INTEGER_MAX), seconds(policy.window_ms));
    }
    text
}

/// Only draft 11 has a unit for requests in flight.
fn windowed<'a>(route: &'a Route, verdict: &'a Verdict) -> impl Iterator<Item = (&'a Rule, &'a Answer)> {
    shown(route, verdict)
        .filter(|(limit, ..)| !counts_requests_in_flight(limit))
        .map(|(_, rule, answer)| (rule, answer))
}

/// Enforced limits that answered; a shadow limit is the operator's business alone. Of limits that
/// come one after another, the one in force.
fn shown<'a>(route: &'a Route, verdict: &'a Verdict) -> impl Iterator<Item = (&'a Limit, &'a Rule, &'a Answer)> {
    verdict
        .checks
        .iter()
        .filter(|checked| checked.standing == Standing::InForce)
        .filter_map(|checked| {
            let limit = &*route.limits[checked.limit];
            Some((limit, checked.own.as_deref().unwrap_or(&limit.rule), checked.outcome.answer()?))
        })
        .filter(|(limit, ..)| limit.mode == Mode::Enforce)
}

fn counts_requests_in_flight(limit: &Limit) -> bool {
    limit.rule.lease_ms().is_some()
}

/// The wait of a refused request, which is also its Retry-After, else the time until the quota is
/// whole again.
fn wait_s(answer: &Answer) -> i64 {
    match answer {
        Answer { admitted: false, retry_ms, .. } if *retry_ms != NEVER => seconds(*retry_ms),
        _ => seconds(answer.reset_ms),
    }
}

/// Whole seconds, rounded up, at least 1.
pub fn seconds(ms: i64) -> i64 {
    (ms.div_euclid(1000) + i64::from(ms % 1000 != 0)).clamp(1, INTEGER_MAX)
}

/// Of names and numbers, so the stand-in is never used.
fn value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or(HeaderValue::from_static(""))
}
