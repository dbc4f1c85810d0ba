//! Reads the message of a unary call, and writes its answer.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::BodyExt;

use crate::grpc::frame::MessageReader;
use crate::grpc::{self, CallError, GRPC, GRPC_MESSAGE, GRPC_STATUS, GrpcCode, percent_encode};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{ClientBody, RequestContext};
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::head::body::RequestBody;

/// Longest time from the head of a call to the end of its message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bounds of the time that is left for an answer to reach its client.
const MARGIN_MIN: Duration = Duration::from_millis(2);
const MARGIN_MAX: Duration = Duration::from_millis(50);
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Reads the message of the call, of at most `max` bytes, within [`MESSAGE_TIMEOUT`].
///
/// # Errors
/// The body is not exactly one such message, or it did not arrive in time.
pub async fn read_message(request: &mut RequestContext<'_>, max: usize) -> Result<Bytes, CallError> {
    let Some(mut body) = request.received.body.take_unread_if(|_| true) else {
        return MessageReader::new(max).finish();
    };
    let deadline = request.account.deadline();
    deadline.arm(RequestWait::Upload, MESSAGE_TIMEOUT);
    let start = Instant::now();
    let read = deadline.run_within(read_body(&mut body, max)).await;
    deadline.disarm();
    request.account.add_wait(start);
    let message = read.unwrap_or_else(|_| Err(CallError::new(GrpcCode::DeadlineExceeded, "the message is late")));
    if message.is_err() {
        // The connection discards the rest of the body after the answer.
        request.received.body = ClientBody::Unread(body);
    }
    message
}

async fn read_body(body: &mut RequestBody, max: usize) -> Result<Bytes, CallError> {
    let mut reader = MessageReader::new(max);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| CallError::new(GrpcCode::Cancelled, "the call was cut off"))?;
        if let Some(piece) = frame.data_ref() {
            reader.add(piece)?;
        }
    }
    reader.finish()
}

/// Returns when the answer must be ready at the latest, by the deadline of the call. Its client has waited since it
/// sent the call, so the time runs from the arrival of the head.
pub fn find_end(request: &RequestContext<'_>) -> Option<tokio::time::Instant> {
    let patience = grpc::parse_timeout(&request.received.parts.headers)?;
    tokio::time::Instant::from_std(request.account.started()).checked_add(time_to_decide(patience))
}

/// Returns how long a decision may take if the client waits for `patience`. The rest is for the answer to reach it: on
/// a busy machine, this takes several milliseconds.
fn time_to_decide(patience: Duration) -> Duration {
    patience.saturating_sub((patience / 3).clamp(MARGIN_MIN, MARGIN_MAX))
}

/// Builds the response: the framed message with the status in the trailers, or only headers with the status of an
/// error.
pub fn build_response(answer: Result<Bytes, CallError>) -> Response<ResponseBody> {
    let mut response = match answer {
        Ok(message) => {
            let trailers = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from(GrpcCode::Ok as u16))]);
            Response::new(ResponseBody::message(message, trailers))
        }
        Err(CallError { code, message }) => {
            let mut response = Response::new(ResponseBody::full(Bytes::new()));
            let headers = response.headers_mut();
            headers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
            if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(percent_encode(&message))) {
                headers.insert(GRPC_MESSAGE, message);
            }
            if code == GrpcCode::Unimplemented {
                headers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            response
        }
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_patience_is_left_for_the_answer() {
        for (patience, decide) in [(0, 0), (2, 0), (3, 1), (6, 4), (30, 20), (150, 100), (1000, 950), (60_000, 59_950)]
        {
            let of = Duration::from_millis;
            assert_eq!(time_to_decide(of(patience)), of(decide), "{patience} ms");
        }
    }
}
