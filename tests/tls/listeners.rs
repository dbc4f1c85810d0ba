//! Listeners with TLS: selection of the certificate, protocols, and what upstream servers see.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use rustls::StreamOwned;

use crate::support::ca::Ca;
use crate::support::client::get;
use crate::support::frames::Wire;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::tls::Trust;
use crate::support::upstream::{Upstream, ok};
use crate::support::{WAIT_MAX, wait_until};

/// A gateway whose only listener has TLS, with the pairs of these names in the order of its list; a name is a
/// list with commas. `tls` are further options of it, `rest` all but `[[listener]]`, `[server]`, `[admin]`.
pub fn gateway(ca: &Ca, names: &[&str], tls: &str, server: &str, rest: &str) -> Gateway {
    Gateway::launch(&[("SLUICEGATE_LOG", "debug")], |dir| {
        for (i, names) in names.iter().enumerate() {
            ca.issue(&names.split(',').collect::<Vec<_>>(), "gateway").save(dir, &format!("{i}"));
        }
        config_arguments(dir, &config(names.len(), tls, server, rest))
    })
}

/// The config of `gateway`.
pub fn config(pairs: usize, tls: &str, server: &str, rest: &str) -> String {
    let pairs: Vec<String> = (0..pairs).map(|i| format!("{{ cert = \"{i}.pem\", key = \"{i}.key\" }}")).collect();
    format!(
        "[server]\nworkers = 1\n{server}\n[admin]\nlisten = \"127.0.0.1:0\"\n\n[[listener]]\naddress = \
         \"127.0.0.1:0\"\ntls = {{ certificates = [{}]{tls} }}\n\n{rest}",
        pairs.join(", ")
    )
}

pub const ECHO: &str = "[[route]]\nupstream = \"echo:\"\n";

/// How a handshake of the only listener was counted.
pub fn handshakes(gateway: &Gateway, result: &str) -> f64 {
    let labels = [("listener", "127.0.0.1:0"), ("result", result)];
    gateway.metric("tls_handshakes_total", &labels).unwrap_or_default()
}

#[test]
fn requests_over_tls_are_forwarded_with_their_scheme() {
    let (ca, upstream) = (Ca::new("test"), Upstream::text("hello"));
    let route = format!("[[route]]\nupstream = \"{}\"\n", upstream.url());
    let gateway = gateway(&ca, &["a.test"], "", "access_log = true", &route);
    for (version, name) in [(&rustls::version::TLS12, "TLSv1.2"), (&rustls::version::TLS13, "TLSv1.3")] {
        let mut client = Trust::with(&ca, None, &[version]).connect(gateway.addr, "a.test");
        for _ in 0..2 {
            assert_eq!(client.fetch(&get("/x", "x-forwarded-proto: http\r\n"), "").text(), "hello");
            let request = upstream.request();
            assert_eq!(request.get("x-forwarded-proto"), Some("https"));
            assert_eq!(request.get("x-forwarded-port"), Some("443"));
            assert_eq!(request.get("x-forwarded-for"), Some("127.0.0.1"));
        }
        gateway.assert_metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "http/1.1")], 1.0);
        drop(client);
        gateway.assert_metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "http/1.1")], 0.0);
        let logged = format!("\"tls\":\"{name}\"");
        wait_until("both are in the access log", || gateway.stdout().matches(&logged).count() == 2);
    }
    gateway.assert_metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "handshake")], 0.0);
    assert_eq!(handshakes(&gateway, "full"), 2.0);
}

#[test]
fn the_certificate_is_chosen_by_name() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["first.test,127.0.0.1", "*.wild.test", "a.wild.test,WILD.test"], "", "", ECHO);
    for (name, names) in [
        ("first.test", "first.test"),
        ("b.wild.test", "*.wild.test"),
        ("B.Wild.Test", "*.wild.test"),
        ("a.wild.test", "a.wild.test,WILD.test"),
        ("wild.test", "a.wild.test,WILD.test"),
        ("127.0.0.1", "first.test"),
    ] {
        let mut client = Trust::in_ca(&ca).connect(gateway.addr, name);
        assert_eq!(client.server_names().join(","), names, "{name}");
    }
    // The first answers to a name that none has, and the client knows what to think of that.
    for name in ["a.b.wild.test", "elsewhere.test"] {
        let refused = Trust::in_ca(&ca).try_connect(gateway.addr, name).err().unwrap();
        assert!(refused.to_string().contains("not valid for name"), "{name}: {refused}");
    }
    gateway.assert_metric("tls_handshakes_total", &[("listener", "127.0.0.1:0"), ("result", "alert")], 2.0);
}

#[test]
fn the_protocol_is_agreed_on_in_the_handshake() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let trust = Trust::in_ca(&ca);
    assert_eq!(trust.connect(gateway.addr, "a.test").alpn(), None);
    let mut client = trust.offering(&["spdy/3", "http/1.1"]).connect(gateway.addr, "a.test");
    assert_eq!(client.alpn().as_deref(), Some("http/1.1"));
    assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    let mut client = trust.offering(&["http/1.0"]).connect(gateway.addr, "a.test");
    assert_eq!(client.alpn().as_deref(), Some("http/1.0"));
    assert_eq!(client.fetch("GET / HTTP/1.0\r\nhost: a.test\r\n\r\n", "").status(), 200);
    let mut client = trust.offering(&["http/1.1", "h2"]).connect(gateway.addr, "a.test");
    assert_eq!(client.alpn().as_deref(), Some("h2"));
    let mut wire = Wire::over(client.stream(), &[]);
    wire.get(1, "/over");
    let echoed = String::from_utf8(wire.read_response(1).body).unwrap();
    assert!(echoed.starts_with("GET /over HTTP/1.1\n") && echoed.contains("\nx-forwarded-proto: https\n"), "{echoed}");
    // What was agreed on is spoken.
    for (agreed, other) in [("h2", get("/", "")), ("http/1.1", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned())] {
        let mut client = trust.offering(&[agreed]).connect(gateway.addr, "a.test");
        client.send(other);
        assert!(client.try_read_response("GET").is_err(), "{agreed}");
    }
    let refused = trust.offering(&["spdy/3"]).try_connect(gateway.addr, "a.test").err().unwrap();
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
    gateway.assert_metric("tls_handshakes_total", &[("listener", "127.0.0.1:0"), ("result", "incompatible")], 1.0);
}

#[test]
fn old_versions_are_refused_as_configured() {
    let ca = Ca::new("test");
    let old = Trust::with(&ca, None, &[&rustls::version::TLS12]);
    let gateway = gateway(&ca, &["a.test"], ", min_version = \"1.3\"", "", ECHO);
    assert!(old.try_connect(gateway.addr, "a.test").is_err());
    gateway.assert_metric("tls_handshakes_total", &[("listener", "127.0.0.1:0"), ("result", "incompatible")], 1.0);
    // The same listener, and the very next handshake.
    gateway.reload_with("\"1.3\"", "\"1.2\"");
    assert_eq!(old.connect(gateway.addr, "a.test").fetch(&get("/", ""), "").status(), 200);
}

#[test]
fn bodies_pass_whole_in_both_directions() {
    let ca = Ca::new("test");
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            peer.send(ok(&request.text()))?;
        }
        Ok(())
    });
    let route = format!("[[route]]\nupstream = \"{}\"\n", upstream.url());
    let gateway = gateway(&ca, &["a.test"], "", "", &route);
    let mut client = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    for length in [0, 1, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 1_000_000] {
        let body: String = (0..length).map(|i| char::from(b'a' + u8::try_from(i % 23).unwrap())).collect();
        let head = format!("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: {length}\r\n\r\n");
        assert!(client.fetch(&head, &body).text() == body, "a body of {length} bytes came back changed");
    }
    // Requests that arrive in one record are all answered, after a rest too.
    for rest_ms in [0, 900] {
        std::thread::sleep(std::time::Duration::from_millis(rest_ms));
        client.send(get("/", "").repeat(3));
        for _ in 0..3 {
            assert_eq!(client.try_read_response("GET").unwrap().status(), 200);
        }
    }
}

#[test]
fn a_request_in_the_last_packet_of_the_handshake_is_answered() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let mut socket = TcpStream::connect(gateway.addr).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut session = Trust::in_ca(&ca).session("a.test");
    // Kept back until it may leave.
    session.writer().write_all(get("/", "").as_bytes()).unwrap();
    session.write_tls(&mut socket).unwrap();
    while session.is_handshaking() {
        session.read_tls(&mut socket).unwrap();
        session.process_new_packets().unwrap();
    }
    let mut flight = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut flight).unwrap();
    }
    socket.write_all(&flight).unwrap();
    let mut response = String::new();
    let mut stream = StreamOwned::new(session, socket);
    while !response.contains("\r\n\r\n") {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).unwrap();
        response += str::from_utf8(&piece[..count]).unwrap();
    }
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
}

#[test]
fn openssl_and_curl_are_served_and_nobody_renegotiates() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let ca_file = gateway.dir.path().join("ca.pem");
    std::fs::write(&ca_file, ca.pem()).unwrap();
    let (ca_file, port) = (ca_file.display(), gateway.addr.port());
    let run = |script: String| {
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(!text.contains("not found"), "apt-get install curl openssl\n{text}");
        text
    };
    for version in ["1.2", "1.3"] {
        let text = run(format!(
            "curl -sS --cacert {ca_file} --tlsv{version} --tls-max {version} --resolve a.test:{port}:127.0.0.1 \
             -w '%{{http_code}}' -o /dev/null https://a.test:{port}/"
        ));
        assert_eq!(text, "200", "{version}");
    }
    // A line with nothing but R asks for it.
    let text = run(format!(
        "(sleep 0.3; echo R; sleep 0.5) | timeout 10 openssl s_client -connect 127.0.0.1:{port} -servername a.test \
         -CAfile {ca_file} -tls1_2"
    ));
    assert!(text.contains("RENEGOTIATING") && text.contains("no renegotiation"), "{text}");
    assert_eq!(Trust::in_ca(&ca).connect(gateway.addr, "a.test").fetch(&get("/", ""), "").status(), 200);
}

/// OpenSSL keeps the session of its first connection, and resumes it in the next two.
#[test]
fn openssl_resumes_sessions_by_tickets_only() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let ca_file = gateway.dir.path().join("ca.pem");
    std::fs::write(&ca_file, ca.pem()).unwrap();
    let connect = |options: &str| {
        let script = format!(
            "cd {}; for use in '-sess_out session' '-sess_in session' '-sess_in session'; do \
             printf 'GET / HTTP/1.1\\r\\nhost: a.test\\r\\nconnection: close\\r\\n\\r\\n' | timeout 10 openssl s_client \
             -connect 127.0.0.1:{} -servername a.test -CAfile {} -ign_eof {options} $use 2>&1; done",
            gateway.dir.path().display(),
            gateway.addr.port(),
            ca_file.display()
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "is it installed? apt-get install openssl\n{text}");
        let handshakes = text.lines().filter_map(|line| line.split_once(", TLSv1.")).map(|(kind, _)| kind.to_owned());
        handshakes.collect::<Vec<_>>()
    };
    for version in ["-tls1_2", "-tls1_3"] {
        assert_eq!(connect(version), ["New", "Reused", "Reused"], "{version}");
    }
    // TLS 1.2 without tickets: by the ID of the session, which the gateway does not keep.
    assert_eq!(connect("-tls1_2 -no_ticket"), ["New", "New", "New"]);
}

#[test]
fn one_address_goes_over_to_tls_and_back_without_a_gap() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    let mut old = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    let with_tls = std::fs::read_to_string(gateway.config()).unwrap();
    let (before, after) = with_tls.split_once("tls = {").unwrap();
    let plain = format!("{before}{}", after.split_once('\n').unwrap().1);
    gateway.reload(&plain);
    wait_until("the log names the change", || gateway.log().contains("listener changed: 127.0.0.1:0"));
    assert_eq!(gateway.get("/").status(), 200);
    // Open connections live on as they are.
    assert_eq!(old.fetch(&get("/", ""), "").status(), 200);
    gateway.reload(&with_tls);
    assert_eq!(Trust::in_ca(&ca).connect(gateway.addr, "a.test").fetch(&get("/", ""), "").status(), 200);
    assert_eq!(old.fetch(&get("/", ""), "").status(), 200);
}

#[test]
fn http2_is_offered_only_if_enabled() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "http2 = true", ECHO);
    let trust = Trust::in_ca(&ca).offering(&["h2", "http/1.1"]);
    assert_eq!(trust.connect(gateway.addr, "a.test").alpn().as_deref(), Some("h2"));
    gateway.reload_with("http2 = true", "http2 = false");
    assert_eq!(trust.connect(gateway.addr, "a.test").alpn().as_deref(), Some("http/1.1"));
}
