//! A client cannot forge its address over HTTP/1.1 or HTTP/2: neither for a limit by address nor for the upstream
//! server.

use std::collections::HashMap;

use http::{HeaderName, HeaderValue, Request};

use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent};
use crate::support::upstream::Upstream;

/// The address in every claim. Headers about the client that upstream servers get must not contain it.
const FORGED: &str = "203.0.113.66";

/// The headers in which the gateway describes the client and the path of the request. No other header does.
const TOLD: [&str; 8] = [
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
    "forwarded",
    "x_forwarded_for",
    "x-forwarded-prefix",
];

/// Headers of one request.
type Claim = &'static [(&'static str, &'static str)];

/// Claims of an untrusted peer.
const CLAIMS: &[Claim] = &[
    &[("x-forwarded-for", "203.0.113.66")],
    &[("x-forwarded-for", "203.0.113.66, 127.0.0.1")],
    &[("x-forwarded-for", "127.0.0.1, 203.0.113.66")],
    &[("x-forwarded-for", "203.0.113.66"), ("x-forwarded-for", "203.0.113.66")],
    &[("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", "203.0.113.66")],
    &[("x-forwarded-for", "203.0.113.66:80")],
    &[("x-forwarded-for", "::ffff:203.0.113.66")],
    &[("x-forwarded-for", "[::ffff:203.0.113.66]:1")],
    &[("x-forwarded-for", "unknown, 203.0.113.66")],
    &[("x-forwarded-for", "203.0.113.66,,,")],
    &[("forwarded", "for=203.0.113.66")],
    &[("forwarded", "for=\"[::ffff:203.0.113.66]\";proto=https;by=203.0.113.66")],
    &[("forwarded", "for=_hidden, for=203.0.113.66"), ("forwarded", "for=203.0.113.66")],
    &[("forwarded", "for=127.0.0.1"), ("x-forwarded-for", "203.0.113.66")],
    &[("x-real-ip", "203.0.113.66")],
    &[("x-real-ip", "127.0.0.1"), ("x-real-ip", "203.0.113.66")],
    &[("x-forwarded-host", "203.0.113.66"), ("x-forwarded-proto", "https"), ("x-forwarded-port", "443")],
    &[("x-forwarded-server", "203.0.113.66"), ("x-forwarded-by", "203.0.113.66")],
    &[("x-forwarded-prefix", "/203.0.113.66")],
    &[("x_forwarded_for", "203.0.113.66"), ("x_real_ip", "203.0.113.66")],
    &[("x-forwarded_for", "203.0.113.66"), ("x.forwarded.for", "203.0.113.66")],
    &[("x-forwarded-for ", "203.0.113.66")],
    &[("forwarded_", "for=203.0.113.66")],
    &[("true-client-ip", "203.0.113.66")],
    &[("cf-connecting-ip", "203.0.113.66"), ("fastly-client-ip", "203.0.113.66")],
    &[("x-client-ip", "203.0.113.66"), ("x-cluster-client-ip", "203.0.113.66"), ("client-ip", "203.0.113.66")],
    &[("x-original-forwarded-for", "203.0.113.66"), ("x-originating-ip", "203.0.113.66")],
    &[("remote-addr", "203.0.113.66"), ("remote_addr", "203.0.113.66")],
    &[("via", "1.1 203.0.113.66")],
    &[("connection", "x-forwarded-for"), ("x-forwarded-for", "203.0.113.66")],
    &[("connection", "x-real-ip, forwarded, close"), ("forwarded", "for=203.0.113.66")],
    &[("connection", "X-Forwarded-For")],
    &[("proxy-connection", "x-forwarded-for"), ("x-forwarded-for", "203.0.113.66")],
    &[("proxy", "203.0.113.66"), ("proxy-protocol", "TCP4 203.0.113.66")],
    &[("te", "trailers"), ("trailer", "x-forwarded-for")],
    &[("x-request-id", "203.0.113.66")],
];

fn gateway(upstream: &Upstream, server: &str, key: &str) -> Gateway {
    Gateway::with(
        server,
        &format!(
            "[[route]]\npath = \"/\"\nupstream = \"{url}\"\n\n[[route]]\npath = \"/once\"\nupstream = \"{url}\"\nlimits = \
             [\"once\"]\n\n[limit.once]\nrate = \"1/day\"\nkey = \"{key}\"\n",
            url = upstream.url()
        ),
    )
}

/// Returns the status of one request over each protocol; 400 if the client cannot make such a request.
fn fetch(gateway: &Gateway, target: &str, claim: &[(&str, &str)]) -> [u16; 2] {
    let lines: String = claim.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let old = gateway.fetch(&format!("GET {target} HTTP/1.1\r\nhost: a.test\r\n{lines}\r\n"));
    let mut request = Request::get(format!("http://a.test{target}")).body(()).unwrap();
    for (name, value) in claim {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { return [old.status(), 400] };
        request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    }
    let new = H2Client::connect(gateway.addr).try_fetch(request, Sent::default());
    [old.status(), new.map_or(400, |response| response.status())]
}

/// Asserts that no header that servers trust contains a forged address.
#[track_caller]
fn assert_true(upstream: &Upstream, claim: &[(&str, &str)]) {
    for seen in upstream.requests() {
        for name in TOLD {
            for value in seen.all(name) {
                assert!(!value.contains(FORGED) && name != "x_forwarded_for", "{claim:?}:\n{}", seen.head);
            }
        }
        assert_eq!(seen.get("x-forwarded-for"), Some("127.0.0.1"), "{claim:?}");
        assert_eq!(
            (seen.get("x-real-ip"), seen.get("x-forwarded-proto")),
            (Some("127.0.0.1"), Some("http")),
            "{claim:?}"
        );
        assert_ne!(seen.get("x-request-id"), Some(FORGED));
    }
}

#[test]
fn no_claim_of_a_stranger_makes_it_another_client() {
    let upstream = Upstream::text("in");
    let gateway = gateway(&upstream, "", "ip");
    assert_eq!(fetch(&gateway, "/once", &[]), [200, 429]);
    upstream.requests();
    let mut refused = 0;
    for claim in CLAIMS {
        for status in fetch(&gateway, "/once", claim) {
            assert!(matches!(status, 429 | 400), "{status}: {claim:?}");
        }
        assert!(upstream.requests().is_empty(), "{claim:?}");
        for status in fetch(&gateway, "/", claim) {
            assert!(matches!(status, 200 | 400), "{status}: {claim:?}");
            refused += usize::from(status == 400);
        }
        assert_true(&upstream, claim);
    }
    // Claims with protected headers, or malformed ones; most get a normal response.
    assert!((4..20).contains(&refused), "{refused}");
}

#[test]
fn neither_lines_nor_pseudo_headers_nor_a_proxy_header_say_more() {
    let upstream = Upstream::text("in");
    let gateway = gateway(&upstream, "", "ip");
    assert_eq!(gateway.get("/once").status(), 200);
    upstream.requests();
    for (what, bytes) in [
        ("a PROXY line", "PROXY TCP4 203.0.113.66 127.0.0.1 1 2\r\nGET /once HTTP/1.1\r\nhost: a.test\r\n\r\n"),
        (
            "binary PROXY",
            "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x01\x02\x03\x04\x01\x02\x03\x04\0\x01\0\x02GET /once HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        ("two hosts", "GET /once HTTP/1.1\r\nhost: a.test\r\nhost: 203.0.113.66\r\n\r\n"),
        ("host and target", "GET http://203.0.113.66/once HTTP/1.1\r\nhost: a.test\r\n\r\n"),
        ("user and host", "GET /once HTTP/1.1\r\nhost: 203.0.113.66@a.test\r\n\r\n"),
        ("a folded line", "GET /once HTTP/1.1\r\nhost: a.test\r\nx: y\r\n x-forwarded-for: 203.0.113.66\r\n\r\n"),
        ("a bare line end", "GET /once HTTP/1.1\r\nhost: a.test\r\nx: y\nx-forwarded-for: 203.0.113.66\r\n\r\n"),
        ("a name with a space", "GET /once HTTP/1.1\r\nhost: a.test\r\nx-forwarded-for : 203.0.113.66\r\n\r\n"),
        ("another form of the path", "GET //once HTTP/1.1\r\nhost: a.test\r\n\r\n"),
        ("an encoded path", "GET /%6fnce HTTP/1.1\r\nhost: a.test\r\n\r\n"),
        ("a detour", "GET /x/../once HTTP/1.1\r\nhost: a.test\r\n\r\n"),
    ] {
        let mut client: Client = gateway.client();
        client.send(bytes);
        let status = client.try_read_response("GET").map_or(400, |response| response.status());
        assert!(matches!(status, 400 | 429), "{what}: {status}");
    }
    for (uri, host) in [("http://a.test/once", "203.0.113.66"), ("http://203.0.113.66/once", "a.test")] {
        let request = Request::get(uri).header("host", host).body(()).unwrap();
        let status = H2Client::connect(gateway.addr).try_fetch(request, Sent::default()).map_or(400, |it| it.status());
        assert!(matches!(status, 400 | 429), "{uri} {host}: {status}");
    }
    assert!(upstream.requests().is_empty());
}

#[test]
fn behind_a_trusted_proxy_the_last_stranger_is_the_client() {
    let upstream = Upstream::text("in");
    let gateway = gateway(&upstream, "trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]", "ip");
    let many = vec!["10.0.0.9"; 40].join(", ");
    let deep = format!("203.0.113.66, {many}");
    let mut number = 0;
    let mut buckets: HashMap<String, Vec<u16>> = HashMap::new();
    // Each claim names a new client, `CLIENT`; everything else in it has no effect.
    for claim in [
        &[("x-forwarded-for", "CLIENT")][..],
        &[("x-forwarded-for", "203.0.113.66, CLIENT")],
        &[("x-forwarded-for", "203.0.113.66, CLIENT, 10.1.2.3")],
        &[("x-forwarded-for", "203.0.113.66"), ("x-forwarded-for", "CLIENT")],
        &[("x-forwarded-for", "203.0.113.66, CLIENT"), ("x-forwarded-for", "10.1.2.3, 127.0.0.1")],
        &[("x-forwarded-for", "203.0.113.66,CLIENT:4711")],
        &[("x-forwarded-for", "203.0.113.66, ::ffff:CLIENT")],
        &[("x-forwarded-for", "not an address, CLIENT")],
        &[("x-forwarded-for", "CLIENT"), ("forwarded", "for=203.0.113.66")],
        &[("x-forwarded-for", "CLIENT"), ("x-real-ip", "203.0.113.66"), ("true-client-ip", "203.0.113.66")],
        &[("forwarded", "for=203.0.113.66, for=CLIENT")],
        &[("forwarded", "for=203.0.113.66"), ("forwarded", "for=\"CLIENT:80\";proto=https, for=10.1.2.3")],
        &[("x-forwarded-for", "CLIENT"), ("x_forwarded_for", "203.0.113.66")],
    ] {
        number += 1;
        let client = format!("192.0.2.{number}");
        let own: Vec<(&str, String)> =
            claim.iter().map(|(name, value)| (*name, value.replace("CLIENT", &client))).collect();
        let own: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
        // The same client over both protocols, and with the plain claim.
        let plain = fetch(&gateway, "/once", &[("x-forwarded-for", &client)]);
        buckets.insert(format!("{claim:?}"), [fetch(&gateway, "/once", &own), plain].concat());
    }
    for (claim, statuses) in buckets {
        assert_eq!(statuses, [429, 429, 200, 429], "{claim}");
    }
    // If the chain ends early, it ends at a trusted proxy, never at the claimed address.
    for claim in [
        &[("x-forwarded-for", "203.0.113.66, unknown")][..],
        &[("x-forwarded-for", "203.0.113.66, 10.0.0.300")],
        &[("forwarded", "for=203.0.113.66, for=_hidden")],
        &[("forwarded", "for=203.0.113.66;for=127.0.0.1")],
        &[("x-forwarded-for", &deep)],
    ] {
        fetch(&gateway, "/once", claim);
        assert_eq!(fetch(&gateway, "/once", claim), [429, 429], "{claim:?}");
    }
    assert_eq!(
        fetch(&gateway, "/once", &[("x-forwarded-for", FORGED)]),
        [200, 429],
        "no other client was taken for it"
    );
}
