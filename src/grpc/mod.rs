//! gRPC over HTTP: status codes, how a response states its code, and the frames of messages. Limits read codes
//! (`refund_on`, `charge_on`), the gateway's own responses to gRPC calls state one, and the services of listeners with
//! `serve = "grpc"` read and write messages.
//!
//! - `frame`: the frames of messages.

pub mod frame;

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName};

use crate::labels::labels;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub const GRPC: &str = "application/grpc";

labels! {
    /// A gRPC status code, in numeric order.
    GrpcCode:
    Ok = "OK",
    Cancelled = "CANCELLED",
    Unknown = "UNKNOWN",
    InvalidArgument = "INVALID_ARGUMENT",
    DeadlineExceeded = "DEADLINE_EXCEEDED",
    NotFound = "NOT_FOUND",
    AlreadyExists = "ALREADY_EXISTS",
    PermissionDenied = "PERMISSION_DENIED",
    ResourceExhausted = "RESOURCE_EXHAUSTED",
    FailedPrecondition = "FAILED_PRECONDITION",
    Aborted = "ABORTED",
    OutOfRange = "OUT_OF_RANGE",
    Unimplemented = "UNIMPLEMENTED",
    Internal = "INTERNAL",
    Unavailable = "UNAVAILABLE",
    DataLoss = "DATA_LOSS",
    Unauthenticated = "UNAUTHENTICATED",
}

impl GrpcCode {
    /// Parses the number of a code: decimal digits without a leading zero.
    pub fn from_number(text: &str) -> Option<GrpcCode> {
        let number = text.parse::<usize>().ok().filter(|number| number.to_string() == text)?;
        GrpcCode::ALL.get(number).copied()
    }

    /// Returns whether the code says that the server failed, and not its client. `UNIMPLEMENTED` and
    /// `DEADLINE_EXCEEDED` do not: clients can call methods that do not exist, and choose deadlines.
    pub fn is_server_failure(self) -> bool {
        matches!(self, GrpcCode::Unknown | GrpcCode::Internal | GrpcCode::Unavailable | GrpcCode::DataLoss)
    }

    /// Returns the code in the headers or trailers of a response. Like clients, returns `Unknown` if the value is
    /// invalid or repeated.
    pub fn from_headers(fields: &HeaderMap) -> Option<GrpcCode> {
        let mut lines = fields.get_all(GRPC_STATUS).iter();
        let line = lines.next()?;
        let code = line.to_str().ok().filter(|_| lines.next().is_none()).and_then(GrpcCode::from_number);
        Some(code.unwrap_or(GrpcCode::Unknown))
    }
}

/// Returns true for `application/grpc`, `application/grpc+proto` and the like. gRPC-Web is another protocol, with its
/// status in the body.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else { return false };
    let value = content_type.as_bytes();
    value.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC.as_bytes()))
        && matches!(value.get(GRPC.len()), None | Some(b'+' | b';' | b' '))
}

/// Returns how long the client waits, from `grpc-timeout`: at most eight digits and a unit.
pub fn parse_timeout(headers: &HeaderMap) -> Option<Duration> {
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

/// Encodes a message for `grpc-message`: everything but printable ASCII is percent-encoded, and so is `%`.
pub fn percent_encode(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => output.push(char::from(byte)),
            _ => drop(write!(output, "%{byte:02X}")),
        }
    }
    output
}

/// Why a call has no answer: the status that its client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    pub code: GrpcCode,
    pub message: Cow<'static, str>,
}

impl CallError {
    pub fn new(code: GrpcCode, message: impl Into<Cow<'static, str>>) -> CallError {
        CallError { code, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn grpc_is_told_by_its_content_type() {
        for (content_type, grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC; charset=x", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grp", false),
            ("application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
            assert_eq!(is_grpc(&headers), grpc, "{content_type}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn a_code_is_read_as_clients_read_it() {
        for (stated, code) in [
            (&["0"][..], Some(GrpcCode::Ok)),
            (&["14"], Some(GrpcCode::Unavailable)),
            (&["16"], Some(GrpcCode::Unauthenticated)),
            (&["17"], Some(GrpcCode::Unknown)),
            (&["03"], Some(GrpcCode::Unknown)),
            (&["+3"], Some(GrpcCode::Unknown)),
            (&[""], Some(GrpcCode::Unknown)),
            (&["0", "0"], Some(GrpcCode::Unknown)),
            (&[], None),
        ] {
            let fields = stated.iter().map(|text| (GRPC_STATUS, HeaderValue::from_static(text)));
            assert_eq!(GrpcCode::from_headers(&fields.collect()), code, "{stated:?}");
        }
    }

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
            assert_eq!(parse_timeout(&headers), wait, "{text}");
        }
    }

    #[test]
    fn messages_stay_printable() {
        assert_eq!(percent_encode("a 100% \u{fc}\n~"), "a 100%25 %C3%BC%0A~");
    }
}
