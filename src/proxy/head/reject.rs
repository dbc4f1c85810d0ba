//! Every reason to refuse a request head as invalid or ambiguous HTTP, in one table: the strictness that refuses it,
//! its status, its metric label and its text.

use http::StatusCode;
use memchr::memchr;

use crate::config::Strictness;
use crate::labels::Label;
use crate::route::ParsingRules;
use crate::telemetry::metrics::Rejection;

/// The most lenient strictness that still refuses a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MinStrictness {
    /// The fault leaves nothing to forward, or it endangers other requests of the connection.
    Always,
    /// `Defensive` has no safe repair. `Monitor` counts the fault and lets the request pass.
    Defensive,
    /// `Defensive` and `Monitor` repair the fault, or forward the request in a form that all servers read alike.
    Strict,
}

/// One row of the table.
struct RejectRow {
    min_strictness: MinStrictness,
    status: StatusCode,
    reason: &'static str,
    explanation: &'static str,
}

/// Declares the enum, the list of its variants and their rows from one table.
macro_rules! rejects {
    ($($variant:ident: $min_strictness:ident, $status:ident, $reason:literal, $explanation:literal;)*) => {
        /// A reason to refuse a head. Each variant is a value of the label `reason` of `http_rejected_total`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reject {
            $(#[doc = $explanation] $variant,)*
        }

        impl Reject {
            pub const ALL: &[Reject] = &[$(Reject::$variant,)*];

            fn row(self) -> RejectRow {
                match self {
                    $(Reject::$variant => RejectRow {
                        min_strictness: MinStrictness::$min_strictness,
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
        "Only HTTP/1.0, HTTP/1.1 and HTTP/2 are supported.";
    MaxHeaders: Always, REQUEST_HEADER_FIELDS_TOO_LARGE, "max_headers",
        "The request has too many headers; each part of a split Cookie header counts as one.";
    FieldPadding: Always, BAD_REQUEST, "field_padding",
        "A header value over HTTP/2 must not begin or end with a space or tab.";
    Connect: Always, NOT_IMPLEMENTED, "connect",
        "This gateway does not open tunnels for CONNECT.";
    Upgrade: Always, FORBIDDEN, "upgrade",
        "This route opens no tunnels, because its limits read responses; its operator can list protocols in `upgrades`.";
    Method: Always, BAD_REQUEST, "method",
        "The method must be a token of letters, digits and a few other characters.";
    MethodCase: Strict, BAD_REQUEST, "method_case",
        "The method differs from a standard method only in case, and servers read it differently.";
    TargetForm: Always, BAD_REQUEST, "target_form",
        "The request target must be a path that starts with '/', or '*' with the OPTIONS method.";
    TargetCharacter: Strict, BAD_REQUEST, "target_character",
        "The request target contains a space or a control character, which must be percent-encoded.";
    TargetScheme: Defensive, BAD_REQUEST, "target_scheme",
        "The scheme of the request target must be http or https.";
    HeaderCharacter: Always, BAD_REQUEST, "header_character",
        "A header contains a character that its name or value must not have.";
    TransferEncodingVersion: Always, BAD_REQUEST, "transfer_encoding_version",
        "Transfer-Encoding requires HTTP/1.1; an HTTP/1.0 request must send Content-Length.";
    TransferEncodingRepeated: Always, BAD_REQUEST, "transfer_encoding_repeated",
        "Transfer-Encoding must appear once, with the value 'chunked'.";
    TransferEncodingUnknown: Always, NOT_IMPLEMENTED, "transfer_encoding_unknown",
        "The only supported transfer coding is 'chunked'.";
    TransferEncodingWithLength: Always, BAD_REQUEST, "transfer_encoding_with_length",
        "Transfer-Encoding and Content-Length must not be sent together.";
    ContentLength: Always, BAD_REQUEST, "content_length",
        "Content-Length must appear at most once, as one decimal number.";
    Framing: Always, BAD_REQUEST, "framing",
        "It is ambiguous where this request ends.";
    LineEnd: Strict, BAD_REQUEST, "line_end",
        "Every line of a request head, and every empty line before it, must end with CR LF.";
    TargetFragment: Strict, BAD_REQUEST, "target_fragment",
        "The request target must not contain '#'.";
    Expect: Strict, EXPECTATION_FAILED, "expect",
        "The only supported expectation is 100-continue.";
    HostMissing: Strict, BAD_REQUEST, "host_missing",
        "A request needs a host (Host or :authority).";
    HostRepeated: Defensive, BAD_REQUEST, "host_repeated",
        "The Host header must appear once.";
    HostInvalid: Defensive, BAD_REQUEST, "host_invalid",
        "The host must be a name or an address, with an optional port.";
    HostMismatch: Strict, BAD_REQUEST, "host_mismatch",
        "The Host header and the host of the request target differ.";
    PathControl: Defensive, BAD_REQUEST, "path_control",
        "The path contains an encoded control character.";
    PathSlash: Strict, BAD_REQUEST, "path_slash",
        "The path contains an encoded slash (%2F), which this route does not accept (encoded_slashes).";
    PathSlashDots: Strict, BAD_REQUEST, "path_slash_dots",
        "The path contains '.' or '..' between encoded slashes (%2F), which servers read differently.";
    PathBackslash: Strict, BAD_REQUEST, "path_backslash",
        "The path contains a backslash.";
    PathPercent: Strict, BAD_REQUEST, "path_percent",
        "The path contains '%' without two hexadecimal digits after it.";
    PathNonAscii: Strict, BAD_REQUEST, "path_non_ascii",
        "The path contains non-ASCII bytes, which must be percent-encoded.";
    PathAboveRoot: Strict, BAD_REQUEST, "path_above_root",
        "The path climbs above its root with '..'.";
    PathDotParameter: Strict, BAD_REQUEST, "path_dot_parameter",
        "The path contains a '.' or '..' segment with a parameter, which servers read differently.";
    QueryNonAscii: Strict, BAD_REQUEST, "query_non_ascii",
        "The query contains non-ASCII bytes, which must be percent-encoded.";
    ConnectionField: Strict, BAD_REQUEST, "connection_field",
        "The Connection header names a header that must reach the server.";
    HeaderAlias: Strict, BAD_REQUEST, "header_alias",
        "A header differs only in punctuation from one that this gateway reads, and servers may confuse the two.";
    Loop: Always, LOOP_DETECTED, "loop",
        "The request has already passed this gateway; an upstream points back to it.";
}

impl Reject {
    /// Returns the fault of a target, or of the line that contains it, with bytes that are not UTF-8.
    pub fn from_raw_bytes(target: &[u8]) -> Option<Reject> {
        let error = str::from_utf8(target).err()?;
        let is_query = memchr(b'?', &target[..error.valid_up_to()]).is_some();
        Some(if is_query { Reject::QueryNonAscii } else { Reject::PathNonAscii })
    }

    /// Returns the fault of a target, or of the line that contains it, that parsers repair in silence: bytes that are not
    /// UTF-8, which are encoded, and a fragment, which is removed.
    pub fn from_raw_target(target: &[u8]) -> Option<Reject> {
        Reject::from_raw_bytes(target).or_else(|| memchr(b'#', target).map(|_| Reject::TargetFragment))
    }

    pub fn status(self) -> StatusCode {
        self.row().status
    }

    /// Returns true if another strictness would let the request pass.
    pub fn depends_on_strictness(self) -> bool {
        self.row().min_strictness != MinStrictness::Always
    }

    /// Returns one sentence for the client.
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

/// The faults of one request that were repaired or let pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFaults {
    /// The first fault that `Strict` refuses.
    first: Option<Reject>,
    /// The first fault that `Defensive` refuses too.
    unsafe_to_repair: Option<Reject>,
    /// The path contains an encoded slash.
    slash: bool,
}

impl RequestFaults {
    /// Decides whether the request passes with these faults, under the rules of its route. Returns the fault that only
    /// `Monitor` lets pass, if there is one.
    ///
    /// # Errors
    /// The first fault that the rules refuse.
    pub fn check(self, reading: ParsingRules) -> Result<Option<Reject>, Reject> {
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
        if reject.row().min_strictness == MinStrictness::Defensive {
            self.unsafe_to_repair.get_or_insert(reject);
        }
    }
}

/// Decides about each fault of a request under one strictness, and collects the ones that pass. A head is read under
/// `Monitor`, which collects the faults until its route is known.
#[derive(Debug)]
pub struct FaultPolicy {
    pub strictness: Strictness,
    /// Faults that passed.
    pub faults: RequestFaults,
}

impl FaultPolicy {
    pub fn new(strictness: Strictness) -> FaultPolicy {
        FaultPolicy { strictness, faults: RequestFaults::default() }
    }

    /// Reports a fault. If this returns `Ok`, the caller repairs the fault or lets it pass.
    ///
    /// # Errors
    /// The strictness refuses the fault, so the request must be refused.
    pub fn report(&mut self, reject: Reject) -> Result<(), Reject> {
        match (reject.row().min_strictness, self.strictness) {
            (MinStrictness::Always, _)
            | (MinStrictness::Defensive, Strictness::Strict | Strictness::Defensive)
            | (MinStrictness::Strict, Strictness::Strict) => Err(reject),
            (MinStrictness::Defensive, Strictness::Monitor)
            | (MinStrictness::Strict, Strictness::Defensive | Strictness::Monitor) => {
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
