//! The client's address: the TCP peer, or the address that trusted proxies forwarded. Determined once per request,
//! before `allow`, `deny` and limits use it.

use std::net::{IpAddr, SocketAddr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::net::IpSet;

/// The client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    pub ip: IpAddr,
    /// The peer is a trusted proxy, so its forwarding headers are used.
    pub trusted_peer: bool,
}

/// A hop that a trusted proxy names.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedHop<'a> {
    /// The header that names it.
    pub header: &'a HeaderName,
    /// The element of the header.
    pub text: &'a [u8],
    /// `None` if the element is not an address.
    pub address: Option<IpAddr>,
    pub is_trusted: bool,
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Number of hops that are read. In a longer chain, the last one of them is the client.
const HOPS_MAX: usize = 32;

/// Determines the client's address. Starting at the peer, each trusted hop names the hop before it; the first hop that
/// is not trusted is the client. If a trusted hop wrote something that is not an address, that hop is the client.
///
/// `Forwarded` is read only if there is no `X-Forwarded-For`.
pub fn identify(peer: IpAddr, headers: &HeaderMap, trusted: &IpSet) -> ClientAddress {
    identify_by_hops(peer, headers, trusted, |_| {})
}

/// Determines the client's address like [`identify`], and calls `visit` with each hop that was read.
pub fn identify_by_hops(
    peer: IpAddr,
    headers: &HeaderMap,
    trusted: &IpSet,
    mut visit: impl FnMut(ForwardedHop<'_>),
) -> ClientAddress {
    let peer = peer.to_canonical();
    if trusted.is_empty() || !trusted.contains(peer) {
        return ClientAddress { ip: peer, trusted_peer: false };
    }
    let ip = if headers.contains_key(X_FORWARDED_FOR) {
        let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
        walk_chain(peer, (&X_FORWARDED_FOR, lines), parse_address, trusted, &mut visit)
    } else {
        let lines = headers.get_all(FORWARDED).iter().rev();
        walk_chain(peer, (&FORWARDED, lines), parse_forwarded_for, trusted, &mut visit)
    };
    ClientAddress { ip, trusted_peer: true }
}

/// Walks along the chain of addresses, from the last to the first.
///
/// Every comma separates elements, even a quoted one. This is safe: the parts of a quoted string are not valid
/// elements, so the walk ends there.
fn walk_chain<'a>(
    peer: IpAddr,
    (header, lines): (&'a HeaderName, impl Iterator<Item = &'a HeaderValue>),
    read: fn(&str) -> Option<IpAddr>,
    trusted: &IpSet,
    visit: &mut impl FnMut(ForwardedHop<'_>),
) -> IpAddr {
    let mut client = peer;
    let tokens = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    for token in tokens.take(HOPS_MAX) {
        let token = token.trim_ascii();
        if token.is_empty() {
            continue;
        }
        let address = str::from_utf8(token).ok().and_then(read).map(|ip| ip.to_canonical());
        let is_trusted = address.is_some_and(|ip| trusted.contains(ip));
        visit(ForwardedHop { header, text: token, address, is_trusted });
        let Some(ip) = address else { break };
        client = ip;
        if !is_trusted {
            break;
        }
    }
    client
}

/// Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip);
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return inner.parse().ok().map(IpAddr::V6);
    }
    match text.parse::<SocketAddr>().ok()? {
        // A scope id has a meaning only on the machine that wrote it.
        SocketAddr::V6(_) if text.contains('%') => None,
        socket => Some(socket.ip()),
    }
}

/// Returns the address in `for=` of one `Forwarded` element (RFC 7239). Every pair of the element must be well-formed,
/// and `for` must appear exactly once.
fn parse_forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in element.split(';') {
        let (name, value) = pair.trim().split_once('=')?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        let value = unquote(value)?;
        if name.eq_ignore_ascii_case("for") {
            if found.is_some() {
                return None;
            }
            found = Some(parse_address(value)?);
        }
    }
    found
}

/// Returns the value of a token or a quoted string. Tokens may contain brackets and ports, which are often sent
/// unquoted. Strings with escapes are rejected, since no address needs them.
fn unquote(value: &str) -> Option<&str> {
    if let Some(rest) = value.strip_prefix('"') {
        let inner = rest.strip_suffix('"')?;
        return (!inner.contains(['"', '\\'])).then_some(inner);
    }
    let plain = !value.is_empty() && value.bytes().all(|b| is_token(b) || matches!(b, b':' | b'[' | b']'));
    plain.then_some(value)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::net::parse_network;

    fn trusted() -> IpSet {
        ["10.0.0.0/8", "2001:db8::/32"].iter().filter_map(|text| parse_network(text)).collect()
    }

    fn headers(name: HeaderName, lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (name.clone(), HeaderValue::from_str(line).unwrap())).collect()
    }

    fn client(peer: &str, name: HeaderName, lines: &[&str]) -> String {
        let map: HeaderMap = lines.iter().fold(HeaderMap::new(), |mut map, line| {
            map.append(name.clone(), HeaderValue::from_str(line).unwrap());
            map
        });
        identify(peer.parse().unwrap(), &map, &trusted()).ip.to_string()
    }

    #[test]
    fn forwarding_headers_count_only_from_trusted_peers() {
        let map = headers(X_FORWARDED_FOR, &["192.0.2.9"]);
        let identity = identify("198.51.100.1".parse().unwrap(), &map, &trusted());
        assert_eq!(identity, ClientAddress { ip: "198.51.100.1".parse().unwrap(), trusted_peer: false });
        let identity = identify("::ffff:10.0.0.1".parse().unwrap(), &map, &trusted());
        assert_eq!(identity, ClientAddress { ip: "192.0.2.9".parse().unwrap(), trusted_peer: true });
    }

    #[test]
    fn x_forwarded_for_is_walked_from_the_right() {
        for (lines, ip) in [
            (&[][..], "10.0.0.1"),
            (&["1.1.1.1, 192.0.2.9"], "192.0.2.9"),
            (&["1.1.1.1, 192.0.2.9, 10.0.0.2"], "192.0.2.9"),
            (&["1.1.1.1, 192.0.2.9", "10.0.0.2,10.0.0.3"], "192.0.2.9"),
            (&["192.0.2.9", ""], "192.0.2.9"),
            (&["10.0.0.9, 10.0.0.2"], "10.0.0.9"),
            (&["192.0.2.9, unknown, 10.0.0.2"], "10.0.0.2"),
            (&["192.0.2.9, unknown"], "10.0.0.1"),
            (&["192.0.2.9:4711"], "192.0.2.9"),
            (&["[2001:db9::1]:80, 2001:db8::5"], "2001:db9::1"),
            (&["[2001:db9::1]"], "2001:db9::1"),
            (&["::ffff:192.0.2.9"], "192.0.2.9"),
            (&["fe80::1%eth0"], "10.0.0.1"),
            (&["[fe80::1%2]:80"], "10.0.0.1"),
            (&["[fe80::1%0]:80"], "10.0.0.1"),
            (&["192.0.2.9 10.0.0.2"], "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", X_FORWARDED_FOR, lines), ip, "{lines:?}");
        }
    }

    #[test]
    fn the_walk_ends_after_32_hops() {
        let hops: Vec<String> = (0..40).map(|i| format!("10.0.1.{i}")).collect();
        assert_eq!(client("10.0.0.1", X_FORWARDED_FOR, &[&format!("192.0.2.9, {}", hops.join(", "))]), "10.0.1.8");
    }

    #[test]
    fn forwarded_is_read_when_x_forwarded_for_is_absent() {
        for (line, ip) in [
            ("for=192.0.2.9", "192.0.2.9"),
            ("For=\"192.0.2.9:47\";proto=http;by=10.0.0.2", "192.0.2.9"),
            ("for=1.1.1.1, for=\"[2001:DB9::17]:4711\", for=10.0.0.2", "2001:db9::17"),
            ("for=192.0.2.9:80", "192.0.2.9"),
            ("for=_hidden", "10.0.0.1"),
            ("for=unknown", "10.0.0.1"),
            ("proto=http", "10.0.0.1"),
            ("for=1.1.1.1;for=192.0.2.9", "10.0.0.1"),
            ("for=1.1.1.1 ;x", "10.0.0.1"),
            ("for=9.9.9.9;host=\"a, for=1.1.1.1\"", "10.0.0.1"),
            ("for=\"1.1.1.1", "10.0.0.1"),
            ("for=\"x, for=192.0.2.9", "192.0.2.9"),
        ] {
            assert_eq!(client("10.0.0.1", FORWARDED, &[line]), ip, "{line}");
        }
        let mut both = headers(FORWARDED, &["for=1.1.1.1"]);
        both.insert(X_FORWARDED_FOR, HeaderValue::from_static("192.0.2.9"));
        assert_eq!(identify("10.0.0.1".parse().unwrap(), &both, &trusted()).ip.to_string(), "192.0.2.9");
    }

    proptest! {
        #[test]
        fn a_trusted_address_means_that_every_hop_is_trusted(
            hops in proptest::collection::vec(prop_oneof!["10\\.0\\.0\\.[1-9]", "192\\.0\\.2\\.[1-9]"], 0..20),
            left in "[ -~]{0,20}",
        ) {
            let set = trusted();
            let walked = client("10.0.0.1", X_FORWARDED_FOR, &[&hops.join(",")]);
            let untrusted = hops.iter().rev().find(|hop| !set.contains(hop.parse().unwrap()));
            match untrusted {
                Some(hop) => {
                    prop_assert_eq!(hop, &walked);
                    let spoofed = client("10.0.0.1", X_FORWARDED_FOR, &[&left, &hops.join(",")]);
                    prop_assert_eq!(spoofed, walked, "nothing left of the client counts");
                }
                None => prop_assert_eq!(&walked, hops.first().map_or("10.0.0.1", |hop| hop.as_str())),
            }
        }

        #[test]
        fn no_field_panics(line in proptest::collection::vec(any::<u8>(), 0..60), xff: bool) {
            if let Ok(value) = HeaderValue::from_bytes(&line) {
                let name = if xff { X_FORWARDED_FOR } else { FORWARDED };
                identify("10.0.0.1".parse().unwrap(), &HeaderMap::from_iter([(name, value)]), &trusted());
            }
        }
    }
}
