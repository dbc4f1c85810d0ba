//! `POST /-/limits/NAME/what-if`: bounds of what a limit of another size would have refused, compared with a gateway
//! that has this size.

use serde_json::{Value, json};

use super::api::fetch;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;

fn config(burst: u32) -> String {
    format!(
        r#"
[limit.per-key]
rate = "1/h"
burst = {burst}
key = "header:x-key"

[limit.daily]
algorithm = "fixed_window"
rate = "20/day"
key = "all"
mode = "shadow"

[limit.slots]
algorithm = "concurrency"
in_flight = 5
key = "all"

[[route]]
path = "/"
upstream = "echo:"
limits = ["per-key", "daily", "slots"]
"#
    )
}

/// Sends the same requests to every gateway: key `k` sends `3 * k` of them. Returns the number of refusals.
fn play(gateway: &Gateway) -> u64 {
    let mut client = Client::connect(gateway.addr);
    let requests = (0..60).flat_map(|place| (0..20).filter(move |key| place < 3 * key));
    let statuses = requests.map(|key| client.fetch(&get("/", &format!("x-key: {key}\r\n")), "").status());
    statuses.filter(|status| *status == 429).count() as u64
}

fn estimate(gateway: &Gateway, limit: &str, change: &Value) -> Value {
    let response = fetch(gateway, "POST", &format!("/-/limits/{limit}/what-if"), change.to_string());
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()
}

fn bounds(estimate: &Value) -> (u64, u64) {
    let [least, most] = ["refused_min", "refused_max"].map(|name| estimate[name].as_u64());
    (least.unwrap_or_else(|| panic!("{estimate}")), most.unwrap())
}

#[test]
fn the_bounds_contain_what_another_gateway_refuses() {
    let gateway = Gateway::start(&config(20));
    let refused = play(&gateway);
    for burst in [5, 19, 20, 21, 30, 100] {
        let exact = play(&Gateway::start(&config(burst)));
        let found = estimate(&gateway, "per-key", &json!({ "burst": burst }));
        let (least, most) = bounds(&found);
        assert!(least <= exact && exact <= most, "burst {burst}: {least} <= {exact} <= {most}");
        assert_eq!((&found["refused"], &found["decisions"]), (&json!(refused), &json!(570)));
        if burst >= 20 {
            assert_eq!((least, most), (exact, exact), "burst {burst}: keys are known, and no bucket refills");
        }
    }
    // A limit in shadow mode refuses 20 of the requests that the other limits admitted.
    let admitted = 570 - refused;
    let shadow = estimate(&gateway, "daily", &json!({ "rate": "30/day" }));
    let (least, most) = bounds(&shadow);
    assert!(least <= most && most <= 570 - 30, "{shadow} {admitted}");
    assert_eq!(bounds(&estimate(&gateway, "per-key", &json!({ "rate": "1/h" }))), (refused, refused));
    assert_eq!(bounds(&estimate(&gateway, "per-key", &json!({ "rate": "100/s" }))).1, refused);
}

#[test]
fn what_if_reports_only_proven_bounds() {
    let gateway = Gateway::start(&config(20));
    play(&gateway);
    let unknown = |gateway: &Gateway, limit: &str, change: Value, why: &str| {
        let found = estimate(gateway, limit, &change);
        assert!(found["unknown_because"].as_str().is_some_and(|known| known.contains(why)), "{found}");
        assert_eq!((&found["refused_min"], &found["refused_max"]), (&Value::Null, &Value::Null));
    };
    unknown(&gateway, "per-key", json!({ "burst": 30, "rate": "1/day" }), "both grow or both shrink");
    unknown(&gateway, "daily", json!({ "rate": "1/h" }), "another length");
    for (limit, body, status, detail) in [
        ("per-kex", "{}", 404, "did you mean `per-key`?"),
        ("per-key", "{}", 422, "`burst`, `rate` or both"),
        ("per-key", "[]", 422, "it must be an object"),
        ("per-key", "{", 400, "not JSON"),
        ("per-key", r#"{"burst":0}"#, 422, "#/burst: it must be an integer from 1"),
        ("per-key", r#"{"burst":1e300}"#, 422, "#/burst"),
        ("per-key", r#"{"burst":9007199254740992}"#, 422, "the burst is too large"),
        ("per-key", r#"{"rate":"0/s"}"#, 422, "#/rate"),
        ("per-key", r#"{"rate":5}"#, 422, "#/rate: it must be a string"),
        ("per-key", r#"{"burst":5,"burst":6}"#, 422, "the member `burst` occurs twice"),
        ("per-key", r#"{"bursts":5}"#, 422, "did you mean `burst`?"),
        ("daily", r#"{"burst":5}"#, 422, "has only a `rate`"),
        ("slots", r#"{"burst":5}"#, 422, "limits with concurrency cannot be estimated"),
    ] {
        let response = fetch(&gateway, "POST", &format!("/-/limits/{limit}/what-if"), body);
        assert!(response.text().contains(detail), "{limit} {body}: {}", response.text());
        assert_eq!(response.status(), status, "{limit} {body}");
    }
    assert_eq!(fetch(&gateway, "DELETE", "/-/limits/per-key/state?key=1", "").status(), 200);
    unknown(&gateway, "per-key", json!({ "burst": 30 }), "the admin API changed the usage");
    let redis = RedisServer::start(&[]);
    let shared = Gateway::start(&(redis.store() + &config(20)));
    unknown(&shared, "per-key", json!({ "burst": 30 }), "other gateways");
}
