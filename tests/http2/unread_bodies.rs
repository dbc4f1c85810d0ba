//! Responses that end before the request body: the stream stays half-closed while the client sends the rest, which is
//! discarded within bounds. Clients such as curl 7.88 lose a response whose stream is reset at once.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::support::client::Client;
use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::upstream::{Upstream, ok};

const PIECE: usize = 16 * 1024;

/// The limit of `/spent` is exhausted, `/small` has a small `max_body`, and `/app` has a server.
fn start(upstream: &Upstream) -> Gateway {
    let config = format!(
        r#"
        [[route]]
        path = "/spent"
        upstream = "{url}"
        limits = ["one"]
        max_body = "1GiB"

        [[route]]
        path = "/small"
        upstream = "{url}"
        max_body = "64KiB"

        [[route]]
        path = "/fixed"
        respond = {{ body = "fixed" }}
        max_body = "1GiB"

        [[route]]
        name = "app"
        path = "/"
        upstream = "{url}"
        max_body = "1GiB"

        [[route]]
        path = "/spend"
        respond = {{}}
        limits = ["one"]

        [limit.one]
        rate = "1/day"
        key = "all"
        "#,
        url = upstream.url()
    );
    let gateway = Gateway::with("workers = 1", &config);
    assert_eq!(gateway.get("/spend").status(), 200);
    gateway
}

/// Refuses every upload before its end.
fn refusing() -> Upstream {
    Upstream::start(|peer| {
        while let Some(head) = peer.head()? {
            if head.start_line().starts_with("POST") {
                return peer.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno");
            }
            peer.send(ok("up"))?;
        }
        Ok(())
    })
}

/// Sends `total` bytes on `stream` as far as the windows allow, and ends the stream. Returns how much was sent before
/// the gateway reset the stream, and the code.
fn upload<S: std::io::Read + std::io::Write>(wire: &mut Wire<S>, stream: u32, total: usize) -> (usize, Option<u32>) {
    // The windows that the gateway announces in its SETTINGS and opens for the connection.
    let (mut of_stream, mut of_connection, mut sent) = (256 * 1024, 1024 * 1024, 0);
    while sent < total {
        let piece = PIECE.min(total - sent);
        if of_stream >= piece && of_connection >= piece {
            let flags = if sent + piece == total { END_STREAM } else { 0 };
            if wire.try_send(frame(DATA, flags, stream, &vec![b'x'; piece])).is_err() {
                return (sent, None);
            }
            (of_stream, of_connection, sent) = (of_stream - piece, of_connection - piece, sent + piece);
            continue;
        }
        let frame = wire.next().unwrap().expect("the connection ended");
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
        match frame.kind {
            WINDOW_UPDATE if frame.stream == stream => of_stream += number(&frame.payload) as usize,
            WINDOW_UPDATE if frame.stream == 0 => of_connection += number(&frame.payload) as usize,
            RST_STREAM if frame.stream == stream => return (sent, Some(number(&frame.payload))),
            _ => {}
        }
    }
    (sent, None)
}

/// Sends the head of a POST request, and `length` if that is given.
fn begin<S: std::io::Read + std::io::Write>(wire: &mut Wire<S>, stream: u32, path: &str, length: Option<usize>) {
    let length = length.map(|length| length.to_string());
    let mut fields = request("POST", path);
    fields.extend(length.as_deref().map(|length| ("content-length", length)));
    wire.send(headers(stream, END_HEADERS, &fields));
}

/// Sends the rest of a body after the response, and checks that nothing resets the stream.
#[track_caller]
fn send_rest<S: std::io::Read + std::io::Write>(wire: &mut Wire<S>, stream: u32, rest: usize) {
    assert_eq!(upload(wire, stream, rest), (rest, None), "the stream was reset");
    wire.send(ping());
    wire.read_until("the acknowledgement", |frame| {
        assert!(frame.kind != RST_STREAM || frame.stream != stream, "the stream was reset");
        frame.kind == PING
    });
}

#[test]
fn a_refusal_before_the_body_resets_nothing_while_the_client_sends() {
    let upstream = Upstream::text("never");
    let gateway = start(&upstream);
    let mut wire = Wire::connect(gateway.addr, &[]);
    let mut stream = 1;
    for (path, status) in [("/spent", 429), ("/small", 413), ("/fixed", 200)] {
        for size in [1, 100, 10_000, 1_000_000, 20_000_000] {
            if path == "/small" && size < 100_000 {
                continue;
            }
            begin(&mut wire, stream, path, Some(size));
            let response = wire.read_response(stream);
            assert_eq!(response.ended, StreamEnd::Complete, "{path} {size}");
            match status {
                200 => assert_eq!(response.body, b"fixed"),
                _ => assert_eq!(response.problem_status(), status, "{path} {size}"),
            }
            send_rest(&mut wire, stream, size);
            stream += 2;
        }
    }
    assert!(wire.is_alive());
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn a_refusal_inside_the_body_resets_nothing_while_the_client_sends() {
    let upstream = refusing();
    let gateway = start(&upstream);
    let mut wire = Wire::connect(gateway.addr, &[]);
    // The windows that the gateway announces apply once its SETTINGS are acknowledged.
    assert!(wire.is_alive());
    for (stream, path) in [(1, "/small"), (3, "/"), (5, "/small"), (7, "/")] {
        begin(&mut wire, stream, path, None);
        // More than `max_body` of `/small`.
        (0..5).for_each(|_| wire.send(frame(DATA, 0, stream, &[b'x'; PIECE])));
        let response = wire.read_response(stream);
        assert_eq!(response.ended, StreamEnd::Complete, "{path}");
        match path {
            "/" => assert_eq!(response.body, b"no"),
            _ => assert_eq!(response.problem_status(), 413),
        }
        // As much as the window of the stream leaves, after 80 KiB.
        send_rest(&mut wire, stream, 150_000);
    }
    assert!(wire.is_alive());
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

/// The bounds of what is discarded for one response: bytes, and a pause.
#[test]
fn a_client_that_sends_too_much_or_nothing_is_reset_without_an_error() {
    let gateway = start(&Upstream::text("never"));
    let mut wire = Wire::connect(gateway.addr, &[]);
    begin(&mut wire, 1, "/spent", None);
    assert_eq!(wire.read_response(1).problem_status(), 429);
    let (sent, code) = upload(&mut wire, 1, 64 << 20);
    assert_eq!(code, Some(NO_ERROR));
    // The client may have filled the window of its stream meanwhile.
    assert!((31 << 20..33 << 20).contains(&sent), "{sent} bytes");

    begin(&mut wire, 3, "/spent", None);
    assert_eq!(wire.read_response(3).problem_status(), 429);
    let answered = Instant::now();
    wire.get(5, "/fixed");
    assert_eq!(wire.read_response(5).body, b"fixed", "other streams continue");
    let reset = wire.read_until("a reset", |frame| frame.kind == RST_STREAM && frame.stream == 3);
    assert_eq!(reset.payload, NO_ERROR.to_be_bytes());
    let waited = answered.elapsed();
    assert!((Duration::from_millis(1500)..Duration::from_secs(6)).contains(&waited), "{waited:?}");
}

/// Reads `count` responses, and returns how many streams were reset right after theirs.
fn count_resets(wire: &mut Wire, count: usize) -> usize {
    let (mut answers, mut resets, mut pongs) = (0, 0, 0);
    loop {
        let frame = wire.next().unwrap().expect("the connection ended");
        match frame.kind {
            RST_STREAM => resets += 1,
            PING if pongs == 1 => return resets,
            PING => {
                // The resets follow the responses in turns of their own.
                pongs += 1;
                std::thread::sleep(Duration::from_millis(50));
                wire.send(ping());
            }
            HEADERS | DATA if frame.flags & END_STREAM != 0 => answers += 1,
            _ => continue,
        }
        if answers == count && frame.kind != RST_STREAM {
            wire.send(ping());
        }
    }
}

/// However many uploads begin that are refused, a worker discards a bounded number of each client, and of all. The others
/// are reset at once.
#[test]
fn a_worker_discards_a_bounded_number_of_bodies() {
    reset_at_once(12, |number| number, 200);
    reset_at_once(3, |_| 1, 200);
}

/// Has `connections` begin 100 uploads each, from the addresses 127.0.0.`client`, and checks how many are reset.
fn reset_at_once(connections: u8, client: impl Fn(u8) -> u8, expected: usize) {
    let gateway = start(&Upstream::text("never"));
    let streams: Vec<u32> = (0..100).map(|count| 2 * count + 1).collect();
    let head = |stream: &u32| headers(*stream, END_HEADERS, &request("POST", "/spent"));
    let heads: Vec<u8> = streams.iter().flat_map(head).collect();
    // On a busy machine, the first clients have paused for too long before the last ones begin.
    for attempt in 1..=5 {
        let connect = |number| Client::from(Ipv4Addr::new(127, 0, 0, client(number)), gateway.addr).into_stream();
        let mut wires: Vec<Wire> = (1..=connections).map(|number| Wire::over(connect(number), &[])).collect();
        let begun = Instant::now();
        wires.iter_mut().for_each(|wire| wire.send(&heads));
        let resets: usize = wires.iter_mut().map(|wire| count_resets(wire, streams.len())).sum();
        let elapsed = begun.elapsed();
        eprintln!("{resets} of {connections} x 100 streams were reset at once, after {elapsed:?}");
        if elapsed < Duration::from_millis(1900) {
            assert_eq!(resets, expected);
            return;
        }
        assert!(resets >= expected, "{resets} of {connections} x 100 in {elapsed:?}, attempt {attempt}");
        std::thread::sleep(Duration::from_secs(3));
    }
}
