//! Decisions of limits over HTTP: the headers that describe them, keys and costs.

use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::machine::Stopwatch;
use crate::support::scenario::scenario;
use crate::support::upstream::Upstream;

fn limited(limit: &str) -> Gateway {
    scenario().route("api", "/").limit_of("slow", limit).start()
}

fn quota(response: &Message) -> (u16, Option<&str>, Option<&str>) {
    (response.status(), response.get("ratelimit"), response.get("retry-after"))
}

#[test]
fn a_token_bucket_is_spent_and_reports_the_exact_wait() {
    let gateway = limited("rate = \"1/10s\"\nburst = 3\nkey = \"ip\"");
    let watch = Stopwatch::start();
    let mut client = gateway.client();
    for (r, t) in [(2, 20), (1, 20), (0, 30)] {
        let response = client.fetch(&get("/", ""), "");
        assert_eq!(quota(&response), (200, Some(format!("\"slow\";r={r};t={t}").as_str()), None));
        assert_eq!(response.get("ratelimit-policy"), Some("\"slow\";q=3;w=30"));
    }
    let refused = client.fetch(&get("/", ""), "");
    assert_eq!(quota(&refused), (429, Some("\"slow\";r=0;t=10"), Some("10")));
    assert_eq!(refused.get("ratelimit-policy"), Some("\"slow\";q=3;w=30"));
    // A slower run could not compare whole seconds.
    watch.assert_ms(0..1000);

    assert_eq!(refused.get("content-type"), Some("application/problem+json"));
    let problem = refused.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["slow"]));

    let decisions = |decision| [("route", "api"), ("limit", "slow"), ("decision", decision)];
    gateway.assert_metric("limit_decisions_total", &decisions("allow"), 3.0);
    gateway.assert_metric("limit_decisions_total", &decisions("deny"), 1.0);
    let exhausted = [("route", "api"), ("limit", "slow"), ("reason", "exhausted")];
    gateway.assert_metric("rejections_total", &exhausted, 1.0);
    gateway.assert_metric("requests_total", &[("route", "api"), ("method", "GET"), ("code", "200")], 3.0);
    gateway.assert_metric("requests_total", &[("route", "api"), ("method", "GET"), ("code", "429")], 1.0);
}

#[test]
fn after_the_announced_wait_the_next_request_is_admitted() {
    let gateway = limited("rate = \"1/2s\"\nburst = 1\nkey = \"ip\"");
    let mut client = gateway.client();
    assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    let refused = client.fetch(&get("/", ""), "");
    assert_eq!(quota(&refused), (429, Some("\"slow\";r=0;t=2"), Some("2")));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
}

#[test]
fn a_fixed_window_counts_from_its_first_request() {
    let gateway = limited("algorithm = \"fixed_window\"\nrate = \"2/30s\"\nkey = \"ip\"");
    let mut client = gateway.client();
    for r in [1, 0] {
        let response = client.fetch(&get("/", ""), "");
        assert_eq!(quota(&response), (200, Some(format!("\"slow\";r={r};t=30").as_str()), None));
        assert_eq!(response.get("ratelimit-policy"), Some("\"slow\";q=2;w=30"));
    }
    let refused = client.fetch(&get("/", ""), "");
    assert_eq!(quota(&refused), (429, Some("\"slow\";r=0;t=30"), Some("30")));
}

#[test]
fn a_route_words_its_own_refusal() {
    let gateway = Gateway::start(
        r#"
        [[route]]
        name = "api"
        path = "/"
        upstream = "echo:"
        limits = ["slow"]
        refuse = { status = 503, body = "{route}: {limit} is spent, retry in {retry_after}s", content_type = "text/x-slow" }

        [limit.slow]
        rate = "1/min"
        key = "ip"

        [headers]
        ratelimit = ["off"]
        "#,
    );
    assert_eq!(quota(&gateway.get("/")), (200, None, None));
    let refused = gateway.get("/");
    assert_eq!(quota(&refused), (503, None, Some("60")));
    assert_eq!(refused.get("content-type"), Some("text/x-slow"));
    assert_eq!(refused.text(), "api: slow is spent, retry in 60s");
}

/// As in Koala's `result` per rule: the limit with the longest wait responds, with its own text or the route's.
#[test]
fn a_limit_words_its_own_refusal_before_the_route() {
    let gateway = Gateway::start(
        r#"
        [[route]]
        name = "api"
        path = "/"
        upstream = "echo:"
        limits = ["captcha", "plain", "unworded", "keyed", "shadow"]
        refuse = { status = 503, body = "route", content_type = "text/x-route" }

        [limit.captcha]
        rate = "1/h"
        key = "all"
        when = { path = "/captcha" }
        refuse = { status = 401, body = "{route}/{limit}: {retry_after}", content_type = "text/x-captcha" }

        [limit.plain]
        rate = "1/min"
        key = "all"
        refuse = { status = 403 }
        when = { path = ["/plain", "/captcha"] }

        [limit.unworded]
        rate = "1/min"
        key = "all"
        when = { path = "/unworded" }

        [limit.keyed]
        rate = "1/min"
        key = "header:x-key"
        missing = "refuse"
        when = { path = "/keyed" }
        refuse = { status = 418, body = "teapot" }

        [limit.shadow]
        rate = "1/day"
        mode = "shadow"
        refuse = { status = 418, body = "teapot" }
        "#,
    );
    let refused = |target: &str, fields: &str| {
        let response = gateway.fetch(&get(target, fields));
        (response.status(), response.get("content-type").unwrap().to_owned(), response.text())
    };
    let text = |status: u16, kind: &str, text: &str| (status, kind.to_owned(), text.to_owned());
    assert_eq!(gateway.get("/captcha").status(), 200);
    assert_eq!(refused("/captcha", ""), text(401, "text/x-captcha", "api/captcha: 3600"));
    let (status, kind, problem) = refused("/plain", "");
    assert_eq!(
        (status, kind.as_str()),
        (403, "application/problem+json"),
        "the response does not have the route's body: {problem}"
    );
    assert!(problem.contains("\"violated-policies\":[\"plain\"]"), "{problem}");
    assert_eq!(gateway.get("/unworded").status(), 200);
    assert_eq!(refused("/unworded", ""), text(503, "text/x-route", "route"));
    // A missing key is refused for another reason than an exhausted one.
    assert_eq!(refused("/keyed", "").0, 403);
    assert_eq!(gateway.fetch(&get("/keyed", "x-key: a\r\n")).status(), 200);
    assert_eq!(refused("/keyed", "x-key: a\r\n"), text(418, "text/plain; charset=utf-8", "teapot"));
    let grpc = gateway.fetch(&get("/captcha", "content-type: application/grpc\r\n"));
    assert_eq!((grpc.status(), grpc.get("grpc-status"), grpc.text().as_str()), (200, Some("8"), ""));

    // It is the limit that a reload changes.
    gateway.reload_with("status = 401", "status = 402");
    assert_eq!(refused("/captcha", "").0, 402);
    assert!(gateway.log().contains("limit changed: captcha"), "{}", gateway.log());
}

#[test]
fn limits_are_charged_all_or_none() {
    let gateway = Gateway::start(
        r#"
        [[route]]
        name = "api"
        path = "/"
        respond = { body = "in" }
        limits = ["wide", "narrow", "narrower"]

        [limit.wide]
        rate = "100/h"
        key = "all"

        [limit.narrow]
        rate = "2/h"
        key = "ip"

        [limit.narrower]
        rate = "1/2h"
        key = "header:x-user"
        "#,
    );
    let fetch = |user: &str| gateway.fetch(&get("/", &format!("x-user: {user}\r\n")));
    let admitted = fetch("a");
    assert_eq!(admitted.status(), 200);
    assert_eq!(
        admitted.get("ratelimit-policy"),
        Some("\"wide\";q=100;w=3600, \"narrow\";q=2;w=3600, \"narrower\";q=1;w=7200")
    );
    for _ in 0..5 {
        let refused = fetch("a");
        assert_eq!((refused.status(), refused.get("retry-after")), (429, Some("7200")));
        let state = refused.get("ratelimit").unwrap();
        assert!(state.starts_with("\"wide\";r=99;"), "{state}");
        assert!(state.contains("\"narrow\";r=1;") && state.contains("\"narrower\";r=0;"), "{state}");
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["narrower"]));
    }
    assert_eq!(fetch("b").status(), 200);
    // Two limits refuse: both are named, and the wait is the longer one.
    let refused = fetch("b");
    assert_eq!(refused.json()["violated-policies"], serde_json::json!(["narrow", "narrower"]));
    assert_eq!(refused.get("retry-after"), Some("7200"));
    assert!(refused.get("ratelimit").unwrap().starts_with("\"wide\";r=98;"));
}

/// Requests as (address, method, host, target, fields).
type Probe = (u8, &'static str, &'static str, &'static str, &'static str);

#[test]
fn each_key_gives_a_budget_to_what_it_names_and_to_nothing_else() {
    // Name, key, first request, another of the same budget, one of another budget.
    let cases: &[(&str, &str, Probe, Probe, Probe)] = &[
        (
            "ip",
            r#""ip""#,
            (1, "GET", "a", "/ip/x", ""),
            (1, "PUT", "b", "/ip/y", "x-forwarded-for: 9.9.9.9\r\n"),
            (2, "GET", "a", "/ip/x", ""),
        ),
        ("net", r#""ip/24/56""#, (1, "GET", "a", "/net", ""), (9, "GET", "a", "/net", ""), (0, "GET", "a", "/net", "")),
        (
            "header",
            r#""header:x-key""#,
            (1, "GET", "a", "/header", "x-key: k1\r\n"),
            (2, "GET", "b", "/header", "X-Key: k1\r\n"),
            (1, "GET", "a", "/header", "x-key: k2\r\n"),
        ),
        (
            "path",
            r#""path""#,
            (1, "GET", "a", "/path/x", ""),
            (2, "GET", "b", "//path/./%78?q", ""),
            (1, "GET", "a", "/path/y", ""),
        ),
        (
            "method",
            r#""method""#,
            (1, "GET", "a", "/method", ""),
            (2, "GET", "b", "/method/x", ""),
            (1, "DELETE", "a", "/method", ""),
        ),
        (
            "host",
            r#""host""#,
            (1, "GET", "a.test", "/host", ""),
            (2, "GET", "A.Test.:81", "/host/x", ""),
            (1, "GET", "b.test", "/host", ""),
        ),
        (
            "route",
            r#""route""#,
            (1, "GET", "a", "/route", ""),
            (2, "PUT", "b", "/route/x", ""),
            (1, "GET", "a", "/second", ""),
        ),
        (
            "pair",
            r#"["ip", "header:x-key"]"#,
            (1, "GET", "a", "/pair", "x-key: k\r\n"),
            (1, "GET", "b", "/pair", "x-key: k\r\n"),
            (2, "GET", "a", "/pair", "x-key: k\r\n"),
        ),
    ];
    let mut config = String::new();
    for (name, key, ..) in cases {
        config += &format!(
            "[[route]]\npath = \"/{name}\"\nrespond = {{ }}\nlimits = [\"{name}\"]\n\n\
             [limit.{name}]\nrate = \"1/h\"\nkey = {key}\n\n"
        );
    }
    config += "[[route]]\npath = \"/second\"\nrespond = { }\nlimits = [\"route\"]\n";
    config +=
        "[[route]]\npath = \"/all\"\nrespond = { }\nlimits = [\"all\"]\n\n[limit.all]\nrate = \"1/h\"\nkey = \"all\"\n";
    let gateway = Gateway::start(&config);
    let fetch = |(source, method, host, target, fields): Probe| {
        // Address 0 is in another network.
        let source = if source == 0 { [127, 0, 9, 1] } else { [127, 0, 0, source] };
        let head = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n");
        gateway.client_from(source).fetch(&head, "").status()
    };
    for (name, _, first, same, other) in cases {
        assert_eq!([fetch(*first), fetch(*same), fetch(*other)], [200, 429, 200], "{name}");
    }
    assert_eq!([fetch((1, "GET", "a", "/all", "")), fetch((0, "PUT", "b", "/all/x", ""))], [200, 429]);
}

/// A client with one IPv6 address can use any number of addresses of the same network.
#[test]
fn a_client_behind_a_trusted_proxy_cannot_rotate_its_address() {
    let config =
        "[[route]]\npath = \"/\"\nrespond = { }\nlimits = [\"ip\"]\n[limit.ip]\nrate = \"1/h\"\nkey = \"ip\"\n";
    let gateway = Gateway::with("trusted_proxies = [\"127.0.0.1\"]", config);
    for (client, status) in [
        ("2001:db8::1", 200),
        ("2001:db8::2", 429),
        ("2001:db8:0:0:ffff::9", 429),
        ("2001:db8:0:1::1", 200),
        ("::ffff:192.0.2.1", 200),
        ("192.0.2.1", 429),
        ("192.0.2.2", 200),
    ] {
        let response = gateway.fetch(&get("/", &format!("x-forwarded-for: {client}\r\n")));
        assert_eq!(response.status(), status, "{client}");
    }
}

#[test]
fn a_missing_key_part_skips_shares_or_refuses() {
    let mut config = String::new();
    for missing in ["skip", "shared", "refuse"] {
        config += &format!(
            "[[route]]\nname = \"{missing}\"\npath = \"/{missing}\"\nrespond = {{ }}\nlimits = [\"{missing}\"]\n\n\
             [limit.{missing}]\nrate = \"1/h\"\nkey = \"header:x-key\"\nmissing = \"{missing}\"\n\n"
        );
    }
    let gateway = Gateway::start(&config);
    let twice = |target: &str| [gateway.get(target).status(), gateway.get(target).status()];
    assert_eq!(twice("/skip"), [200, 200]);
    assert_eq!(twice("/shared"), [200, 429]);
    assert_eq!(twice("/refuse"), [403, 403]);
    assert_eq!(gateway.fetch(&get("/refuse", "x-key: a\r\n")).status(), 200);
    let missing = [("route", "refuse"), ("limit", "refuse"), ("reason", "missing_key")];
    gateway.assert_metric("rejections_total", &missing, 2.0);
}

#[test]
fn a_request_costs_its_stated_units() {
    let gateway = limited("rate = \"10/h\"\nkey = \"all\"\ncost = \"header:x-cost\"");
    let fetch = |cost: &str| gateway.fetch(&get("/", &format!("x-cost: {cost}\r\n")));
    let left =
        |response: &Message| response.get("ratelimit").and_then(|state| state.split(';').nth(1)).map(str::to_owned);
    let expect = |cost: &str, status: u16, r: &str| {
        let response = fetch(cost);
        assert_eq!((response.status(), left(&response).as_deref()), (status, Some(r)), "cost {cost}");
        response
    };
    expect("7", 200, "r=3");
    // 10/h refills one unit in 360 s. The request needs one more than the three units left.
    assert_eq!(expect("4", 429, "r=3").get("retry-after"), Some("360"));
    expect("0", 200, "r=3");
    let never = expect("11", 429, "r=3");
    assert_eq!(never.get("retry-after"), None);
    expect("99999999999999999999", 429, "r=3");
    // Only digits state a cost; `not_integer` may let the rest cost 1.
    assert_eq!(["many", "-1", "+1", ""].map(|cost| fetch(cost).status()), [400; 4]);
    expect("3", 200, "r=0");
    let never = [("route", "api"), ("limit", "slow"), ("reason", "never_fits")];
    gateway.assert_metric("rejections_total", &never, 2.0);

    let gateway = limited("rate = \"10/h\"\nkey = \"all\"\ncost = \"query:n\"");
    assert_eq!(left(&gateway.get("/?m=1&n=6")).as_deref(), Some("r=4"));
    assert_eq!(left(&gateway.get("/?m=1")).as_deref(), Some("r=3"));
    let gateway = limited("rate = \"10/h\"\nkey = \"all\"\ncost = 5");
    assert_eq!([0; 3].map(|_| gateway.get("/").status()), [200, 200, 429]);
}

#[test]
fn a_shadow_limit_counts_and_never_refuses() {
    let gateway = limited("rate = \"1/h\"\nkey = \"ip\"\nmode = \"shadow\"");
    for _ in 0..4 {
        assert_eq!(quota(&gateway.get("/")), (200, None, None));
    }
    let decisions = |decision| [("route", "api"), ("limit", "slow"), ("decision", decision)];
    gateway.assert_metric("limit_decisions_total", &decisions("allow"), 1.0);
    gateway.assert_metric("limit_decisions_total", &decisions("shadow_deny"), 3.0);
    let exhausted = [("route", "api"), ("limit", "slow"), ("reason", "exhausted")];
    assert!(gateway.metric("rejections_total", &exhausted).unwrap_or_default() == 0.0);
}

#[test]
fn only_the_gateways_own_quota_reaches_the_client() {
    let upstream = Upstream::fixed(
        "HTTP/1.1 200 OK\r\nratelimit: \"theirs\";r=1;t=1\r\nratelimit-policy: \"theirs\";q=1;w=1\r\n\
         content-length: 0\r\n\r\n",
    );
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{0}\"\nlimits = [\"ours\"]\n\n\
         [[route]]\npath = \"/bare\"\nupstream = \"{0}\"\n\n[limit.ours]\nrate = \"5/min\"\n",
        upstream.url()
    ));
    let response = gateway.get("/");
    assert_eq!(response.get("ratelimit-policy"), Some("\"ours\";q=5;w=60"));
    assert_eq!(response.get("ratelimit"), Some("\"ours\";r=4;t=48"));
    assert_eq!(gateway.get("/bare").get("ratelimit"), Some("\"theirs\";r=1;t=1"));
}

#[test]
fn all_workers_and_connections_share_one_exact_budget() {
    let config = "[[route]]\npath = \"/\"\nrespond = { }\nlimits = [\"slow\"]\n\n\
        [limit.slow]\nrate = \"50/h\"\nkey = \"all\"\n";
    let gateway = Gateway::with("workers = 4", config);
    let admitted: usize = std::thread::scope(|scope| {
        let clients = [(); 8].map(|()| {
            scope.spawn(|| {
                let mut client = gateway.client();
                (0..20).filter(|_| client.fetch(&get("/", ""), "").status() == 200).count()
            })
        });
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(admitted, 50);
}
