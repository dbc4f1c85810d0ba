//! `concurrency` bounds the tunnels that a backend works for, even after their clients have left.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::abandoned_requests::{WORK, abort, assert_bounded, gateway};
use crate::support::client::{get, post};
use crate::support::frames::{CANCEL, Wire, connect, reset};
use crate::support::machine::Stopwatch;
use crate::support::upstream::{Running, Upstream, accept, ok};
use crate::support::wait_until;

const UPGRADE: &str = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n";

/// A server that works on each tunnel for `work`, even if the tunnel ends, and then closes. `/late` switches protocols
/// only halfway through; `/plain` is an ordinary response.
fn backend(work: Duration) -> (Upstream, Arc<Running>) {
    let running = Arc::<Running>::default();
    let own = running.clone();
    let upstream = Upstream::start(move |peer| {
        // Reads only the head, because the body of some requests never arrives.
        let Some(request) = peer.head()? else { return Ok(()) };
        if request.target() == "/plain" {
            return peer.send(ok("in"));
        }
        let switch = format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-accept: {}\r\n\r\nhello",
            accept(&request)
        );
        own.begin();
        let late = request.target() == "/late";
        std::thread::sleep(if late { work / 2 } else { Duration::ZERO });
        let switched = peer.send(switch);
        std::thread::sleep(if late { work / 2 } else { work });
        own.end();
        switched
    });
    (upstream, running)
}

#[test]
fn tunnels_whose_clients_are_gone_keep_their_slots() {
    // Unread data makes the client's kernel reset the connection.
    for request in [get("/", UPGRADE), get("/late", UPGRADE), post("/", 1000, UPGRADE) + "some of it"] {
        let (upstream, running) = backend(WORK);
        let gateway = gateway("", "memory:", &upstream.url(), "");
        assert_bounded(&gateway, &running, "/plain", &request, || abort(&gateway, &request));
    }
}

#[test]
fn tunnels_of_half_closed_clients_keep_their_slots() {
    let (upstream, running) = backend(WORK);
    // The gateway waits no longer than this for the other half of the tunnel.
    let route = "stream_timeout = \"100ms\"";
    let gateway = gateway(route, "memory:", &upstream.url(), "");
    assert_bounded(&gateway, &running, "/plain", "", || {
        let mut client = gateway.client();
        client.send(get("/", UPGRADE));
        if client.try_read_head().is_ok_and(|head| head.status() == 101) {
            client.bytes(5);
        }
        let _ = client.stream().shutdown(Shutdown::Write);
        std::thread::sleep(Duration::from_millis(15));
        drop(client);
    });
}

#[test]
fn tunnels_on_streams_keep_their_slots() {
    for (path, at_once) in [("/", false), ("/late", false), ("/", true)] {
        let (upstream, running) = backend(WORK);
        let gateway = gateway("", "memory:", &upstream.url(), "");
        let mut client = Wire::connect(gateway.addr, &[]);
        let mut streams = (1..).step_by(2);
        assert_bounded(&gateway, &running, "/plain", path, || {
            let stream = streams.next().unwrap();
            client.send(connect(stream, path, "websocket"));
            std::thread::sleep(Duration::from_millis(15));
            match at_once {
                // Replacing the client closes the connection with all its streams.
                true => client = Wire::connect(gateway.addr, &[]),
                false => client.send(reset(stream, CANCEL)),
            }
        });
    }
}

#[test]
fn a_tunnel_without_a_client_ends_with_linger() {
    let ends = Arc::<AtomicUsize>::default();
    let own = ends.clone();
    let upstream = Upstream::start(move |peer| {
        if peer.request()?.is_some_and(|request| request.target() == "/plain") {
            return peer.send(ok("in"));
        }
        peer.send("HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello")?;
        // The client has closed its side, of which the server takes no notice.
        peer.rest()?;
        own.fetch_add(1, Ordering::SeqCst);
        while peer.send("more").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        peer.note("closed");
        Ok(())
    });
    let gateway = gateway("", "memory:", &upstream.url(), "1500ms");
    let watch = Stopwatch::start();
    (0..2).for_each(|_| abort(&gateway, &get("/", UPGRADE)));
    wait_until("the server has noticed their end", || ends.load(Ordering::SeqCst) == 2);
    assert_eq!(gateway.get("/plain").status(), 429);
    wait_until("a slot is free", || gateway.get("/plain").status() == 200);
    watch.assert_ms(1400..4000);
    let events: Vec<String> = (0..5).map(|_| upstream.request().head).collect();
    assert_eq!(events.iter().filter(|head| *head == "closed").count(), 2, "{events:?}");
}
