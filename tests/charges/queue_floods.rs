//! A flood of requests for a queue: every turn is used.

use std::time::{Duration, Instant};

use crate::support::client::{Client, get};
use crate::support::faketime::clock;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

/// Number of queue slots during the flood.
const TURNS: u128 = 60;
const EVERY_MS: u128 = 50;
const SEATS: usize = 10;

fn gateway(store: &str, workers: usize, rate: &str, queue: &str) -> Gateway {
    let gateway = Gateway::with(
        &format!("workers = {workers}\nmax_delayed = {SEATS}"),
        &format!(
            "{store}\n[[route]]\nname = \"app\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\nlimits = [\"queue\"]\n\n\
             [limit.queue]\nalgorithm = \"leaky_bucket\"\nrate = \"{rate}\"\nqueue = \"{queue}\"\nkey = \"all\"\n"
        ),
    );
    if !store.is_empty() {
        gateway.wait_for_store();
    }
    gateway
}

/// One client of many: sends a request, and after a refusal soon another.
fn insist(gateway: &Gateway, deadline: Instant) -> usize {
    let (mut served, mut client) = (0, gateway.client());
    while Instant::now() < deadline {
        client.send(get("/", ""));
        match Client::read_response(&mut client, "GET").status() {
            200 => served += 1,
            // With forty such clients, a request arrives every half millisecond.
            429 => std::thread::sleep(Duration::from_millis(20)),
            other => panic!("{other}"),
        }
    }
    served
}

#[test]
fn a_flood_uses_every_turn() {
    for redis in [false, true] {
        for workers in [1, 2] {
            let server = redis.then(|| RedisServer::start(&[]));
            let store = server.as_ref().map_or_else(String::new, RedisServer::store);
            let gateway = gateway(&store, workers, "20/s", "4s");
            let start = Instant::now();
            let end = start + Duration::from_millis((TURNS * EVERY_MS) as u64);
            let served: usize = std::thread::scope(|scope| {
                let clients: Vec<_> = (0..40).map(|_| scope.spawn(|| insist(&gateway, end))).collect();
                clients.into_iter().map(|client| client.join().unwrap()).sum()
            });
            // The last requests were admitted before the end and responded to in their turn.
            let turns = (start.elapsed().as_millis() / EVERY_MS) as usize;
            assert!(served <= turns + 1, "{served} of {turns} turns");
            // A free place is taken again within a few milliseconds, before the next request leaves the queue.
            assert!(served + 3 >= turns.min(TURNS as usize + SEATS), "{served} of {turns} turns, {workers} workers");
            let reasons = [("route", "app"), ("limit", "queue"), ("reason", "max_delayed")];
            assert!(gateway.metric("rejections_total", &reasons) > Some(0.0));
            let exhausted = [("route", "app"), ("limit", "queue"), ("reason", "exhausted")];
            assert_eq!(gateway.metric("rejections_total", &exhausted), Some(0.0), "a decision at the store was wasted");
        }
    }
}

#[test]
fn a_request_without_a_seat_costs_no_call() {
    let server = RedisServer::start(&[]);
    let gateway = gateway(&server.store(), 1, "1/min", "1h");
    assert_eq!(gateway.get("/").status(), 200);
    let mut waiting: Vec<Client> = (0..SEATS).map(|_| gateway.client()).collect();
    for client in &mut waiting {
        client.send(get("/", ""));
    }
    let decided = |decision| [("route", "app"), ("limit", "queue"), ("decision", decision)];
    wait_until("all places are taken", || {
        gateway.metric("limit_decisions_total", &decided("delayed")) == Some(SEATS as f64)
    });
    let calls = || gateway.metric("store_batch_size_sum", &[]).unwrap();
    let before = calls();
    let mut client = gateway.client();
    for _ in 0..50 {
        let refused = client.fetch(&get("/", ""), "");
        assert_eq!((refused.status(), refused.get("retry-after")), (429, Some("1")));
    }
    gateway.assert_metric("limit_decisions_total", &decided("deny"), 50.0);
    assert_eq!(calls(), before);
    // The request of a client that leaves frees its place and its position.
    drop(waiting.pop());
    let mut next = gateway.client();
    wait_until("a place is free", || waits(&mut next, "/"));
}

/// The clock of a gateway is an hour ahead of Redis', or behind: queue positions are refunded all the same.
#[test]
fn a_gateway_with_another_clock_refunds_queue_positions() {
    let server = RedisServer::start(&[]);
    for (offset, prefix) in [("+1h", "ahead"), ("-1h", "behind")] {
        let env = clock(offset);
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let gateway = Gateway::with_env(
            &env,
            "workers = 1",
            &format!(
                "[store]\nurl = \"{}\"\nprefix = \"{prefix}\"\ndeadline = \"10s\"\n\n[[route]]\nname = \"app\"\n\
                 respond = {{ }}\nlimits = [\"queue\"]\n\n[limit.queue]\nalgorithm = \"leaky_bucket\"\n\
                 rate = \"1/200s\"\nqueue = \"500s\"\nkey = \"all\"\n",
                server.url(),
            ),
        );
        gateway.wait_for_store();
        assert_eq!(gateway.get("/").status(), 200);
        let mut leaving: Vec<Client> = (0..2).map(|_| gateway.client()).collect();
        leaving.iter_mut().for_each(|client| client.send(get("/", "")));
        let decided = [("route", "app"), ("limit", "queue"), ("decision", "delayed")];
        wait_until("both wait", || gateway.metric("limit_decisions_total", &decided) == Some(2.0));
        assert_eq!(gateway.get("/").status(), 429, "two requests may wait");
        drop(leaving);
        let mut next: Vec<Client> = (0..2).map(|_| gateway.client()).collect();
        for client in &mut next {
            wait_until("a queue position was refunded", || waits(client, "/"));
        }
    }
}

/// Sends a request. Returns true if there is no response yet.
fn waits(client: &mut Client, path: &str) -> bool {
    client.send(get(path, ""));
    let mut response = client.stream().try_clone().unwrap();
    response.set_read_timeout(Some(Duration::from_millis(80))).unwrap();
    std::io::Read::read(&mut response, &mut [0; 4096]).is_err()
}

/// Clients of one queue leave positions in more keys than are kept: positions of another limit are refunded all the
/// same.
#[test]
fn the_keys_of_one_queue_forget_no_turns_of_another() {
    const KEYS: usize = 1030;
    let limits = "[[route]]\nname = \"a\"\npath = \"/a\"\nrespond = { }\nlimits = [\"a\"]\n\n\
                  [limit.a]\nalgorithm = \"leaky_bucket\"\nrate = \"1/200s\"\nqueue = \"500s\"\nkey = \"all\"\n\n\
                  [[route]]\nname = \"b\"\npath = \"/b\"\nrespond = { }\nlimits = [\"b\"]\n\n\
                  [limit.b]\nalgorithm = \"leaky_bucket\"\nrate = \"1/200s\"\nqueue = \"500s\"\nkey = \"header:x-user\"\n";
    let gateway = Gateway::with("workers = 1\nmax_delayed = 5000\nmax_connections = 6000", limits);
    let delayed = |limit: &str| {
        gateway
            .metric("limit_decisions_total", &[("route", limit), ("limit", limit), ("decision", "delayed")])
            .unwrap_or(0.0)
    };
    let wait_at = |path: &str, count: usize, from: f64| {
        let limit = &path[1..2];
        let mut clients: Vec<Client> = (0..count).map(|_| gateway.client()).collect();
        for (i, client) in clients.iter_mut().enumerate() {
            client.send(get(path, &format!("x-user: u{i}\r\n")));
        }
        wait_until("all wait", || delayed(limit) == from + count as f64);
        clients
    };
    assert_eq!(gateway.get("/a").status(), 200);
    let first = wait_at("/a", 1, 0.0);
    let last = wait_at("/a", 1, 1.0);
    drop(first);
    // The first request of each user passes at once, the second waits, and the third waits behind it.
    let mut client = gateway.client();
    for from in (0..KEYS).step_by(103) {
        client.send((from..from + 103).map(|i| get("/b", &format!("x-user: u{i}\r\n"))).collect::<String>());
        (0..103).for_each(|_| assert_eq!(client.read_response("GET").status(), 200));
    }
    let second = wait_at("/b", KEYS, 0.0);
    let third = wait_at("/b", KEYS, KEYS as f64);
    drop(second);
    let in_flight = |route: &str| gateway.metric("requests_in_flight", &[("route", route)]);
    wait_until("the second requests have left", || in_flight("b") == Some(KEYS as f64));
    drop(last);
    let mut next: Vec<Client> = (0..2).map(|_| gateway.client()).collect();
    for client in &mut next {
        wait_until("a queue position was refunded", || waits(client, "/a"));
    }
    drop(third);
}
