//! One request, from its head to its answer: read `page` from top to bottom, the order of lines
//! is the order of treatment. [`serve`] is the tail that every answer passes, whoever made it.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::CONNECTION;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::config::ForwardedHeader;
use crate::http::answer::account::Account;
use crate::http::answer::body::Body;
use crate::http::answer::echo;
use crate::http::answer::grpc;
use crate::http::answer::problem;
use crate::http::answer::problem::Refusal;
use crate::http::answer::ratelimit;
use crate::http::answer::unread;
use crate::http::context::{Client, View};
use crate::http::delay::{Seat, Wanted};
use crate::http::downstream::gate::{self, Admitted};
use crate::http::downstream::identity::{self, Identity};
use crate::http::downstream::upload::{Progress, Upload, UploadState};
use crate::http::headers;
use crate::http::upstream::forward::{self, Outgoing};
use crate::http::upstream::forwarding::Forwarding;
use crate::http::upstream::linger::Linger;
use crate::limit::decision::{Check, Op};
use crate::limit::jwt::Claims;
use crate::limit::limits::Mode;
use crate::limit::source::Facts;
use crate::limit::{Ask, Verdict, clock};
use crate::route::{Action, Rewrite, Route};

/// A request under way: what the page has found out so far, for the tail.
struct Exchange<'a> {
    client: &'a Rc<Client>,
    view: &'a View,
    parts: Parts,
    /// Taken by whoever reads it.
    body: Option<Incoming>,
    /// The body was taken and not read to its end, so nothing can follow it.
    cut: bool,
    /// Of the body, once it was taken.
    upload: Option<Rc<Progress>>,
    account: Account,
    route: Option<usize>,
    verdict: Option<Verdict>,
}

/// Serves one request. Never fails: every failure is an answer.
pub async fn serve(client: Rc<Client>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let started = Instant::now();
    let view = client.local.view();
    let (parts, body) = request.into_parts();
    let is_grpc = grpc::is_asked(&parts.headers);
    let account = Account::open(&view.snapshot, &client.slot, &parts.method, started);
    let mut exchange = Exchange {
        client: &client,
        view: &view,
        parts,
        body: Some(body),
        cut: false,
        upload: None,
        account,
        route: None,
        verdict: None,
    };

    let result = page(&mut exchange).await;

    let route = exchange.route.map(|index| &view.snapshot.config.routes[index]);
    let mut response = match result {
        Ok(mut response) => {
            exchange.account.answered(&response, None);
            if let Some(route) = route {
                headers::edit(response.headers_mut(), &route.response_headers);
            }
            response
        }
        Err(refusal) => {
            exchange.account.refused(&refusal, &client.local.common.metrics);
            let verdict = exchange.verdict.as_ref();
            let response = refusal.response(route, verdict);
            // The status of the refusal itself: a gRPC answer is always 200.
            exchange.account.answered(&response, Some(&refusal));
            if is_grpc { grpc::response(&refusal, route, verdict) } else { response }
        }
    };
    if let (Some(route), Some(verdict)) = (route, &exchange.verdict) {
        let dialects = route.ratelimit_headers.as_ref().unwrap_or(&view.snapshot.config.ratelimit_headers);
        ratelimit::describe(&mut response, dialects, route, verdict);
    }
    if exchange.cut {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    } else if let Some(body) = exchange.body {
        unread::settle(body, &exchange.parts.headers, &mut response);
    }
    Ok(exchange.account.close(response, route, &view.snapshot.config.server, exchange.upload))
}

async fn page(exchange: &mut Exchange<'_>) -> Result<Response<Body>, Refusal> {
    let Exchange { client, view, parts, .. } = exchange;
    let config = &view.snapshot.config;

    if let Some(reject) = client.inspector.as_ref().and_then(|inspector| inspector.borrow_mut().verdict()) {
        exchange.cut = true;
        return Err(Refusal::Gate(reject));
    }
    let admitted = gate::admit(parts, config.server.strictness).map_err(Refusal::Gate)?;
    if let Some(reject) = admitted.would_reject() {
        client.local.common.metrics.http_would_reject(reject.reason()).inc();
    }
    let identity = identity::identify(client.peer, &parts.headers, &config.server.trusted_proxies);
    if config.server.access_log {
        exchange.account.log(&client.local.common.access_log, identity.ip, admitted.host(), admitted.path());
    }

    let index = config
        .table
        .find(&config.routes, admitted.host(), admitted.path(), &parts.method, &parts.headers)
        .ok_or(Refusal::NoRoute)?;
    let route = &config.routes[index];
    exchange.route = Some(index);
    if !exchange.account.enter(&view.snapshot.routes[index], route.max_in_flight) {
        return Err(Refusal::MaxInFlight);
    }

    if route.deny.contains(identity.ip) {
        return Err(Refusal::Denied);
    }
    limit(exchange, route, &admitted, &identity).await?;

    rewrite(exchange, route, &admitted, &identity)?;
    let upload = upload(exchange, route)?;
    send(exchange, route, upload).await
}

/// Asks the route's limits, unless the client is on its `allow` list.
async fn limit(
    exchange: &mut Exchange<'_>,
    route: &Route,
    admitted: &Admitted,
    identity: &Identity,
) -> Result<(), Refusal> {
    if route.limits.is_empty() {
        return Ok(());
    }
    if route.allow.contains(identity.ip) {
        exchange.account.bypassed();
        return Ok(());
    }
    let facts = Facts {
        client: identity.ip,
        method: exchange.parts.method.as_str(),
        host: admitted.host(),
        path: admitted.path(),
        query: admitted.query(),
        headers: &exchange.parts.headers,
        route: &route.name,
        params: &route.params,
        claims: claims(exchange, route),
    };
    let limiter = &exchange.view.limiter;
    let asks = limiter.asks(&route.limits, &facts);
    let (mut verdict, seat) = match take_seat(exchange, &asks) {
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
        exchange.client.slot.hold_back(true);
        tokio::time::sleep(Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0))).await;
        exchange.client.slot.hold_back(false);
    }
    exchange.account.go_on();
    Ok(())
}

/// A seat for a request that may have to wait for its turn, or the place of the limit that has none
/// left.
fn take_seat(exchange: &Exchange<'_>, asks: &[Ask]) -> Result<Option<Seat>, usize> {
    let max = exchange.view.snapshot.config.server.max_delayed;
    let wanted = asks.iter().enumerate().filter_map(|(place, ask)| {
        let Ask::Check(Check { limit, rule, .. }) = ask else { return None };
        let max = limit.afterwards.as_ref().and_then(|wants| wants.max_delayed).unwrap_or(max);
        (rule.delays() && limit.mode == Mode::Enforce).then_some(Wanted { place, name: &limit.name, max })
    });
    let wanted: Vec<Wanted> = wanted.collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    exchange.client.local.common.waiting.enter(&wanted, max).map(Some)
}

/// What the request's token says, for limits that ask.
fn claims(exchange: &Exchange<'_>, route: &Route) -> Option<Arc<Claims>> {
    let jwt = exchange.view.snapshot.config.jwt.as_ref()?;
    if !route.limits.iter().any(|limit| limit.needs_claims()) {
        return None;
    }
    jwt.claims(&exchange.parts.headers, clock::now_ms() / 1000)
}

/// The request body under the route's cap and deadline, for an action that reads it; nothing is
/// read yet.
fn upload(exchange: &mut Exchange<'_>, route: &Route) -> Result<Option<Upload>, Refusal> {
    let Some(body) = exchange.body.take_if(|body| !body.is_end_stream()) else { return Ok(None) };
    if body.size_hint().lower() > route.max_body {
        exchange.body = Some(body);
        return Err(Refusal::TooLarge);
    }
    if matches!(route.action, Action::Respond { .. }) {
        exchange.body = Some(body);
        return Ok(None);
    }
    let upload = Upload::new(body, exchange.client.slot.clone(), &route.timeouts, route.max_body);
    exchange.upload = Some(upload.share_progress());
    Ok(Some(upload))
}

/// Turns the head into the one that the upstream gets: canonical target, clean fields.
fn rewrite(
    exchange: &mut Exchange<'_>,
    route: &Route,
    admitted: &Admitted,
    identity: &Identity,
) -> Result<(), Refusal> {
    let Exchange { client, view, parts, .. } = exchange;
    let server = &view.snapshot.config.server;
    let via = &client.local.common.via;
    let forwarding = Forwarding { hop: &client.hop, via, identity, fields: server.forwarded_headers };
    headers::forward_request(&mut parts.headers, admitted, &forwarding, server.strictness).map_err(Refusal::Gate)?;
    headers::edit(&mut parts.headers, &route.request_headers);
    parts.version = Version::HTTP_11;
    if let Some(target) = target(admitted, &route.rewrite) {
        parts.uri = target;
    }
    Ok(())
}

/// The target to forward; `None` when it is the one received.
fn target(admitted: &Admitted, rewrite: &Rewrite) -> Option<Uri> {
    let received = admitted.path();
    let rest = match received.strip_prefix(rewrite.strip_prefix.as_str()) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => received,
    };
    if rest.len() == received.len() && rewrite.add_prefix.is_empty() && !admitted.path_changed() {
        return Some(Uri::from(admitted.target().clone()));
    }
    let slash = if rest.is_empty() { "/" } else { "" };
    let query = admitted.query().map_or_else(String::new, |query| format!("?{query}"));
    let text = format!("{}{rest}{slash}{query}", rewrite.add_prefix);
    PathAndQuery::from_maybe_shared(text.into_bytes()).ok().map(Uri::from)
}

/// The route's own answer, the echo, or an exchange with the upstream.
async fn send(exchange: &mut Exchange<'_>, route: &Route, upload: Option<Upload>) -> Result<Response<Body>, Refusal> {
    let index = match &route.action {
        Action::Upstream(index) => *index,
        Action::Echo => return Ok(echo::answer(&exchange.parts, upload)),
        Action::Respond { status, body, content_type } => {
            return Ok(problem::fixed(*status, body.clone(), content_type.clone()));
        }
    };
    let outgoing = Outgoing {
        method: exchange.parts.method.clone(),
        target: std::mem::take(&mut exchange.parts.uri),
        headers: std::mem::take(&mut exchange.parts.headers),
        upload,
        upstream_host: route.rewrite.upstream_host,
        linger: exchange.account.share_leases().map(|leases| Linger::new(exchange.client, leases)),
    };
    let servers = &exchange.view.upstreams[index];
    let answered = forward::forward(servers, &exchange.client.slot, &route.timeouts, outgoing).await;
    let mut response = answered.map_err(|failure| {
        let unread = |upload: &Rc<Progress>| upload.state() != UploadState::Done;
        exchange.cut = exchange.upload.as_ref().is_some_and(unread);
        Refusal::Upstream(failure)
    })?;
    let via = exchange.view.snapshot.config.server.forwarded_headers.has(ForwardedHeader::Via);
    headers::forward_response(response.headers_mut(), via.then_some(&exchange.client.local.common.via));
    Ok(response)
}
