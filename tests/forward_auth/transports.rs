//! How the auth server is reached: HTTP/2, TLS, a Unix socket, a PROXY header; and what traces contain.

use http::Response;

use super::pair::{COPIED, Pair, admit, admitting, responding};
use crate::support::ca::Ca;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::h2_server::Http2Server;
use crate::support::upstream::{Upstream, ok};

fn gateway(forward: &str, app: &Upstream, rest: &str) -> Gateway {
    Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\nauth = {{ forward = \"{forward}\", {COPIED} }}\n{rest}\n",
        app.url()
    ))
}

#[test]
fn an_auth_server_may_speak_http2() {
    let app = Upstream::text("the application");
    let auth = Http2Server::start(|mut incoming| async move {
        let is_known = incoming.request.headers().contains_key("cookie");
        let status = if is_known { 200 } else { 401 };
        let response = Response::builder().status(status).header("remote-user", "alice").body(()).unwrap();
        incoming.head(response, false)?.send_data("told".into(), true)
    });
    let gateway = gateway(&format!("h2c://{}/verify?a=b", auth.addr), &app, "");
    let mut client = gateway.client();
    for _ in 0..3 {
        let refused = client.fetch(&get("/x?y", ""), "");
        assert_eq!((refused.status(), refused.text().as_str()), (401, "told"));
        let incoming = auth.request();
        assert_eq!(incoming.uri.path_and_query().unwrap(), "/verify?a=b");
        assert_eq!((incoming.method.as_str(), incoming.headers["x-forwarded-uri"].as_bytes()), ("GET", &b"/x?y"[..]));
        assert_eq!(client.fetch(&get("/", "cookie: a\r\nconnection: keep-alive\r\n"), "").text(), "the application");
        auth.request();
        assert_eq!(app.request().get("remote-user"), Some("alice"));
    }
    assert_eq!(auth.connections(), 1);
}

#[test]
fn an_auth_server_may_sit_behind_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("auth.sock");
    let auth = Upstream::at(&path, |peer| {
        while peer.request()?.is_some() {
            peer.send(admit("alice"))?;
        }
        Ok(())
    });
    let app = Upstream::text("the application");
    let gateway = gateway("auth", &app, &format!("[upstream.auth]\nservers = [\"unix:{}\"]", path.display()));
    assert_eq!(gateway.get("/").status(), 200);
    assert_eq!((auth.request().target(), app.request().get("remote-user")), ("/", Some("alice")));
}

#[test]
fn an_auth_server_over_tls_must_be_the_right_one() {
    let (auth, app, ca) = (admitting(), Upstream::text("the application"), Ca::new("the tests' own authority"));
    let terminator = Gateway::launch(&[], |dir| {
        ca.issue(&["localhost"], "auth").save(dir, "0");
        let config = "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
                      tls = { certificates = [{ cert = \"0.pem\", key = \"0.key\" }] }\n[[route]]\nupstream = ";
        config_arguments(dir, &format!("{config}\"{}\"\n", auth.url()))
    });
    for (name, status) in [("localhost", 200), ("127.0.0.1", 503)] {
        let gateway = Gateway::launch(&[], |dir| {
            std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
            let rest = format!(
                "[[route]]\nupstream = \"{}\"\nauth = {{ forward = \"auth/verify\", {COPIED} }}\n\
                 [upstream.auth]\nservers = [\"https://{name}:{}\"]\ntls = {{ ca = \"ca.pem\" }}\n",
                app.url(),
                terminator.addr.port()
            );
            config_arguments(dir, &crate::support::gateway::config("", &rest))
        });
        assert_eq!(gateway.get("/").status(), status, "{name}");
    }
    assert_eq!((app.request().get("remote-user"), auth.requests().len()), (Some("alice"), 1));
}

#[test]
fn an_auth_server_gets_a_proxy_header_that_names_the_client() {
    let auth = Upstream::start(|peer| {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(peer.exactly(1)?);
        }
        peer.note(&String::from_utf8_lossy(&line));
        while peer.request()?.is_some() {
            peer.send(admit("alice"))?;
        }
        Ok(())
    });
    let app = Upstream::text("the application");
    let upstream = format!("[upstream.auth]\nservers = [\"{}\"]\nproxy_protocol = \"v1\"", auth.url());
    let gateway = gateway("auth", &app, &upstream);
    for source in [[127, 0, 0, 1], [127, 0, 0, 9]] {
        assert_eq!(gateway.client_from(source).fetch(&get("/", ""), "").status(), 200);
        let [a, b, c, d] = source;
        assert!(auth.request().head.starts_with(&format!("PROXY TCP4 {a}.{b}.{c}.{d} 127.0.0.1 ")));
        assert_eq!(auth.request().get("x-forwarded-for"), Some(format!("{a}.{b}.{c}.{d}").as_str()));
    }
}

#[test]
fn a_key_of_the_user_selects_the_server_and_the_trace_continues() {
    let collector = Upstream::fixed(ok(""));
    let spans = format!("spans = {{ to = \"{}\" }}\n", collector.url());
    let pair = Pair::with(&spans, COPIED, "", responding(|_| admit("alice")), Upstream::text("the application"));
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert_eq!(pair.gateway.fetch(&get("/", &format!("traceparent: {parent}\r\n"))).status(), 200);
    let [incoming, forwarded] =
        [pair.auth.request(), pair.app.request()].map(|got| got.get("traceparent").unwrap().to_owned());
    assert!(incoming.starts_with(&parent[..35]) && incoming != parent, "{incoming}");
    assert!(forwarded.starts_with(&parent[..35]) && forwarded != parent, "{forwarded}");
    assert_eq!(pair.gateway.fetch(&get("/", "x-forwarded-proto: https\r\n")).status(), 200);
    assert_eq!(pair.auth.request().get("x-forwarded-proto"), Some("http"));
}

#[test]
fn a_new_auth_server_takes_over_without_a_restart() {
    let (old, new) = (admitting(), responding(|_| "HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n".to_owned()));
    let app = Upstream::text("the application");
    let gateway = gateway(&format!("{}/verify", old.url()), &app, "");
    let mut client = gateway.client();
    assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    gateway.reload_with(&old.url(), &new.url());
    assert_eq!(client.fetch(&get("/", ""), "").status(), 403);
    // Without `auth`, there is no request to the auth server, and nothing is removed from requests.
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    let without: String =
        text.lines().filter(|line| !line.starts_with("auth = ")).map(|line| format!("{line}\n")).collect();
    gateway.reload(&without);
    assert_eq!(client.fetch(&get("/", "remote-user: me\r\n"), "").status(), 200);
    assert_eq!((old.requests().len(), new.requests().len()), (1, 1));
    assert_eq!(app.requests().pop().unwrap().get("remote-user"), Some("me"));
}
