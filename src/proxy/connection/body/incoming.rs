//! Request bodies that the HTTP library receives. Behind this file, the steps of a request know only `RequestBody`.
//!
//! A body that is dropped before its end ends its connection (HTTP/1.1), or its rest is discarded (HTTP/2).

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::spawn_local;

use crate::proxy::connection::body::discard::{DiscardPlaces, data_length, discard_stream};
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::head::body::{BodyFault, BodyStream, RequestBody};

/// Returns the body that the library receives over HTTP/1.1.
pub fn wrap_body(body: Incoming) -> RequestBody {
    if body.is_end_stream() { RequestBody::empty() } else { RequestBody::new(IncomingBody(body)) }
}

/// Returns the body that the library receives on a stream. `deadline` belongs to the request, and `places` to the
/// worker. `ip`: address of the client.
pub fn wrap_stream_body(
    body: Incoming,
    deadline: &RequestDeadline,
    places: &Rc<DiscardPlaces>,
    ip: IpAddr,
) -> RequestBody {
    if body.is_end_stream() {
        return RequestBody::empty();
    }
    let (deadline, places) = (deadline.clone(), places.clone());
    RequestBody::new(StreamRequestBody { body: Some(IncomingBody(body)), deadline, places, ip })
}

struct IncomingBody(Incoming);

impl BodyStream for IncomingBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        Pin::new(&mut self.0).poll_frame(cx).map_err(|error| find_fault(&error))
    }

    fn is_end(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// A request body on a stream. Its rest is discarded when it is dropped, because the library would reset the stream.
struct StreamRequestBody {
    /// `None` once it is dropped.
    body: Option<IncomingBody>,
    deadline: RequestDeadline,
    places: Rc<DiscardPlaces>,
    ip: IpAddr,
}

impl BodyStream for StreamRequestBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        self.body.as_mut().map_or(Poll::Ready(None), |body| body.poll_frame(cx))
    }

    fn is_end(&self) -> bool {
        self.body.as_ref().is_none_or(BodyStream::is_end)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), BodyStream::size_hint)
    }
}

impl Drop for StreamRequestBody {
    fn drop(&mut self) {
        if let Some(mut body) = self.body.take().filter(|body| !body.is_end()) {
            let next = move |cx: &mut Context<'_>| {
                body.poll_frame(cx).map(|frame| frame.and_then(Result::ok).map(|frame| data_length(&frame)))
            };
            spawn_local(discard_stream(next, self.deadline.clone(), self.places.clone(), self.ip));
        }
    }
}

/// Distinguishes invalid framing from a client that has disconnected. The HTTP/2 library resets the stream in the first
/// case.
fn find_fault(error: &hyper::Error) -> BodyFault {
    let Some(source) = error.source() else { return BodyFault::CutOff };
    let is_malformed = match source.downcast_ref::<::h2::Error>() {
        Some(error) => error.is_reset() && error.is_library(),
        None => source
            .downcast_ref::<io::Error>()
            .is_some_and(|error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)),
    };
    if is_malformed { BodyFault::Malformed } else { BodyFault::CutOff }
}
