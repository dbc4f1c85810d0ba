//! Refusals as gRPC clients read them: HTTP 200, all of it in one block of fields, no body. Called
//! by the tail of `gateway` for requests whose content type says gRPC.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use crate::grpc::{GRPC, GRPC_STATUS, GrpcCode};
use crate::http::answer::body::Body;
use crate::http::answer::problem;
use crate::http::answer::refusal::{self, Refusal};
use crate::http::upstream::failure::UpstreamFailure;
use crate::limit::answer::NEVER;
use crate::limit::{Outcome, Verdict};
use crate::route::Route;
use crate::snapshot::Reason;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Milliseconds; a client that retries waits that long, and does not retry when it is negative.
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// How long the client waits, by its `grpc-timeout`: up to eight digits and a unit.
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count =
        digits.parse::<u64>().ok().filter(|_| digits.len() <= 8 && digits.bytes().all(|b| b.is_ascii_digit()))?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

pub fn response(refusal: &Refusal, route: Option<&Route>, verdict: Option<&Verdict>) -> Response<Body> {
    let (mut code, mut message, mut pushback_ms) = (code(refusal), refusal.detail().to_owned(), None);
    if let (Refusal::Limited, Some(route), Some(verdict)) = (refusal, route, verdict)
        && let Some(checked) = verdict.strictest(&route.limits)
    {
        (code, pushback_ms) = limited(checked.outcome);
        let violated: Vec<&str> = verdict.violated(&route.limits).map(|limit| limit.name.as_str()).collect();
        message = format!("{}: {}", problem::title(checked.outcome, &route.limits[checked.limit]), violated.join(", "));
    }
    let mut response = Response::new(Body::full(Bytes::new()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    headers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(percent_encoded(&message))) {
        headers.insert(GRPC_MESSAGE, message);
    }
    if let Some(pushback_ms) = pushback_ms {
        headers.insert(GRPC_RETRY_PUSHBACK_MS, HeaderValue::from(pushback_ms));
    }
    response
}

/// One refusal, one row.
fn code(refusal: &Refusal) -> GrpcCode {
    match refusal {
        // What clients make of a 400 that is not gRPC.
        Refusal::Gate(_) => GrpcCode::Internal,
        Refusal::NoRoute => GrpcCode::Unimplemented,
        Refusal::Denied => GrpcCode::PermissionDenied,
        Refusal::Misdirected => GrpcCode::Unavailable,
        Refusal::MaxInFlight | Refusal::MaxTunnels => GrpcCode::Unavailable,
        Refusal::TooLarge | Refusal::Upstream(UpstreamFailure::TooLarge) | Refusal::Limited => {
            GrpcCode::ResourceExhausted
        }
        Refusal::Upstream(
            UpstreamFailure::Timeout
            | UpstreamFailure::ClientDeadline
            | UpstreamFailure::CallTimeout
            | UpstreamFailure::UploadTimeout,
        ) => GrpcCode::DeadlineExceeded,
        Refusal::Upstream(UpstreamFailure::UploadBroken | UpstreamFailure::ClientLeft) => GrpcCode::Cancelled,
        Refusal::Upstream(UpstreamFailure::Connect(_) | UpstreamFailure::Overflow(_) | UpstreamFailure::Broken) => {
            GrpcCode::Unavailable
        }
    }
}

/// The code of a limit's refusal, and the exact wait.
fn limited(outcome: Outcome) -> (GrpcCode, Option<i64>) {
    match refusal::reason(outcome) {
        Reason::StoreDown | Reason::MaxDelayed => {
            (GrpcCode::Unavailable, problem::retry_after(outcome).map(|wait_s| wait_s * 1000))
        }
        Reason::MissingKey => (GrpcCode::PermissionDenied, None),
        Reason::RepeatedKey | Reason::NotInteger | Reason::UnreadableKey => (GrpcCode::InvalidArgument, None),
        Reason::NeverFits => (GrpcCode::ResourceExhausted, Some(NEVER)),
        _ => (GrpcCode::ResourceExhausted, outcome.answer().map(|answer| answer.retry_ms)),
    }
}

/// As gRPC wants its messages: printable ASCII but `%` as it is.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_of_a_client_is_read() {
        for (text, wait) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("20S", Some(Duration::from_secs(20))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("500u", Some(Duration::from_micros(500))),
            ("123456789m", None),
            ("1", None),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("1x", None),
        ] {
            let headers = HeaderMap::from_iter([(GRPC_TIMEOUT, HeaderValue::from_str(text).unwrap())]);
            assert_eq!(timeout(&headers), wait, "{text}");
        }
    }

    #[test]
    fn messages_stay_printable() {
        assert_eq!(percent_encoded("a 100% \u{fc}\n~"), "a 100%25 %C3%BC%0A~");
    }
}
