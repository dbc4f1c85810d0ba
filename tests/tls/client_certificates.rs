//! Client certificates, limits by certificate, session resumption, hosts that do not belong to a connection, and the
//! redirect from HTTP.

use std::time::{Duration, SystemTime};

use super::listeners::{ECHO, config, gateway, handshakes};
use crate::support::ca::Ca;
use crate::support::client::{Client, get, post};
use crate::support::faketime::clock_from_file;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::tls::{SecureClient, Trust};
use crate::support::wait_until;

const REQUIRED: &str = ", client_ca = \"ca.pem\", client_auth = \"required\"";
const OPTIONAL: &str = ", client_ca = \"ca.pem\", client_auth = \"optional\"";

/// A gateway that asks for certificates of `clients`, kept in `ca.pem`.
fn asking(ca: &Ca, clients: &Ca, tls: &str, rest: &str) -> Gateway {
    asking_within(&[], ca, clients, tls, rest)
}

/// The same with further variables in its environment.
fn asking_within(env: &[(String, String)], ca: &Ca, clients: &Ca, tls: &str, rest: &str) -> Gateway {
    let env = env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let env: Vec<_> = env.chain([("SLUICEGATE_LOG", "debug")]).collect();
    Gateway::launch(&env, |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "0");
        std::fs::write(dir.join("ca.pem"), clients.pem()).unwrap();
        config_arguments(dir, &config(1, tls, "", rest))
    })
}

fn status(client: &mut SecureClient) -> u16 {
    client.fetch(&get("/", ""), "").status()
}

/// Returns whether the gateway serves a client with this trust. In TLS 1.3 it rejects the client only after the
/// client's handshake.
fn served(gateway: &Gateway, trust: &Trust) -> bool {
    let client = trust.try_connect(gateway.addr, "a.test");
    client.and_then(|mut client| client.try_fetch(&get("/", ""), "")).is_ok()
}

#[test]
fn only_clients_with_a_certificate_of_the_right_authority_come_in() {
    let (ca, clients, others) = (Ca::new("test"), Ca::new("clients"), Ca::new("others"));
    let gateway = asking(&ca, &clients, REQUIRED, ECHO);
    let day = Duration::from_secs(86_400);
    let old = clients.issue_with(&["app.test"], "old", |params| {
        params.not_before = (SystemTime::now() - 9 * day).into();
        params.not_after = (SystemTime::now() - day).into();
    });
    let (good, foreign) = (clients.issue(&["app.test"], "app"), others.issue(&["app.test"], "app"));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let with = |own| Trust::with(&ca, own, &[version]);
        assert!(served(&gateway, &with(Some(&good))));
        assert!(!served(&gateway, &with(Some(&foreign))));
        assert!(!served(&gateway, &with(Some(&old))));
        assert!(!served(&gateway, &with(None)));
    }
    gateway.assert_metric("tls_handshakes_total", &[("listener", "127.0.0.1:0"), ("result", "full")], 2.0);
    wait_until("four are refused for their certificate", || handshakes(&gateway, "bad_client_certificate") == 4.0);
    wait_until("two for having none", || handshakes(&gateway, "no_client_certificate") == 2.0);
    // The setting applies to the next handshake.
    gateway.reload_with("required", "optional");
    assert!(served(&gateway, &Trust::in_ca(&ca)));
    assert!(!served(&gateway, &Trust::with(&ca, Some(&foreign), rustls::ALL_VERSIONS)));
}

#[test]
fn limits_go_by_whom_the_certificate_was_made_for() {
    let (ca, clients) = (Ca::new("test"), Ca::new("clients"));
    let limits = "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"subject\", \"guests\"]\n\
                  [[route]]\npath = \"/san\"\nupstream = \"echo:\"\nlimits = [\"san\"]\n\
                  [limit.subject]\nrate = \"1/day\"\nkey = \"tls:subject\"\nmissing = \"skip\"\n\
                  [limit.guests]\nrate = \"2/day\"\nkey = \"all\"\nwhen = { tls = { subject = \"!*\" } }\n\
                  [limit.san]\nrate = \"1/day\"\nkey = \"tls:san\"\nmissing = \"refuse\"\n";
    let gateway = asking(&ca, &clients, OPTIONAL, limits);
    let client = |own: Option<&str>, san: &str| {
        let own = own.map(|name| clients.issue(&[san, "second.test"], name));
        Trust::with(&ca, own.as_ref(), rustls::ALL_VERSIONS).connect(gateway.addr, "a.test")
    };
    let (mut anna, mut other_anna, mut bert) =
        (client(Some("anna"), "one.test"), client(Some("anna"), "two.test"), client(Some("bert"), "one.test"));
    assert_eq!([&mut anna, &mut other_anna, &mut bert].map(status), [200, 429, 200]);
    let mut guest = client(None, "");
    // Headers in which a client claims an identity have no effect.
    let claim = get("/", "tls-subject: CN=anna\r\nx-ssl-client-s-dn: CN=anna\r\n");
    assert_eq!([0; 3].map(|_| guest.fetch(&claim, "").status()), [200, 200, 429]);
    let mut san = |client: &mut SecureClient| client.fetch(&get("/san", ""), "").status();
    assert_eq!([&mut anna, &mut other_anna, &mut bert].map(&mut san), [200, 200, 429]);
    assert_eq!(san(&mut guest), 403);
    let state = gateway.admin("/-/limits/subject/state?key=CN%3Danna");
    assert_eq!(state.status(), 200, "{}", state.text());
    assert_eq!(state.json()["remaining"], 0, "{}", state.text());
}

#[test]
fn a_tls_session_resumes_only_at_its_listener() {
    let (ca, clients, later) = (Ca::new("test"), Ca::new("clients"), Ca::new("later"));
    let limits = "[[route]]\nupstream = \"echo:\"\nlimits = [\"app\"]\n\
                  [limit.app]\nrate = \"3/day\"\nkey = \"tls:subject\"\nmissing = \"skip\"\n";
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let own = clients.issue(&["app.test"], "app");
        // One listener asks for certificates, the other, with the same names, does not.
        let gateway = Gateway::launch(&[("SLUICEGATE_LOG", "debug")], |dir| {
            ca.issue(&["a.test"], "gateway").save(dir, "0");
            std::fs::write(dir.join("ca.pem"), clients.pem()).unwrap();
            let open = "[[listener]]\naddress = \"127.0.0.2:0\"\n\
                        tls = { certificates = [{ cert = \"0.pem\", key = \"0.key\" }] }\n";
            config_arguments(dir, &config(1, REQUIRED, "", &format!("{open}{limits}")))
        });
        let (asking, open) = (gateway.addr, gateway.listeners()[1]);
        let trust = Trust::with(&ca, Some(&own), &[version]);
        let resumed = |addr| {
            let mut client = trust.connect(addr, "a.test");
            let status = status(&mut client);
            (client.was_resumed(), status)
        };
        assert_eq!(resumed(open), (false, 200));
        assert_eq!(resumed(open), (true, 200));
        // The client offers the session of the other listener.
        assert_eq!(resumed(asking), (false, 200));
        // The identity belongs to the session: all requests with a certificate charge one budget.
        assert_eq!(resumed(asking), (true, 200));
        assert!(!resumed(open).0);
        assert!(resumed(open).0);
        assert!(!resumed(asking).0);
        // A reload that changes nothing here keeps sessions,
        gateway.reload_with("3/day", "30/day");
        assert_eq!(resumed(asking), (true, 200));
        // one that trusts others ends them, and what counts then is the certificate.
        std::fs::write(gateway.dir.path().join("ca.pem"), later.pem()).unwrap();
        let refuses =
            || trust.try_connect(asking, "a.test").and_then(|mut client| client.try_fetch(&get("/", ""), "")).is_err();
        wait_until("the certificate is refused", refuses);
        assert!(refuses(), "an earlier session stayed usable");
    }
}

#[test]
fn a_session_ends_with_the_certificate_of_its_client() {
    let (ca, clients) = (Ca::new("test"), Ca::new("clients"));
    let clock = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&clock, "+0s").unwrap();
    let gateway = asking_within(&clock_from_file(clock.path()), &ca, &clients, REQUIRED, ECHO);
    let own = |minutes: u64| {
        let end = SystemTime::now() + Duration::from_secs(60 * minutes);
        clients.issue_with(&["app.test"], "app", |params| params.not_after = end.into())
    };
    let (short, long) = (own(10), own(60));
    let trusts =
        |own| [&rustls::version::TLS12, &rustls::version::TLS13].map(|version| Trust::with(&ca, Some(own), &[version]));
    let (ending, lasting) = (trusts(&short), trusts(&long));
    let resumes = |trust: &Trust| {
        let mut client = trust.connect(gateway.addr, "a.test");
        (status(&mut client), client.was_resumed())
    };
    for trust in ending.iter().chain(&lasting) {
        assert_eq!([resumes(trust), resumes(trust)], [(200, false), (200, true)]);
    }
    std::fs::write(&clock, "+11m").unwrap();
    for trust in &ending {
        assert!(!served(&gateway, trust));
    }
    for trust in &lasting {
        assert_eq!(resumes(trust), (200, true), "the reason is not the age of the connection");
    }
    wait_until("both are counted", || handshakes(&gateway, "bad_client_certificate") == 2.0);
}

#[test]
fn a_host_that_the_certificate_is_not_for_is_misdirected() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test,*.b.test,127.0.0.1", "c.test"], "", "access_log = true", ECHO);
    let fetch = |name: &str, host: &str| {
        let mut client = Trust::in_ca(&ca).connect(gateway.addr, name);
        let statuses =
            [host, name].map(|host| client.fetch(&format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"), "").status());
        assert_eq!(statuses[1], 200, "the connection stays usable");
        statuses[0]
    };
    for (name, host, status) in [
        ("a.test", "a.test", 200),
        ("a.test", "A.Test:8443", 200),
        ("A.test", "a.test", 200),
        ("a.test", "x.b.test", 200),
        ("x.b.test", "y.b.test", 200),
        ("x.b.test", "a.test", 200),
        ("a.test", "c.test", 421),
        ("c.test", "a.test", 421),
        ("c.test", "127.0.0.1", 421),
        ("a.test", "unknown.test", 421),
        ("a.test", "b.test", 421),
        // A client that connects to an address sends no server name.
        ("127.0.0.1", "127.0.0.1", 200),
        ("127.0.0.1", "a.test", 200),
        ("127.0.0.1", "unknown.test", 200),
        ("127.0.0.1", "c.test", 421),
    ] {
        assert_eq!(fetch(name, host), status, "{host} over a connection to {name}");
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "misdirected")], 6.0);
    let mut client = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    let response = client.fetch("GET http://c.test/ HTTP/1.1\r\nhost: c.test\r\n\r\n", "");
    assert_eq!((response.status(), response.get("content-type")), (421, Some("application/problem+json")));
    let fields = "\"status\":421,\"reason\":\"misdirected\",\"setting\":null";
    wait_until("the access log says so", || gateway.stdout().matches(fields).count() == 7);
}

#[test]
fn plain_http_is_redirected_to_another_port_than_443_if_one_is_named() {
    for (port, host, location) in [
        (8443, "a.test:8080", "https://a.test:8443/x?q=1"),
        (8443, "[2001:DB8::1]:80", "https://[2001:db8::1]:8443/x?q=1"),
        (443, "a.test", "https://a.test/x?q=1"),
    ] {
        let redirect = format!("redirect_http = {{ listen = \"127.0.0.2:0\", https_port = {port} }}\n");
        let gateway = Gateway::with(&redirect, ECHO);
        let head = format!("GET /x?q=1 HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let response = Client::connect(gateway.listeners()[1]).fetch(&head, "");
        assert_eq!((response.status(), response.get("location")), (308, Some(location)));
        // A reload changes the port of a listener that stays.
        gateway.reload_with(&format!("https_port = {port}"), "https_port = 9443");
        let response = Client::connect(gateway.listeners()[1]).fetch(&head, "");
        assert!(response.get("location").unwrap().contains(":9443/"), "{response:?}");
    }
}

#[test]
fn plain_http_is_sent_to_https() {
    let gateway = Gateway::with("redirect_http = \"127.0.0.2:0\"\n", ECHO);
    let addr = gateway.listeners()[1];
    let fetch = |head: String, body: &str| Client::connect(addr).fetch(&head, body);
    let to = |target: &str, host: &str| {
        let response = fetch(format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n"), "");
        (response.status(), response.get("location").map(str::to_owned))
    };
    let redirect = |location: &str| (308, Some(location.to_owned()));
    assert_eq!(to("/", "a.test"), redirect("https://a.test/"));
    assert_eq!(to("/x/./y?q=1&r=%20", "A.Test:8080"), redirect("https://a.test/x/y?q=1&r=%20"));
    assert_eq!(to("/", "[2001:DB8::1]:80"), redirect("https://[2001:db8::1]/"));
    assert_eq!(to("http://a.test/abs", "a.test"), redirect("https://a.test/abs"));
    assert_eq!(to("/.well-known/acme-challenge/x", "a.test"), redirect("https://a.test/.well-known/acme-challenge/x"));
    for (target, host) in [
        ("/", "evil.test@a.test"),
        ("/", "a.test/evil"),
        ("/", "a.test#"),
        ("/", ""),
        ("/", "a.test:x"),
        ("//evil.test/", "a.test"),
        ("/\\evil.test/", "a.test"),
        ("http://evil.test/", "a.test"),
        ("/a/../../b", "a.test"),
    ] {
        let (status, location) = to(target, host);
        assert!(location.is_none_or(|location| location.starts_with("https://a.test/")), "{target} {host}: {status}");
        assert_ne!(status, 200);
    }
    let response = fetch("GET / HTTP/1.0\r\n\r\n".to_owned(), "");
    assert_eq!((response.status(), response.get("location")), (404, None));
    let response = fetch("OPTIONS * HTTP/1.1\r\nhost: a.test\r\n\r\n".to_owned(), "");
    assert_eq!((response.status(), response.get("location")), (308, Some("https://a.test/")));
    // The client repeats methods and bodies itself, on the same connection if possible.
    let mut client = Client::connect(addr);
    for _ in 0..2 {
        let response = client.fetch(&post("/form", 3, ""), "a=b");
        assert_eq!((response.status(), response.get("location")), (308, Some("https://a.test/form")));
    }
    // Other connections are not affected.
    assert_eq!(gateway.get("/").status(), 200);
}

#[test]
fn the_access_log_has_the_fields_of_the_handshake() {
    let (ca, clients) = (Ca::new("test"), Ca::new("clients"));
    let gateway = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "0");
        std::fs::write(dir.join("ca.pem"), clients.pem()).unwrap();
        let echo = "[[route]]\nupstream = \"echo:\"\n";
        config_arguments(dir, &config(1, OPTIONAL, "access_log = true", echo))
    });
    let own = clients.issue(&["app.test"], "app");
    for own in [Some(&own), None] {
        assert!(served(&gateway, &Trust::with(&ca, own, &[&rustls::version::TLS13])));
    }
    wait_until("both are logged", || gateway.stdout().lines().count() == 2);
    for (line, subject) in gateway.stdout().lines().zip([true, false]) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["tls"], &line["tls_name"]), (&"TLSv1.3".into(), &"a.test".into()), "{line}");
        assert!(line["tls_cipher"].as_str().unwrap().starts_with("TLS13_"), "{line}");
        assert_eq!(line["tls_subject"].as_str().is_some_and(|name| name.contains("CN=app")), subject, "{line}");
    }
}
