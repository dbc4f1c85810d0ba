//! One exchange with an upstream: pick a server, send the request, wait for the response head.
//! Called by `gateway` once the request may pass.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::header::HOST;
use http::{HeaderMap, Method, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use prometheus::IntCounter;
use tokio::time::timeout;

use super::body::{Arriving, Body};
use super::linger::Linger;
use super::pool::{Lease, ServerPool, Servers};
use super::respond::Failure;
use super::slot::{Expired, Phase, Slot};
use super::upload::{Progress, RequestBody, UploadState};
use crate::route::Timeouts;

/// A request ready to leave.
pub struct Outgoing {
    pub request: Request<RequestBody>,
    /// Of the request body, if there is one.
    pub progress: Option<Rc<Progress>>,
    /// Send the server's own authority as `Host`.
    pub upstream_host: bool,
    /// The exchange goes on when the client leaves.
    pub linger: Option<Linger>,
}

/// A request under way to its response head. Dropped before that, its client has left.
struct Asked {
    running: Option<(Lease, Answer)>,
    progress: Option<Rc<Progress>>,
    linger: Option<Linger>,
    timeouts: Timeouts,
    since: Instant,
}

type Sent = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;
type Answer = Pin<Box<dyn Future<Output = Sent>>>;

/// Servers asked for a connection before a request fails.
const ATTEMPTS: usize = 3;

/// Sends `outgoing` to a server of `servers`.
///
/// A request is sent again only when no server can have acted on it, or acting twice is the same
/// as once: after a failed connect, when a kept connection turns out closed before anything was
/// written, or, without a body and with an idempotent method, before any response came.
pub async fn forward(
    servers: &Servers,
    slot: &Slot,
    timeouts: &Timeouts,
    outgoing: Outgoing,
) -> Result<Response<Body>, Failure> {
    let Outgoing { mut request, progress, upstream_host, linger } = outgoing;
    let mut fresh = false;
    loop {
        let mut lease = acquire(servers, timeouts, fresh).await?;
        if upstream_host || !request.headers().contains_key(HOST) {
            request.headers_mut().insert(HOST, lease.server().host.clone());
        }
        let copy = lease.reused.then(|| Replay::of(&request)).flatten();
        if progress.is_none() {
            slot.arm(Phase::Response, timeouts.response);
        } else {
            lease.detach();
        }
        let reused = lease.reused;
        let response: Answer = Box::pin(lease.sender.try_send_request(request));
        let mut asked = Asked {
            running: Some((lease, response)),
            progress: progress.clone(),
            linger: linger.clone(),
            timeouts: timeouts.clone(),
            since: Instant::now(),
        };
        let sent = slot.within(poll_fn(|cx| asked.poll(cx))).await;
        let lease = asked.running.take().map(|(lease, _)| lease);
        let error = match sent {
            Ok(Ok(response)) => {
                servers.outcomes.ok.inc();
                let Some(lease) = lease else { return Err(Failure::Broken) };
                return Ok(received(response, lease, progress, linger));
            }
            Ok(Err(error)) => error,
            // The client's slowness says nothing of the upstream.
            Err(Expired(Phase::Upload)) => return Err(Failure::UploadTimeout),
            Err(Expired(_)) => {
                servers.outcomes.timeout.inc();
                return Err(Failure::Timeout);
            }
        };
        slot.disarm();
        request = match again(error, reused, copy) {
            Some(request) => request,
            None => return Err(failure(progress.as_deref(), &servers.outcomes.broken)),
        };
        servers.outcomes.retried_stale.inc();
        fresh = true;
    }
}

/// A connection: an idle one unless `fresh`, else a new one, at the servers' turns.
async fn acquire(servers: &Servers, timeouts: &Timeouts, fresh: bool) -> Result<Lease, Failure> {
    for attempt in 0..ATTEMPTS {
        let server: &Rc<ServerPool> = servers.pick();
        if let (false, Some(lease)) = (fresh, server.idle()) {
            return Ok(lease);
        }
        match server.connect(timeouts.connect).await {
            Ok(lease) => return Ok(lease),
            Err(_) if servers.list.len() > 1 && attempt + 1 < ATTEMPTS => servers.outcomes.retried_connect.inc(),
            Err(_) => break,
        }
    }
    servers.outcomes.connect_error.inc();
    Err(Failure::Connect)
}

fn received(
    response: Response<Incoming>,
    lease: Lease,
    progress: Option<Rc<Progress>>,
    linger: Option<Linger>,
) -> Response<Body> {
    if let Some(progress) = &progress {
        progress.answer();
    }
    response.map(|body| Body::upstream(Arriving { body, lease, progress, linger }))
}

impl Asked {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent> {
        match &mut self.running {
            Some((lease, response)) => {
                lease.advance(cx);
                response.as_mut().poll(cx)
            }
            None => Poll::Pending,
        }
    }

    /// What is left of it without its client.
    async fn discard(mut self) {
        let left = self.timeouts.response.saturating_sub(self.since.elapsed());
        let Ok(Ok(response)) = timeout(left, poll_fn(|cx| self.poll(cx))).await else {
            self.running = None;
            return;
        };
        if let Some((lease, _)) = self.running.take() {
            let arriving = Arriving { body: response.into_body(), lease, progress: None, linger: None };
            arriving.discard(self.timeouts.stream).await;
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let sent = self.progress.as_ref().is_none_or(|progress| progress.state() == UploadState::Done);
        if let (true, Some(linger), running @ Some(_)) = (sent, self.linger.take(), self.running.take()) {
            let (progress, timeouts) = (self.progress.take(), self.timeouts.clone());
            linger.go_on(Asked { running, progress, linger: None, timeouts, since: self.since }.discard());
        }
    }
}

/// What an idempotent request without a body needs to be sent again.
struct Replay {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Replay {
    fn of(request: &Request<RequestBody>) -> Option<Replay> {
        let idempotent = request.method().is_idempotent() && matches!(request.body(), RequestBody::Empty);
        idempotent.then(|| Replay {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        })
    }

    fn request(self) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::Empty);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        request
    }
}

/// The request to send once more, if that is safe.
fn again(
    mut error: TrySendError<Request<RequestBody>>,
    reused: bool,
    copy: Option<Replay>,
) -> Option<Request<RequestBody>> {
    if !reused {
        return None;
    }
    error.take_message().or_else(|| copy.map(Replay::request))
}

fn failure(progress: Option<&Progress>, broken: &IntCounter) -> Failure {
    match progress.map(Progress::state) {
        Some(UploadState::TooLarge) => Failure::TooLarge,
        Some(UploadState::Broken) => Failure::UploadBroken,
        _ => {
            broken.inc();
            Failure::Broken
        }
    }
}
