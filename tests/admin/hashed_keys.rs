//! Keys given by the hash that a log shows: peek, decide, refund and reset find the key in every store, and no response
//! contains the value.

use serde_json::{Value, json};

use super::api::fetch;
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::topology::{RedisCluster, run_command};
use crate::support::limiting::{RedisServer, store_section};
use crate::support::wait_until;

const LIMITS: &str = r#"
[[route]]
name = "api"
path = "/"
respond = { body = "in" }
limits = ["pair", "token"]

[limit.pair]
algorithm = "fixed_window"
rate = "5/day"
key = ["header:x-api-key", "ip"]
missing = "skip"

[limit.token]
algorithm = "fixed_window"
rate = "3/day"
key = "header:authorization | query:access"
missing = "skip"
overrides = [{ key = ["Bearer vip token"], rate = "1000/day" }]
"#;

fn start(store: &str, admin: &str) -> Gateway {
    let gateway = Gateway::start(&format!("{admin}\n{store}\n{LIMITS}"));
    wait_until("the store is reached", || peek(&gateway, "token", "key=nobody").status() == 200);
    gateway
}

fn peek(gateway: &Gateway, limit: &str, query: &str) -> crate::support::http::Message {
    fetch(gateway, "GET", &format!("/-/limits/{limit}/state?{query}"), "")
}

#[track_caller]
fn ok(response: &crate::support::http::Message) -> Value {
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()
}

/// The hash that the gateway shows for the key of a query.
#[track_caller]
fn hash(gateway: &Gateway, limit: &str, query: &str) -> String {
    let state = ok(&peek(gateway, limit, query));
    let part = state["key"].as_str().unwrap().split(',').next().unwrap();
    part.rsplit('#').next().unwrap().to_owned()
}

fn send(gateway: &Gateway, fields: &str) -> u16 {
    gateway.fetch(&get("/", fields)).status()
}

/// Every operation by hash; `value` is the key as a client sends it.
fn manage(gateway: &Gateway, value: &str, decoy: impl Fn(&Gateway)) {
    let encoded = value.replace(' ', "%20");
    let fields = format!("authorization: {value}\r\n");
    assert_eq!((send(gateway, &fields), send(gateway, &fields)), (200, 200));
    decoy(gateway);
    let by_hash = format!("hash={}", hash(gateway, "token", &format!("key={encoded}")));
    let digits = &by_hash[5..];
    let name = "header:authorization|query:access";

    let known = peek(gateway, "token", &by_hash);
    assert_eq!(ok(&known)["remaining"], 1, "{}", known.text());
    assert_eq!(ok(&known)["key"], json!(format!("{name}#{digits}")));
    assert!(ok(&known)["state_key"].is_null());

    let key = json!({ "header:authorization": { "hash": digits } });
    let taken = fetch(
        gateway,
        "POST",
        "/-/decide",
        json!({ "operation": "take", "decisions": [{ "limits": ["token"], "key": key }] }).to_string(),
    );
    let entry = &ok(&taken)["decisions"][0]["limits"][0];
    assert_eq!((&entry["admitted"], &entry["remaining"], &entry["receipt"]), (&json!(true), &json!(0), &Value::Null));
    assert_eq!(send(gateway, &fields), 429);

    let refund = fetch(gateway, "POST", "/-/limits/token/refund", json!({ "key": key, "cost": 1 }).to_string());
    assert_eq!(ok(&refund)["applied"], true, "{}", refund.text());
    assert_eq!(ok(&peek(gateway, "token", &by_hash))["remaining"], 1);

    let reset = fetch(gateway, "DELETE", &format!("/-/limits/token/state?{by_hash}"), "");
    assert_eq!(ok(&reset)["reset"], true);
    for response in [&known, &taken, &refund, &reset] {
        assert!(!response.text().contains(value), "{}", response.text());
    }
    assert_eq!(ok(&peek(gateway, "token", &format!("key={encoded}")))["remaining"], 3);
    // The state was the only source from which the gateway could look up the hash.
    let after_reset = peek(gateway, "token", &by_hash);
    assert_eq!(after_reset.status(), 404, "{}", after_reset.text());
    assert!(
        after_reset.text().contains(digits) && after_reset.text().contains("keys_secret"),
        "{}",
        after_reset.text()
    );
}

#[test]
fn a_hash_finds_the_key_in_memory_and_in_redis() {
    let long = format!("Bearer {}", "x".repeat(200));
    let nothing = |_: &Gateway| {};
    let redis = RedisServer::start(&[]);
    for store in [String::new(), redis.store()] {
        for value in ["plain", "Bearer abc", &long] {
            manage(&start(&store, ""), value, nothing);
        }
    }
}

#[test]
fn a_hash_finds_the_key_on_each_master_of_a_cluster() {
    let cluster = RedisCluster::start(0);
    let gateway = start(&store_section(&cluster.url()), "");
    for i in 0..6 {
        manage(&gateway, &format!("Bearer {i}"), |_| {});
    }
}

#[test]
fn a_hash_finds_one_key_among_many() {
    let redis = RedisServer::start(&[]);
    let gateway = start(&redis.store(), "");
    manage(&gateway, "one", |_| {
        let lua = "for i=1,50000 do redis.call('SET', 'sg:{header:authorization|query:access='..i..'}:token:fixed_window', '') end";
        let _: () = run_command(&mut redis.client(), &["EVAL", lua, "0"]);
        let _: () = run_command(&mut redis.client(), &["SET", "sg:{other", "\u{fe}\u{ff}"]);
    });
    let gateway = start("", "");
    manage(&gateway, "one", |gateway| {
        for chunk in 0..20 {
            let decisions: Vec<Value> = (0..1000)
                .map(|i| json!({ "limits": ["token"], "key": { "header:authorization": format!("{chunk}-{i}") } }))
                .collect();
            let body = json!({ "operation": "take", "decisions": decisions }).to_string();
            assert_eq!(fetch(gateway, "POST", "/-/decide", body).status(), 200);
        }
    });
}

#[test]
fn parts_may_be_mixed_and_numbers_of_one_key_are_kept() {
    let gateway = start("", "");
    assert_eq!(send(&gateway, "x-api-key: acme\r\nauthorization: Bearer vip token\r\n"), 200);
    let acme = hash(&gateway, "pair", "key=acme&key=127.0.0.1");
    let state = ok(&peek(&gateway, "pair", &format!("hash={acme}&key=127.0.0.1")));
    assert_eq!(
        (&state["remaining"], &state["key"]),
        (&json!(4), &json!(format!("header:x-api-key#{acme},ip=127.0.0.1")))
    );
    assert_eq!(ok(&peek(&gateway, "pair", &format!("hash={acme}&key=10.0.0.1")))["remaining"], 5);
    // The state key has only a digest of this value; the override is found by it.
    let vip = hash(&gateway, "token", "key=Bearer%20vip%20token");
    assert_eq!(ok(&peek(&gateway, "token", &format!("hash={vip}")))["policy"]["quota"], 1000);
    // Several hashes of several limits are looked up together.
    let decisions = json!({ "operation": "peek", "decisions": [{ "limits": ["pair", "token"], "key": {
        "header:x-api-key": { "hash": acme }, "ip": "127.0.0.1", "query:access": { "hash": vip } } }] });
    let decided = ok(&fetch(&gateway, "POST", "/-/decide", decisions.to_string()));
    let left = |limit: usize| decided["decisions"][0]["limits"][limit]["remaining"].clone();
    assert_eq!((left(0), left(1)), (json!(3), json!(998)), "{decided}");
}

#[test]
fn a_hash_means_one_part_and_one_secret() {
    let secret = |digit: &str| format!("keys_secret = \"{}\"\n", digit.repeat(32));
    let gateway = start("", &secret("a"));
    assert_eq!(send(&gateway, "x-api-key: same\r\nauthorization: same\r\n"), 200);
    let pair = hash(&gateway, "pair", "key=same&key=127.0.0.1");
    assert_ne!(pair, hash(&gateway, "token", "key=same"));
    assert_eq!(peek(&gateway, "token", &format!("hash={pair}")).status(), 404);
    assert_eq!(hash(&start("", &secret("a")), "pair", "key=same&key=::1"), pair);
    assert_ne!(hash(&start("", &secret("b")), "pair", "key=same&key=::1"), pair);
    for (query, words) in [
        ("hash=0123456789ABCDEF", "16 digits"),
        ("hash=", "16 digits"),
        ("hash=0123456789abcdef&key=x", "write `key` once"),
        ("hash=%ff", "16 digits"),
    ] {
        let refused = peek(&gateway, "token", query);
        assert!(refused.status() == 400 && refused.text().contains(words), "{query}: {}", refused.text());
    }
    // As the log shows the key, and not as a value.
    let logged = format!("header:x-api-key#{pair}");
    ok(&peek(&gateway, "pair", &format!("hash=header:x-api-key%23{pair}&key=127.0.0.1")));
    for (query, remedy) in [
        (format!("key=header:x-api-key%23{pair}&key=127.0.0.1"), format!("write hash={pair}")),
        ("key=same&key=ip=127.0.0.1".to_owned(), "write only the value: 127.0.0.1".to_owned()),
        (format!("hash=ip%23{pair}&key=127.0.0.1"), "16 digits".to_owned()),
    ] {
        let refused = peek(&gateway, "pair", &query);
        assert!(refused.status() == 400 && refused.text().contains(&remedy), "{query}: {}", refused.text());
    }
    for (value, status) in [(json!({ "hash": logged }), 200), (json!(logged), 422), (json!("same"), 200)] {
        let body = json!({ "key": { "header:x-api-key": value, "ip": "127.0.0.1" }, "cost": 1 }).to_string();
        assert_eq!(fetch(&gateway, "POST", "/-/limits/pair/refund", body).status(), status);
    }
    for key in [json!({ "hash": "x" }), json!({ "hash": 1 }), json!({ "hash": "0123456789abcdef", "percent": "a" })] {
        let body = json!({ "key": { "header:authorization": key }, "cost": 1 }).to_string();
        assert_eq!(fetch(&gateway, "POST", "/-/limits/token/refund", body).status(), 422, "{key}");
    }
    let twice = json!({ "key": { "header:authorization": { "hash": pair }, "query:access": "x" }, "cost": 1 });
    assert_eq!(fetch(&gateway, "POST", "/-/limits/token/refund", twice.to_string()).status(), 422);
}

#[test]
fn an_unavailable_store_is_reported() {
    let mut redis = RedisServer::start(&[]);
    let gateway = start(&redis.store(), "");
    assert_eq!(send(&gateway, "authorization: x\r\n"), 200);
    let by_hash = format!("hash={}", hash(&gateway, "token", "key=x"));
    redis.kill();
    wait_until("the gateway notices the loss of the store", || peek(&gateway, "token", "key=x").status() == 503);
    let refused = peek(&gateway, "token", &by_hash);
    assert!(refused.status() == 503 && refused.text().contains("could not be looked up"), "{}", refused.text());
}

#[test]
fn an_override_may_name_a_hash() {
    let secret = "c".repeat(32);
    let gateway = start("", &format!("keys_secret = \"{secret}\"\n"));
    let long = format!("Bearer {}", "y".repeat(100));
    let (acme, token) = (
        hash(&gateway, "pair", "key=acme&key=127.0.0.1"),
        hash(&gateway, "token", &format!("key={}", long.replace(' ', "%20"))),
    );
    gateway.reload_with(
        "key = [\"header:x-api-key\", \"ip\"]",
        &format!(
            "key = [\"header:x-api-key\", \"ip\"]\noverrides = [{{ key = [{{ hash = \"{acme}\" }}, \"*\"], rate = 0 }}]"
        ),
    );
    gateway.reload_with(
        "overrides = [{ key = [\"Bearer",
        &format!("overrides = [{{ key = [{{ hash = \"{token}\" }}], rate = \"1/day\" }}, {{ key = [\"Bearer"),
    );
    assert_eq!(send(&gateway, "x-api-key: acme\r\n"), 429);
    assert_eq!(send(&gateway, "x-api-key: other\r\n"), 200);
    let fields = format!("authorization: {long}\r\n");
    assert_eq!((send(&gateway, &fields), send(&gateway, &fields)), (200, 429));
}

#[test]
fn a_live_override_may_name_a_hash() {
    let redis = RedisServer::start(&[]);
    let gateway = start(&redis.store(), &format!("keys_secret = \"{}\"\n", "d".repeat(32)));
    assert_eq!(send(&gateway, "authorization: bad one\r\n"), 200);
    let digits = hash(&gateway, "token", "key=bad%20one");
    let _: i64 = run_command(&mut redis.client(), &["HSET", "sg:overrides:token", &format!("%#{digits}"), "rate=0"]);
    wait_until("the override is active", || send(&gateway, "authorization: bad one\r\n") == 429);
    assert_eq!(send(&gateway, "authorization: good one\r\n"), 200);
}
