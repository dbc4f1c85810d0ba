//! Responses that end before the request body: the stream stays open while the client sends the rest, which is discarded
//! within bounds. Chromium loses a response if the gateway stops the request with it.

use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::Http3Gateway;
use crate::support::WAIT_MAX;
use crate::support::h3::{DATA, Exchange, H3Client, get, head, varint};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const NO_ERROR: u64 = 0x100;
const PIECE: usize = 64 * 1024;
const MIB: usize = 1024 * 1024;

/// The limit of `/spent` is exhausted, `/small` has a small `max_body`, and `/app` has a server.
fn start(upstream: &Upstream) -> Http3Gateway {
    let rest = format!(
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
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    assert_eq!(gateway.connect().get("/spend").status(), 200);
    gateway
}

/// Refuses uploads to `/app` before their end, and waits for the others.
fn refusing() -> Upstream {
    Upstream::start(|peer| {
        while let Some(head) = peer.head()? {
            match head.target() {
                "/app" => {
                    return peer.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno");
                }
                "/small" => return peer.wait_for_end(),
                _ => peer.send(ok("up"))?,
            }
        }
        Ok(())
    })
}

fn post(path: &str) -> Vec<u8> {
    head(&[(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", path)])
}

/// Begins an upload with a frame that announces `size` bytes.
fn begin<'a>(client: &'a H3Client, path: &str, kind: u64, size: usize) -> Exchange<'a> {
    client.open(&[post(path), varint(kind), varint(size as u64)].concat())
}

/// Sends `size` bytes as far as the gateway wants them. Returns how many, and the code with which the gateway stops.
fn upload(exchange: &mut Exchange<'_>, size: usize) -> (usize, Option<u64>) {
    let (client, piece, mut sent) = (exchange.client, vec![b'x'; PIECE], 0);
    client.runtime.block_on(async {
        while sent < size {
            let piece = &piece[..PIECE.min(size - sent)];
            match timeout(WAIT_MAX, exchange.send.write_all(piece)).await.expect("the gateway reads on") {
                Ok(()) => sent += piece.len(),
                Err(quinn::WriteError::Stopped(code)) => return (sent, Some(code.into_inner())),
                Err(error) => panic!("{error}"),
            }
        }
        (sent, None)
    })
}

/// Sends the rest of a body after the response, and checks that the gateway reads it to its end.
#[track_caller]
fn send_rest(exchange: &mut Exchange<'_>, rest: usize) {
    assert_eq!(upload(exchange, rest), (rest, None));
    exchange.finish();
    let stopped = exchange.client.runtime.block_on(async { timeout(WAIT_MAX, exchange.send.stopped()).await });
    assert_eq!(stopped.unwrap(), Ok(None), "the gateway wants no more");
}

#[test]
fn a_refusal_before_the_body_stops_nothing_while_the_client_sends() {
    let upstream = Upstream::text("never");
    let gateway = start(&upstream);
    let client = gateway.connect();
    for (path, status) in [("/spent", 429), ("/fixed", 200)] {
        for size in [1, 100, 10_000, 1_000_000, 10_000_000] {
            let mut exchange = begin(&client, path, DATA, size);
            assert_eq!(exchange.response().unwrap().status(), status, "{path} {size}");
            send_rest(&mut exchange, size);
        }
    }
    assert_eq!((client.get("/fixed").text().as_str(), upstream.connections()), ("fixed", 0));
}

#[test]
fn a_refusal_inside_the_body_stops_nothing_while_the_client_sends() {
    let upstream = refusing();
    let gateway = start(&upstream);
    let client = gateway.connect();
    for (path, status) in [("/small", 413), ("/app", 401), ("/small", 413), ("/app", 401)] {
        let mut exchange = begin(&client, path, DATA, 3_000_000);
        // More than `max_body` of `/small`.
        assert_eq!(upload(&mut exchange, 80_000), (80_000, None));
        assert_eq!(exchange.response().unwrap().status(), status);
        send_rest(&mut exchange, 3_000_000 - 80_000);
    }
    gateway.gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

/// The bounds of what is discarded for one response: bytes, also those of a frame that is skipped, and a pause.
#[test]
fn a_client_that_sends_too_much_or_nothing_is_stopped_without_an_error() {
    let gateway = start(&Upstream::text("never"));
    let client = gateway.connect();
    for kind in [DATA, 0x21] {
        let mut exchange = begin(&client, "/spent", kind, 64 * MIB);
        assert_eq!(exchange.response().unwrap().status(), 429);
        let (sent, code) = upload(&mut exchange, 64 * MIB);
        assert_eq!(code, Some(NO_ERROR));
        // The client may have filled the window of its stream, and its own buffer, meanwhile.
        assert!((31 * MIB..34 * MIB).contains(&sent), "{sent} bytes in frames of type {kind}");
    }
    let mut silent = begin(&client, "/spent", DATA, 1000);
    assert_eq!(silent.response().unwrap().status(), 429);
    let answered = Instant::now();
    assert_eq!(client.get("/fixed").text(), "fixed", "other streams continue");
    assert_eq!(silent.stop_code(), NO_ERROR);
    let waited = answered.elapsed();
    assert!((Duration::from_millis(1500)..Duration::from_secs(6)).contains(&waited), "{waited:?}");
}

/// A client that breaks an upload off after the response has its stream back.
#[test]
fn a_client_that_resets_its_upload_can_begin_others() {
    let gateway = start(&Upstream::text("never"));
    let client = gateway.connect();
    for round in 0..500 {
        let mut exchange = begin(&client, "/spent", DATA, 1000);
        if round % 2 == 0 {
            let _ = exchange.receive.stop(quinn::VarInt::from_u32(0x10c));
        } else {
            assert_eq!(exchange.response().unwrap().status(), 429, "{round}");
        }
        let _ = exchange.send.reset(quinn::VarInt::from_u32(0x10c));
    }
    assert_eq!(client.get("/fixed").text(), "fixed");
}

/// However many uploads begin that are refused, a worker discards a bounded number of each client. The others are stopped
/// at once.
#[test]
fn a_worker_discards_a_bounded_number_of_bodies_of_a_client() {
    const STREAMS: usize = 100;
    let gateway = start(&Upstream::text("never"));
    // On a busy machine, the first streams have paused for too long before the last ones are counted.
    for attempt in 1..=5 {
        let clients: Vec<H3Client> = (0..3).map(|_| gateway.connect()).collect();
        let begun = Instant::now();
        let open = clients.iter().flat_map(|client| (0..STREAMS).map(|_| begin(client, "/spent", DATA, 1000)));
        let mut uploads: Vec<Exchange<'_>> = open.collect();
        uploads.iter_mut().for_each(|upload| assert_eq!(upload.response().unwrap().status(), 429));
        let stopped = uploads.iter().filter(|upload| is_stopped(upload)).count();
        let elapsed = begun.elapsed();
        eprintln!("{stopped} of 3 x {STREAMS} streams were stopped at once, after {elapsed:?}");
        if elapsed < Duration::from_millis(1900) {
            assert_eq!(stopped, 2 * STREAMS);
            // The others are stopped after their pause.
            assert!(uploads.iter_mut().all(|upload| upload.stop_code() == NO_ERROR));
            return;
        }
        assert!(stopped >= 2 * STREAMS, "{stopped} of 3 x {STREAMS} in {elapsed:?}, attempt {attempt}");
        std::thread::sleep(Duration::from_secs(3));
    }
}

/// Returns whether the gateway has stopped an upload, as far as the client knows.
fn is_stopped(upload: &Exchange<'_>) -> bool {
    let stopped = upload.client.runtime.block_on(async { timeout(Duration::ZERO, upload.send.stopped()).await });
    stopped.is_ok()
}

/// A client that neither sends the rest of its body nor ends it does not hold up a drain.
#[test]
fn a_drain_does_not_wait_for_bodies_that_are_discarded() {
    let gateway = start(&Upstream::text("never"));
    let client = gateway.connect();
    let mut exchange = begin(&client, "/spent", DATA, 1_000_000);
    assert_eq!(exchange.response().unwrap().status(), 429);
    let begun = Instant::now();
    gateway.gateway.signal("TERM");
    assert_eq!(client.close_code(), NO_ERROR);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

/// Also a head that is too large may have a body, which is discarded within the same bounds.
#[test]
fn the_body_behind_a_large_head_stops_nothing() {
    let gateway = start(&Upstream::text("never"));
    let client = gateway.connect();
    let long = "x".repeat(40_000);
    let fields = [&get("/fixed")[..], &[("x-long", &long)]].concat();
    let mut exchange = client.open(&[head(&fields), varint(DATA), varint(3_000_000)].concat());
    assert_eq!(exchange.response().unwrap().status(), 431);
    send_rest(&mut exchange, 3_000_000);
    wait_until("it is counted", || {
        gateway.gateway.metric("http_rejected_total", &[("reason", "head_too_large")]) == Some(1.0)
    });
}
