//! Applies the limits of a route to a request, and computes the values that limits and `hash_on` read from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;

use crate::limiting::charges::guard::ChargeGuard;
use crate::limiting::decision::Op;
use crate::limiting::limit::Limit;
use crate::limiting::source::jwt::TokenClaims;
use crate::limiting::source::{Facts, SourceOrigin};
use crate::limiting::{Evaluation, Verdict, clock};
use crate::proxy::account::refusal::Refusal;
use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::steps::request_body::{self, KeyBody};
use crate::proxy::steps::response::refusal_record;
use crate::proxy::words::delay::DelaySlot;
use crate::proxy::words::shown_keys::ShownKeys;
use crate::route::Route;
use crate::upstream::hash;

/// The decision of limits, before it is applied to the request.
pub struct LimitDecision<'r> {
    /// The verdict of these limits and of those before them.
    verdict: Verdict,
    charges: Option<Box<ChargeGuard>>,
    shown: ShownKeys,
    delay: Option<LimitDelay<'r>>,
}

/// How long a limit delays a request that it admits.
struct LimitDelay<'r> {
    limit: &'r Limit,
    duration: Duration,
    slot: DelaySlot,
}

/// Applies the route's limits, unless the client is on the route's `allow` list. A request that a `leaky_bucket` delays
/// waits here.
pub async fn apply_limits(request: &mut RequestContext<'_>, routed: RoutedRequest<'_>) -> Result<(), Refusal> {
    let route = routed.route;
    let first = route.auth_limit_count();
    if first == route.limits.len() {
        return Ok(());
    }
    if route.allow.contains(routed.identity.ip) {
        request.account.record_bypass(first..route.limits.len());
        return Ok(());
    }
    let needs_claims = needs_claims(request, &route.limits[first..]);
    let body = read_key_body(request, routed, needs_claims).await?;
    let earlier = request.verdict.take();
    let mut facts = request_facts(request, routed, needs_claims);
    facts.body = body.facts();
    let evaluations = request.view.limiter.evaluate_all(&route.limits[first..], &facts);
    let decision = decide_limits(request, route, (first, evaluations), &facts, earlier).await;
    apply_decision(request, routed, decision).await?;
    if request.account.requests_usage() {
        body.set_include_usage(request, routed.head.path());
    }
    Ok(())
}

/// Applies the limits that `auth` lists, unless the client is on the route's `allow` list. They are decided before
/// credentials are verified, and do not know the identity.
pub async fn apply_auth_limits(request: &mut RequestContext<'_>, routed: RoutedRequest<'_>) -> Result<(), Refusal> {
    let route = routed.route;
    let listed = 0..route.auth_limit_count();
    if listed.is_empty() {
        return Ok(());
    }
    if route.allow.contains(routed.identity.ip) {
        request.account.record_bypass(listed);
        return Ok(());
    }
    let facts = request_facts(request, routed, false);
    let evaluations = request.view.limiter.evaluate_all(&route.limits[listed], &facts);
    let decision = decide_limits(request, route, (0, evaluations), &facts, None).await;
    apply_decision(request, routed, decision).await
}

/// Decides limits of the route by their evaluations, the first of which is for the limit at index `first`, and records
/// how long the request waits for a store outside this process. `earlier`: the verdict of the limits before them.
pub async fn decide_limits<'r>(
    request: &RequestContext<'_>,
    route: &'r Route,
    (first, evaluations): (usize, Vec<Evaluation>),
    facts: &Facts<'_>,
    earlier: Option<Verdict>,
) -> LimitDecision<'r> {
    let limits = &route.limits[first..first + evaluations.len()];
    let max_delayed = request.view.snapshot.config.server.max_delayed;
    let slots = &request.client.local.common.delay_slots;
    // The request reserves its waiting slot before the decision. Otherwise the store could assign a queue position to a
    // request that cannot wait.
    let (mut verdict, slot) = match slots.reserve(limits, &evaluations, max_delayed) {
        Ok(slot) => {
            let limiter = &request.view.limiter;
            let start = (!limiter.store().is_in_process()).then(Instant::now);
            let verdict = limiter.decide(Op::Take, limits, evaluations, true).await;
            start.into_iter().for_each(|start| request.account.add_wait(start));
            (verdict, slot)
        }
        Err(place) => (Verdict::queue_full(place), None),
    };
    let delay = verdict.delay_ms(limits).zip(slot).map(|((place, delay_ms), slot)| LimitDelay {
        limit: &limits[place],
        duration: Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0)),
        slot,
    });
    verdict.shift_indexes(first);
    request.account.count_decision(route, &verdict);
    let charges = verdict.guard.take();
    let verdict = match earlier {
        Some(earlier) => earlier.followed_by(verdict),
        None => verdict,
    };
    let display = &request.view.snapshot.config.admin.key_display;
    let shown = ShownKeys::describe(request.account.wanted_keys(), display, route, facts, &verdict);
    LimitDecision { verdict, charges, shown, delay }
}

/// Records a decision, and waits if a limit delays the request.
pub async fn apply_decision(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    decision: LimitDecision<'_>,
) -> Result<(), Refusal> {
    let LimitDecision { verdict, charges, shown, delay } = decision;
    let route = routed.route;
    request.account.hold_charges(charges);
    request.account.record_decision(route, &verdict, shown);
    let is_refused = verdict.refused;
    request.verdict = Some(verdict);
    if is_refused {
        refusal_record::record_refusal(request, routed);
        return Err(Refusal::Limited);
    }
    if let Some(LimitDelay { limit, duration, mut slot }) = delay {
        slot.keep_only(&limit.name);
        // No deadline is armed: the limit bounds the delay, and a client that disconnects ends it.
        let _waits = request.account.deadline().hold_back();
        let start = Instant::now();
        tokio::time::sleep(duration).await;
        request.account.add_wait(start);
    }
    request.account.end_delay();
    Ok(())
}

/// Returns whether the request may have claims, and one of `limits` reads them.
fn needs_claims(request: &RequestContext<'_>, limits: &[Arc<Limit>]) -> bool {
    let may_have_claims = request.claims.is_some() || request.view.snapshot.config.jwt.is_some();
    may_have_claims && limits.iter().any(|limit| limit.needs_claims())
}

/// Reads the request body if a limit that applies to the request reads it.
async fn read_key_body(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    needs_claims: bool,
) -> Result<KeyBody, Refusal> {
    let route = routed.route;
    let Some(max) = route.key_body.and_then(|max| usize::try_from(max).ok()) else { return Ok(KeyBody::None) };
    if !needs_key_body(route, &request_facts(request, routed, needs_claims)) {
        return Ok(KeyBody::None);
    }
    KeyBody::read(request, route, max).await
}

/// Returns whether a limit that applies to the request reads the body.
pub fn needs_key_body(route: &Route, facts: &Facts<'_>) -> bool {
    let needs_body = |limit: &Arc<Limit>| limit.reads_body_of(facts.path) && limit.applies_to(facts) == Ok(true);
    route.limits.iter().any(needs_body)
}

/// Returns the hash of the `hash_on` key of the upstream at `index`, which selects the server.
pub fn hash_key(request: &RequestContext<'_>, routed: RoutedRequest<'_>, index: usize) -> Option<u64> {
    let key = request.view.upstreams[index].hash_on()?;
    let needs_claims = key.sources().any(|source| source.kind().origin() == SourceOrigin::Token);
    hash::hash_key(key, &request_facts(request, routed, needs_claims))
}

/// Returns the facts that keys and conditions can read from the request, without its body.
pub fn request_facts<'f>(request: &'f RequestContext<'_>, routed: RoutedRequest<'f>, needs_claims: bool) -> Facts<'f> {
    let mut facts = head_facts(routed, &request.received.parts.headers);
    facts.claims = needs_claims.then(|| read_claims(request)).flatten();
    facts.certificate = request.client.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
    facts.user = request.user.as_deref();
    facts.body_length = request_body::find_length(request);
    facts
}

/// Returns the facts that the head of a request contains.
pub fn head_facts<'f>(routed: RoutedRequest<'f>, headers: &'f HeaderMap) -> Facts<'f> {
    let RoutedRequest { route, head, identity } = routed;
    Facts {
        method: head.method().as_str(),
        host: head.read_host(),
        path: head.path(),
        query: head.query(),
        params: &route.params,
        ..Facts::new(identity.ip, &route.name, headers)
    }
}

/// Returns the claims of the token that `auth` verified, or of the one that `[jwt]` verifies. Called only if a key
/// needs them, because verifying a signature is slow.
fn read_claims(request: &RequestContext<'_>) -> Option<TokenClaims> {
    if let Some(claims) = &request.claims {
        return Some(TokenClaims::One(claims.clone()));
    }
    let jwt = request.view.snapshot.config.jwt.as_ref()?;
    jwt.verify_request(&request.received.parts.headers, clock::now_ms() / 1000)
}
