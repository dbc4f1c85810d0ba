//! Malformed requests: each resets its own stream, is counted, and leaves the connection alone.

use super::Http3Gateway;
use crate::support::h3::{DATA, HEADERS, frame, get, head, section};
use crate::support::wait_until;

const MESSAGE_ERROR: u64 = 0x10e;

#[test]
fn malformed_heads_reset_their_stream() {
    let gateway = Http3Gateway::echo("access_log = { to = \"log\" }\n");
    let client = gateway.connect();
    let with = |field: (&'static str, &'static str)| [&get("/")[..], &[field]].concat();
    let without = |name: &str| get("/").into_iter().filter(|field| field.0 != name).collect::<Vec<_>>();
    let set = |name: &str, value: &'static str| {
        get("/").into_iter().map(|field| if field.0 == name { (field.0, value) } else { field }).collect::<Vec<_>>()
    };
    let mut counts = std::collections::HashMap::new();
    for (reason, fields) in [
        ("h2_field_name", with(("X-Upper", "1"))),
        ("h2_field_name", with(("a b", "1"))),
        ("h2_field_value", with(("x", "a\r\nb"))),
        ("h2_field_value", with(("x", "a\0b"))),
        ("h2_connection_field", with(("connection", "close"))),
        ("h2_connection_field", with(("transfer-encoding", "chunked"))),
        ("h2_connection_field", with(("upgrade", "websocket"))),
        ("h2_connection_field", with(("te", "gzip"))),
        ("h2_pseudo_field", with((":path", "/"))),
        ("h2_pseudo_field", with((":status", "200"))),
        ("h2_pseudo_field", with((":protocol", "websocket"))),
        ("h2_pseudo_field", [&[("x", "1")][..], &get("/")].concat()),
        ("h2_pseudo_field", without(":method")),
        ("h2_pseudo_field", without(":scheme")),
        ("h2_pseudo_field", without(":path")),
        ("h2_pseudo_field", set(":path", "")),
        ("h2_content_length", with(("content-length", "1, 1"))),
        ("h2_content_length", [&get("/")[..], &[("content-length", "1"), ("content-length", "2")]].concat()),
    ] {
        let mut exchange = client.open(&head(&fields));
        exchange.finish();
        assert_eq!(exchange.reset_code(), MESSAGE_ERROR, "{reason} {fields:?}");
        *counts.entry(reason).or_insert(0.0) += 1.0;
    }
    for (reason, count) in counts {
        gateway.gateway.assert_metric("http_rejected_total", &[("reason", reason)], count);
    }
    assert_eq!(client.get("/").status(), 200, "the connection goes on");
    let log = || std::fs::read_to_string(gateway.gateway.dir.path().join("log")).unwrap_or_default();
    wait_until("they are logged", || log().matches("h2_pseudo_field").count() == 8 && log().contains("HTTP/3.0"));
    for fields in
        [set(":authority", "u@a.test"), without(":authority"), with(("host", "b.test")), with(("x", " padded"))]
    {
        assert_eq!(client.fetch(&fields, b"").status(), 400, "{fields:?}");
    }
}

#[test]
fn a_body_has_the_length_that_was_announced() {
    let gateway = Http3Gateway::echo("");
    let client = gateway.connect();
    let post = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", "/echo"),
        ("content-length", "5"),
    ];
    for (name, rest) in [
        ("too short", frame(DATA, b"abcd")),
        ("too long", frame(DATA, b"abcdef")),
        ("too long in pieces", [frame(DATA, b"abcd"), frame(DATA, b"ef")].concat()),
        ("trailers too early", [frame(DATA, b"abcd"), frame(HEADERS, &section(&[("x", "1")]))].concat()),
    ] {
        let mut exchange = client.open(&[head(&post), rest].concat());
        exchange.finish();
        assert_eq!(exchange.reset_code(), MESSAGE_ERROR, "{name}");
    }
    let mut exchange = client.open(&[head(&post), frame(DATA, b"abcde")].concat());
    exchange.finish();
    assert_eq!(exchange.response().unwrap().text(), "abcde");
    for field in [(":path", "/"), (":status", "200"), ("X", "1")] {
        let mut exchange =
            client.open(&[head(&post), frame(DATA, b"abcde"), frame(HEADERS, &section(&[field]))].concat());
        exchange.finish();
        assert_eq!(exchange.reset_code(), MESSAGE_ERROR, "{field:?} in trailers");
    }
}
