//! The steps of a request: `handle_request` calls one function per step, in the order in which every request takes
//! them. The first steps are in `arrival`, the small steps follow below it, and the large ones are in `limits`,
//! `dispatch` and, for the response, `finish_response`. `respond` selects another page for listeners that serve
//! something else.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Instant;

use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::config::{Config, Service};
use crate::ends::End;
use crate::limiting::charges::manager::PendingCall;
use crate::limiting::limit::over::Over;
use crate::proxy::account::RequestAccount;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{Received, RequestContext, RoutedRequest};
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::context::{ClientConnection, WorkerSnapshot};
use crate::proxy::doors::decide::handle_question;
use crate::proxy::doors::decide::question::must_be_finished;
use crate::proxy::doors::grpc::handle_call;
use crate::proxy::head::body::RequestBody;
use crate::proxy::head::validate;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::render::compress::negotiate;
use crate::proxy::steps::arrival::{
    check_certificate, check_denied, check_framing, fit_head, identify_client, make_head, open_log_entry,
    report_untrusted_headers, validate_head,
};
use crate::proxy::steps::auth::authenticate;
use crate::proxy::steps::dispatch::dispatch;
use crate::proxy::steps::finish_response::finish_response;
use crate::proxy::steps::limits::apply_limits;
use crate::proxy::steps::response::local_responses;
use crate::proxy::steps::response::problem::{fixed_response, forbid_caching};
use crate::proxy::steps::shedding::{check_breakers, check_overload};
use crate::proxy::words::known_headers::{HeaderSet, KnownHeader};
use crate::proxy::words::refusal::Refusal;
use crate::route::{Action, ParsingRules, Route};

/// Serves one request. Never fails: every failure becomes a response.
pub fn serve(
    client: Rc<ClientConnection>,
    request: Request<RequestBody>,
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
    let service = client.listener.settings.service;
    if service == Service::Decide {
        // Boxed, so that the future of a proxied request is not larger for it.
        return Ok(Box::pin(respond_to_question(client, view, received, account)).await);
    }
    let mut request = RequestContext::new(&client, &view, received, account);
    let result = match service {
        Service::Grpc => Box::pin(handle_call(&mut request)).await,
        Service::Http | Service::Decide => handle_request(&mut request).await,
    };
    Ok(finish_response(request, result))
}

/// Answers another proxy, if necessary in a task that runs to its end even if that proxy leaves.
async fn respond_to_question(
    client: Rc<ClientConnection>,
    view: Rc<WorkerSnapshot>,
    received: Box<Received>,
    account: Box<RequestAccount>,
) -> Response<ResponseBody> {
    let must_be_finished = must_be_finished(&received.parts, &view.snapshot.config);
    // A worker that stops waits for the task.
    let call = must_be_finished.then(|| PendingCall::begin(view.limiter.charges()));
    let answer = async move {
        let mut request = RequestContext::new(&client, &view, received, account);
        let result = handle_question(&mut request).await;
        finish_response(request, result)
    };
    if !must_be_finished {
        return answer.await;
    }
    let (reply, response) = oneshot::channel();
    spawn_local(async move {
        // If the proxy has left, the response is dropped here, which ends its account.
        let _ = reply.send(answer.await);
        drop(call);
    });
    // Fails if the task has panicked.
    response.await.unwrap_or_else(|_| {
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        let mut response = fixed_response(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n", text);
        forbid_caching(&mut response);
        response
    })
}

/// Takes a request from its head to the response of its route. An error is the reason to refuse it.
async fn handle_request(request: &mut RequestContext<'_>) -> Result<Response<ResponseBody>, Refusal> {
    let identity = identify_client(request);
    open_log_entry(request, identity);
    let parser_fault = check_framing(request)?;
    let mut head = validate_head(request)?;
    report_untrusted_headers(request, identity);
    let offer = make_head(request, &mut head, identity)?;
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
    let offer = fit_head(request, route, offer, identity)?;
    negotiate_compression(request, route);
    check_denied(route, identity)?;
    check_overload(request)?;
    let routed = RoutedRequest { route, head: &head, identity: &identity };
    check_breakers(request, routed)?;
    if let Some(response) = authenticate(request, routed).await? {
        return Ok(response);
    }
    reserve_tunnel(request, offer.is_some())?;
    check_capacity(request, route)?;
    apply_limits(request, routed).await?;
    dispatch(request, routed, offer).await
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
    parser_fault: Option<End>,
    found: Option<usize>,
) -> Result<(), Refusal> {
    let reading = parsing_rules(&request.view.snapshot.config, found);
    if let Some(reject) = validate::judge_faults(head, parser_fault, reading).map_err(Refusal::from)? {
        request.client.local.common.metrics.would_reject_counter(reject).inc();
    }
    Ok(())
}

/// Responds to the ACME server that verifies a domain of this gateway. Takes precedence over all routes.
fn answer_acme_challenge(request: &RequestContext<'_>, head: &ValidatedHead) -> Option<Response<ResponseBody>> {
    let acme = request.view.snapshot.config.acme.as_ref()?;
    local_responses::answer_acme_challenge(acme, head.method(), head.path())
}

/// Redirects every request of a listener with `redirect_http`.
fn redirect_to_https(
    request: &RequestContext<'_>,
    head: &ValidatedHead,
) -> Result<Option<Response<ResponseBody>>, Refusal> {
    let Some(port) = request.client.listener.settings.redirect_port else { return Ok(None) };
    local_responses::redirect_to_https(head, port).map(Some).ok_or(End::NoRoute.into())
}

/// Counts the request as in flight on its route and returns the route. Refuses the request above `max_in_flight`.
fn enter_route<'a>(request: &mut RequestContext<'a>, found: Option<usize>) -> Result<&'a Route, Refusal> {
    let index = found.ok_or(End::NoRoute)?;
    let route = &request.view.snapshot.config.routes[index];
    request.route = Some((index, route));
    let is_below_max = request.account.enter_route(route, request.view.route_counters(index));
    is_below_max.then_some(route).ok_or(End::MaxInFlight.into())
}

/// Selects the algorithm that compresses the response, before the route edits the headers of the request.
fn negotiate_compression(request: &mut RequestContext<'_>, route: &Route) {
    if let Some(settings) = &route.compress {
        request.compression = negotiate::select_algorithm(&request.received.parts.headers, settings);
    }
}

/// Refuses a request whose upstream has no capacity, so that it would certainly refuse it, before any limit is charged.
fn check_capacity(request: &RequestContext<'_>, route: &Route) -> Result<(), Refusal> {
    let Action::Upstream(index) = route.action else { return Ok(()) };
    let servers = &request.view.upstreams[index];
    // A limit may send the request to another upstream.
    let may_divert = || route.limits.iter().any(|limit| matches!(limit.over, Over::Divert(_)));
    match servers.is_full_for(route.priority) && !may_divert() {
        true => Err(servers.refuse_full(route.priority)),
        false => Ok(()),
    }
}

/// Reserves a tunnel slot if the client offers to switch protocols.
fn reserve_tunnel(request: &mut RequestContext<'_>, offers_switch: bool) -> Result<(), Refusal> {
    if !offers_switch {
        // An extended CONNECT has no meaning without a tunnel.
        return if request.received.is_connect() { Err(End::Connect.into()) } else { Ok(()) };
    }
    let max_tunnels = request.view.snapshot.config.server.max_tunnels;
    request.tunnel_seat = Some(request.client.local.common.tunnels.acquire(max_tunnels).ok_or(End::MaxTunnels)?);
    Ok(())
}
