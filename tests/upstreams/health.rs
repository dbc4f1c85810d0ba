//! Health checks: unhealthy servers get no requests, and every check ends, even if the server stalls.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::fleet::{ControlledServer, app, of, shown};
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::h2_server::Http2Server;
use crate::support::ports::ReservedPort;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const QUICK: &str = "every = \"100ms\", timeout = \"500ms\"";

fn gateway(servers: &[&ControlledServer], health: &str) -> Gateway {
    let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
    Gateway::start(&app(&urls, &format!("balance = \"round_robin\"\nhealth = {{ {QUICK}, {health} }}")))
}

#[test]
fn a_server_whose_checks_fail_gets_no_requests_until_they_do_not() {
    let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
    let gateway = gateway(&[&good, &bad], "path = \"/healthz?deep=1\", unhealthy_after = 2, healthy_after = 2");
    gateway.assert_metric("upstream_up", &of(&bad.name()), 1.0);
    let check = bad.upstream.request();
    assert_eq!((check.start_line(), check.get("host")), ("GET /healthz?deep=1 HTTP/1.1", Some(bad.name().as_str())));
    bad.set_status(500);
    gateway.assert_metric("upstream_up", &of(&bad.name()), 0.0);
    assert_eq!(shown(&gateway, &bad.name())["reason"], "check: status");
    let mut client = gateway.client();
    (0..20).for_each(|_| assert_eq!(client.fetch(&get("/", ""), "").text(), "good"));
    bad.set_status(204);
    gateway.assert_metric("upstream_up", &of(&bad.name()), 1.0);
    wait_until("the log says both", || {
        let log = gateway.log();
        log.contains("is down (check: status) upstream=\"app\"") && log.contains("is up upstream=\"app\"")
    });
    bad.set_status(302);
    let before = bad.request_count();
    wait_until("it has been checked with that", || bad.request_count() >= before + 4);
    gateway.assert_metric("upstream_up", &of(&bad.name()), 1.0);
}

/// An application that answers only to its own name is up if its checks use that name.
#[test]
fn checks_send_the_host_and_headers_that_are_set() {
    let picky = Upstream::start(|peer| {
        let head = peer.head()?.unwrap();
        let is_right = head.get("host") == Some("app.example.com:8443")
            && head.get("x-probe") == Some("1")
            && head.get("accept") == Some("text/html")
            && head.get("user-agent").is_some_and(|agent| agent.starts_with("sluicegate-health/"));
        peer.send(format!("HTTP/1.1 {} X\r\ncontent-length: 0\r\n\r\n", if is_right { 200 } else { 400 }))
    });
    let name = picky.addr.to_string();
    let named = "host = \"app.example.com:8443\", headers = { x-probe = \"1\", Accept = \"text/html\" }";
    for (options, up) in [(named, 1.0), ("host = \"app.example.com\"", 0.0)] {
        let health = format!("health = {{ {QUICK}, unhealthy_after = 1, healthy_after = 1, {options} }}");
        let before = picky.connections();
        let gateway = Gateway::start(&app(&[picky.url()], &health));
        wait_until("a check has ended", || picky.connections() >= before + 2);
        gateway.assert_metric("upstream_up", &of(&name), up);
    }
    let picky = Http2Server::start(|mut incoming| async move {
        let is_right = incoming.request.uri().authority().is_some_and(|host| host == "app.example.com:8443")
            && incoming.request.headers().get("x-probe").is_some_and(|probe| probe == "1");
        let head = http::Response::builder().status(if is_right { 200 } else { 400 });
        let mut stream = incoming.head(head.body(()).unwrap(), false)?;
        stream.send_data(Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1]), true)
    });
    let name = format!("h2c://{}", picky.addr);
    for (kind, host, up) in [("http", "app", 1.0), ("grpc", "app", 1.0), ("http", "other", 0.0), ("grpc", "other", 0.0)]
    {
        let health = format!(
            "health = {{ {QUICK}, type = \"{kind}\", unhealthy_after = 1, healthy_after = 1, \
             host = \"{host}.example.com:8443\", headers = {{ x-probe = \"1\" }} }}"
        );
        let before = picky.connections();
        let gateway = Gateway::start(&app(std::slice::from_ref(&name), &health));
        wait_until("a check has ended", || picky.connections() >= before + 2);
        gateway.assert_metric("upstream_up", &of(&name), up);
    }
}

#[test]
fn requests_are_sent_to_all_servers_if_all_checks_fail() {
    let (one, other) = (ControlledServer::start("one"), ControlledServer::start("other"));
    let gateway = gateway(&[&one, &other], "unhealthy_after = 1, status = [201, \"401-403\", \"3xx\"]");
    gateway.assert_metric("upstream_fail_open", &[("upstream", "app")], 1.0);
    let mut client = gateway.client();
    let texts: Vec<String> = (0..2).map(|_| client.fetch(&get("/", ""), "").text()).collect();
    assert!(texts.contains(&"one".to_owned()) && texts.contains(&"other".to_owned()), "{texts:?}");
    one.set_status(402);
    gateway.assert_metric("upstream_up", &of(&one.name()), 1.0);
    gateway.assert_metric("upstream_fail_open", &[("upstream", "app")], 0.0);
    // Without checks the state of the servers is unknown.
    gateway.reload(&config("", &app(&[one.url(), other.url()], "")));
    let count_requests = || one.request_count() + other.request_count();
    wait_until("nothing is checked any more", || {
        let before = count_requests();
        std::thread::sleep(Duration::from_millis(300));
        count_requests() == before
    });
    gateway.assert_metric("upstream_up", &of(&other.name()), 1.0);
}

#[test]
fn checks_that_hang_never_end_or_are_no_http_fail_in_time() {
    type Script = fn(&mut crate::support::upstream::Peer) -> std::io::Result<()>;
    let scripts: [(Script, &str, &str); 4] = [
        (|peer| peer.wait_for_end(), "", "check: timeout"),
        (|peer| peer.send("SSH-2.0-OpenSSH_9.2\r\n\r\n"), "", "check: broken"),
        (
            |peer| {
                peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
                loop {
                    peer.send("10\r\n0123456789abcdef\r\n")?;
                }
            },
            ", body = \"fine\"",
            "check: body",
        ),
        (
            |peer| {
                loop {
                    peer.send("HTTP/1.1 103 Early Hints\r\n\r\n")?;
                }
            },
            "",
            "check: broken",
        ),
    ];
    for (script, body, reason) in scripts {
        let bad = Upstream::start(move |peer| {
            peer.request()?;
            script(peer)
        });
        let upstream = app(&[bad.url()], &format!("health = {{ {QUICK}, unhealthy_after = 1{body} }}"));
        let gateway = Gateway::start(&upstream);
        gateway.assert_metric("upstream_up", &of(&bad.addr.to_string()), 0.0);
        assert_eq!(shown(&gateway, &bad.addr.to_string())["reason"], reason);
    }
}

#[test]
fn a_body_is_looked_at_where_something_is_expected_of_it() {
    let server = Upstream::text("{\"status\": \"fine\"}");
    let with =
        |body: &str| app(&[server.url()], &format!("health = {{ {QUICK}, unhealthy_after = 1, body = '{body}' }}"));
    let gateway = Gateway::start(&with("\"pass\""));
    gateway.assert_metric("upstream_up", &of(&server.addr.to_string()), 0.0);
    gateway.reload(&config("", &with("\"fine\"")));
    gateway.assert_metric("upstream_up", &of(&server.addr.to_string()), 1.0);
}

#[test]
fn tcp_checks_find_a_server_that_starts_to_listen() {
    let port = ReservedPort::new();
    let server = port.addr().to_string();
    let upstream =
        app(&[format!("http://{server}")], &format!("health = {{ type = \"tcp\", {QUICK}, unhealthy_after = 1 }}"));
    let gateway = Gateway::start(&upstream);
    gateway.assert_metric("upstream_up", &of(&server), 0.0);
    assert_eq!(shown(&gateway, &server)["reason"], "check: no_connection");
    let addr = port.addr();
    drop(port);
    let _listener = TcpListener::bind(addr).unwrap();
    gateway.assert_metric("upstream_up", &of(&server), 1.0);
}

/// A gRPC server whose health service responds with this status.
fn grpc(status: Arc<AtomicUsize>) -> Http2Server {
    Http2Server::start(move |mut incoming| {
        let status = status.clone();
        async move {
            let is_check = incoming.request.uri().path() == "/grpc.health.v1.Health/Check"
                && incoming.request.headers()["content-type"] == "application/grpc";
            let status = if is_check { status.load(Ordering::SeqCst) as u8 } else { 9 };
            let head = http::Response::builder().header("content-type", "application/grpc");
            let mut stream = incoming.head(head.body(()).unwrap(), false)?;
            stream.send_data(Bytes::from(vec![0, 0, 0, 0, 2, 8, status]), false)?;
            stream.send_trailers(http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]))
        }
    })
}

/// Relays a Unix socket to the server.
fn at_socket(path: &Path, server: SocketAddr) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().map(Result::unwrap) {
            let tcp = TcpStream::connect(server).unwrap();
            let (mut from, mut to) = (socket.try_clone().unwrap(), tcp.try_clone().unwrap());
            std::thread::spawn(move || drop((std::io::copy(&mut from, &mut to), to.shutdown(Shutdown::Write))));
            std::thread::spawn(move || std::io::copy(&mut &tcp, &mut &socket));
        }
    });
}

#[test]
fn grpc_servers_say_themselves_whether_they_serve() {
    let status = Arc::new(AtomicUsize::new(1));
    let server = grpc(status.clone()).addr.to_string();
    let health = format!("health = {{ type = \"grpc\", {QUICK}, unhealthy_after = 1, healthy_after = 1 }}");
    let gateway = Gateway::start(&app(&[format!("http://{server}")], &health));
    gateway.assert_metric("upstream_up", &of(&server), 1.0);
    status.store(2, Ordering::SeqCst);
    gateway.assert_metric("upstream_up", &of(&server), 0.0);
    assert_eq!(shown(&gateway, &server)["reason"], "check: not_serving");
    status.store(1, Ordering::SeqCst);
    gateway.assert_metric("upstream_up", &of(&server), 1.0);
}

#[test]
fn checks_over_a_socket_name_a_host() {
    let dir = tempfile::tempdir().unwrap();
    let (http, serving) = (dir.path().join("http"), dir.path().join("grpc"));
    let server = Upstream::at(&http, |peer| {
        while peer.request()?.is_some() {
            peer.send(ok("fine"))?;
        }
        Ok(())
    });
    let status = Arc::new(AtomicUsize::new(2));
    let grpc = grpc(status.clone());
    at_socket(&serving, grpc.addr);
    let health =
        |kind: &str| format!("health = {{ type = \"{kind}\", {QUICK}, unhealthy_after = 1, healthy_after = 1 }}");
    let _gateway = Gateway::start(&app(&[format!("unix:{}", http.display())], &health("http")));
    assert_eq!(server.request().get("host"), Some("localhost"));
    let url = format!("unix:{}", serving.display());
    let gateway =
        Gateway::start(&app(std::slice::from_ref(&url), &format!("protocol = \"http2\"\n{}", health("grpc"))));
    gateway.assert_metric("upstream_up", &of(&url), 0.0);
    assert_eq!(shown(&gateway, &url)["reason"], "check: not_serving");
    status.store(1, Ordering::SeqCst);
    gateway.assert_metric("upstream_up", &of(&url), 1.0);
}
