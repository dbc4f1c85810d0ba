//! The commands of operators: `key`, `customer`, `rollback` and `status`, and the pages that they use.

use std::process::Output;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::gateway::{Gateway, config, config_arguments, program};
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

use super::api::fetch;

/// Limits on one route, each with another kind of key.
const LIMITS: &str = r#"
[limit.per-ip]
algorithm = "fixed_window"
rate = "3/h"
key = "ip"
when = { path = "/" }
ban = { after = 3, within = "1h", for = "1h" }

[limit.daily]
algorithm = "fixed_window"
rate = "100/day"
key = [{ source = "header:x-api-key", normalize = ["lowercase"] }]
missing = "skip"

[limit.pair]
algorithm = "fixed_window"
rate = "2/day"
key = ["header:x-api-key", "path"]
missing = "skip"

[[route]]
name = "app"
respond = { body = "in" }
limits = ["per-ip", "daily", "pair"]
"#;

pub fn output(gateway: &Gateway, arguments: &[&str]) -> (i32, String, String) {
    let command = program().args(arguments).arg("-c").arg(gateway.config()).output().unwrap();
    let Output { status, stdout, stderr } = command;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Runs a command that succeeds.
#[track_caller]
pub fn run(gateway: &Gateway, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = output(gateway, arguments);
    assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}: {stdout}");
    stdout
}

#[track_caller]
pub fn run_json(gateway: &Gateway, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(gateway, &[arguments, &["--format", "json"]].concat())).unwrap()
}

fn status_of(gateway: &Gateway, key: &str, path: &str) -> u16 {
    gateway.client().fetch(&format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n\r\n"), "").status()
}

#[test]
fn a_key_is_shown_and_reset_and_a_reset_of_nothing_says_so() {
    let gateway = Gateway::start(LIMITS);
    let nothing = run(&gateway, &["key", "reset", "per-ip", "192.0.2.1"]);
    assert!(nothing.contains("there is nothing to reset"), "{nothing}");
    let statuses: Vec<u16> = (0..6).map(|_| gateway.get("/").status()).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
    let shown = run(&gateway, &["key", "show", "per-ip", "ip=127.0.0.1"]);
    for words in ["3 of 3, 0 left", "refused (banned), admitted in 59 min", "banned for 59 min", "override  none"] {
        assert!(shown.contains(words), "{words}:\n{shown}");
    }
    let reset = fetch(&gateway, "DELETE", "/-/limits/per-ip/state?key=127.0.0.1", "").json();
    assert_eq!((&reset["reset"], &reset["existed"]), (&json!(true), &json!(true)));
    assert_eq!(gateway.get("/").status(), 200, "the ban is lifted");
    assert!(run(&gateway, &["key", "reset", "per-ip", "127.0.0.1"]).contains("reset: nothing is used any more"));
    assert!(run(&gateway, &["key", "reset", "per-ip", "127.0.0.1"]).contains("there is nothing to reset"));
    // Only the ban remembers something: refusals that have not begun one.
    let over = fetch(&gateway, "GET", "/-/limits/per-ip/state?key=127.0.0.1&cost=9", "").json();
    assert_eq!(over["reason"], "never_fits");
}

#[test]
fn mistakes_on_the_command_line_are_named() {
    let gateway = Gateway::start(LIMITS);
    for (arguments, code, words) in [
        (&["key", "show", "dailyy", "acme"][..], 2, "did you mean `daily`?"),
        (&["key", "show", "pair", "acme"], 2, "keyed by header:x-api-key, path: write 2 values in this order, not 1"),
        (&["key", "show", "a b/../c", "acme"], 2, "there is no limit"),
        (&["key", "show", "per-ip", "x"], 2, "not an address"),
        (&["key", "show", "per-ip", "::1", "--rate", "1/s"], 2, "belong to `key override`"),
        (&["key", "override", "per-ip", "::1"], 2, "needs the budget"),
        (&["key", "override", "per-ip", "::1", "--rate", "5 apples"], 2, "`rate`"),
        (&["key", "override", "per-ip", "::1", "--rate", "5/s;rate=9/s"], 2, "not a number or a rate"),
        (&["key", "override", "per-ip", "::1", "--burst", "5"], 2, "`burst`"),
        (&["key", "block", "per-ip", "::1", "--for", "never"], 2, "not a duration"),
        (&["key", "block", "per-ip", "::1", "--for", "9999d"], 2, "from 1s to 3660d"),
        (&["key", "block", "per-ip", "::1", "--until", "2020-01-01T00:00:00Z"], 2, "has passed"),
        (&["key", "block", "per-ip", "::1", "--note", "a;rate=unlimited"], 2, "no `;`"),
        (&["key", "refund", "per-ip", "::1"], 2, "--units"),
        (&["customer", "acme"], 2, "SOURCE=VALUE"),
        (&["customer", "header:x-api-kez=acme"], 2, "did you mean `header:x-api-key`?"),
        (&["customer", "ip=nowhere"], 2, "not an address"),
        (&["customer", "header:x-api-key#0123456789abcdef"], 2, "has the hash 0123456789abcdef"),
        (&["status", "--admin", "https://127.0.0.1:1"], 2, "has no TLS"),
        (&["status", "--admin", "http://127.0.0.1:1"], 1, "no gateway responds"),
        (&["status", "--token-file", "/nonexistent"], 2, "No such file"),
        (&["rollback"], 1, "remembers no other config"),
    ] {
        let (found, stdout, stderr) = output(&gateway, arguments);
        assert_eq!((found, stdout.as_str()), (code, ""), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(words), "{arguments:?}: {stderr}");
        // A program reads the reason where it expects the answer.
        let (found, stdout, _) = output(&gateway, &[arguments, &["--format", "json"]].concat());
        let answer: Value = serde_json::from_str(&stdout).unwrap();
        assert!(found == code && answer["error"].as_str().unwrap().contains(words), "{arguments:?}: {stdout}");
    }
    let proxied = format!("http://{}", gateway.addr);
    let (code, _, stderr) = output(&gateway, &["status", "--admin", &proxied]);
    assert_eq!(code, 1, "{stderr}");
}

#[test]
fn a_block_and_an_override_apply_at_once_and_survive_a_restart_with_a_state_file() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("store.json");
    let config = format!("[store]\nstate = {:?}\n{LIMITS}", state.to_str().unwrap());
    let mut gateway = Gateway::start(&config);
    assert_eq!(status_of(&gateway, "acme", "/1"), 200);
    let blocked = run(&gateway, &["key", "block", "daily", "ACME", "--for", "1h", "--note", "ticket 4711"]);
    assert!(blocked.contains("blocked until") && blocked.contains("state file"), "{blocked}");
    assert_eq!([status_of(&gateway, "acme", "/2"), status_of(&gateway, "Acme", "/2")], [429, 429]);
    assert_eq!(status_of(&gateway, "other", "/2"), 200);
    // A second one replaces the first, in whatever spelling.
    run(&gateway, &["key", "override", "daily", "acme", "--rate", "1/day"]);
    assert_eq!(status_of(&gateway, "acme", "/3"), 429, "one is used already");
    run(&gateway, &["key", "block", "daily", "acme", "--note", "again"]);
    let shown = run(&gateway, &["key", "show", "daily", "acme"]);
    assert!(shown.contains("refused (blocked)") && shown.contains("blocked (again), live"), "{shown}");
    assert!(std::fs::read_to_string(&state).unwrap().contains("again"), "the file has it before the command says so");
    // Nothing is lost, however the gateway ends.
    gateway.signal("KILL");
    gateway.exit();

    let gateway = Gateway::start(&config);
    assert_eq!(status_of(&gateway, "acme", "/4"), 429, "log:\n{}", gateway.log());
    gateway.reload_with("100/day", "101/day");
    assert_eq!(status_of(&gateway, "acme", "/4"), 429, "it survives a reload");
    assert!(
        run(&gateway, &["key", "unblock", "daily", "acme"]).contains("removed: blocked (again)"),
        "{}",
        gateway.log()
    );
    assert_eq!(status_of(&gateway, "acme", "/4"), 200);
    let again = run_json(&gateway, &["key", "unblock", "daily", "acme"]);
    assert_eq!((&again["existed"], &again["override"]), (&json!(false), &Value::Null));
}

#[test]
fn an_override_of_the_config_is_not_removed_by_a_command_and_the_command_says_so() {
    let config =
        LIMITS.replace("rate = \"100/day\"\n", "rate = \"100/day\"\noverrides = [{ key = [\"acme\"], rate = 0 }]\n");
    let gateway = Gateway::start(&config);
    let kept = run(&gateway, &["key", "unblock", "daily", "acme"]);
    assert!(kept.contains("blocked by an entry in the config"), "{kept}");
    run(&gateway, &["key", "override", "daily", "acme", "--rate", "unlimited"]);
    assert_eq!(status_of(&gateway, "acme", "/1"), 200);
    let removed = run(&gateway, &["key", "override", "daily", "acme", "--remove"]);
    assert!(removed.contains("now blocked applies, from the config"), "{removed}");
    assert_eq!(status_of(&gateway, "acme", "/2"), 429);
}

#[test]
fn with_redis_a_block_reaches_the_other_gateways_and_replaces_other_spellings() {
    let redis = RedisServer::start(&[]);
    let config = format!("{}{LIMITS}", redis.store());
    let (here, there) = (Gateway::start(&config), Gateway::start(&config));
    here.wait_for_store();
    there.wait_for_store();
    let mut client = redis.client();
    let hash = "sg:overrides:daily";
    let () = redis::cmd("HSET").arg(hash).arg("ac%4De").arg("rate=5/day").query(&mut client).unwrap();
    wait_until("the entry is read", || {
        run_json(&here, &["key", "show", "daily", "acme"])["override"]["text"] == "5/day"
    });
    let answer = fetch(&here, "PUT", "/-/limits/daily/override?key=acme", r#"{"block": true, "for": "1h"}"#);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(
        (&answer["existed"], &answer["kept_in"], &answer["applied"]),
        (&json!(true), &json!("redis"), &json!(true))
    );
    assert_eq!(status_of(&here, "acme", "/once"), 429, "at once");
    let fields: Vec<String> = redis::cmd("HKEYS").arg(hash).query(&mut client).unwrap();
    assert_eq!(fields, ["acme"], "the other spelling is gone");
    wait_until("the other gateway knows it", || {
        run_json(&there, &["key", "show", "daily", "acme"])["override"]["blocked"] == true
    });
    assert_eq!(status_of(&there, "acme", "/other"), 429);
    let lifted = run(&there, &["key", "unblock", "daily", "acme"]);
    assert!(lifted.contains("removed"), "{lifted}");
    let fields: Vec<String> = redis::cmd("HKEYS").arg(hash).query(&mut client).unwrap();
    assert!(fields.is_empty());
    let since = Instant::now();
    wait_until("it is lifted everywhere", || status_of(&here, "acme", &format!("/{:?}", since.elapsed())) == 200);
    // A hash that is none is not overwritten.
    let () = redis::cmd("SET").arg(hash).arg("mine").query(&mut client).unwrap();
    let (code, _, stderr) = output(&here, &["key", "block", "daily", "acme"]);
    assert!(code == 1 && stderr.contains("WRONGTYPE"), "{stderr}");
    drop(redis);
    let (code, _, stderr) = output(&here, &["key", "block", "daily", "acme"]);
    assert!(code == 1 && stderr.contains("not known whether"), "{stderr}");
}

#[test]
fn with_redis_each_gateway_shows_what_the_others_refused() {
    let redis = RedisServer::start(&[]);
    let secret = "[admin]\nkeys_secret = \"the same at all gateways, 32 bytes\"\n";
    let config = format!("[store]\nurl = \"{}\"\n{secret}{LIMITS}", redis.url());
    let (here, there) = (Gateway::start(&config), Gateway::start(&config));
    let statuses: Vec<u16> = (0..3).map(|_| status_of(&there, "acme", "/p")).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let own = fetch(&there, "GET", "/-/refusals", "").json();
    let own = &own["refusals"][0];
    let id = own["request_id"].as_str().unwrap().to_owned();
    let mut seen = Value::Null;
    wait_until("the other gateway knows the request", || {
        seen = fetch(&here, "GET", &format!("/-/refusals?request_id={id}"), "").json();
        seen["refusals"].as_array().unwrap().len() == 1
    });
    assert_eq!((&seen["refusals"][0], &seen["gateways"]), (own, &json!(2)), "equal at both");
    for customer in ["header:x-api-key=acme", "ip=127.0.0.1"] {
        let answer = run_json(&here, &["customer", customer]);
        assert_eq!((&answer["refusals"][0], &answer["gateways"]), (own, &json!(2)), "{customer}");
    }
    let text = run(&here, &["customer", "header:x-api-key=acme"]);
    assert!(text.contains("Last refusals at 2 gateways") && text.contains(&id), "{text}");
    let other = run_json(&here, &["customer", "header:x-api-key=other"]);
    assert_eq!(other["refusals"], json!([]));
    let text = run(&here, &["customer", "header:x-api-key=other"]);
    assert!(text.contains("or among the last 100 of each other gateway"), "{text}");
    assert_eq!(seen["keys_comparable"], true);
    // The key, as the refusal shows it, selects its refusals.
    let key = own["limits"][0]["key"].as_str().unwrap().replace('#', "%23");
    let of_key = |key: &str| fetch(&here, "GET", &format!("/-/refusals?limit=pair&key={key}&n=200"), "").json();
    assert_eq!(of_key(&key)["refusals"], json!([own]));
    assert_eq!(of_key("ip=127.0.0.1")["refusals"], json!([]));
    assert_eq!(fetch(&here, "GET", "/-/refusals?key=", "").status(), 400);
    // A client that is refused all the time does not displace the refusals of others.
    (0..150).for_each(|_| assert!(status_of(&there, "flood", "/p") > 0));
    let mut listed = Vec::new();
    wait_until("the other gateway knows the flood", || {
        let answer = fetch(&here, "GET", "/-/refusals?n=200", "").json();
        listed = answer["refusals"].as_array().unwrap().clone();
        listed.len() > 10
    });
    assert_eq!((listed.len(), &listed[10]), (11, own), "10 of the flood");
    drop(redis);
    wait_until("each shows its own without Redis", || {
        let answer = fetch(&here, "GET", "/-/refusals", "").json();
        (&answer["refusals"], &answer["gateways"]) == (&json!([]), &json!(1))
    });
}

#[test]
fn an_override_that_the_state_file_lacks_is_said_to_be_in_memory() {
    let gateway = Gateway::launch(&[], |dir| {
        let kept = dir.join("kept");
        std::fs::create_dir(&kept).unwrap();
        let store = format!("[store]\nstate = \"{}\"\n", kept.join("state").display());
        config_arguments(dir, &config("", &format!("{store}{LIMITS}")))
    });
    let block = || {
        let answer = fetch(&gateway, "PUT", "/-/limits/daily/override?key=acme", r#"{"block": true}"#);
        answer.json()["kept_in"].clone()
    };
    assert_eq!(block(), "state_file");
    std::fs::remove_dir_all(gateway.dir.path().join("kept")).unwrap();
    fetch(&gateway, "PUT", "/-/limits/daily/override?key=other", r#"{"block": true}"#);
    wait_until("the file cannot be written", || gateway.log().contains("cannot write the state file"));
    assert_eq!(block(), "memory");
}

#[test]
fn a_customer_is_shown_over_all_limits() {
    let gateway = Gateway::start(LIMITS);
    let statuses: Vec<u16> = (0..3).map(|_| status_of(&gateway, "acme", "/p")).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let answer = run_json(&gateway, &["customer", "header:x-api-key=acme"]);
    let find =
        |name: &str| answer["limits"].as_array().unwrap().iter().find(|item| item["limit"] == name).unwrap().clone();
    assert_eq!((&find("daily")["used"], &find("daily")["remaining"]), (&json!(2), &json!(98)));
    let pair = find("pair");
    assert_eq!(
        (&pair["admitted"], &pair["used"], &pair["refused_min"]),
        (&json!(false), &json!(2), &json!(1)),
        "{pair}"
    );
    assert_eq!((&answer["incomplete"], &answer["limits_left_out"]), (&json!(["pair"]), &json!(0)));
    let refusal = &answer["refusals"][0];
    assert_eq!((&refusal["limits"][0]["limit"], refusal["request_id"].is_string()), (&json!("pair"), true));
    // By the hash of the log, and by the address.
    let hash = pair["key"].as_str().unwrap().split(',').next().unwrap().replace("header:x-api-key#", "");
    let by_hash = run_json(&gateway, &["customer", &format!("header:x-api-key#{hash}")]);
    let uses = |answer: &Value| {
        let limits = answer["limits"].as_array().unwrap().iter();
        limits.map(|item| (item["limit"].clone(), item["key"].clone(), item["used"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(uses(&by_hash), uses(&answer));
    assert!(!by_hash.to_string().contains("acme"), "{by_hash}");
    let by_address = run_json(&gateway, &["customer", "ip=127.0.0.1"]);
    assert_eq!(by_address["refusals"].as_array().unwrap().len(), 1);
    assert_eq!(by_address["limits"].as_array().unwrap().len(), 1);
    let text = run(&gateway, &["customer", "header:x-api-key=acme"]);
    for words in ["refused now by 1 of 2", "2 of 2", "Last refusals", "Not complete: the key of pair"] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    let unknown = run(&gateway, &["customer", "header:x-api-key=nobody"]);
    assert!(unknown.contains("1 more limit has seen nothing of it (--all lists it)"), "{unknown}");
}

#[test]
fn roles_decide_who_may_look_and_who_may_change() {
    let tokens = ["read", "keys", "limits", "edit"].map(|role| {
        format!("[[admin.tokens]]\nname = \"{role}\"\ntoken = \"secret-of-{role}-0123\"\nrole = \"{role}\"\n")
    });
    let gateway = Gateway::with_config(&crate::support::gateway::config("", &format!("{}{LIMITS}", tokens.concat())));
    let call = |role: &str, arguments: &[&str]| {
        let command = program()
            .args(arguments)
            .args(["--admin", &format!("http://{}", gateway.admin), "-c", "/nonexistent/sluicegate.toml"])
            .env("SLUICEGATE_ADMIN_TOKEN", format!("secret-of-{role}-0123"))
            .output()
            .unwrap();
        (command.status.code().unwrap(), String::from_utf8(command.stderr).unwrap())
    };
    for (role, arguments, code) in [
        ("read", &["status"][..], 0),
        ("read", &["customer", "ip=::1"], 1),
        ("keys", &["customer", "ip=::1"], 0),
        ("keys", &["key", "show", "per-ip", "::1"], 0),
        ("keys", &["key", "block", "per-ip", "::1"], 1),
        ("limits", &["key", "block", "per-ip", "::1"], 0),
        ("limits", &["key", "unblock", "per-ip", "::1"], 0),
        ("wrong", &["status"], 1),
    ] {
        let (found, stderr) = call(role, arguments);
        assert_eq!(found, code, "{role} {arguments:?}: {stderr}");
        assert!(code == 0 || stderr.matches("needs").count() == 1, "{role} {arguments:?}: {stderr}");
    }
    let audit = call_audit(&gateway);
    assert!(audit.contains("override set: rate=0") && audit.contains("\"token\":\"limits\""), "{audit}");
}

fn call_audit(gateway: &Gateway) -> String {
    let field = "authorization: Bearer secret-of-edit-0123\r\n";
    gateway.admin_request("GET", "/-/audit", field, "").text()
}

#[test]
fn a_rollback_goes_to_the_config_before() {
    let gateway = Gateway::start(LIMITS);
    gateway.reload_with("100/day", "7/day");
    assert_eq!(run_json(&gateway, &["key", "show", "daily", "acme"])["policy"]["quota"], 7);
    let done = run(&gateway, &["rollback"]);
    assert!(done.contains("rolled back to the config of generation 1") && done.contains("daily"), "{done}");
    assert_eq!(run_json(&gateway, &["key", "show", "daily", "acme"])["policy"]["quota"], 100);
    let status = run(&gateway, &["status"]);
    assert!(status.contains("! After a rollback, the config of generation"), "{status}");
    let listed = gateway.admin("/-/status").json()["problems"].clone();
    let kinds: Vec<&Value> = listed.as_array().unwrap().iter().map(|problem| &problem["kind"]).collect();
    assert_eq!(kinds, ["pinned"], "{listed}");
    assert!(run(&gateway, &["rollback", "--list"]).contains("active"));
}

#[test]
fn budgets_are_shown_as_they_are_written_and_shadow_limits_as_such() {
    let gateway = Gateway::start(
        r#"
[limit.per-ip]
rate = "6/min"
burst = 2
key = "ip"
ban = { after = 1, within = "1h", for = "1h" }

[limit.try]
rate = "1/h"
burst = 1
key = "ip"
mode = "shadow"

[[route]]
name = "app"
respond = { body = "in" }
limits = ["per-ip", "try"]
"#,
    );
    let statuses: Vec<u16> = (0..4).map(|_| gateway.get("/").status()).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    let shown = run(&gateway, &["key", "show", "per-ip", "127.0.0.1"]);
    assert!(shown.contains("per-ip (6/min, burst 2, by ip)") && shown.contains("banned for 59 min"), "{shown}");
    // The ban does not hide when the budget is full again.
    let state = run_json(&gateway, &["key", "show", "per-ip", "127.0.0.1"]);
    assert!(state["admitted"] == false && state["reset_ms"].as_i64().unwrap() <= 20_000, "{state}");
    assert!(state["retry_after_ms"].as_i64().unwrap() > 3_000_000, "{state}");
    let text = run(&gateway, &["customer", "ip=127.0.0.1"]);
    assert!(text.contains("per-ip, try (shadow)") && text.contains("REFUSED HERE IN 10 MIN"), "{text}");
    let text = run(&gateway, &["key", "override", "per-ip", "192.0.2.1", "--rate", "200/day"]);
    assert!(text.contains("ip=192.0.2.1: 200/day, burst 2,"), "{text}");
    let text = run(&gateway, &["key", "block", "try", "192.0.2.1"]);
    assert!(text.contains("refuses nobody"), "{text}");
    run(&gateway, &["key", "block", "per-ip", "192.0.2.1"]);
    let text = run(&gateway, &["key", "reset", "per-ip", "192.0.2.1"]);
    assert!(text.contains("it stays blocked") && text.contains("key unblock` with the same key"), "{text}");
}
