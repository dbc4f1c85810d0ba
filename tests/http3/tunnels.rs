//! Tunnels on streams of HTTP/3 (extended CONNECT, RFC 9220): WebSocket beside other requests, as over HTTP/2.

use std::time::Duration;

use super::Http3Gateway;
use crate::http2::connect::{PUSHED, switch, upstream};
use crate::support::h3::{
    DATA, Exchange, H3Client, H3Options, HEADERS, frame, get, head, read_response, read_varint, section,
};
use crate::support::upstream::{Upstream, accept};
use crate::support::wait_until;

const FRAME_UNEXPECTED: u64 = 0x105;

fn connect<'a>(path: &'a str, protocol: &'a str) -> [(&'a str, &'a str); 7] {
    [
        (":method", "CONNECT"),
        (":protocol", protocol),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", path),
        ("sec-websocket-version", "13"),
        ("origin", "http://a.test"),
    ]
}

fn start(upstream: &Upstream, server: &str, route: &str) -> Http3Gateway {
    let rest = format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n{route}\n", upstream.url());
    Http3Gateway::start(server, "http3 = true", &rest)
}

/// Opens a tunnel, and reads the head of its response.
fn open<'a>(client: &'a H3Client, path: &str) -> Exchange<'a> {
    let mut exchange = client.open(&head(&connect(path, "websocket")));
    let (kind, payload) = read_frame(&mut exchange);
    let response = read_response(&frame(kind, &payload));
    assert_eq!(response.status(), 200, "{path}");
    for of_handshake in ["connection", "upgrade", "sec-websocket-accept", "content-length"] {
        assert_eq!(response.get(of_handshake), None, "{path}");
    }
    assert_eq!(response.get("sec-websocket-protocol"), Some("chat"));
    exchange
}

/// Reads a frame whose type has one byte.
fn read_frame(exchange: &mut Exchange<'_>) -> (u64, Vec<u8>) {
    let mut head = exchange.read(2);
    head.extend(exchange.read((1 << (head[1] >> 6)) - 1));
    let length = read_varint(&mut &head[1..]) as usize;
    (u64::from(head[0]), exchange.read(length))
}

/// Reads `count` bytes of a tunnel out of its frames.
fn read_data(exchange: &mut Exchange<'_>, count: usize) -> Vec<u8> {
    let mut data = Vec::new();
    while data.len() < count {
        let (kind, payload) = read_frame(exchange);
        assert_eq!(kind, DATA);
        data.extend(payload);
    }
    data
}

#[test]
fn a_stream_becomes_a_websocket_beside_other_requests() {
    let upstream = upstream();
    let log = "access_log = { to = \"log\" }\n";
    let gateway = start(&upstream, log, "tunnel_timeout = \"20s\"");
    let client = gateway.connect();
    let (settings, _control) = client.read_settings();
    assert!(settings.contains(&(0x08, 1)), "extended CONNECT is not offered");
    let mut tunnel = open(&client, "/chat");
    let request = upstream.request();
    assert_eq!(request.start_line(), "GET /chat HTTP/1.1");
    for (name, value) in [
        ("host", "a.test"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("origin", "http://a.test"),
        ("x-forwarded-proto", "https"),
    ] {
        assert_eq!(request.get(name), Some(value), "{name}");
    }
    assert_eq!(request.get("sec-websocket-key").map(str::len), Some(24));
    gateway.gateway.assert_metric("tunnels", &[], 1.0);
    for text in ["ping", "pong"] {
        tunnel.write(&[frame(0x21, b"reserved"), frame(DATA, text.as_bytes())].concat());
        assert_eq!(read_data(&mut tunnel, text.len()), text.as_bytes());
        assert_eq!(client.get("/").text(), "plain");
    }
    tunnel.finish();
    assert_eq!(tunnel.rest().unwrap(), b"", "both sides have ended without an error");
    wait_until("it is over", || gateway.gateway.metric("requests_in_flight", &[("route", "app")]) == Some(0.0));
    gateway.gateway.assert_metric("tunnels", &[], 0.0);
    gateway.gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "101")], 1.0);
    assert_eq!(client.get("/").text(), "plain");
    let log = || std::fs::read_to_string(gateway.gateway.dir.path().join("log")).unwrap_or_default();
    wait_until("it is logged", || log().lines().any(|line| line.contains("/chat") && line.contains("HTTP/3.0")));
}

#[test]
fn only_a_switch_to_a_requested_protocol_opens_a_tunnel() {
    let upstream = upstream();
    let gateway = start(&upstream, "", "");
    let client = gateway.connect();
    for path in ["/wrong", "/other", "/plain"] {
        assert_eq!(client.fetch(&connect(path, "websocket"), b"").status(), 502, "{path}");
    }
    assert_eq!(client.fetch(&connect("/refused", "websocket"), b"").text(), "no");
    // The gateway would not see the requests in such a tunnel.
    for protocol in ["h2c", "http", "h3"] {
        assert_eq!(client.fetch(&connect("/chat", protocol), b"").status(), 501, "{protocol}");
    }
    gateway.gateway.assert_metric("tunnels", &[], 0.0);
    gateway.gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    let none = start(&upstream, "", "upgrades = []");
    assert_eq!(none.connect().fetch(&connect("/chat", "websocket"), b"").status(), 501);
    let full = start(&upstream, "max_tunnels = 1\n", "limits = [\"few\"]\n[limit.few]\nrate = \"2/h\"\nkey = \"ip\"");
    let client = full.connect();
    let tunnel = open(&client, "/chat");
    assert_eq!(client.fetch(&connect("/chat", "websocket"), b"").status(), 503, "max_tunnels");
    for tunnel in [Some(tunnel), None] {
        drop(tunnel.unwrap_or_else(|| open(&client, "/chat")));
        wait_until("the place is free", || full.gateway.metric("tunnels", &[]) == Some(0.0));
    }
    let refused = client.fetch(&connect("/chat", "websocket"), b"");
    assert_eq!((refused.status(), refused.get("retry-after").is_some()), (429, true));
}

/// A client has at most seven tunnels for each one that it leaves free, however few connections they are on.
#[test]
fn a_client_leaves_tunnels_to_others() {
    let upstream = upstream();
    let gateway = start(&upstream, "max_tunnels = 100\n", "");
    let greedy = gateway.connect();
    let tunnels: Vec<_> = (0..87).map(|_| open(&greedy, "/chat")).collect();
    assert_eq!(greedy.fetch(&connect("/chat", "websocket"), b"").status(), 503);
    let other = H3Options { source: "127.0.0.2:0", ..H3Options::trusting(&gateway.ca) };
    let other = H3Client::with(gateway.addr(), &other).unwrap();
    let _first = open(&other, "/chat");
    gateway.gateway.assert_metric("tunnels", &[], 88.0);
    let words = ["max_tunnels = 100 is reached", "client=127.0.0.1"];
    wait_until("the bound is logged", || gateway.gateway.log_lines(&words) == 1);
    drop(tunnels);
    wait_until("the places are free", || gateway.gateway.metric("tunnels", &[]) == Some(1.0));
    drop(open(&greedy, "/chat"));
}

#[test]
fn a_client_that_cancels_tunnels_can_open_others() {
    let upstream = upstream();
    let gateway = start(&upstream, "max_streams = 2\n", "");
    let client = gateway.connect();
    for _ in 0..5 {
        let mut tunnel = open(&client, "/chat");
        let _ = tunnel.send.reset(quinn::VarInt::from_u32(0x10c));
        let _ = tunnel.receive.stop(quinn::VarInt::from_u32(0x10c));
        drop(tunnel);
        wait_until("the tunnel has ended", || gateway.gateway.metric("tunnels", &[]) == Some(0.0));
    }
    assert_eq!(client.fetch(&connect("/chat", "h2c"), b"").status(), 501);
}

#[test]
fn a_tunnel_ends_with_its_stream_and_in_time_and_alone() {
    let upstream = upstream();
    let gateway = start(&upstream, "", "tunnel_timeout = \"700ms\"");
    let client = gateway.connect();
    let (mut reset, mut stopped, mut silent) = (open(&client, "/chat"), open(&client, "/chat"), open(&client, "/chat"));
    for _ in 0..3 {
        assert_eq!(upstream.request().target(), "/chat");
    }
    let _ = reset.send.reset(quinn::VarInt::from_u32(0x10c));
    assert_eq!(upstream.request().head, "ended");
    let _ = stopped.receive.stop(quinn::VarInt::from_u32(0x10c));
    assert_eq!(upstream.request().head, "ended");
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "tunnel_timeout")], 0.0);
    assert_eq!(silent.rest().unwrap(), b"", "an idle tunnel ends without a reset");
    assert_eq!(upstream.request().head, "ended");
    wait_until("all have ended", || gateway.gateway.metric("requests_in_flight", &[("route", "app")]) == Some(0.0));
    gateway.gateway.assert_metric("tunnels", &[], 0.0);
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "tunnel_timeout")], 1.0);
    // A server that is cut off resets the stream: the client must not take that for the end.
    let dying = Upstream::start(|peer| {
        if let Some(request) = peer.request()? {
            switch(peer, "websocket", &accept(&request))?;
            // It closes its connection with bytes that it has not read, which resets it.
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    });
    let gateway = start(&dying, "", "");
    let client = gateway.connect();
    let mut tunnel = open(&client, "/chat");
    tunnel.write(&frame(DATA, &[1; 100_000]));
    assert_eq!(tunnel.reset_code(), 0x10f);
}

#[test]
fn a_tunnel_carries_data_only() {
    let upstream = upstream();
    let gateway = start(&upstream, "", "");
    for bytes in [frame(HEADERS, &section(&[("x", "1")])), frame(4, b"")] {
        let client = gateway.connect();
        let mut tunnel = open(&client, "/chat");
        tunnel.write(&bytes);
        assert_eq!(client.close_code(), FRAME_UNEXPECTED, "{bytes:?}");
    }
    wait_until("they are over", || gateway.gateway.metric("tunnels", &[]) == Some(0.0));
    // What comes behind the head before its response belongs to the tunnel, and so does the end.
    let client = gateway.connect();
    let mut tunnel = client.open(&[head(&connect("/chat", "websocket")), frame(DATA, b"early")].concat());
    tunnel.finish();
    assert_eq!(tunnel.response().unwrap().text(), "early");
}

#[test]
fn a_tunnel_goes_at_the_pace_of_its_client_and_loses_nothing() {
    let upstream = upstream();
    let gateway = start(&upstream, "", "");
    let client = gateway.connect();
    let mut tunnel = open(&client, "/push");
    let before = gateway.gateway.memory("VmRSS");
    client.wait(Duration::from_millis(500));
    let grown = gateway.gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 3 << 20, "{grown}");
    assert!(read_data(&mut tunnel, PUSHED) == vec![b'x'; PUSHED]);
    tunnel.finish();
    assert_eq!(tunnel.rest().unwrap(), b"");
    assert_eq!(client.fetch(&get("/"), b"").text(), "plain");
}

#[test]
fn a_drain_cuts_tunnels() {
    let upstream = upstream();
    let mut gateway = start(&upstream, "shutdown_timeout = \"300ms\"\n", "");
    let client = gateway.connect();
    let _tunnel = open(&client, "/chat");
    gateway.gateway.signal("TERM");
    assert_eq!(client.close_code(), 0x100);
    assert_eq!(gateway.gateway.exit().code(), Some(0), "{}", gateway.gateway.log());
}
