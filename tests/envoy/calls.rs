//! Calls by grpcio, an independent implementation of gRPC.

use crate::support::app::run_script;
use crate::support::gateway::Gateway;
use crate::support::limiting::topology::RedisCluster;
use crate::support::limiting::{RedisServer, on_both_stores, store_section};

const CLIENT: &str = "rls_client.py";
const TRUSTED: &str = "trusted_proxies = [\"127.0.0.1\"]\n";
const RULES: &str = r#"
[[listener]]
address = "127.0.0.1:0"
serve = "grpc"

[[rls]]
domain = "edge"
descriptor = { path = "/login", remote_address = "*" }
limits = ["logins"]

[[rls]]
domain = "edge"
descriptor = { tokens = "*" }
limits = ["tokens"]

[[rls]]
domain = "edge"
descriptor = { large = "*" }
limits = ["large"]

[[rls]]
domain = "edge"
descriptor = { two = "*" }
limits = ["first", "second"]

[[rls]]
domain = "edge"
descriptor = { tried = "*" }
limits = ["tried"]

[[rls]]
domain = "edge"
descriptor = { health = "*" }
limits = []

[limit.logins]
rate = "3/min"

[limit.tokens]
rate = "1000/h"
key = "descriptor:tokens"
overrides = [{ key = ["blocked"], rate = 0 }]

[[rls]]
domain = "edge"
descriptor = { logged = "*" }
limits = ["logged"]

[limit.logged]
algorithm = "sliding_log"
rate = "10/h"
key = "descriptor:logged"

[limit.large]
rate = "5000000000/h"
key = "all"

[limit.first]
rate = "100/h"
key = "descriptor:two"

[limit.second]
rate = "100/h"
key = "descriptor:two"

[[rls]]
domain = "edge"
descriptor = { tenant = "*" }
limits = ["shared"]

[limit.shared]
rate = "100/h"
burst = 100
key = "all"
fair = { key = "descriptor:tenant", reserve = 40 }

[limit.tried]
rate = "1/h"
key = "all"
mode = "shadow"
"#;

/// A gateway whose first address is that of gRPC. `more` follows the rules.
fn gateway(server: &str, more: &str) -> Gateway {
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    Gateway::with_config(&format!("[server]\nworkers = 1\n{server}\n{admin}\n{RULES}\n{more}"))
}

#[track_caller]
fn scenario(name: &str, gateway: &Gateway) {
    run_script(CLIENT, &[name, &gateway.addr.to_string()]);
}

#[test]
fn descriptors_are_decided_in_memory() {
    // A candidate changes no response.
    let more = "[limit.logins-wide]\nrate = \"5/min\"\ncandidate_of = \"logins\"\n";
    let gateway = gateway(TRUSTED, more);
    scenario("decisions", &gateway);
    let effects = [("route", "rls:edge"), ("limit", "logins-wide"), ("effect", "would_admit")];
    gateway.assert_metric("candidate_decisions_total", &effects, 2.0);
    let of = |limit, decision| {
        gateway.metric("limit_decisions_total", &[("route", "rls:edge"), ("limit", limit), ("decision", decision)])
    };
    assert_eq!(of("tried", "shadow_deny"), Some(2.0));
    assert_eq!(of("logins", "deny"), Some(3.0));
    for (result, count) in [("unknown_domain", 1.0), ("unmatched", 1.0), ("exempt", 1.0)] {
        gateway.assert_metric("rls_descriptors_total", &[("result", result)], count);
    }
    let refusals = gateway.admin("/-/refusals").text();
    assert!(refusals.contains("rls:edge") && refusals.contains("192.0.2.7"), "{refusals}");
    assert!(!gateway.metrics().contains("192.0.2.7"));
}

#[test]
fn tenants_share_a_budget_and_are_refunded_apart() {
    let gateway = gateway(TRUSTED, "[limit.tried-too]\nrate = \"1/h\"\nkey = \"all\"\ncandidate_of = \"shared\"\n");
    scenario("tenants", &gateway);
}

#[test]
fn descriptors_are_decided_by_redis() {
    let redis = RedisServer::start(&[]);
    let gateway = gateway(TRUSTED, &redis.store());
    gateway.wait_for_store();
    scenario("decisions", &gateway);
}

#[test]
fn descriptors_are_decided_by_a_cluster() {
    let cluster = RedisCluster::start(0);
    let gateway = gateway(TRUSTED, &store_section(&cluster.url()));
    gateway.wait_for_store();
    scenario("decisions", &gateway);
}

/// Candidates that a request has no place for, or whose values it lacks, are left out: they never cause an error.
#[test]
fn candidates_refuse_no_request() {
    let more = r#"
[[rls]]
domain = "edge"
descriptor = { page = "*", remote_address = "*" }
limits = ["pages"]
[limit.pages]
rate = "1/h"
key = "descriptor:page"
[limit.pages-of-clients]
rate = "1/h"
key = "ip"
candidate_of = "pages"
[[rls]]
domain = "edge"
descriptor = { plain = "*", tenant = "*" }
limits = ["plain"]
[limit.plain]
rate = "100/h"
burst = 100
key = "all"
[limit.plain-fair]
rate = "100/h"
burst = 100
key = "all"
fair = { key = "descriptor:tenant", reserve = 40 }
candidate_of = "plain"
[limit.first-tried]
rate = "2/h"
key = "descriptor:two"
candidate_of = "first"
"#;
    let gateway = gateway(TRUSTED, &format!("{more}[admin.keys]\ndefault = \"plain\"\n"));
    scenario("candidates", &gateway);
    for (limit, counts) in [("first-tried", [2.0, 1.0]), ("pages-of-clients", [0.0; 2]), ("plain-fair", [0.0; 2])] {
        for (effect, count) in ["agree", "would_refuse"].into_iter().zip(counts) {
            let labels = [("route", "rls:edge"), ("limit", limit), ("effect", effect)];
            gateway.assert_metric("candidate_decisions_total", &labels, count);
        }
    }
    let top = gateway.admin("/-/top?limit=first-tried&by=would_refuse").json();
    assert_eq!((&top["keys"][0]["key"], &top["keys"][1]["key"]), (&"descriptor:two=x".into(), &().into()), "{top}");
    let left = |two: &str| gateway.admin(&format!("/-/limits/first-tried/state?key={two}")).json()["remaining"].clone();
    assert_eq!((left("x"), left("y")), (0.into(), 2.into()), "active, it would refuse the whole request");
}

/// The networks of one limit count as one limit of a request, and descriptors that share a network are charged
/// together.
#[test]
fn descriptors_of_ipv6_clients_may_share_networks() {
    let more = r#"
[[rls]]
domain = "edge"
descriptor = { nets = "*", remote_address = "*" }
limits = ["nets", "other"]
[limit.other]
rate = "100/h"
key = "descriptor:nets"
[limit.nets]
algorithm = "fixed_window"
rate = "2/h"
key = "ip6tiers/64/56x2/48x3"
[[rls]]
domain = "edge"
descriptor = { seen = "*", remote_address = "*" }
limits = ["seen"]
[limit.seen]
algorithm = "fixed_window"
rate = "2/h"
key = "ip6tiers/64/48x2"
mode = "shadow"
"#;
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let gateway = gateway(TRUSTED, &format!("{more}{store}"));
        if redis.is_some() {
            gateway.wait_for_store();
        }
        scenario("tiers", &gateway);
        let left = |limit: &str, ip: &str| {
            gateway.admin(&format!("/-/limits/{limit}/state?key={ip}")).json()["remaining"].clone()
        };
        let of_clients =
            ["2001:db8:1:1::1", "2001:db8:1:3::1", "2001:db8:1:4::1", "2001:db8:2:1::1"].map(|ip| left("seen", ip));
        assert_eq!(of_clients, [0, 2, 2, 1], "a client that is over its /48 is not charged");
        assert_eq!([left("seen.48", "2001:db8:1::1"), left("seen.48", "2001:db8:2::1")], [0, 3]);
    });
}

/// Clients choose the values of descriptors, so they choose whether two descriptors share budgets.
#[test]
fn descriptors_may_share_a_chain() {
    let more = r#"
[[rls]]
domain = "edge"
descriptor = { user = "*" }
limits = ["free", "paid"]
[[rls]]
domain = "edge"
descriptor = { account = "*" }
limits = ["free", "paid"]
[[rls]]
domain = "edge"
descriptor = { other = "*" }
limits = ["free"]
[limit.free]
rate = "4/h"
key = "descriptor:user | descriptor:account | descriptor:other"
algorithm = "fixed_window"
overrides = [{ key = ["blocked"], rate = 0 }]
[limit.paid]
rate = "4/h"
key = "descriptor:user | descriptor:account | descriptor:other"
algorithm = "fixed_window"
after = "free"
"#;
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let gateway = gateway(TRUSTED, &format!("{more}{store}"));
        if redis.is_some() {
            gateway.wait_for_store();
        }
        scenario("chains", &gateway);
        gateway.assert_metric("rls_descriptors_total", &[("result", "undecidable")], 4.0);
    });
}

#[test]
fn each_bound_has_its_status() {
    let gateway = gateway(TRUSTED, "");
    scenario("bounds", &gateway);
    let calls = |code| gateway.metric("rpc_calls_total", &[("method", "ShouldRateLimit"), ("code", code)]);
    assert_eq!((calls("RESOURCE_EXHAUSTED"), calls("INTERNAL"), calls("UNKNOWN")), (None, Some(2.0), None));
}

#[test]
fn only_trusted_peers_get_decisions() {
    let gateway = gateway("", "");
    scenario("stranger", &gateway);
    let denied = [("method", "ShouldRateLimit"), ("code", "PERMISSION_DENIED")];
    gateway.assert_metric("rpc_calls_total", &denied, 1.0);
    assert_eq!(gateway.metric("rls_descriptors_total", &[("result", "limited")]), Some(0.0));
}
