//! A flood on a queue: every turn is used, whoever comes beside.

use std::time::{Duration, Instant};

use crate::stores::RedisServer;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::until;

/// Turns in the time of the flood.
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
        gateway.until_connected();
    }
    gateway
}

/// One client of many: asks, and when refused asks again soon.
fn insist(gateway: &Gateway, until: Instant) -> usize {
    let (mut served, mut client) = (0, gateway.client());
    while Instant::now() < until {
        client.send(get("/", ""));
        match Client::answer(&mut client, "GET").status() {
            200 => served += 1,
            // Forty do so: somebody asks every half ms.
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
            let store = server
                .as_ref()
                .map_or(String::new(), |server| format!("[store]\nurl = \"{}\"\ndeadline = \"2s\"\n", server.url()));
            let gateway = gateway(&store, workers, "20/s", "4s");
            let start = Instant::now();
            let end = start + Duration::from_millis((TURNS * EVERY_MS) as u64);
            let served: usize = std::thread::scope(|scope| {
                let clients: Vec<_> = (0..40).map(|_| scope.spawn(|| insist(&gateway, end))).collect();
                clients.into_iter().map(|client| client.join().unwrap()).sum()
            });
            // The last ones were admitted before the end and went when their turn came.
            let turns = (start.elapsed().as_millis() / EVERY_MS) as usize;
            assert!(served <= turns + 1, "{served} of {turns} turns");
            // A seat that is free is taken again within a few ms, sooner than the turn after the last.
            assert!(served + 3 >= turns.min(TURNS as usize + SEATS), "{served} of {turns} turns, {workers} workers");
            let reasons = [("route", "app"), ("limit", "queue"), ("reason", "max_delayed")];
            assert!(gateway.metric("rejections_total", &reasons) > Some(0.0));
            let exhausted = [("route", "app"), ("limit", "queue"), ("reason", "exhausted")];
            assert_eq!(gateway.metric("rejections_total", &exhausted), Some(0.0), "the store was asked in vain");
        }
    }
}

#[test]
fn a_request_without_a_seat_costs_no_call() {
    let server = RedisServer::start(&[]);
    let gateway = gateway(&format!("[store]\nurl = \"{}\"\ndeadline = \"2s\"\n", server.url()), 1, "1/min", "1h");
    assert_eq!(gateway.get("/").status(), 200);
    let mut waiting: Vec<Client> = (0..SEATS).map(|_| gateway.client()).collect();
    for client in &mut waiting {
        client.send(get("/", ""));
    }
    let decided = |decision| [("route", "app"), ("limit", "queue"), ("decision", decision)];
    until("all seats are taken", || gateway.metric("limit_decisions_total", &decided("delayed")) == Some(SEATS as f64));
    let asked = || gateway.metric("store_batch_size_sum", &[]).unwrap();
    let before = asked();
    let mut client = gateway.client();
    for _ in 0..50 {
        let refused = client.ask(&get("/", ""), "");
        assert_eq!((refused.status(), refused.get("retry-after")), (429, Some("1")));
    }
    gateway.assert_metric("limit_decisions_total", &decided("deny"), 50.0);
    assert_eq!(asked(), before);
    // Whoever leaves gives up seat and turn.
    drop(waiting.pop());
    let mut next = gateway.client();
    until("a seat is free", || {
        next.send(get("/", ""));
        std::thread::sleep(Duration::from_millis(30));
        let mut answer = next.stream().try_clone().unwrap();
        answer.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        std::io::Read::read(&mut answer, &mut [0; 4096]).is_err()
    });
}
