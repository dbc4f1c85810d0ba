//! The slots of running requests while Redis is unavailable or loses its data: the slots stay occupied with their cost,
//! and the slots of a dead gateway expire.

use std::time::{Duration, Instant};

use redis::Commands;

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::slow_link::DelayLine;
use crate::support::machine::Stopwatch;
use crate::support::scenario::scenario;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Never responds to `/held`, and to everything else at once.
fn upstream() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/held" {
                return peer.wait_for_end();
            }
            peer.send(ok("in"))?;
        }
        Ok(())
    })
}

fn gateway(store: &str, upstream: &Upstream, slots: &str) -> Gateway {
    let lines =
        format!("algorithm = \"concurrency\"\nkey = \"all\"\nlinger = \"0s\"\ncost = \"header:x-cost\"\n{slots}");
    let scenario = scenario().redis_within(store, "200ms").store_line("on_error = \"closed\"");
    scenario.upstream(upstream).limit_of("slots", &lines).start()
}

fn hold(gateway: &Gateway, upstream: &Upstream, cost: usize) -> Client {
    let mut holder = gateway.client();
    holder.send(get("/held", &format!("x-cost: {cost}\r\n")));
    upstream.request();
    holder
}

/// Asserts that all slots stay in use until `end`. Returns how often Redis refused one.
fn assert_all_taken(gateway: &Gateway, end: Instant) -> usize {
    let mut refused = 0;
    while Instant::now() < end {
        let status = gateway.get("/").status();
        assert!(matches!(status, 429 | 503), "{status}: a slot was given to another request");
        refused += usize::from(status == 429);
        std::thread::sleep(Duration::from_millis(20));
    }
    refused
}

fn remaining(gateway: &Gateway) -> i64 {
    let page = gateway.admin("/-/limits/slots/state?cost=0");
    page.json()["remaining"].as_i64().unwrap_or(-1)
}

#[test]
fn an_outage_shorter_than_the_lease_loses_no_slot() {
    let (redis, upstream) = (RedisServer::start(&[]), upstream());
    let line = DelayLine::to(redis.port, Duration::ZERO);
    let gateway = gateway(&line.redis_url(), &upstream, "in_flight = 2\nlease = \"3s\"");
    let start = Instant::now();
    let _holders = [hold(&gateway, &upstream, 1), hold(&gateway, &upstream, 1)];
    // Just before the first renewal, when the lease has the least time left.
    std::thread::sleep(Duration::from_millis(900));
    line.interrupt(Duration::from_millis(2900));
    let refused = assert_all_taken(&gateway, start + Duration::from_secs(9));
    assert!(refused > 5, "refused {refused} times in five seconds");
}

#[test]
fn short_interruptions_lose_no_slot() {
    let (redis, upstream) = (RedisServer::start(&[]), upstream());
    let line = DelayLine::to(redis.port, Duration::ZERO);
    let gateway = gateway(&line.redis_url(), &upstream, "in_flight = 2\nlease = \"3s\"");
    let _holders = [hold(&gateway, &upstream, 1), hold(&gateway, &upstream, 1)];
    let end = Instant::now() + Duration::from_secs(8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                std::thread::sleep(Duration::from_millis(900));
                line.interrupt(Duration::from_millis(100));
            }
        });
        assert_all_taken(&gateway, end);
    });
}

#[test]
fn a_hung_redis_loses_no_slot() {
    let (redis, upstream) = (RedisServer::start(&[]), upstream());
    let gateway = gateway(&redis.url(), &upstream, "in_flight = 2\nlease = \"3s\"");
    let start = Instant::now();
    let _holders = [hold(&gateway, &upstream, 1), hold(&gateway, &upstream, 1)];
    std::thread::sleep(Duration::from_millis(900));
    redis.signal("STOP");
    assert_all_taken(&gateway, start + Duration::from_millis(3800));
    redis.signal("CONT");
    assert!(assert_all_taken(&gateway, start + Duration::from_secs(9)) > 5);
}

#[test]
fn a_lost_lease_is_taken_again_with_its_cost() {
    let (redis, upstream) = (RedisServer::start(&[]), upstream());
    let gateway = gateway(&redis.url(), &upstream, "in_flight = 10\nlease = \"1s\"");
    let first = hold(&gateway, &upstream, 10);
    let mut client = redis.client();
    let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
    wait_until("all ten units are taken again", || remaining(&gateway) == 0);
    // Its request still runs: until both requests have ended, no other is admitted.
    let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
    let second = hold(&gateway, &upstream, 10);
    let key: String = client.keys::<_, Vec<String>>("sg:*concurrency").unwrap().remove(0);
    // The entries of 8 and 2 units for each request, and the one of the longest lease.
    wait_until("both are counted", || client.zcard::<_, i64>(&key).unwrap() == 5);
    drop(first);
    wait_until("the first has ended", || client.zcard::<_, i64>(&key).unwrap() == 3);
    assert_eq!(remaining(&gateway), 0);
    drop(second);
    wait_until("all slots are free", || remaining(&gateway) == 10);
}

#[test]
fn the_slots_of_a_dead_gateway_come_free() {
    let (redis, upstream) = (RedisServer::start(&[]), upstream());
    let slots = "in_flight = 1\nlease = \"1s\"";
    let (dies, lives) = (gateway(&redis.url(), &upstream, slots), gateway(&redis.url(), &upstream, slots));
    let _holder = hold(&dies, &upstream, 1);
    assert_eq!(lives.get("/").status(), 429);
    dies.signal("KILL");
    let died = Stopwatch::start();
    wait_until("its slot is free", || lives.get("/").status() == 200);
    // 4/3 x (lease + 2 s).
    assert!(died.elapsed_without_delay() < Duration::from_millis(4500), "after {:?}", died.elapsed_without_delay());
}
