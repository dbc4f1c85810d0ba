//! Tenants that share a budget of the running gateway: who is refused, what operators see, and what attackers try.

use serde_json::{Value, json};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::scenario::scenario;

/// Nothing refills within the test. Alone, a tenant gets 20 of 40.
const FAIR: &str = "\
    rate = \"1/h\"\nburst = 40\nkey = \"all\"\n\
    fair = { key = \"header:x-tenant\", reserve = 20, active = \"10s\", weights = { heavy = 3 } }\n";

fn gateway(redis: Option<&RedisServer>, limit: &str) -> Gateway {
    scenario().store(redis).limit_of("shared", limit).start()
}

/// Returns how many of `count` requests of a tenant are admitted.
fn admitted(gateway: &Gateway, tenant: &str, count: usize) -> usize {
    let mut client = gateway.client();
    let head = get("/", &format!("x-tenant: {tenant}\r\n"));
    (0..count).filter(|_| client.fetch(&head, "").status() == 200).count()
}

#[test]
fn a_greedy_tenant_leaves_the_reserve_to_others() {
    on_both_stores(|redis| {
        let gateway = gateway(redis, FAIR);
        assert_eq!(admitted(&gateway, "greedy", 60), 20);
        // Refusals of one tenant do not affect another, even if the worker has cached them.
        assert!(admitted(&gateway, "greedy", 5) == 0 && admitted(&gateway, "quiet", 3) == 3);
        let state = gateway.admin("/-/limits/shared/state?tenant=quiet").json();
        assert_eq!(state["fair"]["active"], 2, "{state}");
        assert_eq!(state["fair"]["reserve"], 20, "{state}");
        assert_eq!(state["fair"]["must_leave"], 6, "{state}");
        assert!(state["admitted"].as_bool().unwrap() && state["key"].as_str().unwrap().contains("x-tenant"), "{state}");
        gateway.assert_metric("fair_active_tenants", &[("limit", "shared")], 2.0);
        gateway.assert_metric("fair_folded_total", &[("limit", "shared")], 0.0);
        gateway.assert_metric("fair_refused_within_share_total", &[("limit", "shared")], 0.0);
        // An explanation shows the shares of the other tenants, and charges nothing.
        let body = br#"{"method": "GET", "url": "http://h/", "headers": [["x-tenant", "heavy"]]}"#;
        let explained = gateway.admin_request("POST", "/-/explain", "content-type: application/json\r\n", body).json();
        let fair = &explained["limits"][0]["fair"];
        assert_eq!((&fair["weight"], &fair["total_weight"]), (&3.into(), &5.into()), "{explained}");
        // A reset forgets one tenant, but keeps the budget.
        let reset = gateway.admin_request("DELETE", "/-/limits/shared/state?tenant=greedy", "", "").json();
        assert_eq!(reset["reset"], true, "{reset}");
        let state = gateway.admin("/-/limits/shared/state?tenant=greedy").json();
        assert!(state["remaining"].as_i64().unwrap() < 20 && state["fair"]["must_leave"] == 0, "{state}");
        // A reset of the whole limit.
        gateway.admin_request("DELETE", "/-/limits/shared/state", "", "");
        assert_eq!(admitted(&gateway, "greedy", 60), 20);
        let top = gateway.admin("/-/top?limit=shared").json().to_string();
        assert!(top.contains("x-tenant"), "{top}");
    });
}

/// Logs and lists show tenants as hashes. Their numbers are found by the hash, as the store does not contain the names.
#[test]
fn a_tenant_is_found_by_its_hash() {
    on_both_stores(|redis| {
        let gateway = gateway(redis, &FAIR.replace("heavy = 3", "heavy = 3, \"a b\" = 5"));
        let state = |query: &str| gateway.admin(&format!("/-/limits/shared/state?{query}"));
        assert_eq!((admitted(&gateway, "greedy", 30), admitted(&gateway, "quiet", 3)), (20, 3));
        let shown = gateway.admin("/-/top?limit=shared").json()["keys"][0]["key"].as_str().unwrap().to_owned();
        let greedy = shown.strip_prefix("all,header:x-tenant#").expect("a hash").to_owned();
        let (by_hash, by_name) = (state(&format!("tenant_hash={greedy}")), state("tenant=greedy").json());
        assert_eq!(by_hash.json()["fair"], by_name["fair"], "{by_name}");
        assert!(by_hash.json()["fair"]["must_leave"].as_i64().unwrap() > 0, "{by_name}");
        assert!(by_hash.json()["state_key"].is_null() && !by_hash.text().contains("greedy"), "{}", by_hash.text());
        assert_eq!(by_hash.json()["key"], shown);
        // Those that the config lists are known from the start, also those whose value is no plain text.
        for (tenant, weight) in [("heavy", 3), ("a%20b", 5)] {
            let shown = state(&format!("tenant={tenant}")).json()["key"].as_str().unwrap().to_owned();
            let (_, digits) = shown.split_once('#').unwrap();
            let found = state(&format!("tenant_hash={digits}")).json();
            assert_eq!((&found["fair"]["weight"], &found["key"]), (&weight.into(), &shown.as_str().into()), "{found}");
        }
        let unknown = state("tenant_hash=0123456789abcdef");
        assert!(unknown.status() == 404 && unknown.text().contains("weights"), "{}", unknown.text());
        let pasted = state(&format!("tenant=header:x-tenant%23{greedy}"));
        assert!(pasted.status() == 400 && pasted.text().contains("tenant_hash="), "{}", pasted.text());
        // A receipt would contain the number of the tenant, which tells anybody whether a guess is right.
        let shown = state("tenant=heavy").json()["key"].as_str().unwrap().to_owned();
        let heavy = json!({ "hash": shown.split_once('#').unwrap().1 });
        let has_receipt = |tenant: Value| {
            let decision = json!({ "limits": ["shared"], "key": { "header:x-tenant": tenant } });
            let body = json!({ "operation": "take", "decisions": [decision] }).to_string();
            let taken = gateway.admin_request("POST", "/-/decide", "content-type: application/json\r\n", body).json();
            let entry = taken["decisions"][0]["limits"][0].clone();
            assert_eq!(entry["admitted"], true, "{taken}");
            entry["receipt"].is_string()
        };
        assert_eq!((has_receipt(json!("heavy")), has_receipt(heavy)), (true, false));
        let path = format!("/-/limits/shared/state?tenant_hash={greedy}");
        assert_eq!(gateway.admin_request("DELETE", &path, "", "").json()["reset"], true);
        assert_eq!(state("tenant=greedy").json()["fair"]["must_leave"], 0);
    });
}

/// Two gateways with different settings on one Redis: the cap is one, and each knows the tenants of the other.
#[test]
fn gateways_share_tenants() {
    let redis = RedisServer::start(&[]);
    let one = gateway(Some(&redis), FAIR);
    let other = gateway(
        Some(&redis),
        &FAIR.replace("reserve = 20, active = \"10s\"", "reserve = 10, active = \"1m\", max_active = 1"),
    );
    assert_eq!(admitted(&one, "greedy", 30), 20);
    // With a smaller reserve, the tenant gets ten more units.
    assert_eq!(admitted(&other, "greedy", 30), 10);
    assert_eq!(admitted(&one, "greedy", 5), 0);
    // Beyond `max_active`, tenants share a backlog in that gateway, but the total is the same.
    let rest: usize = (0..40).map(|i| admitted(&other, &format!("new-{i}"), 1)).sum();
    assert!(rest <= 10, "{rest} of 10");
    assert!(other.metric("fair_folded_total", &[("limit", "shared")]).unwrap() >= 39.0);
}

/// Names of any size and content are hashed, so they cost the store nothing more and cannot be confused.
#[test]
fn odd_names_are_tenants_like_others() {
    on_both_stores(|redis| {
        let gateway =
            gateway(redis, &FAIR.replace("burst = 40", "burst = 400").replace("reserve = 20", "reserve = 200"));
        let huge = "x".repeat(8000);
        for name in [huge.as_str(), "a,b", "|", "w16", "%23", "*", "\u{e4}", "a b", "{}:"] {
            assert_eq!(admitted(&gateway, name, 2), 2, "{name}");
        }
        let state = gateway.admin("/-/limits/shared/state?tenant=none").json();
        assert_eq!(state["fair"]["active"], 10, "{state}");
        if let Some(redis) = redis {
            let key = "sg:{all}:shared:fair";
            let members: Vec<String> = redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).query(&mut redis.client()).unwrap();
            assert!(members.len() == 10 && members.iter().all(|member| member.len() < 80), "{members:?}");
            let ttl: i64 = redis::cmd("PTTL").arg(key).query(&mut redis.client()).unwrap();
            assert!(ttl > 0, "{ttl}");
        }
        // A repeated name is refused like any other repeated part of a key.
        assert_eq!(gateway.fetch(&get("/", "x-tenant: a\r\nx-tenant: b\r\n")).status(), 400);
    });
}

/// A full Redis still decides on budgets that exist, and lost state starts empty.
#[test]
fn a_full_or_emptied_redis_keeps_deciding() {
    let redis = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let gateway = gateway(Some(&redis), FAIR);
    assert_eq!(admitted(&gateway, "a", 5), 5);
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut redis.client()).unwrap();
    assert_eq!(admitted(&gateway, "greedy", 40), 15);
    assert_eq!(admitted(&gateway, "b", 1), 1);
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).query(&mut redis.client()).unwrap();
    let () = redis::cmd("FLUSHALL").query(&mut redis.client()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(admitted(&gateway, "greedy", 40), 20);
}
