//! `usage` of limits: what keys used by day, on both stores, over restarts and outages.

use serde_json::{Value, json};

use crate::support::gateway::{Gateway, config, program};
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

use super::api::fetch;

const LIMITS: &str = r#"
[limit.daily]
algorithm = "fixed_window"
rate = "5/day"
key = "header:x-api-key"
missing = "skip"
usage = "90d"
refund_on = [404]

[limit.free]
algorithm = "fixed_window"
rate = "5/day"
key = "ip"

[[route]]
name = "missing"
path = "/missing"
respond = { status = 404 }
limits = ["daily"]

[[route]]
name = "app"
path = "/"
respond = { body = "in" }
limits = ["daily"]
"#;

fn send(gateway: &Gateway, key: &str, path: &str) -> u16 {
    gateway.client().fetch(&format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n\r\n"), "").status()
}

fn output(gateway: &Gateway, arguments: &[&str]) -> (i32, String) {
    let output = program().args(["usage"]).args(arguments).arg("-c").arg(gateway.config()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Returns admitted, refused and units of each key today.
fn usage(gateway: &Gateway) -> Vec<(String, [i64; 3])> {
    let (code, text) = output(gateway, &["daily", "--format", "csv"]);
    assert_eq!(code, 0, "{text}");
    let rows = text.lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |place: usize| cells[place].parse().unwrap();
        (cells[2].to_owned(), [number(3), number(4), number(5)])
    });
    rows.collect()
}

fn one(gateway: &Gateway, key: &str) -> [i64; 3] {
    let key = format!("header:x-api-key={key}");
    usage(gateway).into_iter().find(|(found, _)| *found == key).map_or([0; 3], |(_, numbers)| numbers)
}

#[test]
fn each_decision_refund_and_block_is_counted_and_a_restart_keeps_them() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("store.json");
    let text = format!("[store]\nstate = {:?}\n{LIMITS}", state.to_str().unwrap());
    let mut gateway = Gateway::start(&text);
    let statuses: Vec<u16> = (0..7).map(|_| send(&gateway, "acme", "/")).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!([send(&gateway, "other", "/missing"), send(&gateway, "other", "/")], [404, 200]);
    // A refunded request was admitted, and charges nothing.
    assert_eq!((one(&gateway, "acme"), one(&gateway, "other")), ([5, 2, 5], [2, 0, 1]));
    let refund =
        fetch(&gateway, "POST", "/-/limits/daily/refund", r#"{"key": {"header:x-api-key": "acme"}, "cost": 2}"#);
    assert_eq!(refund.json()["applied"], true);
    let block = fetch(&gateway, "PUT", "/-/limits/daily/override?key=other", r#"{"block": true}"#);
    assert_eq!(block.status(), 200);
    assert_eq!(send(&gateway, "other", "/"), 429);
    assert_eq!((one(&gateway, "acme"), one(&gateway, "other")), ([5, 2, 3], [2, 1, 1]));
    gateway.signal("TERM");
    gateway.exit();

    let gateway = Gateway::start(&text);
    assert_eq!(send(&gateway, "acme", "/"), 200);
    assert_eq!(one(&gateway, "acme"), [6, 2, 4]);
    let (code, table) = output(&gateway, &["daily"]);
    assert!(code == 0 && table.starts_with("KEY ") && table.contains("header:x-api-key=acme"), "{table}");
    let (code, text) = output(&gateway, &["daily", "--from", "2020-01-01", "--to", "2020-01-31", "--format", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, report["days"].as_array().unwrap().len(), &report["days"][30]["keys"]), (0, 31, &json!([])));
    for (arguments, words) in [
        (&["free"][..], "keeps no usage; set `usage = \"90d\"`"),
        (&["dailyy"], "did you mean `daily`?"),
        (&["daily", "--from", "2026-02-02", "--to", "2026-02-01"], "is after"),
        (&["daily", "--from", "2020-01-01", "--to", "2026-02-01"], "732 days at most"),
        (&["daily", "--from", "soon"], "invalid value"),
    ] {
        let (code, text) = output(&gateway, arguments);
        assert!(code == 2 && text.contains(words), "{arguments:?}: {code} {text}");
    }
    gateway.assert_metric("usage_lost_total", &[("limit", "daily")], 0.0);
    assert!(!gateway.metrics().contains("usage_lost_total{limit=\"free\"}"), "a limit without it pays nothing");
}

#[test]
fn exempt_keys_and_refunds_of_tenants_are_counted_under_their_names() {
    let limits = r#"
[limit.daily]
algorithm = "fixed_window"
rate = "2/day"
key = "header:x-api-key"
missing = "skip"
usage = "90d"
overrides = [{ key = ["free"], rate = "unlimited" }]

[limit.other]
rate = "1/day"
key = "header:x-other"
missing = "skip"

[limit.shared]
rate = "100/day"
key = "all"
fair = { key = "header:x-tenant" }
usage = "90d"

[[route]]
path = "/"
respond = { body = "in" }
limits = ["daily", "other"]
"#;
    let gateway = Gateway::start(limits);
    let statuses: Vec<u16> = (0..5).map(|_| send(&gateway, "free", "/")).collect();
    assert_eq!(statuses, [200; 5]);
    // Another limit refuses the second of these.
    let both = || {
        let head = "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: free\r\nx-other: o\r\n\r\n";
        gateway.client().fetch(head, "").status()
    };
    assert_eq!([both(), both()], [200, 429]);
    assert_eq!(one(&gateway, "free"), [6, 0, 6]);

    let body =
        r#"{"operation": "take", "decisions": [{"limits": ["shared"], "key": {"header:x-tenant": "t"}, "cost": 7}]}"#;
    let taken = fetch(&gateway, "POST", "/-/decide", body).json();
    let receipt = taken["decisions"][0]["limits"][0]["receipt"].as_str().unwrap_or_else(|| panic!("{taken}"));
    let refund = fetch(&gateway, "POST", "/-/limits/shared/refund", json!({ "receipt": receipt }).to_string());
    assert_eq!(refund.json()["applied"], true, "{}", refund.text());
    let (code, text) = output(&gateway, &["shared", "--format", "csv"]);
    // One row, of the tenant, with nothing left of its charge.
    let rows: Vec<&str> = text.lines().skip(1).collect();
    assert!(code == 0 && rows.len() == 1 && rows[0].contains("header:x-tenant=t"), "{text}");
    assert!(rows[0].ends_with(",1,0,0"), "{text}");
}

#[test]
fn gateways_with_one_redis_add_up_and_a_lost_reply_counts_nothing_twice() {
    let redis = RedisServer::start(&[]);
    let text = format!("{}{LIMITS}", redis.store().replace("10s", "1s"));
    let (mut here, there) = (Gateway::start(&text), Gateway::start(&text));
    here.wait_for_store();
    there.wait_for_store();
    for place in 0..6 {
        send(if place % 2 == 0 { &here } else { &there }, "acme", "/");
    }
    wait_until("both have saved", || one(&there, "acme") == [5, 1, 5]);
    // Redis applies a batch, and the reply comes too late: the gateway sends the batch again.
    redis.signal("STOP");
    // Both are within the share that this gateway admits alone.
    for _ in 0..2 {
        send(&here, "late", "/");
    }
    std::thread::sleep(std::time::Duration::from_millis(2500));
    redis.signal("CONT");
    wait_until("it is saved once", || one(&there, "late")[0] == 2);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(one(&there, "late")[0], 2);
    // What was decided in the last second is saved when the process ends.
    assert_eq!(send(&here, "last", "/"), 200);
    here.signal("TERM");
    here.exit();
    assert_eq!(one(&there, "last"), [1, 0, 1]);
    let mut client = redis.client();
    let keys: Vec<String> = redis::cmd("KEYS").arg("sg:usage:*").query(&mut client).unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let seconds: i64 = redis::cmd("TTL").arg(&keys[0]).query(&mut client).unwrap();
    assert!((90 * 86_400..=91 * 86_400).contains(&seconds), "{seconds}");
}

/// A reload that changes how long usage is kept loses nothing of the day, and Redis keeps the day for the new time.
#[test]
fn a_changed_retention_continues_the_day() {
    const DAY_S: i64 = 86_400;
    let redis = RedisServer::start(&[]);
    let text = format!("{}{LIMITS}", redis.store());
    let gateway = Gateway::start(&text);
    gateway.wait_for_store();
    let mut admitted = 0;
    for kept_days in [90, 7, 30] {
        gateway.reload_with("usage = \"", &format!("usage = \"{kept_days}d\" # "));
        assert_eq!(send(&gateway, "acme", "/"), 200);
        admitted += 1;
        assert_eq!(one(&gateway, "acme"), [admitted, 0, admitted], "{kept_days} days");
        let keys: Vec<String> = redis::cmd("KEYS").arg("sg:usage:daily:*").query(&mut redis.client()).unwrap();
        let ttl: i64 = redis::cmd("TTL").arg(&keys[0]).query(&mut redis.client()).unwrap();
        assert!((kept_days * DAY_S..=(kept_days + 1) * DAY_S).contains(&ttl), "{kept_days} days: {ttl}");
    }
}

#[test]
fn readers_see_keys_as_logs_show_them() {
    let tokens = ["keys", "edit"].map(|role| {
        format!("[[admin.tokens]]\nname = \"{role}\"\ntoken = \"secret-of-{role}-0123\"\nrole = \"{role}\"\n")
    });
    let gateway = Gateway::with_config(&config("", &format!("{}{LIMITS}", tokens.concat())));
    assert_eq!(send(&gateway, "acme", "/"), 200);
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let shown = |role: &str| {
        let field = format!("authorization: Bearer secret-of-{role}-0123\r\n");
        gateway.admin_request("GET", &format!("/-/limits/daily/usage?day={today}"), &field, "").text()
    };
    assert!(shown("edit").contains("header:x-api-key=acme"), "{}", shown("edit"));
    assert!(shown("keys").contains("header:x-api-key#") && !shown("keys").contains("acme"), "{}", shown("keys"));
}

#[test]
fn a_refund_counts_what_it_gave_back() {
    let redis = RedisServer::start(&[]);
    for store in [String::new(), format!("[store]\nurl = \"{}\"\ndeadline = \"1s\"\n", redis.url())] {
        let gateway = Gateway::start(&format!("{store}{LIMITS}"));
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        let statuses: Vec<u16> = (0..3).map(|_| send(&gateway, "acme", "/")).collect();
        assert_eq!(statuses, [200; 3]);
        let key = json!({ "header:x-api-key": "acme" });
        let refund = |body: Value| fetch(&gateway, "POST", "/-/limits/daily/refund", body.to_string()).json();
        let whole = refund(json!({ "key": key, "cost": 50 }));
        assert_eq!((&whole["applied"], &whole["units"]), (&json!(true), &json!(3)), "{whole}");
        assert!(whole["key"].as_str().unwrap().starts_with("header:x-api-key#"), "{whole}");
        wait_until("the refund is counted", || one(&gateway, "acme") == [3, 0, 0]);
        let nothing = refund(json!({ "key": key, "cost": 50 }));
        assert_eq!((&nothing["applied"], &nothing["units"]), (&json!(false), &json!(0)), "{nothing}");

        // A receipt gives back what is left of its charge.
        let decisions = json!({ "operation": "take", "decisions": [{ "limits": ["daily"], "key": key, "cost": 2 }] });
        let take = || fetch(&gateway, "POST", "/-/decide", decisions.to_string()).json();
        let receipt = take()["decisions"][0]["limits"][0]["receipt"].clone();
        assert_eq!(refund(json!({ "key": key, "cost": 1 }))["units"], 1);
        assert_eq!(refund(json!({ "receipt": receipt }))["units"], 1);
        wait_until("both are counted", || one(&gateway, "acme") == [4, 0, 0]);

        let command = |units: &str| {
            let arguments = ["key", "refund", "daily", "acme", "--units", units, "-c"];
            let output = program().args(arguments).arg(gateway.config()).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        (0..2).for_each(|_| assert_eq!(send(&gateway, "acme", "/"), 200));
        let text = command("1");
        assert!(text.starts_with("daily header:x-api-key#") && text.ends_with(": refunded 1 unit\n"), "{text}");
        let text = command("9");
        assert!(text.ends_with(": refunded 1 unit, all that the key had used\n"), "{text}");
        wait_until("the commands are counted", || one(&gateway, "acme") == [6, 0, 0]);
    }
}
