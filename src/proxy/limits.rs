//! Applies the limits of a route to a request, and computes the values that limits and `hash_on` read from it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::limiting::decision::Op;
use crate::limiting::jwt::TokenClaims;
use crate::limiting::limit::Limit;
use crate::limiting::source::{BodyFacts, Facts, SourceOrigin};
use crate::limiting::{Evaluation, Verdict, clock};
use crate::proxy::request_body::KeyBody;
use crate::proxy::request_context::{RequestContext, RoutedRequest};
use crate::proxy::response::refusal::Refusal;
use crate::route::Route;
use crate::upstream::hash;

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
    let needs_claims = route.limits[first..].iter().any(|limit| limit.needs_claims());
    let body = read_key_body(request, routed, needs_claims).await?;
    let facts = Facts { body: body.facts(), ..request_facts(request, routed, needs_claims) };
    let evaluations = request.view.limiter.evaluate_all(&route.limits[first..], &facts);
    decide_limits(request, route, first..route.limits.len(), evaluations).await
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
    let evaluations = request.view.limiter.evaluate_all(route.auth_limits(), &facts);
    decide_limits(request, route, listed, evaluations).await
}

/// Decides the limits of the route in `range`, with one evaluation for each.
async fn decide_limits(
    request: &mut RequestContext<'_>,
    route: &Route,
    range: Range<usize>,
    evaluations: Vec<Evaluation>,
) -> Result<(), Refusal> {
    let limits = &route.limits[range.clone()];
    let max_delayed = request.view.snapshot.config.server.max_delayed;
    let slots = &request.client.local.common.delay_slots;
    // The request reserves its waiting slot before the decision. Otherwise the store could assign a queue position to a
    // request that cannot wait.
    let (mut verdict, seat) = match slots.reserve(limits, &evaluations, max_delayed) {
        Ok(seat) => (request.view.limiter.decide(Op::Take, limits, evaluations, true).await, seat),
        Err(place) => (Verdict::queue_full(place), None),
    };
    let delay = verdict.delay_ms(limits).zip(seat);
    verdict.shift_indexes(range.start);
    request.account.count_decision(route, &verdict);
    request.account.hold_charges(verdict.guard.take());
    let is_refused = verdict.refused;
    let verdict = match request.verdict.take() {
        Some(earlier) => earlier.followed_by(verdict),
        None => verdict,
    };
    request.account.record_decision(route, &verdict);
    request.verdict = Some(verdict);
    if is_refused {
        return Err(Refusal::Limited);
    }
    if let Some(((place, delay_ms), mut seat)) = delay {
        seat.keep_only(&limits[place].name);
        // No deadline is armed: the limit bounds the delay, and a client that disconnects ends it.
        let _waits = request.account.deadline().hold_back();
        tokio::time::sleep(Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0))).await;
    }
    request.account.end_delay();
    Ok(())
}

/// Reads the request body if a limit that applies to the request reads its key from the body.
async fn read_key_body(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    needs_claims: bool,
) -> Result<KeyBody, Refusal> {
    let route = routed.route;
    let Some(max) = route.key_body else { return Ok(KeyBody::None) };
    let facts = request_facts(request, routed, needs_claims);
    let needs_body = |limit: &Arc<Limit>| limit.key.reads_body() && limit.applies_to(&facts) == Ok(true);
    if !route.limits.iter().any(needs_body) {
        return Ok(KeyBody::None);
    }
    KeyBody::read(request, route, max).await
}

/// Returns the hash of the `hash_on` key of the upstream at `index`, which selects the server.
pub fn hash_key(request: &RequestContext<'_>, routed: RoutedRequest<'_>, index: usize) -> Option<u64> {
    let key = request.view.upstreams[index].hash_on()?;
    let needs_claims = key.sources().any(|source| source.kind().origin() == SourceOrigin::Token);
    hash::hash_key(key, &request_facts(request, routed, needs_claims))
}

/// Returns the facts that keys and conditions can read from the request, without its body.
fn request_facts<'f>(request: &'f RequestContext<'_>, routed: RoutedRequest<'f>, needs_claims: bool) -> Facts<'f> {
    let RoutedRequest { route, head, identity } = routed;
    let parts = &request.received.parts;
    Facts {
        client: identity.ip,
        method: head.method().as_str(),
        host: head.read_host(),
        path: head.path(),
        query: head.query(),
        headers: &parts.headers,
        route: &route.name,
        params: &route.params,
        claims: needs_claims.then(|| read_claims(request)).flatten(),
        certificate: request.client.tls.as_ref().and_then(|tls| tls.certificate.as_ref()),
        user: request.user.as_deref(),
        body: BodyFacts::None,
    }
}

/// Returns the claims of the token that `auth` verified, or of the one that `[jwt]` verifies. Called only if a key needs
/// them, because verifying a signature is slow.
fn read_claims(request: &RequestContext<'_>) -> Option<TokenClaims> {
    if let Some(claims) = &request.claims {
        return Some(TokenClaims::One(claims.clone()));
    }
    let jwt = request.view.snapshot.config.jwt.as_ref()?;
    jwt.verify_request(&request.received.parts.headers, clock::now_ms() / 1000)
}
