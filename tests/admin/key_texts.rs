//! Texts instead of values of keys: parts of keys as logs and reports show them, hashes, and literal values. And what
//! commands say about overrides that they replace.

use serde_json::{Value, json};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

use super::api::fetch;
use super::operators::{output, run, run_json};

const LIMITS: &str = r#"
[limit.daily]
algorithm = "fixed_window"
rate = "100/day"
key = "header:x-api-key"
missing = "skip"
usage = "9d"

[limit.watched]
algorithm = "fixed_window"
rate = "1/day"
key = "header:x-api-key"
missing = "skip"
mode = "shadow"

[[route]]
name = "app"
respond = { body = "in" }
limits = ["daily", "watched"]
"#;

/// A value that state keys and usage reports contain only as a digest.
const LONG: &str = "<img src=x onerror=alert(1)>";

fn status_of(gateway: &Gateway, key: &str) -> u16 {
    gateway.fetch(&get("/", &format!("x-api-key: {key}\r\n"))).status()
}

#[test]
fn a_text_that_is_no_value_changes_nothing() {
    let gateway = Gateway::start(LIMITS);
    for text in [
        "x-api-key=acme",
        "header:x-api-key#5f1c0a6e9b3d278",
        "header:x-api-key!",
        "header:x-name=acme",
        "ip=203.0.113.9",
    ] {
        for arguments in [
            &["key", "block", "daily", text][..],
            &["key", "show", "daily", text],
            &["key", "reset", "daily", text],
            &["key", "refund", "daily", text, "--units", "1"],
            &["key", "override", "daily", text, "--rate", "1/day"],
        ] {
            let (code, _, stderr) = output(&gateway, arguments);
            assert!(code == 2 && stderr.contains("it looks like a key"), "{arguments:?}: {stderr}");
            assert!(stderr.contains("give it as `literal`"), "{arguments:?}: {stderr}");
        }
        let customer = format!("header:x-api-key={text}");
        let (code, _, stderr) = output(&gateway, &["customer", &customer]);
        assert!(code == 2 && stderr.contains("it looks like a key"), "{customer}: {stderr}");
    }
    assert_eq!(fetch(&gateway, "GET", "/-/overrides", "").json()["total"], 0);
    // Clients may send such texts.
    let text = "header:x-name=acme";
    assert_eq!(status_of(&gateway, text), 200);
    run(&gateway, &["key", "block", "daily", text, "--literal"]);
    assert_eq!([status_of(&gateway, text), status_of(&gateway, "acme")], [429, 200]);
    let body = json!({ "key": { "header:x-api-key": { "percent": "header%3Ax-name%3Dacme" } }, "cost": 1 });
    assert_eq!(fetch(&gateway, "POST", "/-/limits/daily/refund", body.to_string()).status(), 200);
    run(&gateway, &["key", "unblock", "daily", text, "--literal"]);
    assert!(run(&gateway, &["key", "refund", "daily", text, "--literal", "--units", "9"]).contains("nothing refunded"));
    let customer = run_json(&gateway, &["customer", &format!("header:x-api-key={text}"), "--literal"]);
    assert_eq!(customer["limits"].as_array().unwrap().len(), 2);
}

#[test]
fn names_before_values_are_accepted_in_any_case_and_digests_of_reports_too() {
    let gateway = Gateway::start(LIMITS);
    assert_eq!(status_of(&gateway, "0123456789abcdef"), 200);
    assert_eq!([status_of(&gateway, LONG), status_of(&gateway, LONG)], [200, 200]);
    for text in ["0123456789abcdef", "header:X-API-Key=0123456789abcdef"] {
        assert!(run(&gateway, &["key", "show", "daily", text]).contains("1 of 100"), "{text}");
    }
    let mut report = String::new();
    wait_until("the usage is counted", || {
        report = run(&gateway, &["usage", "daily"]);
        report.contains('#')
    });
    let digest = report.split_whitespace().find(|word| word.contains('#')).unwrap().to_owned();
    assert_eq!(digest.len(), "header:x-api-key#".len() + 32, "{report}");
    assert!(run(&gateway, &["key", "show", "daily", &digest]).contains("2 of 100"));
    let uses = |customer: &str| {
        let answer = run_json(&gateway, &["customer", customer]);
        let uses =
            answer["limits"].as_array().unwrap().iter().map(|item| (item["limit"].clone(), item["used"].clone()));
        uses.collect::<Vec<_>>()
    };
    let used = vec![(json!("daily"), json!(2)), (json!("watched"), json!(1))];
    assert_eq!(uses(&digest), used);
    // As the log shows it.
    let shown = fetch(&gateway, "GET", &format!("/-/limits/daily/state?hash={}", &digest[17..]), "").json();
    assert_eq!(uses(shown["key"].as_str().unwrap()), used);
    let (code, _, stderr) = output(&gateway, &["key", "block", "daily", &digest]);
    assert!(code == 2 && stderr.contains("give the value itself"), "{stderr}");
    assert!(run(&gateway, &["key", "reset", "daily", &digest]).contains("reset: nothing is used"));
    // The refusals of a key are found by its value, which refusals show as a hash.
    run(&gateway, &["key", "block", "daily", LONG]);
    assert_eq!(status_of(&gateway, LONG), 429);
    let value = "%253Cimg%2520src%253Dx%2520onerror%253Dalert(1)%253E";
    let path = format!("/-/refusals?limit=daily&key=header:x-api-key={value}");
    assert_eq!(fetch(&gateway, "GET", &path, "").json()["refusals"].as_array().unwrap().len(), 1);
    // What a limit in shadow mode would have refused was not refused.
    let text = run(&gateway, &["customer", &format!("header:x-api-key={LONG}")]);
    assert!(text.contains("would be: 1"), "{text}");
}

#[test]
fn a_command_tells_what_it_replaces_and_names_its_own_options() {
    let gateway = Gateway::start(LIMITS);
    run(&gateway, &["key", "override", "daily", "acme", "--rate", "500/day", "--note", "gold plan"]);
    let blocked = run(&gateway, &["key", "block", "daily", "acme"]);
    assert!(blocked.contains("; this replaced 500/day (gold plan), live, set at"), "{blocked}");
    assert!(blocked.contains("which does not return"), "{blocked}");
    assert!(run(&gateway, &["key", "unblock", "daily", "acme"]).contains("the limit's own budget applies again"));
    for (arguments, words) in [
        (&["key", "refund", "daily", "acme", "--units", "0"][..], "error: --units: it must be an integer from 1"),
        (&["usage", "daily", "--from", "soon"], "it is not a day; write for example 2026-11-01, today or yesterday"),
        (&["usage", "nosuch"], "there is no limit `nosuch`; there are daily, watched"),
    ] {
        let (code, _, stderr) = output(&gateway, arguments);
        assert!(code != 0 && stderr.contains(words), "{arguments:?}: {stderr}");
    }
    assert!(run(&gateway, &["usage", "daily", "--from", "yesterday"]).contains("no key used anything"));
}

#[test]
fn what_another_gateway_has_just_blocked_is_unblocked() {
    let redis = RedisServer::start(&[]);
    // A busy machine may need longer than the default deadline.
    let config = format!("[store]\nurl = \"{}\"\ndeadline = \"1s\"\n{LIMITS}", redis.url());
    let (here, there) = (Gateway::start(&config), Gateway::start(&config));
    here.wait_for_store();
    there.wait_for_store();
    let total = |gateway: &Gateway| fetch(gateway, "GET", "/-/overrides", "").json()["total"].clone();
    for number in 0..3 {
        let key = format!("key-{number}");
        run(&here, &["key", "block", "daily", &key]);
        assert_eq!(total(&there), 1);
        let customer = run_json(&there, &["customer", &format!("header:x-api-key={key}")]);
        assert_eq!(customer["limits"][0]["override"]["blocked"], true, "{customer}");
        let lifted = run(&there, &["key", "unblock", "daily", &key]);
        assert!(lifted.contains("removed: blocked"), "{lifted}");
        let shown = run_json(&here, &["key", "show", "daily", &key]);
        assert_eq!(shown["override"], Value::Null);
    }
}

#[test]
fn a_role_that_is_missing_is_that_of_the_action() {
    let token = "[[admin.tokens]]\nname = \"all\"\ntoken = \"a-secret-of-sixteen\"\nrole = \"edit\"\n";
    let gateway = Gateway::with_config(&crate::support::gateway::config("", &format!("{token}{LIMITS}")));
    let admin = format!("http://{}", gateway.admin);
    for (action, role) in [("show", "keys"), ("reset", "limits"), ("block", "limits"), ("unblock", "limits")] {
        let arguments = ["key", action, "daily", "acme", "--admin", &admin];
        let command = crate::support::gateway::program().args(arguments).args(["-c", "/nonexistent.toml"]).output();
        let stderr = String::from_utf8(command.unwrap().stderr).unwrap();
        assert!(stderr.contains(&format!("a token with the role `{role}`")), "{action}: {stderr}");
    }
}
