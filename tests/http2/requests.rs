//! HTTP/2 from clients: how the gateway recognizes it, what upstreams and clients see of it, and what it refuses.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::client::get as h1_get;
use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, get, post};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const FIXED: &str = "[[route]]\npath = \"/\"\nrespond = { body = \"fixed\" }\n";

#[test]
fn one_listener_serves_both_protocols() {
    let gateway = Gateway::start(FIXED);
    let mut h2 = H2Client::connect(gateway.addr);
    for _ in 0..3 {
        let response = h2.get("/");
        assert_eq!((response.status(), response.text().as_str()), (200, "fixed"));
    }
    let mut h1 = gateway.client();
    assert_eq!(h1.fetch(&h1_get("/", ""), "").status(), 200);
    let listener = "127.0.0.1:0";
    let open = |protocol| gateway.metric("connections", &[("listener", listener), ("protocol", protocol)]);
    assert_eq!((open("h2"), open("http/1.1")), (Some(1.0), Some(1.0)));
    drop(h2);
    gateway.assert_metric("connections", &[("listener", listener), ("protocol", "h2")], 0.0);
}

#[test]
fn http2_can_be_turned_off_for_new_connections() {
    let gateway = Gateway::with("http2 = true", FIXED);
    let mut before = H2Client::connect(gateway.addr);
    assert_eq!(before.get("/").status(), 200);
    gateway.reload_with("http2 = true", "http2 = false");
    assert_eq!(before.get("/").status(), 200);
    // A client that speaks it all the same is told so, by GOAWAY.
    let mut client = TcpStream::connect(gateway.addr).unwrap();
    client.write_all(PREFACE).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    const HTTP_1_1_REQUIRED: &[u8] = &[0, 0, 0, 13];
    assert!(answer.len() > 26 && answer[9 + 3] == 7 && answer[9 + 13..9 + 17] == *HTTP_1_1_REQUIRED, "{answer:?}");
    assert_eq!(gateway.get("/").status(), 200);
}

#[test]
fn a_protocol_is_detected_by_its_first_bytes_in_any_pieces() {
    let gateway = Gateway::start("[[route]]\npath = \"/\"\nupstream = \"echo:\"\n");
    let mut wire = Wire::silent(gateway.addr);
    let settings = frame(SETTINGS, 0, 0, &[]);
    for byte in [PREFACE, &settings].concat() {
        wire.send([byte]);
    }
    wire.get(1, "/slow");
    assert_eq!(wire.read_response(1).ended, StreamEnd::Complete);
    for method in ["POST", "PRI", "PRIX", "PROPFIND", "P"] {
        let mut client = gateway.client();
        let head = format!("{method} /x HTTP/1.1\r\nhost: a.test\r\ncontent-length: 0\r\n\r\n");
        let (first, rest) = head.split_at(3);
        for byte in first.bytes() {
            client.send([byte]);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        client.send(rest);
        let response = client.read_response(method);
        assert!(response.text().starts_with(&format!("{method} /x HTTP/1.1\n")), "{}", response.text());
        assert_eq!(client.fetch(&h1_get("/again", ""), "").status(), 200);
    }
}

#[test]
fn an_upstream_gets_an_ordinary_request() {
    let upstream = Upstream::text("up");
    let gateway = Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let mut h2 = H2Client::connect(gateway.addr);
    let mut request = get("/a/./b//c?q=1");
    *request.uri_mut() = "http://A.Test:8080/a/./b//c?q=1".parse().unwrap();
    let headers = request.headers_mut();
    for (name, value) in [
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("te", "trailers"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-kept", "1"),
        ("http2-settings", "AAA"),
        ("proxy-authorization", "Basic x"),
    ] {
        headers.append(name, value.parse().unwrap());
    }
    let response = h2.fetch(request, Sent::default());
    assert_eq!((response.status(), response.text().as_str()), (200, "up"));
    assert_eq!(response.head.version(), http::Version::HTTP_2);
    let seen = upstream.request();
    assert_eq!(seen.start_line(), "GET /a/b/c?q=1 HTTP/1.1");
    for (name, value) in [
        ("host", Some("a.test:8080")),
        ("x-forwarded-host", Some("a.test:8080")),
        ("cookie", Some("a=1; b=2")),
        ("te", Some("trailers")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-proto", Some("http")),
        ("x-kept", Some("1")),
        ("http2-settings", None),
        ("proxy-authorization", None),
        ("content-length", None),
        ("transfer-encoding", None),
    ] {
        assert_eq!(seen.get(name), value, "{name}");
    }
    assert!(seen.get("via").unwrap().starts_with("2.0 sluicegate-"), "{}", seen.head);
    assert!(response.field("via").unwrap().starts_with("1.1 sluicegate-"));
}

#[test]
fn responses_have_no_hop_by_hop_headers() {
    let head = "HTTP/1.1 200 OK\r\nconnection: keep-alive, x-hop\r\nkeep-alive: timeout=5\r\nx-hop: 1\r\n\
                proxy-connection: keep-alive\r\nupgrade: h2c\r\nx-app: 1\r\ncontent-length: 2\r\n\r\nup";
    let upstream = Upstream::fixed(head);
    let gateway = Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let response = H2Client::connect(gateway.addr).get("/");
    let mut names: Vec<&str> = response.head.headers().keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!((response.text().as_str(), names), ("up", vec!["content-length", "date", "via", "x-app"]));
}

#[test]
fn responses_without_a_body_have_none() {
    let upstream = Upstream::fixed("HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n");
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/up\"\nupstream = \"{}\"\n[[route]]\npath = \"/\"\nrespond = {{ body = \"fixed\" }}\n\
         [[route]]\npath = \"/none\"\nrespond = {{ status = 204 }}\n",
        upstream.url()
    ));
    let mut h2 = H2Client::connect(gateway.addr);
    let mut head = get("/");
    *head.method_mut() = http::Method::HEAD;
    let response = h2.fetch(head, Sent::default());
    assert_eq!((response.status(), response.field("content-length"), response.body.len()), (200, Some("5"), 0));
    for (path, status) in [("/up", 304), ("/none", 204)] {
        let response = h2.get(path);
        assert_eq!((response.status(), response.body.len()), (status, 0));
    }
}

/// Invalid heads end their stream, and the connection continues.
#[test]
fn malformed_heads_are_refused_one_by_one() {
    let upstream = Upstream::text("never");
    let gateway = Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let mut wire = Wire::connect(gateway.addr, &[]);
    let plain = request("GET", "/");
    let with = |field: (&'static str, &'static str)| [&plain[..], &[field]].concat();
    let without = |name: &str| plain.iter().copied().filter(|(field, _)| *field != name).collect::<Vec<_>>();
    let mut stream = 1;
    for fields in [
        with(("connection", "close")),
        with(("keep-alive", "timeout=5")),
        with(("proxy-connection", "keep-alive")),
        with(("transfer-encoding", "chunked")),
        with(("upgrade", "websocket")),
        with(("te", "gzip")),
        with((":path", "/twice")),
        with((":status", "200")),
        with((":protocol", "websocket")),
        without(":method"),
        without(":scheme"),
        [&[("x-early", "1")][..], &plain].concat(),
        with(("content-length", "x")),
    ] {
        wire.send(headers(stream, END_STREAM | END_HEADERS, &fields));
        let response = wire.read_response(stream);
        assert_eq!(
            response.ended,
            StreamEnd::Reset(PROTOCOL_ERROR),
            "{fields:?} {}",
            String::from_utf8_lossy(&response.body)
        );
        stream += 2;
    }
    assert!(wire.is_alive());
    assert_eq!(upstream.connections(), 0);
}

/// Requests that are well-formed but ambiguous are refused as over HTTP/1.1.
#[test]
fn unclear_requests_are_refused_with_a_reason() {
    let upstream = Upstream::text("never");
    let gateway = Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let mut wire = Wire::connect(gateway.addr, &[]);
    let request = |authority: &'static [(&'static str, &'static str)], path, more: &[(&'static str, &'static str)]| {
        [&[(":method", "GET"), (":scheme", "http")][..], authority, &[(":path", path)], more].concat()
    };
    let a = &[(":authority", "a.test")][..];
    let mut stream = 1;
    for (fields, status, reason) in [
        (request(a, "/", &[("host", "b.test")]), 400, "host_mismatch"),
        (request(a, "/", &[("host", "a.test:81")]), 400, "host_mismatch"),
        (request(a, "/", &[("host", "a.test"), ("host", "a.test")]), 400, "host_repeated"),
        (request(&[], "/", &[]), 400, "host_missing"),
        (request(&[], "/", &[("host", "u@a.test")]), 400, "host_invalid"),
        (request(&[(":authority", "u@a.test")], "/", &[]), 400, "host_invalid"),
        (request(a, "/a%2fb", &[]), 400, "path_slash"),
        (request(a, "/a\\b", &[]), 400, "path_backslash"),
        (request(a, "/../b", &[]), 400, "path_above_root"),
        (request(a, "*", &[]), 400, "target_form"),
        (request(a, "/", &[("content-length", "0"), ("content-length", "0")]), 400, "content_length"),
        (request(a, "/", &[("expect", "202-accepted")]), 417, "expect"),
        (vec![(":method", "CONNECT"), (":authority", "a.test:443")], 501, "connect"),
    ] {
        wire.send(headers(stream, END_STREAM | END_HEADERS, &fields));
        let response = wire.read_response(stream);
        assert_eq!(response.problem_status(), status, "{fields:?}");
        // It is counted just after the response was sent.
        wait_until(reason, || gateway.metric("http_rejected_total", &[("reason", reason)]) >= Some(1.0));
        stream += 2;
    }
    assert_eq!(upstream.connections(), 0);
    for (agreed, host) in [
        (request(a, "/", &[("host", "A.test:80")]), "a.test:80"),
        (request(&[], "/", &[("host", "a.test")]), "a.test"),
        (request(a, "/", &[]), "a.test"),
    ] {
        wire.send(headers(stream, END_STREAM | END_HEADERS, &agreed));
        assert_eq!(wire.read_response(stream).body, b"never");
        assert_eq!(upstream.request().get("host"), Some(host));
        stream += 2;
    }
}

#[test]
fn too_many_or_too_large_fields_are_431() {
    let gateway = Gateway::with("max_headers = 20\nmax_header_bytes = \"8KiB\"", FIXED);
    let mut h2 = H2Client::connect(gateway.addr);
    let with = |count: usize, name: &'static str, value: &str| {
        let mut request = get("/");
        for _ in 0..count {
            request.headers_mut().append(name, value.parse().unwrap());
        }
        request
    };
    for (request, status) in [
        (with(20, "x-many", "1"), 200),
        (with(21, "x-many", "1"), 431),
        (with(20, "cookie", "a=1"), 200),
        (with(21, "cookie", "a=1"), 431),
        (with(1, "x-large", &"x".repeat(7000)), 200),
        (with(1, "x-large", &"x".repeat(9000)), 431),
    ] {
        let response = h2.fetch(request, Sent::default());
        assert_eq!(response.status(), status);
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "max_headers")], 2.0);
}

#[test]
fn limits_count_requests_and_refuse_on_the_stream() {
    let gateway = Gateway::start(
        "[[route]]\npath = \"/\"\nrespond = { body = \"in\" }\nlimits = [\"two\"]\n[limit.two]\nrate = \"2/h\"\nkey = \"all\"\n",
    );
    let mut h2 = H2Client::connect(gateway.addr);
    for status in [200, 200, 429] {
        assert_eq!(h2.get("/").status(), status);
    }
    // The body is not read, and the connection stays usable.
    let refused = h2.fetch(post("/"), Sent { body: &[b'x'; 500_000], trailers: None });
    assert_eq!((refused.status(), refused.field("connection")), (429, None));
    let mut grpc = post("/service/Method");
    grpc.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let refused = h2.fetch(grpc, Sent { body: b"\0\0\0\0\0", trailers: None });
    assert_eq!((refused.status(), refused.field("grpc-status"), refused.body.len()), (200, Some("8"), 0));
    assert_eq!(h2.get("/").status(), 429);
}

#[test]
fn a_client_that_resets_its_stream_has_left_and_others_go_on() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/wait" {
                peer.wait_for_end()?;
                peer.note("ended");
                return Ok(());
            }
            peer.send(ok("up"))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"slots\"]\nmax_in_flight = 2\n\
         [limit.slots]\nalgorithm = \"concurrency\"\nin_flight = 2\nlinger = \"0s\"\nkey = \"all\"\n",
        upstream.url()
    ));
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/wait");
    assert_eq!(upstream.request().target(), "/wait");
    wire.get(3, "/other");
    assert_eq!(wire.read_response(3).body, b"up");
    assert_eq!(upstream.request().target(), "/other");
    wire.send(reset(1, CANCEL));
    assert_eq!(upstream.request().head, "ended");
    gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "499")], 1.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    let mut stream = 5;
    wait_until("the slot is free again", || {
        stream += 4;
        wire.get(stream, "/other");
        wire.get(stream + 2, "/other");
        wire.read_responses(&[stream, stream + 2]).iter().all(|response| response.body == b"up")
    });
}

#[test]
fn streams_above_the_cap_are_refused_alone() {
    let upstream = Upstream::silent();
    let gateway =
        Gateway::with("max_streams = 3", &format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let mut wire = Wire::connect(gateway.addr, &[]);
    for stream in [1, 3, 5, 7, 9] {
        wire.get(stream, "/");
    }
    for refused in wire.read_responses(&[7, 9]) {
        assert_eq!(refused.ended, StreamEnd::Reset(REFUSED_STREAM));
    }
    wait_until("three requests are in progress", || upstream.connections() == 3);
    wire.send(reset(1, CANCEL));
    wire.get(11, "/");
    wait_until("a further request is in progress", || upstream.connections() == 4);
}
