//! Malformed heads and trailers over HTTP/2: each resets its own stream, is logged and counted, and leaves the other
//! requests of the connection alone, which may be those of other clients behind the same CDN.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

type Fields<'a> = Vec<(&'a str, &'a str)>;

const PADDED: u8 = 8;
const PRIORITIZED: u8 = 0x20;

/// An encoder that adds every field to the dynamic table, good or bad, and refers to those that it has added.
struct Encoder {
    table: Vec<(String, String)>,
}

impl Encoder {
    fn block(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut encoded = Vec::new();
        for (name, value) in fields {
            if let Some(index) = self.table.iter().position(|field| field.0 == *name && field.1 == *value) {
                match u8::try_from(index + 62).unwrap() {
                    short @ ..127 => encoded.push(0x80 | short),
                    long => encoded.extend([0xff, long - 127]),
                }
                continue;
            }
            let mut field = block(&[(name, value)]);
            field[0] = 0x40;
            encoded.extend(field);
            self.table.insert(0, ((*name).to_owned(), (*value).to_owned()));
            let size = |table: &[(String, String)]| -> usize {
                table.iter().map(|(name, value)| name.len() + value.len() + 32).sum()
            };
            while size(&self.table) > 4096 {
                self.table.pop();
            }
        }
        encoded
    }
}

/// A request with one more field.
fn with<'a>(name: &'a str, value: &'a str) -> Fields<'a> {
    [&request("GET", "/bad")[..], &[(name, value)]].concat()
}

/// A request with another value of one pseudo field.
fn changed<'a>(name: &str, value: &'a str) -> Fields<'a> {
    let mut fields = request("GET", "/bad");
    fields.iter_mut().filter(|field| field.0 == name).for_each(|field| field.1 = value);
    fields
}

/// A request without one of its pseudo fields.
fn without(name: &str) -> Fields<'static> {
    request("GET", "/bad").into_iter().filter(|field| field.0 != name).collect()
}

fn tunnel<'a>(more: &[(&'a str, &'a str)]) -> Fields<'a> {
    [&[(":method", "CONNECT"), (":authority", "a.test:443")][..], more].concat()
}

fn websocket<'a>(more: &[(&'a str, &'a str)]) -> Fields<'a> {
    let head = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":authority", "a.test")];
    [&head[..], &[(":path", "/bad")], more].concat()
}

/// Malformed heads, the flags of their frames, and the reasons under which they are counted.
fn malformed_heads() -> Vec<(Fields<'static>, u8, &'static str)> {
    let (open, ended) = (0, END_STREAM);
    let moved = |from: usize, to: usize| {
        let mut fields = with("x-a", "1");
        let field = fields.remove(from);
        fields.insert(to, field);
        fields
    };
    vec![
        (tunnel(&[("content-length", "5")]), open, "h2_content_length"),
        (websocket(&[("content-length", "5")]), open, "h2_content_length"),
        (tunnel(&[(":path", "/")]), open, "h2_pseudo_field"),
        (tunnel(&[(":scheme", "http")]), open, "h2_pseudo_field"),
        (vec![(":method", "CONNECT")], open, "h2_pseudo_field"),
        (with("X-Upper", "1"), ended, "h2_field_name"),
        (with("x y", "1"), ended, "h2_field_name"),
        (with("x:y", "1"), ended, "h2_field_name"),
        (with("x\u{e9}", "1"), ended, "h2_field_name"),
        (with("", "1"), ended, "h2_field_name"),
        (with("x-a", "1\r\nx-b: 2"), ended, "h2_field_value"),
        (with("x-a", "1\n"), ended, "h2_field_value"),
        (with("x-a", "\0"), ended, "h2_field_value"),
        (with("x-a", "\u{7f}"), ended, "h2_field_value"),
        (with("cookie", "a\rb"), ended, "h2_field_value"),
        (moved(0, 4), ended, "h2_pseudo_field"),
        (moved(3, 4), ended, "h2_pseudo_field"),
        (with(":unknown", "1"), ended, "h2_pseudo_field"),
        (with(":status", "200"), ended, "h2_pseudo_field"),
        (with(":protocol", "websocket"), ended, "h2_pseudo_field"),
        (with(":method", "GET"), ended, "h2_pseudo_field"),
        (with(":path", "/other"), ended, "h2_pseudo_field"),
        (changed(":method", "G T"), ended, "h2_pseudo_field"),
        (changed(":method", ""), ended, "h2_pseudo_field"),
        (changed(":path", ""), ended, "h2_pseudo_field"),
        (changed(":path", "/a b"), ended, "h2_pseudo_field"),
        (changed(":path", "bad"), ended, "h2_pseudo_field"),
        (changed(":path", "bad?x=/"), ended, "h2_pseudo_field"),
        (changed(":path", "*/bad"), ended, "h2_pseudo_field"),
        (changed(":path", "*?x"), ended, "h2_pseudo_field"),
        (changed(":path", "#/bad"), ended, "h2_pseudo_field"),
        (changed(":path", "%2fbad"), ended, "h2_pseudo_field"),
        (changed(":path", "http://a.test/bad"), ended, "h2_pseudo_field"),
        (changed(":path", "a.test:80"), ended, "h2_pseudo_field"),
        (changed(":scheme", "http://b/?"), ended, "h2_pseudo_field"),
        (changed(":authority", "a b"), ended, "h2_pseudo_field"),
        (without(":method"), ended, "h2_pseudo_field"),
        (without(":scheme"), ended, "h2_pseudo_field"),
        (without(":path"), ended, "h2_pseudo_field"),
        (with("connection", "close"), ended, "h2_connection_field"),
        (with("transfer-encoding", "chunked"), open, "h2_connection_field"),
        (with("upgrade", "websocket"), ended, "h2_connection_field"),
        (with("keep-alive", "5"), ended, "h2_connection_field"),
        (with("proxy-connection", "close"), ended, "h2_connection_field"),
        (with("te", "gzip"), ended, "h2_connection_field"),
        (with("content-length", "5"), ended, "h2_content_length"),
        (with("content-length", "+5"), open, "h2_content_length"),
        (with("content-length", ""), open, "h2_content_length"),
        (with("content-length", "99999999999999999999"), open, "h2_content_length"),
        ([with("content-length", "5"), vec![("content-length", "6")]].concat(), open, "h2_content_length"),
    ]
}

/// Responds to `/held` once `released`, and to everything else at once.
fn upstream(released: &Arc<AtomicBool>) -> Upstream {
    let released = released.clone();
    Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            while request.target() == "/held" && !released.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            peer.send(ok("up"))?;
        }
        Ok(())
    })
}

fn gateway(upstream: &Upstream) -> Gateway {
    let route = format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    Gateway::with("access_log = { format = \"json\" }", &route)
}

/// Lines of the access log with this reason.
fn lines(gateway: &Gateway, reason: &str) -> Vec<serde_json::Value> {
    let lines = gateway.stdout();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter(|line| line["reason"] == reason).collect()
}

#[track_caller]
fn assert_counted(gateway: &Gateway, reason: &str, count: usize) {
    gateway.assert_metric("http_rejected_total", &[("reason", reason)], count as f64);
}

/// A malformed head may have headers that leave no trace, or headers that stay in the tables of both sides.
#[test]
fn a_malformed_head_resets_its_stream_and_no_other_request() {
    for keeps in [false, true] {
        let released = Arc::new(AtomicBool::new(false));
        let upstream = upstream(&released);
        let gateway = gateway(&upstream);
        let mut encoder = Encoder { table: Vec::new() };
        let mut encode = |fields: &[(&str, &str)]| if keeps { encoder.block(fields) } else { block(fields) };
        let mut wire = Wire::connect(gateway.addr, &[]);
        wire.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &encode(&request("GET", "/held"))));
        let cases = malformed_heads();
        for (number, (fields, flags, reason)) in cases.iter().enumerate() {
            let stream = u32::try_from(number * 4 + 3).unwrap();
            wire.send(frame(HEADERS, flags | END_HEADERS, stream, &encode(fields)));
            assert_eq!(wire.read_response(stream).ended, StreamEnd::Reset(PROTOCOL_ERROR), "{fields:?}");
            // Frames that are already on the way have no effect.
            if *flags & END_STREAM == 0 {
                wire.send(frame(DATA, END_STREAM, stream, b"late body"));
            }
            let good = [&request("GET", "/good")[..], &[("x-kept", "the same each time"), ("x-new", reason)]].concat();
            wire.send(frame(HEADERS, END_STREAM | END_HEADERS, stream + 2, &encode(&good)));
            let response = wire.read_response(stream + 2);
            assert_eq!(
                (response.body.as_slice(), response.ended),
                (&b"up"[..], StreamEnd::Complete),
                "after {fields:?}"
            );
        }
        released.store(true, Ordering::Relaxed);
        assert_eq!(wire.read_response(1).body, b"up");

        let mut reasons: Vec<&str> = cases.iter().map(|case| case.2).collect();
        reasons.sort_unstable();
        for case in reasons.chunk_by(|a, b| a == b) {
            assert_counted(&gateway, case[0], case.len());
            wait_until("all are logged", || lines(&gateway, case[0]).len() == case.len());
        }
        let upper = &lines(&gateway, "h2_field_name")[0];
        for (key, value) in [("method", "GET"), ("host", "a.test"), ("path", "/bad"), ("protocol", "HTTP/2.0")] {
            assert_eq!(upper[key], value, "{upper}");
        }
        assert_eq!(upper["status"], 400);
        let requests = upstream.requests();
        assert_eq!(requests.len(), cases.len() + 1, "a malformed request reached the upstream");
        for (request, (.., reason)) in requests.iter().filter(|request| request.target() == "/good").zip(&cases) {
            assert_eq!((request.get("x-kept"), request.get("x-new")), (Some("the same each time"), Some(*reason)));
        }
        gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    }
}

/// The parts of a head are joined before it is checked: wherever it is split, with padding and priority, and byte by
/// byte.
#[test]
fn heads_in_pieces_are_judged_as_wholes() {
    let released = Arc::new(AtomicBool::new(false));
    let upstream = upstream(&released);
    let gateway = gateway(&upstream);
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/held");
    let bad = block(&with("X-Upper", "1"));
    let good = block(&with("x-lower", "1"));
    let mut stream = 1;
    for cut in [0, 1, 7, good.len() - 12, good.len() - 1, good.len()] {
        for (encoded, ended) in [(&bad, StreamEnd::Reset(PROTOCOL_ERROR)), (&good, StreamEnd::Complete)] {
            stream += 2;
            let (first, rest) = encoded.split_at(cut);
            let prioritized = [&[3, 0, 0, 0, 0, 15][..], first, &[0; 3]].concat();
            let head = frame(HEADERS, END_STREAM | PADDED | PRIORITIZED, stream, &prioritized);
            let (middle, last) = rest.split_at(rest.len() / 2);
            let rest = [frame(CONTINUATION, 0, stream, middle), frame(CONTINUATION, END_HEADERS, stream, last)];
            for piece in [head, rest.concat()].concat().chunks(if cut == 7 { 1 } else { 1000 }) {
                wire.send(piece);
            }
            assert_eq!(wire.read_response(stream).ended, ended, "cut at {cut}");
        }
    }
    released.store(true, Ordering::Relaxed);
    assert_eq!(wire.read_response(1).body, b"up");
    assert_counted(&gateway, "h2_field_name", 6);
}

/// A stream that depends on itself is reset, and the fields that its head adds to the table are known afterwards.
#[test]
fn a_stream_that_depends_on_itself_leaves_the_table_whole() {
    let upstream = Upstream::text("up");
    let gateway = gateway(&upstream);
    let mut wire = Wire::connect(gateway.addr, &[]);
    let mut encoder = Encoder { table: Vec::new() };
    let kept = [&request("GET", "/")[..], &[("x-kept", "1")]].concat();
    let payload = [&[0, 0, 0, 1, 15][..], &encoder.block(&kept)].concat();
    wire.send(frame(HEADERS, END_STREAM | END_HEADERS | PRIORITIZED, 1, &payload));
    assert_eq!(wire.read_response(1).ended, StreamEnd::Reset(PROTOCOL_ERROR));
    wire.send(frame(HEADERS, END_STREAM | END_HEADERS, 3, &encoder.block(&kept)));
    assert_eq!(wire.read_response(3).body, b"up");
    assert_eq!(upstream.request().get("x-kept"), Some("1"));
}

#[test]
fn malformed_trailers_reset_their_stream_and_no_other_request() {
    let released = Arc::new(AtomicBool::new(false));
    let held = upstream(&released);
    let gateway = gateway(&held);
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/held");
    let cases = [
        (vec![(":path", "/")], END_STREAM, "h2_pseudo_field"),
        (vec![("x-t", "1"), (":status", "200")], END_STREAM, "h2_pseudo_field"),
        (vec![("X-T", "1")], END_STREAM, "h2_field_name"),
        (vec![("x-t", "1\r\n")], END_STREAM, "h2_field_value"),
        (vec![("connection", "close")], END_STREAM, "h2_connection_field"),
        (vec![("x-t", "1")], 0, "h2_trailers"),
    ];
    for (number, (trailers, flags, reason)) in cases.iter().enumerate() {
        let stream = u32::try_from(number * 2 + 3).unwrap();
        wire.send(headers(stream, END_HEADERS, &request("POST", "/upload")));
        wire.send(frame(DATA, 0, stream, b"body"));
        wait_until("the upload has begun", || held.connections() == number + 2);
        wire.send(headers(stream, flags | END_HEADERS, trailers));
        assert_eq!(wire.read_response(stream).ended, StreamEnd::Reset(PROTOCOL_ERROR), "{trailers:?}");
        // It is counted just after the response was sent.
        wait_until(reason, || gateway.metric("http_rejected_total", &[("reason", reason)]) >= Some(1.0));
    }
    wait_until("the requests are logged", || lines(&gateway, "body_malformed").len() == cases.len());
    released.store(true, Ordering::Relaxed);
    assert_eq!(wire.read_response(1).body, b"up");
    assert!(lines(&gateway, "client_left").is_empty());
    assert!(held.requests().iter().all(|request| request.target() == "/held"), "an upload reached its end");
}

/// An upstream would take the head for a complete request.
#[test]
fn data_after_an_empty_body_was_announced_reaches_no_upstream() {
    let upstream = Upstream::text("up");
    let gateway = gateway(&upstream);
    let mut wire = Wire::connect(gateway.addr, &[]);
    let empty = [&request("POST", "/")[..], &[("content-length", "0")]].concat();
    for (stream, pause) in [(1, 0), (3, 150)] {
        wire.send(headers(stream, END_HEADERS, &empty));
        std::thread::sleep(Duration::from_millis(pause));
        wire.send(frame(DATA, END_STREAM, stream, b"GET / HTTP/1.1"));
        assert_eq!(wire.read_response(stream).ended, StreamEnd::Reset(PROTOCOL_ERROR));
    }
    wait_until("both are logged", || lines(&gateway, "body_malformed").len() == 2);
    assert_eq!(upstream.connections(), 0);
    // These bodies are empty as well: DATA without bytes, and trailers.
    wire.send(headers(5, END_HEADERS, &empty));
    wire.send(frame(DATA, 0, 5, b""));
    wire.send(frame(DATA, END_STREAM, 5, b""));
    assert_eq!(wire.read_response(5).body, b"up");
    wire.send(headers(7, END_HEADERS, &empty));
    wire.send(headers(7, END_STREAM | END_HEADERS, &[("x-t", "1")]));
    assert_eq!(wire.read_response(7).body, b"up");
    for _ in 0..2 {
        let request = upstream.request();
        assert_eq!((request.get("content-length"), request.body.len()), (Some("0"), 0));
    }
}

/// The log distinguishes requests that end with their connection from requests whose client left.
#[test]
fn requests_cut_by_an_error_of_the_connection_are_logged_as_such() {
    let broken: [Vec<u8>; 4] = [
        frame(HEADERS, END_STREAM | END_HEADERS, 3, &[0x80]),
        frame(CONTINUATION, END_HEADERS, 3, &block(&request("GET", "/"))),
        [frame(HEADERS, 0, 3, &block(&request("GET", "/"))), frame(PING, 0, 0, &[0; 8])].concat(),
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 0]),
    ];
    for bytes in broken {
        let upstream = Upstream::silent();
        let gateway = gateway(&upstream);
        let mut wire = Wire::connect(gateway.addr, &[]);
        wire.get(1, "/");
        upstream.request();
        wire.send(&bytes);
        assert_eq!(wire.read_goaway(), Some(PROTOCOL_ERROR), "{bytes:?}");
        wait_until("it is logged", || lines(&gateway, "h2_connection_error").len() == 1);
        assert_counted(&gateway, "h2_protocol", 1);
    }
    let upstream = Upstream::silent();
    let gateway = gateway(&upstream);
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/");
    upstream.request();
    drop(wire);
    wait_until("it is logged", || lines(&gateway, "client_left").len() == 1);
}

/// A hundred malformed requests are no accident.
#[test]
fn malformed_heads_without_end_end_the_connection() {
    let upstream = Upstream::text("up");
    let gateway = gateway(&upstream);
    let mut wire = Wire::connect(gateway.addr, &[]);
    let mut sent = 0;
    while sent < 5000 && wire.try_send(headers(sent * 2 + 1, END_STREAM | END_HEADERS, &with("X", "1"))).is_ok() {
        sent += 1;
    }
    assert_eq!(wire.read_goaway(), Some(ENHANCE_YOUR_CALM));
    wait_until("it is counted", || gateway.metric("http_rejected_total", &[("reason", "h2_abuse")]) == Some(1.0));
    let counted = gateway.metric("http_rejected_total", &[("reason", "h2_field_name")]).unwrap();
    assert!((100.0..1000.0).contains(&counted), "{counted}");
    assert_eq!(upstream.connections(), 0);
}

/// Some clients send characters in a path that HTTP does not allow. The gateway encodes them. The library never learns of
/// entries that the client adds to its table meanwhile.
#[test]
fn characters_that_a_path_should_not_have_are_encoded() {
    let upstream = Upstream::text("up");
    let route = format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    for strictness in ["strict", "monitor"] {
        let gateway = Gateway::with(&format!("strictness = \"{strictness}\""), &route);
        let mut encoder = Encoder { table: Vec::new() };
        let mut wire = Wire::connect(gateway.addr, &[]);
        let long = "v".repeat(20_000);
        let big = ["a", &long].concat();
        let cases = [
            ("/plain", "1", Some("/plain")),
            ("/a<b>?q=\"x\"`", "1", Some("/a%3Cb%3E?q=%22x%22`")),
            ("/a<b>?q=\"x\"`", "1", Some("/a%3Cb%3E?q=%22x%22`")),
            ("/?`<", "2", Some("/?`%3C")),
            ("?`<", "2", Some("/?`%3C")),
            ("/plain", "2", Some("/plain")),
            ("/a b", "2", None),
            ("a<", "1", None),
            ("/`", &big, Some("/%60")),
            ("/plain", "1", Some("/plain")),
        ];
        for (number, (path, value, forwarded)) in cases.iter().enumerate() {
            let stream = u32::try_from(number * 2 + 1).unwrap();
            let fields = [&request("POST", path)[..], &[("x-kept", value), ("trailer", "x-t")]].concat();
            let encoded = encoder.block(&fields);
            let (first, rest) = encoded.split_at(encoded.len().min(16_000));
            let is_whole = if rest.is_empty() { END_HEADERS } else { 0 };
            let ends = if forwarded.is_some() { 0 } else { END_STREAM };
            wire.send(frame(HEADERS, is_whole | ends, stream, first));
            if !rest.is_empty() {
                wire.send(frame(CONTINUATION, END_HEADERS, stream, rest));
            }
            if forwarded.is_some() {
                wire.send(frame(DATA, 0, stream, b"body"));
                wire.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, &encoder.block(&[("x-t", "1")])));
            }
            let response = wire.read_response(stream);
            match forwarded {
                Some(target) => {
                    assert_eq!(response.body, b"up", "{strictness} {path}");
                    let seen = upstream.request();
                    assert_eq!(
                        (seen.target(), seen.get("x-kept"), &seen.body[..]),
                        (*target, Some(*value), &b"body"[..])
                    );
                }
                None => assert_eq!(response.ended, StreamEnd::Reset(PROTOCOL_ERROR), "{path}"),
            }
        }
        // Bytes that are not UTF-8.
        let mut fields = block(&request("GET", "/?x"));
        let place = fields.windows(3).position(|piece| piece == b"/?x").unwrap();
        fields[place + 2] = 0xe9;
        wire.send(frame(HEADERS, END_STREAM | END_HEADERS, 101, &fields));
        let response = wire.read_response(101);
        match strictness {
            "strict" => assert_eq!(response.problem_status(), 400),
            _ => assert_eq!((&response.body[..], upstream.request().target()), (&b"up"[..], "/?%E9")),
        }
    }
}

/// The strictness of the route decides whether bytes that are not UTF-8 pass, encoded, as over HTTP/1.1. A client cannot
/// state by a header that its target had such bytes.
#[test]
fn raw_bytes_are_judged_by_their_route() {
    let upstream = Upstream::text("up");
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{url}\"\n\
         [[route]]\npath = \"/defensive\"\nstrictness = \"defensive\"\nupstream = \"{url}\"\n\
         [[route]]\npath = \"/monitor\"\nstrictness = \"monitor\"\nupstream = \"{url}\"\n"
    ));
    let mut wire = Wire::connect(gateway.addr, &[]);
    let mut stream = 1;
    for (path, refused) in [
        ("/monitor?q=#", None),
        ("/monitor/#", None),
        ("/defensive?q=#", None),
        ("/strict?q=#", Some("query_non_ascii")),
        ("/strict/#?q", Some("path_non_ascii")),
        ("/monitor/plain", None),
        ("/strict/plain", None),
    ] {
        let mut fields = block(&request("GET", path));
        fields.iter_mut().filter(|byte| **byte == b'#').for_each(|byte| *byte = 0xe9);
        wire.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields));
        let response = wire.read_response(stream);
        stream += 2;
        if let Some(reason) = refused {
            assert_eq!(response.problem_status(), 400, "{path}");
            wait_until(reason, || gateway.metric("http_rejected_total", &[("reason", reason)]) == Some(1.0));
        } else {
            assert_eq!(response.body, b"up", "{path}");
            let seen = upstream.request();
            assert_eq!(seen.target(), path.replace('#', "%E9"));
            assert!(!seen.head.contains("raw-bytes"), "{}", seen.head);
        }
    }
    // The parser would remove a fragment in silence, as that of HTTP/1.1.
    for (path, seen) in [("/strict#a", None), ("/monitor/#a?b", Some("/monitor/"))] {
        wire.send(headers(stream, END_STREAM | END_HEADERS, &request("GET", path)));
        let response = wire.read_response(stream);
        stream += 2;
        match seen {
            Some(target) => assert_eq!(upstream.request().target(), target),
            None => assert_eq!(response.problem_status(), 400, "{path}"),
        }
    }
    for (path, name) in [("/strict/plain", "\"raw-bytes"), ("/strict?<", "\"raw-bytes")] {
        let fields = [&request("GET", path)[..], &[(name, "query_non_ascii")]].concat();
        wire.send(headers(stream, END_STREAM | END_HEADERS, &fields));
        assert_eq!(wire.read_response(stream).ended, StreamEnd::Reset(PROTOCOL_ERROR), "{path}");
        stream += 2;
    }
    assert_eq!(upstream.requests().len(), 0);
}
