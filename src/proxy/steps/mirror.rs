//! Copies of requests for another upstream (`mirror`).
//!
//! Input: a request that the limits have admitted, as it goes to its server. Output: a task that sends the copy once
//! all of the request has arrived, and discards the response. The request itself neither waits for the copy nor fails
//! with it: the copy has its own head, body, deadline and connection, and limits, charges and the log do not know it.
//!
//! Each worker makes at most [`PLACES`](crate::proxy::context::mirror_places::PLACES) copies for an upstream at a time,
//! those whose bodies still arrive included. So copies take bounded memory and connections, however slow the other
//! upstream is; requests beyond them are not copied.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{EXPECT, TRAILER};
use http::{HeaderMap, HeaderValue, Method};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::proxy::account::request_context::{RequestContext, RoutedRequest};
use crate::proxy::connection::body_copy::{BodyCopy, CopiedBody};
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::upload::Upload;
use crate::proxy::context::WorkerSnapshot;
use crate::proxy::context::mirror_places::MirrorPlace;
use crate::proxy::head::body::{RequestBody, WholeBody};
use crate::proxy::outbound::forwarded_headers::ForwardedHeadersWriter;
use crate::proxy::outbound::http1::request::{Framing, HostSource, RequestHead};
use crate::proxy::steps::forward::forward_request;
use crate::proxy::steps::limits;
use crate::proxy::steps::outgoing_request::{OutgoingRequest, proxy_header};
use crate::route::Timeouts;
use crate::route::mirror::{MIRRORED_HEADER, Mirror};
use crate::snapshot::RouteCounters;
use crate::telemetry::metrics::MirrorOutcome;
use crate::upstream::eject::Blame;
use crate::upstream::priority::Priority;

/// A copy on its way.
struct RequestCopy {
    view: Rc<WorkerSnapshot>,
    upstream: usize,
    counters: Rc<RouteCounters>,
    timeouts: Arc<Timeouts>,
    client: Blame,
    hash: Option<u64>,
    proxy_header: Option<Rc<[u8]>>,
    method: Method,
    target: String,
    headers: HeaderMap,
    host: HostSource,
    /// Header lines after `headers`.
    lines: Vec<u8>,
    /// How the head of a request without a body is framed.
    bodiless: Framing,
    _place: MirrorPlace,
}

/// Copies a share of the requests. `unwritten`: the forwarding headers, if those of the request do not contain them. A
/// request that offers to switch protocols is not copied: nobody would speak the other protocol.
pub fn copy_request(
    request: &RequestContext<'_>,
    routed: RoutedRequest<'_>,
    mirror: &Mirror,
    unwritten: Option<&ForwardedHeadersWriter>,
    outgoing: &mut OutgoingRequest,
) {
    if outgoing.offer.is_some() || !mirror.selects(rand::random()) {
        return;
    }
    let counters = request.account.share_counters();
    if outgoing.upload.as_ref().is_some_and(|upload| upload.size_hint().lower() > mirror.max_body as u64) {
        return counters.count_mirror(MirrorOutcome::BodyTooLarge);
    }
    let upstream = &request.view.snapshot.config.upstreams[mirror.upstream].name;
    let Some(place) = request.client.worker.mirror_places.take_place(upstream) else {
        return counters.count_mirror(MirrorOutcome::Busy);
    };
    let RoutedRequest { route, head, identity } = routed;
    let parts = &request.received.parts;
    let mut headers = parts.headers.clone();
    // The copy has its whole body, and no trailers.
    headers.remove(EXPECT);
    headers.remove(TRAILER);
    headers.insert(MIRRORED_HEADER, HeaderValue::from_static("true"));
    let mut lines = Vec::new();
    if let Some(forwarding) = unwritten {
        forwarding.write_lines(&mut lines, head.authority());
    }
    let copy = RequestCopy {
        view: request.view.clone(),
        upstream: mirror.upstream,
        counters,
        timeouts: route.timeouts.clone(),
        client: Blame::from_ip(identity.ip),
        hash: limits::hash_key(request, routed, mirror.upstream),
        proxy_header: proxy_header(request.client, identity.ip, &request.view.upstreams[mirror.upstream]),
        method: parts.method.clone(),
        target: head.server_target().into_owned(),
        headers,
        host: if route.rewrite.upstream_host { HostSource::Server } else { HostSource::Received },
        lines,
        bodiless: Framing::of_bodiless(parts.version, &parts.method),
        _place: place,
    };
    match &mut outgoing.upload {
        None => drop(spawn_local(copy.send(None))),
        Some(upload) => upload.copy_to(BodyCopy::new(mirror.max_body, move |body| match body {
            CopiedBody::Whole(body) => drop(spawn_local(copy.send(Some(body)))),
            CopiedBody::TooLong => copy.counters.count_mirror(MirrorOutcome::BodyTooLarge),
            CopiedBody::Incomplete => copy.counters.count_mirror(MirrorOutcome::BodyIncomplete),
        })),
    }
}

impl RequestCopy {
    /// Sends the copy and discards the response.
    async fn send(self, body: Option<Bytes>) {
        let deadline = RequestDeadline::without_client();
        let framing = body.as_ref().map_or(self.bodiless, |body| Framing::Length(body.len() as u64));
        let write_more = |lines: &mut Vec<u8>| lines.extend_from_slice(&self.lines);
        let head = RequestHead::encode(&self.method, &self.target, &self.headers, self.host, framing, write_more);
        let upload = body.map(|body| {
            let body = RequestBody::new(WholeBody::new(body));
            Upload::new(body, false, false, deadline.clone(), (*self.timeouts).clone(), u64::MAX)
        });
        let mut outgoing = OutgoingRequest {
            hash: self.hash,
            // Where servers are scarce, requests of clients come first.
            priority: Priority::from_number(0).unwrap_or_default(),
            proxy_header: self.proxy_header.clone(),
            // A copy whose server fails is not sent to another one.
            respond_by: Some(Instant::now()),
            ..OutgoingRequest::of_parts(self.client, self.method.clone(), head, upload)
        };
        let servers = &self.view.upstreams[self.upstream];
        let limit = self.timeouts.connect.saturating_add(self.timeouts.response);
        let forwarded = forward_request(servers, &deadline, &self.timeouts, &mut outgoing, None, None);
        match timeout(limit, forwarded).await {
            Ok(Ok(forwarded)) => {
                self.counters.count_mirror(MirrorOutcome::Answered);
                forwarded.response.into_body().read_out().await;
            }
            Ok(Err(_)) | Err(_) => self.counters.count_mirror(MirrorOutcome::Failed),
        }
    }
}
