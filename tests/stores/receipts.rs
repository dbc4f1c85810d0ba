//! Receipts use the clock of the store, not those of the gateways that charge and refund.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::limits::several_gateways::apart;
use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;

fn fetch(gateway: &Gateway, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let answer = Client::connect(gateway.admin).fetch(&head, &body);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

/// Takes `cost` units. Returns the remaining units and the receipt.
fn take(gateway: &Gateway, limit: &str, cost: i64) -> (Value, Value) {
    let body = json!({ "operation": "take", "decisions": [{ "limits": [limit], "cost": cost }] });
    let mut limit = fetch(gateway, "/-/decide", &body)["decisions"][0]["limits"][0].take();
    assert_eq!(limit["source"], "store");
    (limit["remaining"].take(), limit["receipt"].take())
}

/// Returns `applied`, or the reason why the refund was not applied.
fn refund(gateway: &Gateway, limit: &str, receipt: &Value) -> String {
    let answer = fetch(gateway, &format!("/-/limits/{limit}/refund"), &json!({ "receipt": receipt }));
    if answer["applied"] == true { "applied".to_owned() } else { answer["reason"].as_str().unwrap().to_owned() }
}

/// A charge that is refilled within a second, at gateways whose clocks are ten seconds apart: the receipt is valid for
/// that second in every gateway, and no longer in any.
#[test]
fn a_receipt_counts_once_with_any_clocks() {
    let server = RedisServer::start(&[]);
    let limits = ["forth", "back", "alone"].map(|name| {
        let numbers = "rate = \"2/s\"\nburst = 5\nkey = \"all\"";
        format!(
            "[limit.{name}]\n{numbers}\n[[route]]\npath = \"/{name}\"\nupstream = \"echo:\"\nlimits = [\"{name}\"]\n"
        )
    });
    let [behind, ahead] = apart(&server, &(limits.concat() + "[[route]]\npath = \"/clock\"\nupstream = \"echo:\"\n"));
    let attempt = |limit: &str, one: &Gateway, other: &Gateway| {
        let (left, receipt) = take(one, limit, 2);
        assert_eq!(left, 3);
        assert_eq!([other, one, other].map(|gateway| refund(gateway, limit, &receipt)), ["applied", "used", "used"]);
        let (_, unused) = take(one, limit, 2);
        std::thread::sleep(Duration::from_millis(1100));
        // Both charges have been refilled; later charges belong to others.
        assert_eq!(take(one, limit, 5).0, 0);
        for gateway in [one, other] {
            assert_eq!([&receipt, &unused].map(|receipt| refund(gateway, limit, receipt)), ["expired", "expired"]);
        }
    };
    std::thread::scope(|scope| {
        for (limit, one, other) in [("forth", &behind, &ahead), ("back", &ahead, &behind), ("alone", &ahead, &ahead)] {
            scope.spawn(move || attempt(limit, one, other));
        }
    });
}

/// A late refund returns only the part that has not been refilled, and none of the later charges of others.
#[test]
fn a_receipt_refunds_only_units_that_were_not_refilled() {
    let server = RedisServer::start(&[]);
    let store = server.store();
    let gateway = Gateway::start(&format!(
        "{store}\n[limit.one]\nrate = \"2/s\"\nburst = 5\nkey = \"all\"\n\n[[route]]\nupstream = \"echo:\"\n\
         limits = [\"one\"]\n"
    ));
    let (_, receipt) = take(&gateway, "one", 2);
    std::thread::sleep(Duration::from_millis(700));
    let since = Instant::now();
    take(&gateway, "one", 3);
    refund(&gateway, "one", &receipt);
    let left = take(&gateway, "one", 1).0.as_f64().unwrap();
    assert!(left <= 1.0 + 2.0 * since.elapsed().as_secs_f64(), "{left} left of a burst of 5 that was charged 3 and 1");
}

/// Receipts of the admin API are not signed, so its clients can make some. One with the key of another program in the
/// same Redis changes nothing there.
#[test]
fn a_receipt_reaches_no_keys_of_other_prefixes() {
    let server = RedisServer::start(&[]);
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"5s\"\n\n[limit.one]\nrate = \"9/h\"\nkey = \"all\"\n\n[[route]]\n\
         upstream = \"echo:\"\nlimits = [\"one\"]\n",
        server.url()
    ));
    gateway.wait_for_store();
    let (_, receipt) = take(&gateway, "one", 5);
    let token = receipt.as_str().unwrap();
    let bytes: Vec<u8> =
        (16..token.len()).step_by(2).map(|i| u8::from_str_radix(&token[i..i + 2], 16).unwrap()).collect();
    let text = String::from_utf8(bytes).unwrap();
    let forge = |text: &str| {
        let digest = Sha256::digest(text);
        digest[..8].iter().chain(text.as_bytes()).map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(forge(&text), token);
    let mut client = server.client();
    let key = text.rsplit(' ').next().unwrap();
    let other = format!("other{}", key.strip_prefix("sg").unwrap());
    let state: String = redis::cmd("GET").arg(key).query(&mut client).unwrap();
    let () = redis::cmd("SET").arg(&other).arg(&state).query(&mut client).unwrap();
    for forged in [forge(&text.replace(key, &other)), forge(&text.replace(key, "one:token_bucket"))] {
        let body = json!({ "receipt": forged }).to_string();
        let answer = gateway.admin_request("POST", "/-/limits/one/refund", "content-type: application/json\r\n", body);
        assert_eq!(answer.status(), 422, "{}", answer.text());
    }
    assert_eq!(redis::cmd("GET").arg(&other).query::<String>(&mut client).unwrap(), state);
    let keys: Vec<String> = redis::cmd("KEYS").arg("other:*receipt*").query(&mut client).unwrap();
    assert_eq!(keys, [""; 0]);
    assert_eq!(refund(&gateway, "one", &receipt), "applied");
}
