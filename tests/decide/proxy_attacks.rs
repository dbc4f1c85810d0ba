//! Attacks on the recipes of the manual, in the real proxies: a client whose limit is used up reaches the application by
//! no request, however odd, and no client gets a server error or ends the proxy. The variants that let requests pass
//! while the gateway is unavailable get the same requests.

use std::net::Ipv4Addr;

use super::site::{CLIENT, Recipe, Site};

const HEAD: &str = "host: www.example.com\r\nconnection: close\r\n";

/// Requests that a client may send. Most are valid for some server.
fn attacks() -> Vec<Vec<u8>> {
    let targets: &[&[u8]] = &[
        b"/?q=<x>",
        b"/`",
        b"/?x={\"y\":1}",
        b"/\"",
        b"/<script>",
        b"/a|b^c{d}",
        b"/\xc3\xa9",
        b"/\xff",
        b"/?\xff",
        b"/\x7f",
        b"/\x01",
        b"/?a=\x01",
        b"/%00",
        b"/%zz",
        b"/a/../../b",
        b"//",
        b"/a\\b",
        b"/a#b",
        b"*",
        b"x",
        b"?",
        b"http://b/x",
        b"http://www.example.com/x",
        b"http://www.example.com",
        b"http://<b>/",
        b"ftp://www.example.com/",
    ];
    let repeat = |line: &str, count: usize| (0..count).map(|n| line.replace("{n}", &n.to_string())).collect::<String>();
    let fields: Vec<Vec<u8>> = [
        "x-api-key: a\x01b\r\n".to_owned(),
        "x-api-key: a\x7fb\r\n".to_owned(),
        "x-api-key: \u{ff}\r\n".to_owned(),
        "x-api-key: a\r\nx-api-key: b\r\n".to_owned(),
        "x(y): 1\r\n".to_owned(),
        repeat("x-api-key: {n}\r\n", 90),
        repeat("accept: {n}\r\n", 97),
        repeat("h{n}: 1\r\n", 90),
        repeat("h{n}: 1\r\n", 97),
        repeat("h{n}: 1\r\n", 150),
        format!("x-api-key: {}\r\n", "a".repeat(7000)),
        repeat(&format!("h{{n}}: {}\r\n", "a".repeat(7000)), 4),
        format!("accept: {}\r\n", "text/html;q=0.1,".repeat(400)),
        "expect: foo\r\n".to_owned(),
        "te: x\r\n".to_owned(),
        "connection: x-api-key, x-forwarded-for, x-forwarded-uri\r\nx-api-key: a\r\n".to_owned(),
        "x-forwarded-uri: /b\r\nx-forwarded-uri: /c\r\nx-forwarded-host: b\r\nx-forwarded-method: PUT\r\n".to_owned(),
        "x-original-url: http://b/x\r\nx-original-uri: /\r\nx-original-method: PUT\r\n".to_owned(),
        "x_original_uri: /\r\nx_forwarded_for: 198.51.100.1\r\n".to_owned(),
        "forwarded: for=198.51.100.1\r\nx-forwarded-for: 198.51.100.1\r\n".to_owned(),
        "x-request-id: same\r\nx-request-id: other\r\n".to_owned(),
        "content-type: application/grpc\r\ngrpc-timeout: 1n\r\n".to_owned(),
        "authorization: Bearer a\r\nauthorization: Bearer b\r\n".to_owned(),
    ]
    .map(String::into_bytes)
    .into();
    let by_target =
        targets.iter().map(|target| [&b"GET "[..], *target, b" HTTP/1.1\r\n", HEAD.as_bytes(), b"\r\n"].concat());
    let long = format!("GET /{} HTTP/1.1\r\n{HEAD}\r\n", "a".repeat(7500)).into_bytes();
    let by_field =
        fields.iter().map(|lines| [&b"GET / HTTP/1.1\r\n"[..], HEAD.as_bytes(), lines.as_slice(), b"\r\n"].concat());
    let others = [
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost: a b\r\nconnection: close\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost: a_b.example:x\r\nconnection: close\r\n\r\n".to_owned(),
        format!("get / HTTP/1.1\r\n{HEAD}\r\n"),
        format!("PURGE / HTTP/1.1\r\n{HEAD}\r\n"),
        format!("PROPFIND / HTTP/1.1\r\n{HEAD}\r\n"),
        format!("OPTIONS * HTTP/1.1\r\n{HEAD}\r\n"),
        format!("HEAD / HTTP/1.1\r\n{HEAD}\r\n"),
        format!("POST / HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            .to_owned(),
    ]
    .map(String::into_bytes);
    by_target.chain([long]).chain(by_field).chain(others).collect()
}

/// Attacks a recipe, in which the gateway admits 5 requests of each address.
fn attack(recipe: &Recipe) -> Site {
    let mut site = Site::start(recipe, |config| config.replace("rate = \"30/min\"", "rate = \"1/h\""));
    let shown = |request: &[u8]| String::from_utf8_lossy(&request[..request.len().min(200)]).into_owned();
    let attacks = attacks();
    // Each request by an address of its own, which has its whole limit.
    for (n, request) in attacks.iter().enumerate() {
        let client = Ipv4Addr::new(127, 0, 1, u8::try_from(n).unwrap());
        let status = site.send_raw(client, request);
        assert!(![500, 502, 503, 504].contains(&status), "{status}: {}", shown(request));
        assert!(site.is_proxy_running(), "{}", shown(request));
    }
    let plain = format!("GET / HTTP/1.1\r\n{HEAD}\r\n");
    let statuses = [(); 6].map(|()| site.send_raw(CLIENT, plain.as_bytes()));
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    site.app.requests();
    for request in &attacks {
        // A proxy may answer some of them itself, even with 200.
        let status = site.send_raw(CLIENT, request);
        assert!(![500, 502, 503, 504].contains(&status), "{status}: {}", shown(request));
        let passed: Vec<String> = site.app.requests().iter().map(|request| request.head.clone()).collect();
        assert!(passed.is_empty(), "{} reached the application as {passed:?}", shown(request));
    }
    assert_eq!(site.send_raw(Ipv4Addr::new(127, 0, 2, 1), plain.as_bytes()), 200, "others are served");
    site
}

/// Attacks a variant of a recipe that lets requests pass while the gateway is unavailable.
fn attack_open(recipe: &Recipe) {
    let site = attack(recipe);
    site.stop_gateway();
    assert_eq!(site.fetch("GET", "/", "", "").status(), 200);
}

#[test]
fn attacks_in_nginx() {
    attack(&Recipe::nginx());
    let limit = "        internal;\n";
    let open = "    location @open {\n        return 204;\n    }\n\n    location @limited {\n";
    attack_open(
        &Recipe::nginx()
            .with(limit, &format!("{limit}        error_page 502 504 = @open;\n"))
            .with("    location @limited {\n", open),
    );
}

#[test]
fn attacks_in_caddy() {
    attack(&Recipe::caddy());
}

#[test]
fn attacks_in_haproxy() {
    attack(&Recipe::patient_haproxy());
    let closed = "    http-request deny deny_status 503 unless { var(txn.limits_answered) -m bool }\n";
    attack_open(&Recipe::patient_haproxy().with(closed, ""));
}

#[test]
fn attacks_in_envoy() {
    attack(&Recipe::envoy());
    attack_open(&Recipe::envoy().with("failure_mode_allow: false", "failure_mode_allow: true"));
}

#[test]
fn attacks_in_traefik() {
    attack(&Recipe::traefik());
}
