//! The request body as the gateway reads it, over any protocol. Each module that speaks a protocol to clients
//! implements [`BodyStream`].

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// A request body, from its first byte to its trailers.
#[derive(Default)]
pub struct RequestBody(Option<Box<dyn BodyStream>>);

/// The connection or stream that a request body arrives on.
pub trait BodyStream {
    /// Polls for the next frame. Returns `None` once the body is complete.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>>;

    /// Returns whether the body is complete, so that [`poll_frame`](Self::poll_frame) would return `None`.
    fn is_end(&self) -> bool;

    /// Returns how many bytes are left, as far as that is known.
    fn size_hint(&self) -> SizeHint;
}

/// Why a request body is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// The client has violated the framing of the body. Over HTTP/2, its stream has been reset.
    Malformed,
    /// The client has disconnected, or the connection has failed.
    CutOff,
}

/// A body that is in memory.
pub struct WholeBody(Bytes);

impl WholeBody {
    pub fn new(bytes: Bytes) -> WholeBody {
        WholeBody(bytes)
    }
}

impl BodyStream for WholeBody {
    fn poll_frame(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let rest = std::mem::take(&mut self.0);
        Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))))
    }

    fn is_end(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

impl RequestBody {
    /// Makes the body of a request that has none.
    pub fn empty() -> RequestBody {
        RequestBody(None)
    }

    pub fn new(source: impl BodyStream + 'static) -> RequestBody {
        RequestBody(Some(Box::new(source)))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |source| source.poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|source| source.is_end())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), |source| source.size_hint())
    }
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyFault::Malformed => "the framing of the request body is malformed",
            BodyFault::CutOff => "the client disconnected before the end of the request body",
        })
    }
}

impl std::error::Error for BodyFault {}
