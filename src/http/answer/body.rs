//! The response body towards the client: it passes frames on, and on the way keeps the
//! connection's deadline and the account. What ends with a response ends with its body.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::http::answer::access_log::Entry;
use crate::http::deadline::{Phase, Slot};
use crate::http::downstream::upload::{Progress, Upload, UploadError};
use crate::http::upstream::exchange::{self, Exchange};
use crate::http::upstream::h1::Fault;
use crate::http::upstream::linger::Linger;
use crate::limit::held::{Held, Leases};
use crate::snapshot::RouteHandles;

/// A response body as the client connection reads it.
pub struct Body {
    source: Source,
    tail: Option<Tail>,
}

enum Source {
    Full(Bytes),
    Upstream {
        exchange: Rc<RefCell<Exchange>>,
        /// It goes on when the client leaves.
        linger: Option<Linger>,
    },
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
    pub leases: Option<Rc<Leases>>,
    /// The request's own body, which may outlast the answer.
    pub upload: Option<Rc<Progress>>,
    pub log: Option<Box<Entry>>,
}

/// A response body that could not be completed.
#[derive(Debug)]
pub enum BodyError {
    Upstream(Fault),
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

    /// Streams an upstream's answer.
    pub fn upstream(exchange: Rc<RefCell<Exchange>>, linger: Option<Linger>) -> Body {
        Body { source: Source::Upstream { exchange, linger }, tail: None }
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
            Source::Upstream { exchange, .. } => {
                let polled = exchange.borrow_mut().poll_frame(cx);
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
            Source::Upstream { exchange, .. } => exchange.borrow().is_answered(),
            Source::Echo(upload) => upload.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Upstream { exchange, .. } => exchange.borrow().size_hint(),
            Source::Echo(upload) => upload.size_hint(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let Source::Upstream { exchange, linger } = &mut self.source else { return };
        let answered = exchange.borrow().is_answered();
        if let (false, Some(linger), Some(tail)) = (answered, linger.take(), &self.tail) {
            linger.go_on(exchange::discard(exchange.clone(), tail.stream, tail.stream));
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
        match &self.upload {
            Some(upload) => upload.answered(self.keepalive),
            None => self.slot.arm(Phase::Idle, self.keepalive),
        }
    }
}
