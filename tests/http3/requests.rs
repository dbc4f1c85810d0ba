//! Requests of a well-behaved client: the same steps as over HTTP/1.1 and HTTP/2.

use super::{ECHO, Http3Gateway};
use crate::support::client::get as get1;
use crate::support::h3::{DATA, H3Client, H3Options, HEADERS, find, frame, get, head, section};
use crate::support::tls::Trust;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

#[test]
fn a_request_is_served_logged_and_counted_as_http3() {
    let upstream = Upstream::fixed(ok("from the server"));
    let route = format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Http3Gateway::start("access_log = { to = \"log\" }\n", "http3 = true", &route);
    let client = gateway.connect();
    let fields = [&get("/a/../b?q=1")[..], &[("cookie", "a=1"), ("x-own", "1"), ("cookie", "b=2")]].concat();
    let response = client.fetch(&fields, b"");
    assert_eq!((response.status(), response.text().as_str()), (200, "from the server"));
    assert!(response.get("date").is_some() && response.get("connection").is_none());
    let request = upstream.request();
    assert_eq!(request.start_line(), "GET /b?q=1 HTTP/1.1");
    assert_eq!((request.get("host"), request.get("cookie")), (Some("a.test"), Some("a=1; b=2")));
    assert_eq!(request.get("x-forwarded-proto"), Some("https"));
    assert_eq!(request.get("content-length").or(request.get("transfer-encoding")), None, "it has no body");
    let log = || std::fs::read_to_string(gateway.gateway.dir.path().join("log")).unwrap_or_default();
    wait_until("the request is logged", || log().contains("HTTP/3.0") && log().contains("TLSv1.3"));
    assert_eq!(gateway.open_connections(), Some(1.0));
}

#[test]
fn bodies_pass_in_both_directions() {
    let gateway = Http3Gateway::echo("max_body = \"16MiB\"\n");
    let client = gateway.connect();
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/echo")];
    for size in [1, 1000, 70_000, 1_000_000] {
        let body: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let response = client.fetch(&post, &body);
        assert_eq!(response.status(), 200);
        assert!(response.body == body, "{size}");
    }
    let length = [&post[..], &[("content-length", "6")]].concat();
    let mut exchange = client.open(&head(&length));
    exchange.write(&[frame(DATA, b"abc"), frame(0x21, b"ignored"), frame(DATA, b"def")].concat());
    exchange.finish();
    let response = exchange.response().unwrap();
    assert_eq!((response.text().as_str(), response.get("content-length")), ("abcdef", Some("6")));
}

/// The server gets the announced trailer of the request, and the client those of the response without what belongs in a
/// head.
#[test]
fn trailers_pass_in_both_directions() {
    let upstream = Upstream::start(|peer| {
        while peer.head()?.is_some_and(|head| head.get("trailer") == Some("x-sum")) {
            peer.exactly("4\r\nbody\r\n0\r\nx-sum: 10\r\n\r\n".len() as u64)?;
            peer.note("whole");
            peer.send(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: grpc-status\r\n\r\n2\r\nup\r\n0\r\n\
                 grpc-status: 0\r\nconnection: close\r\nset-cookie: a=1\r\n\r\n",
            )?;
        }
        Ok(())
    });
    let route = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\nrequest_trailers = true\n", upstream.url());
    let gateway = Http3Gateway::start("", "http3 = true", &route);
    let fields = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "a.test"),
        (":path", "/"),
        ("te", "trailers"),
        ("trailer", "x-sum"),
    ];
    let client = gateway.connect();
    let mut exchange = client.open(&head(&fields));
    exchange.write(&frame(DATA, b"body"));
    exchange.write(&frame(HEADERS, &section(&[("x-sum", "10"), ("x-unannounced", "1")])));
    exchange.finish();
    let response = exchange.response().unwrap();
    assert_eq!((response.status(), response.text().as_str()), (200, "up"));
    let names: Vec<&str> = response.trailers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names, find(&response.trailers, "grpc-status")), (vec!["grpc-status"], Some("0")));
    upstream.request();
    assert_eq!(upstream.request().head, "whole");
}

#[test]
fn many_requests_share_a_connection_and_one_waits_for_no_other() {
    let gateway = Http3Gateway::echo("");
    let client = gateway.connect();
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/echo")];
    let mut open: Vec<_> = (0..50).map(|_| client.open(&head(&post))).collect();
    assert_eq!(client.get("/").text(), "hello\n");
    for (number, exchange) in open.iter_mut().enumerate().rev() {
        exchange.write(&frame(DATA, number.to_string().as_bytes()));
        exchange.finish();
        assert_eq!(exchange.response().unwrap().text(), number.to_string());
    }
    for _ in 0..300 {
        assert_eq!(client.get("/").status(), 200, "streams are given back");
    }
}

#[test]
fn head_responses_and_refusals_have_the_form_of_other_protocols() {
    let rest = format!(
        "{ECHO}[[route]]\npath = \"/tight\"\nrespond = {{ status = 204 }}\nlimits = [\"one\"]\n[limit.one]\nrate = \"1/h\"\nkey = \"ip\"\n"
    );
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    let client = gateway.connect();
    let head =
        client.fetch(&[(":method", "HEAD"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")], b"");
    assert_eq!((head.status(), head.get("content-length"), head.body.len()), (200, Some("6"), 0));
    assert_eq!(client.get("/tight").status(), 204);
    let refused = client.get("/tight");
    assert_eq!((refused.status(), refused.get("retry-after").is_some()), (429, true));
    // The same key counts over another protocol.
    let over_tcp = Trust::in_ca(&gateway.ca).connect(gateway.addr(), "a.test").fetch(&get1("/tight", ""), "");
    assert_eq!(over_tcp.status(), 429);
}

#[test]
fn client_certificates_are_required_and_forwarded_over_quic() {
    let ca = crate::support::ca::Ca::new("clients");
    let own = ca.issue(&["client.test"], "robot");
    let upstream = Upstream::fixed(ok("x"));
    let gateway_ca = crate::support::ca::Ca::new("test");
    let gateway = crate::support::gateway::Gateway::launch(&[], |dir| {
        gateway_ca.issue(&["a.test"], "gateway").save(dir, "a");
        std::fs::write(dir.join("clients.pem"), ca.pem()).unwrap();
        let config = format!(
            "[server]\nworkers = 1\naccess_log = {{ to = \"log\" }}\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nhttp3 = true\n\
             tls = {{ certificates = [{{ cert = \"a.pem\", key = \"a.key\" }}], client_ca = \"clients.pem\" }}\n\
             [[route]]\npath = \"/\"\nupstream = \"{}\"\n",
            upstream.url()
        );
        crate::support::gateway::config_arguments(dir, &config)
    });
    wait_until("HTTP/3 is open", || gateway.log_lines(&["HTTP/3 is open"]) > 0);
    let options = H3Options { own: Some(&own), ..H3Options::trusting(&gateway_ca) };
    let client = H3Client::with(gateway.addr, &options).unwrap();
    assert_eq!(client.get("/").status(), 200);
    let log = || std::fs::read_to_string(gateway.dir.path().join("log")).unwrap_or_default();
    wait_until("the subject is logged", || log().contains("robot"));
    let without = H3Client::with(gateway.addr, &H3Options::trusting(&gateway_ca));
    if let Ok(client) = without {
        // The client has completed its side before the gateway has seen that there is no certificate.
        assert!(client.try_fetch(&get("/"), b"").is_err());
    }
    wait_until("the handshake is counted", || {
        gateway.metric("tls_handshakes_total", &[("listener", "127.0.0.1:0"), ("result", "no_client_certificate")])
            == Some(1.0)
    });
}
