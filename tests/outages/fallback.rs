//! While Redis is unavailable, every gateway enforces its share of the limits.

use std::time::{Duration, Instant};

use sluicegate::limiting::algorithm::{NAMES, Rule};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::rules::random_rule;
use crate::support::limiting::{RedisServer, seeded};
use crate::support::machine::Lateness;
use crate::support::scenario::scenario;
use crate::support::wait_until;

const DEADLINE: Duration = Duration::from_millis(100);
/// A request that waited for a connection would take a second.
const SLACK: Duration = Duration::from_millis(400);

fn gateway(server: &RedisServer) -> Gateway {
    scenario()
        .redis_within(&server.url(), &format!("{}ms", DEADLINE.as_millis()))
        .route("app", "/")
        .limit_of("bucket", "rate = \"21/10h\"\nkey = \"all\"")
        .route("window", "/window")
        .limit_of("window", "algorithm = \"fixed_window\"\nrate = \"7/h\"\nkey = \"all\"")
        .start()
}

/// Returns how many of `count` requests are admitted; none takes longer than the deadline.
fn admitted(gateway: &Gateway, target: &str, count: usize) -> usize {
    let mut client = gateway.client();
    let lateness = Lateness::watch();
    let statuses = (0..count).map(|_| {
        let start = Instant::now();
        let status = client.fetch(&get(target, ""), "").status();
        let took = start.elapsed();
        assert!(took < DEADLINE + SLACK + lateness.allowance(), "a request took {took:?}");
        status
    });
    statuses.filter(|status| *status == 200).count()
}

#[test]
fn two_gateways_share_the_limits_while_the_store_is_unavailable() {
    let mut server = RedisServer::start(&[]);
    let gateways = [gateway(&server), gateway(&server)];
    for gateway in &gateways {
        wait_until("both are counted", || gateway.metric("store_gateways", &[]) == Some(2.0));
    }
    let ttl: i64 = redis::cmd("PTTL").arg("sg:gateways").query(&mut server.client()).unwrap();
    assert!((1..=3_600_000).contains(&ttl), "{ttl}");

    server.kill();
    assert_eq!(gateways.each_ref().map(|gateway| admitted(gateway, "/", 30)), [10, 10]);
    assert_eq!(gateways.each_ref().map(|gateway| admitted(gateway, "/window", 20)), [3, 3]);
    for gateway in &gateways {
        let local = |decision| [("route", "app"), ("limit", "bucket"), ("decision", decision)];
        gateway.assert_metric("limit_decisions_total", &local("local_allow"), 10.0);
        gateway.assert_metric("limit_decisions_total", &local("local_deny"), 20.0);
        gateway.assert_metric("store_gateways", &[], 2.0);
        assert!(gateway.log().contains("limits follow their on_error"), "{}", gateway.log());
    }

    // The store is empty when it returns: both gateways share one budget again, without a restart.
    server.restart();
    for gateway in &gateways {
        wait_until("the store responds", || gateway.metric("store_up", &[]) == Some(1.0));
    }
    let counts = gateways.each_ref().map(|gateway| admitted(gateway, "/", 30));
    assert_eq!(counts, [21, 0]);
    assert_eq!(gateways[0].metric("store_gateways", &[]), Some(2.0));
}

#[test]
fn a_gateway_that_is_gone_is_not_counted_for_long() {
    let server = RedisServer::start(&[]);
    let (stays, leaves) = (gateway(&server), gateway(&server));
    wait_until("both are counted", || stays.metric("store_gateways", &[]) == Some(2.0));
    drop(leaves);
    wait_until("one is left", || stays.metric("store_gateways", &[]) == Some(1.0));
}

#[test]
fn a_share_is_a_part_of_the_whole() {
    let mut seeded = seeded();
    for name in NAMES {
        for _ in 0..500 {
            let rule = random_rule(name, &mut seeded.rng);
            assert_eq!(rule.share(1), rule);
            // Each gateway bans by its own refusals, as each has a share of the budget.
            if matches!(rule, Rule::Ban(_)) {
                assert_eq!(rule.share(7), rule);
                continue;
            }
            for n in [2, 3, 7, 1000] {
                let (whole, part) = (rule.policy(), rule.share(n).policy());
                let units = (whole.quota / n).max(1);
                // The queue of a leaky bucket is in whole milliseconds.
                let exact = part.quota == units || name.starts_with("leaky") && part.quota < units;
                assert!(exact && part.quota > 0, "{n} share {rule:?}: {part:?}");
                // The rate is divided as well, unless rounding hides that.
                let rates = [part, whole].map(|policy| policy.quota as f64 / policy.window_ms as f64);
                let most = rates[1] / n as f64;
                let rounded = part.quota == 1 || whole.window_ms < 1000;
                let slack = 1.01 + 2.0 / whole.quota as f64;
                assert!(rates[0] <= most * slack || rounded, "{n} share {rule:?}: {part:?}");
            }
        }
    }
}

#[test]
fn impossible_costs_are_reported_with_the_numbers_of_the_limit() {
    let mut redis = RedisServer::start(&[]);
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"100ms\"\n\n[[route]]\nname = \"app\"\nrespond = {{ body = \"in\" }}\n\
         limits = [\"units\"]\n\n[limit.units]\nrate = \"100/h\"\nkey = \"header:x-who\"\ncost = \"header:x-cost\"\n\
         overrides = [{{ key = [\"acme\"], rate = \"5/h\" }}]\n",
        redis.url()
    ));
    redis.kill();
    wait_until("the store is unavailable", || gateway.metric("store_up", &[]) == Some(0.0));
    let wait = |who: &str, cost: i64| {
        let response = gateway.fetch(&get("/", &format!("x-who: {who}\r\nx-cost: {cost}\r\n")));
        (response.status(), response.get("retry-after").is_some())
    };
    assert_eq!(wait("acme", 50), (429, false), "50 never fit into 5");
    assert_eq!(wait("other", 50), (200, false));
    assert_eq!(wait("other", 51), (429, true));
    assert_eq!(wait("other", 101), (429, false));
}
