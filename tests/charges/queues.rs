//! Requests that wait for their turn, and slots that are occupied while a request runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::machine::{Lateness, Stopwatch};
use crate::support::ports::closed_addr;
use crate::support::upstream::{Running, Upstream, ok};
use crate::support::wait_until;

/// One every 200 ms, and four may wait.
const QUEUE: &str = "[limit.queue]\nalgorithm = \"leaky_bucket\"\nrate = \"5/s\"\nqueue = \"800ms\"\nkey = \"all\"\n";

fn gateway(server: &str, store: &str, to: &str, limits: &str, more: &str) -> Gateway {
    let gateway = Gateway::with(
        server,
        &format!(
            "{store}\n[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{to}\"\nlimits = [{limits}]\n\n{more}"
        ),
    );
    if !store.is_empty() {
        gateway.wait_for_store();
    }
    gateway
}

fn sent(gateway: &Gateway, count: usize) -> Vec<Client> {
    sent_to(gateway, "/", count)
}

fn sent_to(gateway: &Gateway, target: &str, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get(target, "")));
    clients
}

fn statuses(clients: &mut [Client]) -> Vec<u16> {
    let mut statuses: Vec<u16> = clients.iter_mut().map(|client| client.read_response("GET").status()).collect();
    statuses.sort_unstable();
    statuses
}

fn decisions(gateway: &Gateway, limit: &str, decision: &str) -> f64 {
    let labels = [("route", "app"), ("limit", limit), ("decision", decision)];
    gateway.metric("limit_decisions_total", &labels).unwrap_or(0.0)
}

#[test]
fn requests_wait_for_their_turn_and_leave_evenly() {
    on_both_stores(|server| {
        let upstream = Upstream::text("in");
        let store = server.map_or_else(String::new, RedisServer::store);
        // Timeouts of heads and idle connections do not end a wait.
        let timeouts = "header_timeout = \"150ms\"\nkeepalive_timeout = \"150ms\"";
        let gateway = gateway(timeouts, &store, &upstream.url(), "\"queue\"", QUEUE);
        let (start, lateness) = (Instant::now(), Lateness::watch());
        let mut clients = sent(&gateway, 7);
        let mut arrivals = Vec::new();
        for _ in 0..5 {
            upstream.request();
            arrivals.push(start.elapsed());
        }
        assert_eq!(statuses(&mut clients), [200, 200, 200, 200, 200, 429, 429]);
        let own = lateness.allowance();
        for (number, arrival) in arrivals.iter().enumerate() {
            let slot = Duration::from_millis(200) * number as u32;
            assert!(*arrival >= slot && *arrival < slot + Duration::from_millis(500) + own, "{arrivals:?}");
        }
        let counted = ["allow", "delayed", "deny"].map(|decision| decisions(&gateway, "queue", decision));
        assert_eq!(counted, [1.0, 4.0, 2.0]);
    });
}

#[test]
fn the_longest_of_several_waits_counts() {
    let slow = QUEUE.replace("limit.queue", "limit.slow").replace("5/s", "2/s");
    let gateway = gateway("", "", "echo:", "\"queue\", \"slow\"", &format!("{QUEUE}\n{slow}"));
    assert_eq!(gateway.get("/").status(), 200);
    let watch = Stopwatch::start();
    assert_eq!(gateway.get("/").status(), 200);
    watch.assert_ms(400..650);
}

#[test]
fn a_client_that_leaves_gives_its_turn_back() {
    on_both_stores(|server| {
        let store = server.map_or_else(String::new, RedisServer::store);
        let upstream = Upstream::text("in");
        let queue = QUEUE.replace("5/s", "1/s").replace("800ms", "2s");
        let gateway = gateway("", &store, &upstream.url(), "\"queue\"", &queue);
        assert_eq!(gateway.get("/").status(), 200);
        let mut first = sent(&gateway, 1);
        wait_until("it waits", || decisions(&gateway, "queue", "delayed") == 1.0);
        let leaves = sent(&gateway, 1);
        wait_until("both wait", || decisions(&gateway, "queue", "delayed") == 2.0);
        assert_eq!(gateway.get("/").status(), 429);
        drop(leaves);
        gateway.assert_metric("requests_in_flight", &[("route", "app")], 1.0);
        // Its position is free for another request.
        let mut next = sent(&gateway, 1);
        assert_eq!((statuses(&mut first), statuses(&mut next)), (vec![200], vec![200]));
        assert_eq!(upstream.requests().len(), 3);
    });
}

#[test]
fn no_more_requests_wait_than_may() {
    for (server, limit) in [("max_delayed = 2", ""), ("", "max_delayed = 2\n")] {
        let other = "[limit.other]\nrate = \"100/h\"\nkey = \"all\"\n";
        let queue = format!("{QUEUE}{limit}");
        let gateway = gateway(server, "", "echo:", "\"queue\", \"other\"", &format!("{queue}\n{other}"));
        let mut clients = sent(&gateway, 4);
        let responses: Vec<Message> = clients.iter_mut().map(|client| client.read_response("GET")).collect();
        let refused: Vec<&Message> = responses.iter().filter(|response| response.status() == 429).collect();
        assert_eq!(refused.len(), 1);
        // The store was not called, so the state of the limits is unknown.
        assert_eq!((refused[0].get("ratelimit"), refused[0].get("retry-after")), (None, Some("1")));
        let counted = ["allow", "delayed", "deny"].map(|decision| decisions(&gateway, "queue", decision));
        assert_eq!(counted, [1.0, 2.0, 1.0]);
        let labels = [("route", "app"), ("limit", "queue"), ("reason", "max_delayed")];
        assert_eq!(gateway.metric("rejections_total", &labels), Some(1.0));
        // The refused request was charged to no limit.
        std::thread::sleep(Duration::from_millis(200));
        let response = gateway.get("/");
        assert!(response.get("ratelimit").unwrap().contains("\"other\";r=96;"), "{}", response.head);
    }
}

#[test]
fn a_drain_waits_for_queued_requests() {
    let mut gateway = gateway("", "", "echo:", "\"queue\"", QUEUE);
    let mut clients = sent(&gateway, 4);
    wait_until("three wait", || decisions(&gateway, "queue", "delayed") == 3.0);
    gateway.signal("TERM");
    assert_eq!(statuses(&mut clients), [200; 4]);
    assert!(gateway.exit().success());
}

/// Two slots, which are released a moment after a client has left, even if the upstream server continues.
const TWO: &str =
    "[limit.two]\nalgorithm = \"concurrency\"\nin_flight = 2\nlease = \"2s\"\nlinger = \"200ms\"\nkey = \"all\"\n";

/// `/hang` never gets a response, that of `/stream` never ends, `/part` ends in the middle of its body, the others are
/// answered.
fn scripted() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.target() {
                "/hang" => return peer.wait_for_end(),
                "/stream" => {
                    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")?;
                    return peer.wait_for_end();
                }
                "/part" => return peer.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
                "/broken" => return Ok(()),
                _ => peer.send(ok("in"))?,
            }
        }
        Ok(())
    })
}

/// Uses both slots, which fails unless both are free.
#[track_caller]
fn assert_free(gateway: &Gateway, upstream: &Upstream) {
    wait_until("both slots are free", || {
        upstream.requests();
        let mut clients = [gateway.client(), gateway.client()];
        clients.iter_mut().for_each(|client| client.send(get("/hang", "")));
        let end = Instant::now() + Duration::from_secs(1);
        let mut running = 0;
        while running < 2 && Instant::now() < end {
            running += upstream.requests().len();
            std::thread::sleep(Duration::from_millis(5));
        }
        running == 2
    });
}

/// A server that works on each request for a moment, even if its connection ends, and then ends it in one of the
/// possible ways.
fn working() -> (Upstream, Arc<Running>) {
    let running = Arc::<Running>::default();
    let own = running.clone();
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            let target = request.target().to_owned();
            if target != "/" && target != "/broken" {
                peer.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")?;
            }
            own.work(Duration::from_millis(30));
            match target.as_str() {
                "/broken" | "/part" => return Ok(()),
                "/late" => peer.send(" whole")?,
                _ => peer.send(ok("in"))?,
            }
        }
        Ok(())
    });
    (upstream, running)
}

#[test]
fn slots_are_released_on_every_path() {
    on_both_stores(|server| {
        let store = server.map_or_else(String::new, RedisServer::store);
        let (upstream, running) = working();
        // With a short lease or linger time, a slot that was never released would become free by itself.
        let two = TWO.replace("2s", "1h").replace("200ms", "1h");
        let gateway = gateway("", &store, &upstream.url(), "\"two\"", &two);
        for target in ["/", "/broken", "/part", "/late"] {
            for leaves in [false, true] {
                wait_until("the upstream is idle", || running.now() == 0);
                let (mut admitted, before) = (0, running.ended());
                wait_until("more requests have run than there are slots", || {
                    let mut clients = sent_to(&gateway, target, 3);
                    if leaves {
                        std::thread::sleep(Duration::from_millis(10));
                    } else {
                        // A broken response belongs to an admitted request, too.
                        let responses = clients.iter_mut().map(|client| client.try_read_response("GET"));
                        admitted +=
                            responses.filter(|response| !matches!(response, Ok(it) if it.status() == 429)).count();
                    }
                    running.ended() >= before + 6
                });
                wait_until("all admitted requests have run", || running.now() == 0);
                assert!(running.most() <= 2, "{target}: {} at once", running.most());
                assert!(leaves || admitted <= running.ended() - before, "{target}: {admitted} admitted, fewer ran");
            }
        }
        // The last slots are released a moment after the upstream has ended. One that was not released would stay in
        // use for an hour.
        wait_until("both slots are free", || statuses(&mut sent_to(&gateway, "/", 2)) == [200, 200]);
    });
}

/// Requests at a server that never responds time out, and their slots are released.
#[test]
fn slots_of_requests_that_hang_are_released() {
    on_both_stores(|server| {
        let store = server.map_or_else(String::new, RedisServer::store);
        let upstream = scripted();
        let gateway = gateway("", &store, &upstream.url(), "\"two\"", &TWO.replace("2s", "1h"));
        // Twice, because the clients of each round leave while their requests run.
        assert_free(&gateway, &upstream);
        assert_free(&gateway, &upstream);
    });
}

#[test]
fn local_slots_are_released_locally() {
    let mut server = RedisServer::start(&[]);
    let upstream = scripted();
    let two = TWO.replace("2s", "1h").replace("200ms", "0s");
    let gateway = gateway("", &server.store(), &upstream.url(), "\"two\"", &two);
    server.kill();
    wait_until("the store is unavailable", || gateway.metric("store_up", &[]) == Some(0.0));
    for _ in 0..2 {
        let mut clients = [gateway.client(), gateway.client()];
        clients.iter_mut().for_each(|client| client.send(get("/hang", "")));
        wait_until("both run", || gateway.metric("requests_in_flight", &[("route", "app")]) == Some(2.0));
        assert_eq!(gateway.get("/").status(), 429);
        drop(clients);
        gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    }
    assert!(decisions(&gateway, "two", "local_allow") == 4.0 && decisions(&gateway, "two", "allow") == 0.0);
}

#[test]
fn a_failed_connect_releases_its_slot() {
    let gateway = gateway("", "", &format!("http://{}", closed_addr()), "\"two\"", &TWO.replace("2s", "1h"));
    assert_eq!([0; 5].map(|_| gateway.get("/").status()), [502; 5]);
}

#[test]
fn leases_are_renewed_while_requests_run() {
    on_both_stores(|server| {
        let store = server.map_or_else(String::new, RedisServer::store);
        let upstream = scripted();
        let gateway = gateway("", &store, &upstream.url(), "\"two\"", TWO);
        let mut clients = [gateway.client(), gateway.client()];
        clients.iter_mut().for_each(|client| client.send(get("/hang", "")));
        wait_until("both run", || gateway.metric("requests_in_flight", &[("route", "app")]) == Some(2.0));
        let end = Instant::now() + Duration::from_millis(6500);
        while Instant::now() < end {
            assert_eq!(gateway.get("/").status(), 429);
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(clients);
        wait_until("a slot is free", || gateway.get("/").status() == 200);
    });
}

#[test]
fn a_killed_gateway_gives_its_slots_back_after_their_lifetime() {
    let server = RedisServer::start(&[]);
    let upstream = scripted();
    let config = server.store();
    let [killed, other] = [0, 1].map(|_| gateway("", &config, &upstream.url(), "\"two\"", TWO));
    let mut clients = [killed.client(), killed.client()];
    clients.iter_mut().for_each(|client| client.send(get("/hang", "")));
    // When the requests are at the upstream, the store has their slots.
    clients.iter().for_each(|_| drop(upstream.request()));
    assert_eq!(other.get("/").status(), 429);
    let watch = Stopwatch::start();
    killed.signal("KILL");
    wait_until("a slot is free", || other.get("/").status() == 200);
    // 4/3 x (2 + 2 s), less what had passed since they were taken.
    watch.assert_ms(0..5500);
}

/// Returns the number of leases in the server. The entry with the longest lease has a negative score.
fn leases(server: &RedisServer) -> usize {
    let mut client = server.client();
    let keys: Vec<String> = redis::cmd("KEYS").arg("sg:*:concurrency").query(&mut client).unwrap();
    let held = |key| redis::cmd("ZCOUNT").arg(key).arg(0).arg("+inf").query::<usize>(&mut client).unwrap();
    keys.iter().map(held).sum()
}

const MANY: &str = "[limit.many]\nalgorithm = \"concurrency\"\nin_flight = 300\nlease = \"1h\"\nlinger = \"200ms\"\n\
                    key = \"all\"\n";

#[test]
fn slots_of_requests_that_are_cut_are_released() {
    let (server, other) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let upstream = scripted();
    for changed in [false, true] {
        let shutdown = "workers = 2\nshutdown_timeout = \"200ms\"";
        let mut gateway = gateway(shutdown, &server.store(), &upstream.url(), "\"many\"", MANY);
        let clients = [sent_to(&gateway, "/hang", 50), sent_to(&gateway, "/stream", 50)];
        wait_until("all run", || leases(&server) == 100);
        if changed {
            // They were admitted by the previous store.
            let path = gateway.dir.path().join("sluicegate.toml");
            let text = std::fs::read_to_string(&path).unwrap().replace(&server.url(), &other.url());
            std::fs::write(&path, text).unwrap();
            wait_until("the other store is active", || gateway.log().contains("config reloaded"));
            let more = sent_to(&gateway, "/hang", 10);
            wait_until("they run", || leases(&other) == 10);
            drop(more);
            wait_until("they are released", || leases(&other) == 0);
        }
        // The store is slow when the gateway cuts the requests.
        let () = redis::cmd("CLIENT").arg("PAUSE").arg(400).arg("ALL").query(&mut server.client()).unwrap();
        gateway.signal("TERM");
        gateway.exit();
        assert!(gateway.log().contains("were cut"), "{}", gateway.log());
        assert_eq!(leases(&server), 0, "changed: {changed}");
        drop(clients);
    }
}

#[test]
fn a_silent_store_delays_the_end_by_its_deadline_only() {
    let server = RedisServer::start(&[]);
    let upstream = scripted();
    let store = server.store().replace("10s", "500ms");
    let mut gateway = gateway("shutdown_timeout = \"200ms\"", &store, &upstream.url(), "\"many\"", MANY);
    let clients = sent_to(&gateway, "/hang", 10);
    wait_until("all run", || leases(&server) == 10);
    server.signal("STOP");
    let watch = Stopwatch::start();
    gateway.signal("TERM");
    gateway.exit();
    watch.assert_ms(0..2000);
    server.signal("CONT");
    drop(clients);
}
