//! Sources of the facts of a request, and attempts of a client to change them.

use super::{NAMES, assert_logged, fetch, forwarded, gateway, gateway_with};
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::h2::{self, H2Client, Sent};

/// Returns the units that the admin API reports as left for a request, of 3.
fn left(gateway: &Gateway, ip: &str, method: &str, host: &str, path: &str) -> i64 {
    let query = format!("/-/limits/three/state?key={ip}&key={path}&key={host}&key={method}&key=k");
    let state = gateway.admin(&query);
    assert_eq!(state.status(), 200, "{}", state.text());
    state.json()["remaining"].as_i64().unwrap()
}

#[test]
fn each_family_states_the_same_request() {
    let gateway = gateway(NAMES);
    let questions = [
        get("/decide/fwd", &forwarded("POST", "/a%20b?q=%2F", "x-key: k\r\n")),
        get("/decide/fwd/rest?of=it", &forwarded("POST", "http://A.test:80/a%20b", "x-key: k\r\n")),
        get(
            "/decide/orig",
            "x-forwarded-for: 192.0.2.1\r\nx-original-method: POST\r\nx-original-uri: /x/../a%20b?q\r\nx-key: k\r\n",
        ),
    ];
    for (used, question) in questions.iter().enumerate() {
        let response = gateway.fetch(question);
        assert_eq!((response.status(), response.body.len()), (200, 0), "{question}\n{}", response.text());
        assert_eq!(response.get("ratelimit-policy"), Some("\"three\";q=3;w=86400"));
        assert_eq!(left(&gateway, "192.0.2.1", "POST", "a.test", "/a%2520b"), 2 - used as i64, "{question}");
    }
    // The budget is exhausted for the other families too.
    for question in [
        "POST /decide/path/a%20b?q HTTP/1.1\r\nhost: a.test\r\nx-forwarded-for: 192.0.2.1\r\nx-key: k\r\ncontent-length: 0\r\n\r\n".to_owned(),
        get("/decide/fwd", &forwarded("POST", "/a%20b", "x-key: k\r\n")),
    ] {
        let response = gateway.fetch(&question);
        assert_eq!(response.status(), 429, "{question}");
        assert!(response.get("retry-after").is_some() && response.get("ratelimit").is_some());
        assert_eq!(response.json()["violated-policies"][0], "three");
    }
    let url =
        "x-forwarded-for: 192.0.2.1\r\nx-original-method: POST\r\nx-original-url: https://a.test/a%20b\r\nx-key: k\r\n";
    let response = gateway.fetch(&get("/decide/orig", url));
    assert_eq!((response.status(), response.get("x-limit-status")), (403, Some("429")), "{}", response.text());
    assert!(response.get("retry-after").is_some() && response.get("ratelimit").is_some());
    assert_eq!(response.json()["status"], 429);
    gateway.assert_metric("limit_decisions_total", &[("route", "fwd"), ("limit", "three"), ("decision", "allow")], 2.0);
    gateway.assert_metric("limit_decisions_total", &[("route", "orig"), ("limit", "three"), ("decision", "deny")], 1.0);
    gateway.assert_metric("requests_total", &[("route", "orig"), ("method", "GET"), ("code", "403")], 1.0);
    gateway.assert_metric("decide_requests_total", &[("result", "admitted")], 3.0);
    gateway.assert_metric("decide_requests_total", &[("result", "refused")], 3.0);
    let facts = [("client", "192.0.2.1"), ("method", "POST"), ("host", "a.test"), ("path", "/a%20b")];
    assert_logged(&gateway, &facts);
    assert_logged(&gateway, &[("route", "orig"), ("decision", "deny"), ("reason", "exhausted")]);
}

#[test]
fn questions_without_clear_facts_get_400_and_are_counted() {
    let gateway = gateway(NAMES);
    let good = forwarded("GET", "/", "");
    let without = |name: &str| {
        let lines = good.split_inclusive("\r\n").filter(|line| !line.starts_with(name));
        lines.collect::<String>()
    };
    let orig = "x-original-method: GET\r\n";
    let mut counted = 0.0;
    for (name, fields) in [
        ("fwd", without("x-forwarded-method")),
        ("fwd", without("x-forwarded-host")),
        ("fwd", without("x-forwarded-uri")),
        ("fwd", format!("{good}x-forwarded-method: GET\r\n")),
        ("fwd", format!("{good}x-forwarded-host: a.test\r\n")),
        ("fwd", format!("{good}X-Forwarded-Uri: /\r\n")),
        ("fwd", without("x-forwarded-for") + "forwarded: for=192.0.2.7\r\n"),
        // The headers of another family are ignored.
        ("fwd", format!("{orig}x-original-url: http://a.test/\r\n")),
        ("orig", good.clone()),
        ("orig", "x-original-uri: /\r\n".to_owned()),
        ("orig", orig.to_owned()),
        ("orig", format!("{orig}x-original-uri: /\r\nx-original-url: http://a.test/\r\n")),
        ("orig", format!("{orig}x-original-uri: /\r\nx-original-uri: /\r\n")),
        ("orig", format!("{orig}{orig}x-original-uri: /\r\n")),
    ] {
        let response = gateway.fetch(&get(&format!("/decide/{name}"), &fields));
        assert_eq!((response.status(), response.get("x-limit-status")), (400, None), "{name} {fields:?}");
        counted += 1.0;
    }
    gateway.assert_metric("decide_requests_total", &[("result", "bad_facts")], counted);
    assert_logged(&gateway, &[("reason", "decide_facts")]);
    for target in [
        "/",
        "/decide",
        "/decide/",
        "/decide/none",
        "/decide/%66",
        "/decide/fw%",
        "/Decide/fwd",
        "//decide/fwd",
        "/settle/none",
    ] {
        assert_eq!(gateway.fetch(&get(target, &good)).status(), 404, "{target}");
    }
    assert_eq!(gateway.fetch(&get("/decide/%66wd", &good)).status(), 200, "an encoded name");
    gateway.assert_metric("limit_decisions_total", &[("route", "fwd"), ("limit", "three"), ("decision", "allow")], 1.0);
}

#[test]
fn ambiguous_requests_are_refused_like_proxied_ones_and_never_with_5xx() {
    let gateway = gateway(NAMES);
    for (method, uri) in [
        ("get", "/"),
        ("Post", "/"),
        ("CONNECT", "/"),
        ("connect", "/"),
        ("GET", "/a%00"),
        ("GET", "/../x"),
        ("GET", "/a\\b"),
        ("GET", "/%zz"),
        ("GET", "*"),
        ("GET", "/\u{e9}"),
        ("GET", ""),
        ("GET", "x"),
        ("GET", "?q"),
        ("GET", "a.test:80"),
        ("GET", "ftp://a.test/"),
        ("GET", "http://a.test@b.test/"),
        ("GET", "/a b"),
        ("GET", "/a#b"),
        ("G T", "/"),
        ("", "/"),
    ] {
        let response = gateway.fetch(&get("/decide/fwd", &forwarded(method, uri, "")));
        assert_eq!(response.status(), 400, "{method} {uri} {}", response.text());
        let fields = format!("x-forwarded-for: 192.0.2.1\r\nx-original-method: {method}\r\nx-original-uri: {uri}\r\n");
        let response = gateway.fetch(&get("/decide/orig", &fields));
        assert_eq!((response.status(), response.get("x-limit-status")), (403, Some("400")), "{method} {uri}");
    }
    // A proxied request with such a target is forwarded with these characters encoded.
    for uri in ["/?q=<x>", "/`"] {
        assert_eq!(gateway.fetch(&get("/decide/fwd", &forwarded("GET", uri, ""))).status(), 200, "{uri}");
    }
    for host in ["a,b", "a/b", "[::1", "a..b"] {
        let fields = forwarded("GET", "/", "").replace("host: a.test", &format!("host: {host}"));
        assert_eq!(gateway.fetch(&get("/decide/fwd", &fields)).status(), 400, "{host}");
    }
    // The host of a URL must be that of the request.
    let fields = forwarded("GET", "http://b.test/", "");
    assert_eq!(gateway.fetch(&get("/decide/fwd", &fields)).status(), 400);
    gateway.assert_metric("decide_requests_total", &[("result", "invalid_request")], 45.0);
    // An encoded slash selects no other name here, and unregistered methods are valid.
    assert_eq!(fetch(&gateway, "fwd", "/a%2Fb", "").status(), 200);
    assert_eq!(gateway.fetch(&get("/decide/fwd", &forwarded("OPTIONS", "*", ""))).status(), 200);
    assert_eq!(gateway.fetch(&get("/decide/fwd", &forwarded("PURGE", "/", ""))).status(), 200);
}

#[test]
fn clients_cannot_choose_their_key_through_other_headers() {
    let gateway = gateway(NAMES);
    // Headers that a client may add to its requests; nginx passes all of them on.
    let attempts = |n: usize| {
        [
            format!("x-forwarded-method: PUT\r\nx-forwarded-host: b{n}.test\r\nx-forwarded-uri: /{n}\r\n"),
            format!("forwarded: for=198.51.100.{n};host=b{n}\r\n"),
            format!("x-real-ip: 198.51.100.{n}\r\nx-client-ip: 198.51.100.{n}\r\n"),
            format!("x-http-method-override: PUT\r\nx-rewrite-url: /{n}\r\nx_original_uri: /{n}\r\n"),
            format!("content-type: application/grpc\r\nx-n: {n}\r\n"),
        ]
    };
    let own = "x-original-method: GET\r\nx-original-uri: /login\r\nx-forwarded-for: 192.0.2.1\r\n";
    let mut admitted = 0;
    for n in 1..4 {
        for extra in attempts(n) {
            let response = gateway.fetch(&get("/decide/orig", &format!("{own}{extra}")));
            admitted += i32::from(response.status() == 200);
            assert!([200, 403].contains(&response.status()), "{extra} {}", response.text());
            assert_eq!(response.status() == 200, admitted <= 3 && response.get("x-limit-status").is_none(), "{extra}");
        }
    }
    assert_eq!(admitted, 3);
    // Envoy puts its prefix before the path of the client, whose dots must not lead to another name.
    for path in ["/../fwd", "/../../settle/fwd", "/%2e%2e/%2e%2e/settle/path"] {
        let target =
            format!("POST /decide/path{path} HTTP/1.1\r\nhost: a.test\r\nx-limit-cost: 0\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(gateway.fetch(&target).status(), 400, "{path}");
    }
    gateway.assert_metric("decide_requests_total", &[("result", "settled")], 0.0);
}

/// A question about a route has the key of a request on that route, with repeated slashes where the route keeps them.
#[test]
fn a_question_has_the_path_of_its_route() {
    let gateway = gateway(
        "[limit.one]\nrate = \"1/day\"\nkey = \"path\"\n[[route]]\nname = \"kept\"\nmerge_slashes = false\nrespond = {}\n\
         limits = [\"one\"]\n[[route]]\nname = \"merged\"\npath = \"/m/\"\nrespond = {}\nlimits = [\"one\"]\n",
    );
    assert_eq!(fetch(&gateway, "kept", "/c//x", "").status(), 200);
    assert_logged(&gateway, &[("path", "/c//x")]);
    for (name, path, status) in
        [("kept", "/c//x", 429), ("kept", "/c/x", 200), ("merged", "/c//x", 429), ("merged", "/m/x", 200)]
    {
        assert_eq!(fetch(&gateway, name, path, "").status(), status, "{name} {path}");
    }
}

#[test]
fn only_trusted_peers_may_ask_and_the_client_is_found_as_usual() {
    let gateway = gateway_with(
        "workers = 1",
        &format!("{NAMES}[[route]]\nname = \"web\"\nrespond = {{}}\nlimits = [\"three\"]\n"),
    );
    let untrusted = [127, 0, 0, 66];
    for target in ["/decide/fwd", "/decide/none", "/settle/fwd"] {
        let response = gateway.client_from(untrusted).fetch(&get(target, &forwarded("GET", "/", "")), "");
        assert_eq!((response.status(), response.get("x-limit-status")), (403, None));
    }
    let nginx = "x-original-method: GET\r\nx-original-uri: /\r\n";
    let response = gateway.client_from(untrusted).fetch(&get("/decide/orig", nginx), "");
    assert_eq!((response.status(), response.get("x-limit-status")), (403, None), "nginx takes it for no limit");
    gateway.assert_metric("decide_requests_total", &[("result", "untrusted_peer")], 4.0);
    gateway.assert_metric("limit_decisions_total", &[("route", "fwd"), ("limit", "three"), ("decision", "allow")], 0.0);
    assert_logged(&gateway, &[("reason", "decide_peer")]);
    assert_eq!(gateway.fetch(&get("/decide/none", &forwarded("GET", "/", ""))).status(), 404);
    assert_logged(&gateway, &[("reason", "decide_name")]);
    // A chain of trusted proxies is read from the right; addresses that the client wrote to its left have no effect.
    for (chain, client) in [("203.0.113.9, 192.0.2.7", "192.0.2.7"), ("192.0.2.8, 127.0.0.2", "192.0.2.8")] {
        let fields = forwarded("GET", "/", "").replace("192.0.2.1", chain);
        assert_eq!(gateway.fetch(&get("/decide/web", &fields)).status(), 200);
        assert_logged(&gateway, &[("client", client), ("route", "web")]);
    }
}

#[test]
fn http2_keep_alive_and_bodies_work() {
    let gateway = gateway(NAMES);
    let mut h2 = H2Client::connect(gateway.addr);
    let mut request = h2::post("/decide/path/x?y");
    request.headers_mut().insert("x-forwarded-for", "192.0.2.1".parse().unwrap());
    for status in [200, 200, 200, 429] {
        let response = h2.fetch(request.clone(), Sent { body: b"never read", ..Sent::default() });
        assert_eq!(response.status(), status, "{}", response.text());
    }
    let mut request = h2::get("/decide/fwd");
    for (name, value) in [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-method", "POST"), ("x-forwarded-uri", "/x")] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request.headers_mut().insert("x-forwarded-host", "a.test".parse().unwrap());
    assert_eq!(h2.fetch(request, Sent::default()).status(), 429, "the same budget over both versions and families");
    // A small body is read and dropped, so the connection stays usable; for a large one it is closed, unread.
    let mut client = Client::connect(gateway.addr);
    for n in 0..3 {
        let head = format!(
            "POST /decide/fwd HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n{}\r\n",
            forwarded("GET", &format!("/k{n}"), "")
        );
        assert_eq!(client.fetch(&head, "hello").status(), 200);
    }
    let large = format!(
        "POST /decide/fwd HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n{}\r\n",
        forwarded("GET", "/l", "")
    );
    let response = client.fetch(&large, "");
    assert_eq!((response.status(), response.get("connection")), (200, Some("close")));
    let mut head = Client::connect(gateway.addr);
    head.send(format!("HEAD /decide/fwd HTTP/1.1\r\nhost: x\r\n{}\r\n", forwarded("GET", "/h", "")));
    assert_eq!(head.read_response("HEAD").status(), 200);
    // nginx asks with HTTP/1.0 unless it is told otherwise.
    let old = format!("GET /decide/fwd HTTP/1.0\r\n{}\r\n", forwarded("GET", "/old", ""));
    assert_eq!(gateway.fetch(&old).status(), 200);
}

/// Some proxies would remove the header, others would forward it.
#[test]
fn a_question_whose_connection_lists_one_of_its_headers_is_refused() {
    let gateway = gateway(NAMES);
    for (lines, status) in [
        ("connection: close, X-Key\r\n", 400),
        ("connection: upgrade, x-absent\r\nupgrade: websocket\r\n", 200),
        ("connection: keep-alive\r\n", 200),
    ] {
        let response = gateway.fetch(&get("/decide/fwd", &forwarded("GET", "/", &format!("{lines}x-key: k\r\n"))));
        assert_eq!(response.status(), status, "{lines} {}", response.text());
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "connection_field")], 1.0);
}

/// Envoy joins the lines of a repeated header. A client that adds a line must not get another budget.
#[test]
fn a_joined_header_is_a_repeated_one_where_proxies_join_lines() {
    let limits = "[limit.key]\nrate = \"2/day\"\nkey = \"header:x-key\"\n\
                  [limit.token]\nrate = \"2/day\"\nkey = \"credential\"\n\
                  [limit.last]\nrate = \"2/day\"\nkey = \"header:x-key\"\nrepeated = \"last\"\n\
                  [decide.path]\nlimits = [\"key\"]\nfrom = \"path\"\n\
                  [decide.token]\nlimits = [\"token\"]\nfrom = \"path\"\n\
                  [decide.last]\nlimits = [\"last\"]\nfrom = \"path\"\n\
                  [decide.apart]\nlimits = [\"key\"]\nfrom = \"path\"\njoins_lines = false\n\
                  [decide.fwd]\nlimits = [\"key\"]\n\
                  [decide.joined]\nlimits = [\"key\"]\njoins_lines = true\n";
    let gateway = gateway(limits);
    let by_path = |name: &str, field: &str| {
        let fields = format!("x-forwarded-for: 192.0.2.1\r\n{field}\r\n");
        gateway.fetch(&get(&format!("/decide/{name}/a"), &fields)).status()
    };
    assert_eq!(by_path("path", "x-key: gold"), 200);
    for joined in ["x-key: gold,junk", "x-key: junk, gold", "x-key: \",gold", "x-key: gold,"] {
        assert_eq!(by_path("path", joined), 400, "{joined}");
    }
    assert_eq!(by_path("path", "x-key: \"gold, silver\" (a, b)"), 200, "the commas belong to the value");
    for joined in ["Bearer a,Bearer b", "ApiKey gold,ApiKey junk", "Basic YTpi,x"] {
        assert_eq!(by_path("token", &format!("authorization: {joined}")), 400, "{joined}");
    }
    assert_eq!(by_path("token", "authorization: Bearer a"), 200);
    // The last of several is one budget, whatever comes before it.
    let statuses = ["x-key: a,gold", "x-key: b, gold", "x-key: gold"].map(|field| by_path("last", field));
    assert_eq!(statuses, [200, 200, 429]);
    // Other proxies pass on each line by itself, so a comma is part of a value.
    assert_eq!(by_path("apart", "x-key: gold,junk"), 200);
    let of = |name: &str, field: &str| fetch(&gateway, name, "/", field).status();
    assert_eq!((of("fwd", "x-key: gold,junk\r\n"), of("fwd", "x-key: gold,junk\r\n")), (200, 429));
    assert_eq!((of("fwd", "x-key: a\r\nx-key: b\r\n"), of("joined", "x-key: gold,junk\r\n")), (400, 400));
    gateway.assert_metric("rejections_total", &[("route", "path"), ("limit", "key"), ("reason", "repeated_key")], 4.0);
}
