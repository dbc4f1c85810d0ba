//! The client's address: the TCP peer, or the address that trusted proxies forwarded. Determined once per request,
//! before `allow`, `deny` and limits use it.

use std::borrow::Cow;
use std::iter;
use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::client_address::{AddressHeader, ClientAddressRules, HOPS_MAX};

/// The client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    pub ip: IpAddr,
    /// The peer is a trusted proxy, so its forwarding headers are used.
    pub trusted_peer: bool,
    /// The header of the trusted peer that was read.
    pub read: ReadHeader,
    /// This header names the client. Otherwise the trusted peer itself is the client.
    pub is_named: bool,
}

/// The header in which the client was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadHeader {
    /// The request has none, or the peer is not trusted.
    None,
    XForwardedFor,
    Forwarded,
    /// The header of one address at this index of [`AddressHeaders::singles`].
    ///
    /// [`AddressHeaders::singles`]: crate::config::client_address::AddressHeaders::singles
    Single(usize),
}

impl ClientAddress {
    /// Returns the address of a client that no forwarding header names.
    pub fn of_peer(ip: IpAddr, trusted_peer: bool) -> ClientAddress {
        ClientAddress { ip, trusted_peer, read: ReadHeader::None, is_named: false }
    }

    /// Returns whether the header at this index of the headers of one address names the client. The others are not to
    /// be believed: a proxy passes on what its client wrote there.
    pub fn is_named_in_single(&self, index: usize) -> bool {
        self.is_named && self.read == ReadHeader::Single(index)
    }
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

/// Determines the client's address. The first header of the rules that the request has names it.
///
/// In a list of hops, each trusted hop names the hop before it, starting at the peer; the first hop that is not trusted
/// is the client. If a trusted hop wrote something that is not an address, that hop is the client. Likewise, the peer
/// is the client if a header for one address occurs twice, or is not an address.
pub fn identify(peer: IpAddr, headers: &HeaderMap, rules: &ClientAddressRules) -> ClientAddress {
    identify_by_hops(peer, headers, rules, |_| {})
}

/// Determines the client's address like [`identify`], and calls `visit` with each hop that was read.
pub fn identify_by_hops(
    peer: IpAddr,
    headers: &HeaderMap,
    rules: &ClientAddressRules,
    mut visit: impl FnMut(ForwardedHop<'_>),
) -> ClientAddress {
    let peer = rules.nat64.client_of(peer);
    if rules.trusted.is_empty() || !rules.trusted.contains(peer) {
        return ClientAddress::of_peer(peer, false);
    }
    let mut single = 0;
    for header in rules.headers.iter() {
        let name = header.name();
        let index = single;
        single += usize::from(matches!(header, AddressHeader::Single(_)));
        if !headers.contains_key(name) {
            continue;
        }
        let lines = headers.get_all(name);
        let texts = lines.iter().rev().map(HeaderValue::as_bytes);
        let (read, found) = match header {
            AddressHeader::XForwardedFor => {
                let hops = texts.flat_map(|text| text.rsplit(|byte| *byte == b','));
                (ReadHeader::XForwardedFor, walk_chain((name, hops), parse_address, rules, &mut visit))
            }
            AddressHeader::Forwarded => {
                let hops = texts.flat_map(split_elements);
                (ReadHeader::Forwarded, walk_chain((name, hops), parse_forwarded_for, rules, &mut visit))
            }
            AddressHeader::Single(_) => {
                (ReadHeader::Single(index), read_single((name, lines.iter()), rules, &mut visit))
            }
        };
        return ClientAddress { ip: found.unwrap_or(peer), trusted_peer: true, read, is_named: found.is_some() };
    }
    ClientAddress::of_peer(peer, true)
}

/// Reads a header of exactly one address. Of several lines, some may be the client's own.
fn read_single<'a>(
    (header, lines): (&'a HeaderName, impl Iterator<Item = &'a HeaderValue>),
    rules: &ClientAddressRules,
    visit: &mut impl FnMut(ForwardedHop<'_>),
) -> Option<IpAddr> {
    let (mut found, mut count) = (None, 0);
    for line in lines.take(HOPS_MAX) {
        let text = line.as_bytes().trim_ascii();
        let address = str::from_utf8(text).ok().and_then(parse_address).map(|ip| rules.nat64.client_of(ip));
        let is_trusted = address.is_some_and(|ip| rules.trusted.contains(ip));
        visit(ForwardedHop { header, text, address, is_trusted });
        (found, count) = (address, count + 1);
    }
    found.filter(|_| count == 1)
}

/// Walks along the chain of addresses, from the last to the first. Returns the client; `None` if the last one is no
/// address.
fn walk_chain<'a>(
    (header, hops): (&'a HeaderName, impl Iterator<Item = &'a [u8]>),
    read: fn(&str) -> Option<IpAddr>,
    rules: &ClientAddressRules,
    visit: &mut impl FnMut(ForwardedHop<'_>),
) -> Option<IpAddr> {
    let mut client = None;
    let tokens = hops.take(HOPS_MAX).map(<[u8]>::trim_ascii).filter(|token| !token.is_empty());
    for token in tokens.take(rules.headers.max_hops) {
        let address = str::from_utf8(token).ok().and_then(read).map(|ip| rules.nat64.client_of(ip));
        let is_trusted = address.is_some_and(|ip| rules.trusted.contains(ip));
        visit(ForwardedHop { header, text: token, address, is_trusted });
        let Some(ip) = address else { break };
        client = Some(ip);
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

/// Splits a line of `Forwarded` into its elements, from the last to the first, at the commas outside of quoted strings.
///
/// Proxies append whole elements. Read from the end, these do not depend on what the client wrote in front of them, such
/// as a quote that does not end.
fn split_elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = Some(line);
    iter::from_fn(move || {
        let text = left.take()?;
        let mut is_quoted = false;
        for (at, byte) in text.iter().enumerate().rev() {
            match byte {
                b'"' if !is_quoted || !is_escaped(text, at) => is_quoted = !is_quoted,
                b',' if !is_quoted => {
                    left = Some(&text[..at]);
                    return Some(&text[at + 1..]);
                }
                _ => {}
            }
        }
        Some(text)
    })
}

/// Returns whether an odd number of backslashes precedes the byte.
fn is_escaped(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Returns the address in `for=` of one `Forwarded` element (RFC 7239, section 4). Every pair of the element must be
/// well-formed, and `for` must appear exactly once.
fn parse_forwarded_for(element: &str) -> Option<IpAddr> {
    let (mut address, mut rest) = (None, element);
    loop {
        rest = rest.trim_start_matches([' ', '\t', ';']);
        if rest.is_empty() {
            return address;
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = split_value(after)?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        if name.eq_ignore_ascii_case("for") {
            if address.is_some() {
                return None;
            }
            address = Some(parse_address(&value)?);
        }
        rest = after.trim_start_matches([' ', '\t']);
        if !rest.is_empty() && !rest.starts_with(';') {
            return None;
        }
    }
}

/// Splits off a token or a quoted string, and returns its value and the rest. Tokens may contain brackets and ports, which
/// are often sent unquoted.
fn split_value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let is_end = |c: char| !c.is_ascii() || !(is_token(c as u8) || matches!(c, ':' | '[' | ']'));
        let (value, rest) = text.split_at(text.find(is_end).unwrap_or(text.len()));
        return (!value.is_empty()).then_some((value.into(), rest));
    };
    let end = (0..quoted.len()).find(|at| quoted.as_bytes()[*at] == b'"' && !is_escaped(quoted.as_bytes(), *at))?;
    let (value, rest) = (&quoted[..end], &quoted[end + 1..]);
    if !value.contains('\\') {
        return Some((value.into(), rest));
    }
    let mut chars = value.chars();
    let unescaped = iter::from_fn(|| chars.next().and_then(|c| if c == '\\' { chars.next() } else { Some(c) }));
    Some((unescaped.collect::<String>().into(), rest))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use http::header::FORWARDED;
    use proptest::prelude::*;

    use super::*;
    use crate::config::client_address::AddressHeaders;
    use crate::net::parse_network;

    const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

    fn trusted() -> ClientAddressRules {
        let trusted = ["10.0.0.0/8", "2001:db8::/32"].iter().filter_map(|text| parse_network(text)).collect();
        ClientAddressRules { trusted, ..ClientAddressRules::default() }
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
        assert_eq!(identity, ClientAddress::of_peer("198.51.100.1".parse().unwrap(), false));
        let identity = identify("::ffff:10.0.0.1".parse().unwrap(), &map, &trusted());
        let read = ReadHeader::XForwardedFor;
        let named = ClientAddress { ip: "192.0.2.9".parse().unwrap(), trusted_peer: true, read, is_named: true };
        assert_eq!(identity, named);
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
    fn the_walk_ends_after_as_many_hops_as_configured() {
        let map = headers(X_FORWARDED_FOR, &["1.1.1.1, 192.0.2.9, 10.0.0.2,"]);
        for (max_hops, ip) in [(1, "10.0.0.2"), (2, "192.0.2.9"), (3, "192.0.2.9")] {
            let mut rules = trusted();
            rules.headers.max_hops = max_hops;
            assert_eq!(identify("10.0.0.1".parse().unwrap(), &map, &rules).ip.to_string(), ip, "{max_hops}");
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
            ("for=192.0.2.9;host=\"a, for=1.1.1.1\"", "192.0.2.9"),
            ("for=192.0.2.9;host=\"a;b\";proto=http", "192.0.2.9"),
            (r#"for=192.0.2.9;host="a\",for=1.1.1.1;x=\"""#, "192.0.2.9"),
            (r#"for="192.0.\2.9";secret="\\""#, "192.0.2.9"),
            (";for=192.0.2.9;; proto=http;", "192.0.2.9"),
            ("for=192.0.2.9;host=a;b", "10.0.0.1"),
            ("for=192.0.2.9;host=\"a\"b", "10.0.0.1"),
            ("for=1.1.1.1;x=\", for=192.0.2.9;host=\"a\"", "192.0.2.9"),
            ("for=\"1.1.1.1", "10.0.0.1"),
            ("for=\"x, for=192.0.2.9", "192.0.2.9"),
        ] {
            assert_eq!(client("10.0.0.1", FORWARDED, &[line]), ip, "{line}");
        }
        let mut both = headers(FORWARDED, &["for=1.1.1.1"]);
        both.insert(X_FORWARDED_FOR, HeaderValue::from_static("192.0.2.9"));
        assert_eq!(identify("10.0.0.1".parse().unwrap(), &both, &trusted()).ip.to_string(), "192.0.2.9");
    }

    /// Returns the client of a request with these lines, or `-` if the peer names none.
    fn client_in(list: &[AddressHeader], lines: &[(&'static str, &str)]) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let rules = ClientAddressRules { headers: AddressHeaders::from_config(list.to_vec()), ..trusted() };
        let identity = identify("10.0.0.1".parse().unwrap(), &map, &rules);
        if identity.is_named { identity.ip.to_string() } else { "-".to_owned() }
    }

    #[test]
    fn a_header_of_one_address_names_the_client_alone() {
        let real_ip = || AddressHeader::Single(HeaderName::from_static("x-real-ip"));
        for (value, client) in [
            ("192.0.2.9", "192.0.2.9"),
            (" 192.0.2.9:4711 ", "192.0.2.9"),
            ("[2001:db9::1]:80", "2001:db9::1"),
            ("2001:db9::1", "2001:db9::1"),
            ("64:ff9b::192.0.2.9", "192.0.2.9"),
            ("10.0.0.7", "10.0.0.7"),
            ("192.0.2.9, 192.0.2.8", "-"),
            ("unknown", "-"),
            ("", "-"),
        ] {
            assert_eq!(client_in(&[real_ip()], &[("x-real-ip", value)]), client, "{value}");
        }
        let twice = [("x-real-ip", "192.0.2.9"), ("x-real-ip", "192.0.2.9")];
        assert_eq!(client_in(&[real_ip()], &twice), "-", "one of them may be the client's own");
        assert_eq!(client_in(&[real_ip()], &[("x-forwarded-for", "192.0.2.9")]), "-");
    }

    #[test]
    fn the_first_header_that_a_request_has_decides() {
        let single = |name| AddressHeader::Single(HeaderName::from_static(name));
        let list = [single("cf-connecting-ip"), AddressHeader::Forwarded, AddressHeader::XForwardedFor];
        let chain = ("x-forwarded-for", "192.0.2.3");
        let forwarded = ("forwarded", "for=192.0.2.2");
        assert_eq!(client_in(&list, &[chain]), "192.0.2.3");
        assert_eq!(client_in(&list, &[chain, forwarded]), "192.0.2.2");
        assert_eq!(client_in(&list, &[chain, forwarded, ("cf-connecting-ip", "192.0.2.1")]), "192.0.2.1");
        assert_eq!(client_in(&list, &[chain, forwarded, ("cf-connecting-ip", "?")]), "-", "no other header is tried");
    }

    proptest! {
        #[test]
        fn a_trusted_address_means_that_every_hop_is_trusted(
            hops in proptest::collection::vec(prop_oneof!["10\\.0\\.0\\.[1-9]", "192\\.0\\.2\\.[1-9]"], 0..20),
            left in "[ -~]{0,20}",
        ) {
            let set = trusted().trusted;
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
