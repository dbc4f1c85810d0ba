//! Responses to an asking proxy: for the name of a route, with delays, with refusals of the operator, and without the
//! store.

use super::{NAMES, fetch, forwarded, gateway};
use crate::support::ca::Ca;
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::machine::Stopwatch;
use crate::support::ports::ReservedPort;

#[test]
fn a_route_is_decided_by_its_name() {
    let gateway = gateway(
        "[limit.one]\nrate = \"1/day\"\nkey = \"param:id\"\n\
         [limit.slots]\nalgorithm = \"concurrency\"\nin_flight = 5\n\
         [limit.forms]\nrate = \"1/day\"\nkey = \"form:x\"\n\
         [[route]]\nname = \"items of/us\"\npath = \"/items/{id}\"\nrespond = {}\nlimits = [\"one\"]\n\
         allow = [\"192.0.2.50\"]\ndeny = [\"192.0.2.60\"]\nresponse_headers = { set = { x-of-route = \"1\" } }\n\
         refuse = { status = 420, body = \"wait {retry_after}\" }\n\
         [[route]]\nname = \"slow\"\npath = \"/slow\"\nrespond = {}\nlimits = [\"slots\"]\n\
         [[route]]\nname = \"form\"\npath = \"/form\"\nrespond = {}\nlimits = [\"forms\"]\n\
         [[route]]\nname = \"free\"\npath = \"/free\"\nrespond = {}\n\
         [decide.free]\nfrom = \"path\"\n",
    );
    let name = "items%20of%2fus";
    let first = fetch(&gateway, name, "/items/7", "");
    assert_eq!(
        (first.status(), first.get("x-of-route"), first.get("ratelimit-policy")),
        (200, None, Some("\"one\";q=1;w=86400"))
    );
    let refused = fetch(&gateway, name, "/items/7", "");
    assert_eq!((refused.status(), refused.text().starts_with("wait ")), (420, true));
    assert_eq!(fetch(&gateway, name, "/items/8", "").status(), 200);
    let from = |ip: &str| get(&format!("/decide/{name}"), &forwarded("GET", "/items/7", "").replace("192.0.2.1", ip));
    assert_eq!(gateway.fetch(&from("192.0.2.50")).status(), 200, "`allow`");
    assert_eq!(gateway.fetch(&from("192.0.2.60")).status(), 403, "`deny`");
    gateway.assert_metric(
        "limit_decisions_total",
        &[("route", "items of/us"), ("limit", "one"), ("decision", "bypass")],
        1.0,
    );
    for undecidable in ["slow", "form"] {
        assert_eq!(fetch(&gateway, undecidable, "/", "").status(), 404, "{undecidable}");
    }
    assert_eq!(gateway.get("/decide/free/x").status(), 200);
    // A changed config applies to the next question; a removed name is unknown.
    gateway.reload_with("[decide.free]\nfrom = \"path\"", "[decide.free]\nfrom = \"original\"");
    assert_eq!(gateway.get("/decide/free/x").status(), 400);
}

#[test]
fn a_request_that_must_wait_gets_its_response_when_it_is_its_turn() {
    let gateway = gateway(
        "[limit.line]\nalgorithm = \"leaky_bucket\"\nrate = \"5/s\"\nqueue = \"1s\"\nkey = \"ip\"\n\
         [decide.a]\nlimits = [\"line\"]\n",
    );
    let watch = Stopwatch::start();
    assert!((0..3).all(|_| fetch(&gateway, "a", "/", "").status() == 200));
    watch.assert_ms(390..20_000);
    gateway.assert_metric("limit_decisions_total", &[("route", "a"), ("limit", "line"), ("decision", "delayed")], 2.0);
}

#[test]
fn without_the_store_on_error_decides_and_no_response_is_5xx() {
    let mut redis = RedisServer::start(&[]);
    let limit = |name: &str, how: &str| {
        format!(
            "[limit.{name}]\nrate = \"2/day\"\nkey = \"ip\"\non_error = \"{how}\"\n[decide.{name}]\nlimits = [\"{name}\"]\n\
             [decide.{name}-403]\nlimits = [\"{name}\"]\ndeny_as = 403\n"
        )
    };
    let gateway = gateway(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"10s\"\n{}{}{}",
        redis.url(),
        limit("open", "open"),
        limit("closed", "closed"),
        limit("local", "local")
    ));
    gateway.wait_for_store();
    assert_eq!(fetch(&gateway, "closed", "/", "").status(), 200);
    redis.kill();
    let statuses = |name: &str| (0..3).map(|_| fetch(&gateway, name, "/", "").status()).collect::<Vec<_>>();
    assert_eq!(statuses("open"), [200, 200, 200]);
    assert_eq!(statuses("closed"), [429, 429, 429]);
    assert_eq!(statuses("local"), [200, 200, 429]);
    let refused = fetch(&gateway, "closed", "/", "");
    assert_eq!((refused.json()["status"].as_u64(), refused.get("retry-after")), (Some(429), Some("2")));
    let refused = fetch(&gateway, "closed-403", "/", "");
    assert_eq!((refused.status(), refused.get("x-limit-status")), (403, Some("429")));
    gateway.assert_metric(
        "rejections_total",
        &[("route", "closed"), ("limit", "closed"), ("reason", "store_down")],
        4.0,
    );
}

#[test]
fn tls_unix_sockets_and_the_proxy_header_serve_questions_too() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("decide.sock");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let ca = Ca::new("Proxies");
    ca.issue(&["localhost"], "gateway").save(dir.path(), "server");
    ca.issue(&["nginx"], "nginx").save(dir.path(), "client");
    std::fs::write(path("ca.pem"), ca.pem()).unwrap();
    let secure = ReservedPort::new();
    let gateway = Gateway::with_config(&format!(
        "[server]\ntrusted_proxies = [\"127.0.0.1\"]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"decide\"\nproxy_protocol = true\n\
         [[listener]]\naddress = \"unix:{}\"\nserve = \"decide\"\n\
         [[listener]]\naddress = \"{}\"\nserve = \"decide\"\n[listener.tls]\nclient_ca = \"{}\"\nclient_auth = \"required\"\n\
         certificates = [{{ cert = \"{}\", key = \"{}\" }}]\n\
         [limit.two]\nrate = \"2/day\"\nkey = \"ip\"\n[decide.a]\nlimits = [\"two\"]\n",
        socket.display(),
        secure.addr(),
        path("ca.pem"),
        path("server.pem"),
        path("server.key")
    ));
    let question = get("/decide/a", &forwarded("GET", "/", ""));
    let by_socket = || {
        crate::support::app::run(
            "curl",
            "curl",
            &[
                &["-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", socket.to_str().unwrap()][..],
                &["-H", "x-forwarded-for: 192.0.2.1", "-H", "x-forwarded-method: GET", "-H", "x-forwarded-uri: /"],
                &["-H", "x-forwarded-host: a.test", "http://x/decide/a"],
            ]
            .concat(),
        )
    };
    // The client certificate is verified before any question is read.
    let by_tls = |arguments: &[&str]| {
        let url = format!("https://localhost:{}/decide/a", secure.port());
        let shown = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "x-forwarded-for: 192.0.2.9"];
        let facts = ["-H", "x-forwarded-method: GET", "-H", "x-forwarded-uri: /", "-H", "x-forwarded-host: a.test"];
        let output =
            std::process::Command::new("curl").args(shown).args(facts).args(arguments).arg(url).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(path);
    let trusted = ["--cacert", ca.as_str(), "--cert", cert.as_str(), "--key", key.as_str()];
    assert_eq!([0; 3].map(|_| by_tls(&trusted)), ["200", "200", "429"]);
    assert_eq!(by_tls(&trusted[..2]), "000");
    assert_eq!(by_socket(), "200");
    let through = |peer: &str| gateway.fetch(&format!("PROXY TCP4 {peer} 127.0.0.1 1 2\r\n{question}")).status();
    assert_eq!(through("127.0.0.1"), 200);
    assert_eq!(through("198.51.100.7"), 403, "the peer that the PROXY header names is not trusted");
    assert_eq!(by_socket(), "429");
}

#[test]
fn explain_and_diff_know_decisions() {
    const CONFIG: &str = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[[listener]]\naddress = \"127.0.0.1:9080\"\nserve = \"decide\"\n\
                          [limit.a]\nrate = \"10/s\"\nkey = \"ip\"\n[limit.b]\nrate = \"20/s\"\nkey = \"path\"\n\
                          [decide.x]\nlimits = [\"a\", \"b\"]\nfrom = \"original\"\n[decide.y]\nlimits = [\"b\"]\n";
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = ["old.toml", "new.toml"].map(|name| dir.path().join(name).display().to_string());
    std::fs::write(&old, CONFIG).unwrap();
    std::fs::write(&new, CONFIG.replace("limits = [\"a\", \"b\"]", "limits = [\"b\"]\nonce = \"header:x-id\""))
        .unwrap();
    let run = |arguments: &[&str]| {
        let output = crate::support::gateway::program().args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let question = ["explain", "-c", &old, "GET", "http://127.0.0.1:9080/decide/x", "--from", "127.0.0.1"];
    let facts =
        ["-H", "x-forwarded-for: 192.0.2.9", "-H", "x-original-method: PUT", "-H", "x-original-url: http://b.test/p"];
    let explained = run(&[&question[..], &facts].concat());
    for part in ["192.0.2.9", "PUT", "b.test", "/p", "ip=192.0.2.9", "path=/p", "from = \"original\"", "200"] {
        assert!(explained.contains(part), "{part} in\n{explained}");
    }
    let missing = run(&question);
    assert!(missing.contains("400") && missing.contains("decide_facts"), "{missing}");
    let untrusted = run(&[&question[..6], &["198.51.100.1"], &facts].concat());
    assert!(untrusted.contains("403") && untrusted.contains("decide_peer"), "{untrusted}");
    let diff = run(&["diff", &old, &new]);
    let weaker = diff.lines().filter(|line| line.contains("decide x") || line.contains("decide.x")).count();
    assert!(weaker == 2 && diff.contains("limits") && diff.contains("once"), "{diff}");
}

/// A decision concerns one request: a proxy that stores responses must ask about the next one.
#[test]
fn no_decision_may_be_stored_by_caches() {
    let gateway = gateway(NAMES);
    for status in [200, 200, 200, 429] {
        let response = fetch(&gateway, "fwd", "/stored", "");
        assert_eq!((response.status(), response.get("cache-control")), (status, Some("no-store")));
    }
}
