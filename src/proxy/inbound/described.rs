//! Parses the head of a request that another proxy describes: in a question (`decide`), or in a check of Envoy (`grpc`).
//!
//! The client of that proxy chose the bytes of the head, and the proxy may accept bytes that the parser of this gateway
//! refuses. So a head that cannot be parsed is a reason to refuse the request. It is never an error of the asking proxy,
//! which would take that for a failure of the gateway, and might let the request pass.

use std::fmt::Write;

use http::{Method, Uri};

use crate::proxy::inbound::reject::Reject;

/// Parses the method.
///
/// # Errors
/// The text is not a token.
pub fn parse_method(text: &[u8]) -> Result<Method, Reject> {
    Method::from_bytes(text).map_err(|_| Reject::Method)
}

/// Parses the target. Also returns the fault that was repaired, for [`judge_faults`]: characters that no URL may contain
/// are percent-encoded, as browsers do it, and a fragment is removed.
///
/// [`judge_faults`]: crate::proxy::inbound::validate::judge_faults
///
/// # Errors
/// The text is no target even then.
pub fn parse_target(text: &[u8]) -> Result<(Uri, Option<Reject>), Reject> {
    if let Ok(uri) = Uri::try_from(text) {
        return Ok((uri, text.contains(&b'#').then_some(Reject::TargetFragment)));
    }
    let uri = Uri::try_from(encode_characters(text)).map_err(|_| Reject::TargetForm)?;
    Ok((uri, Some(Reject::TargetCharacter)))
}

/// Percent-encodes the bytes that no URL may contain. Existing escapes stay as they are.
fn encode_characters(text: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len() + 16);
    for byte in text {
        match byte {
            b'"' | b'<' | b'>' | b'`' => drop(write!(encoded, "%{byte:02X}")),
            b'!'..=b'~' => encoded.push(char::from(*byte)),
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_byte_is_read_repaired_or_refused() {
        for byte in 0..=u8::MAX {
            for at in [&b"/a?b="[..], b"/a"] {
                let (uri, fault) = parse_target(&[at, &[byte]].concat()).unwrap();
                let is_plain = uri.to_string().as_bytes() == [at, &[byte]].concat();
                match byte {
                    b'#' => assert_eq!((uri.to_string().as_bytes(), fault), (at, Some(Reject::TargetFragment))),
                    // In a path, the parser accepts a quotation mark, and in a query a backtick.
                    _ if is_plain => assert!(fault.is_none() && (0x21..0x7f).contains(&byte), "{byte:#x}"),
                    _ => {
                        assert_eq!(uri.to_string(), format!("{}%{byte:02X}", String::from_utf8_lossy(at)));
                        assert_eq!(fault, Some(Reject::TargetCharacter), "{byte:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_target_or_method_is_refused() {
        let long = format!("/{}", "a".repeat(70_000));
        for text in ["", "http://", "http://<x>/", &long] {
            assert_eq!(parse_target(text.as_bytes()).unwrap_err(), Reject::TargetForm, "{text:.40}");
        }
        for text in [&b""[..], b"G T", b"G\0", b"\xff", b"GET,"] {
            assert_eq!(parse_method(text), Err(Reject::Method));
        }
    }

    proptest! {
        #[test]
        fn any_path_has_a_target(rest in prop::collection::vec(any::<u8>(), 0..60)) {
            let text = [b"/", &rest[..]].concat();
            let (uri, _) = parse_target(&text).unwrap();
            prop_assert!(uri.path().starts_with('/') && uri.authority().is_none());
        }
    }
}
