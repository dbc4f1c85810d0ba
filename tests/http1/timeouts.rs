//! Clients and servers that are slow on purpose: each is disconnected at its configured timeout.

use std::io::Read;
use std::time::{Duration, Instant};

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::machine::Stopwatch;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Deadlines are checked ten times a second.
const LATE_MS: u64 = 700;

#[track_caller]
fn assert_took(watch: &Stopwatch, expected_ms: u64) {
    // The gateway may have started to measure a little before the test.
    watch.assert_ms(expected_ms - 20..expected_ms + LATE_MS);
}

/// Sends `piece` every `pause` until the gateway responds or closes the connection. Returns the response.
fn drip(client: &mut Client, piece: &[u8], pause: Duration) -> Vec<u8> {
    client.stream().set_read_timeout(Some(pause)).unwrap();
    let (mut response, mut buffer) = (Vec::new(), [0; 4096]);
    let end = Instant::now() + Duration::from_secs(8);
    loop {
        assert!(Instant::now() < end, "the connection stayed open for 8 s");
        match client.stream().read(&mut buffer) {
            Ok(0) => return response,
            Ok(count) => response.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if response.is_empty() && client.try_send(piece).is_err() {
                    return response;
                }
            }
            Err(_) => return response,
        }
    }
}

#[test]
fn a_head_must_be_whole_in_time() {
    let gateway = Gateway::with("header_timeout = \"400ms\"", "[[route]]\npath = \"/\"\nrespond = { }\n");
    let watch = Stopwatch::start();
    let mut silent = gateway.client();
    silent.assert_closed();
    assert_took(&watch, 400);

    let watch = Stopwatch::start();
    let mut partial = gateway.client();
    partial.send("GET / HTTP/1.1\r\nhost: a\r\nx-more: ");
    partial.assert_closed();
    assert_took(&watch, 400);

    let watch = Stopwatch::start();
    let mut dripping = gateway.client();
    dripping.send("GET / HTTP/1.1\r\nhost: a\r\n");
    assert_eq!(drip(&mut dripping, b"x-a: b\r\n", Duration::from_millis(50)), b"");
    assert_took(&watch, 400);

    // The second head of a connection has the same time, from its first byte.
    let mut second = gateway.client();
    assert_eq!(second.fetch(&get("/", ""), "").status(), 200);
    let watch = Stopwatch::start();
    second.send("G");
    second.assert_closed();
    assert_took(&watch, 400);
    gateway.assert_metric("http_rejected_total", &[("reason", "header_timeout")], 4.0);
}

#[test]
fn an_idle_connection_is_closed_after_its_keepalive_timeout() {
    let server = "keepalive_timeout = \"1s\"\nheader_timeout = \"5s\"";
    let gateway = Gateway::with(server, "[[route]]\npath = \"/\"\nrespond = { }\n");
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
        std::thread::sleep(Duration::from_millis(400));
    }
    let watch = Stopwatch::start();
    assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    client.assert_closed();
    assert_took(&watch, 1000);
}

#[test]
fn a_body_must_come_steadily() {
    let upstream = Upstream::text("whole");
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"up\"\npath = \"/\"\nupstream = \"{}\"\nbody_timeout = \"400ms\"\nmin_body_rate = 1000\n",
        upstream.url()
    ));
    let watch = Stopwatch::start();
    let mut stalled = gateway.client();
    let response = stalled.fetch(&post("/", 100, ""), "ten bytes!");
    assert_took(&watch, 400);
    assert_eq!((response.status(), response.get("connection")), (408, Some("close")));
    assert_eq!(response.json()["detail"], "the request body did not arrive in time");
    stalled.assert_closed();

    // Never a pause of 400 ms, but 1 byte in 50 ms is below 1000 bytes in a second.
    let watch = Stopwatch::start();
    let mut dripping = gateway.client();
    dripping.send(post("/", 100_000, ""));
    let response = drip(&mut dripping, b"x", Duration::from_millis(50));
    assert_took(&watch, 400);
    assert!(response.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&response));
    gateway.assert_metric("requests_total", &[("route", "up"), ("method", "POST"), ("code", "408")], 2.0);
    gateway.assert_metric("requests_in_flight", &[("route", "up")], 0.0);
    // The slowness of the client does not count against the upstream.
    let timeouts =
        gateway.metric("upstream_requests_total", &[("upstream", &upstream.addr.to_string()), ("outcome", "timeout")]);
    assert_eq!(timeouts, Some(0.0));

    // Longer than the timeout in total, but fast enough all the time.
    let mut steady = gateway.client();
    steady.send(post("/", 2000, ""));
    for _ in 0..10 {
        steady.send([b'x'; 200]);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(steady.read_response("POST").text(), "whole");
}

#[test]
fn a_body_for_nobody_is_bounded_too() {
    let gateway = Gateway::start(
        "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nbody_timeout = \"400ms\"\nstream_timeout = \"400ms\"\n\n\
         [[route]]\npath = \"/fixed\"\nrespond = { body = \"fixed\" }\nbody_timeout = \"400ms\"\nstream_timeout = \"400ms\"\n",
    );
    let watch = Stopwatch::start();
    let mut echo = gateway.client();
    echo.send(post("/", 100, ""));
    let _ = echo.try_read_response("POST").unwrap_err();
    assert_took(&watch, 400);

    let mut fixed = gateway.client();
    fixed.send(post("/fixed", 100, ""));
    let response = fixed.read_response("POST");
    assert_eq!(response.text(), "fixed");
    if response.get("connection").is_none() {
        // After the response the gateway waits for the rest of the body, and the connection stays usable.
        fixed.send([b'x'; 100]);
        assert_eq!(fixed.fetch(&get("/fixed", ""), "").text(), "fixed");
    }
}

#[test]
fn a_reader_that_stops_reading_is_cut() {
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n")?;
        let piece = vec![b'x'; 1 << 20];
        while peer.send(&piece).is_ok() {}
        Ok(())
    });
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"down\"\npath = \"/\"\nupstream = \"{}\"\nstream_timeout = \"500ms\"\n",
        upstream.url()
    ));
    // A reader that leaves early shows what any download costs.
    let mut client = gateway.client();
    client.send(get("/", ""));
    client.try_read_head().unwrap();
    upstream.request();
    drop(client);
    gateway.assert_metric("requests_in_flight", &[("route", "down")], 0.0);
    let memory = gateway.watch_memory();

    let mut client = gateway.client();
    client.send(get("/", ""));
    upstream.request();
    gateway.assert_metric("http_rejected_total", &[("reason", "stream_timeout")], 1.0);
    gateway.assert_metric("requests_in_flight", &[("route", "down")], 0.0);
    let grown = memory.peak();
    assert!(grown < 20 << 20, "{grown} bytes were buffered for a client that does not read");
}

#[test]
fn a_server_that_stops_writing_is_cut_and_a_steady_one_is_not() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/stall" {
                peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")?;
                return peer.wait_for_end();
            }
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")?;
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(100));
                peer.send("x")?;
            }
        }
        Ok(())
    });
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nstream_timeout = \"500ms\"\nresponse_timeout = \"400ms\"\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    assert_eq!(client.fetch(&get("/steady", ""), "").text(), "xxxxxxxxxx");
    let watch = Stopwatch::start();
    client.send(get("/stall", ""));
    client.try_read_response("GET").unwrap_err();
    assert_took(&watch, 500);
}

#[test]
fn a_long_upload_outlives_the_response_timeout() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_millis(200));
            peer.send(ok("stored"))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nresponse_timeout = \"400ms\"\nbody_timeout = \"2s\"\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    client.send(post("/", 8, ""));
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(120));
        client.send("x");
    }
    assert_eq!(client.read_response("POST").text(), "stored");
}

/// Unread responses hold back the pipelined responses behind them, which have not begun then.
#[test]
fn requests_behind_a_response_that_nobody_reads_are_cut() {
    let server = "keepalive_timeout = \"500ms\"\nstream_timeout = \"500ms\"\nheader_timeout = \"500ms\"";
    let body = "x".repeat(200_000);
    let routes = format!("[[route]]\nname = \"large\"\npath = \"/\"\nrespond = {{ body = \"{body}\" }}\n");
    let gateway = Gateway::with(server, &routes);
    let mut client = gateway.client();
    let request = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n".to_owned() + &"y".repeat(1000);
    client.stream().set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let requests = request.repeat(200);
    // The write blocks, or the connection is reset, when the gateway reads no more.
    let _ = std::io::Write::write_all(client.stream(), requests.as_bytes());
    client.stream().read_exact(&mut [0]).unwrap();
    wait_until("the connection is cut", || {
        gateway.metrics().lines().any(|line| line.starts_with("sluicegate_connections{") && line.ends_with(" 0"))
    });
}
