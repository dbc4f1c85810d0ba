//! A request that its limits let pass, on its way to the route's action: its body under the route's cap,
//! its fields as the upstream gets them, the exchange with the upstream. Called by `gateway`.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{EXPECT, UPGRADE};
use http::{Response, StatusCode, Version};
use http_body::Body as _;

use crate::config::{ForwardedHeader, TraceParent};
use crate::http::answer::body::Body;
use crate::http::answer::grpc::timeout as grpc_timeout;
use crate::http::answer::refusal::Refusal;
use crate::http::context::Client;
use crate::http::downstream::connect;
use crate::http::downstream::gate::Admitted;
use crate::http::downstream::offer::Offer;
use crate::http::downstream::reject::Reject;
use crate::http::downstream::upload::{Upload, UploadProgress, UploadState};
use crate::http::fields::KnownField;
use crate::http::headers;
use crate::http::trace;
use crate::http::under_way::{Received, RequestUnderWay};
use crate::http::upstream::connect::ConnectFault;
use crate::http::upstream::early::EarlyHints;
use crate::http::upstream::failure::UpstreamFailure;
use crate::http::upstream::forward::{self, Forwarded};
use crate::http::upstream::forwarding::{self, Forwarding};
use crate::http::upstream::h1::request::HostField;
use crate::http::upstream::linger::Linger;
use crate::http::upstream::outgoing::{self, Outgoing};
use crate::http::upstream::servers::Servers;
use crate::route::{Action, Route};

/// What the client offers to switch its connection to, with a place for the tunnel that may come of it.
pub fn offer(exchange: &mut RequestUnderWay<'_>, route: &Route) -> Result<Option<Offer>, Refusal> {
    let Received { parts, fields, .. } = &*exchange.received;
    // Without a tunnel to open, a CONNECT asks for nothing.
    let is_connect = exchange.received.is_connect();
    let otherwise = || if is_connect { Err(Refusal::Gate(Reject::Connect)) } else { Ok(None) };
    if !fields.has(KnownField::Upgrade) || !matches!(route.action, Action::Upstream(_)) {
        return otherwise();
    }
    let Some(offer) = Offer::of(parts, *fields, &route.upgrades) else { return otherwise() };
    let max_tunnels = exchange.view.snapshot.config.server.max_tunnels;
    exchange.seat = Some(exchange.client.local.common.tunnels.enter(max_tunnels).ok_or(Refusal::MaxTunnels)?);
    Ok(Some(offer))
}

/// How long a gRPC client waits for its response, where that is less than the route's `response_timeout`.
fn client_limit(received: &Received, route: &Route) -> Option<Duration> {
    let limit = if is_grpc(received) { grpc_timeout(&received.parts.headers) } else { None };
    limit.filter(|limit| *limit < route.timeouts.response)
}

fn is_grpc(received: &Received) -> bool {
    received.fields.has(KnownField::ContentType) && crate::grpc::is_grpc(&received.parts.headers)
}

/// The request body for an action that reads it. One that is announced as empty comes to its end before anything is
/// sent to a server, which would take the head for all of the request.
pub async fn upload(exchange: &mut RequestUnderWay<'_>, route: &Route) -> Result<Option<Upload>, Refusal> {
    let is_read = exchange.read_ahead.is_some();
    if !is_read {
        bound(exchange, route)?;
    }
    if matches!(route.action, Action::Respond(_)) {
        return Ok(None);
    }
    let upload = if is_read { exchange.read_ahead.take() } else { take(exchange, route) };
    exchange.upload = upload.as_ref().map(Upload::share_progress);
    match upload {
        Some(mut upload) if upload.size_hint().exact() == Some(0) => {
            read_ahead(exchange, &mut upload, 0).await?;
            Ok(Some(upload))
        }
        upload => Ok(upload),
    }
}

/// Reads the body to its end, or some more than `max` bytes of it, under its deadlines; `None` when there is more.
///
/// # Errors
/// The body is larger than the route takes, or did not come to its end.
pub async fn read_ahead(
    exchange: &mut RequestUnderWay<'_>,
    upload: &mut Upload,
    max: usize,
) -> Result<Option<Bytes>, Refusal> {
    let deadline = exchange.account.deadline();
    let read = deadline.within(upload.read_ahead(max)).await;
    deadline.disarm();
    let failure = match read {
        Ok(Ok(read)) => return Ok(read),
        Ok(Err(UploadState::TooLarge)) => UpstreamFailure::TooLarge,
        Ok(Err(UploadState::Left)) => UpstreamFailure::ClientLeft,
        Ok(Err(_)) => UpstreamFailure::UploadBroken,
        Err(_) => UpstreamFailure::UploadTimeout,
    };
    exchange.cut = true;
    Err(Refusal::Upstream(failure))
}

/// A body that says that it is larger than the route takes is refused unread.
pub fn bound(exchange: &RequestUnderWay<'_>, route: &Route) -> Result<(), Refusal> {
    let least = exchange.received.body.as_ref().map_or(0, |body| body.size_hint().lower());
    if least > route.max_body { Err(Refusal::TooLarge) } else { Ok(()) }
}

/// The request body, if there is one, under the route's cap and deadline; nothing is read yet.
pub fn take(exchange: &mut RequestUnderWay<'_>, route: &Route) -> Option<Upload> {
    let body = exchange.received.body.take_if(|body| !body.is_end_stream())?;
    let on_stream = exchange.received.on_stream();
    let mut timeouts = (*route.timeouts).clone();
    timeouts.response = client_limit(&exchange.received, route).unwrap_or(timeouts.response);
    let (is_grpc, deadline) = (is_grpc(&exchange.received), exchange.account.deadline().clone());
    let upload = Upload::new(body, on_stream, is_grpc, deadline, timeouts, route.max_body);
    if let Some(entry) = exchange.account.entry() {
        entry.uploads(&upload.share_progress());
    }
    Some(upload)
}

/// Turns the fields into those that the upstream gets. True when the forwarding fields are left to be
/// written as lines, which is cheaper: where nothing changes or continues them.
pub fn rewrite(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    admitted: &Admitted,
    forwarding: &Forwarding,
) -> Result<bool, Refusal> {
    let Received { parts, fields, .. } = &mut *exchange.received;
    let headers = &mut parts.headers;
    let strictness = route.reading.strictness;
    let trusted_peer = forwarding.identity.trusted_peer;
    headers::clean_request(headers, *fields, admitted, trusted_peer, forwarding.via, strictness)
        .map_err(Refusal::Gate)?;
    let is_forwarded = matches!(route.action, Action::Upstream(_));
    let as_lines = is_forwarded && !trusted_peer && !forwarding::is_edited(&route.request_headers);
    if !as_lines {
        forwarding.tell(headers, admitted.authority());
    }
    let server = &exchange.view.snapshot.config.server;
    let entry = exchange.account.entry();
    if !entry.is_some_and(|entry| entry.go_on(headers)) && server.traceparent == TraceParent::Make {
        trace::ensure(headers, server.spans.is_none());
        if let Some(entry) = exchange.account.entry() {
            entry.traced(headers);
        }
    }
    headers::edit(headers, &route.request_headers);
    Ok(as_lines)
}

/// The request as it leaves, with the fields of `forwarding` where they are left to be written `as_lines`.
pub fn outgoing(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    admitted: &Admitted,
    forwarding: &Forwarding,
    as_lines: bool,
    upload: Option<Upload>,
    offer: Option<Offer>,
) -> Outgoing {
    let expects = expects(exchange, upload.as_ref());
    let leases = exchange.account.share_leases();
    let linger = leases.map(|leases| Linger::new(exchange.client, leases, &route.timeouts));
    if let Some(offer) = &offer {
        headers::switch(&mut exchange.received.parts.headers, offer.field());
    }
    let target = outgoing::target(admitted, &route.rewrite);
    let host = if route.rewrite.upstream_host { HostField::OfServer } else { HostField::Received };
    let client = forwarding.identity.ip;
    let mut outgoing = Outgoing::new(&exchange.received.parts, client, &target, host, upload, linger, |lines| {
        if as_lines {
            forwarding.write(lines, admitted.authority());
        }
    });
    if let Some(parent) = exchange.account.entry().and_then(|entry| entry.traceparent()) {
        outgoing.head.find_parent(&parent);
    }
    Outgoing { offer, expects, client_limit: client_limit(&exchange.received, route), ..outgoing }
}

/// Whether the body is to be asked for. Where it is on its way already the server is not told to ask.
fn expects(exchange: &mut RequestUnderWay<'_>, upload: Option<&Upload>) -> bool {
    if !exchange.received.fields.has(KnownField::Expect) {
        return false;
    }
    let of_lines = !exchange.received.on_stream() && exchange.received.parts.version == Version::HTTP_11;
    let expects = of_lines && upload.is_some_and(Upload::is_untouched);
    if !expects {
        exchange.received.parts.headers.remove(EXPECT);
    }
    expects
}

/// What a connection begins with on which a server is asked for the client at `ip`. Behind a proxy that names
/// it in a field, nobody knows its port.
pub fn introduction(client: &Client, ip: IpAddr, servers: &Servers) -> Option<Rc<[u8]>> {
    let port = if ip == client.peer { client.port } else { 0 };
    servers.proxy_protocol().map(|version| version.header(SocketAddr::new(ip, port), client.asked))
}

/// An exchange with the upstream.
pub async fn send(
    exchange: &mut RequestUnderWay<'_>,
    route: &Route,
    servers: &Servers,
    outgoing: &mut Outgoing,
) -> Result<Response<Body>, Refusal> {
    let attempts = exchange.account.entry().map(|entry| entry.asks(servers.complaints.upstream()));
    let (deadline, attempts) = (exchange.account.deadline(), attempts.as_deref());
    let of_lines = !exchange.received.on_stream() && exchange.received.parts.version == Version::HTTP_11;
    // Many other clients take an interim response for the final one (RFC 8297, section 3).
    let knows_interims = [KnownField::SecFetchMode, KnownField::ResumableUpload];
    let hinted = of_lines && exchange.received.fields.has_any(&knows_interims);
    let hints = hinted.then(|| EarlyHints { client: exchange.client, edit: &route.response_headers });
    let answered = forward::forward(servers, deadline, &route.timeouts, outgoing, attempts, hints).await;
    if outgoing.has_left {
        exchange.account.reached_server();
    }
    let Forwarded { mut response, unasked } = answered.map_err(|failure| {
        let unread = |upload: &Rc<UploadProgress>| upload.state() != UploadState::Done;
        exchange.cut |= exchange.upload.as_ref().is_some_and(unread);
        if failure == UpstreamFailure::Connect(ConnectFault::Descriptors) {
            let complaints = &exchange.client.local.common.complaints;
            complaints.short_of_descriptors("requests for which no connection to a server can be made are refused");
        }
        Refusal::Upstream(failure)
    })?;
    if unasked.is_some() {
        // As if nobody had wanted it in the first place.
        (exchange.read_ahead, exchange.upload) = (unasked, None);
    }
    if exchange.received.is_connect()
        && !connect::is_answered_by(&exchange.received.parts, response.status(), response.headers())
    {
        // The server has done what it was asked, though not what the client needs for a tunnel.
        exchange.account.answered(&response);
        return Err(Refusal::Upstream(UpstreamFailure::Broken));
    }
    let via = exchange.view.snapshot.config.server.forwarded_headers.has(ForwardedHeader::Via);
    let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let protocol = if is_switch { response.headers().get(UPGRADE).cloned() } else { None };
    headers::forward_response(response.headers_mut(), via.then_some(&exchange.client.local.common.via));
    if let Some(protocol) = protocol {
        headers::switch(response.headers_mut(), &protocol);
    }
    Ok(response)
}
