//! Requests that the admin listener refuses: invalid ones, and those without the token.

use super::api::{LIMITS, fetch, fetch_with, start};
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::wait_until;

#[test]
fn mistakes_are_reported_with_their_places() {
    let gateway = start("");
    for (method, path, body, status, pointer, detail) in [
        ("POST", "/-/decide", "{", 400, None, "the body is not JSON"),
        ("POST", "/-/decide", "[]", 422, Some("#"), "it must be an object"),
        ("POST", "/-/decide", "{}", 422, Some("#"), "`operation` is missing"),
        ("POST", "/-/decide", r#"{"operation":"give","decisions":[]}"#, 422, Some("#/operation"), "one of take, peek"),
        (
            "POST",
            "/-/decide",
            r#"{"operation":"take","decisions":[{"limits":["per-ip"],"key":{"ip":"::g"}}]}"#,
            422,
            Some("#/decisions/0/key/ip"),
            "`::g` is not an address",
        ),
        (
            "POST",
            "/-/decide",
            r#"{"operation":"take","decisions":[{"limits":["site"],"key":{"ip/24":"::1"}}]}"#,
            422,
            Some("#/decisions/0/key/ip~124"),
            "these limits are keyed by header:x-api-key, ip/24/56",
        ),
        (
            "POST",
            "/-/decide",
            r#"{"operation":"take","decisions":[{"limits":["site"],"key":{"ip":"::1","ip/24/56":"::2"}}]}"#,
            422,
            Some("#/decisions/0/key/ip~124~156"),
            "`ip/24/56` occurs twice",
        ),
        (
            "POST",
            "/-/decide",
            r#"{"operation":"take","decisions":[{"limits":["site"],"cost":-1,"kee":1}]}"#,
            422,
            Some("#/decisions/0/kee"),
            "unknown member; did you mean `key`?",
        ),
        (
            "POST",
            "/-/decide",
            r#"{"operation":"peek","decisions":[{"limits":["site","site"]}]}"#,
            422,
            Some("#/decisions/0/limits/1"),
            "`site` occurs twice",
        ),
        ("POST", "/-/limits/site/refund", r#"{"cost":0}"#, 422, Some("#/cost"), "an integer from 1 to 1000000000"),
        ("POST", "/-/limits/site/refund", r#"{"cost":1}"#, 422, None, "give each of them in `key`"),
        ("POST", "/-/limits/sites/refund", "{}", 404, None, "there is no limit `sites`; did you mean `site`?"),
        ("GET", "/-/limits/xyz", "", 404, None, "there is no limit `xyz`; there are "),
        ("GET", "/-/limits/site/state?key=::1", "", 400, None, "keyed by ip/24/56, header:x-api-key: write `key` once"),
        ("GET", "/-/limits/watched/state?key=a", "", 400, None, "leave `key` out"),
        ("GET", "/-/limits/per-ip/state?key=a", "", 400, None, "key ip: `a` is not an address"),
        ("GET", "/-/limits/per-ip/state?key=%zz", "", 400, None, "not percent-encoded"),
        ("GET", "/-/limits/per-ip/state?k=a", "", 400, None, "unknown parameter `k`"),
        ("GET", "/-/limits/per-ip/state/more", "", 404, None, "there are GET /, GET /livez, "),
        ("GET", "/-/decide", "", 405, None, "use POST"),
        ("PUT", "/-/limits/per-ip/state", "", 405, None, "use GET, HEAD, DELETE"),
    ] {
        let response = fetch(&gateway, method, path, body);
        let found = (response.status(), response.get("content-type"));
        assert_eq!(found, (status, Some("application/problem+json")), "{method} {path} {body}: {}", response.text());
        let problem = response.json();
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{method} {path} {body}: {problem}");
        if let Some(pointer) = pointer {
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        }
    }
    let large = format!("{{\"operation\":\"{}\"}}", "x".repeat(1024 * 1024));
    assert_eq!(fetch(&gateway, "POST", "/-/decide", large).status(), 413);
    let large = format!("{{\"receipt\":\"{}\"}}", "0".repeat(64 * 1024));
    assert_eq!(fetch(&gateway, "POST", "/-/limits/site/refund", large).status(), 413);
}

#[test]
fn two_tokens_are_refused_even_if_both_are_right() {
    let gateway = Gateway::start(&format!("token = \"secret-secret\"\n{LIMITS}"));
    let token = "authorization: Bearer secret-secret\r\n";
    assert_eq!(fetch_with(&gateway, "GET", "/-/limits", token, "").status(), 200);
    let refused = fetch_with(&gateway, "GET", "/-/limits", &format!("{token}{token}"), "");
    assert_eq!((refused.status(), refused.get("www-authenticate")), (401, Some("Bearer")));
}

#[test]
fn all_but_probes_and_metrics_need_the_token() {
    // These lines continue `[admin]`.
    let gateway = Gateway::start(&format!("token = \"secret-secret\"\n{LIMITS}"));
    let take = r#"{"operation":"take","decisions":[{"limits":["watched"]}]}"#;
    let peek = take.replace("take", "peek");
    let state = "/-/limits/watched/state";
    for (method, path, body) in [
        ("POST", "/-/decide", take),
        ("POST", "/-/decide", peek.as_str()),
        ("GET", state, ""),
        ("HEAD", state, ""),
        ("DELETE", state, ""),
        ("POST", "/-/limits/watched/refund", r#"{"cost":1}"#),
        ("GET", "/-/limits", ""),
        ("GET", "/-/limits/watched", ""),
        ("GET", "/-/status", ""),
        ("POST", "/-/reload", ""),
    ] {
        for wrong in ["", "authorization: Bearer secret-secre\r\n", "authorization: Basic secret-secret\r\n"] {
            let refused = fetch_with(&gateway, method, path, wrong, body);
            assert_eq!((refused.status(), refused.get("www-authenticate")), (401, Some("Bearer")), "{method} {path}");
        }
        let token = "authorization: Bearer secret-secret\r\n";
        assert_eq!(fetch_with(&gateway, method, path, token, body).status(), 200, "{method} {path}");
        let foreign = format!("{token}origin: http://evil.example\r\n");
        let manages = !matches!(path, "/-/limits" | "/-/limits/watched" | "/-/status");
        let status = if manages { 403 } else { 200 };
        assert_eq!(fetch_with(&gateway, method, path, &foreign, body).status(), status, "{method} {path}");
    }
    let open = ["/livez", "/readyz", "/metrics"];
    assert_eq!(open.map(|path| gateway.admin(path).status()), [200, 200, 200]);
    let closed = gateway.dir.path().join("sluicegate.toml");
    let text = std::fs::read_to_string(&closed).unwrap().replace("token =", "metrics_need_token = true\ntoken =");
    std::fs::write(&closed, text).unwrap();
    wait_until("the metrics need the token too", || gateway.admin("/metrics").status() == 401);
    assert_eq!(open.map(|path| gateway.admin(path).status()), [200, 200, 401]);
    let scraped = fetch_with(&gateway, "GET", "/metrics", "authorization: bearer secret-secret\r\n", "");
    assert!(scraped.status() == 200 && scraped.text().contains("sluicegate_config_info"));
}

#[test]
fn metrics_need_a_token_where_other_machines_reach_them() {
    let routes = "[[route]]\npath = \"/\"\nupstream = \"echo:\"\n";
    let status = |listen: &str, admin: &str| {
        let text = config("", routes).replace("[admin]\n", &format!("[admin]\n{admin}"));
        let gateway = Gateway::with_config(&text.replace("listen = \"127.0.0.1:0\"", listen));
        (gateway.admin("/metrics").status(), gateway.admin("/livez").status())
    };
    let (token, everywhere, here) =
        ("token = \"secret-secret-secret\"\n", "listen = \"0.0.0.0:0\"", "listen = \"127.0.0.1:0\"");
    assert_eq!(status(everywhere, token), (401, 200));
    assert_eq!(status(everywhere, &format!("metrics_need_token = false\n{token}")), (200, 200));
    assert_eq!(status(everywhere, ""), (200, 200));
    assert_eq!(status(here, token), (200, 200));
}

#[test]
fn unused_series_are_left_out_if_the_config_says_so() {
    let routes: String = (0..200)
        .map(|n| {
            format!("[[route]]\nname = \"r{n}\"\npath = \"/r{n}\"\nrespond = {{ body = \"in\" }}\nlimits = [\"l\"]\n")
        })
        .collect();
    let limit = "[limit.l]\nrate = \"1000/s\"\n";
    let with = |admin: &str| {
        let text = config("", &format!("{limit}{routes}")).replace("[admin]\n", &format!("[admin]\n{admin}"));
        Gateway::with_config(&text)
    };
    let (all, used) = (with(""), with("unused_series = false\n"));
    let lines = |gateway: &Gateway| gateway.metrics().lines().count();
    let families = |gateway: &Gateway| -> Vec<String> {
        gateway.metrics().lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect()
    };
    assert_eq!(families(&all), families(&used), "every family stays");
    assert!(lines(&all) > 5 * lines(&used), "{} and {} lines", lines(&all), lines(&used));
    assert_eq!(used.fetch(&get("/r7", "")).status(), 200);
    // If scrapes take long, a scrape may get the text of the one before.
    wait_until("the request is counted", || {
        used.metrics().lines().any(|line| line.starts_with("sluicegate_requests_total{") && line.contains("\"r7\""))
    });
    let metrics = used.metrics();
    let has = |family: &str, route: &str| {
        let is_series = |line: &&str| line.starts_with(family) && line.contains(&format!("route=\"{route}\""));
        metrics.lines().any(|line| is_series(&line))
    };
    for family in ["sluicegate_requests_total{", "sluicegate_request_duration_seconds_count{"] {
        assert_eq!([has(family, "r7"), has(family, "r150")], [true, false], "{family}");
    }
    let in_flight = metrics.lines().filter(|line| line.starts_with("sluicegate_requests_in_flight{")).count();
    assert_eq!(in_flight, 1, "no request was in progress at a scrape");
    assert!(metrics.contains("\nsluicegate_config_pinned 0\n"), "a state is shown, also if it is 0");
}
