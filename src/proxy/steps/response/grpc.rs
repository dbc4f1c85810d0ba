//! Refusals for gRPC clients: a "trailers-only" response with HTTP status 200, the gRPC status in the headers, and no
//! body.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response};

use crate::grpc::{GRPC, GRPC_MESSAGE, GRPC_STATUS, GrpcCode, percent_encode};
use crate::limiting::{Outcome, Verdict};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::steps::response::problem;
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;

/// The time in milliseconds after which a client may retry. A negative value forbids retries.
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Builds the gRPC response to a refusal.
pub fn build_response(refusal: &Refusal, route: Option<&Route>, verdict: Option<&Verdict>) -> Response<ResponseBody> {
    let (mut code, mut message, mut pushback_ms) = (refusal.end.grpc_code(), refusal.detail().to_owned(), None);
    let mut response = Response::new(ResponseBody::full(Bytes::new()));
    if let (true, Some(route), Some(verdict)) = (refusal.end.is_by_limit(), route, verdict)
        && let Some(checked) = verdict.longest_refusal(&route.limits)
    {
        (code, pushback_ms) = code_for_limit(checked.outcome);
        problem::add_refuse_headers(response.headers_mut(), route, checked);
        let limits: Vec<&str> = verdict.refusing_limits(&route.limits).map(|limit| limit.name.as_str()).collect();
        message =
            format!("{}: {}", problem::refusal_title(checked.outcome, &route.limits[checked.limit]), limits.join(", "));
    }
    pushback_ms = pushback_ms.or(refusal.retry_ms());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    headers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(percent_encode(&message))) {
        headers.insert(GRPC_MESSAGE, message);
    }
    if let Some(pushback_ms) = pushback_ms {
        headers.insert(GRPC_RETRY_PUSHBACK_MS, HeaderValue::from(pushback_ms));
    }
    response
}

/// Returns the code of a limit's refusal, and the time to wait in milliseconds.
fn code_for_limit(outcome: Outcome) -> (GrpcCode, Option<i64>) {
    match outcome.end().grpc_code() {
        code @ GrpcCode::Unavailable => (code, problem::retry_after_s(outcome).map(|wait_s| wait_s * 1000)),
        code => (code, outcome.answer().map(|answer| answer.retry_ms)),
    }
}
