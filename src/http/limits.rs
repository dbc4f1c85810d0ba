//! A request at the limits of its route: what is asked of them, and what their verdict does to it. Called
//! by `gateway`.

use std::sync::Arc;
use std::time::Duration;

use crate::http::answer::refusal::Refusal;
use crate::http::downstream::gate::Admitted;
use crate::http::downstream::identity::Identity;
use crate::http::key_body::KeyBody;
use crate::http::under_way::RequestUnderWay;
use crate::limit::decision::Op;
use crate::limit::jwt::TokenClaims;
use crate::limit::limits::Limit;
use crate::limit::source::{BodyFacts, Facts, SourceOrigin};
use crate::limit::{Verdict, clock};
use crate::route::{Action, Route};
use crate::upstream::hash;

/// Asks the route's limits, unless the client is on its `allow` list.
pub async fn ask(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    admitted: &Admitted,
    identity: &Identity,
) -> Result<(), Refusal> {
    if route.allow.contains(identity.ip) {
        exchange.account.bypassed();
        return Ok(());
    }
    let needs_claims = route.limits.iter().any(|limit| limit.needs_claims());
    let body = body(exchange, route, admitted, identity, needs_claims).await?;
    let facts = Facts { body: body.facts(), ..facts(exchange, route, admitted, identity, needs_claims) };
    let asks = exchange.view.limiter.asks(&route.limits, &facts);
    let limiter = &exchange.view.limiter;
    let max_delayed = exchange.view.snapshot.config.server.max_delayed;
    let (mut verdict, seat) = match exchange.client.local.common.waiting.seat_for(&asks, max_delayed) {
        Ok(seat) => (limiter.decide_asks(Op::Take, &route.limits, asks, true).await, seat),
        Err(place) => (Verdict::without_seat(place), None),
    };
    let turn = verdict.delay_ms(&route.limits).zip(seat);
    exchange.account.decided(route, &verdict);
    exchange.account.hold(verdict.held.take());
    let refused = verdict.refused;
    exchange.verdict = Some(verdict);
    if refused {
        return Err(Refusal::Limited);
    }
    if let Some(((place, delay_ms), mut seat)) = turn {
        seat.wait_for(&route.limits[place].name);
        // No deadline is armed: the limit bounds the wait, and a client that leaves ends it.
        let _waits = exchange.account.deadline().hold_back();
        tokio::time::sleep(Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0))).await;
    }
    exchange.account.go_on();
    Ok(())
}

/// What is read of the body for the limits that go by it, if one of them applies.
async fn body(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    admitted: &Admitted,
    identity: &Identity,
    needs_claims: bool,
) -> Result<KeyBody, Refusal> {
    let Some(max) = route.key_body else { return Ok(KeyBody::None) };
    let facts = facts(exchange, route, admitted, identity, needs_claims);
    let applies = |limit: &Arc<Limit>| limit.key.reads_body() && limit.applies(&facts) == Ok(true);
    if !route.limits.iter().any(applies) {
        return Ok(KeyBody::None);
    }
    KeyBody::read(exchange, route, max).await
}

/// What says which server of the route's upstream the request gets, as a number.
pub fn hash(exchange: &RequestUnderWay<'_>, route: &Route, admitted: &Admitted, identity: &Identity) -> Option<u64> {
    let Action::Upstream(index) = route.action else { return None };
    let key = exchange.view.upstreams[index].hash_on()?;
    let needs_claims = key.sources().any(|source| source.kind().origin() == SourceOrigin::Token);
    hash::hash(key, &facts(exchange, route, admitted, identity, needs_claims))
}

/// What the request shows to limits, apart from its body.
fn facts<'f>(
    exchange: &'f RequestUnderWay<'_>,
    route: &'f Route,
    admitted: &'f Admitted,
    identity: &Identity,
    needs_claims: bool,
) -> Facts<'f> {
    let parts = &exchange.received.parts;
    Facts {
        client: identity.ip,
        method: admitted.method().as_str(),
        host: admitted.host(),
        path: admitted.path(),
        query: admitted.query(),
        headers: &parts.headers,
        route: &route.name,
        params: &route.params,
        claims: needs_claims.then(|| claims(exchange)).flatten(),
        certificate: exchange.client.tls.as_ref().and_then(|tls| tls.certificate.as_ref()),
        body: BodyFacts::None,
    }
}

/// What the request's token says, for limits that ask.
fn claims(exchange: &RequestUnderWay<'_>) -> Option<TokenClaims> {
    let jwt = exchange.view.snapshot.config.jwt.as_ref()?;
    jwt.claims(&exchange.received.parts.headers, clock::now_ms() / 1000)
}
