//! Rate limit headers (`RateLimit`, `RateLimit-Policy`, `X-RateLimit-*`) in the configured dialects. Every response of
//! a route with limits gets them, whether the request was admitted or refused.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::limiting::algorithm::Rule;
use crate::limiting::answer::{Answer, NEVER, Policy};
use crate::limiting::clock;
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::{ChainState, LimitResult, Verdict};
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

/// Largest integer of structured fields (RFC 9651): 15 digits.
const INTEGER_MAX: i64 = 999_999_999_999_999;

/// Caches the value of `RateLimit-Policy` by route index, because most responses of a route have the same value. Valid
/// for one config.
#[derive(Default)]
pub struct PolicyCache {
    policies: RefCell<BTreeMap<usize, HeaderValue>>,
    /// Buffer for the value of `RateLimit`, so that each response allocates no more than the value.
    states: RefCell<String>,
}

impl PolicyCache {
    /// Adds the headers of each of `dialects`. They replace those of an upstream server, as a client must not read two
    /// quotas.
    ///
    /// A redirect gets none: a client that reads a small remaining quota might not follow it.
    pub fn add_headers<B>(
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
                Dialect::Draft11 => self.write_draft_11(headers, place, route, verdict),
                Dialect::Draft07 => write_draft_07(headers, route, verdict),
                Dialect::Draft03 => write_draft_03(headers, route, verdict),
                Dialect::Legacy => write_legacy(headers, route, verdict),
                Dialect::Epoch => {
                    write_epoch(headers, route, verdict, verdict.decided_ms.unwrap_or_else(clock::now_ms))
                }
            }
        }
    }

    /// draft-ietf-httpapi-ratelimit-headers-11: two lists of quoted policy names with parameters.
    fn write_draft_11(&self, headers: &mut HeaderMap, place: usize, route: &Route, verdict: &Verdict) {
        let mut states = self.states.borrow_mut();
        states.clear();
        for (limit, rule, answer) in shown_limits(route, verdict) {
            let window_s = match counts_requests_in_flight(limit) {
                true => wait_s(answer),
                false => effective_window_s(rule.policy(), answer),
            };
            push_name(&mut states, &limit.name);
            push_parameter(&mut states, "r", answer.remaining.min(INTEGER_MAX));
            push_parameter(&mut states, "t", window_s);
        }
        if states.is_empty() {
            return;
        }
        if is_cacheable(route, verdict) {
            let mut cache = self.policies.borrow_mut();
            let policies = cache.entry(place).or_insert_with(|| header_value(draft_11_policies(route, verdict)));
            headers.insert(RATELIMIT_POLICY, policies.clone());
        } else {
            headers.insert(RATELIMIT_POLICY, header_value(draft_11_policies(route, verdict)));
        }
        headers.insert(RATELIMIT, HeaderValue::from_str(&states).unwrap_or(HeaderValue::from_static("")));
    }
}

/// Returns true if the policies of this response are the route's usual ones, so that they can be cached. They are not
/// if a limit gave no answer, if an override changed it, for calendar windows, whose length varies, or if a limit has
/// tiers.
fn is_cacheable(route: &Route, verdict: &Verdict) -> bool {
    let usual = |checked: &LimitResult| {
        checked.chain_state == ChainState::InForce
            && checked.override_rule.is_none()
            && checked.outcome.answer().is_some()
            && !route.limits[checked.limit].rule.is_calendar()
            && route.limits[checked.limit].tier_of.is_none()
    };
    verdict.checks.len() == route.limits.len() && verdict.checks.iter().all(usual)
}

/// Returns the value of `RateLimit-Policy` in draft 11.
fn draft_11_policies(route: &Route, verdict: &Verdict) -> String {
    let mut policies = String::with_capacity(64);
    for (limit, rule, _) in shown_limits(route, verdict) {
        let policy = rule.policy();
        push_name(&mut policies, &limit.name);
        push_parameter(&mut policies, "q", policy.quota.min(INTEGER_MAX));
        if counts_requests_in_flight(limit) {
            policies.push_str(";qu=\"concurrent-requests\"");
        } else {
            push_parameter(&mut policies, "w", ceil_seconds(policy.window_ms));
        }
    }
    policies
}

/// Starts a list member with a quoted policy name. The config allows no characters that need escaping.
fn push_name(list: &mut String, name: &str) {
    list.push_str(if list.is_empty() { "\"" } else { ", \"" });
    list.push_str(name);
    list.push('"');
}

fn push_parameter(text: &mut String, parameter: &str, value: i64) {
    text.push(';');
    text.push_str(parameter);
    text.push('=');
    // `write!` would cost several times as much, for every response of a route with limits.
    text.push_str(itoa::Buffer::new().format(value));
}

/// Returns the effective window in seconds: the client should spend what remains within that time.
///
/// The window is never so short that spending the rest would exceed the rate of the policy. Otherwise, the headers
/// would invite a client that returns late in a window to spend all that is left in the last seconds. Example: 500 of
/// 1,000 per hour remain 10 seconds before the end; the window is 1,800 s, not 10 s. A refused client has to wait
/// first, and its window ends with the wait.
fn effective_window_s(policy: Policy, answer: &Answer) -> i64 {
    let wait_s = wait_s(answer);
    if !answer.admitted {
        return wait_s;
    }
    let (remaining, window_s, quota) = (answer.remaining.max(0), ceil_seconds(policy.window_ms), policy.quota.max(1));
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

/// Draft 07: the state of one limit, and all policies by their window.
fn write_draft_07(headers: &mut HeaderMap, route: &Route, verdict: &Verdict) {
    let Some(state) = NarrowestLimit::find(route, verdict) else { return };
    let NarrowestLimit { limit, remaining, reset_s, .. } = state;
    headers.insert(RATELIMIT_POLICY, header_value(format_policies(route, verdict)));
    headers.insert(RATELIMIT, header_value(format!("limit={limit}, remaining={remaining}, reset={reset_s}")));
}

/// Draft 03: the same in three headers.
fn write_draft_03(headers: &mut HeaderMap, route: &Route, verdict: &Verdict) {
    let Some(state) = NarrowestLimit::find(route, verdict) else { return };
    let limit = format!("{}, {}", state.limit, format_policies(route, verdict));
    state.write(headers, &DRAFT_03, limit);
}

/// The `X-RateLimit-*` headers of most gateways: plain numbers. The reset is in seconds from now, as most of them have
/// it, so that the client's clock does not matter.
fn write_legacy(headers: &mut HeaderMap, route: &Route, verdict: &Verdict) {
    let Some(state) = NarrowestLimit::find(route, verdict) else { return };
    let limit = state.limit.to_string();
    state.write(headers, &LEGACY, limit);
}

/// The same headers with the reset as a time, in seconds since 1970, as GitHub sends it. The store reports how long the
/// reset takes, and the wall clock of this gateway at the decision turns that into a time: the clock of the store does not
/// matter, nor how long the response takes.
fn write_epoch(headers: &mut HeaderMap, route: &Route, verdict: &Verdict, decided_ms: i64) {
    let Some(state) = NarrowestLimit::find(route, verdict) else { return };
    let limit = state.limit.to_string();
    let reset_ms = decided_ms.saturating_add(state.reset_ms);
    // A store that takes a moment makes the time earlier, so a window that ends on a whole second is shown to end then.
    NarrowestLimit { reset_s: ceil_seconds(reset_ms), ..state }.write(headers, &LEGACY, limit);
}

/// State of the one limit that the older dialects show: the one that refuses for longest, else the one with the
/// smallest share of its quota left.
struct NarrowestLimit {
    limit: i64,
    remaining: i64,
    reset_s: i64,
    reset_ms: i64,
}

impl NarrowestLimit {
    fn find(route: &Route, verdict: &Verdict) -> Option<NarrowestLimit> {
        let states = windowed_limits(route, verdict).map(|(rule, answer)| (rule.policy().quota.max(1), answer));
        let (limit, answer) = states.min_by(|(quota, answer), (other_quota, other)| {
            let share = i128::from(answer.remaining) * i128::from(*other_quota);
            let other_share = i128::from(other.remaining) * i128::from(*quota);
            refusal_ms(other).cmp(&refusal_ms(answer)).then(share.cmp(&other_share))
        })?;
        Some(NarrowestLimit {
            limit: limit.min(INTEGER_MAX),
            remaining: answer.remaining.min(INTEGER_MAX),
            reset_s: wait_s(answer),
            reset_ms: wait_ms(answer),
        })
    }

    fn write(&self, headers: &mut HeaderMap, names: &[HeaderName; 3], limit: String) {
        let [limit_name, remaining_name, reset_name] = names.clone();
        headers.insert(limit_name, header_value(limit));
        headers.insert(remaining_name, HeaderValue::from(self.remaining));
        headers.insert(reset_name, HeaderValue::from(self.reset_s));
    }
}

/// Returns how long a limit refuses, in milliseconds. 0 if it admitted the request.
fn refusal_ms(answer: &Answer) -> i64 {
    match answer {
        Answer { admitted: true, .. } => 0,
        Answer { retry_ms: NEVER, .. } => i64::MAX,
        Answer { retry_ms, .. } => *retry_ms,
    }
}

/// Returns the policies by their window, as `10;w=1, 500;w=3600`.
fn format_policies(route: &Route, verdict: &Verdict) -> String {
    let mut text = String::with_capacity(32);
    for (rule, _) in windowed_limits(route, verdict) {
        let separator = if text.is_empty() { "" } else { ", " };
        let policy = rule.policy();
        let _ = write!(text, "{separator}{};w={}", policy.quota.min(INTEGER_MAX), ceil_seconds(policy.window_ms));
    }
    text
}

/// Returns the limits with a window. Concurrency limits have none, and only draft 11 has a unit for them.
fn windowed_limits<'a>(route: &'a Route, verdict: &'a Verdict) -> impl Iterator<Item = (&'a Rule, &'a Answer)> {
    shown_limits(route, verdict)
        .filter(|(limit, ..)| !counts_requests_in_flight(limit))
        .map(|(_, rule, answer)| (rule, answer))
}

/// Returns the limits to show: enforced ones that gave an answer. Shadow limits concern only the operator. Of a chain
/// of limits (`after`), the one in effect is shown, and of the tiers of a limit the tightest.
fn shown_limits<'a>(route: &'a Route, verdict: &'a Verdict) -> impl Iterator<Item = (&'a Limit, &'a Rule, &'a Answer)> {
    verdict
        .checks
        .iter()
        .filter(|checked| checked.chain_state == ChainState::InForce)
        .filter_map(|checked| {
            let limit = &*route.limits[checked.limit];
            Some((limit, checked.override_rule.as_deref().unwrap_or(&limit.rule), checked.outcome.answer()?))
        })
        .filter(|(limit, ..)| limit.mode == Mode::Enforce)
        .filter(move |(limit, ..)| limit.tier_of.is_none() || is_tightest_tier(route, verdict, limit))
}

/// Returns whether no other tier of the same limit refuses for longer or leaves less. Among equals, the first counts.
fn is_tightest_tier(route: &Route, verdict: &Verdict, tier: &Limit) -> bool {
    let tiers = verdict.checks.iter().filter_map(|checked| {
        let limit = &*route.limits[checked.limit];
        let answer = checked.outcome.answer().filter(|_| limit.tier_of == tier.tier_of)?;
        Some((limit, Reverse(refusal_ms(answer)), answer.remaining))
    });
    let tightest = tiers.min_by_key(|(_, refusal_ms, remaining)| (*refusal_ms, *remaining));
    tightest.is_some_and(|(limit, ..)| limit.name == tier.name)
}

fn counts_requests_in_flight(limit: &Limit) -> bool {
    limit.rule.lease_ms().is_some()
}

/// Returns the wait of a refused request, which is also its `Retry-After`. For an admitted request, returns the time
/// until the quota is full again.
fn wait_s(answer: &Answer) -> i64 {
    ceil_seconds(wait_ms(answer))
}

fn wait_ms(answer: &Answer) -> i64 {
    match answer {
        Answer { admitted: false, retry_ms, .. } if *retry_ms != NEVER => *retry_ms,
        _ => answer.reset_ms,
    }
}

/// Converts milliseconds to whole seconds, rounded up and at least 1.
pub fn ceil_seconds(ms: i64) -> i64 {
    (ms.div_euclid(1000) + i64::from(ms % 1000 != 0)).clamp(1, INTEGER_MAX)
}

/// Converts to a header value. The text has only names and numbers, so the fallback is never used.
fn header_value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or(HeaderValue::from_static(""))
}
