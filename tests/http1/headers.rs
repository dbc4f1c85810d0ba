//! Headers of requests to the upstream server and of its responses.

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::upstream::Upstream;

fn in_front_of(upstream: &Upstream, server: &str) -> Gateway {
    Gateway::with(server, &format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()))
}

/// The fields by name and value, sorted, without those whose value is new each time.
fn steady(message: &Message) -> Vec<(String, String)> {
    let new = ["via", "x-request-id", "x-forwarded-port", "date"];
    let mut fields: Vec<(String, String)> =
        message.fields().map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    fields.retain(|(name, _)| !new.contains(&name.as_str()));
    fields.sort();
    fields
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn an_untrusted_client_cannot_speak_for_itself() {
    let upstream = Upstream::text("ok");
    let gateway = in_front_of(&upstream, "");
    let request = "GET /a?b=c HTTP/1.1\r\nHost: Shop.Test:8080\r\nAccept: */*\r\nCookie: a=b\r\n\
        X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\n\
        X-Forwarded-Prefix: /evil\r\nX-Real-IP: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Request-Id: mine\r\n\
        x_real_ip: 1.2.3.4\r\nx.real.ip: 1.2.3.4\r\ntraceparent: 00-1-2-01\r\n\r\n";
    assert_eq!(gateway.fetch(request).status(), 200);
    let seen = upstream.request();
    assert_eq!(seen.start_line(), "GET /a?b=c HTTP/1.1");
    let expected = [
        ("accept", "*/*"),
        ("cookie", "a=b"),
        ("host", "shop.test:8080"),
        ("traceparent", "00-1-2-01"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "shop.test:8080"),
        ("x-forwarded-proto", "http"),
        ("x-real-ip", "127.0.0.1"),
    ];
    assert_eq!(steady(&seen), pairs(&expected));
    assert_eq!(seen.get("x-forwarded-port"), Some("8080"));
    let via = seen.get("via").unwrap();
    assert!(via.starts_with("1.1 sluicegate-"), "{via}");
    let id = seen.get("x-request-id").unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
}

#[test]
fn only_the_forwarding_fields_that_are_wanted_are_added() {
    let upstream = Upstream::text("ok");
    let spoof = "X-Forwarded-For: 1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\nX-Request-Id: mine\r\nForwarded: for=1.2.3.4\r\n";
    for (wanted, expected) in [
        ("[]", &[][..]),
        ("[\"x-forwarded-for\"]", &[("x-forwarded-for", "127.0.0.1")]),
        ("[\"forwarded\"]", &[("forwarded", "for=127.0.0.1;host=\"a.test\";proto=http")]),
    ] {
        let gateway = in_front_of(&upstream, &format!("forwarded_headers = {wanted}"));
        let response = gateway.fetch(&get("/", spoof));
        assert_eq!((response.status(), response.get("via")), (200, None), "{wanted}");
        let seen = upstream.request();
        let is_forwarding_header = |name: &str| name.starts_with("x-") || ["forwarded", "via"].contains(&name);
        let fields: Vec<_> = seen.fields().filter(|(name, _)| is_forwarding_header(name)).collect();
        assert_eq!(fields, expected, "{wanted}");
    }
}

#[test]
fn a_trusted_proxy_is_continued_and_the_walk_ends_at_the_first_stranger() {
    let upstream = Upstream::text("ok");
    let gateway = in_front_of(&upstream, "trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]");
    let fetch = |fields: &str| {
        assert_eq!(gateway.fetch(&get("/", fields)).status(), 200, "{fields}");
        upstream.request()
    };
    let seen = fetch(
        "X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 198.51.100.7, 10.1.1.1\r\n\
        X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\nX-Request-Id: theirs\r\nForwarded: for=6.6.6.6\r\n",
    );
    assert_eq!(seen.get("x-forwarded-for"), Some("9.9.9.9, 198.51.100.7, 10.1.1.1, 127.0.0.1"));
    assert_eq!(seen.get("x-real-ip"), Some("198.51.100.7"));
    assert_eq!(seen.get("x-forwarded-proto"), Some("https"));
    assert_eq!(seen.get("x-forwarded-host"), Some("shop"));
    assert_eq!(seen.get("x-request-id"), Some("theirs"));
    assert_eq!(seen.get("forwarded"), None);

    let garbage = fetch("X-Forwarded-For: 198.51.100.7, garbage, 10.1.1.1\r\n");
    assert_eq!(garbage.get("x-real-ip"), Some("10.1.1.1"));
    let standard = fetch("Forwarded: for=\"[2001:db8::1]:4711\";proto=https\r\n");
    assert_eq!(standard.get("x-real-ip"), Some("2001:db8::1"));

    let mut untrusted = gateway.client_from([127, 0, 0, 9]);
    assert_eq!(untrusted.fetch(&get("/", "X-Forwarded-For: 198.51.100.7\r\n"), "").status(), 200);
    let seen = upstream.request();
    assert_eq!((seen.get("x-forwarded-for"), seen.get("x-real-ip")), (Some("127.0.0.9"), Some("127.0.0.9")));
}

#[test]
fn hop_by_hop_headers_are_dropped_in_both_directions() {
    let upstream = Upstream::fixed(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x-inner, keep-alive\r\nKeep-Alive: timeout=5\r\n\
         X-Inner: 1\r\nProxy-Authenticate: Basic\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\n\
         Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: app\r\nX-Kept: yes\r\n\r\nok",
    );
    let gateway = in_front_of(&upstream, "");
    let response = gateway.fetch(&get(
        "/",
        "Connection: X-Secret, close\r\nX-Secret: 1\r\nKeep-Alive: 1\r\nProxy-Connection: keep-alive\r\n\
         TE: gzip, trailers\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\nProxy-Authorization: Basic eDp5\r\n\
         Trailer: x-sum\r\nAuthorization: Basic eDp5\r\nX-Kept: yes\r\n",
    ));
    let expected = [
        ("authorization", "Basic eDp5"),
        ("connection", "te"),
        ("host", "a.test"),
        ("te", "trailers"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "a.test"),
        ("x-forwarded-proto", "http"),
        ("x-kept", "yes"),
        ("x-real-ip", "127.0.0.1"),
    ];
    assert_eq!(steady(&upstream.request()), pairs(&expected));

    let expected = [
        ("connection", "close"),
        ("content-length", "2"),
        ("server", "app"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("x-kept", "yes"),
    ];
    assert_eq!(steady(&response), pairs(&expected));
    assert!(response.get("via").unwrap().starts_with("1.1 sluicegate-"));
}

#[test]
fn a_protected_header_in_connection_is_refused() {
    let upstream = Upstream::text("ok");
    let gateway = in_front_of(&upstream, "");
    for name in ["host", "X-Forwarded-For", "authorization", "Cookie", "x-real-ip", "forwarded", "content-length"] {
        let response = gateway.fetch(&get("/", &format!("Connection: close, {name}\r\n")));
        assert_eq!(response.status(), 400, "{name}");
    }
    assert_eq!(upstream.connections(), 0);
    gateway.assert_metric("http_rejected_total", &[("reason", "connection_field")], 7.0);
}

#[test]
fn a_request_that_passes_itself_again_is_a_loop() {
    let upstream = Upstream::text("ok");
    let gateway = in_front_of(&upstream, "");
    gateway.get("/");
    let via = upstream.request().get("via").unwrap().to_owned();
    let response = gateway.fetch(&get("/", &format!("Via: 1.1 edge, {via}\r\n")));
    assert_eq!(response.status(), 508);
    assert_eq!(gateway.fetch(&get("/", "Via: 1.1 sluicegate-another\r\n")).status(), 200);
}

#[test]
fn a_route_edits_headers_and_may_send_the_servers_own_host() {
    let upstream = Upstream::fixed("HTTP/1.1 200 OK\r\nserver: app\r\nx-a: 1\r\ncontent-length: 0\r\n\r\n");
    let gateway = Gateway::start(&format!(
        r#"
        [[route]]
        path = "/"
        upstream = "{}"
        rewrite = {{ upstream_host = true }}
        request_headers = {{ set = {{ x-env = "prod", accept = "text/plain" }}, remove = ["x-debug", "x-real-ip"] }}
        response_headers = {{ set = {{ x-a = "2", x-b = "3" }}, remove = ["server"] }}
        "#,
        upstream.url()
    ));
    let response = gateway.fetch(&get("/", "accept: */*\r\nx-env: spoofed\r\nx-env: twice\r\nx-debug: 1\r\n"));
    assert_eq!((response.get("server"), response.get("x-a"), response.get("x-b")), (None, Some("2"), Some("3")));
    let seen = upstream.request();
    assert_eq!(seen.get("host"), Some(upstream.addr.to_string().as_str()));
    assert_eq!(seen.get("x-forwarded-host"), Some("a.test"));
    assert_eq!((seen.get("x-env"), seen.get("accept")), (Some("prod"), Some("text/plain")));
    assert_eq!((seen.get("x-debug"), seen.get("x-real-ip")), (None, None));
}

#[test]
fn bodies_keep_their_framing_and_trailers_pass() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let length = request.body.len();
            peer.send(format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                 {length:x}\r\n"
            ))?;
            peer.send(&request.body)?;
            peer.send("\r\n0\r\nx-sum: 42\r\n\r\n")?;
        }
        Ok(())
    });
    let gateway = in_front_of(&upstream, "");
    let mut client = gateway.client();
    let response = client.fetch("PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n", "12345");
    assert_eq!((response.text().as_str(), response.get("transfer-encoding")), ("12345", Some("chunked")));
    let seen = upstream.request();
    assert_eq!((seen.get("content-length"), seen.get("transfer-encoding")), (Some("5"), None));

    let chunked = "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(client.fetch(chunked, "1\r\na\r\n3;ext=1\r\nbcd\r\n0\r\n\r\n").text(), "abcd");
    let seen = upstream.request();
    assert_eq!((seen.get("content-length"), seen.get("transfer-encoding")), (None, Some("chunked")));
    assert_eq!(seen.body, b"abcd");

    let empty = client.fetch("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "");
    assert_eq!(empty.status(), 200);
    assert_eq!(upstream.request().get("content-length"), Some("0"));
    assert_eq!(client.fetch("GET /x HTTP/1.1\r\nhost: a\r\n\r\n", "").status(), 200);
    let seen = upstream.request();
    assert_eq!((seen.get("content-length"), seen.get("transfer-encoding")), (None, None));
}

#[test]
fn routes_and_the_log_read_the_head_that_is_forwarded() {
    let upstream = Upstream::text("ok");
    let routes = format!(
        "[[route]]\nname = \"gold\"\nheader = {{ x-tier = \"gold\" }}\nupstream = \"{0}\"\n\
         [[route]]\nname = \"silver\"\nheader = {{ x-tier = \"~i ^silver[0-9]$\" }}\nupstream = \"{0}\"\n\
         [[route]]\nname = \"tilde\"\nheader = {{ x-tier = \"= ~ x\" }}\nupstream = \"{0}\"\n\
         [[route]]\nname = \"chat\"\nheader = {{ upgrade = \"websocket\" }}\nupstream = \"{0}\"\n\
         [[route]]\nname = \"others\"\nupstream = \"{0}\"\n",
        upstream.url()
    );
    let gateway = Gateway::with("access_log = true", &routes);
    let fields = "user-agent: curl\r\nreferer: http://b.test/\r\n";
    for (lines, route, agent) in [
        ("x-tier: gold\r\n", "gold", "\"curl\""),
        ("x-tier: GOLD\r\n", "others", "\"curl\""),
        ("x-tier: SILVER7\r\n", "silver", "\"curl\""),
        ("x-tier: silver77\r\n", "others", "\"curl\""),
        ("x-tier: ~ x\r\n", "tilde", "\"curl\""),
        ("x-tier: gold\r\nconnection: close, X-Tier\r\n", "others", "\"curl\""),
        ("connection: user-agent\r\n", "others", "null"),
        ("connection: upgrade\r\nupgrade: , WebSocket, h2c\r\n", "chat", "\"curl\""),
        ("upgrade: websocket\r\n", "others", "\"curl\""),
    ] {
        let before = gateway.stdout().lines().count();
        assert_eq!(gateway.fetch(&get("/", &format!("{fields}{lines}"))).status(), 200, "{lines}");
        let seen = upstream.request();
        assert_eq!(
            seen.get("x-tier").is_some(),
            lines.starts_with("x-tier") && !lines.contains("X-Tier"),
            "{}",
            seen.head
        );
        assert_eq!(seen.get("upgrade"), (route == "chat").then_some("websocket"), "{}", seen.head);
        crate::support::wait_until("the request is logged", || gateway.stdout().lines().count() > before);
        let entry: serde_json::Value = serde_json::from_str(gateway.stdout().lines().last().unwrap()).unwrap();
        assert_eq!(
            (entry["route"].as_str(), entry["user_agent"].to_string().as_str()),
            (Some(route), agent),
            "{lines}"
        );
    }
}

#[test]
fn patterns_of_headers_are_checked() {
    for (pattern, what) in [
        ("~ (", "not a regular expression"),
        ("~x", "neither a regular expression nor a text"),
        (" x", "no spaces around it"),
    ] {
        let text = format!("[[route]]\nheader = {{ host = '{pattern}' }}\nupstream = \"echo:\"\n");
        let report = sluicegate::config::load_text("a", &text).unwrap_err().to_string();
        assert!(report.contains(what) && report.contains("a:2:"), "{pattern}: {report}");
    }
}

#[test]
fn characters_that_a_target_should_not_have_are_encoded_or_refused_with_a_whole_log_line() {
    let upstream = Upstream::text("ok");
    for mode in ["strict", "defensive", "monitor"] {
        let server = format!("access_log = true\nstrictness = \"{mode}\"");
        let gateway = Gateway::with(&server, &format!("[[route]]\nupstream = \"{}\"\n", upstream.url()));
        let mut client = gateway.client();
        for (target, forwarded) in [
            ("/query?query=up{job=\"x\"}", "/query?query=up{job=%22x%22}"),
            ("/?q=a<b>`", "/?q=a%3Cb%3E`"),
            ("/a`b<\"", "/a%60b%3C%22"),
            ("http://a.test?\"", "/?%22"),
            ("/plain", "/plain"),
        ] {
            // One after another, whole and byte by byte, behind a body that looks like a request and an empty line.
            let head = get(target, "content-length: 23\r\n") + "GET /<a> HTTP/1.1\r\nx: <";
            for piece in [1000, 1] {
                client.send("\r\n");
                std::thread::sleep(std::time::Duration::from_millis(20));
                for bytes in head.as_bytes().chunks(piece) {
                    client.send(bytes);
                }
                assert_eq!(client.read_response("GET").status(), 200, "{mode} {target}");
                let seen = upstream.request();
                assert_eq!((seen.target(), seen.text().as_str()), (forwarded, "GET /<a> HTTP/1.1\r\nx: <"), "{mode}");
            }
        }
        for (query, reason) in [("", "path_non_ascii"), ("?", "query_non_ascii")] {
            let head = [format!("GET /{query}a").as_bytes(), b"\xe9<", b" HTTP/1.1\r\nhost: a.test\r\n\r\n"].concat();
            let mut client = gateway.client();
            client.send(head);
            let status = client.read_response("GET").status();
            if mode == "strict" {
                assert_eq!(status, 400);
                crate::support::wait_until("the refusal is logged", || gateway.stdout().contains(reason));
                let line = gateway.stdout().lines().find(|line| line.contains(reason)).unwrap().to_owned();
                let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
                let path = if query.is_empty() { "/a%E9%3C" } else { "/" };
                let stated =
                    ["method", "host", "path"].map(|field| entry[field].as_str().unwrap_or_default().to_owned());
                assert_eq!(stated, ["GET", "a.test", path], "{entry}");
            } else {
                let seen = upstream.request();
                assert_eq!((status, seen.target()), (200, &*format!("/{query}a%E9%3C")), "{mode}");
            }
        }
    }
}

#[test]
fn edits_of_all_responses_include_those_of_the_gateway() {
    let upstream = Upstream::fixed("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-kept: app\r\nx-own: app\r\n\r\n");
    let edits = "default = { x-own = \"gateway\" }, add = { x-kept = \"gateway\" }";
    let route = |name: &str, rest: &str, on: &str| {
        format!("[[route]]\npath = \"/{name}\"\n{rest}\nresponse_headers = {{ {edits}{on} }}\n")
    };
    let routes: String = [("all", ", on = \"all\""), ("some", "")]
        .iter()
        .flat_map(|(name, on)| {
            let proxied = format!("upstream = \"{}\"\nmax_body = 5\nlimits = [\"one\"]", upstream.url());
            [
                route(name, &proxied, on),
                route(&format!("{name}/down"), "upstream = \"http://127.0.0.1:1\"", on),
                route(&format!("{name}/denied"), "upstream = \"echo:\"\ndeny = [\"127.0.0.1\"]", on),
                route(&format!("{name}/moved"), "redirect = \"/\"", on),
                route(&format!("{name}/fixed"), "respond = { status = 503 }", on),
            ]
        })
        .collect();
    let limit = "[limit.one]\nrate = \"1/day\"\nkey = \"path\"\n";
    let gateway = Gateway::start(&format!("{routes}{limit}"));
    for name in ["all", "some"] {
        for (head, status, is_refusal) in [
            (get(&format!("/{name}"), ""), 200, false),
            (get(&format!("/{name}"), ""), 429, true),
            (post(&format!("/{name}/x"), 6, ""), 413, true),
            (get(&format!("/{name}/down"), ""), 502, true),
            (get(&format!("/{name}/denied"), ""), 403, true),
            // Refused before it enters the route.
            (get(&format!("/{name}/a%2Fb"), ""), 400, true),
            (get(&format!("/{name}/moved"), ""), 308, false),
            (get(&format!("/{name}/fixed"), ""), 503, false),
        ] {
            let response = gateway.client().fetch(&head, "");
            assert_eq!(response.status(), status, "{head}");
            let is_from_app = status == 200;
            let is_edited = name == "all" || !is_refusal;
            let own = is_from_app.then_some("app").or(is_edited.then_some("gateway"));
            assert_eq!(response.get("x-own"), own, "{head}");
            let kept: Vec<&str> = [("app", is_from_app), ("gateway", is_edited)]
                .iter()
                .filter(|(_, is)| *is)
                .map(|(by, _)| *by)
                .collect();
            assert_eq!(response.all("x-kept"), kept, "{head}");
        }
    }
}

#[test]
fn headers_with_underscores_are_removed_and_counted_or_kept_where_no_server_confuses_them() {
    let upstream = Upstream::text("ok");
    let route = format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"each\"]\nrequest_headers = {{ set = {{ x-team = \"own\" }} }}\n\
         [limit.each]\nrate = \"1000/s\"\nkey = \"header:x-api-key\"\n",
        upstream.url()
    );
    // Of the names with an underscore, only those are kept that no server can take for a header with a meaning.
    let sent = [
        ("access_token", "abc", true),
        ("user_id", "7", true),
        ("content_length", "5", false),
        ("transfer_encoding", "chunked", false),
        ("authorization_", "x", true),
        ("x_forwarded_for", "1.2.3.4", false),
        ("x_real_ip", "1.2.3.4", false),
        ("x_request_id", "mine", false),
        ("user_agent", "x", false),
        ("cookie_", "x", true),
        ("x-te_am", "x", true),
        ("a.b", "x", false),
        ("a_b.c", "x", false),
    ];
    let head: String = sent.iter().map(|(name, value, _)| format!("{name}: {value}\r\n")).collect();
    for (option, strictness) in [("drop", "strict"), ("keep", "strict"), ("keep", "monitor")] {
        let server = format!("underscore_headers = \"{option}\"\nstrictness = \"{strictness}\"");
        let gateway = Gateway::with(&server, &route);
        let aliases = if strictness == "monitor" { "x_api_key: second\r\nx_team: other\r\n" } else { "" };
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: first\r\n{head}{aliases}\r\n");
        assert_eq!(gateway.fetch(&request).status(), 200, "{option}");
        let seen = upstream.request();
        for (name, value, is_kept) in sent {
            let expected = (option == "keep" && is_kept).then_some(value);
            assert_eq!(seen.get(name), expected, "{option} {name}");
        }
        assert_eq!(
            (seen.get("x-team"), seen.get("x-api-key"), seen.get("x_api_key")),
            (Some("own"), Some("first"), None)
        );
        let kept = sent.iter().filter(|(_, _, is_kept)| *is_kept && option == "keep").count();
        let removed = sent.len() - kept + aliases.lines().count();
        let listener = [("listener", "127.0.0.1:0")];
        gateway.assert_metric("ambiguous_headers_total", &listener, removed as f64);
    }
    // A spelling that servers confuse with the key of a limit is refused, kept or not.
    let gateway = Gateway::with("underscore_headers = \"keep\"", &route);
    let request = "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: first\r\nx_api_key: second\r\n\r\n";
    assert_eq!(gateway.fetch(request).status(), 400);
}

#[test]
fn names_of_headers_keep_their_case_on_both_sides() {
    let response = "HTTP/1.1 200 OK\r\nX-Jenkins-CLI2-Port: 1\r\nETag: \"a\"\r\nContent-Length: 9\r\n\r\netag: b\r\n";
    let upstream = Upstream::fixed(response);
    let route = format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nrequest_headers = {{ set = {{ x-team = \"own\" }} }}\n\
         response_headers = {{ set = {{ x-own = \"1\" }} }}\n",
        upstream.url()
    );
    let head = "GET /?X-API-Key: HTTP/1.1\r\nHoSt: a\r\nX-API-Key: X-B: 1\r\nx-lower: 1\r\nX-Team: client\r\n\r\n";
    for (option, strictness) in [("lower", "strict"), ("keep", "strict"), ("keep", "monitor")] {
        let gateway = Gateway::with(&format!("header_case = \"{option}\"\nstrictness = \"{strictness}\""), &route);
        let spelled = |name: &str| if option == "keep" { name.to_owned() } else { name.to_ascii_lowercase() };
        let mut client = gateway.client();
        // Several requests over one connection, so that each head has its own names.
        for more in ["", "X-MORE: 1\r\n", ""] {
            let response = client.fetch(&head.replace("x-lower", &format!("{more}x-lower")), "");
            let seen = upstream.request();
            let own = spelled("X-MORE");
            assert_eq!(seen.head.contains(&format!("\r\n{own}: 1\r\n")), !more.is_empty(), "{option}: {}", seen.head);
            for line in [("X-API-Key", "X-B: 1"), ("HoSt", "a"), ("x-lower", "1"), ("X-Team", "own")] {
                let line = format!("\r\n{}: {}\r\n", spelled(line.0), line.1);
                assert!(seen.head.contains(&line), "{option}: no {line} in {}", seen.head);
            }
            assert!(seen.head.starts_with("GET /?X-API-Key: "), "{}", seen.head);
            for line in [("X-Jenkins-CLI2-Port", "1"), ("ETag", "\"a\""), ("Content-Length", "9"), ("x-own", "1")] {
                let line = format!("\r\n{}: {}\r\n", spelled(line.0), line.1);
                assert!(response.head.contains(&line), "{option}: no {line} in {}", response.head);
            }
            assert_eq!(response.text(), "etag: b\r\n");
        }
    }
}

/// Pipelined requests get complete responses, whichever names the heads have.
#[test]
fn pipelined_responses_with_spelled_names_are_whole() {
    let body = "HTTP/1.1 200 OK\r\netag: x\r\n\r\n".repeat(4000);
    let upstream =
        Upstream::fixed(format!("HTTP/1.1 200 OK\r\nETag: 1\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    let route = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Gateway::with("header_case = \"keep\"", &route);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20));
    std::thread::sleep(std::time::Duration::from_millis(300));
    for _ in 0..20 {
        let response = client.read_response("GET");
        assert_eq!((response.status(), response.get("etag")), (200, Some("1")));
        assert!(response.text() == body, "the body was changed");
    }
}
