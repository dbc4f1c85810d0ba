//! WebSockets to servers over HTTP/2: an upgrade becomes an extended CONNECT (RFC 8441).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use h2::ext::Protocol;
use http::{Response, StatusCode};

use super::http2::{in_front_of, route};
use crate::support::client::{Client, get, post};
use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::h2_server::Http2Server;
use crate::support::wait_until;

const UPGRADE: &str = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\norigin: http://a.test\r\n";
/// The example of RFC 6455, 1.3.
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// Number of bytes that `/push` sends: more than all windows.
const PUSHED: usize = 4 * 1024 * 1024;

/// Opens tunnels, which send back what they get; `/push` sends data, and `/refused` opens none. Other requests get a
/// page.
fn server() -> Http2Server {
    let allow = |builder: &mut h2::server::Builder| {
        builder.enable_connect_protocol();
    };
    Http2Server::with(None, allow, |mut incoming| async move {
        if incoming.request.extensions().get::<Protocol>().is_none() {
            return incoming.send_response("plain").await;
        }
        if incoming.request.uri().path() == "/refused" {
            let refused = Response::builder().status(StatusCode::FORBIDDEN).body(()).unwrap();
            let mut stream = incoming.respond.send_response(refused, false)?;
            return stream.send_data(Bytes::from_static(b"no"), true);
        }
        let opened = Response::builder().header("sec-websocket-protocol", "chat").body(()).unwrap();
        let mut stream = incoming.respond.send_response(opened, false)?;
        if incoming.request.uri().path() == "/push" {
            stream.send_data(Bytes::from(vec![b'x'; PUSHED]), true)?;
        }
        let body = incoming.request.body_mut();
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            stream.send_data(data, false)?;
        }
        stream.send_data(Bytes::from_static(b"bye"), true)
    })
}

#[track_caller]
fn open(gateway: &Gateway, path: &str) -> Client {
    let mut client = gateway.client();
    client.send(get(path, UPGRADE));
    let head = client.try_read_head().unwrap();
    assert_eq!(head.status(), 101, "{}", head.head);
    for (name, value) in [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-accept", ACCEPT),
        ("sec-websocket-protocol", "chat"),
    ] {
        assert_eq!(head.get(name), Some(value), "{name}");
    }
    client
}

#[test]
fn an_upgrade_becomes_an_extended_connect() {
    let server = server();
    let gateway = in_front_of(&server, "tunnel_timeout = \"20s\"");
    let mut client = open(&gateway, "/chat?x=1");
    let request = server.request();
    assert_eq!((request.method.as_str(), request.uri.to_string().as_str()), ("CONNECT", "http://a.test/chat?x=1"));
    assert_eq!(request.extensions.get::<Protocol>().unwrap().as_str(), "websocket");
    assert_eq!(request.headers["origin"], "http://a.test");
    assert_eq!(request.headers["sec-websocket-version"], "13");
    for name in ["connection", "upgrade", "sec-websocket-key", "host"] {
        assert!(!request.headers.contains_key(name), "{name}");
    }
    gateway.assert_metric("tunnels", &[], 1.0);
    for text in ["ping", "pong"] {
        client.send(text);
        assert_eq!(client.bytes(4), text.as_bytes());
        assert_eq!(gateway.get("/").text(), "plain");
        assert_eq!(server.request().method, "GET");
    }
    assert_eq!(server.connections(), 1, "the requests share the connection of the tunnel");
    // The end of each side arrives at the other one.
    client.finish();
    assert_eq!(client.rest().unwrap(), b"bye");
    wait_until("the tunnel has ended", || gateway.metric("tunnels", &[]) == Some(0.0));
    gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "101")], 1.0);
}

#[test]
fn tunnels_carry_more_than_their_windows_in_both_directions() {
    let server = server();
    let gateway = in_front_of(&server, "tunnel_timeout = \"20s\"");
    let mut client = open(&gateway, "/push");
    assert_eq!(client.bytes(PUSHED), vec![b'x'; PUSHED]);
    let mut client = open(&gateway, "/chat");
    for _ in 0..64 {
        let piece: Vec<u8> = (0..65_536_u32).map(|number| (number % 251) as u8).collect();
        client.send(&piece);
        assert_eq!(client.bytes(piece.len()), piece);
    }
}

/// Bytes of a frame of data.
const PIECE: usize = 16_000;

/// A server that opens each tunnel, sends so many frames of data and the end of its stream, and resets it without an
/// error.
fn resetting(pieces: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serve = move |mut stream: TcpStream| -> io::Result<()> {
        // Extended CONNECT is enabled.
        stream.write_all(&frame(SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 1]))?;
        stream.read_exact(&mut [0; PREFACE.len()])?;
        let mut head = [0; 9];
        loop {
            stream.read_exact(&mut head)?;
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload)?;
            let id = u32::from_be_bytes(head[5..].try_into().unwrap());
            match (head[3], head[4]) {
                // Until then, the window of a stream is 64 KiB.
                (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
                (HEADERS, _) => {
                    let mut frames = frame(HEADERS, END_HEADERS, id, &[0x88]);
                    (1..pieces).for_each(|_| frames.extend(frame(DATA, 0, id, &[b'x'; PIECE])));
                    frames.extend(frame(DATA, END_STREAM, id, &[b'x'; PIECE]));
                    stream.write_all(&[frames, reset(id, NO_ERROR)].concat())?;
                }
                _ => {}
            }
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    addr
}

/// The window of the client is small, so that most of the data is in the gateway when the server resets the stream. They
/// are more than the library buffers for the client.
#[test]
fn a_reset_after_the_end_of_a_stream_loses_none_of_its_data() {
    const PIECES: usize = 7;
    let gateway = Gateway::start(&route(&format!("h2c://{}", resetting(PIECES)), "tunnel_timeout = \"20s\""));
    for late in [false, true] {
        let mut wire = Wire::connect(gateway.addr, &[(4, 100)]);
        wire.send(connect(1, "/chat", "websocket"));
        wire.read_until("its head", |frame| frame.kind == HEADERS);
        let mut body = wire.read_until("its data", |frame| frame.kind == DATA).payload;
        std::thread::sleep(Duration::from_millis(300));
        if late {
            wire.send(frame(DATA, 0, 1, b"late"));
            std::thread::sleep(Duration::from_millis(300));
        }
        wire.send([window(0, 1 << 20), window(1, 1 << 20)].concat());
        while body.len() < PIECES * PIECE {
            let more = wire.read_until("the rest", |frame| frame.stream == 1 && frame.kind != WINDOW_UPDATE);
            assert_eq!(more.kind, DATA, "late: {late}, after {} bytes", body.len());
            body.extend(more.payload);
        }
        assert_eq!(body.len(), PIECES * PIECE);
    }
}

#[test]
fn a_stream_of_a_client_becomes_one_of_the_server() {
    let server = server();
    let gateway = in_front_of(&server, "");
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.send(connect(1, "/chat", "websocket"));
    let head = wire.read_until("its head", |frame| frame.kind == HEADERS);
    assert_eq!((head.stream, head.payload[0]), (1, 0x88));
    assert_eq!(server.request().method, "CONNECT");
    wire.send(frame(DATA, 0, 1, b"ping"));
    assert_eq!(wire.read_until("its echo", |frame| frame.kind == DATA && frame.stream == 1).payload, b"ping");
    wire.send(frame(DATA, END_STREAM, 1, &[]));
    assert_eq!(wire.read_response(1).body, b"bye");
}

#[test]
fn a_client_that_leaves_ends_the_tunnel_of_its_server() {
    let server = server();
    let gateway = in_front_of(&server, "");
    drop(open(&gateway, "/chat"));
    wait_until("the tunnel has ended", || gateway.metric("tunnels", &[]) == Some(0.0));
    assert_eq!(gateway.get("/").text(), "plain");
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_refused_tunnel_is_an_ordinary_response() {
    let server = server();
    let gateway = in_front_of(&server, "");
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.fetch(&get("/refused", UPGRADE), "");
        assert_eq!((response.status(), response.text().as_str()), (403, "no"));
        assert_eq!(client.fetch(&get("/", ""), "").text(), "plain");
    }
    gateway.assert_metric("tunnels", &[], 0.0);
}

/// The request ends as `upstream_tunnel`, which is not an error of the server.
#[test]
fn a_server_without_tunnels_gets_nothing_and_stays_healthy() {
    let server = Http2Server::start(|mut incoming| async move { incoming.send_response("plain").await });
    let gateway = Gateway::with("access_log = true", &route(&format!("h2c://{}", server.addr), ""));
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.fetch(&get("/chat", UPGRADE), "").status(), 502);
    }
    assert!(server.try_request().is_none(), "no other request takes the place of an upgrade");
    assert!(gateway.log_lines(&["extended CONNECT (RFC 8441)"]) >= 1, "{}", gateway.log());
    wait_until("its reason is logged", || gateway.stdout().contains("\"upstream_tunnel\""));
    assert_eq!(client.fetch(&get("/", ""), "").text(), "plain");
    // A client's own CONNECT is nothing else either.
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.send(connect(1, "/chat", "x"));
    assert_eq!(wire.read_response(1).problem_status(), 502);
    assert_eq!(server.request().method, "GET");
    assert!(server.try_request().is_none());
}

/// Clients choose whether a request offers a protocol. So they would decide about the health of the server.
#[test]
fn offers_to_switch_do_not_open_the_breaker_of_a_server_without_tunnels() {
    let server = Http2Server::start(|mut incoming| async move { incoming.send_response("plain").await });
    let upstream = route(&format!("h2c://{}", server.addr), "");
    let breaker = "breaker = { errors = 5, min_requests = 1, open_for = \"10m\" }";
    let gateway = Gateway::start(&format!("{upstream}{breaker}\n"));
    for _ in 0..20 {
        assert_eq!(gateway.client().fetch(&get("/chat", UPGRADE), "").status(), 502);
    }
    assert_eq!(gateway.get("/").text(), "plain");
    gateway.assert_metric("breaker_state", &[("kind", "upstream"), ("name", "app")], 0.0);
}

/// Only a WebSocket needs the tunnel: the server may ignore every other offer, and a body has no place in a CONNECT.
#[test]
fn other_requests_with_an_offer_are_forwarded_without_it() {
    let other = UPGRADE.replace("upgrade: websocket", "upgrade: x");
    let plain = || Http2Server::start(|mut incoming| async move { incoming.send_response("plain").await });
    for server in [server(), plain()] {
        let gateway = in_front_of(&server, "");
        for (head, body, method) in [
            (get("/chat", &other), "", "GET"),
            (post("/chat", 1, &other), "x", "POST"),
            (post("/chat", 1, UPGRADE), "x", "POST"),
        ] {
            let response = gateway.client().fetch(&head, body);
            assert_eq!((response.status(), response.text().as_str()), (200, "plain"), "{head}");
            let request = server.request();
            assert_eq!(request.method, method, "{head}");
            assert!(request.extensions.get::<Protocol>().is_none() && !request.headers.contains_key("upgrade"));
        }
        gateway.assert_metric("tunnels", &[], 0.0);
    }
}
