//! Requests that servers read differently: `strict` lets none of them pass.

use std::collections::BTreeMap;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

/// Description, bytes and status of each refused request.
const REFUSED: &[(&str, &[u8], u16)] = &[
    ("no host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("two hosts", b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
    ("two hosts that differ", b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    ("empty host", b"GET / HTTP/1.1\r\nhost:\r\n\r\n", 400),
    ("host with a path", b"GET / HTTP/1.1\r\nhost: a/b?c\r\n\r\n", 400),
    ("host with a user", b"GET / HTTP/1.1\r\nhost: u@a\r\n\r\n", 400),
    ("absolute target of another host", b"GET http://b/ HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("two lengths", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n12345", 400),
    ("list of lengths", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 5\r\n\r\n12345", 400),
    ("signed length", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\n12345", 400),
    ("negative length", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n12345", 400),
    ("another coding", b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    (
        "coding twice",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("coding doubled", b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    ("coding with a tab", b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    ("coding in 1.0", b"POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("folded line", b"GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n", 400),
    ("nameless field", b"GET / HTTP/1.1\r\nhost: a\r\n: x\r\n\r\n", 400),
    ("space before the colon", b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length : 5\r\n\r\n12345", 400),
    ("nul in a value", b"GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n", 400),
    ("carriage return in a value", b"GET / HTTP/1.1\r\nhost: a\r\nx: a\rb\r\n\r\n", 400),
    ("line feeds alone", b"GET / HTTP/1.1\nhost: a\n\n", 400),
    ("line feed before the request", b"\n\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("backslash", b"GET /a\\b HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("bytes outside ASCII", b"GET /\xc3\xa9 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("encoded slash", b"GET /a%2fb HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("encoded nul", b"GET /a%00b HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("broken percent", b"GET /a%2 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("above the root", b"GET /../a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("encoded above the root", b"GET /%2e%2e/a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("target without slash", b"GET admin HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("authority as target", b"GET a:80 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("asterisk with GET", b"GET * HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("CONNECT", b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n", 501),
    ("HTTP/2.0 by name", b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 400),
    ("HTTP/1.2", b"GET / HTTP/1.2\r\nhost: a\r\n\r\n", 400),
    ("lower-case method", b"get / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("mixed-case method", b"PropFind / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("lower-case CONNECT", b"connect / HTTP/1.1\r\nhost: a\r\n\r\n", 501),
    ("another expectation", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nexpect: tea\r\n\r\nx", 417),
    ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
];

fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()))
}

#[test]
fn strict_refuses_what_servers_read_differently() {
    let upstream = Upstream::text("passed");
    let gateway = gateway(&upstream);
    let mut wrong = Vec::new();
    for (what, request, status) in REFUSED {
        let mut client = gateway.client();
        client.send(request);
        match client.try_read_response("GET") {
            Ok(response) if response.status() == *status => {}
            Ok(response) => wrong.push(format!("{what}: {} instead of {status}", response.start_line())),
            Err(error) => wrong.push(format!("{what}: {error} instead of {status}")),
        }
    }
    for request in upstream.requests() {
        wrong.push(format!("forwarded: {:?}", request.head));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn heads_that_the_parser_would_repair_are_refused() {
    let upstream = Upstream::text("passed");
    let gateway = gateway(&upstream);
    let mut counted = BTreeMap::new();
    for (head, reason) in [
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
            "transfer_encoding_with_length",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 5",
            "transfer_encoding_with_length",
        ),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 5", "content_length"),
        ("GET / HTTP/1.1\nhost: a", "line_end"),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: y\nz: w", "line_end"),
        ("\r\n\nGET / HTTP/1.1\r\nhost: a", "line_end"),
        ("GET /a#b HTTP/1.1\r\nhost: a", "target_fragment"),
    ] {
        let mut client = gateway.client();
        client.send(format!("{head}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"));
        let response = client.read_response("POST");
        assert_eq!((response.status(), response.get("connection")), (400, Some("close")), "{head:?}");
        client.assert_closed();
        *counted.entry(reason).or_insert(0.0) += 1.0;
        gateway.assert_metric("http_rejected_total", &[("reason", reason)], counted[reason]);
    }
    assert_eq!(upstream.requests().len(), 0);
}

#[test]
fn every_refusal_of_a_head_counts_its_reason() {
    let upstream = Upstream::text("passed");
    let route = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Gateway::with("max_header_bytes = \"128KiB\"", &route);
    let long = format!("GET /{} HTTP/1.1\r\nhost: a", "a".repeat(70_000));
    for (head, status, reason) in [
        ("GET /a%2 HTTP/1.1\r\nhost: a", 400, "path_percent"),
        ("GET /a/..;x/b HTTP/1.1\r\nhost: a", 400, "path_dot_parameter"),
        ("GET ftp://a/ HTTP/1.1\r\nhost: a", 400, "target_scheme"),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked", 400, "transfer_encoding_repeated"),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked", 501, "transfer_encoding_unknown"),
        (&long, 414, "target_too_long"),
    ] {
        let mut client = gateway.client();
        let _ = client.try_send(format!("{head}\r\n\r\n").as_bytes());
        assert_eq!(client.read_response("POST").status(), status, "{reason}");
        gateway.assert_metric("http_rejected_total", &[("reason", reason)], 1.0);
    }
    assert_eq!(upstream.requests().len(), 0);
}

#[test]
fn repaired_requests_have_one_interpretation() {
    let upstream = Upstream::text("passed");
    let route = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Gateway::with("strictness = \"defensive\"", &route);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(client.read_response("POST").status(), 200);
    let seen = upstream.request();
    assert_eq!((seen.get("content-length"), seen.get("transfer-encoding")), (None, Some("chunked")));
    client.assert_closed();
    let mut client = gateway.client();
    client.send("\n\nGET /after HTTP/1.1\nhost: a\n\n");
    assert_eq!(client.read_response("GET").status(), 200);
}

#[test]
fn empty_lines_before_a_request_line_and_any_method_are_taken_as_they_are() {
    let upstream = Upstream::text("passed");
    let gateway = gateway(&upstream);
    let mut client = gateway.client();
    for method in ["GET", "PURGE", "ODD-ONE_X"] {
        client.send(format!("\r\n\r\n{method} /m HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert_eq!(client.read_response(method).status(), 200);
        assert_eq!(upstream.request().start_line(), format!("{method} /m HTTP/1.1"));
    }
}

/// A client that requests a tunnel may have sent data for the tunnel already (RFC 9931, 7).
#[test]
fn a_refused_connect_is_the_last_request_of_its_connection() {
    let upstream = Upstream::text("passed");
    let gateway = gateway(&upstream);
    let mut client = gateway.client();
    client.send("CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n");
    let response = client.read_response("GET");
    assert_eq!((response.status(), response.get("connection")), (501, Some("close")));
    client.assert_closed();
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn names_similar_to_framing_headers_are_dropped() {
    let upstream = Upstream::text("passed");
    let gateway = gateway(&upstream);
    let mut client = gateway.client();
    for alias in ["transfer_encoding: chunked", "content_length: 9"] {
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{alias}\r\ncontent-length: 1\r\n\r\nx"));
        assert_eq!(client.read_response("POST").status(), 200, "{alias}");
        let seen = upstream.request();
        assert_eq!((seen.get("content-length"), seen.body.as_slice()), (Some("1"), &b"x"[..]), "{alias}");
        assert!(!seen.head.contains('_'), "{}", seen.head);
    }
}

#[test]
fn a_chunked_body_is_read_by_the_letter() {
    let upstream = Upstream::text("passed");
    let gateway = gateway(&upstream);
    for (what, body) in [
        ("bare line feed after a chunk", "1\r\nx\n0\r\n\r\n"),
        ("bare line feed after the last size", "1\r\nx\r\n0\n\r\n"),
        ("bare line feeds at the end", "1\r\nx\r\n0\n\n"),
        ("bare line feed as the end", "1\r\nx\r\n0\r\n\n"),
        ("bare line feed after a trailer", "1\r\nx\r\n0\r\na: b\n\r\n\r\n"),
        ("bare line feeds after a trailer", "1\r\nx\r\n0\r\na: b\n\n"),
        ("bare line feed after trailers", "1\r\nx\r\n0\r\na: b\r\n\n"),
        ("bare line feed after the size", "5\n12345\r\n0\r\n\r\n"),
        ("bare line feed in an extension", "5;a\n12345\r\n0\r\n\r\n"),
        ("hexadecimal prefix", "0x5\r\n12345\r\n0\r\n\r\n"),
        ("overflow", "10000000000000005\r\n12345\r\n0\r\n\r\n"),
        ("sign", "+5\r\n12345\r\n0\r\n\r\n"),
        ("missing end of chunk", "5\r\n123456\r\n0\r\n\r\n"),
        ("no size", "\r\n12345\r\n0\r\n\r\n"),
    ] {
        // Whatever follows, whether the inspector would refuse it or not.
        for next in [
            "",
            "GET /swallowed HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /swallowed HTTP/1.1\nhost: a\n\nPOST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n             transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            let mut client = gateway.client();
            client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{body}{next}"));
            let response = client.read_response("POST");
            assert_eq!((response.status(), response.get("connection")), (400, Some("close")), "{what} {next:?}");
            assert_eq!(response.json()["detail"], "the request body does not match its framing", "{what}");
            client.assert_closed();
        }
    }
    // No request was complete, so none was forwarded.
    upstream.wait_for_close();
    assert_eq!(upstream.requests().len(), 0);
}

/// No body, however it is split into lines, makes the inspector stop inspecting.
#[test]
fn endless_chunk_extensions_are_refused_and_end_the_connection() {
    let upstream = Upstream::text("passed");
    let route = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Gateway::with("max_header_bytes = \"8KiB\"", &route);
    let post = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let fetch = |length: usize| {
        let body = format!("1;{}\r\nx\r\n0\r\n\r\nGET /next HTTP/1.1\nhost: a\r\n\r\n", "e".repeat(length));
        let mut client = gateway.client();
        client.send(post);
        // The longer extensions never end.
        for piece in body.as_bytes().chunks(3000).take(3) {
            client.send(piece);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        (client.read_response("POST"), client)
    };
    let (response, mut client) = fetch(7000);
    assert_eq!(response.status(), 200);
    assert_eq!(client.read_response("GET").status(), 400);
    client.assert_closed();
    let (response, mut client) = fetch(15_000);
    assert_eq!((response.status(), response.get("connection")), (400, Some("close")));
    client.assert_closed();
    upstream.wait_for_close();
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn oversized_heads_are_431_and_oversized_targets_414() {
    let upstream = Upstream::text("passed");
    let gateway = gateway(&upstream);
    let head = |fields: &str| format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
    let many: String = (0..101).map(|i| format!("x-{i}: 1\r\n")).collect();
    for fields in [many, format!("x: {}\r\n", "y".repeat(500 * 1024))] {
        let mut client = gateway.client();
        let _ = client.try_send(head(&fields));
        assert_eq!(client.read_response("GET").status(), 431);
    }
    for length in [33_000, 70_000, 100 * 1024] {
        let mut client = gateway.client();
        let _ = client.try_send(format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "y".repeat(length)));
        assert_eq!(client.read_response("GET").status(), 414, "{length}");
    }
    // The target ends in time.
    let mut client = gateway.client();
    let _ = client.try_send(format!("GET /{} HTTP/1.1\r\nhost: {}\r\n\r\n", "y".repeat(32_000), "a".repeat(1000)));
    assert_eq!(client.read_response("GET").status(), 431);
    assert_eq!(upstream.requests().len(), 0);
}

#[test]
fn a_head_has_at_most_max_headers() {
    for max in [1, 20, 100, 101, 1000] {
        let gateway =
            Gateway::with(&format!("max_headers = {max}"), "[[route]]\npath = \"/\"\nrespond = { status = 204 }\n");
        for (count, status) in [(max, 204), (max + 1, 431)] {
            let fields: String = (1..count).map(|i| format!("x-{i}: 1\r\n")).collect();
            assert_eq!(gateway.fetch(&get("/", &fields)).status(), status, "{count} of {max}");
        }
    }
}

#[test]
fn one_canonical_form_is_matched_limited_and_forwarded() {
    let upstream = Upstream::text("passed");
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/login\"\nupstream = \"{}\"\nlimits = [\"path\"]\n\n\
         [limit.path]\nrate = \"1/h\"\nkey = [\"host\", \"path\"]\n",
        upstream.url()
    ));
    assert_eq!(gateway.fetch("GET /login/x HTTP/1.1\r\nhost: a.test\r\n\r\n").status(), 200);
    assert_eq!(upstream.request().target(), "/login/x");
    for (target, host) in [
        ("/login/x?junk=1", "a.test"),
        ("/%6cogin/x", "a.test"),
        ("//login///x", "a.test"),
        ("/login/./x", "a.test"),
        ("/login/y/../x", "a.test"),
        ("/login/y/%2e%2E/x", "a.test"),
        ("/login/x", "A.TEST"),
        ("/login/x", "a.test."),
        ("/login/x", "a.test:8080"),
        ("http://a.test/login/x", "a.test"),
    ] {
        let response = gateway.fetch(&format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        assert_eq!(response.status(), 429, "{host} {target}");
    }
    assert_eq!(upstream.requests().len(), 0);
}
