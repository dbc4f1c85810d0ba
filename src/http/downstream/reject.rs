//! Every reason for which a request is refused as unclear HTTP, with its answer and its metric
//! label. Given by the gate and the header rules, turned into an answer by the request function.

use http::StatusCode;

use crate::config::Strictness;
use crate::labels::Label;
use crate::metrics::Rejection;
use crate::route::Reading;

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

/// Makes the enum, the list of its variants and their rows out of one table.
macro_rules! rejects {
    ($($variant:ident: $floor:ident, $status:ident, $reason:literal, $explanation:literal;)*) => {
        /// A closed set: each variant is a value of the label `reason` of `http_rejected_total`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reject {
            $(#[doc = $explanation] $variant,)*
        }

        impl Reject {
            pub const ALL: &[Reject] = &[$(Reject::$variant,)*];

            fn row(self) -> Row {
                match self {
                    $(Reject::$variant => Row {
                        floor: Floor::$floor,
                        status: StatusCode::$status,
                        reason: $reason,
                        explanation: $explanation,
                    },)*
                }
            }
        }
    };
}

rejects! {
    Version: Always, HTTP_VERSION_NOT_SUPPORTED, "version",
        "Only HTTP/1.0, HTTP/1.1 and HTTP/2 are spoken here.";
    MaxHeaders: Always, REQUEST_HEADER_FIELDS_TOO_LARGE, "max_headers",
        "The request has more header fields, pieces of its cookie included, than allowed here.";
    FieldPadding: Always, BAD_REQUEST, "field_padding",
        "A field over HTTP/2 must not begin or end with a space or tab.";
    Connect: Always, NOT_IMPLEMENTED, "connect",
        "This gateway opens no tunnels for CONNECT.";
    MethodCase: Strict, BAD_REQUEST, "method_case",
        "The method differs from a registered one only in upper and lower case, and servers read it differently.";
    TargetForm: Always, BAD_REQUEST, "target_form",
        "The request target must be a path that starts with '/', or '*' with the method OPTIONS.";
    TargetScheme: Defensive, BAD_REQUEST, "target_scheme",
        "The scheme of the request target must be http or https.";
    TransferEncodingVersion: Always, BAD_REQUEST, "transfer_encoding_version",
        "Transfer-Encoding needs HTTP/1.1; an HTTP/1.0 request gives Content-Length.";
    TransferEncodingRepeated: Always, BAD_REQUEST, "transfer_encoding_repeated",
        "Transfer-Encoding must be given once, as 'chunked'.";
    TransferEncodingUnknown: Always, NOT_IMPLEMENTED, "transfer_encoding_unknown",
        "The only transfer coding understood is 'chunked'.";
    TransferEncodingWithLength: Always, BAD_REQUEST, "transfer_encoding_with_length",
        "Transfer-Encoding and Content-Length must not be given together.";
    ContentLength: Always, BAD_REQUEST, "content_length",
        "Content-Length must be given at most once, as one decimal number.";
    Framing: Always, BAD_REQUEST, "framing",
        "It is not certain where this request ends.";
    LineEnd: Strict, BAD_REQUEST, "line_end",
        "Every line of a request head must end with CR LF, an empty one before it too.";
    TargetFragment: Strict, BAD_REQUEST, "target_fragment",
        "The request target must not hold '#'.";
    Expect: Strict, EXPECTATION_FAILED, "expect",
        "The only expectation that can be met is 100-continue.";
    HostMissing: Strict, BAD_REQUEST, "host_missing",
        "An HTTP/1.1 request needs a Host field.";
    HostRepeated: Defensive, BAD_REQUEST, "host_repeated",
        "The Host field must be given once.";
    HostInvalid: Defensive, BAD_REQUEST, "host_invalid",
        "The host must be a name or an address, with an optional port.";
    HostMismatch: Strict, BAD_REQUEST, "host_mismatch",
        "The Host field and the host of the request target differ.";
    PathControl: Defensive, BAD_REQUEST, "path_control",
        "The path holds an encoded control character.";
    PathSlash: Strict, BAD_REQUEST, "path_slash",
        "The path holds an encoded slash (%2F), which this route does not keep (encoded_slashes).";
    PathSlashDots: Strict, BAD_REQUEST, "path_slash_dots",
        "The path holds '.' or '..' between encoded slashes (%2F), which servers read differently.";
    PathBackslash: Strict, BAD_REQUEST, "path_backslash",
        "The path holds a backslash.";
    PathPercent: Strict, BAD_REQUEST, "path_percent",
        "The path holds '%' without two hexadecimal digits after it.";
    PathNonAscii: Strict, BAD_REQUEST, "path_non_ascii",
        "The path holds bytes outside ASCII, which must be percent-encoded.";
    PathAboveRoot: Strict, BAD_REQUEST, "path_above_root",
        "The path climbs above its root with '..'.";
    PathDotParameter: Strict, BAD_REQUEST, "path_dot_parameter",
        "The path holds a '.' or '..' segment with a parameter, which servers read differently.";
    QueryNonAscii: Strict, BAD_REQUEST, "query_non_ascii",
        "The query holds bytes outside ASCII, which must be percent-encoded.";
    ConnectionField: Strict, BAD_REQUEST, "connection_field",
        "The Connection field names a field that must reach the server.";
    Loop: Always, LOOP_DETECTED, "loop",
        "The request has passed this gateway before; an upstream points back at it.";
}

impl Reject {
    pub fn status(self) -> StatusCode {
        self.row().status
    }

    /// Under another strictness it may pass.
    pub fn depends(self) -> bool {
        self.row().floor != Floor::Always
    }

    /// One sentence for the client.
    pub fn explanation(self) -> &'static str {
        self.row().explanation
    }
}

impl Label for Reject {
    fn label(self) -> &'static str {
        self.row().reason
    }
}

impl Rejection for Reject {}

/// The faults of one request that were repaired, or let pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFaults {
    /// The first that `Strict` refuses.
    first: Option<Reject>,
    /// The first that `Defensive` refuses, too.
    unsafe_to_repair: Option<Reject>,
    /// The path holds an encoded slash.
    slash: bool,
}

impl RequestFaults {
    /// Whether they let the request pass where it is to be read like this: then with the fault that only
    /// `Monitor` lets pass.
    pub fn judged(self, reading: Reading) -> Result<Option<Reject>, Reject> {
        if self.slash && !reading.keeps_slashes {
            return Err(Reject::PathSlash);
        }
        match reading.strictness {
            Strictness::Strict => self.first.map_or(Ok(None), Err),
            Strictness::Defensive => self.unsafe_to_repair.map_or(Ok(None), Err),
            Strictness::Monitor => Ok(self.unsafe_to_repair),
        }
    }

    fn add(&mut self, reject: Reject) {
        if reject == Reject::PathSlash {
            self.slash = true;
            return;
        }
        self.first.get_or_insert(reject);
        if reject.row().floor == Floor::Defensive {
            self.unsafe_to_repair.get_or_insert(reject);
        }
    }
}

/// Weighs the faults of one request at a strictness; under `Monitor` it gathers them, for the route to judge.
#[derive(Debug)]
pub struct Judge {
    strictness: Strictness,
    /// Those that passed.
    pub faults: RequestFaults,
}

impl Judge {
    pub fn new(strictness: Strictness) -> Judge {
        Judge { strictness, faults: RequestFaults::default() }
    }

    /// `Err` when the request ends here; else the caller repairs the fault or lets it pass.
    pub fn fault(&mut self, reject: Reject) -> Result<(), Reject> {
        match (reject.row().floor, self.strictness) {
            (Floor::Always, _)
            | (Floor::Defensive, Strictness::Strict | Strictness::Defensive)
            | (Floor::Strict, Strictness::Strict) => Err(reject),
            (Floor::Defensive, Strictness::Monitor) | (Floor::Strict, Strictness::Defensive | Strictness::Monitor) => {
                self.faults.add(reject);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn reasons_are_distinct_labels_and_every_answer_is_an_error() {
        let reasons: HashSet<&str> = Reject::ALL.iter().map(|reject| reject.label()).collect();
        assert_eq!(reasons.len(), Reject::ALL.len());
        for reject in Reject::ALL.iter().copied() {
            assert!(reject.status().as_u16() >= 400);
            assert!(reject.label().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(reject.explanation().ends_with('.'));
        }
    }
}
