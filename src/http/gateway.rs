//! One request, from its head to its answer: read `page` from top to bottom, the order of lines
//! is the order of treatment. `answer` is the tail that every answer passes, whoever made it.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Instant;

use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::grpc::is_grpc;
use crate::http::answer::access_log::LogEntry;
use crate::http::answer::account::Account;
use crate::http::answer::body::Body;
use crate::http::answer::cause::Cause;
use crate::http::answer::challenge;
use crate::http::answer::echo;
use crate::http::answer::grpc;
use crate::http::answer::problem;
use crate::http::answer::redirect;
use crate::http::answer::refusal::Refusal;
use crate::http::answer::unread;
use crate::http::context::{Client, View};
use crate::http::deadline::{Awaited, RequestDeadline};
use crate::http::downstream::gate;
use crate::http::downstream::h2;
use crate::http::downstream::identity;
use crate::http::downstream::upload::Upload;
use crate::http::fields::{Fields, KnownField};
use crate::http::headers;
use crate::http::limits;
use crate::http::onward;
use crate::http::trace;
use crate::http::tunnel::Tunnel;
use crate::http::under_way::{Received, RequestUnderWay};
use crate::http::upstream::forwarding::{self, Forwarding};
use crate::http::upstream::outgoing;
use crate::limit::Verdict;
use crate::route::{Action, Reading, Route};

/// Serves one request. Never fails: every failure is an answer.
pub fn serve(
    client: Rc<Client>,
    request: Request<Incoming>,
    deadline: RequestDeadline,
) -> impl Future<Output = Result<Response<Body>, Infallible>> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let view = client.local.view();
    let whole = body.is_end_stream();
    // Until the future is polled, which may have to wait for an answer before that nobody reads.
    deadline.arm(Awaited::Stream, view.snapshot.config.server.keepalive_timeout);
    // In boxes: the future is moved about before it is polled.
    let mut received = Box::new(Received { fields: Fields::of(&parts.headers), parts, body: Some(body) });
    received.fields.streamed = received.on_stream() && !whole && !received.fields.has(KnownField::ContentLength);
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
    // A tunnel that is refused is told so by its status.
    let for_grpc = fields.has(KnownField::ContentType) && !received.is_connect() && is_grpc(&parts.headers);
    let mut exchange = RequestUnderWay {
        client: &client,
        view: &view,
        received,
        cut: false,
        upload: None,
        read_ahead: None,
        account,
        route: None,
        verdict: None,
        seat: None,
        request_id: None,
        hints: false,
    };

    let result = page(&mut exchange).await;

    let route = exchange.route.map(|index| &view.snapshot.config.routes[index]);
    let mut response = match result {
        Ok(mut response) => {
            exchange.account.answered(&response);
            if let Some(route) = route {
                headers::edit(response.headers_mut(), &route.response_headers);
            }
            response
        }
        Err(refusal) => {
            let verdict = exchange.verdict.as_ref();
            let cause = cause(&refusal, route, verdict);
            exchange.account.refused(&refusal, cause, &client.local.common.metrics);
            let response = refusal.response(route, verdict, cause.setting.filter(|_| exchange.hints));
            // The status of the refusal itself: a gRPC response is always 200.
            let status = response.status();
            let response = if for_grpc { grpc::response(&refusal, route, verdict) } else { response };
            exchange.account.refused_with(status, response.headers(), &refusal);
            response
        }
    };
    if let (Some(index), Some(route), Some(verdict)) = (exchange.route, route, &exchange.verdict) {
        let dialects = route.ratelimit_headers.as_ref().unwrap_or(&view.snapshot.config.ratelimit_headers);
        view.ratelimit.describe(&mut response, dialects, (index, route), verdict);
    }
    if let Some(id) = exchange.request_id.as_ref().filter(|_| view.snapshot.config.server.answer_request_id) {
        forwarding::answer_id(response.headers_mut(), id);
    }
    if exchange.received.on_stream() {
        // What is left of the body ends with its stream, which the client is told.
        drop(exchange.received.body);
    } else if exchange.cut {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    } else if let Some(body) = exchange.received.body.or(exchange.read_ahead.and_then(Upload::into_unread)) {
        let deadline = exchange.account.deadline();
        unread::finish(body, deadline, &exchange.received.parts.headers, &mut response);
    }
    let of_lines = exchange.received.parts.version <= Version::HTTP_11;
    if client.local.leaving.get() && of_lines && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let account = exchange.account.close(&response, route, &view.snapshot, exchange.upload);
    match (response.body_mut().take_switched(), route, exchange.seat) {
        (Some(server), Some(route), Some(seat)) => {
            let tunnel =
                Tunnel::new(server, account, route.timeouts.clone(), seat, &client.local.common.metrics.tunnels);
            client.tunnel.set(Some(tunnel));
        }
        _ => response.body_mut().end_with(account),
    }
    Ok(response)
}

/// Of a refusal, with what the limit said that made it.
fn cause(refusal: &Refusal, route: Option<&Route>, verdict: Option<&Verdict>) -> Cause {
    let strictest = route.zip(verdict).and_then(|(route, verdict)| verdict.strictest(&route.limits));
    Cause::of(refusal, strictest.map(|checked| checked.outcome))
}

async fn page(exchange: &mut RequestUnderWay<'_>) -> Result<Response<Body>, Refusal> {
    let RequestUnderWay { client, view, .. } = *exchange;
    let config = &view.snapshot.config;

    let server = &config.server;
    let identity = identity::identify(client.peer, &exchange.received.parts.headers, &server.trusted_proxies);
    exchange.hints = server.hints.are_for(identity.ip);
    let span = server.spans.as_ref().and_then(|spans| trace::begin(spans, &exchange.received.parts.headers));
    let logged = server.access_log.is_some() || span.is_some();
    if logged || server.answer_request_id {
        exchange.request_id = Some(forwarding::identify(&exchange.received.parts.headers, identity.trusted_peer));
    }
    if logged {
        let mut entry = LogEntry::open(client, server, identity.ip, &exchange.received.parts, span);
        exchange.request_id.iter().for_each(|id| entry.named(id));
        exchange.account.log(entry);
    }
    let mut unseen = None;
    if exchange.received.on_stream() {
        h2::unify(&mut exchange.received.parts.headers, config.server.max_headers).map_err(Refusal::Gate)?;
    } else {
        let Received { parts, body, .. } = &*exchange.received;
        let length = body.as_ref().map_or(Some(0), |body| body.size_hint().exact());
        unseen = client.inspector.as_ref().and_then(|inspector| inspector.borrow_mut().verdict(length));
        // What follows on the connection was not looked at, or may be meant for a tunnel (RFC 9931, 7).
        exchange.cut = unseen.is_some() || parts.method.as_str().eq_ignore_ascii_case(Method::CONNECT.as_str());
    }
    let Received { parts, fields, .. } = &*exchange.received;
    let admitted = gate::admit(parts, *fields, &client.last_host).map_err(Refusal::Gate)?;
    if !identity.trusted_peer && (fields.of_client || fields.has(KnownField::Forwarded)) {
        let trusted = &config.server.trusted_proxies;
        client.untrusted.look(&parts.headers, client.peer, trusted, &client.forwards);
    }
    let (host, path) = (admitted.host(), admitted.path());
    if let Some(entry) = exchange.account.entry() {
        entry.admitted(host, path);
    }

    let found = config.table.find(&config.routes, host, path, admitted.method(), &parts.headers);
    let reading = found.map_or(Reading::new(config.server.strictness, None), |index| config.routes[index].reading);
    if let Some(reject) = gate::judge(&admitted, unseen, reading).map_err(Refusal::Gate)? {
        client.local.common.metrics.http_would_reject(reject).inc();
    }
    if let Some(proof) = config.acme.as_ref().and_then(|acme| challenge::answer(acme, admitted.method(), path)) {
        return Ok(proof);
    }
    if client.tls.as_ref().is_some_and(|tls| !host.is_empty() && !tls.may_ask_for(host)) {
        return Err(Refusal::Misdirected);
    }
    if let Some(port) = client.redirect_port {
        return redirect::to_https(&admitted, port).ok_or(Refusal::NoRoute);
    }
    let index = found.ok_or(Refusal::NoRoute)?;
    let route = &config.routes[index];
    exchange.route = Some(index);
    if !exchange.account.enter(route, view.handles(index)) {
        return Err(Refusal::MaxInFlight);
    }

    if route.deny.contains(identity.ip) {
        return Err(Refusal::Denied);
    }
    let offer = onward::offer(exchange, route)?;
    if !route.limits.is_empty() {
        limits::ask(exchange, route, &admitted, &identity).await?;
    }

    let request_id = exchange.request_id.clone();
    let via = &client.local.common.via;
    let forwarding = Forwarding {
        hop: &client.hop,
        via,
        version: exchange.received.parts.version,
        identity: &identity,
        fields: server.forwarded_headers,
        request_id: request_id.as_ref(),
    };
    let hash = limits::hash(exchange, route, &admitted, &identity);
    let as_lines = onward::rewrite(exchange, route, &admitted, &forwarding)?;
    let upload = onward::upload(exchange, route).await?;
    match &route.action {
        Action::Upstream(index) => {
            let servers = &view.upstreams[*index];
            let introduction = onward::introduction(client, identity.ip, servers);
            let mut outgoing = onward::outgoing(exchange, route, &admitted, &forwarding, as_lines, upload, offer);
            (outgoing.hash, outgoing.introduction) = (hash, introduction);
            onward::send(exchange, route, servers, &mut outgoing).await
        }
        Action::Echo => {
            let Parts { method, headers, .. } = &exchange.received.parts;
            Ok(echo::answer(method, &outgoing::target(&admitted, &route.rewrite), headers, upload))
        }
        Action::Respond(fixed) => Ok(problem::fixed(fixed.status, fixed.body.clone(), fixed.content_type.clone())),
    }
}
