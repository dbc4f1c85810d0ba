//! The commands without a gateway: exit codes, the text, and the examples of the manual.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::run;
use crate::support::gateway::program;

const CONFIG: &str = "
[server]
trusted_proxies = [\"10.0.0.0/8\"]
connect_timeout = \"2s\"
[[route]]
name = \"api\"
host = \"a.test\"
path = \"/v1/\"
methods = [\"GET\", \"POST\"]
upstream = \"http://127.0.0.1:3000\"
rewrite = { strip_prefix = \"/v1\", add_prefix = \"/api\" }
response_timeout = \"7s\"
deny = [\"192.0.2.66\"]
allow = [\"192.0.2.77\"]
max_body = 10
limits = [\"free\", \"paid\"]
[[route]]
name = \"static\"
path = \"= /static\"
respond = { status = 204 }
[[route]]
name = \"forward\"
path = \"/forward\"
upstream = \"echo:\"
auth = { forward = \"http://127.0.0.1:3001/verify\", copy_headers = [\"x-user\"], user = \"x-user\" }
limits = [\"per-user\"]
[limit.free]
rate = \"2/h\"
key = \"header:x-api-key\"
missing = \"skip\"
when = { method = [\"GET\"] }
overrides = [{ key = [\"vip\"], rate = \"100/h\" }, { key = [\"bad\"], rate = 0 }]
[limit.paid]
rate = \"1/h\"
key = \"header:x-api-key\"
missing = \"skip\"
after = \"free\"
[limit.per-user]
rate = \"1/h\"
key = \"user\"
missing = \"refuse\"
";

fn explain(arguments: &[&str]) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("sluicegate.toml"), CONFIG).unwrap();
    run(dir.path(), &[&["explain"], arguments].concat())
}

fn explain_json(arguments: &[&str]) -> Value {
    serde_json::from_str(&explain(&[arguments, &["--format", "json"]].concat()).1).unwrap()
}

#[test]
fn the_exit_code_shows_the_decision() {
    for (arguments, code) in [
        (&["GET", "http://a.test/v1/x"][..], 0),
        (&["GET", "http://a.test/v1/x", "--from", "192.0.2.77"], 0),
        (&["GET", "http://a.test/v1/x", "--from", "192.0.2.66"], 3),
        (&["GET", "http://a.test/v1/%2e%2e/%2e%2e/x"], 3),
        (&["GET", "http://a.test/v1/x", "-H", "x-api-key: bad"], 0),
        (&["POST", "http://a.test/v1/x", "-H", "content-length: 11"], 3),
        (&["DELETE", "http://a.test/v1/x"], 4),
        (&["GET", "a.test"], 2),
        (&["GET", "http://a.test/a b"], 2),
        (&["GET", "http://a.test/", "-H", "no colon"], 2),
        (&["GET", "http://a.test/", "-H", "a: b\r\nc: d"], 2),
        (&["G T", "http://a.test/"], 2),
        (&["GET", "http://a.test/", "--body", "missing"], 2),
        (&["GET", "http://a.test/", "--body", "/dev/zero"], 2),
        (&["GET", "http://a.test/", "-c", "missing.toml"], 2),
        (&["GET", "http://a.test/", "--admin", "http://127.0.0.1:1"], 1),
    ] {
        let (found, _, stderr) = explain(arguments);
        assert_eq!(found, code, "{arguments:?}\n{stderr}");
        assert_eq!(stderr.is_empty(), !matches!(code, 1 | 2), "{arguments:?}\n{stderr}");
    }
}

#[test]
fn a_body_that_is_no_regular_file_is_not_read() {
    // A pipe would block forever.
    let (code, _, stderr) = explain(&["GET", "http://a.test/", "--body", "/dev/zero"]);
    assert!(code == 2 && stderr.contains("/dev/zero is not a regular file"), "{code} {stderr}");
}

#[test]
fn each_step_is_explained() {
    let forwarded = "x-forwarded-for: 1.1.1.1, 192.0.2.9, 10.2.2.2";
    let found = explain_json(&["GET", "http://A.test/v1/a/../b?x=1", "--from", "10.1.1.1", "-H", forwarded]);
    assert_eq!(found["client"]["address"], "192.0.2.9");
    let hops: Vec<&str> =
        found["client"]["hops"].as_array().unwrap().iter().map(|hop| hop["text"].as_str().unwrap()).collect();
    assert_eq!(hops, ["10.2.2.2", "192.0.2.9"]);
    assert_eq!(found["request"]["path"], "/v1/b");
    assert_eq!(found["request"]["rewritten"][1]["received"], "/v1/a/../b");
    assert_eq!(found["action"]["target"], "/api/b?x=1");
    let timeouts = found["action"]["timeouts"].as_array().unwrap();
    let origin = |name: &str| timeouts.iter().find(|timeout| timeout["name"] == name).unwrap()["origin"].clone();
    assert_eq!(
        [origin("connect_timeout"), origin("response_timeout"), origin("body_timeout")],
        ["server", "route", "default"]
    );
    assert_eq!(found["limits"][0]["detail"], "the request has no header:x-api-key (missing = \"skip\")");

    let found = explain_json(&["GET", "http://a.test/v1/x", "-H", "x-api-key: vip"]);
    let limit = &found["limits"][0];
    assert_eq!([&limit["overridden"], &limit["rule"]], ["100/h", "100 per 1 h"], "as it is written, and as it counts");
    assert_eq!(found["limits"][0]["key"], "header:x-api-key=vip", "the owner of the config sees keys as they are");
    assert_eq!(found["limits"][1]["detail"], "the limit free still has capacity");
    let found = explain_json(&["POST", "http://a.test/v1/x", "-H", "x-api-key: a"]);
    assert_eq!(found["limits"][0]["conditions"][0]["result"], "false");
    assert_eq!(found["limits"][1]["detail"], "the limit free, which it comes after, does not apply");

    let found = explain_json(&["DELETE", "http://a.test/v1/x"]);
    assert_eq!(found["other_routes"][0]["name"], "api");
    assert_eq!(found["other_routes"][0]["mismatches"][0]["condition"], "method");
    assert_eq!(found["other_routes"].as_array().unwrap().len(), 3);

    // Only the auth server knows the user.
    let found = explain_json(&["GET", "http://a.test/forward"]);
    assert_eq!((&found["limits"][0]["effect"], &found["verdict"]["decision"]), (&"unknown".into(), &"admit".into()));
    assert!(found["notes"][0].as_str().unwrap().contains("was not asked"), "{found}");
    let found = explain_json(&["GET", "http://a.test/forward", "--user", "anna"]);
    assert_eq!((&found["limits"][0]["effect"], &found["limits"][0]["key"]), (&"admits".into(), &"user=anna".into()));
}

#[test]
fn cases_meet_refunds_slots_and_mistakes() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[[route]]\nname = \"login\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"failed\", \"slots\"]\n\
        [limit.failed]\nrate = \"2/h\"\nkey = \"ip\"\ncharge_on = [401]\n\
        [limit.slots]\nalgorithm = \"concurrency\"\nin_flight = 1\nkey = \"ip\"\n";
    fs::write(dir.path().join("c.toml"), config).unwrap();
    let test = |cases: &str| {
        fs::write(dir.path().join("cases.toml"), cases).unwrap();
        run(dir.path(), &["test", "-c", "c.toml", "cases.toml"])
    };
    let case = |more: &str| format!("[[case]]\nrequest = \"GET http://a.test/\"\n{more}\n");
    let free = case("repeat = 5\nat = \"+1s\"\nexpect = { decision = \"admit\" }");
    let failed = case("response = 401\nrepeat = 2\nat = \"+1s\"\nexpect = { status = 401 }");
    let locked = case("expect = { decision = \"refuse\", limit = \"failed\" }");
    let (code, stdout, stderr) = test(&[free, failed, locked].concat());
    assert_eq!(code, 0, "{stdout}{stderr}");
    let slow = case("duration = \"5s\"\nexpect = { decision = \"admit\" }");
    let busy = case("at = \"+4s\"\nexpect = { decision = \"refuse\", limit = \"slots\" }");
    let done = case("at = \"+1s\"\nexpect = { decision = \"admit\" }");
    let (code, stdout, stderr) = test(&[slow.clone(), busy, done].concat());
    assert_eq!(code, 0, "{stdout}{stderr}");
    let (code, stdout, stderr) = test(&[slow, case("expect = { decision = \"admit\" }")].concat());
    assert_eq!((code, stdout.starts_with("failed: 1 cases passed, 1 failed")), (1, true), "{stdout}{stderr}");
    assert!(stderr.contains("cases.toml:7:23") && stderr.contains("refuse by limit slots"), "{stderr}");
    for (wrong, words) in [
        ("repaet = 2\nexpect = {}", "did you mean `repeat`"),
        ("expect = { decision = \"admitt\" }", "did you mean \"admit\""),
        ("expect = { rout = \"x\" }", "did you mean `route`"),
        ("", "`expect` is missing"),
        ("at = \"soon\"\nexpect = {}", "is not a duration"),
        ("repeat = 0\nexpect = {}", "from 1 to"),
    ] {
        let (code, _, stderr) = test(&case(wrong));
        assert_eq!((code, stderr.contains(words)), (2, true), "{wrong}\n{stderr}");
    }
    let long = case("repeat = 600000\nexpect = {}");
    let (code, _, stderr) = test(&[long.clone(), long].concat());
    assert!(code == 2 && stderr.contains("cases.toml:5:1") && stderr.contains("1000000 requests"), "{code} {stderr}");
    let deep = case(&format!("expect = {}", "[".repeat(100_000)));
    let (code, _, stderr) = test(&deep);
    assert!(code == 2 && stderr.contains("cases.toml:3:74") && stderr.contains("64 levels"), "{code} {stderr}");
    assert_eq!(test("[[case]]\nrequest = \"GET http://a.test/a b\"\nexpect = {}\n").0, 2);
    assert_eq!(test("").0, 2);
}

#[test]
fn the_sample_cases_pass() {
    let run =
        program().args(["test", "-c", "conf/demo.toml", "conf/cases.toml", "--fail-under", "100"]).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && text.contains("coverage: 100%"), "{text}{}", String::from_utf8_lossy(&run.stderr));
}

/// Runs the commands of the guide on its config and its cases, and compares what they print.
#[test]
fn the_guide_shows_what_the_commands_print() {
    let page = fs::read_to_string("docs/guides/testing-limits.md").unwrap();
    let blocks = |language: &str| -> Vec<String> {
        let fence = format!("\n```{language}\n");
        let parts = page.split(&fence).skip(1);
        parts.map(|part| part.split("\n```").next().unwrap().to_owned()).collect()
    };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("sluicegate.toml"), &blocks("toml")[0]).unwrap();
    fs::write(dir.path().join("cases.toml"), &blocks("toml,fragment")[0]).unwrap();
    let path = format!("{}:{}", env!("CARGO_BIN_EXE_sluicegate").trim_end_matches("/sluicegate"), env!("PATH"));
    let shown = blocks("text");
    assert_eq!(shown.len(), 3);
    for block in shown {
        let (command, shown) = block.strip_prefix("$ ").unwrap().split_once('\n').unwrap();
        let output =
            Command::new("sh").args(["-c", command]).env("PATH", &path).current_dir(dir.path()).output().unwrap();
        let found = String::from_utf8_lossy(&output.stdout);
        assert_eq!(found.trim_end(), shown.trim_end(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
