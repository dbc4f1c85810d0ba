//! Responses of the admin listener: JSON, text, problem documents and event streams. Used by all its pages.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::admin::problem::{Problem, ProblemKind};
use crate::admin::slots::StreamPermit;

pub type AdminResponse = Response<AdminBody>;

/// Body of an admin response.
pub enum AdminBody {
    /// The whole body; `None` once it was read.
    Full(Option<Bytes>),
    /// Pieces that are sent as they are made. The body ends when the sender is dropped; the sender finds its channel
    /// closed when the client disconnected.
    Stream { pieces: mpsc::Receiver<Bytes>, permit: StreamPermit },
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            AdminBody::Full(body) => Poll::Ready(body.take().map(|piece| Ok(Frame::data(piece)))),
            AdminBody::Stream { pieces, permit } => {
                permit.record_read();
                pieces.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AdminBody::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AdminBody::Full(body) => SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64),
            AdminBody::Stream { .. } => SizeHint::default(),
        }
    }
}

/// Responds with the events that `pieces` receives (`text/event-stream`). The task that makes the events has another
/// handle of `permit`. Once it drops its handle, the connection has little time left to send the rest.
pub fn stream_response(pieces: mpsc::Receiver<Bytes>, permit: StreamPermit) -> AdminResponse {
    let mut answer = typed_response(StatusCode::OK, "text/event-stream", Bytes::new());
    *answer.body_mut() = AdminBody::Stream { pieces, permit };
    answer
}

pub fn json_response(body: impl Into<Bytes>) -> AdminResponse {
    typed_response(StatusCode::OK, "application/json", body)
}

pub fn text_response(body: impl Into<Bytes>) -> AdminResponse {
    typed_response(StatusCode::OK, "text/plain; charset=utf-8", body)
}

pub fn typed_response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> AdminResponse {
    let mut answer = Response::new(AdminBody::Full(Some(body.into())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Responds with a problem document.
pub fn refusal_response(Problem { status, kind, detail, mut more }: Problem) -> AdminResponse {
    more["type"] = kind.urn().into();
    let wait = more["retry_after_seconds"].as_u64();
    let mut answer = problem_response(status, &detail, more);
    let headers = answer.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        StatusCode::SERVICE_UNAVAILABLE => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => drop(wait.map(|seconds| headers.insert(RETRY_AFTER, seconds.into()))),
    }
    answer
}

/// Responds with a problem document that has the members of `body` too.
pub fn problem_response(status: StatusCode, detail: &str, mut body: Value) -> AdminResponse {
    if body["type"].is_null() {
        body["type"] = ProblemKind::of_status(status).urn().into();
    }
    body["title"] = status.canonical_reason().unwrap_or_default().into();
    body["status"] = status.as_u16().into();
    body["detail"] = detail.into();
    typed_response(status, "application/problem+json", body.to_string())
}

/// Responds 503 with the reason.
pub fn unavailable_response(reason: &str) -> AdminResponse {
    problem_response(StatusCode::SERVICE_UNAVAILABLE, reason, json!({}))
}
