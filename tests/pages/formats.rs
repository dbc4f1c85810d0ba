//! Which format of an error a client gets, and what is in it.

use std::io::Write as _;

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::http::Message;

/// `Accept` of Chromium for a page.
pub const BROWSER: &str =
    "accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n";

const ROUTES: &str = r#"
[[route]]
path = "/limited"
upstream = "echo:"
limits = ["one"]

[[route]]
path = "/own"
upstream = "echo:"
limits = ["one"]
refuse = { status = 503, body = "slow down, {retry_after} s", content_type = "text/plain" }

[[route]]
path = "/down"
upstream = "http://127.0.0.1:1"

[[route]]
path = "/edited"
upstream = "http://127.0.0.1:1"
request_headers = { set = { accept = "application/json" } }

[[route]]
path = "/small"
upstream = "echo:"
max_body = 10

[[route]]
path = "/fixed"
respond = { status = 404, body = "gone" }

[limit.one]
rate = "1/h"
burst = 1
"#;

fn kind(response: &Message) -> &str {
    response.get("content-type").unwrap_or_default()
}

#[test]
fn browsers_get_a_page_and_other_clients_a_document() {
    let gateway = Gateway::start(ROUTES);
    for (accept, expected) in [
        ("", "application/problem+json"),
        ("accept: */*\r\n", "application/problem+json"),
        ("accept: application/json\r\n", "application/problem+json"),
        (BROWSER, "text/html; charset=utf-8"),
        ("accept: text/plain\r\n", "text/plain; charset=utf-8"),
        ("accept: image/png\r\naccept: text/html;q=0.1\r\n", "text/html; charset=utf-8"),
    ] {
        for (target, status) in [("/nowhere", 404), ("/down", 502)] {
            let response = gateway.fetch(&get(target, accept));
            assert_eq!((response.status(), kind(&response)), (status, expected), "{accept}");
            assert_eq!((response.get("vary"), response.get("cache-control")), (Some("accept"), Some("no-store")));
            let head = gateway.fetch(&format!("HEAD {target} HTTP/1.1\r\nhost: a.test\r\n{accept}\r\n"));
            assert_eq!((head.status(), kind(&head), head.body.len()), (status, expected, 0));
            assert_eq!(head.get("content-length"), response.get("content-length"));
        }
    }
    assert_eq!(kind(&gateway.fetch(&get("/fixed", BROWSER))), "text/plain; charset=utf-8", "`respond` stays as it is");
    assert_eq!(
        kind(&gateway.fetch(&get("/edited", BROWSER))),
        "text/html; charset=utf-8",
        "the client's own header counts"
    );
}

#[test]
fn every_error_of_the_gateway_has_a_page() {
    let gateway = Gateway::with("max_header_bytes = \"8KiB\"", ROUTES);
    assert_eq!(gateway.get("/limited").status(), 200);
    let large = format!("x: {}\r\n", "a".repeat(9000));
    let many = "x: y\r\n".repeat(150);
    for (head, status) in [
        (get("/limited", BROWSER), 429),
        (get("/down", BROWSER), 502),
        (get("/nowhere", BROWSER), 404),
        (format!("POST /small HTTP/1.1\r\nhost: a.test\r\ncontent-length: 11\r\n{BROWSER}\r\n01234567890"), 413),
        (get("/a%00b", BROWSER), 400),
        (format!("GET / HTTP/1.1\r\nhost: a.test\r\n{BROWSER}{large}\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nhost: a.test\r\n{BROWSER}{many}\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nhost: a.test\r\n{BROWSER}no colon\r\n\r\n"), 400),
        (format!("CONNECT a.test:1 HTTP/1.1\r\nhost: a.test:1\r\n{BROWSER}\r\n"), 501),
    ] {
        let response = gateway.fetch(&head);
        assert_eq!((response.status(), kind(&response)), (status, "text/html; charset=utf-8"), "{head}");
        let text = response.text();
        assert!(text.contains(&format!("<title>{status} ")) && text.contains("lang=\"en\""), "{text}");
        let policy = response.get("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
        assert_eq!(response.get("x-content-type-options"), Some("nosniff"));
        assert!(text.len() < 2500, "{} bytes", text.len());
    }
}

#[test]
fn a_refusal_has_its_wait_in_every_format() {
    let gateway = Gateway::start(ROUTES);
    assert_eq!(gateway.get("/limited").status(), 200);
    let page = gateway.fetch(&get("/limited", BROWSER));
    assert!(page.text().contains("Try again in 60 minutes."), "{}", page.text());
    assert!(page.get("retry-after").is_some() && page.get("ratelimit").is_some());
    // The list of refusals has the id, so every format shows it.
    let text = gateway.fetch(&get("/limited", "accept: text/plain\r\n")).text();
    let (text, id) = text.split_once("Request ID: ").expect("an id");
    assert_eq!(text, "429 Too Many Requests\n\nYou have sent too many requests.\nTry again in 60 minutes.\n");
    assert_eq!(gateway.admin(&format!("/-/refusals?request_id={}", id.trim())).json()["refusals"][0]["status"], 429);
    let problem = gateway.get("/limited").json();
    assert_eq!((&problem["status"], &problem["violated-policies"][0]), (&429.into(), &"one".into()));
    // `refuse` of the route is for all clients.
    let own = gateway.fetch(&get("/own", BROWSER));
    assert_eq!((own.status(), kind(&own), own.get("vary")), (503, "text/plain", None));
    assert!(own.text().starts_with("slow down, "));
}

/// A page shows an id only if somebody can look it up.
#[test]
fn the_request_id_is_that_of_the_log() {
    let with = |server: &str| Gateway::with(server, ROUTES);
    let gateway = with("access_log = true");
    let text = gateway.fetch(&get("/down", "accept: text/plain\r\n")).text();
    let id = text.lines().find_map(|line| line.strip_prefix("Request ID: ")).expect("an id").to_owned();
    crate::support::wait_until("the id is logged", || gateway.stdout().contains(&format!("\"request_id\":\"{id}\"")));
    assert!(gateway.fetch(&get("/nowhere", BROWSER)).text().contains("Request ID: <code>"));
    for server in ["", "access_log = { format = \"combined\" }", "access_log = { format = \"{time} {status}\" }"] {
        assert!(!with(server).fetch(&get("/down", BROWSER)).text().contains("Request ID"), "{server}");
    }
    let template = with("access_log = { format = \"{request_id} {status}\" }");
    assert!(template.fetch(&get("/down", BROWSER)).text().contains("Request ID"));
}

#[test]
fn grpc_clients_get_no_page() {
    let gateway = Gateway::start(ROUTES);
    let head = format!(
        "POST /down HTTP/1.1\r\nhost: a.test\r\ncontent-type: application/grpc\r\ncontent-length: 0\r\n{BROWSER}\r\n"
    );
    let response = gateway.fetch(&head);
    assert_eq!((response.status(), response.get("grpc-status")), (200, Some("14")));
    assert_eq!((kind(&response), response.body.len()), ("application/grpc", 0));
}

/// Heads that do not parse get the same formats, and a connection that closes.
#[test]
fn broken_heads_have_the_format_of_their_accept_header() {
    let gateway = Gateway::start(ROUTES);
    for (accept, expected) in [
        ("", "application/problem+json"),
        (BROWSER, "text/html; charset=utf-8"),
        ("ACCEPT:text/plain\r\n", "text/plain; charset=utf-8"),
    ] {
        let mut client = gateway.client();
        client.send(format!("GET /<x> HTTP/1.1\r\n{accept}bad\r\n\r\n"));
        let response = client.read_response("GET");
        assert_eq!((response.status(), kind(&response), response.get("connection")), (400, expected, Some("close")));
        assert!(!response.text().contains("<x>"));
    }
    let mut client = gateway.client();
    client.send(format!("HEAD / HTTP/1.1\r\n{BROWSER}bad\r\n\r\n"));
    let response = client.read_response("HEAD");
    assert!(response.get("content-length").unwrap().parse::<usize>().unwrap() > 500);
    client.assert_closed();
}

#[test]
fn no_accept_header_breaks_anything() {
    let gateway = Gateway::start(ROUTES);
    let mut seed = 7_u64;
    let mut next = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let pieces = [
        "text/html",
        "*/*",
        "text/*",
        ";q=0.",
        ";q=",
        ",",
        "/",
        "application/json",
        "\"",
        "1",
        ";",
        " ",
        "\t",
        "=",
        "\u{e9}",
        "q",
    ];
    let mut client = gateway.client();
    for _ in 0..2000 {
        let accept: String = (0..next(12)).map(|_| pieces[next(pieces.len() as u64) as usize]).collect();
        let response = client.fetch(&get("/nowhere", &format!("accept: {accept}\r\n")), "");
        assert_eq!(response.status(), 404, "{accept:?}");
        assert!(
            ["application/problem+json", "text/html; charset=utf-8", "text/plain; charset=utf-8"]
                .contains(&kind(&response))
        );
    }
    let long = format!("accept: {}\r\n", "text/html;q=0.1,".repeat(1900));
    assert_eq!(client.fetch(&get("/nowhere", &long), "").status(), 404);
    let mut raw = Client::connect(gateway.addr);
    raw.stream().write_all(b"GET / HTTP/1.1\r\nhost: a\r\naccept: \xff\xfe,text/html\r\n\r\n").unwrap();
    assert_eq!(raw.read_response("GET").status(), 404);
}
