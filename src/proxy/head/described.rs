//! Parses the head of a request that another proxy describes: in a question (`decide`), or in a check of Envoy
//! (`grpc`).
//!
//! The client of that proxy chose the bytes of the head, and the proxy may accept bytes that the parser of this gateway
//! refuses. So a head that cannot be parsed is a reason to refuse the request. It is never an error of the asking
//! proxy, which would take that for a failure of the gateway, and might let the request pass.

use http::{Method, Uri};

use crate::ends::End;
use crate::proxy::head::raw_target::encode_target;
use crate::proxy::head::reject::{find_raw_bytes_fault, find_raw_target_fault};

/// Parses the method.
///
/// # Errors
/// The text is not a token.
pub fn parse_method(text: &[u8]) -> Result<Method, End> {
    Method::from_bytes(text).map_err(|_| End::Method)
}

/// Parses the target. What [`encode_target`] encodes in proxied requests is encoded here as well, so that a request has
/// one key at every listener. Also returns the fault that was repaired, for [`judge_faults`]: bytes that are not UTF-8,
/// and control characters and spaces, which no parser accepts, are percent-encoded, and a fragment is removed.
///
/// [`judge_faults`]: crate::proxy::head::validate::judge_faults
///
/// # Errors
/// The text is not a target even then.
pub fn parse_target(text: &[u8]) -> Result<(Uri, Option<End>), End> {
    let (raw_bytes, fault, encoded) = (find_raw_bytes_fault(text), find_raw_target_fault(text), encode_target(text));
    let text = encoded.as_deref().unwrap_or(text);
    if let Ok(uri) = Uri::try_from(text) {
        return Ok((uri, fault));
    }
    let uri = Uri::try_from(encode_controls(text)).map_err(|_| End::TargetForm)?;
    Ok((uri, raw_bytes.or(Some(End::TargetCharacter))))
}

/// Percent-encodes control characters and spaces.
fn encode_controls(text: &[u8]) -> Vec<u8> {
    let mut target = Vec::with_capacity(text.len() + 16);
    for byte in text {
        match byte {
            0..=b' ' | 0x7f => target.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            _ => target.push(*byte),
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proxy::head::raw_target::encode_request_line;

    #[test]
    fn each_byte_is_read_repaired_or_refused() {
        for byte in 0..=u8::MAX {
            for at in [&b"/a?b="[..], b"/a"] {
                let (uri, fault) = parse_target(&[at, &[byte]].concat()).unwrap();
                let is_plain = uri.to_string().as_bytes() == [at, &[byte]].concat();
                match byte {
                    b'#' => assert_eq!((uri.to_string().as_bytes(), fault), (at, Some(End::TargetFragment))),
                    // In a path, the parser accepts a quotation mark, and in a query a backtick.
                    _ if is_plain => assert!(fault.is_none() && (0x21..0x7f).contains(&byte), "{byte:#x}"),
                    _ => {
                        let is_control = byte <= b' ' || byte == 0x7f;
                        let raw_bytes = find_raw_bytes_fault(&[at, &[byte]].concat());
                        assert_eq!(uri.to_string(), format!("{}%{byte:02X}", String::from_utf8_lossy(at)));
                        assert_eq!(fault, raw_bytes.or(is_control.then_some(End::TargetCharacter)), "{byte:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_target_or_method_is_refused() {
        let long = format!("/{}", "a".repeat(70_000));
        for text in ["", "http://", "http://<x>/", &long] {
            assert_eq!(parse_target(text.as_bytes()).unwrap_err(), End::TargetForm, "{text:.40}");
        }
        for text in [&b""[..], b"G T", b"G\0", b"\xff", b"GET,"] {
            assert_eq!(parse_method(text), Err(End::Method));
        }
    }

    proptest! {
        /// A target that a client sends to a proxied route is the same target if another proxy describes it.
        #[test]
        fn a_described_target_is_that_of_a_proxied_request(rest in "[!-~\u{e9}\u{3b1}\"<>`?\u{80}]{0,20}", raw in any::<Option<u8>>()) {
            let raw = raw.filter(|byte| *byte >= 0x80);
            let target = [b"/", rest.as_bytes(), raw.as_slice()].concat();
            let line = [b"GET ", &target[..], b" HTTP/1.1\r\n"].concat();
            let line = encode_request_line(&line).unwrap_or(line);
            let proxied = Uri::try_from(&line[4..line.len() - 11]);
            let (uri, fault) = parse_target(&target).unwrap();
            prop_assert_eq!(proxied.unwrap(), uri);
            prop_assert_eq!(fault.is_some(), raw.is_some() || target.contains(&b'#'));
        }

        #[test]
        fn any_path_has_a_target(rest in prop::collection::vec(any::<u8>(), 0..60)) {
            let text = [b"/", &rest[..]].concat();
            let (uri, _) = parse_target(&text).unwrap();
            prop_assert!(uri.path().starts_with('/') && uri.authority().is_none());
        }
    }
}
