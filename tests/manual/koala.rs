//! The config of docs/migrating/koala.md: what each of Koala's rule types and operators refuses, and its calls.

use serde_json::{Value, json};

use super::{admitted, post, state};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::manual::{Page, app};
use crate::support::upstream::Upstream;

fn rules(changes: &[(&str, &str)]) -> (Gateway, Upstream) {
    let app = app();
    (Page::read("docs/migrating/koala.md").under("An example rule file")[0].start_changed(&app, None, changes), app)
}

/// Returns how many of ten equal calls pass.
fn passed(gateway: &Gateway, arguments: &str) -> usize {
    admitted(gateway, 10, &format!("/check?{arguments}"), "")
}

/// The rule that refuses a call.
fn hit(gateway: &Gateway, arguments: &str, fields: &str) -> Value {
    let response = gateway.fetch(&get(&format!("/check?{arguments}"), fields));
    let ret = response.json();
    assert_eq!(ret["result"], if response.status() == 200 { 1 } else { 2 });
    ret["return"].clone()
}

#[test]
fn rules_of_type_count() {
    let (gateway, _app) = rules(&[]);
    for (arguments, count, rule) in [
        // +, and another user.
        ("act=comment&uid=1", 1, "201"),
        ("act=comment&uid=2", 1, "201"),
        // !@: one of the staff comments as often as the day allows.
        ("act=comment&uid=7", 3, "202"),
        // {~}: both acts have one counter.
        ("act=like&uid=1", 2, "203"),
        ("act=share&uid=1", 0, "203"),
        ("act=share&uid=2", 2, "203"),
        // Without it each has its own.
        ("act=play&uid=1", 2, "204"),
        ("act=pause&uid=1", 2, "204"),
        // <, a range, >.
        ("act=post&uid=1&level=2", 1, "205"),
        ("act=post&uid=2&level=-1", 1, "205"),
        ("act=post&uid=1&level=3", 2, "206"),
        ("act=post&uid=1&level=8", 0, "206"),
        ("act=post&uid=1&level=9&app=ios", 3, "207"),
        ("act=post&uid=2&level=10", 3, "207"),
    ] {
        assert_eq!(passed(&gateway, arguments), count, "{arguments}");
        assert_eq!(hit(&gateway, arguments, ""), rule, "{arguments}");
    }
    // No rule takes these: another act, != and a parameter that is absent.
    for arguments in ["act=read&uid=1&level=x", "act=post&uid=3&level=9&app=web", "act=like"] {
        assert_eq!(passed(&gateway, arguments), 10, "{arguments}");
    }
    // A level that is no integer, which no rule took there, is refused.
    for level in ["x", "", "%2B9", "9.0", "9%20", "9e0"] {
        let target = format!("/check?act=post&uid=9&level={level}");
        assert_eq!(gateway.get(&target).status(), 400, "{level}");
    }
}

#[test]
fn leaving_a_parameter_out_is_no_way_around() {
    let (gateway, _app) = rules(&[("missing = \"skip\"", "missing = \"shared\"")]);
    assert_eq!(passed(&gateway, "act=like"), 2);
    let (gateway, _app) = rules(&[("missing = \"skip\"", "missing = \"refuse\"")]);
    assert_eq!(gateway.get("/check?act=like").status(), 403);
}

#[test]
fn rules_of_type_direct() {
    let (gateway, _app) = rules(&[]);
    let from = |address: &str| format!("x-forwarded-for: {address}\r\n");
    assert_eq!(hit(&gateway, "act=read&uid=66", ""), "102");
    assert_eq!(hit(&gateway, "act=read&uid=6", ""), Value::Null);
    for (address, rule) in [
        ("192.0.2.1", json!("103")),
        ("192.0.2.9", json!("103")),
        ("192.0.2.10", Value::Null),
        ("192.0.3.5", Value::Null),
    ] {
        assert_eq!(hit(&gateway, "act=read&uid=1", &from(address)), rule, "{address}");
    }
    // Admitted addresses are not counted either.
    let asks = |address: &str| admitted(&gateway, 5, "/check?act=like&uid=5", &from(address));
    assert_eq!([asks("10.0.24.255"), asks("10.0.25.1"), asks("10.0.24.1")], [5, 2, 5]);
}

#[test]
fn rules_of_type_base_and_leak() {
    let (gateway, _app) = rules(&[]);
    assert_eq!(passed(&gateway, "act=reply&uid=1"), 3, "two a day, then one every two seconds");
    let refused = gateway.get("/check?act=reply&uid=1");
    assert_eq!(refused.json()["return"], "301");
    let wait: u64 = refused.get("retry-after").unwrap().parse().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(wait));
    assert_eq!(passed(&gateway, "act=reply&uid=1"), 1);

    assert_eq!([passed(&gateway, "act=sms&phone=1"), passed(&gateway, "act=sms&phone=2")], [3, 3]);
    assert_eq!(hit(&gateway, "act=sms&phone=1", ""), "401");
}

/// The response to one decision.
fn decide(gateway: &Gateway, operation: &str, limits: &[&str], key: &Value) -> Value {
    let body = json!({ "operation": operation, "decisions": [{ "limits": limits, "key": key }] });
    let response = post(gateway, "/-/decide", &body);
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()["decisions"][0].clone()
}

#[test]
fn browse_update_write_through_and_feedback() {
    let (gateway, _app) = rules(&[]);
    let left = |limit: &str| state(&gateway, limit, "key=1&cost=0")["remaining"].clone();
    for (limits, part, count) in [
        (&["202"][..], "query:uid", 3),
        (&["203"], "query:uid", 2),
        (&["301-base", "301"], "query:uid", 3),
        (&["401"], "query:phone", 3),
    ] {
        let key = json!({ part: "1" });
        // Browse reserves nothing and changes nothing.
        for _ in 0..5 {
            assert_eq!(decide(&gateway, "peek", limits, &key)["admitted"], true, "{limits:?}");
        }
        // Update after each success.
        for number in 0..count {
            assert_eq!(decide(&gateway, "peek", limits, &key)["admitted"], true, "{limits:?}, call {number}");
            assert_eq!(decide(&gateway, "take", limits, &key)["admitted"], true, "{limits:?}, call {number}");
        }
        assert_eq!(decide(&gateway, "peek", limits, &key)["admitted"], false, "{limits:?}");
        assert_eq!(decide(&gateway, "peek", limits, &json!({ part: "2" }))["admitted"], true, "{limits:?}");
    }
    // With write-through what is refused is not charged: the first feedback makes room for one.
    for _ in 0..5 {
        assert_eq!(decide(&gateway, "take", &["202", "203"], &json!({ "query:uid": "1" }))["admitted"], false);
    }
    assert_eq!([left("202"), left("203")], [0, 0]);
    for limit in ["202", "203"] {
        let units = json!({ "key": { "query:uid": "1" }, "cost": 1 });
        assert_eq!(post(&gateway, &format!("/-/limits/{limit}/refund"), &units).json()["applied"], true);
    }
    let taken = decide(&gateway, "take", &["202", "203"], &json!({ "query:uid": "1" }));
    assert_eq!(taken["admitted"], true);
    let receipt = json!({ "receipt": taken["limits"][0]["receipt"] });
    assert_eq!(post(&gateway, "/-/limits/202/refund", &receipt).json()["applied"], true);
    assert_eq!([left("202"), left("203")], [1, 0]);

    // direct, and several rules and subjects at once.
    let banned = decide(&gateway, "peek", &["102", "202", "203"], &json!({ "query:uid": "1" }));
    assert_eq!(banned["limits"][0]["reason"], "blocked");
    let body = json!({ "operation": "peek", "decisions": [
        { "limits": ["202", "203"], "key": { "query:uid": "1" } },
        { "limits": ["202", "203"], "key": { "query:uid": "9" } },
        { "limits": ["401"], "key": { "query:phone": "1" } },
    ] });
    let response = post(&gateway, "/-/decide", &body).json();
    let verdicts: Vec<Vec<&Value>> = response["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["limits"].as_array().unwrap().iter().map(|limit| &limit["admitted"]).collect())
        .collect();
    assert_eq!(verdicts, [vec![true, false], vec![true, true], vec![false]]);
}
