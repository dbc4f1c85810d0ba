//! Authentication over each protocol that clients use, and what precedes it.

use http::{HeaderValue, Request};

use super::{basic, bcrypt, start, start_with};
use crate::support::client::{Client, get};
use crate::support::frames::{self, Wire};
use crate::support::gateway::Gateway;
use crate::support::h2::{self, H2Client, Sent};
use crate::support::upstream::{Upstream, accept};

fn route(url: &str) -> String {
    format!("[[route]]\nname = \"r\"\nupstream = \"{url}\"\nauth = {{ basic = \"users\" }}\n")
}

fn with_password(mut request: Request<()>, password: &str) -> Request<()> {
    let header = basic("alice", password);
    let value = header.trim().strip_prefix("authorization: ").unwrap();
    request.headers_mut().insert("authorization", HeaderValue::from_str(value).unwrap());
    request
}

#[test]
fn each_request_of_a_connection_is_authenticated() {
    let gateway = start(&bcrypt("alice", "a"), &route("echo:"));
    let mut client = H2Client::connect(gateway.addr);
    for (request, status) in [
        (h2::get("/"), 401),
        (with_password(h2::get("/"), "a"), 200),
        (h2::get("/"), 401),
        (with_password(h2::post("/"), "wrong"), 401),
        (with_password(h2::post("/"), "a"), 200),
    ] {
        let response = client.fetch(request, Sent { body: b"body", trailers: None });
        assert_eq!(response.status(), status);
        assert_eq!(response.field("www-authenticate").is_some(), status == 401);
    }
    let mut client = gateway.client();
    let mut fetch = |fields: &str| client.fetch(&get("/", fields), "").status();
    assert_eq!([fetch(&basic("alice", "a")), fetch(""), fetch(&basic("alice", "a"))], [200, 401, 200]);
}

#[test]
fn a_grpc_client_gets_its_own_status() {
    let gateway = start(&bcrypt("alice", "a"), &route("echo:"));
    let mut request = h2::post("/shop.Shop/Buy");
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    let response = H2Client::connect(gateway.addr).fetch(request, Sent::default());
    assert_eq!((response.status(), response.field("grpc-status")), (200, Some("16")));
    assert_eq!(response.field("grpc-message"), Some("this route requires credentials"));
    gateway.assert_metric("rejections_total", &[("route", "r"), ("limit", "_none"), ("reason", "unauthorized")], 1.0);
}

/// A server that confirms every switch to WebSocket and sends back what follows.
fn echoing() -> Upstream {
    Upstream::start(|peer| {
        let Some(request) = peer.request()? else { return Ok(()) };
        let key = accept(&request);
        peer.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: {key}\r\n\r\n"
        ))?;
        let sent = peer.exactly(4)?;
        peer.send(sent)
    })
}

#[test]
fn a_tunnel_opens_only_for_authenticated_clients() {
    let upstream = echoing();
    let gateway = start_with("max_tunnels = 1", &bcrypt("alice", "a"), &route(&upstream.url()));
    let offer = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                 sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for fields in [String::new(), basic("alice", "wrong")] {
        assert_eq!(gateway.fetch(&get("/", &format!("{offer}{fields}"))).status(), 401);
    }
    // HTTP/2, by an extended CONNECT.
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.send(frames::connect(1, "/", "websocket"));
    assert_eq!(wire.read_response(1).problem_status(), 401);
    assert_eq!(upstream.connections(), 0);
    let mut client = gateway.client();
    client.send(get("/", &format!("{offer}{}", basic("alice", "a"))));
    assert_eq!(client.try_read_head().unwrap().status(), 101);
    client.send("ping");
    assert_eq!(client.bytes(4), b"ping");
}

#[test]
fn redirects_come_before_and_bodies_after_the_authentication() {
    let server = "redirect_http = \"127.0.0.2:0\"\n";
    let gateway = start_with(server, &bcrypt("alice", "a"), &route("echo:"));
    let redirect = *gateway.listeners().iter().find(|addr| addr.ip().to_string() == "127.0.0.2").unwrap();
    let moved = Client::connect(redirect).fetch(&get("/", ""), "");
    assert_eq!((moved.status(), moved.get("location").is_some()), (308, true));
    // A client that waits for `100 Continue` learns first that it must authenticate.
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\nexpect: 100-continue\r\ncontent-length: 1000000\r\n\r\n");
    assert_eq!(client.read_response("POST").status(), 401);
    let gateway: Gateway =
        start(&bcrypt("alice", "a"), &route("echo:").replace("auth =", "deny = [\"127.0.0.1\"]\nauth ="));
    assert_eq!(gateway.get("/").status(), 403);
}
