//! Receipts by the clock of the store, not by those of the gateways that give and take them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::gateways::apart;
use crate::stores::RedisServer;
use crate::support::client::Client;
use crate::support::gateway::Gateway;

fn ask(gateway: &Gateway, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n", body.len());
    let answer = Client::connect(gateway.admin).ask(&head, &body);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

/// Units left and the receipt.
fn take(gateway: &Gateway, cost: i64) -> (Value, Value) {
    let body = json!({ "operation": "take", "decisions": [{ "limits": ["one"], "cost": cost }] });
    let mut limit = ask(gateway, "/-/decide", &body)["decisions"][0]["limits"][0].take();
    assert_eq!(limit["source"], "store");
    (limit["remaining"].take(), limit["receipt"].take())
}

/// `applied`, or why not.
fn refund(gateway: &Gateway, receipt: &Value) -> String {
    let answer = ask(gateway, "/-/limits/one/refund", &json!({ "receipt": receipt }));
    if answer["applied"] == true { "applied".to_owned() } else { answer["reason"].as_str().unwrap().to_owned() }
}

/// A charge that heals within a second, at gateways ten seconds apart: the receipt is good for that
/// second everywhere, and for no longer anywhere.
#[test]
fn a_receipt_counts_once_whatever_the_clocks_say() {
    let server = RedisServer::start(&[]);
    let limit = "[limit.one]\nrate = \"2/s\"\nburst = 5\nkey = \"all\"\n\n[[route]]\npath = \"/\"\n\
                 upstream = \"echo:\"\nlimits = [\"one\"]\n\n[[route]]\npath = \"/clock\"\nupstream = \"echo:\"\n";
    let [behind, ahead] = apart(&server, limit);
    for (one, other) in [(&behind, &ahead), (&ahead, &behind), (&ahead, &ahead)] {
        let (left, receipt) = take(one, 2);
        assert_eq!(left, 3);
        assert_eq!(
            [refund(other, &receipt), refund(one, &receipt), refund(other, &receipt)],
            ["applied", "used", "used"]
        );
        let (_, unused) = take(one, 2);
        std::thread::sleep(Duration::from_millis(1100));
        // Both have healed; what is charged now belongs to others.
        assert_eq!(take(one, 5).0, 0);
        for gateway in [one, other] {
            assert_eq!([refund(gateway, &receipt), refund(gateway, &unused)], ["expired", "expired"]);
        }
        let reset =
            Client::connect(one.admin).ask("DELETE /-/limits/one/state HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", "");
        assert_eq!(reset.status(), 200, "{}", reset.text());
    }
}

/// Given back when most of it has healed: what is left of it, not what others have charged since.
#[test]
fn a_receipt_is_worth_what_has_not_healed() {
    let server = RedisServer::start(&[]);
    let store = format!("[store]\nurl = \"{}\"\ndeadline = \"5s\"\n", server.url());
    let gateway = Gateway::start(&format!(
        "{store}\n[limit.one]\nrate = \"2/s\"\nburst = 5\nkey = \"all\"\n\n[[route]]\nupstream = \"echo:\"\n\
         limits = [\"one\"]\n"
    ));
    let (_, receipt) = take(&gateway, 2);
    std::thread::sleep(Duration::from_millis(700));
    let since = Instant::now();
    take(&gateway, 3);
    refund(&gateway, &receipt);
    let left = take(&gateway, 1).0.as_f64().unwrap();
    assert!(left <= 1.0 + 2.0 * since.elapsed().as_secs_f64(), "{left} left of a burst of 5 that was charged 3 and 1");
}
