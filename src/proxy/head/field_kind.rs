//! The rules of HTTP/2 (RFC 9113, sections 8.2 and 8.3) for a single header, and for all headers of a request or of
//! trailers together. `head_check` applies them; the table of `hpack` stores the kind of each entry.

use http::Method;
use http::uri::{Authority, PathAndQuery, Scheme};
use memchr::memchr;

use crate::ends::End;
use crate::proxy::head::raw_target;

/// The longest name that the `http` crate accepts.
const NAME_MAX: usize = 65_535;

/// The kind of a header, as the rules distinguish it. It depends on name and value only, so it is determined once for
/// each entry of a dynamic table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    Method {
        is_connect: bool,
    },
    Scheme,
    Authority,
    Path,
    /// A path with characters that the library refuses, until `raw_target` encodes them, or with a fragment, which it
    /// removes.
    RawPath,
    Protocol,
    ContentLength(u64),
    /// Any other well-formed header.
    Regular,
    /// A header that makes any message malformed, by this rule.
    Malformed(End),
}

impl FieldKind {
    /// Determines the kind of a header.
    pub fn new(name: &[u8], value: &[u8]) -> FieldKind {
        if let [b':', pseudo @ ..] = name {
            return FieldKind::from_pseudo(pseudo, value);
        }
        if !is_name(name) {
            return FieldKind::Malformed(End::H2FieldName);
        }
        if !value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..)) {
            return FieldKind::Malformed(End::H2FieldValue);
        }
        match name {
            b"content-length" => {
                parse_length(value).map_or(FieldKind::Malformed(End::H2ContentLength), FieldKind::ContentLength)
            }
            b"connection" | b"transfer-encoding" | b"upgrade" | b"keep-alive" | b"proxy-connection" => {
                FieldKind::Malformed(End::H2ConnectionField)
            }
            b"te" if value != b"trailers" => FieldKind::Malformed(End::H2ConnectionField),
            _ => FieldKind::Regular,
        }
    }

    /// Determines the kind of a pseudo-header. Parses values by the functions that make requests of them later.
    fn from_pseudo(name: &[u8], value: &[u8]) -> FieldKind {
        let kind = match name {
            b"method" => Method::from_bytes(value).ok().map(|method| {
                let is_connect = method == Method::CONNECT;
                FieldKind::Method { is_connect }
            }),
            b"scheme" => Scheme::try_from(value).ok().map(|_| FieldKind::Scheme),
            b"authority" => Authority::try_from(value).ok().map(|_| FieldKind::Authority),
            // RFC 9113, section 8.3.1. The method of `*` is checked with the target. A query alone is what some clients
            // make of `http://a?x`: its path is `/`.
            b"path" if !value.starts_with(b"/") && !value.starts_with(b"?") && value != b"*" => None,
            // The parser removes a fragment in silence.
            b"path" if memchr(b'#', value).is_none() && PathAndQuery::try_from(value).is_ok() => Some(FieldKind::Path),
            b"path" => {
                let target = raw_target::encode_target(value);
                PathAndQuery::try_from(target.as_deref().unwrap_or(value)).ok().map(|_| FieldKind::RawPath)
            }
            b"protocol" => {
                let is_token = !value.is_empty() && value.iter().all(u8::is_ascii_graphic);
                is_token.then_some(FieldKind::Protocol)
            }
            _ => None,
        };
        kind.unwrap_or(FieldKind::Malformed(End::H2PseudoField))
    }
}

/// Returns whether `name` is a token without upper-case letters.
pub fn is_name(name: &[u8]) -> bool {
    let is_token = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.len() <= NAME_MAX && name.iter().all(is_token)
}

/// Parses a decimal number of at most 19 digits, which always fits.
fn parse_length(value: &[u8]) -> Option<u64> {
    let is_number = (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// Checks the headers of one block, in their order.
#[derive(Debug, Default)]
pub struct FieldRules {
    is_connect: bool,
    // The pseudo-headers that the block has had so far.
    method: bool,
    scheme: bool,
    authority: bool,
    path: bool,
    protocol: bool,
    /// The block has had a header that is not a pseudo-header.
    has_regular: bool,
    content_length: Option<u64>,
    /// The first rule that was broken.
    fault: Option<End>,
}

impl FieldRules {
    /// Checks the next header.
    pub fn add(&mut self, kind: FieldKind) {
        let pseudo = match kind {
            FieldKind::Method { is_connect } => {
                self.is_connect |= is_connect;
                &mut self.method
            }
            FieldKind::Scheme => &mut self.scheme,
            FieldKind::Authority => &mut self.authority,
            FieldKind::Path | FieldKind::RawPath => &mut self.path,
            FieldKind::Protocol => &mut self.protocol,
            FieldKind::ContentLength(length) => {
                self.has_regular = true;
                if self.content_length.replace(length).is_some_and(|other| other != length) {
                    self.record_fault(End::H2ContentLength);
                }
                return;
            }
            FieldKind::Regular => return self.has_regular = true,
            FieldKind::Malformed(rule) => return self.record_fault(rule),
        };
        if std::mem::replace(pseudo, true) || self.has_regular {
            self.record_fault(End::H2PseudoField);
        }
    }

    /// Records that the block breaks `rule`.
    fn record_fault(&mut self, rule: End) {
        self.fault.get_or_insert(rule);
    }

    /// Checks a complete request head.
    ///
    /// # Errors
    /// The rule that the head breaks, the first one if there are several.
    pub fn check_head(mut self, ends_stream: bool) -> Result<(), End> {
        let is_tunnel = self.is_connect && !self.protocol;
        let is_complete = match is_tunnel {
            true => self.authority && !self.scheme && !self.path,
            false => self.method && self.scheme && self.path && self.is_connect == self.protocol,
        };
        if !is_complete {
            self.record_fault(End::H2PseudoField);
        }
        // Neither a tunnel nor a stream that has ended has a body.
        if (ends_stream || self.is_connect) && self.content_length.is_some_and(|length| length > 0) {
            self.record_fault(End::H2ContentLength);
        }
        self.fault.map_or(Ok(()), Err)
    }

    /// Checks complete trailers.
    ///
    /// # Errors
    /// The rule that the trailers break, the first one if there are several.
    pub fn check_trailers(mut self, ends_stream: bool) -> Result<(), End> {
        if self.method || self.scheme || self.authority || self.path || self.protocol {
            self.record_fault(End::H2PseudoField);
        }
        if !ends_stream {
            self.record_fault(End::H2Trailers);
        }
        self.fault.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    /// A name or value that is good here and not there would end the connection of many clients.
    #[test]
    fn headers_are_validated_like_the_library() {
        for byte in 0..=255u8 {
            for name in [vec![byte], vec![b'x', byte], vec![b'x', byte, b'y']] {
                // The library accepts quotes, which are not part of a token.
                let is_known = byte != b'"' && HeaderName::from_lowercase(&name).is_ok();
                assert_eq!(is_name(&name), is_known, "{name:?}");
            }
            let value = [b'x', byte, b'y'];
            let is_good = FieldKind::new(b"x", &value) == FieldKind::Regular;
            assert_eq!(is_good, HeaderValue::from_bytes(&value).is_ok(), "{byte}");
        }
        for length in [NAME_MAX, NAME_MAX + 1] {
            let name = vec![b'x'; length];
            assert_eq!(is_name(&name), HeaderName::from_lowercase(&name).is_ok(), "{length}");
        }
    }

    #[test]
    fn lengths_are_digits_that_fit() {
        for (value, length) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("9999999999999999999", Some(9_999_999_999_999_999_999)),
            ("", None),
            ("+5", None),
            ("5 ", None),
            ("5,5", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(super::parse_length(value.as_bytes()), length, "{value:?}");
        }
    }
}
