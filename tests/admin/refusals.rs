//! `/-/refusals`: support finds a refused request by the id that its response shows, with the arithmetic. Ids and keys
//! of attackers change nothing but their own entries.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::api::fetch;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;

const LIMITS: &str = r#"
[limit.per-key]
rate = "1/h"
burst = 2
key = ["header:x-key", "ip"]
cost = 2
missing = "refuse"
overrides = [{ key = ["blocked", "*"], rate = 0 }, { key = ["half", "*"], rate = "1/h", burst = 3 }]

[limit.watched]
rate = "1/h"
burst = 1
key = "ip"
mode = "shadow"

[[route]]
name = "api"
path = "/"
upstream = "echo:"
limits = ["per-key", "watched"]

[[route]]
name = "login"
path = "/login"
upstream = "echo:"
limits = ["per-key"]
refuse = { status = 420 }
"#;

fn refusals(gateway: &Gateway, query: &str) -> Vec<Value> {
    let response = fetch(gateway, "GET", &format!("/-/refusals{query}"), "");
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()["refusals"].as_array().unwrap().clone()
}

#[test]
fn a_refusal_is_found_by_the_id_in_its_problem_document() {
    let redis = RedisServer::start(&[]);
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!("{store}{LIMITS}"));
        let mut client = Client::connect(gateway.addr);
        let send = |client: &mut Client, target: &str, key: &str| client.fetch(&get(target, key), "");
        assert_eq!(send(&mut client, "/", "x-key: secret-value\r\n").status(), 200);
        assert_eq!(refusals(&gateway, ""), Vec::<Value>::new());
        let refused = send(&mut client, "/", "x-key: secret-value\r\naccept: application/json\r\n");
        assert_eq!(refused.status(), 429);
        let id = refused.json()["request_id"].as_str().unwrap().to_owned();
        assert_eq!(id.len(), 32, "{id}");
        let found = refusals(&gateway, &format!("?request_id={id}"));
        assert_eq!(found.len(), 1, "{found:?}");
        let entry = &found[0];
        assert_eq!(entry["request_id"], id);
        assert_eq!(
            (&entry["client"], &entry["route"], &entry["status"]),
            (&json!("127.0.0.1"), &json!("api"), &json!(429))
        );
        let [limit, shadow] = entry["limits"].as_array().unwrap().as_slice() else { panic!("{entry}") };
        assert_eq!((&limit["limit"], &limit["reason"]), (&json!("per-key"), &json!("exhausted")));
        assert_eq!((&limit["cost"], &limit["remaining"]), (&json!(2), &json!(0)));
        assert_eq!(limit["policy"], json!({ "quota": 2, "window_ms": 7_200_000 }));
        assert_eq!((&limit["override"], &limit["source"]), (&json!(false), &json!("store")));
        let wait_ms = limit["retry_after_ms"].as_i64().unwrap();
        assert!((7_100_000..=7_200_000).contains(&wait_ms), "{wait_ms}");
        assert_eq!(
            (&shadow["limit"], &shadow["mode"], &shadow["key"]),
            (&json!("watched"), &json!("shadow"), &json!("ip=127.0.0.1"))
        );
        let key = limit["key"].as_str().unwrap();
        assert!(key.starts_with("header:x-key#") && key.ends_with(",ip=127.0.0.1"), "{key}");
        assert!(!entry.to_string().contains("secret-value"));

        // Other reasons: no key, a blocked key, another status and a browser.
        assert_eq!(send(&mut client, "/", "").status(), 403);
        assert_eq!(send(&mut client, "/login", "x-key: blocked\r\n").status(), 420);
        assert_eq!(send(&mut client, "/login", "x-key: half\r\n").status(), 200);
        let page = send(&mut client, "/login", "x-key: half\r\naccept: text/html\r\n").text();
        let [half, blocked, missing, _] = refusals(&gateway, "")[..].to_vec().try_into().unwrap();
        assert!(page.contains(half["request_id"].as_str().unwrap()), "{page}");
        let at = |entry: &Value, name: &str| entry["limits"][0][name].clone();
        assert_eq!(
            (at(&half, "override"), at(&half, "remaining"), half["status"].clone()),
            (json!(true), json!(1), json!(420))
        );
        assert_eq!(at(&half, "policy")["quota"], 3);
        assert_eq!((at(&blocked, "reason"), at(&blocked, "override")), (json!("blocked"), json!(true)));
        assert!(at(&blocked, "key").as_str().unwrap().starts_with("header:x-key#"));
        assert_eq!((at(&missing, "reason"), at(&missing, "key")), (json!("missing_key"), Value::Null));
        assert_eq!(refusals(&gateway, "?route=login&limit=per-key&n=1").len(), 1);
        assert_eq!(refusals(&gateway, "?route=login").len(), 2);
        assert_eq!(refusals(&gateway, "?limit=watched").len(), 1);

        // The list of the most refused keys has the routes.
        let top = fetch(&gateway, "GET", "/-/top?limit=per-key", "").json();
        let routes: Vec<&Value> = top["keys"].as_array().unwrap().iter().map(|key| &key["routes"]).collect();
        assert!(routes.contains(&&json!([{ "route": "api", "count": 1 }])), "{top}");
        assert!(routes.contains(&&json!([{ "route": "login", "count": 1 }])), "{top}");
        assert_eq!(top["limits"][0]["refused"], 3);

        // An entry outlives its limit.
        gateway.reload_with("[limit.per-key]", "[limit.other]\nrate = \"1/h\"\nkey = \"ip\"\n[limit.per-key]");
        assert_eq!(refusals(&gateway, &format!("?request_id={id}")), found);
    }
}

#[test]
fn hostile_ids_are_safe() {
    let gateway = Gateway::with("trusted_proxies = [\"127.0.0.1\"]\n", LIMITS);
    let mut trusted = Client::connect(gateway.addr);
    let mut send = |id: &[u8]| {
        let mut head =
            b"GET / HTTP/1.1\r\nhost: a.test\r\nx-key: blocked\r\naccept: application/json\r\nx-request-id: ".to_vec();
        head.extend(id);
        head.extend(b"\r\n\r\n");
        trusted.send(&head);
        let response = trusted.read_response("GET");
        assert_eq!(response.status(), 429, "{}", response.text());
        response.json()["request_id"].clone()
    };
    assert_eq!(send(b"ticket-7"), "ticket-7");
    assert_eq!(send(b"a\"b\\c</script>{}"), "a\"b\\c</script>{}");
    assert_eq!(send(&[b'x'; 256]), "x".repeat(256));
    // Too long, or not visible ASCII: no response shows it.
    assert_eq!(send(&[b'x'; 257]), Value::Null);
    assert_eq!(send(&[b'x'; 5000]), Value::Null);
    assert_eq!(send(b"caf\xe9"), Value::Null);
    assert_eq!(send(b"tab\tid"), Value::Null);
    (0..5).for_each(|_| drop(send(b"again")));

    assert_eq!(refusals(&gateway, "?request_id=again").len(), 5);
    assert_eq!(refusals(&gateway, "?request_id=again&n=2").len(), 2);
    assert_eq!(refusals(&gateway, "?request_id=a%22b%5Cc%3C/script%3E%7B%7D")[0]["request_id"], "a\"b\\c</script>{}");
    assert_eq!(refusals(&gateway, "")[5]["request_id"], Value::Null);
    for query in ["?request_id=", "?request_id=%FF", "?n=0", "?n=201", "?n=x", "?id=a", "?request_id=%", "?n=1&n=2"] {
        assert_eq!(fetch(&gateway, "GET", &format!("/-/refusals{query}"), "").status(), 400, "{query}");
    }
    for id in ["%00", "%0d%0ax", "..%2f..", &"y".repeat(6000)] {
        assert_eq!(refusals(&gateway, &format!("?request_id={id}")).len(), 0, "{id}");
    }
    // A client that is not trusted chooses no id.
    let mut other_client = Client::from(Ipv4Addr::new(127, 0, 0, 2), gateway.addr);
    let response =
        other_client.fetch(&get("/", "x-key: blocked\r\nx-request-id: again\r\naccept: application/json\r\n"), "");
    assert_eq!(response.json()["request_id"].as_str().unwrap().len(), 32);
    assert_eq!(refusals(&gateway, "?request_id=again").len(), 5);
    assert_eq!(fetch(&gateway, "POST", "/-/refusals", "").status(), 405);
}

#[test]
fn a_flood_keeps_the_newest_within_bounded_memory() {
    let gateway = Gateway::with("trusted_proxies = [\"127.0.0.1\"]\n", LIMITS);
    let mut client = Client::connect(gateway.addr);
    for batch in 0..60 {
        let requests: Vec<String> = (0..100)
            .map(|place| get("/", &format!("x-key: blocked\r\nx-request-id: {}-{batch}-{place}\r\n", "i".repeat(200))))
            .collect();
        client.send(requests.concat());
        for _ in 0..100 {
            assert_eq!(client.read_response("GET").status(), 429);
        }
    }
    let id = |batch: usize, place: usize| format!("{}-{batch}-{place}", "i".repeat(200));
    let newest = refusals(&gateway, "?n=200");
    assert_eq!((newest.len(), &newest[0]["request_id"]), (200, &json!(id(59, 99))));
    assert_eq!(refusals(&gateway, &format!("?request_id={}", id(30, 50))).len(), 1);
    assert_eq!(refusals(&gateway, &format!("?request_id={}", id(10, 50))).len(), 0, "6000 refusals, 4096 are kept");
}
