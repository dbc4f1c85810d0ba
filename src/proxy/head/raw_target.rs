//! Percent-encodes the characters of a request target that the `http` crate refuses, although curl, ad servers and
//! other programs send them as they are: quotes, angle brackets, backticks, and bytes that are not UTF-8. All servers
//! read the encoded form alike. The filters of HTTP/1.1 and HTTP/2 encode them before the parser sees them.

use memchr::memchr;

/// Longest method in whose line targets are encoded.
const METHOD_MAX: usize = 32;

/// Encodes the target in the request line of `head`, which may begin with empty lines. Returns `None` if there is no
/// complete line, or nothing to encode in it.
pub fn encode_request_line(head: &[u8]) -> Option<Vec<u8>> {
    let start = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let line = &head[start..start + memchr(b'\n', &head[start..])?];
    let target_start = start + memchr(b' ', line)? + 1;
    let target_end = target_start + memchr(b' ', &head[target_start..start + line.len()])?;
    let encoded_target = encode_target(&head[target_start..target_end])?;
    Some([&head[..target_start], &encoded_target, &head[target_end..]].concat())
}

/// Returns whether `bytes` may be the beginning of a request line: a method, with what follows.
pub fn begins_request_line(bytes: &[u8]) -> bool {
    let method = bytes.trim_ascii_start().split(|byte| *byte == b' ').next().unwrap_or_default();
    (1..=METHOD_MAX).contains(&method.len()) && method.iter().all(|byte| byte.is_ascii_alphabetic() || *byte == b'-')
}

/// Returns whether the bytes contain a complete line after any empty lines.
pub fn has_whole_line(bytes: &[u8]) -> bool {
    memchr(b'\n', bytes.trim_ascii_start()).is_some()
}

/// Encodes a target. Returns `None` if there is nothing to encode.
pub fn encode_target(target: &[u8]) -> Option<Vec<u8>> {
    if target.iter().all(|byte| byte.is_ascii() && !matches!(byte, b'<' | b'>' | b'`' | b'"')) {
        return None;
    }
    let is_text = str::from_utf8(target).is_ok();
    let query_start = memchr(b'?', target).unwrap_or(target.len());
    let mut output = Vec::with_capacity(target.len() + 16);
    for (i, byte) in target.iter().copied().enumerate() {
        // Paths may have quotes and queries backticks. Both are forwarded, paths in their canonical form.
        let is_refused = match byte {
            b'<' | b'>' => true,
            b'`' => i < query_start,
            b'"' => i > query_start,
            _ => !is_text && !byte.is_ascii(),
        };
        match is_refused {
            true => output.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            false => output.push(byte),
        }
    }
    (output.len() > target.len()).then_some(output)
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_target_is_encoded() {
        for (head, encoded) in [
            (
                &b"GET /?q=\"a<b>\" HTTP/1.1\r\nx: \"<>`\r\n\r\n"[..],
                &b"GET /?q=%22a%3Cb%3E%22 HTTP/1.1\r\nx: \"<>`\r\n\r\n"[..],
            ),
            (b"\r\nGET /a`b<?`\"\xe9 HTTP/1.1\r\n\r\n<", b"\r\nGET /a%60b%3C?`%22%E9 HTTP/1.1\r\n\r\n<"),
            (b"GET http://a/\xff HTTP/1.1\n\n", b"GET http://a/%FF HTTP/1.1\n\n"),
        ] {
            assert_eq!(encode_request_line(head).as_deref(), Some(encoded));
        }
        for head in
            ["", "\r\n", "GET /<", "GET /< HTTP/1.1", "GET /\u{e9}?\" HTTP/1.1\r\n", "GET /a\"?` HTTP/1.1\r\n", "<\r\n"]
        {
            let encoded = encode_request_line(head.as_bytes());
            assert_eq!(encoded.is_some(), head.contains("?\""), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_accepted_and_stays(target in proptest::collection::vec(0x21..=0xffu8, 0..30)) {
            let target = [b"/", &target[..]].concat();
            let is_control = target.contains(&0x7f);
            let Some(encoded) = encode_target(&target) else {
                prop_assert!(is_control || Uri::try_from(&target[..]).is_ok());
                return Ok(());
            };
            prop_assert!(is_control || Uri::try_from(&encoded[..]).is_ok());
            prop_assert_eq!(encode_target(&encoded), None);
        }
    }
}
