//! Header values with any bytes have budgets like all others, and operators can name them.

use redis::Commands;
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

const CONFIG: &str = r#"
[limit.tenant]
rate = "1/h"
burst = 5
key = "header:x-tenant"
overrides = [
    { key = { percent = "caf%E9" }, burst = 3 },
    { key = { percent = "*" }, burst = 4 },
]

[[route]]
path = "/"
upstream = "echo:"
limits = ["tenant"]
"#;

/// Values as a header has them and as they are named: no UTF-8, its overlong and cut forms, and what
/// would be something else if it were decoded once too often or not at all.
const VALUES: [(&[u8], &str, i64); 6] = [
    (b"caf\xe9", "caf%E9", 3),
    (b"caf\xc3\xa9", "caf%C3%A9", 5),
    (b"caf%E9", "caf%25E9", 5),
    (b"*", "%2A", 4),
    (b"\xff\xfe,\x80", "%ff%fe%2c%80", 5),
    (b"\xc0\xaf", "%C0%AF", 5),
];

fn fetch(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let response = Client::connect(gateway.admin).fetch(&head, body);
    assert_eq!(response.status(), 200, "{method} {path}: {}", response.text());
    response.json()
}

fn request(gateway: &Gateway, tenant: &[u8]) -> u16 {
    let mut client = gateway.client();
    client.send([b"GET / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\nx-tenant: ", tenant, b"\r\n\r\n"].concat());
    // The echo server's answer is no text where the value is none.
    let mut response = Vec::new();
    std::io::Read::read_to_end(client.stream(), &mut response).unwrap();
    str::from_utf8(&response[9..12]).unwrap().parse().unwrap()
}

fn remaining(gateway: &Gateway, named: &str) -> i64 {
    let state = fetch(gateway, "GET", &format!("/-/limits/tenant/state?cost=0&key={named}"), &Value::Null);
    state["remaining"].as_i64().unwrap()
}

fn every_value_can_be_managed(gateway: &Gateway) {
    for (tenant, named, burst) in VALUES {
        let key = json!({ "header:x-tenant": { "percent": named } });
        assert_eq!(remaining(gateway, named), burst, "{named}");
        assert_eq!(request(gateway, tenant), 200);
        assert_eq!(remaining(gateway, named), burst - 1, "{named}: the request's own budget");

        let order = json!({ "operation": "take", "decisions": [{ "limits": ["tenant"], "key": key, "cost": 2 }] });
        let mut taken = fetch(gateway, "POST", "/-/decide", &order);
        assert_eq!(taken["decisions"][0]["limits"][0]["remaining"], burst - 3, "{named}");
        let receipt = json!({ "receipt": taken["decisions"][0]["limits"][0]["receipt"].take() });
        let refund = || fetch(gateway, "POST", "/-/limits/tenant/refund", &receipt)["applied"].clone();
        assert_eq!([refund(), refund()], [true, false], "{named}");
        assert_eq!(remaining(gateway, named), burst - 1, "{named}");
        let units = json!({ "key": key, "cost": 1 });
        assert_eq!(fetch(gateway, "POST", "/-/limits/tenant/refund", &units)["applied"], true);
        assert_eq!(remaining(gateway, named), burst);

        let admitted = (0..6).filter(|_| request(gateway, tenant) == 200).count();
        assert_eq!(admitted as i64, burst, "{named}");
        fetch(gateway, "DELETE", &format!("/-/limits/tenant/state?key={named}"), &Value::Null);
        assert_eq!(remaining(gateway, named), burst);
    }
    // No value has used the budget of another one.
    assert!(VALUES.iter().all(|(_, named, burst)| remaining(gateway, named) == *burst));
}

#[test]
fn any_bytes_can_be_named() {
    every_value_can_be_managed(&Gateway::start(CONFIG));
    let redis = RedisServer::start(&[]);
    let gateway = Gateway::start(&format!("{}{CONFIG}", redis.store()));
    wait_until("the store is reached", || {
        gateway.admin("/-/limits/tenant/state?key=a").status() == 200 && gateway.metric("store_up", &[]) == Some(1.0)
    });
    every_value_can_be_managed(&gateway);
    // Live overrides: the field is percent-encoded, or has the raw bytes.
    let mut client = redis.client();
    let fields: [(&[u8], &str); 2] = [(b"%ff%fe%2c%80", "burst=7"), (b"\xc0\xaf", "burst=8")];
    let () = client.hset_multiple("sg:overrides:tenant", &fields).unwrap();
    wait_until("the overrides are active", || remaining(&gateway, "%C0%AF") == 8);
    assert_eq!([remaining(&gateway, "%FF%FE,%80"), remaining(&gateway, "caf%E9")], [7, 3]);
}

#[test]
fn invalid_byte_values_of_keys_are_reported() {
    let gateway = Gateway::start(CONFIG);
    for (value, pointer, detail) in [
        (json!({ "percent": "caf%E" }), "/percent", "it is not percent-encoded: bytes are written %XX"),
        (json!({ "percent": 7 }), "/percent", "it must be a string"),
        (json!({ "percent": "a", "base64": "YQ==" }), "/base64", "unknown member"),
        (json!({ "bytes": "a" }), "", "it must be a string, {\"percent\": "),
        (json!(["a"]), "", "it must be a string"),
    ] {
        let order = json!({ "operation": "peek", "decisions": [{ "limits": ["tenant"], "key": { "header:x-tenant": value } }] });
        let body = order.to_string();
        let head = format!(
            "POST /-/decide HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let response = Client::connect(gateway.admin).fetch(&head, body);
        let error = response.json()["errors"][0].clone();
        assert_eq!(
            (response.status(), &error["pointer"]),
            (422, &json!(format!("#/decisions/0/key/header:x-tenant{pointer}"))),
            "{order}"
        );
        assert!(error["detail"].as_str().unwrap().starts_with(detail), "{order}: {error}");
    }
}

/// Spellings of a path meet in one budget. What only the app may take for the same has one of its own, unless
/// the key is what the route has matched.
#[test]
fn a_path_has_one_budget_in_all_its_spellings_and_a_route_in_all_its_paths() {
    let gateway = Gateway::start(
        r#"
        [limit.path]
        rate = "1/h"
        key = "path"
        [limit.route]
        rate = "1/h"
        key = "route"
        [limit.id]
        rate = "1/h"
        key = "param:id"

        [[route]]
        path = "/"
        respond = {}
        limits = ["path"]
        [[route]]
        path = "/login"
        respond = {}
        limits = ["route"]
        [[route]]
        path = "/users/{id}"
        respond = {}
        limits = ["id"]
        "#,
    );
    for (paths, status) in [
        (&["/in", "/in/", "/IN", "/in;x", "/login", "/users/7", "/users/8"][..], 200),
        (&["//in", "/%69n", "/in?x", "/./in", "/login/", "//login?x", "/users/%37"], 429),
    ] {
        for path in paths {
            assert_eq!(gateway.get(path).status(), status, "{path}");
        }
    }
}
