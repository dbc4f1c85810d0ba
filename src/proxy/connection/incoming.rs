//! Request bodies that the HTTP library receives. Behind this file, the steps of a request know only `RequestBody`.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;

use crate::proxy::inbound::body::{BodyFault, BodyStream, RequestBody};

/// Returns the body that the library receives.
pub fn wrap_body(body: Incoming) -> RequestBody {
    if body.is_end_stream() { RequestBody::empty() } else { RequestBody::new(IncomingBody(body)) }
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

/// Tells invalid framing from a client that has left. The HTTP/2 library resets the stream in the first case.
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
