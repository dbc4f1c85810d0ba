//! One request to an upstream: pick a server, send the request, wait for the head of the answer. Called
//! by `gateway` once the request may pass.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Instant;

use http::header::{CONTENT_LENGTH, HOST, TRAILER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, Uri};
use tokio::task::spawn_local;

use crate::http::answer::body::Body;
use crate::http::answer::problem::Failure;
use crate::http::deadline::{Expired, Phase, Slot};
use crate::http::downstream::upload::{Upload, UploadState};
use crate::http::headers;
use crate::http::upstream::exchange::{self, Exchange, Trouble};
use crate::http::upstream::h1::{self, Framing};
use crate::http::upstream::linger::Linger;
use crate::http::upstream::pool::Servers;
use crate::http::upstream::sender::Sender;
use crate::route::Timeouts;

/// A request ready to leave.
pub struct Outgoing {
    pub method: Method,
    pub target: Uri,
    pub headers: HeaderMap,
    pub upload: Option<Upload>,
    /// Send the server's own authority as `Host`.
    pub upstream_host: bool,
    /// The exchange goes on when the client leaves.
    pub linger: Option<Linger>,
}

/// Sends `outgoing` to a server of `servers`.
///
/// A request is sent again only when no server can have acted on it, or acting twice is the same
/// as once: after a failed connect, when a kept connection turns out closed before anything was
/// written, or, without a body and with an idempotent method, before any response came.
pub async fn forward(
    servers: &Servers,
    slot: &Slot,
    timeouts: &Timeouts,
    mut outgoing: Outgoing,
) -> Result<Response<Body>, Failure> {
    let upload = outgoing.upload.take();
    let progress = upload.as_ref().map(Upload::share_progress);
    let framing = outgoing.framing(upload.as_ref());
    let mut unsent = upload;
    let mut sender: Option<Sender> = None;
    loop {
        let Ok(lease) = servers.acquire(timeouts.connect, sender.is_some()).await else {
            servers.outcomes.connect_error.inc();
            return Err(Failure::Connect);
        };
        let host = &lease.server().host;
        let next = match sender.take() {
            None => Sender::new(outgoing.head(host, framing), unsent.take(), outgoing.announced(framing)),
            Some(mut again) => {
                if outgoing.is_for_any_host() {
                    again.set_head(outgoing.head(host, framing));
                }
                again
            }
        };
        if progress.is_none() {
            slot.arm(Phase::Response, timeouts.response);
        }
        let reused = lease.reused;
        let asked = Asked::new(Exchange::new(lease, next, outgoing.method.clone()), &outgoing.linger, timeouts);
        let outcome = slot.within(poll_fn(|cx| asked.exchange.borrow_mut().poll_head(cx))).await;
        let trouble = match outcome {
            Ok(Ok(response)) => {
                servers.outcomes.ok.inc();
                if let Some(progress) = &progress {
                    progress.answering();
                }
                return Ok(asked.answered(response));
            }
            Ok(Err(trouble)) => trouble,
            // The client's slowness says nothing of the upstream.
            Err(Expired(Phase::Upload)) => return Err(Failure::UploadTimeout),
            Err(Expired(_)) => {
                servers.outcomes.timeout.inc();
                asked.end();
                return Err(Failure::Timeout);
            }
        };
        slot.disarm();
        match (trouble, progress.as_ref().map(|progress| progress.state())) {
            (Trouble::Upload, Some(UploadState::TooLarge)) => return Err(Failure::TooLarge),
            (Trouble::Upload, _) => return Err(Failure::UploadBroken),
            (Trouble::Closed, _) if reused => sender = asked.again(outgoing.method.is_idempotent()),
            (trouble, _) => {
                tracing::debug!(upstream = servers.name, %trouble, "an upstream did not answer");
                asked.end();
            }
        }
        if sender.is_none() {
            servers.outcomes.broken.inc();
            return Err(Failure::Broken);
        }
        servers.outcomes.retried_stale.inc();
    }
}

impl Outgoing {
    fn head(&self, host: &HeaderValue, framing: Framing) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEAD_SIZE);
        let target = self.target.path_and_query().map_or("/", |target| target.as_str());
        h1::write_head(&mut head, &self.method, target, &self.headers, host, self.upstream_host, framing);
        head
    }

    /// Its `Host` is that of the server.
    fn is_for_any_host(&self) -> bool {
        self.upstream_host || !self.headers.contains_key(HOST)
    }

    fn framing(&self, upload: Option<&Upload>) -> Framing {
        match upload.map(|upload| upload.size_hint().exact()) {
            None => Framing::None { announced: self.headers.contains_key(CONTENT_LENGTH) },
            Some(Some(length)) => Framing::Length(length),
            Some(None) => Framing::Chunked,
        }
    }

    /// The trailers that may follow a chunked body.
    fn announced(&self, framing: Framing) -> Option<Vec<HeaderName>> {
        let lines = self.headers.get_all(TRAILER).iter();
        (framing == Framing::Chunked).then(|| headers::announced(lines).collect())
    }
}

/// What most heads fit in.
const HEAD_SIZE: usize = 1024;

/// A request under way to the head of its answer. When it is dropped the client has left, or did not
/// send its request to the end.
struct Asked {
    exchange: Rc<RefCell<Exchange>>,
    linger: Option<Linger>,
    timeouts: Timeouts,
    since: Instant,
}

impl Asked {
    fn new(exchange: Exchange, linger: &Option<Linger>, timeouts: &Timeouts) -> Asked {
        Asked {
            exchange: Rc::new(RefCell::new(exchange)),
            linger: linger.clone(),
            timeouts: timeouts.clone(),
            since: Instant::now(),
        }
    }

    fn answered(mut self, response: Response<()>) -> Response<Body> {
        let whole = self.exchange.borrow_mut().take_whole();
        let linger = self.linger.take();
        if !self.exchange.borrow().is_sent() {
            spawn_local(exchange::carry_on(self.exchange.clone()));
        }
        response.map(|()| match whole {
            Some(bytes) => Body::full(bytes),
            None => Body::upstream(self.exchange.clone(), linger),
        })
    }

    /// The upstream is to blame: the client gets to its answer.
    fn end(mut self) {
        self.linger = None;
        if let Some(upload) = self.exchange.borrow_mut().give_up() {
            spawn_local(upload.discard());
        }
    }

    /// To be sent once more, if that is safe.
    fn again(mut self, idempotent: bool) -> Option<Sender> {
        self.linger = None;
        let again = self.exchange.borrow_mut().again(idempotent);
        if again.is_none() {
            self.end();
        }
        again
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(linger) = self.linger.take() {
            let left = self.timeouts.response.saturating_sub(self.since.elapsed());
            linger.go_on(exchange::discard(self.exchange.clone(), left, self.timeouts.stream));
        }
    }
}
