//! Bodies on their way through: the request body towards the upstream, the response body towards
//! the client. Both only pass frames on; on the way they keep the connection's deadline, the size
//! cap and the account.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::account::Entry;
use super::pool::Lease;
use crate::limit::held::Held;
use crate::route::Timeouts;
use crate::snapshot::RouteHandles;
use crate::worker::slot::{Phase, Slot};

/// A request body as the upstream connection reads it.
pub enum RequestBody {
    Empty,
    Upload(Upload),
}

/// A client's body with its deadline and cap.
pub struct Upload {
    body: Incoming,
    slot: Rc<Slot>,
    progress: Rc<Progress>,
    timeouts: Timeouts,
    max_bytes: u64,
    started_ms: u64,
    /// Bytes seen when the deadline was last set.
    armed_at: Option<u64>,
}

/// How far an upload is; shared with the forwarder, which waits for the response meanwhile.
#[derive(Default)]
pub struct Progress {
    seen: Cell<u64>,
    state: Cell<UploadState>,
    /// The response head has arrived: the deadline now follows the response.
    answered: Cell<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadState {
    #[default]
    Running,
    Done,
    /// The body is larger than the route allows.
    TooLarge,
    /// The client went away or broke the framing.
    Broken,
}

/// Ends an upstream exchange whose request body cannot be completed.
#[derive(Debug)]
pub struct UploadError(UploadState);

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            UploadState::TooLarge => f.write_str("the request body is larger than the route allows"),
            _ => f.write_str("the client did not complete the request body"),
        }
    }
}

impl std::error::Error for UploadError {}

impl Progress {
    pub fn state(&self) -> UploadState {
        self.state.get()
    }

    pub fn answer(&self) {
        self.answered.set(true);
    }
}

impl Upload {
    pub fn new(body: Incoming, slot: Rc<Slot>, timeouts: &Timeouts, max_bytes: u64) -> (Upload, Rc<Progress>) {
        let progress = Rc::new(Progress::default());
        let started_ms = slot.now_ms();
        let upload = Upload {
            body,
            slot,
            progress: progress.clone(),
            timeouts: timeouts.clone(),
            max_bytes,
            started_ms,
            armed_at: None,
        };
        (upload, progress)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => {
                self.wait();
                Poll::Pending
            }
            Poll::Ready(None) => {
                self.done();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) => self.fail(UploadState::Broken),
            Poll::Ready(Some(Ok(frame))) => {
                let seen = self.progress.seen.get() + frame.data_ref().map_or(0, |data| data.len() as u64);
                self.progress.seen.set(seen);
                if seen > self.max_bytes {
                    return self.fail(UploadState::TooLarge);
                }
                if self.body.is_end_stream() {
                    self.done();
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn fail(&mut self, state: UploadState) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        self.progress.state.set(state);
        Poll::Ready(Some(Err(UploadError(state))))
    }

    fn done(&mut self) {
        self.progress.state.set(UploadState::Done);
        if !self.progress.answered.get() {
            self.slot.arm(Phase::Response, self.timeouts.response);
        }
    }

    /// Sets the deadline for more bytes: a pause of at most `body`, and after the first such
    /// interval an average of at least `min_body_rate`.
    fn wait(&mut self) {
        let seen = self.progress.seen.get();
        if self.progress.answered.get() || self.armed_at == Some(seen) {
            return;
        }
        self.armed_at = Some(seen);
        let pause = self.timeouts.body;
        let earned = Duration::from_secs(seen / self.timeouts.min_body_rate.max(1));
        let spent = Duration::from_millis(self.slot.now_ms() - self.started_ms);
        self.slot.arm(Phase::Upload, pause.min((pause + earned).saturating_sub(spent)));
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match &mut *self {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Upload(upload) => upload.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Upload(upload) => upload.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Upload(upload) => upload.body.size_hint(),
        }
    }
}

/// A response body as the client connection reads it.
pub struct Body {
    source: Source,
    tail: Option<Tail>,
}

enum Source {
    Full(Bytes),
    Upstream { body: Incoming, lease: Option<Lease>, progress: Option<Rc<Progress>> },
    Echo(Upload),
}

/// What ends with the response, whichever way it ends.
pub struct Tail {
    pub slot: Rc<Slot>,
    pub handles: Arc<RouteHandles>,
    /// Counted among the route's requests in flight.
    pub entered: bool,
    pub started: Instant,
    pub stream: Duration,
    pub keepalive: Duration,
    /// What is given back to limits at the end.
    pub held: Option<Box<Held>>,
    pub log: Option<Box<Entry>>,
}

/// A response body that could not be completed.
#[derive(Debug)]
pub enum BodyError {
    Upstream(hyper::Error),
    Upload(UploadError),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Upstream(error) => write!(f, "the upstream broke off: {error}"),
            BodyError::Upload(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BodyError {}

impl Body {
    pub fn full(bytes: impl Into<Bytes>) -> Body {
        Body { source: Source::Full(bytes.into()), tail: None }
    }

    /// Streams an upstream's response; its connection is kept for reuse if both sides end.
    pub fn upstream(body: Incoming, lease: Lease, progress: Option<Rc<Progress>>) -> Body {
        Body { source: Source::Upstream { body, lease: Some(lease), progress }, tail: None }
    }

    /// Streams the request's own body back.
    pub fn echo(upload: Upload) -> Body {
        Body { source: Source::Echo(upload), tail: None }
    }

    pub fn with_tail(mut self, tail: Tail) -> Body {
        tail.slot.arm(Phase::Stream, tail.stream);
        self.tail = Some(tail);
        self
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match &mut self.source {
            Source::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Source::Upstream { body, lease, .. } => {
                let mut polled = Pin::new(&mut *body).poll_frame(cx);
                if let (Poll::Pending, Some(lease)) = (&polled, lease) {
                    // Asked for more, the connection reads more.
                    lease.advance(cx);
                    polled = Pin::new(body).poll_frame(cx);
                }
                polled.map(|frame| frame.map(|frame| frame.map_err(BodyError::Upstream)))
            }
            Source::Echo(upload) => upload.poll(cx).map(|frame| frame.map(|frame| frame.map_err(BodyError::Upload))),
        };
        if let (Poll::Ready(Some(Ok(frame))), Some(tail)) = (&polled, &mut self.tail) {
            tail.slot.arm(Phase::Stream, tail.stream);
            if let Some(entry) = &mut tail.log {
                entry.add(frame.data_ref().map_or(0, Bytes::len));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Full(bytes) => bytes.is_empty(),
            Source::Upstream { body, .. } => body.is_end_stream(),
            Source::Echo(upload) => upload.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Upstream { body, .. } => body.size_hint(),
            Source::Echo(upload) => upload.body.size_hint(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let Source::Upstream { body, lease, progress } = &mut self.source else { return };
        let sent = progress.as_ref().is_none_or(|progress| progress.state() == UploadState::Done);
        if let (true, true, Some(lease)) = (sent, body.is_end_stream(), lease.take()) {
            lease.release();
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.handles.route.duration.observe(self.started.elapsed().as_secs_f64());
        if self.entered {
            self.handles.route.in_flight.dec();
        }
        if let Some(entry) = &self.log {
            entry.write(self.started);
        }
        self.slot.arm(Phase::Idle, self.keepalive);
    }
}
