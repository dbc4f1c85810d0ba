//! Attacks of clients: forged identities, a request that the auth server reads differently from the application, and
//! headers that speak to the auth server instead of the gateway.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::pair::{COPIED, Pair, admit, responding};
use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::h2::{self, H2Client, Sent};
use crate::support::http::Message;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// A part of every claim. Neither the auth server nor the application must read it.
const FORGED: &str = "mallory";

/// Headers that claim an identity; the gateway copies `remote-user` and `x-role`.
const CLAIMS: &[&[(&str, &str)]] = &[
    &[("remote-user", FORGED)],
    &[("Remote-User", FORGED)],
    &[("REMOTE-USER", FORGED), ("X-ROLE", FORGED)],
    &[("remote_user", FORGED)],
    &[("Remote_User", FORGED), ("x_role", FORGED)],
    &[("remote.user", FORGED)],
    &[("remote-user", FORGED), ("remote-user", FORGED)],
    &[("remote-user", ""), ("remote-user", FORGED)],
    &[("remote-user ", FORGED)],
    &[("connection", "remote-user"), ("remote-user", FORGED)],
    &[("connection", "close, x-role"), ("x-role", FORGED)],
    &[("connection", "Remote-User")],
    &[("connection", "keep-alive, x-role, remote-user")],
    &[("proxy-connection", "remote-user"), ("remote-user", FORGED)],
    &[("x!role", FORGED), ("x~role", FORGED)],
];

/// Headers from which auth servers and applications read which request it is.
const TARGETS: &[&str] = &[
    "x-forwarded-uri",
    "x-forwarded-method",
    "x-forwarded-host",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-server",
    "x-original-url",
    "x-original-uri",
    "x-original-method",
    "x-original-host",
    "x-rewrite-url",
    "x-host",
    "x-http-host-override",
    "x_forwarded_uri",
    "x-forwarded_uri",
    "x_original_url",
];

fn lines(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
}

/// Asserts that the application got the identity that the auth server stated, and no claim of the client.
#[track_caller]
fn assert_identity(request: &Message, user: Option<&str>, claim: &[(&str, &str)]) {
    assert!(!request.head.contains(FORGED), "{claim:?}:\n{}", request.head);
    let role = user.map(|_| "admin");
    assert_eq!((request.get("remote-user"), request.get("x-role")), (user, role), "{claim:?}:\n{}", request.head);
}

/// Starts an auth server that admits requests as `user`, or without an identity.
fn pair(user: Option<&'static str>) -> Pair {
    Pair::start(COPIED, move |_| match user {
        Some(user) => admit(user),
        None => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
    })
}

#[test]
fn no_spelling_of_an_identity_header_passes_over_http1() {
    for user in [Some("alice"), None] {
        let pair = pair(user);
        for claim in CLAIMS {
            let response = pair.gateway.fetch(&get("/", &lines(claim)));
            let auth_requests = pair.auth.requests();
            assert!(auth_requests.iter().all(|request| !request.head.contains(FORGED)), "{claim:?}: {auth_requests:?}");
            match response.status() {
                200 => assert_identity(&pair.app.request(), user, claim),
                status => assert_eq!((status, pair.app.requests().len()), (400, 0), "{claim:?}"),
            }
        }
        // In trailers, which some servers mix with the headers.
        let chunked = "POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\ntrailer: remote-user, x-sum, X-Original-URL\r\n\r\n\
                       1\r\na\r\n0\r\nremote-user: mallory\r\nx-sum: 1\r\nx-original-url: /admin\r\n\r\n";
        let app = Upstream::start(|peer| {
            let Some(head) = peer.head()? else { return Ok(()) };
            assert!(head.head.contains("transfer-encoding: chunked"), "{}", head.head);
            assert!(!head.head.contains("original"), "{}", head.head);
            let rest = peer.exactly("1\r\na\r\n0\r\nx-sum: 1\r\n\r\n".len() as u64)?;
            peer.note(&String::from_utf8(rest).unwrap());
            peer.send(crate::support::upstream::ok("ended"))
        });
        let pair = Pair::with("", COPIED, "request_trailers = true", responding(|_| admit("alice")), app);
        assert_eq!(pair.gateway.client().fetch(chunked, "").text(), "ended");
        pair.app.request();
        assert_eq!(pair.app.request().head, "1\r\na\r\n0\r\nx-sum: 1\r\n\r\n");
    }
}

#[test]
fn no_spelling_of_an_identity_header_passes_over_http2() {
    for user in [Some("alice"), None] {
        let pair = pair(user);
        let mut client = H2Client::connect(pair.gateway.addr);
        for claim in CLAIMS {
            let mut request = h2::get("/");
            for (name, value) in claim.iter().filter(|(name, _)| !name.ends_with(' ') && !name.ends_with("connection"))
            {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
            }
            if client.fetch(request, Sent::default()).status() == 200 {
                assert!(!pair.auth.request().head.contains(FORGED), "{claim:?}");
                assert_identity(&pair.app.request(), user, claim);
            }
        }
        let mut request = h2::post("/");
        request.headers_mut().append("trailer", HeaderValue::from_static("remote-user, x-role"));
        let trailers = HeaderMap::from_iter(
            [("remote-user", FORGED), ("x-role", FORGED)]
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))),
        );
        let sent = Sent { body: b"body", trailers: Some(trailers) };
        assert_eq!(client.fetch(request, sent).status(), 200);
        let forwarded = pair.app.request();
        assert_identity(&forwarded, user, &[("trailer", "")]);
        assert_eq!(forwarded.text(), "body");
    }
}

#[test]
fn an_identity_header_is_removed_on_every_route() {
    let (auth, app) = (responding(|_| admit("alice")), Upstream::text("the application"));
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{app}\"\nauth = {{ forward = \"{}/\", copy_headers = [\"remote-user\", \"authorization\"] }}\n\
         [[route]]\npath = \"/public\"\nupstream = \"{app}\"\n",
        auth.url(),
        app = app.url()
    ));
    let fields = "remote-user: mallory\r\nauthorization: Basic x\r\n";
    assert_eq!(gateway.fetch(&get("/public", fields)).status(), 200);
    let forwarded = app.request();
    assert_eq!((forwarded.get("remote-user"), forwarded.get("authorization")), (None, Some("Basic x")));
    // Credentials reach the auth server, and only those that it returns reach the application.
    assert_eq!(gateway.fetch(&get("/", fields)).status(), 200);
    assert_eq!((auth.request().get("authorization"), app.request().get("authorization")), (Some("Basic x"), None));
}

#[test]
fn only_the_gateway_states_the_request_to_the_auth_server() {
    for trusted in ["", "trusted_proxies = [\"127.0.0.1\"]"] {
        let pair = Pair::with(trusted, COPIED, "", responding(|_| admit("alice")), Upstream::text("the application"));
        for name in TARGETS {
            for value in ["/public", "GET", "public.test", "https://public.test/public"] {
                let fields = format!("{name}: {value}\r\n{name}: {value}\r\n");
                assert_eq!(
                    pair.gateway.client().fetch(&post("/admin?x", 0, &fields), "").status(),
                    200,
                    "{name}: {value}"
                );
                let auth_request = pair.auth.request();
                let verdict_of = [
                    auth_request.get("x-forwarded-uri"),
                    auth_request.get("x-forwarded-method"),
                    auth_request.get("x-forwarded-host"),
                ];
                assert_eq!(verdict_of, [Some("/admin?x"), Some("POST"), Some("a.test")], "{name}: {value}");
                let others =
                    auth_request.fields().filter(|(_, forwarded)| forwarded == &value && value != "GET").count();
                assert_eq!(others, 0, "{name}: {value}\n{}", auth_request.head);
                let forwarded = pair.app.request();
                for (stated, text) in
                    forwarded.fields().filter(|(stated, _)| stated.starts_with("x-") && *stated != "x-role")
                {
                    assert_eq!(auth_request.get(stated), Some(text), "{name}: {value}\n{}", forwarded.head);
                }
            }
        }
        let fields = "x-forwarded-for: 203.0.113.66\r\nx-forwarded-proto: https\r\nx-real-ip: 203.0.113.66\r\n";
        assert_eq!(pair.gateway.fetch(&get("/", fields)).status(), 200);
        let auth_request = pair.auth.requests().pop().unwrap();
        let expected = match trusted {
            "" => [Some("127.0.0.1"), Some("http"), Some("127.0.0.1")],
            _ => [Some("203.0.113.66, 127.0.0.1"), Some("https"), Some("203.0.113.66")],
        };
        assert_eq!(["x-forwarded-for", "x-forwarded-proto", "x-real-ip"].map(|name| auth_request.get(name)), expected);
    }
}

#[test]
fn no_header_of_a_client_makes_the_application_serve_another_request() {
    const OVERRIDES: &[&str] = &[
        "x-original-url",
        "x-original-uri",
        "x-original-method",
        "x-rewrite-url",
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "X-HTTP-Method-Override",
        "x_http_method_override",
    ];
    for trusted in ["", "trusted_proxies = [\"127.0.0.1\"]"] {
        let pair = Pair::with(trusted, COPIED, "", responding(|_| admit("alice")), Upstream::text("the application"));
        for name in OVERRIDES {
            let fields = format!("{name}: {FORGED}\r\n{name}: {FORGED}\r\nx-kept: 1\r\n");
            assert_eq!(pair.gateway.fetch(&post("/public", 0, &fields)).status(), 200, "{name}");
            for got in [pair.auth.request(), pair.app.request()] {
                assert!(!got.head.contains(FORGED) && got.get("x-kept") == Some("1"), "{name}: {}", got.head);
            }
        }
    }
}

#[test]
fn the_auth_server_judges_the_path_that_the_application_gets() {
    const PATHS: &[&str] = &[
        "/public/../admin",
        "/public/%2e%2e/admin",
        "/public/%2E%2E%2fadmin",
        "/public/..%2fadmin",
        "/public%2f..%2fadmin",
        "/public/..;/admin",
        "/public/..\\admin",
        "/public/%5c../admin",
        "//admin",
        "/public//admin",
        "///admin//",
        "/%61dmin",
        "/admin%00",
        "/admin%0d%0ax: y",
        "/admin;x=/public",
        "/public?/../admin",
        "/public#/../admin",
        "/admin?next=/public",
        "http://a.test/admin",
        "http://a.test//admin/%2e",
        "http://public.test/admin",
        "/adm%69n/%2e%2e/admin",
        "/admin%2Fuser",
        "/admin%252fuser",
        "/%c3%a9",
        "/é",
        "/./admin",
        "/admin/.",
        "/?",
        "*",
    ];
    for strictness in ["strict", "defensive", "monitor"] {
        for slashes in ["refuse", "keep"] {
            let server = format!("strictness = \"{strictness}\"");
            let rest = format!("encoded_slashes = \"{slashes}\"");
            let pair =
                Pair::with(&server, "", &rest, responding(|_| admit("alice")), Upstream::text("the application"));
            let mut passed = 0;
            for path in PATHS {
                let mut client = pair.gateway.client();
                client.send(get(path, ""));
                let status = client.try_read_response("GET").map_or(400, |response| response.status());
                if status != 200 {
                    assert!(matches!(status, 400 | 404), "{strictness} {slashes} {path}: {status}");
                    assert!(pair.auth.requests().is_empty(), "{path}: refused, but sent to the auth server");
                    continue;
                }
                passed += 1;
                let (auth_request, forwarded) = (pair.auth.request(), pair.app.request());
                assert_eq!(
                    auth_request.get("x-forwarded-uri"),
                    Some(forwarded.target()),
                    "{strictness} {slashes} {path}"
                );
                assert_eq!(
                    auth_request.get("x-forwarded-host"),
                    forwarded.get("host"),
                    "{strictness} {slashes} {path}"
                );
            }
            assert!(passed > 8, "{strictness} {slashes}: {passed}");
        }
    }
}

#[test]
fn a_request_without_a_host_cannot_be_judged() {
    let pair = pair(Some("alice"));
    for (host, status) in [("", 400), ("host: a.test\r\n", 200)] {
        assert_eq!(pair.gateway.fetch(&format!("GET / HTTP/1.0\r\n{host}\r\n")).status(), status);
        assert_eq!(
            (pair.auth.requests().len(), pair.app.requests().len()),
            if status == 200 { (1, 1) } else { (0, 0) }
        );
    }
}

#[test]
fn rewrites_apply_after_the_check() {
    let rest = "rewrite = { strip_prefix = \"/app\", add_prefix = \"/v2\" }\nrequest_headers = { remove = [\"x-role\"], set = { x-set = \"1\" } }";
    let pair = Pair::with("", COPIED, rest, responding(|_| admit("alice")), Upstream::text("the application"));
    assert_eq!(pair.gateway.get("/app/x").status(), 200);
    let (auth_request, forwarded) = (pair.auth.request(), pair.app.request());
    assert_eq!((auth_request.get("x-forwarded-uri"), forwarded.target()), (Some("/app/x"), "/v2/x"));
    assert_eq!(
        (forwarded.get("remote-user"), forwarded.get("x-role"), forwarded.get("x-set")),
        (Some("alice"), None, Some("1"))
    );
}

#[test]
fn headers_in_the_name_of_the_client_are_copied_all_the_same() {
    // Headers of untrusted clients with these names are removed, unlike those of the auth server.
    let options = "copy_headers = [\"X-Forwarded-User\", \"x-forwarded-email\", \"x-forwarded-groups\"]";
    let response = "HTTP/1.1 200 OK\r\nx-forwarded-user: alice\r\nx-forwarded-groups: a\r\nx-forwarded-groups: b\r\n\
                  x-other: 1\r\ncontent-length: 0\r\n\r\n";
    let pair = Pair::start(options, |_| response.to_owned());
    let fields = "x-forwarded-user: mallory\r\nx-forwarded-email: mallory\r\nconnection: x-other\r\n";
    assert_eq!(pair.gateway.fetch(&get("/", fields)).status(), 200);
    assert!(!pair.auth.request().head.contains(FORGED));
    let forwarded = pair.app.request();
    assert_eq!(forwarded.all("x-forwarded-groups"), ["a", "b"]);
    let copied = ["x-forwarded-user", "x-forwarded-email", "x-other"].map(|name| forwarded.get(name));
    assert_eq!(copied, [Some("alice"), None, None]);
    wait_until("the user is logged", || pair.gateway.stdout().contains("\"user\":\"alice\""));
}
