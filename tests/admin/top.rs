//! `/-/top` and the refusal log line: which keys are refused most, found among many others, with bounds of the counts.

use serde_json::{Value, json};

use super::api::fetch;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

const LIMITS: &str = r#"
[limit.per-key]
rate = "1/h"
burst = 1
key = ["header:x-key"]
missing = "skip"

[limit.watched]
rate = "1/h"
burst = 1
key = "ip"
mode = "shadow"

[[route]]
path = "/"
upstream = "echo:"
limits = ["per-key", "watched"]
"#;

fn top(gateway: &Gateway, query: &str) -> Value {
    let response = fetch(gateway, "GET", &format!("/-/top{query}"), "");
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()
}

/// Sends one decision on `per-key` for each key, with a cost that never fits.
fn refuse(gateway: &Gateway, keys: &[String]) {
    for keys in keys.chunks(1000) {
        let one = |key: &String| json!({ "limits": ["per-key"], "key": { "header:x-key": key }, "cost": 2 });
        let decisions: Vec<Value> = keys.iter().map(one).collect();
        let body = json!({ "operation": "take", "decisions": decisions });
        assert_eq!(fetch(gateway, "POST", "/-/decide", body.to_string()).status(), 200);
    }
}

#[test]
fn heavy_keys_are_found_among_many_random_ones() {
    const HEAVY: u64 = 500;
    let gateway = Gateway::with_config(
        &crate::support::gateway::config("", LIMITS).replace("[admin]\n", "[admin]\nkeys = { header = \"plain\" }\n"),
    );
    // In several rounds, so that every heavy key competes with random ones.
    for turn in 0..10 {
        let heavy = (0..10).flat_map(|key| (0..HEAVY / 10).map(move |_| format!("heavy-{key}")));
        let random = (0..3500).map(|place| format!("random-{turn}-{place}"));
        refuse(&gateway, &heavy.chain(random).collect::<Vec<_>>());
    }
    let found = top(&gateway, "?limit=per-key&window=10m&n=10");
    let sums = &found["limits"][0];
    assert_eq!(sums["total"], 40_000);
    let distinct = sums["distinct"].as_u64().unwrap();
    // The tolerance is three standard errors.
    assert!(distinct.abs_diff(35_010) < 35_010 * 7 / 100, "{sums}");
    let error = sums["error_max"].as_u64().unwrap();
    assert!(error <= 40_000 / 256, "{sums}");
    for key in found["keys"].as_array().unwrap() {
        assert!(key["key"].as_str().unwrap().starts_with("header:x-key=heavy-"), "{key}");
        let (least, most) = (key["count_min"].as_u64().unwrap(), key["count_max"].as_u64().unwrap());
        assert!(least <= HEAVY && HEAVY <= most && most <= least + error, "{key}");
    }
    assert_eq!(found["keys"].as_array().unwrap().len(), 10);
}

#[test]
fn refusals_admissions_and_shadows_are_counted_apart() {
    let redis = RedisServer::start(&[]);
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!("{store}{LIMITS}"));
        let mut client = Client::connect(gateway.addr);
        let statuses: Vec<u16> =
            (0..4).map(|_| client.fetch(&get("/", "x-key: secret-value\r\n"), "").status()).collect();
        assert_eq!(statuses, [200, 429, 429, 429]);
        for _ in 0..200 {
            client.fetch(&get("/", ""), "");
        }
        let refused = top(&gateway, "?limit=per-key");
        assert_eq!(refused["limits"][0]["total"], 3);
        let key = &refused["keys"][0];
        assert_eq!((&key["count_min"], &key["count_max"], &key["remaining"]), (&json!(3), &json!(3), &json!(0)));
        let wait_ms = key["retry_after_ms"].as_i64().unwrap();
        assert!((1..=3_600_000).contains(&wait_ms), "{key}");
        let shown = key["key"].as_str().unwrap();
        assert!(shown.starts_with("header:x-key#") && !refused.to_string().contains("secret-value"), "{refused}");

        // The hash of the list resets the key.
        let hash = shown.split_once('#').unwrap().1;
        assert_eq!(fetch(&gateway, "DELETE", &format!("/-/limits/per-key/state?hash={hash}"), "").status(), 200);
        assert_eq!(client.fetch(&get("/", "x-key: secret-value\r\n"), "").status(), 200);

        let shadow = top(&gateway, "?by=would_refuse&window=10s");
        assert_eq!(shadow["keys"][0]["key"], "ip=127.0.0.1", "{shadow}");
        assert_eq!(shadow["keys"][0]["limit"], "watched");
        // The first request and the requests that the other limit refused have charged it.
        assert_eq!(shadow["keys"][0]["count_min"], 204, "{shadow}");
        // Admissions are sampled: there are 202.
        let admitted = top(&gateway, "?by=admitted&limit=per-key");
        assert!(admitted["limits"][0]["total"].as_u64().unwrap() <= 16 * 3, "{admitted}");

        wait_until("the refusals are logged", || gateway.log().contains("limit per-key: refused 3 of about"));
        assert!(!gateway.log().contains("secret-value"));
    }
}

#[test]
fn a_wrong_query_is_explained() {
    let gateway = Gateway::start(LIMITS);
    for (query, detail) in [
        ("?limit=per-kex", "did you mean `per-key`?"),
        ("?by=denied", "`by` is one of refused, would_refuse, would_admit, exceeded, admitted"),
        ("?window=1h", "`window` is one of 10s, 1m, 10m"),
        ("?n=0", "`n` is an integer from 1 to 100"),
        ("?n=101", "`n` is an integer from 1 to 100"),
        ("?limits=a", "unknown parameter `limits`"),
        ("?limit=%F", "not percent-encoded"),
        ("?n=1&by=refused&n=2", "the parameter `n` occurs twice"),
    ] {
        let response = fetch(&gateway, "GET", &format!("/-/top{query}"), "");
        assert!(response.text().contains(detail), "{query}: {}", response.text());
        assert_eq!(response.status(), if query.contains("kex") { 404 } else { 400 }, "{query}");
    }
    assert_eq!(fetch(&gateway, "POST", "/-/top", "").status(), 405);
    assert_eq!(top(&gateway, ""), json!({ "by": "refused", "window": "1m", "limits": [], "keys": [] }));
}
