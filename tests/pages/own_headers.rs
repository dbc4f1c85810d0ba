//! `response_headers` with `on = "all"`: every response that the gateway makes for a route has them, whatever it is.

use std::fs;
use std::net::SocketAddr;

use crate::support::ca::Ca;
use crate::support::client::{Client, get, post};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::h2::H2Client;
use crate::support::tls::Trust;
use crate::support::token::SECRET;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const ALL: &str = "response_headers = { set = { x-policy = \"self\" }, on = \"all\" }\n";

/// A route for each kind of response, with what makes it differ from the others.
fn routes(silent: &str) -> String {
    [
        ("respond", "respond = { status = 418, body = \"tea\" }"),
        ("moved", "redirect = \"/elsewhere\""),
        ("files", "files = \"site\"\nrewrite = { strip_prefix = \"/files\" }"),
        ("limited", "respond = { }\nlimits = [\"one\"]"),
        ("denied", "respond = { }\ndeny = [\"127.0.0.0/8\"]"),
        ("private", "respond = { }\nauth = { jwt = true }"),
        ("small", "upstream = \"echo:\"\nmax_body = 5"),
        ("patient", "upstream = \"echo:\"\nlimits = [\"body\"]\nbody_timeout = \"100ms\""),
        ("shared", "respond = { }\ncors = { origins = [\"https://app.test\"] }"),
        ("down", "upstream = \"http://127.0.0.1:1\""),
        ("slow", &format!("upstream = \"{silent}\"\nresponse_timeout = \"50ms\"")),
        ("full", &format!("upstream = \"{silent}\"\nmax_in_flight = 1")),
    ]
    .iter()
    .map(|(name, lines)| format!("[[route]]\nname = \"{name}\"\npath = \"/{name}\"\n{lines}\n{ALL}"))
    .collect()
}

fn start(ca: &Ca, silent: &Upstream) -> Gateway {
    Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "a");
        fs::create_dir_all(dir.join("site/docs")).unwrap();
        fs::write(dir.join("site/docs/index.html"), "docs").unwrap();
        let limits = "[limit.one]\nrate = \"1/day\"\nkey = \"all\"\n\
                      [limit.body]\nrate = \"1000/s\"\nkey = \"json:/id\"\n";
        let config = format!(
            "[server]\nworkers = 1\nmax_header_bytes = \"128KiB\"\nlisten = [\"127.0.0.2:0\"]\nredirect_http = \"127.0.0.3:0\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
             tls = {{ certificates = [{{ cert = \"a.pem\", key = \"a.key\" }}] }}\n\
             [jwt]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\n{}{limits}",
            routes(&silent.url())
        );
        config_arguments(dir, &config)
    })
}

fn listener(gateway: &Gateway, ip: &str) -> SocketAddr {
    *gateway.listeners().iter().find(|addr| addr.ip().to_string() == ip).unwrap()
}

#[test]
fn every_response_of_the_gateway_for_a_route_has_them() {
    let (ca, silent) = (Ca::new("test"), Upstream::silent());
    let gateway = start(&ca, &silent);
    let plain = listener(&gateway, "127.0.0.2");
    let preflight = "origin: https://app.test\r\naccess-control-request-method: PUT\r\n";
    let fetch = |addr: SocketAddr, head: &str| Client::connect(addr).fetch(head, "");
    let modified = fetch(plain, &get("/files/docs/", "")).get("last-modified").unwrap().to_owned();
    for (what, head, status) in [
        ("redirect", get("/moved", ""), 308),
        ("fixed response", get("/respond", ""), 418),
        ("echo", get("/small", ""), 200),
        ("redirect to a slash", get("/files/docs", ""), 301),
        ("file", get("/files/docs/", ""), 200),
        ("unmodified file", get("/files/docs/", &format!("if-modified-since: {modified}\r\n")), 304),
        ("part of a file", get("/files/docs/", "range: bytes=0-1\r\n"), 206),
        ("no such part", get("/files/docs/", "range: bytes=99-\r\n"), 416),
        ("no file", get("/files/none", ""), 404),
        ("method of a file", post("/files/docs/", 0, ""), 405),
        ("precondition", get("/files/docs/", "if-match: \"other\"\r\n"), 412),
        ("admitted", get("/limited", ""), 200),
        ("refused", get("/limited", ""), 429),
        ("denied", get("/denied", ""), 403),
        ("no token", get("/private", ""), 401),
        ("too large", post("/small", 6, ""), 413),
        ("late body", post("/patient", 6, "content-type: application/json\r\n"), 408),
        ("ambiguous path", get("/small/a%2Fb", ""), 400),
        ("two hosts", get("/small", "host: b.test\r\n"), 400),
        ("TRACE", "TRACE /small HTTP/1.1\r\nhost: a.test\r\n\r\n".to_owned(), 405),
        ("preflight", format!("OPTIONS /shared HTTP/1.1\r\nhost: a.test\r\n{preflight}\r\n"), 204),
        ("no server", get("/down", ""), 502),
        ("late server", get("/slow", ""), 504),
        ("gRPC status", get("/down", "content-type: application/grpc\r\nte: trailers\r\n"), 200),
    ] {
        let response = fetch(plain, &head);
        assert_eq!((response.status(), response.all("x-policy")), (status, vec!["self"]), "{what}: {}", response.head);
    }
    let mut holder = Client::connect(plain);
    holder.send(get("/full", ""));
    wait_until("the route is full", || fetch(plain, &get("/full", "")).status() == 503);
    assert_eq!(fetch(plain, &get("/full", "")).get("x-policy"), Some("self"));
    let redirecting = listener(&gateway, "127.0.0.3");
    let moved = fetch(redirecting, &get("/small?b", ""));
    assert_eq!((moved.status(), moved.get("x-policy")), (308, Some("self")), "{}", moved.head);
    let secure = listener(&gateway, "127.0.0.1");
    let other = "GET /small HTTP/1.1\r\nhost: b.test\r\n\r\n";
    let misdirected = Trust::in_ca(&ca).connect(secure, "a.test").fetch(other, "");
    assert_eq!((misdirected.status(), misdirected.get("x-policy")), (421, Some("self")), "{}", misdirected.head);
    let over_http2 = H2Client::connect(plain).get("/down");
    assert_eq!((over_http2.status(), over_http2.field("x-policy")), (502, Some("self")));
}

/// The manual lists these.
#[test]
fn responses_without_a_route_have_none_of_them() {
    let (ca, silent) = (Ca::new("test"), Upstream::silent());
    let gateway = start(&ca, &silent);
    let plain = listener(&gateway, "127.0.0.2");
    let long = format!("x-long: {}\r\n", "a".repeat(140_000));
    for (what, head, status) in [
        ("no route", get("/nowhere", ""), 404),
        ("malformed head", "GET /small HTTP/1.1\r\nbad\r\n\r\n".to_owned(), 400),
        ("large head", get("/small", &long), 431),
        ("long target", get(&format!("/small?{}", "a".repeat(66_000)), ""), 414),
        ("two lengths", post("/small", 1, "content-length: 2\r\n"), 400),
        ("tunnel", "CONNECT a.test:443 HTTP/1.1\r\nhost: a.test:443\r\n\r\n".to_owned(), 501),
    ] {
        let response = Client::connect(plain).fetch(&head, "");
        assert_eq!((response.status(), response.get("x-policy")), (status, None), "{what}: {}", response.head);
    }
    let redirecting = listener(&gateway, "127.0.0.3");
    let moved = Client::connect(redirecting).fetch(&get("/nowhere", ""), "");
    assert_eq!((moved.status(), moved.get("x-policy")), (308, None), "{}", moved.head);
}
