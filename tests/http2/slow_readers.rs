//! HTTP/2 clients that read responses slowly: by the window of a stream, or by the socket of the connection.

use std::time::Duration;

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::until;
use crate::support::upstream::Upstream;

fn large() -> Upstream {
    let body = vec![b'x'; 1_000_000];
    Upstream::fixed([format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat())
}

fn in_front_of(upstream: &Upstream, server: &str) -> Gateway {
    let fixed = "y".repeat(10_000);
    Gateway::with(
        server,
        &format!(
            "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n\
             [[route]]\npath = \"/small\"\nrespond = {{ body = \"small\" }}\n\
             [[route]]\nname = \"fixed\"\npath = \"/fixed\"\nrespond = {{ body = \"{fixed}\" }}\n",
            upstream.url()
        ),
    )
}

/// A window that opens a little, again and again.
#[test]
fn a_stream_below_the_rate_is_reset_alone() {
    let upstream = large();
    let gateway = in_front_of(&upstream, "stream_timeout = \"1s\"\nmin_response_rate = \"1GiB\"");
    let mut wire = Wire::connect(gateway.addr, &[(4, 1000)]);
    wire.send(window(0, 1 << 30));
    wire.get(1, "/");
    wire.stream().set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut end = None;
    until("it is reset", || {
        let _ = wire.try_send(window(1, 2000));
        while let Ok(Some(frame)) = wire.next() {
            if frame.kind == RST_STREAM && frame.stream == 1 {
                end = Some(frame.payload);
                break;
            }
        }
        end.is_some()
    });
    assert_eq!(end.unwrap(), CANCEL.to_be_bytes());
    wire.stream().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    wire.get(3, "/small");
    assert_eq!(wire.answer(3).body, b"small");
    gateway.assert_metric("http_rejected_total", &[("reason", "slow_reader")], 1.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

/// An answer of one piece waits for its client like one of many.
#[test]
fn a_small_answer_that_nobody_takes_is_reset() {
    let upstream = large();
    let gateway = in_front_of(&upstream, "stream_timeout = \"700ms\"");
    for size in [1, 9_999] {
        let mut wire = Wire::connect(gateway.addr, &[(4, size)]);
        wire.get(1, "/fixed");
        let stalled = wire.answer(1);
        assert!(matches!(stalled.ended, Ended::Reset(CANCEL)), "{size}: {:?}", stalled.ended);
        assert_eq!(stalled.body.len(), size as usize);
        wire.get(3, "/fixed");
        wire.send(window(3, 10_000));
        assert_eq!(wire.answer(3).body.len(), 10_000);
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "stream_timeout")], 2.0);
    gateway.assert_metric("requests_in_flight", &[("route", "fixed")], 0.0);
}

/// Windows that let everything through, on a connection of which nothing is read. A stream that has nothing to
/// say does not keep it.
#[test]
fn a_connection_that_nobody_reads_is_cut() {
    let upstream = Upstream::start(|peer| {
        let Some(request) = peer.request()? else { return Ok(()) };
        if request.target() == "/quiet" {
            peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            while peer.send("1\r\nx\r\n").is_ok() {
                std::thread::sleep(Duration::from_millis(300));
            }
            return Ok(());
        }
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n")?;
        let _ = peer.send(vec![b'x'; 3_000_000]);
        Ok(())
    });
    let gateway = in_front_of(&upstream, "stream_timeout = \"900ms\"\nkeepalive_timeout = \"60s\"");
    let mut wire = Wire::connect(gateway.addr, &[(4, 1 << 30)]);
    wire.send(window(0, 1 << 30));
    wire.get(1, "/quiet");
    wire.until("the quiet stream", |frame| frame.stream == 1);
    for stream in [3, 5, 7] {
        wire.get(stream, "/");
    }
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 4.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    until("the connection is closed", || {
        let metrics = gateway.metrics();
        let mut open = metrics.lines().filter(|line| line.starts_with("sluicegate_connections{"));
        open.all(|line| line.ends_with(" 0"))
    });
}

/// A client that reads at the minimum rate gets everything, also with small windows.
#[test]
fn narrow_windows_that_are_opened_in_time_get_everything() {
    let upstream = large();
    let gateway = in_front_of(&upstream, "stream_timeout = \"2s\"\nmin_response_rate = 10000");
    let mut wire = Wire::connect(gateway.addr, &[(4, 3_000)]);
    wire.send(window(0, 1 << 30));
    wire.get(1, "/");
    let mut total = 0;
    while total < 1_000_000 {
        let frame = wire.next().unwrap().unwrap();
        assert_ne!(frame.kind, RST_STREAM);
        if frame.kind == DATA {
            total += frame.payload.len();
            wire.send(window(1, frame.payload.len().max(1) as u32));
        }
    }
    assert_eq!(total, 1_000_000);
}
