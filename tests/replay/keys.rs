//! Limits whose keys no log contains are replayed by the hashes that our own log has of them.

use serde_json::{Value, json};

use super::workdir::Dir;
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::wait_until;

fn line(ms: u64, more: &Value) -> String {
    let mut line = json!({
        "time": format!("2026-01-02T03:04:05.{ms:03}Z"), "client": "192.0.2.1", "method": "GET", "host": "a.example",
        "path": "/", "route": "/", "status": 200, "bytes": 5, "duration_ms": 1.5, "refused_by": null,
    });
    line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    format!("{line}\n")
}

fn config(limits: &str) -> String {
    format!("[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"own\"]\n{limits}")
}

const PER_KEY: &str = "[limit.own]\nrate = \"1/h\"\nburst = 1\nkey = \"header:x-api-key\"\n";

#[test]
fn equal_hashes_are_one_key() {
    let log: String = [
        json!({ "key": "header:x-api-key#00000000000000aa" }),
        json!({ "key": "header:x-api-key#00000000000000bb" }),
        json!({ "key": "ip=192.0.2.1", "keys": "ip=192.0.2.1,header:x-api-key#00000000000000aa" }),
        json!({ "key": "header:x-api-key#00000000000000aa,ip=192.0.2.1" }),
        json!({ "key": "header:x-api-key=plain%20text" }),
        json!({ "key": "header:x-api-key=plain%20text" }),
        // The log does not contain these: hidden, not logged, another header, damaged, no key.
        json!({ "key": "header:x-api-key=***" }),
        json!({ "key": "ip=192.0.2.1" }),
        json!({ "key": "header:x-other#00000000000000aa" }),
        json!({ "key": "header:x-api-key#xyz" }),
        json!({ "key": null, "keys": null }),
        json!({}),
    ]
    .iter()
    .enumerate()
    .map(|(i, more)| line(i as u64, more))
    .collect();
    let dir = Dir::new(&config(PER_KEY));
    let (code, text, stderr) = dir.replay(&["-"], log.as_bytes());
    assert_eq!(code, 0, "{stderr}");
    for words in [
        "12 requests: 3 admitted, 3 refused (25.0 %), 6 not evaluated\n",
        "  requests  6 of 3 keys\n",
        "  refused   3 (50.0 %) of 2 keys\n",
        "  note      6 requests not evaluated: header:x-api-key is not in the log\n",
        "  note      6 requests evaluated by the header:x-api-key in the keys of the log\n",
        "             2  header:x-api-key#00000000000000aa\n",
    ] {
        assert!(text.contains(words), "{words}{text}");
    }
    let limit = &dir.json(&["-"], log.as_bytes())["limits"][0];
    assert_eq!(limit["by_logged_keys"], json!({ "header:x-api-key": 6 }));
    assert_eq!(limit["not_evaluated"]["requests"], 6);
}

#[test]
fn a_request_that_had_no_key_is_judged_like_a_live_one() {
    let log = line(0, &json!({ "keys": "header:x-api-key!" })) + &line(1, &json!({ "keys": "header:x-api-key!" }));
    for (missing, admitted, refused) in [("skip", 2, 0), ("shared", 1, 1), ("refuse", 0, 2)] {
        let dir = Dir::new(&config(&format!("{PER_KEY}missing = \"{missing}\"\n")));
        let counts = &dir.json(&["-"], log.as_bytes())["requests"];
        assert_eq!((&counts["admitted"], &counts["refused"]), (&json!(admitted), &json!(refused)), "{missing}");
        assert_eq!(counts["not_evaluated"], 0);
    }
}

#[test]
fn conditions_that_no_log_has_are_reported_and_overrides_need_the_secret() {
    let log = line(0, &json!({ "key": "header:x-api-key#00000000000000aa" })).repeat(3);
    let when = Dir::new(&config(&format!("{PER_KEY}when = {{ header = {{ x-plan = \"free\" }} }}\n")));
    let (_, text, _) = when.replay(&["-"], log.as_bytes());
    assert!(text.contains("  note      3 requests not evaluated: header:x-plan is not in the log\n"), "{text}");

    let limit = format!("{PER_KEY}overrides = [{{ key = [\"acme\"], rate = \"unlimited\" }}]\n");
    let (_, text, _) = Dir::new(&config(&limit)).replay(&["-"], log.as_bytes());
    assert!(text.contains("  note      3 requests without overrides: the log has hashes"), "{text}");
    // HMAC-SHA-256 of `header:x-api-key=acme`, as openssl computes it.
    let log = line(0, &json!({ "key": "header:x-api-key#ba6543db19e33d3b" })).repeat(3);
    let secret = "[admin]\nkeys_secret = \"2f0c7b1a9d8e6f5a4b3c2d1e0f9a8b7c\"\n";
    let report = Dir::new(&config(&(limit + secret))).json(&["-"], log.as_bytes());
    assert_eq!(report["requests"]["admitted"], 3, "{report}");
    assert_eq!(report["limits"][0]["not_in_log"]["overrides"], 0);
}

#[test]
fn a_replay_of_the_own_log_repeats_the_decisions() {
    let limits = r#"
[[route]]
path = "/"
respond = { body = "in" }
limits = ["per-ip", "login", "session"]

[limit.per-ip]
rate = "1000/s"
key = "ip"

[limit.login]
algorithm = "fixed_window"
rate = "2/day"
key = ["form:user | json:/user", "ip"]
missing = "skip"

[limit.session]
algorithm = "fixed_window"
rate = "3/day"
key = "cookie:sid"
missing = "skip"
"#;
    let gateway = Gateway::with("access_log = { to = \"access.log\", all_keys = true }", limits);
    let mut refused = 0;
    for i in 0..30 {
        let form = format!("user=user{}", i % 5);
        let head = format!(
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             content-length: {}\r\n\r\n",
            form.len()
        );
        refused += u64::from(gateway.client().fetch(&head, &form).status() == 429);
        let cookie = format!("cookie: sid=s{}\r\n", i % 3);
        refused += u64::from(gateway.fetch(&get("/", &cookie)).status() == 429);
    }
    assert_eq!(refused, 20 + 21);
    let log = gateway.dir.path().join("access.log");
    wait_until("all is logged", || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 60));
    let log = std::fs::read(&log).unwrap();
    assert!(!String::from_utf8_lossy(&log).contains("user1"));
    let report = Dir::new(limits).json(&["-"], &log);
    assert_eq!(report["requests"]["refused"], 41, "{report}");
    assert_eq!((&report["requests"]["admitted"], &report["requests"]["not_evaluated"]), (&json!(19), &json!(0)));
    assert_eq!(report["limits"][1]["by_logged_keys"], json!({ "form:user | json:/user": 60 }));
    assert_eq!(report["limits"][1]["refused"], 20, "{report}");
    assert_eq!(report["limits"][2]["refused"], 21, "{report}");
}
