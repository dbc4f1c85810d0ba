//! `sluicegate explain` and `POST /-/explain` of descriptors and checks: they predict the responses to calls.

use std::fs;

use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::{framed, question};
use crate::support::gateway::{Gateway, program};
use crate::support::h2::{H2Client, Sent, post};

const CONFIG: &str = r#"
[server]
workers = 1
trusted_proxies = ["127.0.0.1"]
[admin]
listen = "127.0.0.1:0"
[[listener]]
address = "127.0.0.1:0"
serve = "grpc"

[[rls]]
domain = "edge"
descriptor = { path = "/login", remote_address = "*" }
limits = ["logins", "all-logins"]
[[rls]]
domain = "edge"
descriptor = { path = "*", remote_address = "*" }
limits = []
[[rls]]
domain = "edge"
descriptor = [{ a = "*" }]
limits = ["few"]
[[rls]]
domain = "edge"
descriptor = [{ path = "x*" }, { user = "SECRET" }]
limits = ["few-of-free"]

[limit.logins]
rate = "2/h"
key = "ip"
[limit.all-logins]
rate = "9/h"
key = "all"
mode = "shadow"
[limit.few]
algorithm = "fixed_window"
rate = "3/day"
key = "descriptor:a"
overrides = [{ key = ["bad"], rate = 0 }]
[limit.few-of-free]
rate = "3/day"
key = "descriptor:user"
when = { descriptor = { path = "xy" } }

[[route]]
name = "slow"
path = "/slow"
upstream = "echo:"
limits = ["queued"]
[limit.queued]
algorithm = "leaky_bucket"
rate = "1/s"
queue = "10s"
key = "ip"

[decide.api]
limits = ["per-key"]
[limit.per-key]
rate = "2/h"
key = "header:x-api-key"
missing = "refuse"
"#;

/// Runs `sluicegate explain` in the directory of the gateway. Returns its exit code, standard output and standard
/// error.
fn run(gateway: &Gateway, arguments: &[&str]) -> (i32, String, String) {
    let output = program().current_dir(gateway.dir.path()).arg("explain").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_descriptor_is_explained_as_it_is_decided() {
    let gateway = Gateway::with_config(CONFIG);
    fs::write(gateway.dir.path().join("c.toml"), CONFIG).unwrap();
    let rls = |entries: &[&str]| run(&gateway, &[&["-c", "c.toml", "--rls", "edge"], entries].concat());
    for (entries, code, parts) in [
        (
            &["remote_address=192.0.2.7", "path=/login"][..],
            0,
            &[
                "rule      path=/login remote_address=*\n",
                "not path=* remote_address=*  ",
                "a more specific rule applies\n",
                "logins      admits: 1 of 2 left after it\n",
                "key ip=192.0.2.7\n",
                "status    OK by logins, 1 left, until reset 1800000 ms\n",
                "note      limits are shown as if nobody had used them",
            ][..],
        ),
        (&["path=/login", "remote_address=192.0.2.7", "--hits", "3"], 3, &["can ever be left", "refuse by logins"]),
        (
            &["path=/login", "remote_address=192.0.2.7", "--hits", "0"],
            0,
            &["192.0.2.7: look\n", "OK by logins, 2 left"],
        ),
        (&["a=x", "--hits", "-2"], 0, &["a=x: refund 2\n", "few  refunds: 3 of 3 left before it, at most 3 after it"]),
        (&["a=bad"], 3, &["verdict   refuse by few: "]),
        (
            &["path=/b", "remote_address=x"],
            0,
            &["not path=/login remote_address=*  path /b is not /login\n", "status    OK\n"],
        ),
        (&["user=SECRET", "path=x"], 0, &["rule      none\n", "entry 1 user is not path; entry 2 path is not user\n"]),
        (
            &["path=x", "user=SECRET"],
            0,
            &["skipped: a condition of `when` is false", "when descriptor:path xy, found x: false"],
        ),
        (&["path=/login"], 0, &["number of entries 1 is not 2; remote_address is absent, expected *\n"]),
        (&["a=x", "+", "path=/login", "remote_address=192.0.2.7"], 0, &["OK by few, 2 left", "OK by logins, 1 left"]),
        (
            &["path=/login", "remote_address=x"],
            3,
            &["reject: a limit reads remote_address, whose value is not an IP address, so the answer is OVER_LIMIT"],
        ),
        (&["=x"], 3, &["INVALID_ARGUMENT: keys have 1 to 1024 bytes"]),
        (&["a"], 2, &[]),
        (&["+"], 2, &[]),
        (&["a=x", "+"], 2, &[]),
        (&["a=x", "--from", "192.0.2.1"], 2, &[]),
    ] {
        let (found, stdout, stderr) = rls(entries);
        assert_eq!(found, code, "{entries:?}\n{stdout}{stderr}");
        assert!(parts.iter().all(|part| stdout.contains(part)), "{entries:?} {parts:?}\n{stdout}");
    }
    let (code, stdout, _) = run(&gateway, &["-c", "c.toml", "--rls", "other", "a=x"]);
    assert!(code == 0 && stdout.contains("no [[rls]] has this domain"), "{stdout}");
    assert_eq!(run(&gateway, &["-c", "c.toml", "a=x"]).0, 2);
    assert_eq!(run(&gateway, &["-c", "c.toml", "GET", "http://a.test/", "--hits", "1"]).0, 2);
}

#[test]
fn the_live_state_of_descriptors_is_shown_and_not_charged() {
    let gateway = Gateway::with_config(CONFIG);
    let explain = |body: Value| {
        let response =
            gateway.admin_request("POST", "/-/explain", "content-type: application/json\r\n", body.to_string());
        (response.status(), serde_json::from_str::<Value>(&response.text()).unwrap_or_default())
    };
    let fetch = |hits: i64| {
        let (status, found) = explain(
            json!({ "rls": { "domain": "edge", "descriptors": [{ "entries": { "a": "KEY" }, "hits": hits }] } }),
        );
        assert_eq!(status, 200, "{found}");
        found
    };
    let mut client = H2Client::connect(gateway.addr);
    let mut call = || {
        let mut request = post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        client.fetch(request, Sent { body: &framed(&question("edge", "a", "KEY")), trailers: None }).body[6]
    };
    for left in [3, 2, 1] {
        for hits in [1, 0, -1] {
            let found = fetch(hits);
            assert_eq!(found["rls"]["descriptors"][0]["limits"][0]["state"]["remaining"], left, "{found}");
            assert_eq!(found["rls"]["descriptors"][0]["status"]["code"], "OK", "{found}");
        }
        assert_eq!(call(), 1);
    }
    let found = fetch(1);
    assert_eq!(call(), 2);
    assert_eq!((&found["verdict"]["decision"], &found["verdict"]["limit"]), (&"refuse".into(), &"few".into()));
    assert_eq!(found["rls"]["descriptors"][0]["status"]["code"], "OVER_LIMIT", "{found}");
    assert_eq!(fetch(0)["rls"]["descriptors"][0]["status"]["code"], "OVER_LIMIT");
    let refund = &fetch(-2)["rls"]["descriptors"][0];
    assert_eq!(
        (&refund["limits"][0]["state"]["remaining_after"], &refund["status"]["code"]),
        (&2.into(), &"OK".into())
    );
    assert!(!fetch(1).to_string().contains("KEY"), "values are hashed by default");
    let pairs = json!({ "rls": { "domain": "edge", "descriptors": [{ "entries": [["path", "x"], ["user", "u"]] }] } });
    assert!(!explain(pairs).1.to_string().contains("SECRET"));
    for body in [
        json!({ "rls": { "domain": "edge" } }),
        json!({ "rls": { "domain": "edge", "descriptors": [] } }),
        json!({ "rls": { "domain": "edge", "descriptors": vec![json!({ "entries": { "a": "b" } }); 17] } }),
        json!({ "rls": { "domain": "edge", "descriptors": [{ "entries": { "a": 1 } }] } }),
        json!({ "rls": { "domain": "edge", "descriptors": [{ "entries": { "a": "b" }, "hits": 0.5 }] } }),
        json!({ "rls": { "domain": "edge", "descriptors": [{ "entries": { "a": "b" } }] }, "url": "http://a.test/" }),
    ] {
        assert_eq!(explain(body.clone()).0, 422, "{body}");
    }
    for hits in [i64::MIN / 1024, i64::MAX / 1024] {
        assert_eq!(fetch(hits)["live"], true);
    }
}

#[test]
fn an_authorization_check_is_explained() {
    let gateway = Gateway::with_config(CONFIG);
    fs::write(gateway.dir.path().join("c.toml"), CONFIG).unwrap();
    let check = |name: &str, more: &[&str]| {
        let arguments = ["-c", "c.toml", "GET", "http://a.test/a/../b", "--ext-authz", name, "--from", "192.0.2.7"];
        run(&gateway, &[&arguments[..], more].concat())
    };
    let (code, stdout, _) = check("api", &["-H", "X-Api-Key: k"]);
    assert!(code == 0 && stdout.contains("per-key  admits: 1 of 2 left after it"), "{stdout}");
    assert!(stdout.contains("client    192.0.2.7: ") && stdout.contains("GET a.test/b\n"), "{stdout}");
    let (code, stdout, _) = check("api", &[]);
    assert!(code == 3 && stdout.contains("refuse"), "{stdout}");
    let (code, stdout, _) = check("api", &["-H", "x-api-key: k", "-H", "x-api-key: l"]);
    assert!(code == 3 && stdout.contains("400"), "{stdout}");
    let (code, stdout, _) = check("slow", &[]);
    assert!(code == 3 && stdout.contains("FAILED_PRECONDITION: a limit delays requests"), "{stdout}");
    let (code, stdout, _) = check("none", &[]);
    assert!(code == 3 && stdout.contains("NOT_FOUND"), "{stdout}");
    let url = format!("http://{}", gateway.admin);
    let (code, stdout, stderr) = check("api", &["-H", "x-api-key: k", "--admin", &url]);
    assert!(code == 0 && stdout.contains("1 of 2 left after it"), "{stdout}{stderr}");
}

#[test]
fn the_guide_shows_what_the_command_prints() {
    let page = fs::read_to_string("docs/guides/envoy.md").unwrap();
    let block = |fence: &str| page.split_once(fence).unwrap().1.split_once("\n```").unwrap().0;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("sluicegate.toml"), block("```toml\n")).unwrap();
    let (command, shown) = block("```text\n$ sluicegate ").split_once('\n').unwrap();
    let output = program().current_dir(dir.path()).args(command.split(' ')).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), shown);
}
