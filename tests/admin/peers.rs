//! `GET /-/gateways`: all gateways that share a store, each with its own numbers, and their sum.

use serde_json::Value;

use crate::support::gateway::{Gateway, config};
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

use super::api::fetch;

const LIMITS: &str = r#"
[limit.per-key]
rate = "2/h"
key = "header:x-key"
missing = "skip"

[[route]]
path = "/"
respond = { body = "in" }
limits = ["per-key"]
"#;

fn send(gateway: &Gateway, key: &str) -> u16 {
    gateway.client().fetch(&format!("GET / HTTP/1.1\r\nhost: a\r\nx-key: {key}\r\n\r\n"), "").status()
}

fn list(gateway: &Gateway) -> Value {
    gateway.admin("/-/gateways").json()
}

fn count(gateway: &Gateway) -> usize {
    list(gateway)["gateways"].as_array().unwrap().len()
}

fn start(redis: &RedisServer, environment: &str) -> Gateway {
    let store = format!("{}{LIMITS}", redis.store());
    let admin = format!(
        "[admin]\nkeys = {{ \"header:x-key\" = \"plain\" }}\nenvironment = \"{environment}\"\nenvironment_color = \"red\"\n"
    );
    let gateway = Gateway::with_config(&config("", &store).replace("[admin]\n", &admin));
    gateway.wait_for_store();
    gateway
}

#[test]
fn one_gateway_lists_all_and_adds_up_what_they_refused() {
    let redis = RedisServer::start(&[]);
    let (here, there) = (start(&redis, "blue half"), start(&redis, "green half"));
    wait_until("each lists both", || count(&here) == 2 && count(&there) == 2);
    for _ in 0..4 {
        send(&here, "acme");
        send(&there, "acme");
    }
    wait_until("refusals of both add up", || {
        let all = list(&here);
        all["keys"][0]["count_min"] == 6 && all["keys"][0]["gateways"] == 2
    });
    let all = list(&here);
    assert_eq!((&all["keys"][0]["key"], &all["store_fault"]), (&"header:x-key=acme".into(), &Value::Null));
    assert_eq!(all["keys_comparable"], false, "there is no keys_secret");
    // The one that responds is first.
    let [own, other] = [0, 1].map(|place| &all["gateways"][place]);
    assert_eq!((&own["environment"], &other["environment"]), (&"blue half".into(), &"green half".into()));
    assert_eq!((&own["name"], &own["admin"]), (&all["self"], &here.admin.to_string().into()));
    assert_eq!((&other["admin"], &other["lifecycle"]), (&there.admin.to_string().into(), &"ready".into()));
    assert!(other["age_ms"].as_u64().unwrap() < 20_000 && other["generation"] == 1, "{other}");

    // A summary that is too long, and one that lies, do no harm.
    let mut client = redis.client();
    let names = ["f".repeat(32), "e".repeat(32)];
    let texts = ["[".repeat(100_000), r#"{"host":"<b>","per_second":-1,"keys":[7]}"#.to_owned()];
    let (seconds, _): (i64, i64) = redis::cmd("TIME").query(&mut client).unwrap();
    for (name, text) in names.iter().zip(&texts) {
        let _: () = redis::cmd("ZADD").arg("sg:gateways").arg(seconds * 1000).arg(name).query(&mut client).unwrap();
        let key = format!("sg:gateway:{name}");
        let _: () = redis::cmd("SET").arg(key).arg(text).arg("PX").arg(20_000).query(&mut client).unwrap();
    }
    // A key of another type hides only the numbers of its gateway.
    let odd = "d".repeat(32);
    let _: () = redis::cmd("ZADD").arg("sg:gateways").arg(seconds * 1000).arg(&odd).query(&mut client).unwrap();
    let _: () = redis::cmd("LPUSH").arg(format!("sg:gateway:{odd}")).arg("x").query(&mut client).unwrap();
    // Longer than an answer is used again, and shorter than a gateway counts.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let hostile = list(&there);
    let found = |name: &str| hostile["gateways"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    let [long, lying] = [0, 1].map(|place| found(&names[place]));
    assert_eq!((&long["host"], &lying["host"], &lying["per_second"]), (&Value::Null, &"<b>".into(), &Value::Null));
    assert_eq!((&found(&odd)["age_ms"], &hostile["store_fault"]), (&Value::Null, &Value::Null));
    for name in names.iter().chain([&odd]) {
        let _: () = redis::cmd("ZREM").arg("sg:gateways").arg(name).query(&mut client).unwrap();
    }

    // A gateway that stops is gone at once, and without Redis each knows itself.
    let mut there = there;
    there.signal("TERM");
    there.exit();
    wait_until("the other has left", || count(&here) == 1);
    drop(client);
    drop(redis);
    wait_until("the fault is stated", || list(&here)["store_fault"].is_string());
    assert_eq!(count(&here), 1);
}

#[test]
fn keys_need_the_role_keys_and_a_memory_store_has_one_gateway() {
    let reader = "[[admin.tokens]]\nname = \"reader\"\nrole = \"read\"\ntoken = \"read-read-read-read\"\n";
    let text = config("", &format!("{LIMITS}{reader}"));
    let gateway = Gateway::with_config(&text.replace("[admin]\n", "[admin]\ntoken = \"edit-edit-edit-edit\"\n"));
    let get = |token: &str| {
        let fields = format!("authorization: Bearer {token}\r\n");
        gateway.admin_request("GET", "/-/gateways", &fields, "")
    };
    assert_eq!(fetch(&gateway, "GET", "/-/gateways", "").status(), 401);
    let (reader, editor) = (get("read-read-read-read").json(), get("edit-edit-edit-edit").json());
    assert_eq!((&reader["keys"], editor["keys"].is_array()), (&Value::Null, true));
    assert_eq!((&reader["store_shared"], &reader["total"]["gateways"]), (&false.into(), &1.into()));
}
