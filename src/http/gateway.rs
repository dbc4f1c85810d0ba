//! One request, from its head to its answer: read `page` from top to bottom, the order of lines
//! is the order of treatment. `answer` is the tail that every answer passes, whoever made it.

use std::borrow::Cow;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::config::ForwardedHeader;
use crate::http::answer::account::Account;
use crate::http::answer::body::Body;
use crate::http::answer::echo;
use crate::http::answer::grpc;
use crate::http::answer::problem;
use crate::http::answer::problem::Refusal;
use crate::http::answer::unread;
use crate::http::context::{Client, View};
use crate::http::deadline::Awaited;
use crate::http::downstream::gate::{self, Admitted};
use crate::http::downstream::identity::{self, Identity};
use crate::http::downstream::upload::{Upload, UploadProgress, UploadState};
use crate::http::fields::{Fields, KnownField};
use crate::http::headers;
use crate::http::upstream::forward::{self, Outgoing};
use crate::http::upstream::forwarding::{self, Forwarding};
use crate::http::upstream::h1::request::HostField;
use crate::http::upstream::linger::Linger;
use crate::http::upstream::pool::Servers;
use crate::limit::decision::Op;
use crate::limit::jwt::Claims;
use crate::limit::source::Facts;
use crate::limit::{Ask, Verdict, clock};
use crate::route::{Action, Rewrite, Route};

/// A request under way: what the page has found out so far, for the tail.
struct RequestUnderWay<'a> {
    client: &'a Rc<Client>,
    view: &'a View,
    received: Box<Received>,
    /// The body was taken and not read to its end, so nothing can follow it.
    cut: bool,
    /// Of the body, once it was taken.
    upload: Option<Rc<UploadProgress>>,
    account: Box<Account>,
    route: Option<usize>,
    verdict: Option<Verdict>,
}

/// A request as it came.
struct Received {
    parts: Parts,
    fields: Fields,
    /// Taken by whoever reads it.
    body: Option<Incoming>,
}

/// Serves one request. Never fails: every failure is an answer.
pub fn serve(
    client: Rc<Client>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let view = client.local.view();
    let deadline = client.deadline().begin(body.is_end_stream());
    // Until the future is polled, which may have to wait for an answer before that nobody reads.
    deadline.arm(Awaited::Stream, view.snapshot.config.server.keepalive_timeout);
    // In boxes: the future is moved about before it is polled.
    let received = Box::new(Received { fields: Fields::of(&parts.headers), parts, body: Some(body) });
    let account = Account::open(&view.unmatched, deadline, &received.parts.method, started);
    answer(client, view, received, account)
}

async fn answer(
    client: Rc<Client>,
    view: Rc<View>,
    received: Box<Received>,
    account: Box<Account>,
) -> Result<Response<Body>, Infallible> {
    account.deadline().disarm();
    let Received { parts, fields, .. } = &*received;
    let is_grpc = fields.has(KnownField::ContentType) && grpc::is_asked(&parts.headers);
    let mut exchange = RequestUnderWay {
        client: &client,
        view: &view,
        received,
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
    if let (Some(index), Some(route), Some(verdict)) = (exchange.route, route, &exchange.verdict) {
        let dialects = route.ratelimit_headers.as_ref().unwrap_or(&view.snapshot.config.ratelimit_headers);
        view.ratelimit.describe(&mut response, dialects, (index, route), verdict);
    }
    if exchange.cut {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    } else if let Some(body) = exchange.received.body {
        let deadline = exchange.account.deadline();
        unread::finish(body, deadline, &exchange.received.parts.headers, &mut response);
    }
    exchange.account.close(&mut response, route, &view.snapshot, exchange.upload);
    Ok(response)
}

async fn page(exchange: &mut RequestUnderWay<'_>) -> Result<Response<Body>, Refusal> {
    let RequestUnderWay { client, view, .. } = *exchange;
    let Received { parts, fields, .. } = &*exchange.received;
    let config = &view.snapshot.config;

    if let Some(reject) = client.inspector.as_ref().and_then(|inspector| inspector.borrow_mut().verdict()) {
        exchange.cut = true;
        return Err(Refusal::Gate(reject));
    }
    let strictness = config.server.strictness;
    let admitted = gate::admit(parts, *fields, strictness, &client.last_host).map_err(Refusal::Gate)?;
    if let Some(reject) = admitted.would_reject() {
        client.local.common.metrics.http_would_reject(reject.reason()).inc();
    }
    let identity = identity::identify(client.peer, &parts.headers, &config.server.trusted_proxies);
    let (host, path) = (admitted.host(), admitted.path());
    if config.server.access_log {
        exchange.account.log(&client.local.common.access_log, identity.ip, host, path);
    }

    let index = config.table.find(&config.routes, host, path, &parts.method, &parts.headers).ok_or(Refusal::NoRoute)?;
    let route = &config.routes[index];
    exchange.route = Some(index);
    if !exchange.account.enter(view.handles(index), route.max_in_flight) {
        return Err(Refusal::MaxInFlight);
    }

    if route.deny.contains(identity.ip) {
        return Err(Refusal::Denied);
    }
    if !route.limits.is_empty() {
        limit(exchange, route, &admitted, &identity).await?;
    }

    let server = &config.server;
    let via = &client.local.common.via;
    let forwarding = Forwarding { hop: &client.hop, via, identity: &identity, fields: server.forwarded_headers };
    let as_lines = rewrite(exchange, route, &admitted, &forwarding)?;
    let upload = upload(exchange, route)?;
    match &route.action {
        Action::Upstream(index) => {
            let outgoing = outgoing(exchange, route, &admitted, as_lines.then_some(&forwarding), upload);
            send(exchange, route, &view.upstreams[*index], outgoing).await
        }
        Action::Echo => {
            let Parts { method, headers, .. } = &exchange.received.parts;
            Ok(echo::answer(method, &target(&admitted, &route.rewrite), headers, upload))
        }
        Action::Respond(fixed) => Ok(problem::fixed(fixed.status, fixed.body.clone(), fixed.content_type.clone())),
    }
}

/// Asks the route's limits, unless the client is on its `allow` list.
async fn limit(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    admitted: &Admitted,
    identity: &Identity,
) -> Result<(), Refusal> {
    if route.allow.contains(identity.ip) {
        exchange.account.bypassed();
        return Ok(());
    }
    let asks = asks(exchange, route, admitted, identity);
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
        exchange.account.deadline().hold_back(true);
        tokio::time::sleep(Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0))).await;
        exchange.account.deadline().hold_back(false);
    }
    exchange.account.go_on();
    Ok(())
}

/// What each limit of the route has to say to the request.
fn asks(exchange: &RequestUnderWay<'_>, route: &Route, admitted: &Admitted, identity: &Identity) -> Vec<Ask> {
    let parts = &exchange.received.parts;
    let facts = Facts {
        client: identity.ip,
        method: parts.method.as_str(),
        host: admitted.host(),
        path: admitted.path(),
        query: admitted.query(),
        headers: &parts.headers,
        route: &route.name,
        params: &route.params,
        claims: claims(exchange, route),
    };
    exchange.view.limiter.asks(&route.limits, &facts)
}

/// What the request's token says, for limits that ask.
fn claims(exchange: &RequestUnderWay<'_>, route: &Route) -> Option<Arc<Claims>> {
    let jwt = exchange.view.snapshot.config.jwt.as_ref()?;
    if !route.limits.iter().any(|limit| limit.needs_claims()) {
        return None;
    }
    jwt.claims(&exchange.received.parts.headers, clock::now_ms() / 1000)
}

/// The request body under the route's cap and deadline, for an action that reads it; nothing is
/// read yet.
fn upload(exchange: &mut RequestUnderWay<'_>, route: &Route) -> Result<Option<Upload>, Refusal> {
    let Some(body) = exchange.received.body.take_if(|body| !body.is_end_stream()) else { return Ok(None) };
    if body.size_hint().lower() > route.max_body {
        exchange.received.body = Some(body);
        return Err(Refusal::TooLarge);
    }
    if matches!(route.action, Action::Respond(_)) {
        exchange.received.body = Some(body);
        return Ok(None);
    }
    let upload = Upload::new(body, exchange.account.deadline().clone(), &route.timeouts, route.max_body);
    exchange.upload = Some(upload.share_progress());
    Ok(Some(upload))
}

/// Turns the fields into those that the upstream gets. True when the forwarding fields are left to be
/// written as lines, which is cheaper: where nothing changes or continues them.
fn rewrite(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    admitted: &Admitted,
    forwarding: &Forwarding,
) -> Result<bool, Refusal> {
    let Received { parts, fields, .. } = &mut *exchange.received;
    let headers = &mut parts.headers;
    let strictness = exchange.view.snapshot.config.server.strictness;
    let trusted_peer = forwarding.identity.trusted_peer;
    headers::clean_request(headers, *fields, admitted, trusted_peer, forwarding.via, strictness)
        .map_err(Refusal::Gate)?;
    let is_forwarded = matches!(route.action, Action::Upstream(_));
    let as_lines = is_forwarded && !trusted_peer && !forwarding::is_edited(&route.request_headers);
    if !as_lines {
        forwarding.tell(headers, admitted.authority());
    }
    headers::edit(headers, &route.request_headers);
    Ok(as_lines)
}

/// The request as it leaves, with the lines of `forwarding` if there are any.
fn outgoing(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    admitted: &Admitted,
    forwarding: Option<&Forwarding>,
    upload: Option<Upload>,
) -> Outgoing {
    let leases = exchange.account.share_leases();
    let linger = leases.map(|leases| Linger::new(exchange.client, leases, &route.timeouts));
    let target = target(admitted, &route.rewrite);
    let host = if route.rewrite.upstream_host { HostField::OfServer } else { HostField::Received };
    Outgoing::new(&exchange.received.parts, &target, host, upload, linger, |lines| {
        if let Some(forwarding) = forwarding {
            forwarding.write(lines, admitted.authority());
        }
    })
}

/// The target to forward.
fn target<'a>(admitted: &'a Admitted, rewrite: &Rewrite) -> Cow<'a, str> {
    let received = admitted.path();
    let rest = match received.strip_prefix(rewrite.strip_prefix.as_str()) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => received,
    };
    if rest.len() == received.len() && rewrite.add_prefix.is_empty() && !admitted.path_changed() {
        return Cow::Borrowed(admitted.target().as_str());
    }
    let slash = if rest.is_empty() { "/" } else { "" };
    let query = admitted.query().map_or_else(String::new, |query| format!("?{query}"));
    Cow::Owned(format!("{}{rest}{slash}{query}", rewrite.add_prefix))
}

/// An exchange with the upstream.
async fn send(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    servers: &Servers,
    outgoing: Outgoing,
) -> Result<Response<Body>, Refusal> {
    let answered = forward::forward(servers, exchange.account.deadline(), &route.timeouts, outgoing).await;
    let mut response = answered.map_err(|failure| {
        let unread = |upload: &Rc<UploadProgress>| upload.state() != UploadState::Done;
        exchange.cut = exchange.upload.as_ref().is_some_and(unread);
        Refusal::Upstream(failure)
    })?;
    let via = exchange.view.snapshot.config.server.forwarded_headers.has(ForwardedHeader::Via);
    headers::forward_response(response.headers_mut(), via.then_some(&exchange.client.local.common.via));
    Ok(response)
}
