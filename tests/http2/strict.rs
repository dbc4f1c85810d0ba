//! HTTP/2 requests that would be another request, or another key, once they are written as lines.

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

fn in_front_of(upstream: &Upstream, more: &str) -> Gateway {
    Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n{more}", upstream.url()))
}

/// The head of a request with another value of one of its pseudo fields.
fn with<'a>(name: &str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut fields = request("GET", "/");
    fields.iter_mut().filter(|field| field.0 == name).for_each(|field| field.1 = value);
    fields
}

#[test]
fn a_pseudo_header_cannot_inject_a_line() {
    let upstream = Upstream::text("never");
    let gateway = in_front_of(&upstream, "");
    for (name, values) in [
        (":path", &["/ HTTP/1.1\r\nx: y", "/a b", "/a\0", "/a\tb", "admin", "http://b/x", ""][..]),
        (":authority", &["a\r\nx: y", "a b", "a/b?c", "", "é", "a,b", "a:99999"]),
        (":scheme", &["http\r\nx: y", "http://b/?", "ftp", ""]),
        (":method", &["GET / HTTP/1.1\r\nx: y", "G T", ""]),
    ] {
        for value in values {
            let mut wire = Wire::connect(gateway.addr, &[]);
            wire.send(headers(1, END_STREAM | END_HEADERS, &with(name, value)));
            let response = wire.read_response(1);
            match response.ended {
                StreamEnd::Complete => assert_eq!(response.problem_status(), 400, "{name}: {value:?}"),
                StreamEnd::Reset(code) => assert_eq!(code, PROTOCOL_ERROR, "{name}: {value:?}"),
                StreamEnd::ConnectionClosed(code) => assert_eq!(code, Some(PROTOCOL_ERROR), "{name}: {value:?}"),
            }
        }
    }
    assert_eq!(upstream.connections(), 0);
}

/// The gateway matches, limits and forwards the same canonical path, or refuses the request, as over HTTP/1.1.
#[test]
fn paths_have_one_form() {
    let upstream = Upstream::text("up");
    let gateway = in_front_of(&upstream, "limits = [\"path\"]\n[limit.path]\nrate = \"1/h\"\nkey = \"path\"\n");
    let mut wire = Wire::connect(gateway.addr, &[]);
    let mut stream = 1;
    let mut fetch = |method: &str, path: &str| {
        wire.send(headers(stream, END_STREAM | END_HEADERS, &request(method, path)));
        stream += 2;
        wire.read_response(stream - 2)
    };
    for (path, line) in [("//admin", "GET /admin HTTP/1.1"), ("/%6cogin", "GET /login HTTP/1.1")] {
        assert_eq!(fetch("GET", path).body, b"up", "{path}");
        assert_eq!(upstream.request().start_line(), line);
    }
    for path in ["/admin", "/a/../admin", "/a/%2e%2E/admin", "/admin?x", "/login", "//login", "/./login"] {
        assert_eq!(fetch("GET", path).problem_status(), 429, "{path}");
    }
    for path in ["/é", "/?é", "/a%00", "/a%0d%0ab", "/a%5cb", "/a%2"] {
        assert_eq!(fetch("GET", path).problem_status(), 400, "{path}");
    }
    assert_eq!(upstream.requests().len(), 0);
    for method in ["get", "purge", "M-1"] {
        assert_eq!(fetch(method, "/method").problem_status(), 400, "{method}");
    }
    assert_eq!(fetch("PURGE", "/method").body, b"up");
    assert_eq!(upstream.request().start_line(), "PURGE /method HTTP/1.1");
}

/// Over HTTP/1.1, space around a value is not part of it (RFC 9113, 8.2.1).
#[test]
fn space_around_a_value_makes_no_other_key_and_reaches_no_server() {
    let upstream = Upstream::text("up");
    let gateway = in_front_of(&upstream, "limits = [\"key\"]\n[limit.key]\nrate = \"1/h\"\nkey = \"header:x-key\"\n");
    let mut wire = Wire::connect(gateway.addr, &[]);
    let key = |value| [&request("GET", "/")[..], &[("x-key", value)]].concat();
    let mut stream = 1;
    for (value, status) in
        [("k1", None), (" k1", Some(400)), ("k1 ", Some(400)), ("\tk1", Some(400)), ("k1", Some(429))]
    {
        wire.send(headers(stream, END_STREAM | END_HEADERS, &key(value)));
        let response = wire.read_response(stream);
        match status {
            Some(status) => assert_eq!(response.problem_status(), status, "{value:?}"),
            None => assert_eq!(response.body, b"up"),
        }
        stream += 2;
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "field_padding")], 3.0);
    assert_eq!(upstream.request().get("x-key"), Some("k1"));
    // A malformed trailer makes the whole request malformed.
    let fields = [&request("POST", "/")[..], &[("x-key", "k2"), ("trailer", "x-t")]].concat();
    wire.send(headers(stream, END_HEADERS, &fields));
    wire.send(frame(DATA, 0, stream, b"x"));
    wire.send(headers(stream, END_STREAM | END_HEADERS, &[("x-t", " 1")]));
    assert_eq!(wire.read_response(stream).problem_status(), 400);
    assert!(wire.is_alive());
    assert_eq!(upstream.requests().len(), 0);
}
