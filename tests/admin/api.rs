//! Decisions, state, resets and refunds over the admin listener, on both stores, and every example in
//! docs/reference/admin-api.md.

use serde_json::{Value, json};

use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, content_type};
use crate::support::http::Message;
use crate::support::limiting::RedisServer;
use crate::support::manual::Page;
use crate::support::wait_until;

pub const LIMITS: &str = r#"
[limit.per-ip]
rate = "1/h"
burst = 5
key = "ip"

[limit.site]
algorithm = "fixed_window"
rate = "100/day"
key = ["ip/24/56", "header:x-api-key"]
missing = "skip"

[limit.named]
rate = "1/h"
burst = 2
key = "header:x-user"
missing = "refuse"

[limit.watched]
rate = "1/h"
burst = 2
key = "all"
mode = "shadow"

[[route]]
name = "api"
path = "/"
upstream = "echo:"
limits = ["per-ip", "site"]
"#;

pub fn fetch(gateway: &Gateway, method: &str, path: &str, body: impl AsRef<[u8]>) -> Message {
    fetch_with(gateway, method, path, "", body)
}

pub fn fetch_with(gateway: &Gateway, method: &str, path: &str, fields: &str, body: impl AsRef<[u8]>) -> Message {
    let length = body.as_ref().len();
    let kind = content_type(length);
    let head = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{kind}content-length: {length}\r\n{fields}\r\n");
    Client::connect(gateway.admin).fetch(&head, body)
}

#[track_caller]
fn ok(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = fetch(gateway, method, path, body);
    assert_eq!(
        (response.status(), response.get("content-type")),
        (200, Some("application/json")),
        "{}",
        response.text()
    );
    response.json()
}

#[track_caller]
fn decide(gateway: &Gateway, operation: &str, decisions: &[Value]) -> Vec<Value> {
    let body = json!({ "operation": operation, "decisions": decisions });
    let mut response = ok(gateway, "POST", "/-/decide", &body);
    serde_json::from_value(response["decisions"].take()).unwrap()
}

/// A gateway whose admin listener has reached its store.
pub fn start(store: &str) -> Gateway {
    let gateway = Gateway::start(&format!("{store}\n{LIMITS}"));
    wait_until("the store is reached", || fetch(&gateway, "GET", "/-/limits/watched/state", "").status() == 200);
    gateway
}

fn both(test: impl Fn(&Gateway)) {
    test(&start(""));
    let redis = RedisServer::start(&[]);
    test(&start(&redis.store()));
}

#[test]
fn decisions_charge_all_or_none_and_peeks_nothing() {
    both(|gateway| {
        let one = |ip: &str, cost: i64| json!({ "limits": ["per-ip", "site", "watched"], "key": { "ip": ip, "header:X-Api-Key": "k" }, "cost": cost });
        let decisions = [one("10.0.0.1", 3), one("10.0.0.2", 1), one("10.0.0.1", 3), one("::ffff:10.0.0.1", 2)];
        let responses = decide(gateway, "take", &decisions);
        let admitted: Vec<&Value> = responses.iter().map(|response| &response["admitted"]).collect();
        assert_eq!(admitted, [true, true, false, true], "{responses:?}");
        let left = |response: &Value| {
            response["limits"].as_array().unwrap().iter().map(|limit| limit["remaining"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(left(&responses[0])[..2], [json!(2), json!(97)]);
        assert_eq!(left(&responses[1])[..2], [json!(4), json!(96)], "the /24 shares a budget");
        assert_eq!(left(&responses[2])[..2], [json!(2), json!(96)], "nothing was charged");
        assert_eq!(left(&responses[3])[..2], [json!(0), json!(94)], "the refused one charged nothing");
        let refused = &responses[2]["limits"][0];
        assert_eq!((&refused["admitted"], &refused["reason"]), (&json!(false), &json!("exhausted")));
        let wait_ms = refused["retry_after_ms"].as_i64().unwrap();
        assert!((3_590_000..=3_600_000).contains(&wait_ms), "{wait_ms}");
        assert!(responses[2]["limits"].as_array().unwrap().iter().all(|limit| limit.get("receipt").is_none()));
        assert!(responses[0]["limits"][2]["admitted"] == false && responses[0]["limits"][2]["mode"] == "shadow");
        assert_eq!(responses[0]["limits"][2]["reason"], "never_fits");

        let peeks = decide(gateway, "peek", &[one("10.0.0.2", 4), one("10.0.0.2", 4), one("10.0.0.2", 5)]);
        let admitted: Vec<&Value> = peeks.iter().map(|response| &response["admitted"]).collect();
        assert_eq!(admitted, [true, true, false]);
        assert!(peeks[0]["limits"][0].get("receipt").is_none());
        let state = ok(gateway, "GET", "/-/limits/per-ip/state?key=10.0.0.2&cost=0", &Value::Null);
        assert_eq!(state["remaining"], 4);
    });
}

#[test]
fn missing_key_parts_follow_the_option() {
    let gateway = start("");
    let responses = decide(
        &gateway,
        "take",
        &[
            json!({ "limits": ["site", "per-ip"], "key": { "ip": "10.0.0.1" } }),
            json!({ "limits": ["named", "watched"] }),
            json!({ "limits": ["named"], "key": { "header:x-user": "" } }),
        ],
    );
    assert_eq!(responses[0]["limits"][0], json!({ "limit": "site", "asked": false, "reason": "key_absent" }));
    assert_eq!((&responses[0]["admitted"], &responses[0]["limits"][1]["remaining"]), (&json!(true), &json!(4)));
    assert_eq!(
        responses[1],
        json!({ "admitted": false, "limits": [
            { "limit": "named", "asked": true, "admitted": false, "reason": "missing_key", "source": "none" },
            { "limit": "watched", "asked": false, "reason": "refused_before" },
        ] })
    );
    assert_eq!(responses[2]["admitted"], true, "an empty value is a value");
}

#[test]
fn a_thousand_keys_are_answered_in_order() {
    both(|gateway| {
        let body = |operation: &str, count: usize| {
            let decisions: Vec<Value> = (0..count)
                .map(|i| json!({ "limits": ["per-ip"], "key": { "ip": format!("10.1.{}.{}", i / 250, i % 250) }, "cost": i % 7 }))
                .collect();
            json!({ "operation": operation, "decisions": decisions })
        };
        let response = ok(gateway, "POST", "/-/decide", &body("take", 1000));
        for (i, decision) in response["decisions"].as_array().unwrap().iter().enumerate() {
            assert_eq!(decision["admitted"], i % 7 <= 5, "{i}");
            let left = if i % 7 <= 5 { 5 - i % 7 } else { 5 };
            assert_eq!(decision["limits"][0]["remaining"], left, "{i}");
        }
        let refused = fetch(gateway, "POST", "/-/decide", body("take", 1001).to_string());
        assert_eq!(refused.status(), 422);
        assert_eq!(refused.json()["errors"][0]["detail"], "1001 items; there may be 1 to 1000");
    });
}

#[test]
fn keys_are_those_of_requests() {
    both(|gateway| {
        let request = || gateway.fetch(&get("/", "x-api-key: a b/%\r\n"));
        for _ in 0..5 {
            assert_eq!(request().status(), 200);
        }
        assert_eq!(request().status(), 429);
        let per_ip = "/-/limits/per-ip/state?key=127.0.0.1";
        let state = ok(gateway, "GET", per_ip, &Value::Null);
        assert_eq!(state["state_key"], "sg:{ip=127.0.0.1}:per-ip:token_bucket");
        assert_eq!((&state["admitted"], &state["remaining"]), (&json!(false), &json!(0)));
        let site = "/-/limits/site/state?key=127.0.0.1&key=a%20b/%25";
        assert_eq!(ok(gateway, "GET", &format!("{site}&cost=0"), &Value::Null)["remaining"], 95);

        let reset = ok(gateway, "DELETE", per_ip, &Value::Null);
        assert_eq!((&reset["reset"], &reset["state_key"]), (&json!(true), &state["state_key"]));
        assert_eq!(request().status(), 200);
        let given = ok(gateway, "POST", "/-/limits/per-ip/refund", &json!({ "key": { "ip": "127.0.0.1" }, "cost": 1 }));
        assert_eq!(given, json!({ "limit": "per-ip", "key": "ip=127.0.0.1", "applied": true, "units": 1 }));
        assert_eq!(ok(gateway, "GET", &format!("{per_ip}&cost=0"), &Value::Null)["remaining"], 5);
        let window = json!({ "key": { "ip": "127.0.0.1", "header:x-api-key": "a b/%" }, "cost": 4 });
        assert_eq!(ok(gateway, "POST", "/-/limits/site/refund", &window)["applied"], true);
        assert_eq!(ok(gateway, "GET", &format!("{site}&cost=0"), &Value::Null)["remaining"], 98);
    });
}

fn refund(gateway: &Gateway, limit: &str, receipt: &Value) -> Value {
    let response = ok(gateway, "POST", &format!("/-/limits/{limit}/refund"), &json!({ "receipt": receipt }));
    if response["applied"] == true { json!("applied") } else { response["reason"].clone() }
}

/// The tenant `acme` has an override of the limit.
const TENANTS: &str = r#"
[limit.tenant]
rate = "10/h"
key = "header:x-tenant"
overrides = [{ key = ["acme"], rate = "1000/h" }, { key = ["evil"], rate = 0 }, { key = ["own"], rate = "unlimited" }]

[limit.then]
rate = "1/h"
key = "header:x-tenant"
after = "tenant"
"#;

#[test]
fn keys_with_numbers_of_their_own_are_managed_by_these() {
    both(|gateway| {
        let path = gateway.dir.path().join("sluicegate.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + TENANTS).unwrap();
        ok(gateway, "POST", "/-/reload", &Value::Null);
        let take = |cost: i64| json!({ "limits": ["tenant"], "key": { "header:x-tenant": "acme" }, "cost": cost });
        let state = |tenant: &str| {
            let mut state = ok(gateway, "GET", &format!("/-/limits/tenant/state?key={tenant}"), &Value::Null);
            let state = state.as_object_mut().unwrap();
            ["limit", "key", "state_key", "reset_ms", "override"].iter().for_each(|name| drop(state.remove(*name)));
            json!(state)
        };
        let taken = decide(gateway, "take", &[take(500), take(100)]);
        let left = |count: i64| json!({ "admitted": true, "remaining": count, "policy": { "quota": 1000, "window_ms": 3_600_000 } });
        assert_eq!(state("acme"), left(400));
        assert_eq!(refund(gateway, "tenant", &taken[1]["limits"][0]["receipt"]), "applied");
        assert_eq!(state("acme"), left(500));
        let units = json!({ "key": { "header:x-tenant": "acme" }, "cost": 50 });
        assert_eq!(ok(gateway, "POST", "/-/limits/tenant/refund", &units)["applied"], true);
        assert_eq!(state("acme"), left(550));
        assert_eq!(state("evil"), json!({ "admitted": false, "reason": "blocked" }));
        assert_eq!(state("own"), json!({ "admitted": true }));
    });
}

#[test]
fn a_limit_after_another_is_decided_with_it_in_any_order() {
    let gateway = Gateway::start(&format!("{LIMITS}{TENANTS}"));
    for (tenant, names) in [("a", ["tenant", "then"]), ("b", ["then", "tenant"])] {
        let order = |cost: i64| json!({ "limits": names, "key": { "header:x-tenant": tenant }, "cost": cost });
        let responses = decide(&gateway, "take", &[order(10), order(1), order(1)]);
        let admitted: Vec<&Value> = responses.iter().map(|response| &response["admitted"]).collect();
        assert_eq!(admitted, [true, true, false], "{tenant}");
        assert_eq!(responses[0]["limits"][1], json!({ "limit": "then", "asked": false, "reason": "base_has_room" }));
        let [base, then] = [0, 1].map(|i| &responses[1]["limits"][i]);
        assert_eq!((&base["admitted"], base.get("receipt")), (&json!(false), None));
        assert!(then["admitted"] == true && then["receipt"].is_string());
    }
    let alone =
        json!({ "operation": "take", "decisions": [{ "limits": ["then"], "key": { "header:x-tenant": "c" } }] });
    let refused = fetch(&gateway, "POST", "/-/decide", alone.to_string());
    assert_eq!(refused.status(), 422);
    assert_eq!(refused.json()["detail"], "#/decisions/0/limits/0: it comes after `tenant`: name both");
}

#[test]
fn a_receipt_is_worth_one_refund() {
    both(|gateway| {
        let order =
            json!({ "limits": ["per-ip", "site"], "key": { "ip": "10.0.0.9", "header:x-api-key": "k" }, "cost": 3 });
        let first = decide(gateway, "take", std::slice::from_ref(&order));
        let second =
            decide(gateway, "take", &[json!({ "limits": ["per-ip"], "key": { "ip": "10.0.0.9" }, "cost": 1 })]);
        let [bucket, window] = [0, 1].map(|i| first[0]["limits"][i]["receipt"].clone());
        let left = |limit: &str| {
            let path = format!("/-/limits/{limit}/state?cost=0&key=10.0.0.9");
            let more = if limit == "site" { "&key=k" } else { "" };
            ok(gateway, "GET", &(path + more), &Value::Null)["remaining"].clone()
        };
        assert_eq!([left("per-ip"), left("site")], [json!(1), json!(97)]);
        assert_eq!([0, 1, 2].map(|_| refund(gateway, "per-ip", &bucket)), ["applied", "used", "used"]);
        assert_eq!([left("per-ip"), left("site")], [json!(4), json!(97)]);
        assert_eq!([0, 1].map(|_| refund(gateway, "site", &window)), ["applied", "used"]);
        assert_eq!(left("site"), 100);
        ok(gateway, "DELETE", "/-/limits/per-ip/state?key=10.0.0.9", &Value::Null);
        assert_eq!(refund(gateway, "per-ip", &second[0]["limits"][0]["receipt"]), "nothing_charged");

        let wrong = fetch(gateway, "POST", "/-/limits/per-ip/refund", json!({ "receipt": window }).to_string());
        assert_eq!(wrong.status(), 422);
        assert_eq!(wrong.json()["detail"], "#/receipt: it is a receipt of the limit `site`");
        let truncated = json!({ "receipt": window.as_str().unwrap()[2..] }).to_string();
        let truncated = fetch(gateway, "POST", "/-/limits/site/refund", truncated);
        assert_eq!(truncated.json()["detail"], "#/receipt: it is not a receipt that a decision gave");
    });
}

#[test]
fn a_refund_continues_without_its_client() {
    let redis = RedisServer::start(&[]);
    let gateway = start(&redis.store());
    let order = json!({ "limits": ["per-ip"], "key": { "ip": "10.0.0.9" }, "cost": 3 });
    let receipt = decide(&gateway, "take", &[order])[0]["limits"][0]["receipt"].clone();
    let () = redis::cmd("CLIENT").arg("PAUSE").arg(500).arg("ALL").query(&mut redis.client()).unwrap();
    let body = json!({ "receipt": receipt }).to_string();
    let mut client = Client::connect(gateway.admin);
    client.send(format!(
        "POST /-/limits/per-ip/refund HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(client);
    let left = || ok(&gateway, "GET", "/-/limits/per-ip/state?cost=0&key=10.0.0.9", &Value::Null)["remaining"].clone();
    wait_until("the charge is refunded", || left() == 5);
}

#[test]
fn gateways_that_share_a_store_share_its_receipts() {
    let redis = RedisServer::start(&[]);
    let [one, other] = [0, 1].map(|_| start(&redis.store()));
    let order = json!({ "limits": ["per-ip"], "key": { "ip": "10.0.0.9" }, "cost": 2 });
    let receipts: Vec<Value> =
        decide(&one, "take", &[order.clone(), order]).iter().map(|d| d["limits"][0]["receipt"].clone()).collect();
    assert_eq!([refund(&other, "per-ip", &receipts[0]), refund(&one, "per-ip", &receipts[0])], ["applied", "used"]);
    assert_eq!([refund(&one, "per-ip", &receipts[1]), refund(&other, "per-ip", &receipts[1])], ["applied", "used"]);
    let mut client = redis.client();
    let keys: Vec<String> = redis::cmd("KEYS").arg("sg:{receipt=*").query(&mut client).unwrap();
    assert_eq!(keys.len(), 2);
    for key in keys {
        let life_ms: i64 = redis::cmd("PTTL").arg(&key).query(&mut client).unwrap();
        assert!((1..=14_400_000).contains(&life_ms), "{key} lives for {life_ms} ms");
    }
}

/// Neither a gateway with other secrets, nor another store, nor a server that has lost its data.
#[test]
fn nobody_takes_a_used_receipt_again() {
    let redis = RedisServer::start(&[]);
    let (one, other) = (start(&redis.store()), start(&format!("{}prefix = \"other\"\n", redis.store())));
    let order = json!({ "limits": ["per-ip"], "key": { "ip": "10.0.0.9" }, "cost": 2 });
    let receipt = decide(&one, "take", &[order])[0]["limits"][0]["receipt"].clone();
    assert_eq!(refund(&one, "per-ip", &receipt), "applied");
    let body = json!({ "receipt": receipt }).to_string();
    assert_eq!(fetch(&other, "POST", "/-/limits/per-ip/refund", &body).status(), 422, "another prefix");
    let mut client = redis.client();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*{receipt=*").query(&mut client).unwrap();
    let () = redis::cmd("DEL").arg(&keys).query(&mut client).unwrap();
    let path = one.dir.path().join("sluicegate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("deadline = \"10s\"", "deadline = \"3s\"")).unwrap();
    assert_eq!(fetch(&one, "POST", "/-/reload", "").status(), 200);
    wait_until("the store is reached", || fetch(&one, "GET", "/-/limits/watched/state", "").status() == 200);
    assert_eq!(refund(&one, "per-ip", &receipt), "used");
}

#[test]
fn an_outage_is_handled_by_on_error_of_each_limit() {
    let mut redis = RedisServer::start(&[]);
    let limits = LIMITS.replace("mode = \"shadow\"", "on_error = \"closed\"");
    let gateway = Gateway::start(&format!("{}\n{limits}", redis.store()));
    wait_until("the store is reached", || fetch(&gateway, "GET", "/-/limits/watched/state", "").status() == 200);
    let order = json!({ "limits": ["per-ip"], "key": { "ip": "10.0.0.9" }, "cost": 2 });
    let before = decide(&gateway, "take", std::slice::from_ref(&order));
    redis.kill();
    wait_until("the gateway notices the loss of the store", || {
        fetch(&gateway, "GET", "/-/limits/watched/state", "").status() == 503
    });
    let responses = decide(&gateway, "take", &[order, json!({ "limits": ["watched"] })]);
    let local = &responses[0]["limits"][0];
    assert_eq!((&local["source"], &local["remaining"]), (&json!("local"), &json!(3)));
    let closed =
        json!({ "limit": "watched", "asked": true, "admitted": false, "reason": "store_down", "source": "none" });
    assert_eq!(responses[1], json!({ "admitted": false, "limits": [closed] }));

    let receipt = json!({ "receipt": before[0]["limits"][0]["receipt"] }).to_string();
    let away = fetch(&gateway, "POST", "/-/limits/per-ip/refund", &receipt);
    assert_eq!(away.status(), 503);
    assert!(away.json()["detail"].as_str().unwrap().starts_with("the limit store is unavailable ("), "{}", away.text());
    let receipt = &local["receipt"];
    assert_eq!([refund(&gateway, "per-ip", receipt), refund(&gateway, "per-ip", receipt)], ["applied", "used"]);
}

/// The state is also shown before the first decision of the limit.
#[test]
fn windows_of_the_calendar_are_shown_as_they_are_now() {
    let limit = |unit: &str| format!("[limit.{unit}]\nalgorithm = \"calendar\"\nrate = \"9/{unit}\"\n");
    let gateway = Gateway::start(&format!("{LIMITS}\n{}{}{}", limit("month"), limit("year"), limit("day")));
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let day_ms = 86_400_000;
    let month = i64::from(today.days_in_month()) * day_ms;
    let year = i64::from(today.days_in_year()) * day_ms;
    for (name, window_ms) in [("month", month), ("year", year), ("day", day_ms)] {
        let shown = ok(&gateway, "GET", &format!("/-/limits/{name}"), &Value::Null);
        assert_eq!(shown["policy"], json!({ "quota": 9, "window_ms": window_ms }), "{name}");
    }
}

#[test]
fn a_new_store_is_followed() {
    let redis = RedisServer::start(&[]);
    let gateway = start("");
    let order = json!({ "limits": ["per-ip"], "key": { "ip": "10.0.0.1" }, "cost": 2 });
    decide(&gateway, "take", std::slice::from_ref(&order));
    let path = gateway.dir.path().join("sluicegate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}\n{}prefix = \"other\"\n", redis.store())).unwrap();
    let state = || fetch(&gateway, "GET", "/-/limits/per-ip/state?key=10.0.0.1&cost=0", "");
    wait_until("the new store responds", || {
        let state = state();
        state.status() == 200 && state.json()["state_key"].as_str().unwrap().starts_with("other:")
    });
    assert_eq!(state().json()["remaining"], 5);
    decide(&gateway, "take", &[order]);
    // Without the key of the heartbeat that counts gateways.
    let keys: Vec<String> = redis::cmd("KEYS").arg("*{*").query(&mut redis.client()).unwrap();
    assert_eq!(keys, ["other:{ip=10.0.0.1}:per-ip:token_bucket"]);
}

#[test]
fn the_examples_of_the_manual_are_true() {
    let page = Page::read("docs/reference/admin-api.md");
    let [part] = &page.parts[..] else { panic!("{} configs", page.parts.len()) };
    assert!(part.examples.len() >= 8);
    part.assert_true(&page.words, &Gateway::start(&part.config), None, None);
}
