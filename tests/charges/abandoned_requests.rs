//! `concurrency` bounds the requests that run at the backend, even after their clients have left: a client that leaves
//! frees no slot while the backend still works.

use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::machine::Stopwatch;
use crate::support::upstream::{Running, Upstream, ok};
use crate::support::wait_until;

/// A client that closes its sending side counts as gone at once.
pub const AT_ONCE: &str = "half_close_timeout = \"0s\"";
pub const WORK: Duration = Duration::from_millis(300);

/// A server that works on every request for `work`, even if the connection ends, and then responds. `/begun` gets the
/// head of its response before that, `/closed` nothing but the end of its connection.
fn backend(work: Duration) -> (Upstream, Arc<Running>) {
    let running = Arc::<Running>::default();
    let own = running.clone();
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/begun" {
                peer.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nin")?;
            }
            own.work(work);
            match request.target() {
                "/begun" => peer.send("in")?,
                "/closed" => return Ok(()),
                _ => peer.send(ok("in"))?,
            }
        }
        Ok(())
    });
    (upstream, running)
}

/// Starts a gateway with a limit of two concurrent requests.
pub fn gateway(server: &str, store: &str, to: &str, linger: &str) -> Gateway {
    let linger = if linger.is_empty() { String::new() } else { format!("linger = \"{linger}\"\n") };
    let gateway = Gateway::with(
        server,
        &format!(
            "[store]\nurl = \"{store}\"\ndeadline = \"10s\"\n\n[[route]]\nname = \"app\"\nupstream = \"{}\"\n\
             limits = [\"two\"]\n\n[limit.two]\nalgorithm = \"concurrency\"\nin_flight = 2\nlease = \"1s\"\nkey = \"all\"\n\
             {linger}",
            to
        ),
    );
    wait_until("the store has been reached", || gateway.metric("store_up", &[]) == Some(1.0));
    gateway
}

/// Calls `abort` until others have got the slots of the first, and many times in any case. Asserts that at most two
/// requests ran at a time, and that a slot is free for `path` then.
#[track_caller]
pub fn assert_bounded(gateway: &Gateway, running: &Running, path: &str, what: &str, mut abort: impl FnMut()) {
    let mut aborted = 0;
    wait_until("others got the slots", || {
        abort();
        aborted += 1;
        aborted >= 40 && running.ended() >= 6
    });
    wait_until("the backend is idle", || running.now() == 0);
    assert_eq!(running.most(), 2, "{what}");
    wait_until("a slot is free", || gateway.get(path).status() == 200);
}

/// Sends a request on a connection that is closed after 15 ms.
pub fn abort(gateway: &Gateway, request: &str) {
    let mut client = gateway.client();
    client.send(request);
    std::thread::sleep(Duration::from_millis(15));
}

/// Sends a request on a connection that is closed once the server works on the request, or the gateway has refused it.
fn leave_once_decided(gateway: &Gateway, running: &Running) {
    let begun = running.begun();
    let mut client = gateway.client();
    client.send(get("/", ""));
    client.stream().set_nonblocking(true).unwrap();
    wait_until("the request is decided", || running.begun() > begun || client.stream().peek(&mut [0]).is_ok());
}

/// Sends two requests and closes their connections once the server works on them.
#[track_caller]
fn leave_two(gateway: &Gateway, running: &Running) {
    let mut clients = [gateway.client(), gateway.client()];
    clients.iter_mut().for_each(|client| client.send(get("/", "")));
    wait_until("both run", || running.now() == 2);
}

#[test]
fn aborts_put_no_more_on_the_backend_than_may_run() {
    on_both_stores(|redis| {
        let store = redis.map_or("memory:".to_owned(), RedisServer::url);
        for (request, body) in [("/", ""), ("/begun", ""), ("/", "hello"), ("/closed", "")] {
            // The gateway of the last round held slots when it was killed.
            if let Some(redis) = redis {
                let () = redis::cmd("FLUSHALL").query(&mut redis.client()).unwrap();
            }
            let (upstream, running) = backend(WORK);
            let gateway = gateway("", &store, &upstream.url(), "");
            let request = if body.is_empty() { get(request, "") } else { post(request, 5, "") + body };
            assert_bounded(&gateway, &running, "/", &format!("{store} {request:?}"), || abort(&gateway, &request));
        }
    });
}

#[test]
fn an_upload_that_is_broken_off_keeps_its_slot_too() {
    let running = Arc::<Running>::default();
    let own = running.clone();
    let upstream = Upstream::start(move |peer| {
        // The server starts to work before it has the whole body.
        while peer.head()?.is_some() {
            own.work(WORK);
            peer.send(ok("in"))?;
        }
        Ok(())
    });
    let gateway = gateway("", "memory:", &upstream.url(), "");
    let request = post("/", 1000, "") + "some of it";
    assert_bounded(&gateway, &running, "/", &request, || abort(&gateway, &request));
}

#[test]
fn without_lingering_they_do() {
    let (upstream, running) = backend(Duration::from_secs(60));
    let gateway = gateway(AT_ONCE, "memory:", &upstream.url(), "0s");
    wait_until("more than ten requests run", || {
        leave_once_decided(&gateway, &running);
        running.now() > 10
    });
}

#[test]
fn a_slot_outlives_its_client_by_its_own_time_at_most() {
    let (upstream, running) = backend(Duration::from_secs(6));
    let gateway = gateway(AT_ONCE, "memory:", &upstream.url(), "2500ms");
    leave_two(&gateway, &running);
    let watch = Stopwatch::start();
    // The lease is shorter, but it is renewed until then.
    wait_until("a slot is free", || {
        leave_once_decided(&gateway, &running);
        running.begun() > 2
    });
    watch.assert_ms(2400..3500);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

#[test]
fn a_connection_is_reusable_after_its_response_was_drained() {
    let (upstream, running) = backend(Duration::from_millis(100));
    let gateway = gateway("", "memory:", &upstream.url(), "");
    for target in ["/", "/begun", "/", "/begun"] {
        let begun = running.begun();
        let mut client = gateway.client();
        client.send(get(target, ""));
        wait_until("the request runs", || running.begun() > begun);
        drop(client);
        wait_until("the request has ended", || running.ended() > begun);
        gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn an_endless_response_is_not_read_on_for_long() {
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")?;
        let mut sent = 0;
        while peer.send([b'x'; 16 * 1024]).is_ok() {
            sent += 16 * 1024;
        }
        peer.note(&format!("sent {sent}"));
        Ok(())
    });
    let gateway = gateway("", "memory:", &upstream.url(), "");
    abort(&gateway, &get("/", ""));
    upstream.request();
    let sent: usize = upstream.request().head.trim_start_matches("sent ").parse().unwrap();
    // Some megabytes in the buffers of the kernel and the client are included.
    assert!(sent < 20 * 1024 * 1024, "{sent}");
}

#[test]
fn abandoned_requests_count_as_connections() {
    let (upstream, running) = backend(Duration::from_secs(1));
    let gateway = gateway("max_connections_per_ip = 2", "memory:", &upstream.url(), "");
    leave_two(&gateway, &running);
    let mut third = gateway.client();
    third.send(get("/", ""));
    third.assert_closed();
    wait_until("the requests have ended", || running.ended() == 2);
    wait_until("a connection is accepted", || gateway.client().try_send(get("/", "")).is_ok() && running.ended() > 2);
}

#[test]
fn a_drain_waits_for_them_as_for_requests() {
    let redis = RedisServer::start(&[]);
    for (timeout, end) in [("5s", 800..3000), ("300ms", 250..1300)] {
        let work = if timeout == "5s" { Duration::from_secs(1) } else { Duration::from_secs(4) };
        let (upstream, running) = backend(work);
        let mut gateway =
            gateway(&format!("{AT_ONCE}\nshutdown_timeout = \"{timeout}\""), &redis.url(), &upstream.url(), "");
        leave_two(&gateway, &running);
        let watch = Stopwatch::start();
        gateway.signal("TERM");
        assert!(gateway.exit().success());
        watch.assert_ms(end);
        assert!(!gateway.log().contains("were cut"), "{}", gateway.log());
        let keys: Vec<String> = redis::cmd("KEYS").arg("sg:*:concurrency").query(&mut redis.client()).unwrap();
        assert_eq!(keys.len(), 0, "{timeout}: the slots are released");
    }
}
