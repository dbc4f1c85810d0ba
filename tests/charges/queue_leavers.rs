//! Turns of a queue whose requests leave: they are refunded in any order, on both stores.

use std::time::Duration;

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::wait_until;

fn gateway(store: &str, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "[store]\nurl = \"{store}\"\ndeadline = \"10s\"\n\n[[route]]\nname = \"app\"\nrespond = {{ body = \"in\" }}\n\
         limits = [\"queue\"]\n\n[limit.queue]\nalgorithm = \"leaky_bucket\"\nkey = \"all\"\n{limit}\n"
    ))
}

fn on_both(limit: &str, test: impl Fn(&Gateway) + Sync) {
    on_both_stores(|redis| test(&gateway(&redis.map_or("memory:".to_owned(), RedisServer::url), limit)));
}

/// Returns how long the next request would be delayed, in ms.
fn hold_ms(gateway: &Gateway) -> i64 {
    gateway.admin("/-/limits/queue/state").json()["hold_ms"].as_i64().unwrap_or(0)
}

fn sent(gateway: &Gateway, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/", "")));
    clients
}

#[test]
fn requests_without_a_place_leave_no_queue_positions() {
    on_both("rate = \"1/min\"\nqueue = \"1h\"\nmax_delayed = 1", |gateway| {
        // One request passes at once, and one waits for the next position.
        assert_eq!(gateway.get("/").status(), 200);
        let mut clients = sent(gateway, 9);
        let refused = || gateway.metric("rejections_total", &REFUSED).unwrap_or(0.0);
        wait_until("all but two are refused", || refused() == 8.0);
        // The next request would wait for the position after that.
        let hold_ms = hold_ms(gateway);
        assert!((60_000..=120_000).contains(&hold_ms), "{hold_ms}");
        drop(clients.drain(..));
    });
}

#[test]
fn leaving_in_order_of_arrival_empties_the_queue() {
    on_both("rate = \"1/min\"\nqueue = \"1h\"", |gateway| {
        let clients = sent(gateway, 12);
        wait_until("all have left the queue", || gateway.metric("limit_decisions_total", &DELAYED) == Some(11.0));
        for client in clients {
            drop(client);
            std::thread::sleep(Duration::from_millis(10));
        }
        wait_until("the queue is empty", || hold_ms(gateway) <= 60_000);
    });
}

const REFUSED: [(&str, &str); 3] = [("route", "app"), ("limit", "queue"), ("reason", "max_delayed")];
const DELAYED: [(&str, &str); 3] = [("route", "app"), ("limit", "queue"), ("decision", "delayed")];

/// A request that the gateway answers itself has its slot until its response has been sent.
#[test]
fn the_slot_of_a_request_that_is_answered_here_is_free_for_the_next() {
    let redis = RedisServer::start(&[]);
    for store in ["memory:".to_owned(), redis.url()] {
        let gateway = Gateway::start(&format!(
            "[store]\nurl = \"{store}\"\ndeadline = \"10s\"\n\n[[route]]\nname = \"app\"\nrespond = {{ body = \"in\" }}\n\
             limits = [\"one\"]\n\n[limit.one]\nalgorithm = \"concurrency\"\nin_flight = 1\nlease = \"1h\"\nkey = \"all\"\n"
        ));
        for _ in 0..3 {
            wait_until("there is a free slot", || gateway.get("/").status() == 200);
        }
    }
}
