//! WebSockets to servers over HTTP/2: an upgrade becomes an extended CONNECT (RFC 8441).

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

/// Number of bytes that `/enough` sends: more than all buffers of sockets.
const ENOUGH: usize = 16 * 1024 * 1024;

/// Opens tunnels, which send back what they get; `/push` sends data, `/enough` as well, and reads none, and `/refused`
/// opens none. Other requests get a page.
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
        if incoming.request.uri().path() == "/enough" {
            // The stream is dropped while the client may still send, so that RST_STREAM(NO_ERROR) follows the data.
            return stream.send_data(Bytes::from(vec![b'x'; ENOUGH]), true);
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

/// A server may end its stream while the client still sends. What it has sent before arrives whole.
#[test]
fn a_server_that_reads_no_more_loses_none_of_its_data() {
    let server = server();
    let gateway = in_front_of(&server, "tunnel_timeout = \"20s\"");
    let mut client = open(&gateway, "/enough");
    const PIECE: usize = 64 * 1024;
    for at in 0..ENOUGH / PIECE {
        client.send("late");
        // A slow client: the server has ended its stream long before all has arrived.
        if at % 32 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(client.bytes(PIECE).len(), PIECE, "{at}");
    }
    client.finish();
    assert_eq!(client.rest().unwrap(), b"");
    wait_until("the tunnel has ended", || gateway.metric("tunnels", &[]) == Some(0.0));
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
