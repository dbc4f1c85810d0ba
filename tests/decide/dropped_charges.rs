//! Limits that admit a request and are not charged for it all the same: they give no receipt, so nobody can refund what
//! others have used.

use std::fs;

use serde_json::{Value, json};

use crate::support::client::{get, post};
use crate::support::gateway::{Gateway, program};
use crate::support::http::Message;
use crate::support::limiting::{RedisServer, on_both_stores};

/// Two requests per /64, and four per /56.
const TIERS: &str = "algorithm = \"fixed_window\"\nrate = \"2/h\"\nkey = \"ip6tiers/64/56x2\"\n";
/// Fills the /56, and leaves one unit of the last /64.
const FILL: [&str; 4] = ["2001:db8:1:1::1", "2001:db8:1:1::2", "2001:db8:1:2::1", "2001:db8:1:3::1"];
const LAST: &str = "2001:db8:1:3::2";

fn gateway(redis: Option<&RedisServer>, config: &str) -> Gateway {
    let store = redis.map_or_else(String::new, RedisServer::store);
    let gateway = super::gateway(&format!("{store}{config}"));
    if redis.is_some() {
        gateway.wait_for_store();
    }
    gateway
}

fn left(gateway: &Gateway, limit: &str, key: &str) -> Value {
    gateway.admin(&format!("/-/limits/{limit}/state?key={key}")).json()["remaining"].clone()
}

/// Charges the limits over the admin API, and returns the limits of the response.
#[track_caller]
fn take(gateway: &Gateway, limits: Value, key: Value) -> Vec<Value> {
    let body = json!({ "operation": "take", "decisions": [{ "limits": limits, "key": key }] }).to_string();
    let response = gateway.admin_request("POST", "/-/decide", "content-type: application/json\r\n", body);
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()["decisions"][0]["limits"].as_array().unwrap().clone()
}

/// Returns for each limit of a response whether it has a receipt.
fn receipts(limits: &[Value]) -> Vec<bool> {
    limits.iter().map(|limit| limit["receipt"].is_string()).collect()
}

#[test]
fn a_tier_that_is_dropped_gives_no_receipt() {
    for more in ["over = \"annotate\"\n", "mode = \"shadow\"\n"] {
        on_both_stores(|redis| {
            let gateway = gateway(
                redis,
                &format!(
                    "[[route]]\npath = \"/\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"x\"]\n[limit.x]\n{TIERS}{more}"
                ),
            );
            for ip in FILL {
                assert_eq!(receipts(&take(&gateway, json!(["x"]), json!({ "ip": ip }))), [true, true], "{more}");
            }
            let limits = take(&gateway, json!(["x"]), json!({ "ip": LAST }));
            assert_eq!([&limits[0]["admitted"], &limits[1]["admitted"]], [true, false], "{limits:?}");
            assert_eq!(receipts(&limits), [false, false], "{limits:?}");
            assert_eq!((left(&gateway, "x", LAST), left(&gateway, "x.56", LAST)), (json!(1), json!(0)));
        });
    }
}

#[test]
fn a_candidate_that_is_dropped_gives_no_receipt() {
    on_both_stores(|redis| {
        let gateway = gateway(
            redis,
            "[limit.now]\nrate = \"3/h\"\nkey = \"ip\"\n[limit.new]\nrate = \"9/h\"\nkey = \"ip\"\ncandidate_of = \"now\"\n\
             [limit.all]\nrate = \"1/h\"\nkey = \"all\"\n[decide.a]\nlimits = [\"now\", \"all\"]\n",
        );
        let take = || take(&gateway, json!(["now", "new", "all"]), json!({ "ip": "192.0.2.1" }));
        assert_eq!(receipts(&take()), [true, true, true]);
        assert_eq!(receipts(&take()), [false, false, false], "the limit `all` refuses");
        assert_eq!((left(&gateway, "now", "192.0.2.1"), left(&gateway, "new", "192.0.2.1")), (json!(2), json!(8)));
    });
}

/// The asking proxy would refund units of earlier requests.
#[test]
fn another_proxy_cannot_settle_what_was_not_charged() {
    on_both_stores(|redis| {
        let gateway = gateway(
            redis,
            &format!(
                "[limit.tiers]\n{TIERS}mode = \"shadow\"\nrefund_on = [\"5xx\"]\n[decide.a]\nlimits = [\"tiers\", \"plain\"]\n\
                 [limit.plain]\nrate = \"99/h\"\nkey = \"ip\"\nrefund_on = [\"5xx\"]\n"
            ),
        );
        let fetch = |ip: &str| {
            gateway.fetch(&get(
                "/decide/a",
                &format!(
                    "x-forwarded-for: {ip}\r\nx-forwarded-method: GET\r\nx-forwarded-host: a\r\nx-forwarded-uri: /\r\n"
                ),
            ))
        };
        let settle = |response: &Message| {
            assert_eq!(response.status(), 200, "{}", response.text());
            let receipt = response.get("x-limit-receipt").expect("a receipt");
            let settled =
                gateway.fetch(&post("/settle/a", 0, &format!("x-limit-receipt: {receipt}\r\nx-limit-status: 503\r\n")));
            settled.json()["settled"].clone()
        };
        FILL.iter().for_each(|ip| assert_eq!(fetch(ip).status(), 200));
        assert_eq!(settle(&fetch(LAST)), json!({ "plain": -1 }));
        assert_eq!((left(&gateway, "tiers", LAST), left(&gateway, "tiers.56", LAST)), (json!(1), json!(0)));
        let other = "2001:db8:2::1";
        assert_eq!(settle(&fetch(other)), json!({ "plain": -1, "tiers": -1, "tiers.56": -1 }));
    });
}

/// `sluicegate test` corrects charges like the gateway.
#[test]
fn test_cases_refund_only_what_was_charged() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write(
        "sluicegate.toml",
        &format!(
            "[[route]]\npath = \"/\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"x\"]\n\
             [limit.x]\n{TIERS}over = \"annotate\"\nrefund_on = [\"5xx\"]\n"
        ),
    );
    let case = |at: &str, ip: &str, response: u16, decision: &str| {
        format!(
            "[[case]]\nrequest = \"GET http://a/\"\nat = \"{at}\"\nfrom = \"{ip}\"\nresponse = {response}\n\
             expect = {{ decision = \"{decision}\" }}\n"
        )
    };
    let [a, a2, b, last] = FILL;
    let cases = [
        case("0s", a, 200, "admit"),
        case("0s", a2, 200, "admit"),
        case("0s", b, 200, "admit"),
        // The window of the last /64 begins later than that of the /56.
        case("30m", last, 200, "admit"),
        case("31m", last, 500, "annotate"),
        // The /56 is free again, and one unit of the /64 is left.
        case("61m", last, 200, "admit"),
        case("62m", last, 200, "annotate"),
    ];
    write("cases.toml", &cases.concat());
    let out = program().current_dir(dir.path()).args(["test", "cases.toml"]).output().unwrap();
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
}
