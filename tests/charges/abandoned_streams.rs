//! `concurrency` with HTTP/2 streams that end one by one, at a server and of a client: a client that leaves frees no
//! slot, and keeps no more connections open than allowed.

use std::sync::Arc;
use std::time::Duration;

use h2::Reason;
use http::Response;

use super::abandoned_requests::{WORK, abort, assert_bounded, gateway};
use crate::support::client::{get, post};
use crate::support::frames::{CANCEL, DATA, END_HEADERS, Wire, frame, headers, request, reset};
use crate::support::gateway::Gateway;
use crate::support::h2_server::{Http2Server, IncomingRequest};
use crate::support::machine::Stopwatch;
use crate::support::upstream::{Running, Upstream, ok};
use crate::support::wait_until;

/// A server that works on every request even if its stream ends, and before it has the whole body. `/begun` gets the
/// head of its response before that.
fn backend() -> (Http2Server, Arc<Running>) {
    let running = Arc::<Running>::default();
    let own = running.clone();
    let server = Http2Server::start(move |incoming| response(incoming, own.clone()));
    (server, running)
}

async fn response(mut incoming: IncomingRequest, running: Arc<Running>) -> Result<(), h2::Error> {
    let begun = match incoming.request.uri().path() {
        "/begun" => Some(incoming.head(Response::new(()), false)?),
        _ => None,
    };
    running.begin();
    tokio::time::sleep(WORK).await;
    running.end();
    match begun {
        Some(mut stream) => stream.send_data("in".into(), true),
        None => incoming.send_response("in").await,
    }
}

fn in_front_of(server: &Http2Server, linger: &str) -> Gateway {
    gateway("", "memory:", &format!("h2c://{}", server.addr), linger)
}

#[test]
fn requests_that_are_broken_off_keep_their_slots() {
    let chunked = "POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n";
    for request in [
        get("/", ""),
        post("/", 1000, "") + "some of it",
        post("/begun", 1000, "") + "some of it",
        chunked.to_owned(),
        format!("{chunked}no length\r\n"),
    ] {
        let (server, running) = backend();
        let gateway = in_front_of(&server, "");
        assert_bounded(&gateway, &running, "/", &request, || abort(&gateway, &request));
    }
}

#[test]
fn streams_that_are_reset_keep_their_slots() {
    for path in ["/", "/begun"] {
        let (server, running) = backend();
        let gateway = in_front_of(&server, "");
        let mut client = Wire::connect(gateway.addr, &[]);
        let mut streams = (1..).step_by(2);
        assert_bounded(&gateway, &running, "/", path, || {
            let stream = streams.next().unwrap();
            client.send(headers(stream, END_HEADERS, &request("POST", path)));
            client.send(frame(DATA, 0, stream, b"some of it"));
            std::thread::sleep(Duration::from_millis(15));
            client.send(reset(stream, CANCEL));
        });
    }
}

#[test]
fn a_server_that_waits_for_the_body_gets_a_reset_when_the_slot_is_released() {
    let server = Http2Server::start(|mut incoming| async move {
        let path = incoming.request.uri().path().to_owned();
        match incoming.body().await {
            Ok(_) if path == "/" => return incoming.send_response("in").await,
            Ok(_) => incoming.note("/taken-for-whole"),
            Err(error) if error.reason() == Some(Reason::CANCEL) => incoming.note("/cancelled"),
            Err(_) => incoming.note("/other"),
        }
        Ok(())
    });
    let gateway = in_front_of(&server, "1500ms");
    let watch = Stopwatch::start();
    (0..2).for_each(|_| abort(&gateway, &(post("/upload", 1000, "") + "some of it")));
    assert_eq!(gateway.get("/").status(), 429);
    wait_until("a slot is free", || gateway.get("/").status() == 200);
    watch.assert_ms(1400..4000);
    let events: Vec<String> = (0..5).map(|_| server.request().uri.path().to_owned()).collect();
    assert_eq!(events.iter().filter(|path| *path == "/cancelled").count(), 2, "{events:?}");
    assert_eq!(server.connections(), 1);
}

/// Starts a server that counts its open exchanges and responds to none except `/plain`.
fn open_exchanges() -> (Upstream, Arc<Running>) {
    let open = Arc::<Running>::default();
    let own = open.clone();
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if request.target() != "/plain" {
                own.begin();
                let end = peer.wait_for_end();
                own.end();
                return end;
            }
            peer.send(ok("in"))?;
        }
        Ok(())
    });
    (upstream, open)
}

#[test]
fn streams_that_linger_count_as_connections_and_keep_their_slots_beyond_them() {
    const STREAMS: u32 = 24;
    const PLACES: usize = 10;
    for bound in ["max_connections", "max_connections_per_ip"] {
        let (upstream, open) = open_exchanges();
        let gateway = Gateway::with(
            &format!("{bound} = {PLACES}"),
            &format!(
                "[[route]]\nupstream = \"{}\"\nlimits = [\"all\"]\n\n[limit.all]\nalgorithm = \"concurrency\"\n\
                 in_flight = {STREAMS}\nlinger = \"2500ms\"\nkey = \"all\"\n",
                upstream.url()
            ),
        );
        let watch = Stopwatch::start();
        let mut client = Wire::connect(gateway.addr, &[]);
        let mut streams = (1..).step_by(2);
        for stream in streams.by_ref().take(STREAMS as usize) {
            client.get(stream, "/");
            wait_until("the server received the request", || open.now() + open.ended() > stream as usize / 2);
            client.send(reset(stream, CANCEL));
        }
        // The client occupies one of the places. One exchange may be in progress, and the server notices an end late.
        assert!((PLACES - 1..PLACES + 4).contains(&open.most()), "{bound}: {}", open.most());
        let mut fetch = || {
            let stream = streams.next().unwrap();
            client.get(stream, "/plain");
            client.read_response(stream).body == b"in"
        };
        assert!(!fetch(), "{bound}: closed exchanges keep their slots");
        wait_until("a slot is free", &mut fetch);
        watch.assert_ms(2400..6000);
        wait_until("all have ended", || open.ended() == STREAMS as usize);
        // Their places are free again, for one connection and eight others.
        let mut others: Vec<_> = (2..PLACES).map(|_| gateway.client()).collect();
        wait_until("the other clients are served", || {
            others
                .iter_mut()
                .all(|other| other.try_send(get("/plain", "")).is_ok() && other.try_read_response("GET").is_ok())
        });
    }
}
