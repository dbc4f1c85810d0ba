//! The response body towards the client: it passes frames on, and on the way keeps the
//! connection's deadline and the account. What ends with a response ends with its body.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::access_log::Entry;
use super::pool::Lease;
use super::slot::{Phase, Slot};
use super::upload::{Progress, Upload, UploadError, UploadState};
use crate::limit::held::Held;
use crate::snapshot::RouteHandles;

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
            Source::Echo(upload) => upload.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Upstream { body, .. } => body.size_hint(),
            Source::Echo(upload) => upload.size_hint(),
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
