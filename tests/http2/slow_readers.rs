//! HTTP/2 clients that read responses slowly: by the window of a stream, or by the socket of the connection.

use std::time::Duration;

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

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

/// A window that is opened a little at a time.
#[test]
fn a_stream_below_the_rate_is_reset_alone() {
    let upstream = large();
    let gateway = in_front_of(&upstream, "stream_timeout = \"1s\"\nmin_response_rate = \"1GiB\"");
    let mut wire = Wire::connect(gateway.addr, &[(4, 1000)]);
    wire.send(window(0, 1 << 30));
    wire.get(1, "/");
    wire.stream().set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut end = None;
    wait_until("it is reset", || {
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
    assert_eq!(wire.read_response(3).body, b"small");
    gateway.assert_metric("http_rejected_total", &[("reason", "slow_reader")], 1.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

/// A response of one piece waits for its client like one of many.
#[test]
fn a_small_response_that_nobody_takes_is_reset() {
    let upstream = large();
    let gateway = in_front_of(&upstream, "stream_timeout = \"700ms\"");
    for size in [1, 9_999] {
        let mut wire = Wire::connect(gateway.addr, &[(4, size)]);
        wire.get(1, "/fixed");
        let stalled = wire.read_response(1);
        assert!(matches!(stalled.ended, StreamEnd::Reset(CANCEL)), "{size}: {:?}", stalled.ended);
        assert_eq!(stalled.body.len(), size as usize);
        wire.get(3, "/fixed");
        wire.send(window(3, 10_000));
        assert_eq!(wire.read_response(3).body.len(), 10_000);
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "stream_timeout")], 2.0);
    gateway.assert_metric("requests_in_flight", &[("route", "fixed")], 0.0);
}

/// Large windows on a connection that the client does not read. A stream without data does not keep it open.
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
    wire.read_until("the quiet stream", |frame| frame.stream == 1);
    for stream in [3, 5, 7] {
        wire.get(stream, "/");
    }
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 4.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    wait_until("the connection is closed", || {
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

/// Five responses at once, whose client pauses until the socket is full, and then reads in small steps. Frames that
/// were gathered and not written keep their order and their bytes.
#[test]
fn responses_are_complete_after_pauses_of_the_client() {
    let body: Vec<u8> = (0..2_500_000u32).map(|at| (at % 251) as u8 ^ (at % 1021) as u8).collect();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let upstream = Upstream::fixed([head.as_bytes(), &body].concat());
    let gateway = in_front_of(&upstream, "");
    for window_size in [1 << 30, 70_001] {
        let mut wire = Wire::connect(gateway.addr, &[(4, window_size)]);
        wire.send(window(0, 1 << 30));
        let streams = [1, 3, 5, 7, 9];
        streams.iter().for_each(|stream| wire.get(*stream, "/"));
        let mut seen = [0; 5];
        for frames in 0.. {
            if seen.iter().all(|seen| *seen == body.len()) {
                break;
            }
            if frames % 200 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let frame = wire.next().unwrap().unwrap();
            assert_ne!(frame.kind, RST_STREAM);
            let Some(place) = streams.iter().position(|stream| *stream == frame.stream && frame.kind == DATA) else {
                continue;
            };
            let deadline = seen[place] + frame.payload.len();
            assert!(body[seen[place]..deadline] == frame.payload, "stream {} after {}", frame.stream, seen[place]);
            seen[place] = deadline;
            if window_size < 1 << 30 && !frame.payload.is_empty() {
                wire.send(window(frame.stream, frame.payload.len() as u32));
            }
        }
        assert!(wire.is_alive());
    }
}

/// The gateway judges a client that becomes slow by the bytes that it reads, not by the pieces that the library has.
#[test]
fn a_client_that_becomes_slow_is_judged_by_what_it_reads() {
    let upstream = large();
    let gateway = in_front_of(&upstream, "stream_timeout = \"1500ms\"\nmin_response_rate = 10000");
    let mut wire = Wire::connect(gateway.addr, &[(4, 400_000)]);
    wire.send(window(0, 1 << 30));
    wire.get(1, "/");
    let mut total = 0;
    let mut read = |wire: &mut Wire, up_to: usize| {
        while total < up_to {
            let frame = wire.read_until("more", |frame| matches!(frame.kind, DATA | RST_STREAM));
            assert_eq!(frame.kind, DATA, "after {total}");
            total += frame.payload.len();
        }
    };
    read(&mut wire, 400_000);
    // Less than the pieces that the library has: 20 kB/s are enough, for longer than the timeout.
    for step in 1..=8 {
        std::thread::sleep(Duration::from_millis(300));
        wire.send(window(1, 6_000));
        read(&mut wire, 400_000 + step * 6_000);
    }
}
