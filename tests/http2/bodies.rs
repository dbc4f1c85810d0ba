//! Bodies and trailers over HTTP/2 in both directions: streamed, bounded, and ended independently.

use std::time::Duration;

use http::HeaderMap;

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, get, post};
use crate::support::upstream::{Upstream, ok};
use crate::support::{WAIT_MAX, wait_until};

fn to(upstream: &Upstream, more: &str) -> String {
    format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n{more}\n", upstream.url())
}

/// 3 MB both ways at once: more than any window or buffer.
#[test]
fn large_bodies_pass_both_ways() {
    let gateway = Gateway::start("[[route]]\npath = \"/\"\nupstream = \"echo:\"\n");
    let mut h2 = H2Client::connect(gateway.addr);
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let response = h2.fetch(post("/"), Sent { body: &body, trailers: None });
    assert!(response.body == body, "{} bytes", response.body.len());
    let upstream = Upstream::fixed(
        [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat(),
    );
    let gateway = Gateway::start(&to(&upstream, ""));
    assert!(H2Client::connect(gateway.addr).get("/").body == body);
}

/// Empty DATA is legal, and some clients flush with it. The library accepts only 100 in the life of a connection.
#[test]
fn empty_data_changes_nothing_however_it_arrives() {
    let gateway = Gateway::start("[[route]]\npath = \"/\"\nupstream = \"echo:\"\n");
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.stream().set_nodelay(true).unwrap();
    for count in 0..150 {
        let stream = 2 * count + 1;
        let empty = frame(DATA, 0, stream, &[]);
        let data = |flags: u8, bytes: &[u8]| frame(DATA, flags, stream, bytes);
        let head = headers(stream, END_HEADERS, &request("POST", "/"));
        let upload = [&head, &empty, &data(0, b"ab"), &empty, &empty, &data(0, b"c"), &empty, &data(END_STREAM, b"")];
        let upload: Vec<u8> = upload.into_iter().flatten().copied().collect();
        let (start, rest) = upload.split_at(count as usize % upload.len());
        wire.send(start);
        std::thread::sleep(Duration::from_millis(1));
        wire.send(rest);
        let response = wire.read_response(stream);
        assert_eq!((&response.body[..], response.ended), (&b"abc"[..], StreamEnd::Complete), "{count}");
    }
}

#[test]
fn empty_data_on_a_stream_that_was_never_opened_ends_the_connection() {
    let gateway = Gateway::start("[[route]]\npath = \"/\"\nrespond = { body = \"fixed\" }\n");
    for stream in [0, 2, 3] {
        let mut wire = Wire::connect(gateway.addr, &[]);
        wire.get(1, "/");
        assert_eq!(wire.read_response(1).body, b"fixed");
        wire.send(frame(DATA, 0, stream, &[]));
        assert_eq!(wire.read_goaway(), Some(PROTOCOL_ERROR), "{stream}");
    }
}

#[test]
fn the_length_of_a_body_is_told_where_it_is_known() {
    let upstream = Upstream::text("up");
    let gateway = Gateway::start(&to(&upstream, ""));
    let mut h2 = H2Client::connect(gateway.addr);
    let mut known = post("/");
    known.headers_mut().insert("content-length", "5".parse().unwrap());
    h2.fetch(known, Sent { body: b"known", trailers: None });
    let seen = upstream.request();
    assert_eq!(
        (seen.get("content-length"), seen.get("transfer-encoding"), &seen.body[..]),
        (Some("5"), None, &b"known"[..])
    );
    h2.fetch(post("/"), Sent { body: b"unknown", trailers: None });
    let seen = upstream.request();
    assert_eq!(
        (seen.get("content-length"), seen.get("transfer-encoding"), &seen.body[..]),
        (None, Some("chunked"), &b"unknown"[..])
    );
    let mut none = post("/");
    none.headers_mut().insert("content-length", "0".parse().unwrap());
    h2.fetch(none, Sent::default());
    assert_eq!(upstream.request().get("content-length"), Some("0"));
}

/// HTTP/2 marks the end of a request by a flag. Over HTTP/1.1, clients state a length of 0 for methods that usually have
/// a body, and some servers require it (411).
#[test]
fn a_request_without_a_body_states_its_length_as_http1_clients_do() {
    let upstream = Upstream::text("up");
    let gateway = Gateway::start(&to(&upstream, ""));
    let mut wire = Wire::connect(gateway.addr, &[]);
    for (stream, method, length) in [
        (1, "POST", Some("0")),
        (3, "PUT", Some("0")),
        (5, "PATCH", Some("0")),
        (7, "GET", None),
        (9, "HEAD", None),
        (11, "DELETE", None),
        (13, "OPTIONS", None),
    ] {
        wire.send(headers(stream, END_STREAM | END_HEADERS, &request(method, "/")));
        assert_eq!(wire.read_response(stream).ended, StreamEnd::Complete);
        let seen = upstream.request();
        assert_eq!((seen.get("content-length"), seen.get("transfer-encoding")), (length, None), "{method}");
    }
}

#[test]
fn te_is_an_option_of_the_connection_to_an_http1_server() {
    let upstream = Upstream::text("up");
    let gateway = Gateway::start(&to(&upstream, ""));
    let mut wire = Wire::connect(gateway.addr, &[]);
    let fields = [&request("GET", "/")[..], &[("te", "trailers")]].concat();
    wire.send(headers(1, END_STREAM | END_HEADERS, &fields));
    assert_eq!(wire.read_response(1).body, b"up");
    let seen = upstream.request();
    assert_eq!((seen.get("te"), seen.get("connection")), (Some("trailers"), Some("te")));
}

#[test]
fn a_body_with_a_wrong_length_is_not_forwarded() {
    let upstream = Upstream::silent();
    let gateway = Gateway::start(&to(&upstream, ""));
    let mut wire = Wire::connect(gateway.addr, &[]);
    for (stream, body) in [(1, "four"), (3, "sixsix")] {
        let fields = [&request("POST", "/")[..], &[("content-length", "5")]].concat();
        wire.send(headers(stream, END_HEADERS, &fields));
        wire.send(frame(DATA, END_STREAM, stream, body.as_bytes()));
        assert_eq!(wire.read_response(stream).ended, StreamEnd::Reset(PROTOCOL_ERROR), "{body}");
    }
    assert!(wire.is_alive());
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    upstream.wait_for_close();
    assert!(upstream.requests().is_empty(), "the upstream got a whole request");
}

#[test]
fn announced_trailers_pass_both_ways_if_the_route_forwards_those_of_requests() {
    let upstream = Upstream::start(|peer| {
        while let Some(head) = peer.head()? {
            let announced = head.get("trailer").map(str::to_owned);
            peer.note(&format!("trailer: {announced:?}"));
            // The chunk, the last one, the trailer and the empty line.
            peer.exactly("4\r\nbody\r\n0\r\nx-sum: 10\r\n\r\n".len() as u64)?;
            peer.note("whole");
            peer.send(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: grpc-status\r\n\r\n2\r\nup\r\n0\r\n\
                 grpc-status: 0\r\nconnection: close\r\nset-cookie: a=1\r\nx-late: 1\r\n\r\n",
            )?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&to(&upstream, "request_trailers = true"));
    let mut h2 = H2Client::connect(gateway.addr);
    let mut request = post("/");
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    request.headers_mut().insert("trailer", "x-sum".parse().unwrap());
    let mut trailers = HeaderMap::new();
    for (name, value) in [("x-sum", "10"), ("x-unannounced", "1"), ("content-length", "9")] {
        trailers.insert(name, value.parse().unwrap());
    }
    let response = h2.fetch(request, Sent { body: b"body", trailers: Some(trailers) });
    assert_eq!((response.status(), response.text().as_str()), (200, "up"));
    let mut names: Vec<&str> = response.trailers.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["grpc-status", "x-late"]);
    upstream.request();
    assert_eq!(upstream.request().head, "trailer: Some(\"x-sum\")");
    assert_eq!(upstream.request().head, "whole");
}

/// A request does not get trailers because it claims to be gRPC: gRPC has none in requests.
#[test]
fn a_claim_of_grpc_forwards_no_trailers() {
    let upstream = Upstream::text("up");
    let gateway = Gateway::start(&to(&upstream, ""));
    let mut request = post("/");
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request.headers_mut().insert("trailer", "x-sum".parse().unwrap());
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "10".parse().unwrap())]);
    H2Client::connect(gateway.addr).fetch(request, Sent { body: b"body", trailers: Some(trailers) });
    let seen = upstream.request();
    assert_eq!((seen.get("trailer"), seen.text().as_str()), (None, "body"), "{}", seen.head);
}

/// The gateway resets the stream of a refused upload once its client pauses. Other streams continue.
#[test]
fn an_upload_that_is_refused_ends_with_its_response_and_without_an_error() {
    let upstream = Upstream::text("up");
    let gateway = Gateway::start(&to(&upstream, "max_body = \"64KiB\""));
    let mut wire = Wire::connect(gateway.addr, &[]);
    let announced = [&request("POST", "/")[..], &[("content-length", "100000")]].concat();
    wire.send(headers(1, END_HEADERS, &announced));
    let response = wire.read_response(1);
    assert_eq!((response.problem_status(), response.ended), (413, StreamEnd::Complete));
    let reset = wire.read_until("a reset", |frame| frame.kind == RST_STREAM && frame.stream == 1);
    assert_eq!(reset.payload, NO_ERROR.to_be_bytes());
    // The length is not announced, so the gateway notices it later.
    wire.send(headers(3, END_HEADERS, &request("POST", "/")));
    for _ in 0..5 {
        wire.send(frame(DATA, 0, 3, &[b'x'; 16 * 1024]));
    }
    assert_eq!(wire.read_response(3).problem_status(), 413);
    wire.get(5, "/");
    assert_eq!(wire.read_response(5).body, b"up");
    gateway.assert_metric("http_rejected_total", &[("reason", "body_too_large")], 2.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

/// If an upstream server does not read, the gateway reads no more from the client than the window of its stream.
#[test]
fn an_upload_waits_for_its_upstream() {
    let upstream = Upstream::start(|peer| {
        peer.head()?;
        std::thread::sleep(WAIT_MAX);
        Ok(())
    });
    let fixed = "[[route]]\npath = \"/fixed\"\nrespond = { }\n";
    let gateway = Gateway::start(&to(&upstream, &format!("max_body = \"1GiB\"\n{fixed}")));
    let mut h2 = H2Client::connect(gateway.addr);
    assert_eq!(h2.get("/fixed").status(), 200);
    let memory = gateway.watch_memory();
    let sender = h2.sender();
    let taken = h2.run(async move {
        let (response, mut stream) = sender.ready().await.unwrap().send_request(post("/"), false).unwrap();
        let mut taken = 0;
        loop {
            stream.reserve_capacity(64 * 1024);
            let room = std::future::poll_fn(|cx| stream.poll_capacity(cx));
            match tokio::time::timeout(std::time::Duration::from_millis(700), room).await {
                Ok(Some(Ok(room))) => stream.send_data(vec![b'x'; room].into(), false).unwrap(),
                Ok(ended) => panic!("{ended:?}"),
                Err(_) => break,
            }
            taken += 64 * 1024;
            // Some megabytes in the buffers of the sockets are included.
            assert!(taken < 64 << 20, "the gateway reads the whole body");
        }
        drop(response);
        taken
    });
    assert!(taken >= 256 * 1024, "{taken}");
    let grown = memory.peak();
    eprintln!("{} KiB more for an upload that waits", grown >> 10);
    assert!(grown < 4 << 20, "{grown} bytes more");
}

/// If an upstream server responds early and continues to read, the client may continue to send.
#[test]
fn a_response_may_come_before_the_upload_is_whole() {
    let upstream = Upstream::start(|peer| {
        let Some(_) = peer.head()? else { return Ok(()) };
        peer.exactly("5\r\nfirst\r\n".len() as u64)?;
        peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nearly\r\n")?;
        peer.exactly("6\r\nsecond\r\n0\r\n\r\n".len() as u64)?;
        peer.send("4\r\nlate\r\n0\r\n\r\n")?;
        peer.wait_for_end()
    });
    let gateway = Gateway::start(&to(&upstream, ""));
    let h2 = H2Client::connect(gateway.addr);
    let sender = h2.sender();
    let text = h2.run(async move {
        let (response, mut up) = sender.ready().await.unwrap().send_request(post("/"), false).unwrap();
        up.send_data("first".into(), false).unwrap();
        let mut down = response.await.unwrap().into_body();
        let early = down.data().await.unwrap().unwrap();
        up.send_data("second".into(), true).unwrap();
        let late = down.data().await.unwrap().unwrap();
        format!("{} {}", String::from_utf8_lossy(&early), String::from_utf8_lossy(&late))
    });
    assert_eq!(text, "early late");
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

#[test]
fn an_upstream_that_breaks_off_resets_the_stream_and_no_other() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.target() {
                "/cut" => return peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart"),
                "/none" => return Ok(()),
                _ => peer.send(ok("up"))?,
            }
        }
        Ok(())
    });
    let gateway = Gateway::start(&to(&upstream, ""));
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/cut");
    let aborted = wire.read_response(1);
    assert_eq!(aborted.ended, StreamEnd::Reset(INTERNAL_ERROR), "{:?}", aborted.body);
    wire.get(3, "/none");
    assert_eq!(wire.read_response(3).problem_status(), 502);
    wire.get(5, "/");
    assert_eq!(wire.read_response(5).body, b"up");
}

#[test]
fn an_upstream_that_refuses_an_upload_is_heard() {
    let upstream = Upstream::start(|peer| {
        peer.head()?;
        peer.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")
    });
    let gateway = Gateway::start(&to(&upstream, ""));
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.send(headers(1, END_HEADERS, &request("POST", "/")));
    wire.send(frame(DATA, 0, 1, &[b'x'; 16 * 1024]));
    let response = wire.read_response(1);
    assert_eq!((response.body.as_slice(), response.ended), (&b"no"[..], StreamEnd::Complete));
    wait_until("the request has ended", || {
        gateway.metric("requests_in_flight", &[("route", "app")]) == Some(0.0) && wire.is_alive()
    });
    assert_eq!(H2Client::connect(gateway.addr).fetch(get("/"), Sent::default()).status(), 401);
}
