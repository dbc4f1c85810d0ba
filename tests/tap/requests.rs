//! Content of a tap: every kind of request, with the fields of the access log and the decisions of all limits, and
//! never a secret.

use serde_json::json;

use super::stream::Tap;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::h2::H2Client;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

pub const LIMITS: &str = r#"
[limit.hard]
rate = "1/h"
burst = 2
key = ["ip", "header:x-key"]
missing = "skip"

[limit.soft]
rate = "1/h"
key = "ip"
mode = "shadow"

[[route]]
name = "api"
path = "/"
upstream = "echo:"
limits = ["hard", "soft"]
allow = ["127.0.7.0/24"]

[[route]]
name = "health"
path = "/health"
respond = { body = "ok" }
"#;

const SECRET: &str = "secret-value";

#[test]
fn a_request_has_the_fields_of_the_access_log_and_all_decisions() {
    for log in ["", "access_log = true\n"] {
        let gateway = Gateway::with(log, LIMITS);
        let mut tap = Tap::open(&gateway, "");
        let head = get("/a?token=secret-value&x=1", "x-key: secret-value\r\nuser-agent: \u{9b}2J\u{202e}\"\r\n");
        let statuses = [(); 3].map(|()| gateway.fetch(&head).status());
        assert_eq!(statuses, [200, 200, 429]);
        let requests = [(); 3].map(|()| tap.next());
        let refused = &requests[2];
        for (field, value) in [
            ("route", json!("api")),
            ("status", json!(429)),
            ("path", json!("/a")),
            ("query", json!("token=***&x=1")),
            ("client", json!("127.0.0.1")),
            ("limit", json!("hard")),
            ("decision", json!("deny")),
            ("reason", json!("exhausted")),
            ("refused_by", json!("hard")),
            ("user_agent", json!("\u{9b}2J\u{202e}\"")),
        ] {
            assert_eq!(refused[field], value, "{field} in {refused}");
        }
        let [hard, soft] = [0, 1].map(|place| &refused["decisions"][place]);
        assert_eq!(
            (&hard["limit"], &hard["decision"], &hard["remaining"]),
            (&json!("hard"), &json!("deny"), &json!(0))
        );
        let key = hard["key"].as_str().unwrap();
        assert!(key.starts_with("ip=127.0.0.1,header:x-key#"), "{key}");
        assert!((1..=3_600_000).contains(&hard["retry_after_ms"].as_i64().unwrap()), "{hard}");
        assert_eq!(
            (&soft["limit"], &soft["decision"], &soft["key"]),
            (&json!("soft"), &json!("shadow_deny"), &json!("ip=127.0.0.1"))
        );
        assert_eq!(requests[0]["decisions"][0]["remaining"], 1);
        assert!(!format!("{requests:?}").contains(SECRET), "{requests:?}");
        if !log.is_empty() {
            // The tap has the fields of the access log, and the decisions.
            wait_until("the log has all lines", || gateway.stdout().lines().count() == 3);
            for (line, request) in gateway.stdout().lines().zip(&requests) {
                let mut logged: serde_json::Value = serde_json::from_str(line).unwrap();
                logged["decisions"] = request["decisions"].clone();
                assert_eq!(&logged, request);
            }
        }
    }
}

/// A server that switches protocols on request, and otherwise aborts its response.
fn breaking() -> Upstream {
    Upstream::start(|peer| {
        let Some(request) = peer.request()? else { return Ok(()) };
        match request.get("upgrade") {
            Some(_) => peer.send("HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"),
            None => peer.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
        }
    })
}

#[test]
fn every_kind_of_request_is_shown_once() {
    let upstream = breaking();
    let app = format!("{LIMITS}\n[[route]]\nname = \"app\"\npath = \"/app\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Gateway::start(&app);
    let mut tap = Tap::open(&gateway, "");
    let mut expect = |status: u16, route: &str, reason: Option<&str>| {
        let request = tap.next();
        let found = (&request["status"], &request["route"], request["reason"].as_str());
        assert_eq!(found, (&json!(status), &json!(route), reason), "{request}");
        request
    };
    gateway.fetch("GET /x HTTP/1.1\r\nho st: a.test\r\n\r\n");
    expect(400, "_none", Some("malformed_head"));
    gateway.get("/a%00");
    expect(400, "_none", Some("path_control"));
    gateway.client_from([127, 0, 7, 1]).fetch(&get("/", ""), "");
    let bypassed = expect(200, "api", None);
    assert_eq!((&bypassed["decision"], &bypassed["decisions"]), (&json!("bypass"), &json!([])));
    H2Client::connect(gateway.addr).get("/health");
    assert_eq!(expect(200, "health", None)["protocol"], "HTTP/2.0");
    let mut client = gateway.client();
    client.send(get("/app", ""));
    assert!(client.try_read_response("GET").is_err());
    assert_eq!(expect(200, "app", Some("upstream_cut_off"))["bytes"], 4);
    let offer = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                 sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut client = gateway.client();
    client.send(get("/app", offer));
    client.try_read_head().unwrap();
    drop(client);
    expect(101, "app", None);
    assert_eq!(tap.counts(6)["matched"], 6);
}

#[test]
fn filters_select_and_exclude() {
    let gateway = Gateway::start(LIMITS);
    for (query, expected) in [
        ("?route=!health", vec!["/1", "/1", "/1", "/2"]),
        ("?status=429", vec!["/1"]),
        ("?status=4xx&status=!404", vec!["/1"]),
        ("?limit=hard&decision=deny", vec!["/1"]),
        ("?limit=soft&decision=deny", vec![]),
        ("?decision=!allow", vec!["/1", "/1", "/2", "/health"]),
        ("?path=%2Fhealth&path=/2&method=get", vec!["/2", "/health"]),
        ("?client=127.0.0.0/8&client=!127.0.0.1", vec![]),
        ("?method=!GET", vec![]),
    ] {
        gateway.reload(&config("", &format!("{LIMITS}\n# {query}\n")));
        for limit in ["hard?key=127.0.0.1&key=k", "soft?key=127.0.0.1"] {
            let (name, key) = limit.split_once('?').unwrap();
            assert_eq!(gateway.admin_request("DELETE", &format!("/-/limits/{name}/state?{key}"), "", "").status(), 200);
        }
        let mut tap = Tap::open(&gateway, query);
        for path in ["/1", "/1", "/1", "/2", "/health"] {
            gateway.fetch(&get(path, if path == "/1" { "x-key: k\r\n" } else { "" }));
        }
        let found: Vec<String> = expected.iter().map(|_| tap.next()["path"].as_str().unwrap().to_owned()).collect();
        assert_eq!(found, expected, "{query}");
        assert_eq!(tap.counts(0)["matched"], expected.len(), "{query}");
    }
}

#[test]
fn events_beyond_the_rate_are_counted_and_a_count_ends_the_tap() {
    let gateway = Gateway::start(LIMITS);
    let mut tap = Tap::open(&gateway, "?rate=5");
    let mut counted = Tap::open(&gateway, "?count=3&path=/health");
    let mut client = gateway.client();
    (0..100).for_each(|_| drop(client.fetch(&get("/health", ""), "")));
    let counts = tap.counts(100);
    let number = |name: &str| counts[name].as_u64().unwrap();
    assert!(number("sampled_out") >= 50 && number("sent") >= 5 && number("lost") == 0, "{counts}");
    assert_eq!(number("matched"), number("sent") + number("sampled_out"));
    (0..3).for_each(|_| assert_eq!(counted.next()["route"], "health"));
    assert_eq!(counted.end(), "count");
    gateway.assert_metric("tap_events_total", &[("result", "sampled_out")], counts["sampled_out"].as_f64().unwrap());
}

#[test]
fn a_wrong_query_is_explained() {
    let gateway = Gateway::start(LIMITS);
    for (query, detail) in [
        ("?limit=hart", "did you mean `hard`?"),
        ("?route=!apj", "there is no route `apj`"),
        ("?decision=denied", "`decision` is one of allow, deny"),
        ("?status=42", "`status` is a status such as 429"),
        ("?client=10.0.0.1/8", "`client` is an address or a network"),
        ("?rate=0", "`rate` is an integer from 1 to 1000"),
        ("?count=x", "`count` is an integer from 1"),
        ("?path=api", "`path` starts with `/`"),
        ("?key=a", "unknown parameter `key`; there are `limit`, `route`"),
        ("?limit=%FF", "not percent-encoded UTF-8"),
        ("?rate=1&path=/a&path=/b&rate=2", "the parameter `rate` occurs twice"),
    ] {
        let (status, response) = Tap::request(&gateway, query, "");
        let response = response.rest();
        assert!(status == 400 || status == 404, "{query}: {status} {response}");
        assert!(response.contains(detail), "{query}: {response}");
    }
    let many: String = (0..33).map(|_| "&path=/").collect();
    assert_eq!(Tap::request(&gateway, &format!("?{many}"), "").0, 400);
    assert_eq!(gateway.admin_request("POST", "/-/tap", "", "").status(), 405);
}
