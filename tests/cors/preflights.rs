//! Preflights: the gateway answers them for the route of the request that follows, before everything that could refuse it.

use http::Request;

use super::{PAGE, app, start};
use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::h2::{H2Client, Sent};
use crate::support::http::Message;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// Sends the preflight of a page that wants to send a request with this method.
fn ask(gateway: &Gateway, target: &str, origin: &str, method: &str) -> Message {
    let asked = format!("origin: {origin}\r\naccess-control-request-method: {method}\r\n");
    let head = get(target, &format!("{asked}access-control-request-headers: authorization,x-any\r\n"));
    gateway.client().fetch(&head.replacen("GET", "OPTIONS", 1), "")
}

#[test]
fn nothing_refuses_or_charges_a_preflight() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    let mut held = gateway.client();
    held.send(get("/held", ""));
    gateway.assert_metric("requests_in_flight", &[("route", "held")], 1.0);
    for target in
        ["/app", "/limited", "/small", "/private", "/denied", "/down", "/slow", "/held", "/fixed", "/moved", "/nowhere"]
    {
        for _ in 0..3 {
            let response = ask(&gateway, target, PAGE, "PUT");
            assert_eq!(response.status(), 204, "{target}");
            let expected = [
                ("access-control-allow-origin", PAGE),
                ("access-control-allow-credentials", "true"),
                ("access-control-allow-methods", "GET, HEAD, POST, PUT, PATCH, DELETE"),
                ("access-control-allow-headers", "authorization, content-type"),
                ("access-control-max-age", "600"),
            ];
            for (name, value) in expected {
                assert_eq!(response.get(name), Some(value), "{target}");
            }
            assert_eq!(
                response.all("vary").join(", "),
                "origin, access-control-request-method, access-control-request-headers"
            );
            assert_eq!((response.get("content-length"), response.get("ratelimit")), (None, None), "{target}");
        }
    }
    // The held request is refused all the same.
    assert_eq!(gateway.get("/held").status(), 503);
    assert_eq!(gateway.get("/limited").status(), 200);
    assert_eq!(gateway.get("/limited").status(), 429);
    let seen: Vec<String> = app.requests().iter().map(|request| request.head.clone()).collect();
    assert!(seen.iter().all(|head| head.starts_with("GET /limited")), "{seen:?}");
    let labels = [("route", "private"), ("method", "OPTIONS"), ("code", "204")];
    gateway.assert_metric("requests_total", &labels, 3.0);
    wait_until("the preflights are logged", || {
        let log = gateway.stdout();
        log.lines().filter(|line| line.contains("\"OPTIONS\"") && line.contains("\"route\":\"private\"")).count() == 3
    });
}

#[test]
fn a_page_that_is_not_listed_gets_no_permission() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    for origin in ["https://evil.test", "null", "https://app.test.evil.test"] {
        let response = ask(&gateway, "/limited", origin, "PUT");
        let granted: Vec<_> = response.fields().filter(|(name, _)| name.starts_with("access-control")).collect();
        assert_eq!((response.status(), granted), (204, Vec::new()), "{origin}");
        assert!(response.all("vary").contains(&"origin"), "{origin}");
    }
}

#[test]
fn the_route_is_that_of_the_request_that_follows() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    let [methods, headers] = ["access-control-allow-methods", "access-control-allow-headers"];
    // Each of the two routes of the path has its own origins and methods.
    let reader = ask(&gateway, "/methods", "https://evil.test", "GET");
    assert_eq!((reader.get("access-control-allow-origin"), reader.get(methods)), (Some("*"), Some("GET")));
    for method in ["PUT", "PURGE", "put"] {
        let writer = ask(&gateway, "/methods", PAGE, method);
        assert_eq!((writer.get("access-control-allow-origin"), writer.get(methods)), (Some(PAGE), Some("PUT, PURGE")));
        assert_eq!(ask(&gateway, "/methods", "https://evil.test", method).get(methods), None);
    }
    gateway.assert_metric("requests_total", &[("route", "writer"), ("method", "OPTIONS"), ("code", "204")], 6.0);
    // Every method and every header of the pages of one route.
    let any = ask(&gateway, "/admin", "https://admin.test", "BREW");
    assert_eq!((any.get(methods), any.get(headers)), (Some("BREW"), Some("authorization,x-any")));
    assert_eq!(any.get("access-control-max-age"), Some("3600"));
}

#[test]
fn other_options_requests_continue() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    let method = "access-control-request-method: PUT\r\n";
    let origin = format!("origin: {PAGE}\r\n");
    for (target, fields) in [
        ("/app", String::new()),
        ("/app", origin.clone()),
        ("/app", method.to_owned()),
        ("/app", format!("{origin}{method}{method}")),
        ("/app", format!("{origin}{origin}{method}")),
        ("/app", format!("{origin}access-control-request-method: a b\r\n")),
        ("/own", format!("{origin}{method}")),
    ] {
        let response = gateway.fetch(&get(target, &fields).replacen("GET", "OPTIONS", 1));
        assert_eq!((response.status(), response.text()), (200, "ok".to_owned()), "{target} {fields}");
    }
    assert_eq!(gateway.fetch(&get("/app", &format!("{origin}{method}"))).status(), 200, "GET is no preflight");
    assert_eq!(app.requests().len(), 8);
    // Limits charge them.
    let options = get("/limited", &origin).replacen("GET", "OPTIONS", 1);
    assert_eq!([gateway.fetch(&options).status(), gateway.fetch(&options).status()], [200, 429]);
}

#[test]
fn preflights_over_http2_get_the_same() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    let mut client = H2Client::connect(gateway.addr);
    for _ in 0..3 {
        let request = Request::builder().method("OPTIONS").uri("http://a.test/private").header("origin", PAGE);
        let request = request.header("access-control-request-method", "DELETE").body(()).unwrap();
        let response = client.fetch(request, Sent::default());
        assert_eq!((response.status(), response.field("access-control-allow-origin")), (204, Some(PAGE)));
    }
}

#[test]
fn an_explanation_shows_preflights_and_pages() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    let explain = |arguments: &[&str]| {
        let mut command = program();
        command.args(["explain", "--config"]).arg(gateway.config()).args(arguments);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let asked = ["-H", "access-control-request-method: PUT", "-H", "origin: https://app.test"];
    for (target, route) in [("http://a.test/private", "private"), ("http://a.test/methods", "writer")] {
        let text = explain(&[&["OPTIONS", target], &asked[..]].concat());
        for expected in [
            &format!("route     {route}"),
            "answer the preflight (cors)",
            "with 204: the gateway answers the preflight, before `deny`, `auth` and limits",
            "this is a preflight: a browser asks whether a page may send PUT (cors)",
            "pages of https://app.test may read the response (cors)",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }
    let text = explain(&["GET", "http://a.test/fixed", "-H", "origin: https://evil.test"]);
    assert!(text.contains("pages of https://evil.test may not read the response"), "{text}");
}
