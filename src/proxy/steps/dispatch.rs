//! Runs the route's action for a request that the limits have admitted. The headers are rewritten for the next hop, the
//! body is opened, and the request goes to an upstream server, the echo server or the route's fixed response, or gets a
//! file.

use std::sync::Arc;
use std::time::Instant;

use http::header::{ACCEPT, EXPECT, HOST, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::canonical::authority::parse_authority;
use crate::config::{ForwardedHeader, TraceParent};
use crate::ends::End;
use crate::files::FileFolder;
use crate::limiting::Verdict;
use crate::limiting::limit::over::EXCEEDED_HEADER;
use crate::limiting::settlement::include_usage;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::linger::Linger;
use crate::proxy::account::request_context::{Admitted, ClientBody, Places, RequestContext, RoutedRequest};
use crate::proxy::connection::upload::{Upload, UploadState};
use crate::proxy::head::extended_connect;
use crate::proxy::head::headers;
use crate::proxy::head::request_id;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::outbound::forwarded_headers;
use crate::proxy::outbound::forwarded_headers::ForwardedHeadersWriter;
use crate::proxy::outbound::http1::ProtocolFault;
use crate::proxy::outbound::http1::request::HostSource;
use crate::proxy::outbound::select::endpoint::WorkerEndpoint;
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::proxy::outbound::send_clock::SendClock;
use crate::proxy::render::accept;
use crate::proxy::steps::breaker_watch;
use crate::proxy::steps::door::Door;
use crate::proxy::steps::forward;
use crate::proxy::steps::forward::ForwardedResponse;
use crate::proxy::steps::limits;
use crate::proxy::steps::mirror;
use crate::proxy::steps::outgoing_request::{OutgoingRequest, proxy_header};
use crate::proxy::steps::request_body;
use crate::proxy::steps::response::early_hints::EarlyHints;
use crate::proxy::steps::response::edits;
use crate::proxy::steps::response::local_responses;
use crate::proxy::steps::response::locations::{LocationMap, UrlOrigin, has_locations};
use crate::proxy::steps::response::problem;
use crate::proxy::steps::serve_file::serve_file;
use crate::proxy::steps::shedding;
use crate::proxy::steps::stated_headers;
use crate::proxy::words::known_headers::KnownHeader;
use crate::proxy::words::refusal::Refusal;
use crate::proxy::words::spelling::SpelledNames;
use crate::proxy::words::trace;
use crate::route::path_map::PathMap;
use crate::route::redirect::Redirect;
use crate::route::split::Split;
use crate::route::{Action, FixedResponse, LocationRewrite, Route, SentHost};
use crate::upstream::breaker::BreakerPermit;

/// Runs the route's action and returns its response.
pub async fn dispatch(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    admitted: Admitted<'_>,
) -> Result<Response<ResponseBody>, Refusal> {
    let RequestContext { client, view, .. } = *request;
    let Admitted { offer, places: Places { mut breakers, .. }, .. } = admitted;
    let RoutedRequest { route, head, identity } = routed;
    if route.request_headers.states_request_id() {
        let headers = &request.received.parts.headers;
        let new_id = || request_id::received_or_new(headers, identity.trusted_peer);
        request.request_id.get_or_insert_with(new_id);
    }
    let request_id = request.request_id.clone();
    let forwarding = ForwardedHeadersWriter {
        hop: client.hop(),
        via: &client.worker.process.via,
        version: request.received.parts.version,
        identity,
        fields: view.snapshot.config.server.forwarded_headers,
        request_id: request_id.as_ref(),
    };
    let action = AdmittedAction::choose(request, routed);
    // Computed before the route edits the headers, because `hash_on` can name any of them.
    let hash = match action {
        AdmittedAction::Forward { upstream, is_diverted, branch } => {
            if let Some(place) = branch {
                request.account.record_branch(place);
            }
            if is_diverted {
                shedding::divert_permits(request, routed, upstream, &mut breakers)?;
            }
            limits::hash_key(request, routed, upstream)
        }
        _ => None,
    };
    let unwritten = rewrite_headers(request, routed, &forwarding);
    let upload = request_body::open_upload(request, route).await?;
    match action {
        AdmittedAction::Forward { upstream, .. } => {
            let servers = &view.upstreams[upstream];
            let mut outgoing = build_outgoing(request, routed, unwritten, upload, offer);
            outgoing.priority = route.priority;
            (outgoing.hash, outgoing.proxy_header) = (hash, proxy_header(client, identity.ip, servers));
            if let Some(mirror) = &route.mirror {
                mirror::copy_request(request, routed, mirror, unwritten, &mut outgoing);
            }
            send_upstream(request, routed, servers, &mut outgoing, breakers).await
        }
        AdmittedAction::Echo => {
            let Parts { method, headers, .. } = &request.received.parts;
            Ok(local_responses::echo(method, &head.server_target(), headers, upload))
        }
        AdmittedAction::Respond(fixed) => {
            Ok(problem::fixed_response(fixed.status, fixed.body.clone(), fixed.content_type.clone()))
        }
        AdmittedAction::Redirect(redirect) => {
            redirect_client(redirect, routed, &request.received.parts.headers, client.tls.is_some())
        }
        // Boxed, so that the future of a proxied request is not larger for it.
        AdmittedAction::Files(folder) => Box::pin(serve_file(request, routed, folder)).await,
    }
}

/// The action for a request that the limits have admitted.
#[derive(Clone, Copy)]
pub enum AdmittedAction<'r> {
    /// Sends it to a server of the upstream at this index. `is_diverted`: the upstream was not known before the limits
    /// had decided, because a limit replaces that of the route (`over`), or the route has several (`split`). `branch`:
    /// the index among the branches of the split, if the split has chosen the upstream.
    Forward {
        upstream: usize,
        is_diverted: bool,
        branch: Option<usize>,
    },
    Echo,
    Respond(&'r FixedResponse),
    Redirect(&'r Redirect),
    Files(&'r Arc<FileFolder>),
}

impl<'r> AdmittedAction<'r> {
    pub fn choose<'a, D: Door<'a>>(door: &D, routed: RoutedRequest<'r>) -> AdmittedAction<'r> {
        let route = routed.route;
        match &route.action {
            Action::Upstream(own) => {
                let verdict = door.admission().verdict.as_ref();
                let diversion = verdict.and_then(|verdict| verdict.diversion(&route.limits));
                let split = route.split.as_deref().filter(|_| diversion.is_none());
                let branch = split.and_then(|split| choose_branch(door, routed, split));
                let chosen = split.zip(branch).map(|(split, place)| split.branches[place].upstream);
                let upstream = diversion.map(|diversion| diversion.index).or(chosen).unwrap_or(*own);
                AdmittedAction::Forward { upstream, is_diverted: upstream != *own || route.split.is_some(), branch }
            }
            Action::Echo => AdmittedAction::Echo,
            Action::Respond(fixed) => AdmittedAction::Respond(fixed),
            Action::Redirect(redirect) => AdmittedAction::Redirect(redirect),
            Action::Files(folder) => AdmittedAction::Files(folder),
        }
    }
}

/// Chooses the branch that a request gets of a split, by its index. A request without the key gets a random one.
fn choose_branch<'a, D: Door<'a>>(door: &D, routed: RoutedRequest<'_>, split: &Split) -> Option<usize> {
    let hash = split.key.as_ref().and_then(|key| limits::hash_of_key(door, routed, key));
    split.choose(hash.unwrap_or_else(rand::random))
}

/// Builds the response of a route that redirects. `is_tls`: the client is connected over TLS.
///
/// # Errors
/// There is no address to redirect the request to.
pub fn redirect_client(
    redirect: &Redirect,
    routed: RoutedRequest<'_>,
    headers: &HeaderMap,
    is_tls: bool,
) -> Result<Response<ResponseBody>, Refusal> {
    let RoutedRequest { head, identity, .. } = routed;
    let is_https = is_https(headers, identity.trusted_peer, is_tls);
    local_responses::redirect(redirect, head, is_https).ok_or(End::NoRedirect.into())
}

/// Returns whether the client uses HTTPS: on this connection, or to the trusted proxy before it.
fn is_https(headers: &HeaderMap, trusted_peer: bool, is_tls: bool) -> bool {
    let proto = headers.get("x-forwarded-proto").filter(|_| trusted_peer);
    match proto.map(HeaderValue::as_bytes) {
        Some(b"https") => true,
        Some(b"http") => false,
        _ => is_tls,
    }
}

/// Adds what the gateway itself states to the headers, which are those of the forwarded head already: the forwarding
/// headers and the trace. Then applies the route's `request_headers`.
///
/// Returns `forwarding` if its headers are still to be written. Writing them directly as bytes into the outgoing head
/// is cheaper. That is possible if no rule edits them and they do not extend headers of a trusted proxy.
fn rewrite_headers<'f>(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    forwarding: &'f ForwardedHeadersWriter<'f>,
) -> Option<&'f ForwardedHeadersWriter<'f>> {
    let RoutedRequest { route, head, identity } = routed;
    // Found before the headers change, because a claim may come from a token in them.
    let is_stated = !route.request_headers.stated.is_empty();
    let stated_values = is_stated.then(|| stated_headers::find_values(request, routed, forwarding.request_id));
    let headers = &mut request.received.parts.headers;
    if route.request_headers.edits(&ACCEPT) {
        request.accepted_format = Some(accept::negotiate(headers));
    }
    if request.account.reads_usage() {
        include_usage::limit_codings(headers);
    }
    if let Some(exceeded) = request.admission.verdict.as_ref().and_then(|verdict| exceeded_header(verdict, route)) {
        headers.insert(EXCEEDED_HEADER, exceeded);
    }
    let is_proxied = matches!(route.action, Action::Upstream(_));
    let is_late = is_proxied && !identity.trusted_peer && !forwarded_headers::has_edits(&route.request_headers);
    if !is_late {
        forwarding.add_to_headers(headers, head.authority());
    }
    let server = &request.view.snapshot.config.server;
    let entry = request.account.log_entry();
    if !entry.is_some_and(|entry| entry.set_trace_parent(headers)) && server.traceparent == TraceParent::Make {
        trace::ensure_trace(headers, server.spans.is_none());
        if let Some(entry) = request.account.log_entry() {
            entry.record_trace_id(headers);
        }
    }
    headers::apply_edits(headers, &route.request_headers);
    headers::remove_aliases(headers, &route.request_headers, request.received.header_set.has_ambiguous_names);
    if let Some(stated_values) = stated_values {
        for (name, value) in stated_values {
            match value {
                Some(value) => drop(headers.insert(name, value)),
                None => drop(headers.remove(name)),
            }
        }
    }
    match &route.rewrite.host {
        Some(SentHost::Fixed(host)) => drop(headers.insert(HOST, host.clone())),
        Some(SentHost::WithoutPort) => {
            if let Ok(host) = HeaderValue::from_str(head.read_host())
                && !host.is_empty()
            {
                headers.insert(HOST, host);
            }
        }
        None => {}
    }
    is_late.then_some(forwarding)
}

/// Returns the header that names the limits which the request exceeds; `None` if it exceeds none.
fn exceeded_header(verdict: &Verdict, route: &Route) -> Option<HeaderValue> {
    let mut indexes: Vec<usize> = verdict.excesses(&route.limits).map(|checked| checked.limit).collect();
    indexes.sort_unstable();
    let names: Vec<&str> = indexes.into_iter().map(|index| &*route.limits[index].name).collect();
    (!names.is_empty()).then(|| HeaderValue::from_str(&names.join(", ")).ok())?
}

/// Builds the request to send. `unwritten`: the forwarding headers, if the received headers do not contain them yet.
fn build_outgoing(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    unwritten: Option<&ForwardedHeadersWriter>,
    upload: Option<Upload>,
    offer: Option<UpgradeOffer>,
) -> OutgoingRequest {
    let RoutedRequest { route, head, identity } = routed;
    // A body that has begun to arrive needs no permission.
    let expects = request.received.header_set.has(KnownHeader::Expect)
        && request.received.parts.headers.contains_key(EXPECT)
        && upload.as_ref().is_some_and(Upload::is_untouched);
    let leases = request.account.share_leases();
    let linger = leases.map(|leases| Linger::new(request.client, leases, &route.timeouts));
    let target = head.server_target();
    let host = if route.rewrite.upstream_host { HostSource::Server } else { HostSource::Received };
    let mut outgoing =
        OutgoingRequest::new(&request.received.parts, identity.ip, &target, host, upload, linger, |lines| {
            if let Some(forwarding) = unwritten {
                forwarding.write_lines(lines, head.authority());
            }
        });
    if let Some(parent) = request.account.log_entry().and_then(|entry| entry.traceparent()) {
        outgoing.head.find_span_id(&parent);
    }
    if let Some(names) = request.received.parts.extensions.get::<SpelledNames>() {
        outgoing.head.respell(names);
    }
    OutgoingRequest {
        offer,
        expects_continue: expects,
        client_limit: request.received.client_timeout(route),
        ..outgoing
    }
}

/// Sends the request to a server of the upstream, and prepares its response for the client.
async fn send_upstream(
    request: &mut RequestContext<'_>,
    routed: RoutedRequest<'_>,
    servers: &WorkerUpstream,
    outgoing: &mut OutgoingRequest,
    mut breakers: Vec<BreakerPermit>,
) -> Result<Response<ResponseBody>, Refusal> {
    let route = routed.route;
    let attempts = request.account.log_entry().map(|entry| entry.record_upstream(servers.failure_log.upstream()));
    let (deadline, attempts) = (request.account.deadline(), attempts.as_deref());
    let (hints, begun) = (early_hints(request, route), Instant::now());
    let result = if breakers.is_empty() {
        forward::forward_request(servers, deadline, &route.timeouts, outgoing, attempts, hints).await
    } else {
        let clock = SendClock::new(outgoing.upload.as_ref().map(Upload::share_progress));
        outgoing.clock = Some(clock.clone());
        let forward = forward::forward_request(servers, deadline, &route.timeouts, outgoing, attempts, hints);
        let now_ms = || request.client.worker.process.fleet.now_ms();
        Box::pin(breaker_watch::watch(&mut breakers, &clock, now_ms, forward)).await
    };
    request.account.add_wait(begun);
    if outgoing.has_sent_bytes {
        request.account.record_server_reached();
    }
    let ForwardedResponse { mut response, server, unrequested_body: unasked } =
        result.map_err(|error| refuse_upstream(request, error))?;
    response.body_mut().report_to_breakers(breakers);
    if let Some(unasked) = unasked {
        // The server did not request the body, so the request ends as if its body had not been opened.
        request.received.body = ClientBody::ReadAhead(unasked);
    }
    if request.received.is_connect()
        && !extended_connect::is_valid_response(&request.received.parts, response.status(), response.headers())
    {
        // The server may have acted on the request, so the limits charge for it. The client gets an error, because it
        // would mistake the response for an open tunnel.
        request.account.settle_by_response(&response, false);
        return Err(ProtocolFault::Switch.into());
    }
    clean_response(request, &mut response);
    match &route.rewrite.locations {
        LocationRewrite::Off => {}
        LocationRewrite::Starts(starts) => edits::rewrite_locations(response.headers_mut(), starts),
        LocationRewrite::Automatic => map_locations(request, routed, &server, response.headers_mut()),
    }
    Ok(response)
}

/// Translates the URLs and cookies of `server` in a response for the client.
fn map_locations(
    request: &RequestContext<'_>,
    routed: RoutedRequest<'_>,
    server: &WorkerEndpoint,
    headers: &mut HeaderMap,
) {
    if !has_locations(headers) {
        return;
    }
    let RoutedRequest { route, head, identity } = routed;
    let request_headers = &request.received.parts.headers;
    let text = |host: &HeaderValue| host.to_str().unwrap_or_default().to_owned();
    let own = text(&server.pool.host);
    let sent_host = if route.rewrite.upstream_host { None } else { request_headers.get(HOST).map(text) };
    // A trusted proxy that sends another `Host` states that of the client.
    let stated = request_headers.get("x-forwarded-host").filter(|_| identity.trusted_peer);
    let stated = stated.filter(|host| parse_authority(host.as_bytes()).is_some());
    let client = text(stated.unwrap_or(head.authority()));
    let map = LocationMap {
        server: UrlOrigin { is_https: server.pool.is_https(), authority: &own },
        sent_host: sent_host.as_ref().unwrap_or(&own),
        client: UrlOrigin {
            is_https: is_https(request_headers, identity.trusted_peer, request.client.tls.is_some()),
            authority: &client,
        },
        paths: PathMap::new(&route.rewrite, &route.matcher.path, head.matched_path(), head.sent_path()),
    };
    map.map_response(headers);
}

/// Returns the destination of interim responses (103) if the client is known to understand them. Many other clients
/// mistake an interim response for the final one (RFC 8297, section 3).
fn early_hints<'h>(request: &RequestContext<'h>, route: &'h Route) -> Option<EarlyHints<'h>> {
    let knows_interims = [KnownHeader::SecFetchMode, KnownHeader::ResumableUpload];
    let is_safe = request.received.is_http11() && request.received.header_set.has_any(&knows_interims);
    is_safe.then(|| EarlyHints { client: request.client, edit: &route.response_headers.edit })
}

fn refuse_upstream(request: &mut RequestContext<'_>, error: Refusal) -> Refusal {
    if let ClientBody::Opened(upload) = &request.received.body {
        request.must_close |= upload.state() != UploadState::Done;
    }
    if error.end == End::FileDescriptors {
        let failure_log = &request.client.worker.process.failure_log;
        failure_log.log_descriptor_shortage("requests that need a new connection to a server are refused");
    }
    error
}

/// Removes the headers that belong to the connection to the server, and adds `Via`.
pub fn clean_response(request: &RequestContext<'_>, response: &mut Response<ResponseBody>) {
    let has_via = request.view.snapshot.config.server.forwarded_headers.has(ForwardedHeader::Via);
    let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let protocol = if is_switch { response.headers().get(UPGRADE).cloned() } else { None };
    headers::clean_response_headers(response.headers_mut(), has_via.then_some(&request.client.worker.process.via));
    if let Some(protocol) = protocol {
        headers::set_upgrade(response.headers_mut(), &protocol);
    }
}
