//! The end of connections: idle ones, a worker that drains, and a process that takes over.

use std::time::{Duration, Instant};

use super::{ECHO, Http3Gateway};
use crate::support::h3::{GOAWAY, get, head, read_varint};
use crate::support::upstream::Upstream;
use crate::support::{upstream::ok, wait_until};

const NO_ERROR: u64 = 0x100;

/// A server that answers so late.
fn late_server(pause: Duration) -> Upstream {
    Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(pause);
            peer.send(ok("late"))?;
        }
        Ok(())
    })
}

#[test]
fn an_idle_connection_ends_with_goaway() {
    let gateway = Http3Gateway::start("keepalive_timeout = \"1s\"\n", "http3 = true", ECHO);
    let client = gateway.connect();
    assert_eq!(client.get("/").status(), 200);
    // The control stream: its type, SETTINGS, and two times GOAWAY.
    let control = client.read_uni();
    let mut bytes = &control[..];
    assert_eq!(read_varint(&mut bytes), 0);
    let mut frames = Vec::new();
    while bytes.len() > 1 {
        let (kind, length) = (read_varint(&mut bytes), read_varint(&mut bytes) as usize);
        let mut payload = &bytes[..length.min(bytes.len())];
        bytes = &bytes[length.min(bytes.len())..];
        if kind == GOAWAY {
            frames.push(read_varint(&mut payload));
        }
    }
    assert_eq!(frames, [(1 << 62) - 4, 4], "{control:?}");
    assert_eq!(client.close_code(), NO_ERROR);
    wait_until("it is counted no more", || gateway.open_connections() == Some(0.0));
}

#[test]
fn a_process_that_stops_completes_its_requests() {
    let upstream = late_server(Duration::from_secs(2));
    let rest = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let mut gateway = Http3Gateway::start("workers = 2\n", "http3 = true", &rest);
    let client = gateway.connect();
    let mut exchange = client.open(&head(&get("/")));
    exchange.finish();
    wait_until("the request is at the server", || upstream.connections() == 1);
    gateway.gateway.signal("TERM");
    assert_eq!(exchange.response().unwrap().text(), "late");
    assert_eq!(client.close_code(), NO_ERROR);
    assert!(gateway.gateway.exit().success());
}

/// Longer than a client may take for a sign of life while the gateway waits for its connection.
#[test]
fn a_long_request_of_a_client_that_is_there_is_completed() {
    let upstream = late_server(Duration::from_secs(6));
    let rest = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let mut gateway = Http3Gateway::start("", "http3 = true", &rest);
    let client = gateway.connect();
    let mut exchange = client.open(&head(&get("/")));
    exchange.finish();
    wait_until("the request is at the server", || upstream.connections() == 1);
    gateway.gateway.signal("TERM");
    assert_eq!(exchange.response().unwrap().text(), "late");
    assert!(gateway.gateway.exit().success());
}

/// The first has a request under way, and the second one has not acknowledged its response.
#[test]
fn clients_that_have_vanished_do_not_hold_up_the_end() {
    let upstream = late_server(Duration::from_secs(1));
    let slow = Upstream::silent();
    let rest = format!(
        "[[route]]\npath = \"/late\"\nupstream = \"{}\"\n[[route]]\npath = \"/never\"\nupstream = \"{}\"\n",
        upstream.url(),
        slow.url()
    );
    let mut gateway = Http3Gateway::start("shutdown_timeout = \"60s\"\n", "http3 = true", &rest);
    for (path, server) in [("/late", &upstream), ("/never", &slow)] {
        let client = gateway.connect();
        let mut exchange = client.open(&head(&get(path)));
        exchange.finish();
        wait_until("the request is at the server", || server.connections() == 1);
        // Its packets stop, and it says nothing.
        std::mem::forget(exchange);
        client.runtime.shutdown_background();
        std::mem::forget((client.connection, client.endpoint));
    }
    let start = Instant::now();
    gateway.gateway.signal("TERM");
    assert!(gateway.gateway.exit().success());
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(3) && waited < Duration::from_secs(20), "{waited:?}");
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let upstream = Upstream::silent();
    let rest = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    let client = gateway.connect();
    let mut exchange = client.open(&head(&get("/")));
    exchange.finish();
    wait_until("the request is at the server", || upstream.connections() == 1);
    let _ = exchange.receive.stop(quinn::VarInt::from_u32(0x10c));
    upstream.wait_for_close();
    let mut exchange = client.open(&head(&get("/")));
    exchange.finish();
    wait_until("the next request is at the server", || upstream.connections() == 2);
    client.connection.close(quinn::VarInt::from_u32(0x100), b"");
    upstream.wait_for_close();
    wait_until("it is counted no more", || gateway.open_connections() == Some(0.0));
}

#[test]
fn a_long_request_survives_the_silence_of_both_sides() {
    let upstream = late_server(Duration::from_secs(6));
    let rest = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Http3Gateway::start("keepalive_timeout = \"1s\"\n", "http3 = true", &rest);
    assert_eq!(gateway.connect().get("/").text(), "late");
}
