//! Requests in flight during a reload: refunds, renewals and releases use the settings of the charge, and nothing keeps
//! a store alive that is no longer in use.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use redis::Commands;
use serde_json::Value;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Responds to `/held` with 500 when the test releases it, and to everything else at once.
fn upstream() -> (Upstream, Sender<()>) {
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/held" {
                let _ = wait.lock().unwrap().recv();
                peer.send("HTTP/1.1 500 Late\r\ncontent-length: 0\r\n\r\n")?;
            } else {
                peer.send(ok("in"))?;
            }
        }
        Ok(())
    });
    (upstream, release)
}

fn config(store: &str, to: &str, limit: &str) -> String {
    format!(
        "[store]\nurl = \"{store}\"\ndeadline = \"5s\"\n\n[[route]]\nname = \"app\"\nupstream = \"{to}\"\n\
         limits = [\"one\"]\n\n[limit.one]\nkey = \"all\"\n{limit}\n"
    )
}

/// Replaces `from` in the config and waits for the reload.
fn reload(gateway: &Gateway, from: &str, to: &str) {
    let path = gateway.dir.path().join("sluicegate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    let reloads = || gateway.log().matches("config reloaded").count();
    let seen = reloads();
    std::fs::write(&path, text.replace(from, to)).unwrap();
    wait_until("the edit is active", || reloads() > seen);
}

fn remaining(gateway: &Gateway) -> i64 {
    let page = gateway.admin("/-/limits/one/state?cost=0");
    let state: Value = page.json();
    state["remaining"].as_i64().unwrap_or_else(|| panic!("{state}"))
}

#[test]
fn a_late_refund_uses_the_rule_of_the_charge() {
    let redis = RedisServer::start(&[]);
    for store in ["memory:".to_owned(), redis.url()] {
        for (before, after) in [
            ("rate = \"1/h\"\nburst = 3\n", "rate = \"1/h\"\nburst = 50\n"),
            ("algorithm = \"gcra\"\nrate = \"1/h\"\nburst = 3\n", "algorithm = \"gcra\"\nrate = \"1/h\"\nburst = 50\n"),
            ("algorithm = \"sliding_log\"\nrate = \"3/h\"\n", "algorithm = \"sliding_log\"\nrate = \"50/h\"\n"),
            (
                "algorithm = \"sliding_window\"\nrate = \"3/day\"\n",
                "algorithm = \"sliding_window\"\nrate = \"50/day\"\n",
            ),
        ] {
            let () = redis::cmd("FLUSHALL").query(&mut redis.client()).unwrap();
            let (upstream, release) = upstream();
            let refund = "refund_on = [\"5xx\"]";
            let gateway = Gateway::start(&config(&store, &upstream.url(), &format!("{before}{refund}")));
            let mut late = gateway.client();
            late.send(get("/held", ""));
            upstream.request();
            reload(&gateway, before, after);
            for _ in 0..40 {
                assert_eq!(gateway.get("/").status(), 200, "{after}");
            }
            assert_eq!(remaining(&gateway), 9, "{after}");
            release.send(()).unwrap();
            assert_eq!(late.read_response("GET").status(), 500);
            wait_until("the late request has been refunded", || remaining(&gateway) != 9);
            assert_eq!(remaining(&gateway), 10, "{after} on {store}");
        }
    }
}

#[test]
fn an_earlier_lease_is_renewed_by_the_current_config() {
    let redis = RedisServer::start(&[]);
    let (upstream, release) = upstream();
    let limit = "algorithm = \"concurrency\"\nin_flight = 5\nlease = \"60s\"";
    let gateway = Gateway::start(&config(&redis.url(), &upstream.url(), limit));
    let mut long = gateway.client();
    long.send(get("/held", ""));
    upstream.request();
    reload(&gateway, "lease = \"60s\"", "lease = \"1s\"");
    // The first charge by the new rule shortens the lease of the other request to a second.
    assert_eq!(gateway.get("/").status(), 200);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(remaining(&gateway), 4, "the lease ran out under its request");
    release.send(()).unwrap();
    long.read_response("GET");
    wait_until("the slot is free", || remaining(&gateway) == 5);
}

#[test]
fn a_slot_is_let_go_of_although_the_store_did_not_listen() {
    let redis = RedisServer::start(&[]);
    let (upstream, release) = upstream();
    let limit = "algorithm = \"concurrency\"\nin_flight = 5\nlease = \"1h\"";
    // The breaker opens before the connection is given up, a second after the store stops.
    let brief = config(&redis.url(), &upstream.url(), limit).replace("\"5s\"", "\"200ms\"");
    let gateway = Gateway::start(&brief);
    gateway.wait_for_store();
    let mut long = gateway.client();
    long.send(get("/held", ""));
    upstream.request();
    let mut client = redis.client();
    let key: String = client.keys::<_, Vec<String>>("sg:*concurrency").unwrap().remove(0);
    assert_eq!(client.zcount::<_, _, _, i64>(&key, 0, "+inf").unwrap(), 1);
    redis.signal("STOP");
    // After several failures the gateway no longer calls the store.
    wait_until("the breaker is open", || {
        gateway.get("/");
        gateway.metric("store_breaker_state", &[]) == Some(2.0)
    });
    release.send(()).unwrap();
    long.read_response("GET");
    redis.signal("CONT");
    wait_until("the slot is free", || client.zcard::<_, i64>(&key).unwrap() == 0);
}

#[test]
fn nothing_holds_on_to_a_store_of_before() {
    let (mut old, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let (upstream, _release) = upstream();
    let limit = "algorithm = \"fixed_window\"\nrate = \"10/day\"";
    let gateway = Gateway::with("workers = 2", &config(&old.url(), &upstream.url(), limit));
    gateway.wait_for_store();
    // An idle connection from before the reload.
    let mut idle = gateway.client();
    assert_eq!(idle.fetch(&get("/", ""), "").status(), 200);
    reload(&gateway, &old.url(), &new.url());
    gateway.wait_for_store();
    old.kill();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(gateway.metric("store_up", &[]), Some(1.0), "{}", gateway.log());
    assert!(!gateway.log().contains("the limit store is unavailable"), "{}", gateway.log());
    assert_eq!(idle.fetch(&get("/", ""), "").status(), 200);
}

#[test]
fn overrides_go_with_the_redis_they_stood_in() {
    let redis = RedisServer::start(&[]);
    let (upstream, _release) = upstream();
    let limit = "rate = \"10/h\"";
    let () = redis.client().hset("sg:overrides:one", "all", "rate=0").unwrap();
    let gateway = Gateway::start(&config(&redis.url(), &upstream.url(), limit));
    wait_until("the override is active", || gateway.get("/").status() == 429);
    reload(&gateway, &redis.url(), "memory:");
    assert_eq!(gateway.get("/").status(), 200);
}

#[test]
fn retry_after_of_concurrency_is_a_recent_hold_time() {
    let redis = RedisServer::start(&[]);
    for store in ["memory:".to_owned(), redis.url()] {
        let (upstream, release) = upstream();
        let limit = "algorithm = \"concurrency\"\nin_flight = 1\nlease = \"60s\"";
        let gateway = Gateway::start(&config(&store, &upstream.url(), limit));
        if store != "memory:" {
            gateway.wait_for_store();
        }
        let hold = || {
            let mut holder = gateway.client();
            holder.send(get("/held", ""));
            upstream.request();
            holder
        };
        let refused = || {
            let refused = gateway.get("/");
            assert_eq!(refused.status(), 429, "{store}");
            let problem: Value = refused.json();
            (refused.get("retry-after").unwrap().parse::<u128>().unwrap(), problem["retry-after-ms"].as_i64().unwrap())
        };
        let (watch, mut holder) = (Instant::now(), hold());
        let watch_inside = Instant::now();
        let (wait_s, _) = refused();
        // 4/3 x (60 + 2 s).
        assert!((80..=83).contains(&wait_s), "{store}: only the lease bounds the wait: {wait_s}");
        std::thread::sleep(Duration::from_millis(1200));
        let at_least = watch_inside.elapsed().as_millis();
        release.send(()).unwrap();
        holder.read_response("GET");
        wait_until("the slot is free", || remaining(&gateway) == 1);
        let at_most = watch.elapsed().as_millis() + 1;

        let mut holder = hold();
        let (wait_s, wait_ms) = refused();
        assert!(
            (at_least..=at_most).contains(&u128::try_from(wait_ms).unwrap()),
            "{store}: {at_least} {wait_ms} {at_most}"
        );
        assert_eq!(wait_s, u128::try_from(wait_ms).unwrap().div_ceil(1000), "{store}");
        reload(&gateway, "lease = \"60s\"", "lease = \"1h\"");
        assert_eq!(refused().1, wait_ms, "{store}: a reload keeps the usage");
        release.send(()).unwrap();
        holder.read_response("GET");
    }
}
