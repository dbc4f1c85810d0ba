//! The steps of a request: `handle_request` calls one function per step, in the order in which every request takes
//! them. The small steps follow below it. The large ones are in `limits`, `dispatch` and, for the response,
//! `finish_response`.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Instant;

use http::{Method, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::config::Config;
use crate::limiting::over::Over;
use crate::proxy::auth::{authenticate, remove_identity_headers};
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::context::{ClientConnection, WorkerSnapshot};
use crate::proxy::dispatch::dispatch;
use crate::proxy::finish_response::finish_response;
use crate::proxy::inbound::identity::ClientAddress;
use crate::proxy::inbound::reject::Reject;
use crate::proxy::inbound::upgrade::UpgradeOffer;
use crate::proxy::inbound::validate::ValidatedHead;
use crate::proxy::inbound::{http2_head, identity, request_id, validate};
use crate::proxy::known_headers::{HeaderSet, KnownHeader};
use crate::proxy::limits::apply_limits;
use crate::proxy::request_context::{Received, RequestContext, RoutedRequest};
use crate::proxy::response::account::RequestAccount;
use crate::proxy::response::body::ResponseBody;
use crate::proxy::response::compress::negotiate;
use crate::proxy::response::local_responses;
use crate::proxy::response::log_entry::LogEntry;
use crate::proxy::response::refusal::Refusal;
use crate::proxy::trace;
use crate::route::{Action, ParsingRules, Route};

/// Serves one request. Never fails: every failure becomes a response.
pub fn serve(
    client: Rc<ClientConnection>,
    request: Request<Incoming>,
    deadline: RequestDeadline,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let view = client.local.view();
    let is_whole = body.is_end_stream();
    // This deadline applies until the future is first polled: a pipelined request waits for the response before it,
    // which the client may never read.
    deadline.arm(RequestWait::Stream, view.snapshot.config.server.keepalive_timeout);
    // Boxed, because the future is moved several times before it is polled.
    let mut received =
        Box::new(Received { header_set: HeaderSet::from_headers(&parts.headers), parts, body: Some(body) });
    received.header_set.has_streamed_body =
        received.is_http2() && !is_whole && !received.header_set.has(KnownHeader::ContentLength);
    let account = RequestAccount::open(&view.unmatched_counters, deadline, &received.parts.method, started);
    respond(client, view, received, account)
}

async fn respond(
    client: Rc<ClientConnection>,
    view: Rc<WorkerSnapshot>,
    received: Box<Received>,
    account: Box<RequestAccount>,
) -> Result<Response<ResponseBody>, Infallible> {
    account.deadline().disarm();
    let mut request = RequestContext::new(&client, &view, received, account);
    let result = handle_request(&mut request).await;
    Ok(finish_response(request, result))
}

/// Takes a request from its head to the response of its route. An error is the reason to refuse it.
async fn handle_request(request: &mut RequestContext<'_>) -> Result<Response<ResponseBody>, Refusal> {
    let identity = identify_client(request);
    open_log_entry(request, identity);
    let parser_fault = check_framing(request)?;
    let head = validate_head(request)?;
    report_untrusted_headers(request, identity);
    remove_identity_headers(&mut request.received.parts.headers, &request.view.snapshot.config);
    let found = find_route(request, &head);
    check_strictness(request, &head, parser_fault, found)?;
    if let Some(response) = answer_acme_challenge(request, &head) {
        return Ok(response);
    }
    check_certificate(request, &head)?;
    if let Some(response) = redirect_to_https(request, &head)? {
        return Ok(response);
    }
    let route = enter_route(request, found)?;
    negotiate_compression(request, route);
    check_denied(route, identity)?;
    let routed = RoutedRequest { route, head: &head, identity: &identity };
    if let Some(response) = authenticate(request, routed).await? {
        return Ok(response);
    }
    let offer = reserve_tunnel(request, route)?;
    check_overload(request, route)?;
    apply_limits(request, routed).await?;
    dispatch(request, routed, offer).await
}

/// Finds the client: the TCP peer, or the address that trusted proxies forwarded.
fn identify_client(request: &mut RequestContext<'_>) -> ClientAddress {
    let server = &request.view.snapshot.config.server;
    let headers = &request.received.parts.headers;
    let identity = identity::identify(request.client.peer, headers, &server.trusted_proxies);
    request.shows_hints = server.hints.apply_to(identity.ip);
    identity
}

/// Opens the access log entry and the span of the request, if they are enabled or an operator taps requests.
fn open_log_entry(request: &mut RequestContext<'_>, identity: ClientAddress) {
    let server = &request.view.snapshot.config.server;
    let headers = &request.received.parts.headers;
    let span = server.spans.as_ref().and_then(|spans| trace::open_span(spans, headers));
    let is_tapped = request.client.local.common.taps.is_active();
    let is_logged = server.access_log.is_some() || span.is_some() || is_tapped;
    if is_logged || server.answer_request_id {
        request.request_id = Some(request_id::received_or_new(headers, identity.trusted_peer));
    }
    if is_logged {
        let mut entry = LogEntry::open(request.client, server, identity.ip, &request.received.parts, span);
        if is_tapped {
            entry.record_for_taps();
        }
        request.request_id.iter().for_each(|id| entry.record_request_id(id));
        request.account.set_log_entry(entry);
    }
}

/// Checks what the HTTP parser does not: the header list of HTTP/2, and the bytes of HTTP/1.1 that the parser silently
/// repairs. Returns the fault that it repaired.
fn check_framing(request: &mut RequestContext<'_>) -> Result<Option<Reject>, Refusal> {
    let max_headers = request.view.snapshot.config.server.max_headers;
    if request.received.is_http2() {
        http2_head::normalize_headers(&mut request.received.parts.headers, max_headers)
            .map_err(Refusal::InvalidHead)?;
        return Ok(None);
    }
    let Received { parts, body, .. } = &*request.received;
    let length = body.as_ref().map_or(Some(0), |body| body.size_hint().exact());
    let inspector = request.client.inspector.as_ref();
    let repaired = inspector.and_then(|inspector| inspector.borrow_mut().take_fault(length));
    // After a repair, the bytes that follow were not inspected. After CONNECT, they may be meant for a tunnel (RFC
    // 9931, section 7).
    request.must_close = repaired.is_some() || parts.method.as_str().eq_ignore_ascii_case(Method::CONNECT.as_str());
    Ok(repaired)
}

/// Refuses a head that servers could read differently, and computes the canonical host, path and method.
fn validate_head(request: &mut RequestContext<'_>) -> Result<ValidatedHead, Refusal> {
    let Received { parts, header_set: fields, .. } = &*request.received;
    let head = validate::validate_head(parts, *fields, &request.client.last_host).map_err(Refusal::InvalidHead)?;
    if let Some(entry) = request.account.log_entry() {
        entry.record_target(head.read_host(), head.path());
    }
    Ok(head)
}

/// Logs that a peer sends forwarding headers without being listed in `trusted_proxies`.
fn report_untrusted_headers(request: &RequestContext<'_>, identity: ClientAddress) {
    let (client, fields) = (request.client, request.received.header_set);
    if !identity.trusted_peer && (fields.has_client_headers || fields.has(KnownHeader::Forwarded)) {
        let trusted = &request.view.snapshot.config.server.trusted_proxies;
        client.untrusted.report_headers(
            &request.received.parts.headers,
            client.peer,
            trusted,
            &client.untrusted_reported,
        );
    }
}

/// Returns the index of the route that matches the request.
fn find_route(request: &RequestContext<'_>, head: &ValidatedHead) -> Option<usize> {
    let config = &request.view.snapshot.config;
    config.table.find_route(
        &config.routes,
        head.read_host(),
        head.path(),
        head.method(),
        &request.received.parts.headers,
    )
}

/// Returns the rules for ambiguous requests of the route at index `found`, or those of the server if no route matches.
pub fn parsing_rules(config: &Config, found: Option<usize>) -> ParsingRules {
    found.map_or(ParsingRules::new(config.server.strictness, None), |index| config.routes[index].parsing)
}

/// Refuses an ambiguous head that the `strictness` of the route does not allow. If no route matches, the `strictness`
/// of the server counts.
fn check_strictness(
    request: &RequestContext<'_>,
    head: &ValidatedHead,
    parser_fault: Option<Reject>,
    found: Option<usize>,
) -> Result<(), Refusal> {
    let reading = parsing_rules(&request.view.snapshot.config, found);
    if let Some(reject) = validate::judge_faults(head, parser_fault, reading).map_err(Refusal::InvalidHead)? {
        request.client.local.common.metrics.would_reject_counter(reject).inc();
    }
    Ok(())
}

/// Responds to the ACME server that verifies a domain of this gateway. Takes precedence over all routes.
fn answer_acme_challenge(request: &RequestContext<'_>, head: &ValidatedHead) -> Option<Response<ResponseBody>> {
    let acme = request.view.snapshot.config.acme.as_ref()?;
    local_responses::answer_acme_challenge(acme, head.method(), head.path())
}

/// Refuses a host that the certificate of the connection does not cover: an HTTP/2 client may reuse a connection for
/// another host.
fn check_certificate(request: &RequestContext<'_>, head: &ValidatedHead) -> Result<(), Refusal> {
    match &request.client.tls {
        Some(tls) if !head.read_host().is_empty() && !tls.is_valid_for(head.read_host()) => Err(Refusal::Misdirected),
        _ => Ok(()),
    }
}

/// Redirects every request of a listener with `redirect_http`.
fn redirect_to_https(
    request: &RequestContext<'_>,
    head: &ValidatedHead,
) -> Result<Option<Response<ResponseBody>>, Refusal> {
    let Some(port) = request.client.redirect_port else { return Ok(None) };
    local_responses::redirect_to_https(head, port).map(Some).ok_or(Refusal::NoRoute)
}

/// Counts the request as in flight on its route and returns the route. Refuses the request above `max_in_flight`.
fn enter_route<'a>(request: &mut RequestContext<'a>, found: Option<usize>) -> Result<&'a Route, Refusal> {
    let index = found.ok_or(Refusal::NoRoute)?;
    let route = &request.view.snapshot.config.routes[index];
    request.route = Some(index);
    let is_below_max = request.account.enter_route(route, request.view.route_counters(index));
    is_below_max.then_some(route).ok_or(Refusal::MaxInFlight)
}

/// Selects the algorithm that compresses the response, before the route edits the headers of the request.
fn negotiate_compression(request: &mut RequestContext<'_>, route: &Route) {
    if let Some(settings) = &route.compress {
        request.compression = negotiate::select_algorithm(&request.received.parts.headers, settings);
    }
}

/// Refuses a client on the route's `deny` list.
pub fn check_denied(route: &Route, identity: ClientAddress) -> Result<(), Refusal> {
    if route.deny.contains(identity.ip) { Err(Refusal::Denied) } else { Ok(()) }
}

/// Refuses a request whose upstream is overloaded so that it would certainly refuse it, before any limit is charged.
fn check_overload(request: &RequestContext<'_>, route: &Route) -> Result<(), Refusal> {
    let Action::Upstream(index) = route.action else { return Ok(()) };
    // A limit may send the request to another upstream.
    if route.limits.iter().any(|limit| matches!(limit.over, Over::Divert(_))) {
        return Ok(());
    }
    request.view.upstreams[index].check_overload(route.priority).map_err(Refusal::Upstream)
}

/// Reads which protocols the client offers to switch to (`Upgrade`), and reserves a tunnel slot if it offers any.
/// Returns `None` for an ordinary request.
fn reserve_tunnel(request: &mut RequestContext<'_>, route: &Route) -> Result<Option<UpgradeOffer>, Refusal> {
    let Received { parts, header_set: fields, .. } = &*request.received;
    let is_proxied = matches!(route.action, Action::Upstream(_));
    let offer = if is_proxied { UpgradeOffer::from_request(parts, *fields, &route.upgrades) } else { None };
    let Some(offer) = offer else {
        // An extended CONNECT has no meaning without a tunnel.
        return if request.received.is_connect() { Err(Refusal::InvalidHead(Reject::Connect)) } else { Ok(None) };
    };
    let max_tunnels = request.view.snapshot.config.server.max_tunnels;
    request.tunnel_seat = Some(request.client.local.common.tunnels.acquire(max_tunnels).ok_or(Refusal::MaxTunnels)?);
    Ok(Some(offer))
}
