//! Keys with slots, queues or debts of their own, from the config on both stores and live in Redis.

use std::time::{Duration, Instant};

use redis::TypedCommands;

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

fn gateway(server: Option<&RedisServer>, to: &str, limit: &str) -> Gateway {
    let store = server.map_or_else(String::new, RedisServer::store);
    let gateway = Gateway::start(&format!(
        "{store}\n[[route]]\nname = \"app\"\nupstream = \"{to}\"\nlimits = [\"x\"]\n\n[limit.x]\nkey = \"header:tenant\"\n{limit}"
    ));
    if server.is_some() {
        gateway.wait_for_store();
    }
    gateway
}

fn as_tenant(tenant: &str) -> String {
    get("/", &format!("tenant: {tenant}\r\n"))
}

/// Requests that no upstream ever responds to: how many of `count` reach it.
fn running(gateway: &Gateway, upstream: &Upstream, tenant: &str, count: usize) -> (usize, Vec<Client>) {
    let refused = || decisions(gateway, "deny");
    let before = refused();
    let mut clients: Vec<Client> = (0..count).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(as_tenant(tenant)));
    let mut reached = 0;
    wait_until("all are decided", || {
        reached += upstream.requests().len();
        reached + (refused() - before) as usize >= count
    });
    (reached, clients)
}

fn decisions(gateway: &Gateway, decision: &str) -> f64 {
    let labels = [("route", "app"), ("limit", "x"), ("decision", decision)];
    gateway.metric("limit_decisions_total", &labels).unwrap_or(0.0)
}

#[test]
fn a_key_has_more_slots_or_none_or_no_end_of_them() {
    on_both_stores(|server| {
        let upstream = Upstream::silent();
        let limit = "algorithm = \"concurrency\"\nin_flight = 1\nlinger = \"0s\"\noverrides = [{ key = \"acme\", in_flight = 3 }, \
                     { key = \"evil\", in_flight = 0 }, { key = \"us\", in_flight = \"unlimited\" }]\n";
        let gateway = gateway(server, &upstream.url(), limit);
        let mut all = Vec::new();
        for (tenant, expected) in [("else", 1), ("acme", 3), ("evil", 0), ("us", 6)] {
            let (reached, clients) = running(&gateway, &upstream, tenant, 6);
            assert_eq!(reached, expected, "{tenant}");
            all.push(clients);
        }
        assert!(gateway.fetch(&as_tenant("evil")).text().contains("\"violated-policies\":[\"x\"]"));
        let labels = [("route", "app"), ("limit", "x"), ("decision", "bypass")];
        gateway.assert_metric("limit_decisions_total", &labels, 6.0);
        // The slots of the clients that left are free again.
        drop(all);
        gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
        assert_eq!(running(&gateway, &upstream, "acme", 4).0, 3);
    });
}

#[test]
fn slots_of_a_key_change_live() {
    let server = RedisServer::start(&[]);
    let upstream = Upstream::silent();
    let gateway = gateway(Some(&server), &upstream.url(), "algorithm = \"concurrency\"\nin_flight = 1\n");
    let mut redis = server.client();
    let applied = |count| {
        let line = "overrides in Redis are active";
        wait_until("the overrides are active", || gateway.log().matches(line).count() == count);
    };
    redis.hset("sg:overrides:x", "acme", "in_flight=2").unwrap();
    applied(1);
    let (reached, clients) = running(&gateway, &upstream, "acme", 4);
    assert_eq!(reached, 2);
    redis.hset("sg:overrides:x", "acme", "in_flight=unlimited").unwrap();
    applied(2);
    assert_eq!(running(&gateway, &upstream, "acme", 4).0, 4);
    redis.hset("sg:overrides:x", "acme", "in_flight=0").unwrap();
    applied(3);
    drop(clients);
    assert!(gateway.fetch(&as_tenant("acme")).text().contains("\"violated-policies\":[\"x\"]"));

    redis.hset("sg:overrides:x", "acme", "rate=1/s").unwrap();
    let mistake = "`rate` in the override: concurrency has no such parameter; an entry of concurrency names";
    wait_until("the mistake is logged", || gateway.log().contains(mistake));
    assert_eq!(gateway.fetch(&as_tenant("acme")).status(), 429, "the old overrides stay");
}

#[test]
fn a_key_has_a_queue_where_the_limit_has_none() {
    on_both_stores(|server| {
        let upstream = Upstream::text("in");
        let limit =
            "algorithm = \"leaky_bucket\"\nrate = \"12/min\"\noverrides = [{ key = \"acme\", queue = \"10s\" }]\n";
        let gateway = gateway(server, &upstream.url(), limit);
        let sent = |tenant: &str, count| {
            let mut clients: Vec<Client> = (0..count).map(|_| gateway.client()).collect();
            clients.iter_mut().for_each(|client| client.send(as_tenant(tenant)));
            clients
        };
        let statuses = |mut clients: Vec<Client>| {
            let mut statuses: Vec<u16> =
                clients.iter_mut().map(|client| client.read_response("GET").status()).collect();
            statuses.sort_unstable();
            statuses
        };
        assert_eq!(statuses(sent("else", 3)), [200, 429, 429]);

        let start = Instant::now();
        let mut clients = sent("acme", 1);
        wait_until("the first request was forwarded", || decisions(&gateway, "allow") == 2.0);
        clients.extend(sent("acme", 1));
        wait_until("one waits", || decisions(&gateway, "delayed") == 1.0);
        let leaves = sent("acme", 1);
        wait_until("two wait", || decisions(&gateway, "delayed") == 2.0);
        assert_eq!(gateway.fetch(&as_tenant("acme")).status(), 429);
        // Its queue position is free for another request, although a refusal was just sent.
        drop(leaves);
        let in_flight = || gateway.metric("requests_in_flight", &[("route", "app")]).unwrap();
        wait_until("it has left", || in_flight() <= 1.0);
        clients.extend(sent("acme", 1));
        assert_eq!(statuses(clients), [200, 200, 200]);
        assert!(start.elapsed() > Duration::from_millis(9950), "{:?}", start.elapsed());
    });
}

#[test]
fn a_key_has_a_debt_of_its_own() {
    on_both_stores(|server| {
        let limit = "rate = \"2/day\"\ncost = \"header:x-cost\"\noverrides = [{ key = \"acme\", debt = 10 }]\n";
        let gateway = gateway(server, "echo:", limit);
        let fetch = |tenant: &str| gateway.fetch(&get("/", &format!("tenant: {tenant}\r\nx-cost: 9\r\n"))).status();
        assert_eq!([fetch("else"), fetch("acme"), fetch("acme")], [429, 200, 429]);
    });
}
