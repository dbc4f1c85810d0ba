//! Hosts with an optional port in their canonical form.

use std::fmt::Write;
use std::net::Ipv6Addr;

#[derive(Debug, PartialEq, Eq)]
pub struct Authority {
    /// The canonical text. `None` if the text read is canonical already.
    pub rewritten: Option<String>,
    /// Length of the host at the start of the canonical text. IPv6 addresses keep their brackets.
    pub host_len: usize,
    pub port: Option<u16>,
}

/// Longest hostname. DNS allows 253 characters.
const HOST_MAX: usize = 255;

/// Parses `host[:port]`. The canonical form is in lower case, without a trailing dot and without an empty port; IPv6
/// addresses have their shortest form. Percent-encoding is refused, since it gives one name a second spelling. So is
/// the comma, which shows that two headers were merged into one.
pub fn parse_authority(text: &[u8]) -> Option<Authority> {
    if text.first() == Some(&b'[') {
        return parse_ipv6_literal(text);
    }
    let mut as_is = true;
    let mut after_dot = true;
    let mut end = text.len();
    for (i, byte) in text.iter().enumerate() {
        match byte {
            b':' => {
                end = i;
                break;
            }
            b'.' if after_dot => return None,
            b'A'..=b'Z' => as_is = false,
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' => {}
            b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=' => {}
            _ => return None,
        }
        after_dot = *byte == b'.';
    }
    let mut host = &text[..end];
    if let [name @ .., b'.'] = host {
        host = name;
        as_is = false;
    }
    if host.is_empty() || host.len() > HOST_MAX {
        return None;
    }
    let (port, port_as_is) = parse_port(&text[end..])?;
    let rewritten =
        if as_is && port_as_is { None } else { Some(join_port(str::from_utf8(host).ok()?.to_ascii_lowercase(), port)) };
    Some(Authority { rewritten, host_len: host.len(), port })
}

/// Parses an IPv6 address in brackets, with an optional port.
fn parse_ipv6_literal(text: &[u8]) -> Option<Authority> {
    let close = text.iter().position(|byte| *byte == b']')?;
    let address: Ipv6Addr = str::from_utf8(&text[1..close]).ok()?.parse().ok()?;
    let (port, port_as_is) = parse_port(&text[close + 1..])?;
    let host = format!("[{address}]");
    let host_len = host.len();
    let as_is = port_as_is && host.as_bytes() == &text[..=close];
    Some(Authority { rewritten: (!as_is).then(|| join_port(host, port)), host_len, port })
}

/// Parses what follows the host: nothing or `:port`. Also returns whether it is canonical.
fn parse_port(text: &[u8]) -> Option<(Option<u16>, bool)> {
    match text {
        [] => Some((None, true)),
        [b':'] => Some((None, false)),
        [b':', digits @ ..] if digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit) => {
            let port = str::from_utf8(digits).ok()?.parse().ok()?;
            Some((Some(port), digits[0] != b'0' || digits.len() == 1))
        }
        _ => None,
    }
}

fn join_port(mut host: String, port: Option<u16>) -> String {
    if let Some(port) = port {
        let _ = write!(host, ":{port}");
    }
    host
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_have_one_spelling() {
        for (text, canonical, host_len, port) in [
            ("example.com", "example.com", 11, None),
            ("EXAMPLE.com.", "example.com", 11, None),
            ("example.com.:8080", "example.com:8080", 11, Some(8080)),
            ("example.com:", "example.com", 11, None),
            ("example.com:0080", "example.com:80", 11, Some(80)),
            ("my_app:80", "my_app:80", 6, Some(80)),
            ("192.0.2.1:1", "192.0.2.1:1", 9, Some(1)),
            ("[2001:DB8:0::1]", "[2001:db8::1]", 13, None),
            ("[::1]:443", "[::1]:443", 5, Some(443)),
        ] {
            let read = parse_authority(text.as_bytes()).unwrap();
            assert_eq!(read.rewritten.as_deref().unwrap_or(text), canonical);
            assert_eq!(read.rewritten.is_none(), text == canonical, "{text}");
            assert_eq!((read.host_len, read.port), (host_len, port), "{text}");
        }
    }

    #[test]
    fn invalid_hosts_are_refused() {
        let long = "a".repeat(256);
        let bad = [
            "",
            ".",
            "..",
            ".a",
            "a..b",
            "a..",
            "a/b?c",
            "u@a",
            "a b",
            "a,b",
            "a%41",
            ":80",
            "a:x",
            "a:65536",
            "a:000080",
            "a:1:2",
            "::1",
            "[::1",
            "[::1]x",
            "[::1%25eth0]",
            "[v1.a]",
            "[127.0.0.1]",
            "é",
            "a#b",
            "a\\b",
            &long,
        ];
        for text in bad {
            assert_eq!(parse_authority(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_canonical_host_stays_as_it_is(text in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40),
            r"[a-cA-C.\-_:0-9]{1,20}".prop_map(String::into_bytes),
            r"\[[0-9a-fA-F:.]{2,20}\](:[0-9]{0,6})?".prop_map(String::into_bytes),
        ]) {
            let Some(first) = parse_authority(&text) else { return Ok(()) };
            let canonical = first.rewritten.clone().unwrap_or_else(|| String::from_utf8(text).unwrap());
            let second = parse_authority(canonical.as_bytes()).unwrap();
            prop_assert_eq!(second.rewritten, None);
            prop_assert_eq!((second.host_len, second.port), (first.host_len, first.port));
            prop_assert!(!canonical.contains(|c: char| c.is_ascii_uppercase()));
        }
    }
}
