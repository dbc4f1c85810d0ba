//! Rules for forwarding headers in both directions: what is removed, what a route edits, and what the gateway adds
//! about itself.

use http::header::{
    CONNECTION, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use crate::config::Strictness;
use crate::ends::End;
use crate::names::is_header_alias;
use crate::proxy::head::hop::Via;
use crate::proxy::head::reject::FaultPolicy;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::words::known_headers::{HeaderSet, KnownHeader, list_elements};
use crate::received_headers::{HOP_BY_HOP, Visibility, find_visibility, is_ambiguous_name, names_client};
use crate::route::HeaderEdit;

/// Cleans the headers of a request for the next hop:
/// 1. Hop-by-hop headers are removed, and the headers that `Connection` names. `TE: trailers` and `Trailer` stay.
/// 2. Headers whose names contain other characters than letters, digits and `-` are removed. Servers that map headers
///    to variables would confuse `x_real_ip` with `x-real-ip`. Those that `is_kept` names stay.
/// 3. Headers that name the client are removed, unless a trusted peer sent them. `Forwarded` is always removed, because
///    the gateway writes it anew.
/// 4. `Host` is replaced by its canonical form. A request without a host gets none.
///
/// # Errors
/// `Connection` names a protected header, which `policy` refuses, or the request has already passed this gateway.
pub fn clean_request_headers(
    headers: &mut HeaderMap,
    fields: HeaderSet,
    admitted: &ValidatedHead,
    trusted_peer: bool,
    via: &Via,
    is_kept: impl Fn(&HeaderName) -> bool,
    policy: &mut FaultPolicy,
) -> Result<(), End> {
    let mut remove = Vec::new();
    if fields.has_ambiguous_names || (fields.has_client_headers && !trusted_peer) {
        let is_removed = |name: &&HeaderName| match find_visibility(name.as_str()) {
            Visibility::Never => !is_kept(name),
            Visibility::FromTrustedPeers => !trusted_peer,
            Visibility::AsSent | Visibility::Rewritten => false,
        };
        remove.extend(headers.keys().filter(is_removed).cloned());
    }
    if fields.has(KnownHeader::Connection) {
        collect_connection_named(headers, &mut remove, policy)?;
    }
    if fields.has(KnownHeader::Via) && via.is_listed_in(headers) {
        return Err(End::Loop);
    }
    if fields.has(KnownHeader::Forwarded) {
        remove.push(FORWARDED);
    }
    remove_hop_by_hop(headers, fields, remove);

    if admitted.is_host_rewritten() {
        headers.insert(HOST, admitted.authority().clone());
    }
    Ok(())
}

/// Reports a head, as another proxy describes it, in which `Connection` names an end-to-end header that the head has:
/// some proxies forward such a header to their server, others do not.
///
/// # Errors
/// `policy` refuses such a head.
pub fn check_connection_named(headers: &HeaderMap, policy: &mut FaultPolicy) -> Result<(), End> {
    let mut names = Vec::new();
    collect_connection_named(headers, &mut names, policy)?;
    if names.is_empty() { Ok(()) } else { policy.report(End::ConnectionField) }
}

/// Removes spaces and tabs around values. Over HTTP/1.1 they are not part of a value. Over HTTP/2 they are malformed
/// (RFC 9113, section 8.2.1), but some servers send them.
pub fn trim_values(headers: &mut HeaderMap) {
    for value in headers.values_mut() {
        let mut bytes = value.as_bytes();
        while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
            bytes = rest;
        }
        if bytes.len() < value.len()
            && let Ok(trimmed) = HeaderValue::from_bytes(bytes)
        {
            *value = trimmed;
        }
    }
}

/// Cleans the headers of an upstream response for the client, and adds `via` if given.
pub fn clean_response_headers(headers: &mut HeaderMap, via: Option<&Via>) {
    let fields = HeaderSet::from_response(headers);
    let mut remove = Vec::new();
    if fields.has(KnownHeader::Connection) {
        // A protected header stays even if `Connection` names it. `Defensive` reports no fault for that.
        let _ = collect_connection_named(headers, &mut remove, &mut FaultPolicy::new(Strictness::Defensive));
    }
    // No trailers follow a body of known length.
    if fields.has(KnownHeader::Trailer) && fields.has(KnownHeader::ContentLength) {
        headers.remove(TRAILER);
    }
    remove_hop_by_hop(headers, fields, remove);
    if let Some(via) = via {
        headers.append(VIA, via.header_value(Version::HTTP_11).clone());
    }
}

/// Returns the trailers that the `Trailer` lines of a request announce, without those that must not be trailers of a
/// request: framing, routing, authentication, and what the gateway states about the client or the trace. Some servers
/// merge trailers with the headers.
pub fn announced_trailers(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let names = list_elements(headers, &TRAILER);
    names.filter_map(|token| HeaderName::from_bytes(token).ok()).filter(|name| {
        let text = name.as_str();
        is_allowed_trailer(name) && !names_client(text) && !matches!(text, "traceparent" | "tracestate")
    })
}

/// Removes trailers that a response must not have.
pub fn clean_trailers(trailers: &mut HeaderMap) {
    if !trailers.keys().all(is_allowed_trailer) {
        *trailers =
            trailers.iter().filter(|(name, _)| is_allowed_trailer(name)).map(|(n, v)| (n.clone(), v.clone())).collect();
    }
}

/// Returns true for headers that may be trailers (RFC 9110, section 6.5.1).
fn is_allowed_trailer(name: &HeaderName) -> bool {
    let text = name.as_str();
    let framing = matches!(text, "cache-control" | "expect" | "max-forwards" | "set-cookie");
    !framing && !is_protected(text) && !is_hop_by_hop(text) && !is_ambiguous_name(text)
}

/// Has `Connection` name `TE`, which is for the next hop only (RFC 9110, section 10.1.4).
pub fn set_te_connection(headers: &mut HeaderMap) {
    if headers.contains_key(TE) {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Sets the headers that offer or confirm a switch to `protocol`.
pub fn set_upgrade(headers: &mut HeaderMap, protocol: &HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol.clone());
}

/// Applies the edits of a route. Removals come first, so that a route can both remove and set a header.
pub fn apply_edits(headers: &mut HeaderMap, edit: &HeaderEdit) {
    for name in &edit.remove {
        headers.remove(name);
    }
    for (name, value) in &edit.set {
        headers.insert(name, value.clone());
    }
}

/// Removes the headers of a request that servers could confuse with one that the route sets, such as `X-User` beside
/// `X_User`. `has_ambiguous_names`: the head may have such names itself.
pub fn remove_aliases(headers: &mut HeaderMap, edit: &HeaderEdit, has_ambiguous_names: bool) {
    for name in edit.set_names().filter(|name| has_ambiguous_names || is_ambiguous_name(name.as_str())) {
        let aliases: Vec<HeaderName> = headers.keys().filter(|other| is_header_alias(name, other)).cloned().collect();
        for alias in aliases.iter().filter(|alias| !edit.set_names().any(|set| set == *alias)) {
            headers.remove(alias);
        }
    }
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// The names of [`HOP_BY_HOP`], in the same order.
static HOP_BY_HOP_NAMES: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HTTP2_SETTINGS,
    UPGRADE,
    TRANSFER_ENCODING,
];

/// Headers that are handled separately, so that naming them in `Connection` has no effect.
const HANDLED_SEPARATELY: [KnownHeader; 4] =
    [KnownHeader::Te, KnownHeader::Trailer, KnownHeader::Via, KnownHeader::Expect];

fn is_hop_by_hop(name: &str) -> bool {
    let header = KnownHeader::from_name(name);
    header.is_some_and(|header| HANDLED_SEPARATELY.contains(&header) || HOP_BY_HOP.contains(&header))
}

fn remove_hop_by_hop(headers: &mut HeaderMap, fields: HeaderSet, remove: Vec<HeaderName>) {
    if fields.has(KnownHeader::Te) {
        if list_elements(headers, &TE).any(|element| element.eq_ignore_ascii_case(b"trailers")) {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        } else {
            headers.remove(TE);
        }
    }
    // A constant list makes this one comparison of bits.
    if fields.has_any(&HOP_BY_HOP) {
        for (_, name) in HOP_BY_HOP.iter().zip(&HOP_BY_HOP_NAMES).filter(|(known, _)| fields.has(**known)) {
            headers.remove(name);
        }
    }
    for name in remove {
        headers.remove(name);
    }
}

/// Adds the headers that `Connection` names to `remove`. Naming a protected header is a fault: a client could otherwise
/// hide from the server what this gateway or a proxy before it has set.
fn collect_connection_named(
    headers: &HeaderMap,
    remove: &mut Vec<HeaderName>,
    policy: &mut FaultPolicy,
) -> Result<(), End> {
    for token in list_elements(headers, &CONNECTION) {
        if token.eq_ignore_ascii_case(b"keep-alive") || token.eq_ignore_ascii_case(b"close") {
            continue;
        }
        let Ok(name) = HeaderName::from_bytes(token) else { continue };
        if is_protected(name.as_str()) {
            policy.report(End::ConnectionField)?;
        } else if !is_hop_by_hop(name.as_str()) && headers.contains_key(&name) {
            remove.push(name);
        }
    }
    Ok(())
}

/// Returns true for headers that `Connection` must not remove.
fn is_protected(name: &str) -> bool {
    matches!(name, "host" | "authorization" | "cookie" | "set-cookie" | "forwarded" | "x-real-ip")
        || name.starts_with("content-")
        || name.starts_with("x-forwarded-")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::Request;
    use proptest::prelude::*;

    use super::*;
    use crate::config::ForwardedHeaders;
    use crate::config::client_address::ClientAddressRules;
    use crate::names::parse_forwarded_header;
    use crate::net::parse_network;
    use crate::proxy::head::canonical::LastHost;
    use crate::proxy::head::hop::Hop;
    use crate::proxy::head::identity;
    use crate::proxy::head::validate;
    use crate::proxy::outbound::forwarded_headers::ForwardedHeadersWriter;

    const PEER: &str = "192.0.2.1";
    const PROXY: &str = "10.0.0.1";

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        fields.iter().fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
            map
        })
    }

    fn forward(peer: &str, fields: &[(&str, &str)], strictness: Strictness) -> Result<HeaderMap, End> {
        forward_map(peer, map(fields), strictness)
    }

    fn forward_map(peer: &str, headers: HeaderMap, strictness: Strictness) -> Result<HeaderMap, End> {
        let mut parts = Request::new(()).into_parts().0;
        parts.headers.insert(HOST, HeaderValue::from_static("A.example:8080"));
        // Only the host is validated, so that odd framing reaches the functions under test.
        let admitted =
            validate::validate_head(&parts, HeaderSet::from_headers(&parts.headers), &LastHost::default()).unwrap();
        parts.headers.extend(headers);
        parts.headers.insert(HOST, HeaderValue::from_static("A.example:8080"));
        let peer: IpAddr = peer.parse().unwrap();
        let trusted = parse_network("10.0.0.0/8").into_iter().collect();
        let rules = ClientAddressRules { trusted, ..ClientAddressRules::default() };
        let identity = identity::identify(peer, &parts.headers, &rules);
        let (hop, via) = (Hop::new(peer, false), Via::new(0xab));
        let fields = ForwardedHeaders::default();
        let forwarding = ForwardedHeadersWriter {
            hop: &hop,
            via: &via,
            version: Version::HTTP_11,
            identity: &identity,
            fields,
            request_id: None,
        };
        let received = HeaderSet::from_headers(&parts.headers);
        let mut policy = FaultPolicy::new(strictness);
        clean_request_headers(
            &mut parts.headers,
            received,
            &admitted,
            identity.trusted_peer,
            &via,
            |_| false,
            &mut policy,
        )?;
        forwarding.add_to_headers(&mut parts.headers, admitted.authority());
        Ok(parts.headers)
    }

    #[track_caller]
    fn assert_field(map: &HeaderMap, name: &str, expected: &[&str]) {
        assert_eq!(map.get_all(name).iter().collect::<Vec<_>>(), expected, "{name}");
    }

    #[test]
    fn an_untrusted_peer_cannot_state_a_client_address() {
        let spoofed = [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-port", "1"),
            ("x-forwarded-prefix", "/evil"),
            ("x-real-ip", "1.1.1.1"),
            ("x-real-ip", "1.1.1.2"),
            ("forwarded", "for=1.1.1.1"),
            ("x-request-id", "mine"),
            ("x_real_ip", "1.1.1.1"),
            ("x.real.ip", "1.1.1.1"),
            ("traceparent", "00-1-2-01"),
        ];
        let map = forward(PEER, &spoofed, Strictness::Strict).unwrap();
        for (name, value) in [
            ("x-forwarded-for", &[PEER][..]),
            ("x-forwarded-proto", &["http"]),
            ("x-forwarded-host", &["a.example:8080"]),
            ("x-forwarded-port", &["8080"]),
            ("x-forwarded-prefix", &[]),
            ("x-real-ip", &[PEER]),
            ("forwarded", &[]),
            ("x_real_ip", &[]),
            ("x.real.ip", &[]),
            ("traceparent", &["00-1-2-01"]),
            ("host", &["a.example:8080"]),
            ("via", &["1.1 sluicegate-000000ab"]),
        ] {
            assert_field(&map, name, value);
        }
        assert_ne!(map["x-request-id"], "mine");
        assert_eq!(map["x-request-id"].len(), 32);
    }

    #[test]
    fn a_trusted_peer_is_continued() {
        let fields = [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "198.51.100.7"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop"),
            ("x-forwarded-prefix", "/p"),
            ("x-real-ip", "1.1.1.1"),
            ("forwarded", "for=1.1.1.1"),
            ("x-request-id", "theirs"),
            ("via", "1.1 edge, 2 sluicegate-000000ac"),
        ];
        let map = forward(PROXY, &fields, Strictness::Strict).unwrap();
        for (name, value) in [
            ("x-forwarded-for", &["1.1.1.1, 198.51.100.7, 10.0.0.1"][..]),
            ("x-forwarded-proto", &["https"]),
            ("x-forwarded-host", &["shop"]),
            ("x-forwarded-port", &["443"]),
            ("x-forwarded-prefix", &["/p"]),
            ("x-real-ip", &["198.51.100.7"]),
            ("forwarded", &[]),
            ("x-request-id", &["theirs"]),
            ("via", &["1.1 edge, 2 sluicegate-000000ac", "1.1 sluicegate-000000ab"]),
        ] {
            assert_field(&map, name, value);
        }
        let map = forward(PROXY, &[("forwarded", "for=198.51.100.7")], Strictness::Strict).unwrap();
        assert_field(&map, "x-forwarded-for", &["198.51.100.7, 10.0.0.1"]);
        let map = forward(PROXY, &[], Strictness::Strict).unwrap();
        assert_field(&map, "x-forwarded-for", &["10.0.0.1"]);
        assert_eq!(map["x-request-id"].len(), 32);
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let fields = [
            ("connection", "Keep-Alive, X-Custom"),
            ("connection", "x-other, te, bad name, x-absent"),
            ("x-custom", "1"),
            ("x-other", "1"),
            ("x-kept", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("te", "gzip, Trailers"),
            ("trailer", "x-sum"),
            ("transfer-encoding", "chunked"),
        ];
        let map = forward(PEER, &fields, Strictness::Strict).unwrap();
        let mut names: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = "host te trailer via x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto x-kept \
                        x-real-ip x-request-id";
        assert_eq!(names.join(" "), expected);
        assert_field(&map, "te", &["trailers"]);
        let map = forward(PEER, &[("te", "gzip")], Strictness::Strict).unwrap();
        assert!(!map.contains_key("te"));
    }

    #[test]
    fn connection_cannot_hide_protected_fields() {
        for name in ["Host", "Authorization", "cookie", "Content-Type", "X-Forwarded-Host", "Forwarded", "X-Real-IP"] {
            let fields = [("connection", name), ("cookie", "a"), ("authorization", "b"), ("content-type", "c")];
            assert_eq!(forward(PEER, &fields, Strictness::Strict).unwrap_err(), End::ConnectionField, "{name}");
            for strictness in [Strictness::Defensive, Strictness::Monitor] {
                let map = forward(PEER, &fields, strictness).unwrap();
                for kept in ["cookie", "authorization", "content-type", "host", "x-real-ip", "x-forwarded-host"] {
                    assert!(map.contains_key(kept), "{name} {kept}");
                }
            }
        }
    }

    #[test]
    fn a_loop_is_refused_under_every_strictness() {
        let via = [("via", "1.1 edge, 1.1 sluicegate-000000ab")];
        assert_eq!(forward(PEER, &via, Strictness::Monitor).unwrap_err(), End::Loop);
    }

    #[test]
    fn responses_lose_their_hop_by_hop_headers() {
        let mut headers = map(&[
            ("connection", "close, x-hop, set-cookie"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x-sum"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("x_app", "1"),
            ("x-forwarded-proto", "https"),
        ]);
        clean_response_headers(&mut headers, Some(&Via::new(0xab)));
        assert_eq!(headers.len(), 6, "{headers:?}");
        assert_field(&headers, "set-cookie", &["a=1", "b=2"]);
        assert_field(&headers, "trailer", &["x-sum"]);
        assert_field(&headers, "via", &["1.1 sluicegate-000000ab"]);
    }

    #[test]
    fn a_route_removes_before_it_sets() {
        let mut headers = map(&[("x-a", "1"), ("x-a", "2"), ("x-b", "1"), ("x-c", "1")]);
        let x = HeaderName::from_static;
        let change = HeaderEdit {
            remove: vec![x("x-a"), x("x-b")],
            set: vec![(x("x-a"), HeaderValue::from_static("new")), (x("x-d"), HeaderValue::from_static("4"))],
            stated: Vec::new(),
        };
        apply_edits(&mut headers, &change);
        assert_eq!(headers, map(&[("x-a", "new"), ("x-c", "1"), ("x-d", "4")]));
    }

    #[test]
    fn the_names_of_hop_by_hop_headers_have_the_order_of_the_headers() {
        let named = HOP_BY_HOP_NAMES.each_ref().map(|name| KnownHeader::from_name(name.as_str()));
        assert_eq!(named, HOP_BY_HOP.map(Some));
    }

    /// `Connection` and `Upgrade` are written anew for requests that offer another protocol.
    #[test]
    fn nothing_can_be_configured_to_read_a_removed_header() {
        for name in HOP_BY_HOP_NAMES.iter().filter(|name| !matches!(name.as_str(), "connection" | "upgrade")) {
            assert!(parse_forwarded_header(name.as_str()).is_err(), "{name}");
        }
        let named = ["keep-alive", "forwarded", "x_api_key", "x.api.key"];
        assert!(named.iter().all(|name| parse_forwarded_header(name).is_err()));
        for name in
            ["authorization", "cookie", "connection", "upgrade", "te", "trailer", "x-api-key", "x-forwarded-proto"]
        {
            assert!(parse_forwarded_header(name).is_ok(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn forwarding_headers_are_clean_for_any_input(
            fields in proptest::collection::vec((
                prop_oneof![
                    prop::sample::select(vec![
                        "connection", "te", "trailer", "via", "upgrade", "keep-alive", "x-forwarded-for", "x_real_ip",
                        "forwarded", "transfer-encoding", "x-real-ip", "x-forwarded-x", "cookie", "a",
                    ]).prop_map(str::to_owned),
                    "[a-z_.!-]{1,6}",
                ],
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..20),
                    "(close|cookie|a|te|via|x-real-ip|trailers|1.1 b|, ?){0,5}".prop_map(String::into_bytes),
                ],
            ), 0..20),
        ) {
            let mut all = HeaderMap::new();
            for (name, value) in &fields {
                if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(value)) {
                    all.append(name, value);
                }
            }
            let mut response = all.clone();
            clean_response_headers(&mut response, Some(&Via::new(0xab)));
            for peer in [PEER, PROXY] {
                let request = forward_map(peer, all.clone(), Strictness::Defensive).unwrap();
                for name in &HOP_BY_HOP_NAMES {
                    prop_assert!(!request.contains_key(name) && !response.contains_key(name), "{}", name);
                }
                let is_hidden = |name: &HeaderName| find_visibility(name.as_str()) == Visibility::Never;
                prop_assert!(!request.keys().any(is_hidden));
                prop_assert!(peer == PROXY || !request.contains_key("x-forwarded-x"));
                prop_assert_eq!(request.get_all("x-forwarded-for").iter().count(), 1);
                prop_assert!(request["x-forwarded-for"].as_bytes().ends_with(peer.as_bytes()));
                prop_assert!(peer == PROXY || request["x-real-ip"] == PEER && request["x-forwarded-for"] == PEER);
                prop_assert_eq!(request.contains_key("cookie"), all.contains_key("cookie"));
            }
        }
    }
}
