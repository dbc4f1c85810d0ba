//! Every reason for which a request is refused as unclear HTTP, with its answer and its metric
//! label. Given by the gate and the header rules, turned into an answer by the request function.

use http::StatusCode;

use crate::config::Strictness;

/// A closed set: each variant is a value of the label `reason` of `http_rejected_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    Version,
    Connect,
    TargetForm,
    TargetScheme,
    TransferEncodingVersion,
    TransferEncodingRepeated,
    TransferEncodingUnknown,
    TransferEncodingWithLength,
    ContentLength,
    Expect,
    HostMissing,
    HostRepeated,
    HostInvalid,
    HostMismatch,
    PathControl,
    PathSlash,
    PathBackslash,
    PathPercent,
    PathNonAscii,
    PathAboveRoot,
    PathDotParameter,
    QueryNonAscii,
    ConnectionField,
    Loop,
}

/// The mildest strictness at which a fault is still refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Floor {
    /// Nothing sensible could be forwarded, or it would endanger other requests of a connection.
    Always,
    /// `Defensive` has no safe repair. `Monitor` counts it and lets it pass.
    Defensive,
    /// `Defensive` and `Monitor` repair it, or forward it in a form that has one reading.
    Strict,
}

struct Row {
    floor: Floor,
    status: StatusCode,
    reason: &'static str,
    explanation: &'static str,
}

impl Reject {
    pub const ALL: [Reject; 24] = [
        Reject::Version,
        Reject::Connect,
        Reject::TargetForm,
        Reject::TargetScheme,
        Reject::TransferEncodingVersion,
        Reject::TransferEncodingRepeated,
        Reject::TransferEncodingUnknown,
        Reject::TransferEncodingWithLength,
        Reject::ContentLength,
        Reject::Expect,
        Reject::HostMissing,
        Reject::HostRepeated,
        Reject::HostInvalid,
        Reject::HostMismatch,
        Reject::PathControl,
        Reject::PathSlash,
        Reject::PathBackslash,
        Reject::PathPercent,
        Reject::PathNonAscii,
        Reject::PathAboveRoot,
        Reject::PathDotParameter,
        Reject::QueryNonAscii,
        Reject::ConnectionField,
        Reject::Loop,
    ];

    pub fn status(self) -> StatusCode {
        self.row().status
    }

    pub fn reason(self) -> &'static str {
        self.row().reason
    }

    /// One sentence for the client.
    pub fn explanation(self) -> &'static str {
        self.row().explanation
    }

    fn row(self) -> Row {
        use Floor::{Always, Defensive, Strict};
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        let (floor, status, reason, explanation) = match self {
            Reject::Version => (
                Always,
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "version",
                "Only HTTP/1.0 and HTTP/1.1 are spoken here.",
            ),
            Reject::Connect => {
                (Always, StatusCode::NOT_IMPLEMENTED, "connect", "This gateway opens no tunnels for CONNECT.")
            }
            Reject::TargetForm => (
                Always,
                BAD,
                "target_form",
                "The request target must be a path that starts with '/', or '*' with the method OPTIONS.",
            ),
            Reject::TargetScheme => {
                (Defensive, BAD, "target_scheme", "The scheme of the request target must be http or https.")
            }
            Reject::TransferEncodingVersion => (
                Always,
                BAD,
                "transfer_encoding_version",
                "Transfer-Encoding needs HTTP/1.1; an HTTP/1.0 request gives Content-Length.",
            ),
            Reject::TransferEncodingRepeated => {
                (Always, BAD, "transfer_encoding_repeated", "Transfer-Encoding must be given once, as 'chunked'.")
            }
            Reject::TransferEncodingUnknown => (
                Always,
                StatusCode::NOT_IMPLEMENTED,
                "transfer_encoding_unknown",
                "The only transfer coding understood is 'chunked'.",
            ),
            Reject::TransferEncodingWithLength => (
                Always,
                BAD,
                "transfer_encoding_with_length",
                "Transfer-Encoding and Content-Length must not be given together.",
            ),
            Reject::ContentLength => {
                (Always, BAD, "content_length", "Content-Length must be given at most once, as one decimal number.")
            }
            Reject::Expect => (
                Strict,
                StatusCode::EXPECTATION_FAILED,
                "expect",
                "The only expectation that can be met is 100-continue.",
            ),
            Reject::HostMissing => (Strict, BAD, "host_missing", "An HTTP/1.1 request needs a Host field."),
            Reject::HostRepeated => (Defensive, BAD, "host_repeated", "The Host field must be given once."),
            Reject::HostInvalid => {
                (Defensive, BAD, "host_invalid", "The host must be a name or an address, with an optional port.")
            }
            Reject::HostMismatch => {
                (Strict, BAD, "host_mismatch", "The Host field and the host of the request target differ.")
            }
            Reject::PathControl => (Defensive, BAD, "path_control", "The path holds an encoded control character."),
            Reject::PathSlash => (Strict, BAD, "path_slash", "The path holds an encoded slash (%2F)."),
            Reject::PathBackslash => (Strict, BAD, "path_backslash", "The path holds a backslash."),
            Reject::PathPercent => {
                (Strict, BAD, "path_percent", "The path holds '%' without two hexadecimal digits after it.")
            }
            Reject::PathNonAscii => {
                (Strict, BAD, "path_non_ascii", "The path holds bytes outside ASCII, which must be percent-encoded.")
            }
            Reject::PathAboveRoot => (Strict, BAD, "path_above_root", "The path climbs above its root with '..'."),
            Reject::PathDotParameter => (
                Strict,
                BAD,
                "path_dot_parameter",
                "The path holds a '.' or '..' segment with a parameter, which servers read differently.",
            ),
            Reject::QueryNonAscii => {
                (Strict, BAD, "query_non_ascii", "The query holds bytes outside ASCII, which must be percent-encoded.")
            }
            Reject::ConnectionField => {
                (Strict, BAD, "connection_field", "The Connection field names a field that must reach the server.")
            }
            Reject::Loop => (
                Always,
                StatusCode::LOOP_DETECTED,
                "loop",
                "The request has passed this gateway before; an upstream points back at it.",
            ),
        };
        Row { floor, status, reason, explanation }
    }
}

/// Weighs the faults of one request at a strictness.
#[derive(Debug)]
pub struct Judge {
    strictness: Strictness,
    /// The first fault that passed only because nothing is refused under `Monitor`.
    pub would_reject: Option<Reject>,
}

impl Judge {
    pub fn new(strictness: Strictness) -> Judge {
        Judge { strictness, would_reject: None }
    }

    /// `Err` when the request ends here; else the caller repairs the fault or lets it pass.
    pub fn fault(&mut self, reject: Reject) -> Result<(), Reject> {
        match (reject.row().floor, self.strictness) {
            (Floor::Always, _)
            | (Floor::Defensive, Strictness::Strict | Strictness::Defensive)
            | (Floor::Strict, Strictness::Strict) => Err(reject),
            (Floor::Defensive, Strictness::Monitor) => {
                self.would_reject.get_or_insert(reject);
                Ok(())
            }
            (Floor::Strict, Strictness::Defensive | Strictness::Monitor) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn reasons_are_distinct_labels_and_every_answer_is_an_error() {
        let reasons: HashSet<&str> = Reject::ALL.iter().map(|reject| reject.reason()).collect();
        assert_eq!(reasons.len(), Reject::ALL.len());
        for reject in Reject::ALL {
            assert!(reject.status().as_u16() >= 400);
            assert!(reject.reason().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(reject.explanation().ends_with('.'));
        }
    }
}
