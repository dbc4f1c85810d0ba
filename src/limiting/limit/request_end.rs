//! How an admitted request ended, as far as it matters for its charges.

use http::{HeaderMap, StatusCode};

/// How an admitted request ended.
#[derive(Clone, Copy, Debug)]
pub enum RequestEnd<'a> {
    /// The request ended with this response, from an upstream server or the gateway.
    Response { status: StatusCode, head: &'a HeaderMap, tail: ResponseTail<'a> },
    /// The gateway responded, because no upstream server accepted a connection. No server received a byte of the
    /// request.
    ConnectError { status: StatusCode, head: &'a HeaderMap },
    /// The gateway refused the request because the upstream is overloaded. No server received a byte of the request.
    Overloaded { status: StatusCode, head: &'a HeaderMap },
    /// There was no response: the client disconnected or cancelled the request after a server had received part of it,
    /// or this process abandoned the request.
    Aborted,
}

/// The part of a response after its headers.
#[derive(Clone, Copy, Debug)]
pub enum ResponseTail<'a> {
    /// The end of the response has not arrived yet.
    Awaited,
    /// The response is complete, with these trailers; usually there are none.
    Whole(&'a HeaderMap),
    /// The server aborted the response.
    Cut,
}

impl RequestEnd<'_> {
    /// Returns the status of the response; `None` if there was none.
    pub fn status(self) -> Option<StatusCode> {
        match self {
            RequestEnd::Response { status, .. }
            | RequestEnd::ConnectError { status, .. }
            | RequestEnd::Overloaded { status, .. } => Some(status),
            RequestEnd::Aborted => None,
        }
    }
}
