//! The response body towards the client: it passes frames on, and on the way keeps the
//! connection's deadline and the account. What ends with a response ends with its body.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::access_log::Entry;
use super::linger::{self, Linger};
use super::pool::Lease;
use super::slot::{Phase, Slot};
use super::upload::{Progress, Upload, UploadError, UploadState};
use crate::limit::held::{Held, Leases};
use crate::snapshot::RouteHandles;

/// A response body as the client connection reads it.
pub struct Body {
    source: Source,
    tail: Option<Tail>,
}

enum Source {
    Full(Bytes),
    Upstream(Option<Arriving>),
    Echo(Upload),
}

/// The body of an upstream's response.
pub struct Arriving {
    pub body: Incoming,
    pub lease: Lease,
    pub progress: Option<Rc<Progress>>,
    pub linger: Option<Linger>,
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
    pub leases: Option<Rc<Leases>>,
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
    pub fn upstream(arriving: Arriving) -> Body {
        Body { source: Source::Upstream(Some(arriving)), tail: None }
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
            Source::Upstream(None) => Poll::Ready(None),
            Source::Upstream(Some(arriving)) => {
                arriving.poll(cx).map(|frame| frame.map(|frame| frame.map_err(BodyError::Upstream)))
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
            Source::Upstream(arriving) => arriving.as_ref().is_none_or(|arriving| arriving.body.is_end_stream()),
            Source::Echo(upload) => upload.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Upstream(Some(arriving)) => arriving.body.size_hint(),
            Source::Upstream(None) => SizeHint::with_exact(0),
            Source::Echo(upload) => upload.size_hint(),
        }
    }
}

impl Arriving {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() {
            // Asked for more, the connection reads more.
            self.lease.advance(cx);
            polled = Pin::new(&mut self.body).poll_frame(cx);
        }
        polled
    }

    /// Nobody reads on.
    fn end(mut self, stream: Duration) {
        let sent = self.progress.as_ref().is_none_or(|progress| progress.state() == UploadState::Done);
        if !sent {
            return;
        }
        if self.body.is_end_stream() {
            self.lease.release();
        } else if let Some(linger) = self.linger.take() {
            linger.go_on(self.discard(stream));
        }
    }

    /// Reads the rest for nobody, within bounds.
    pub async fn discard(mut self, stream: Duration) {
        let mut left = linger::DISCARD_MAX;
        while let Ok(frame) = tokio::time::timeout(stream, poll_fn(|cx| self.poll(cx))).await {
            let size = match &frame {
                None => return self.lease.release(),
                Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
                Some(Err(_)) => return,
            };
            match left.checked_sub(size) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Source::Upstream(arriving) = &mut self.source
            && let Some(arriving) = arriving.take()
        {
            arriving.end(self.tail.as_ref().map_or(Duration::ZERO, |tail| tail.stream));
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
