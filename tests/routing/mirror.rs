//! Copies of requests (`mirror`): what the other upstream gets, and that nothing of it reaches clients.

use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post as h2_post};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// A gateway that copies all requests for `app` to `shadow`. `more` is part of the route, and what follows it.
fn gateway(app: &str, shadow: &str, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{app}\"\nmirror = {{ upstream = \"{shadow}\" }}\n{more}\n"
    ))
}

fn count(gateway: &Gateway, outcome: &str, value: f64) {
    gateway.assert_metric("mirror_total", &[("route", "app"), ("outcome", outcome)], value);
}

#[test]
fn a_copy_is_the_request_as_it_is_forwarded() {
    let (app, shadow) = (Upstream::text("the app"), Upstream::text("the shadow"));
    let more = "rewrite = { strip_prefix = \"/api\" }\nrequest_headers = { set = { x-added = \"yes\" } }";
    let gateway = gateway(&app.url(), &shadow.url(), more);
    let chunked = "POST /api/b HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                   3\r\nabc\r\n2\r\nde\r\n0\r\nx-sum: 1\r\n\r\n";
    for (request, body) in [
        (get("/api/a?x=1", "x-mirrored: forged\r\n"), ""),
        (post("/api/b", 5, "expect: 100-continue\r\n") + "abcde", "abcde"),
        (chunked.to_owned(), "abcde"),
        (post("/api/c", 0, ""), ""),
    ] {
        let mut client = gateway.client();
        client.send(&request);
        let mut response = client.try_read_response("GET").unwrap();
        if response.status() == 100 {
            response = client.try_read_response("GET").unwrap();
        }
        assert_eq!(response.text(), "the app");
        let (original, copy) = (app.request(), shadow.request());
        assert_eq!((original.start_line(), original.get("host")), (copy.start_line(), copy.get("host")));
        assert!(copy.target().starts_with(['/']) && !copy.target().contains("api"), "{}", copy.head);
        assert_eq!((copy.get("x-added"), copy.get("x-forwarded-for")), (Some("yes"), original.get("x-forwarded-for")));
        assert_eq!((copy.get("x-mirrored"), original.get("x-mirrored")), (Some("true"), None));
        assert_eq!((String::from_utf8_lossy(&copy.body).as_ref(), copy.get("transfer-encoding")), (body, None));
        assert_eq!((copy.get("expect"), copy.get("trailer")), (None, None));
    }
    count(&gateway, "answered", 4.0);
}

#[test]
fn copies_cross_protocols() {
    let shadow = Gateway::start("[[route]]\nname = \"shadow\"\npath = \"/\"\nupstream = \"echo:\"");
    let app = Upstream::text("the app");
    let gateway = gateway(&app.url(), &format!("h2c://{}", shadow.addr), "");
    let mut client = H2Client::connect(gateway.addr);
    let response = client.fetch(h2_post("/x"), Sent { body: b"abcde", trailers: None });
    assert_eq!(response.text(), "the app");
    assert_eq!(gateway.get("/y").text(), "the app");
    count(&gateway, "answered", 2.0);
    shadow.assert_metric("requests_total", &[("route", "shadow"), ("method", "POST"), ("code", "200")], 1.0);
    shadow.assert_metric("requests_total", &[("route", "shadow"), ("method", "GET"), ("code", "200")], 1.0);
}

#[test]
fn a_failing_shadow_changes_nothing_for_clients() {
    let app = Upstream::text("the app");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = Upstream::silent();
    let nonsense = Upstream::fixed("HTTP/1.1 nonsense\r\n\r\n");
    let endless = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n")?;
        loop {
            peer.send([b'x'; 10_000])?;
        }
    });
    let error = Upstream::fixed("HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n");
    for (shadow, outcome) in [
        (format!("http://{closed}"), "failed"),
        (silent.url(), "failed"),
        (nonsense.url(), "failed"),
        (endless.url(), "answered"),
        (error.url(), "answered"),
    ] {
        let gateway = gateway(&app.url(), &shadow, "response_timeout = \"500ms\"\nconnect_timeout = \"500ms\"");
        let begun = Instant::now();
        for _ in 0..5 {
            assert_eq!(gateway.get("/").text(), "the app", "{shadow}");
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{shadow}");
        count(&gateway, outcome, 5.0);
        gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "200")], 5.0);
    }
    silent.wait_for_close();
    endless.wait_for_close();
}

#[test]
fn copies_are_bounded() {
    let (app, silent) = (Upstream::text("the app"), Upstream::silent());
    let gateway = gateway(&app.url(), &silent.url(), "response_timeout = \"30s\"");
    let mut client = gateway.client();
    for _ in 0..100 {
        assert_eq!(client.fetch(&post("/", 1000, ""), [b'x'; 1000]).text(), "the app");
    }
    count(&gateway, "busy", 36.0);
    wait_until("the copies are on their way", || silent.connections() == 64);
}

/// Each upstream that gets copies has its own places, also after a reload.
#[test]
fn a_shadow_that_is_stuck_stops_no_copies_for_others() {
    let (app, silent, shadow) = (Upstream::text("the app"), Upstream::silent(), Upstream::text("the shadow"));
    let more = format!(
        "response_timeout = \"30s\"\n[[route]]\nname = \"other\"\npath = \"/other\"\nupstream = \"{}\"\n\
         mirror = {{ upstream = \"{}\" }}\n",
        app.url(),
        shadow.url()
    );
    let gateway = gateway(&app.url(), &silent.url(), &more);
    for _ in 0..70 {
        assert_eq!(gateway.get("/").text(), "the app");
    }
    count(&gateway, "busy", 6.0);
    for _ in 0..10 {
        assert_eq!(gateway.get("/other").text(), "the app");
    }
    gateway.assert_metric("mirror_total", &[("route", "other"), ("outcome", "answered")], 10.0);
    gateway.reload_with("name = \"other\"", "allow = [\"127.0.0.1\"]\nname = \"other\"");
    assert_eq!([gateway.get("/").text(), gateway.get("/other").text()], ["the app"; 2]);
    count(&gateway, "busy", 7.0);
    gateway.assert_metric("mirror_total", &[("route", "other"), ("outcome", "answered")], 11.0);
}

#[test]
fn some_requests_are_not_copied() {
    let (app, shadow) = (Upstream::text("the app"), Upstream::text("the shadow"));
    let limited = "limits = [\"two\"]\n[limit.two]\nrate = \"2/day\"\nkey = \"header:x-key\"\nmissing = \"skip\"";
    let gateway = gateway(&app.url(), &shadow.url(), limited);
    let fetch = |fields: &str| gateway.fetch(&get("/", fields)).status();
    assert_eq!([(); 3].map(|()| fetch("x-key: a\r\n")), [200, 200, 429]);
    count(&gateway, "answered", 2.0);

    // Longer than `max_body`, announced or not.
    let body = vec![b'x'; 70_000];
    let mut client = gateway.client();
    assert_eq!(client.fetch(&post("/", 70_000, ""), &body).text(), "the app");
    let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    let head = "POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(client.fetch(head, &chunk).text(), "the app");
    count(&gateway, "body_too_large", 2.0);

    // The client leaves within its body.
    let mut stream = gateway.client().into_stream();
    stream.write_all((post("/", 10, "") + "abc").as_bytes()).unwrap();
    drop(stream);
    count(&gateway, "body_incomplete", 1.0);

    // Nobody would speak the other protocol.
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert_eq!(fetch(upgrade), 200);
    count(&gateway, "answered", 2.0);
    assert_eq!(shadow.requests().len(), 2);
}

#[test]
fn a_request_that_is_sent_again_is_copied_once() {
    let app = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let is_first = request.get("x-first").is_some();
            peer.send(if is_first {
                "HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n".to_owned()
            } else {
                ok("the app")
            })?;
        }
        Ok(())
    });
    let shadow = Upstream::text("the shadow");
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"app\"\nmirror = {{ upstream = \"{}\", percent = 100 }}\n\
         [upstream.app]\nservers = [\"{}\"]\nretry = {{ attempts = 3, on = [\"503\"] }}\n",
        shadow.url(),
        app.url()
    ));
    assert_eq!(gateway.fetch(&get("/", "x-first: 1\r\n")).status(), 503);
    count(&gateway, "answered", 1.0);
    assert_eq!(shadow.requests().len(), 1);

    // None of a hundred.
    gateway.reload_with("percent = 100", "percent = 0");
    (0..20).for_each(|_| assert_eq!(gateway.get("/").text(), "the app"));
    count(&gateway, "answered", 1.0);
}

#[test]
fn no_spelling_of_the_mark_passes_from_a_client_on_any_route() {
    let (app, shadow) = (Upstream::text("the app"), Upstream::text("the shadow"));
    let routes = format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{app}\"\n\
         [[route]]\npath = \"/copied\"\nupstream = \"{app}\"\nmirror = {{ upstream = \"{shadow}\" }}\n",
        app = app.url(),
        shadow = shadow.url()
    );
    let gateway = Gateway::with("underscore_headers = \"keep\"", &routes);
    for path in ["/", "/copied"] {
        let sent = get(path, "x-mirrored: true\r\nx_mirrored: true\r\nx-other: 1\r\nx_other: 1\r\n");
        assert_eq!(gateway.fetch(&sent).status(), 200);
        let seen = app.request();
        let names: Vec<String> = seen.fields().map(|(name, _)| name.to_ascii_lowercase()).collect();
        let has = |name: &str| names.iter().any(|other| other == name);
        assert_eq!(["x-mirrored", "x_mirrored", "x-other", "x_other"].map(has), [false, false, true, true], "{path}");
    }
}
