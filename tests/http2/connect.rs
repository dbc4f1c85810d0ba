//! Tunnels on streams of HTTP/2 (extended CONNECT, RFC 8441): WebSocket beside other requests.

use std::io;

use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::upstream::{Peer, Upstream, accept, ok};
use crate::support::wait_until;

/// Number of bytes sent through a tunnel.
pub const PUSHED: usize = 4 * 1024 * 1024;

/// Responds that the connection switches to `protocol`.
pub fn switch(peer: &mut Peer, protocol: &str, accept: &str) -> io::Result<()> {
    peer.send(format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\
         sec-websocket-accept: {accept}\r\nsec-websocket-protocol: chat\r\n\r\n"
    ))
}

/// Responds by path.
pub fn upstream() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.target() {
                "/chat" => {
                    switch(peer, "websocket", &accept(&request))?;
                    while let Ok(byte) = peer.exactly(1) {
                        peer.send(byte)?;
                    }
                    peer.note("ended");
                    return peer.finish();
                }
                "/push" => {
                    switch(peer, "websocket", &accept(&request))?;
                    peer.send(vec![b'x'; PUSHED])?;
                    return peer.finish();
                }
                "/held" => return peer.wait_for_end(),
                "/wrong" => return switch(peer, "websocket", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
                "/other" => return switch(peer, "other", &accept(&request)),
                "/refused" => peer.send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")?,
                _ => peer.send(ok("plain"))?,
            }
        }
        Ok(())
    })
}

fn gateway(upstream: &Upstream, route: &str) -> Gateway {
    Gateway::start(&format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n{route}\n", upstream.url()))
}

#[test]
fn a_stream_becomes_a_websocket_beside_other_requests() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "tunnel_timeout = \"20s\"");
    let mut wire = Wire::connect(gateway.addr, &[]);
    let settings = wire.read_until("its settings", |frame| frame.kind == SETTINGS && frame.flags & ACK == 0);
    assert!(settings.payload.chunks(6).any(|pair| pair == [0, 8, 0, 0, 0, 1]), "extended CONNECT is not offered");
    wire.send(connect(1, "/chat", "websocket"));
    let head = wire.read_until("its head", |frame| frame.kind == HEADERS);
    // 200, from the static table.
    assert_eq!((head.stream, head.payload[0], head.flags & END_STREAM), (1, 0x88, 0));
    let request = upstream.request();
    assert_eq!(request.start_line(), "GET /chat HTTP/1.1");
    for (name, value) in [
        ("host", "a.test"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("origin", "http://a.test"),
    ] {
        assert_eq!(request.get(name), Some(value), "{name}");
    }
    assert_eq!(request.get("sec-websocket-key").map(str::len), Some(24));
    gateway.assert_metric("tunnels", &[], 1.0);
    for text in ["ping", "pong"] {
        wire.send(frame(DATA, 0, 1, text.as_bytes()));
        let mut echo = Vec::new();
        while echo.len() < text.len() {
            echo.extend(wire.read_until("its echo", |frame| frame.kind == DATA && frame.stream == 1).payload);
        }
        assert_eq!(echo, text.as_bytes());
        let stream = if text == "ping" { 3 } else { 5 };
        wire.get(stream, "/");
        assert_eq!(wire.read_response(stream).body, b"plain");
    }
    wire.send(frame(DATA, END_STREAM, 1, &[]));
    assert_eq!(wire.read_response(1).ended, StreamEnd::Complete);
    gateway.assert_metric("tunnels", &[], 0.0);
    gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "101")], 1.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    assert!(wire.is_alive());
}

#[test]
fn only_a_switch_to_a_requested_protocol_opens_a_tunnel() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "");
    let mut wire = Wire::connect(gateway.addr, &[]);
    for (stream, path) in [(1, "/wrong"), (3, "/other"), (5, "/plain")] {
        wire.send(connect(stream, path, "websocket"));
        assert_eq!(wire.read_response(stream).problem_status(), 502, "{path}");
    }
    wire.send(connect(7, "/refused", "websocket"));
    assert_eq!(wire.read_response(7).body, b"no");
    // The gateway would not see the requests in such a tunnel.
    for (stream, protocol) in [(9, "h2c"), (11, "http")] {
        wire.send(connect(stream, "/chat", protocol));
        assert_eq!(wire.read_response(stream).problem_status(), 501, "{protocol}");
    }
    gateway.assert_metric("tunnels", &[], 0.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    let none = self::gateway(&upstream, "upgrades = []");
    let mut wire = Wire::connect(none.addr, &[]);
    wire.send(connect(1, "/chat", "websocket"));
    assert_eq!(wire.read_response(1).problem_status(), 501);
}

#[test]
fn a_tunnel_ends_with_its_stream_and_in_time_and_alone() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "tunnel_timeout = \"700ms\"");
    let mut wire = Wire::connect(gateway.addr, &[]);
    for stream in [1, 3] {
        wire.send(connect(stream, "/chat", "websocket"));
        wire.read_until("its head", |frame| frame.kind == HEADERS && frame.stream == stream);
        assert_eq!(upstream.request().target(), "/chat");
    }
    wire.send(reset(1, CANCEL));
    assert_eq!(upstream.request().head, "ended");
    assert_ne!(wire.read_response(3).ended, StreamEnd::ConnectionClosed(None));
    assert_eq!(upstream.request().head, "ended");
    wait_until("both tunnels have ended", || gateway.metric("requests_in_flight", &[("route", "app")]) == Some(0.0));
    gateway.assert_metric("tunnels", &[], 0.0);
    gateway.assert_metric("http_rejected_total", &[("reason", "tunnel_timeout")], 1.0);
    assert!(wire.is_alive());
}

#[test]
fn tunnel_data_earns_window_updates() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "");
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.send(connect(1, "/push", "websocket"));
    let (mut came, mut unpaid) = (0, 0);
    while came < PUSHED {
        let length = wire.read_until("more data", |frame| frame.kind == DATA && frame.stream == 1).payload.len();
        (came, unpaid) = (came + length, unpaid + length);
        // As often as a reasonable client does: far more than an idle client may send.
        while unpaid >= 2048 {
            let update = 2048_u32.to_be_bytes();
            wire.send([frame(WINDOW_UPDATE, 0, 0, &update), frame(WINDOW_UPDATE, 0, 1, &update)].concat());
            unpaid -= 2048;
        }
    }
    assert!(wire.is_alive());
}

#[test]
fn a_drain_reports_a_request_that_it_cut_beside_a_tunnel() {
    let upstream = upstream();
    for (held, code) in [(true, Some(1)), (false, Some(0))] {
        let mut gateway = Gateway::with(
            "shutdown_timeout = \"300ms\"",
            &format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()),
        );
        let mut wire = Wire::connect(gateway.addr, &[]);
        wire.send(connect(1, "/chat", "websocket"));
        wire.read_until("its head", |frame| frame.kind == HEADERS && frame.stream == 1);
        if held {
            wire.get(3, "/held");
            upstream.request();
        }
        upstream.request();
        gateway.signal("TERM");
        assert_eq!(gateway.exit().code(), code, "{}", gateway.log());
    }
}
