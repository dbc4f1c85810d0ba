//! PROXY headers on connections to servers: which client they name, and that no connection serves two clients.

use std::collections::HashSet;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::h2::{self, H2Client, Sent};
use crate::support::upstream::{Duplex, Upstream, ok};
use crate::support::wait_until;

/// The line of version 1, or the head of version 2 with its addresses as text.
fn introduction(stream: &mut impl Read) -> io::Result<String> {
    let mut start = vec![0; 12];
    stream.read_exact(&mut start)?;
    if start == b"\r\n\r\n\0\r\nQUIT\n" {
        let mut head = [0; 4];
        stream.read_exact(&mut head)?;
        let mut rest = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
        stream.read_exact(&mut rest)?;
        let ip = |at: usize| format!("{}.{}.{}.{}", rest[at], rest[at + 1], rest[at + 2], rest[at + 3]);
        let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
        return Ok(match (head[0], head[1], rest.len()) {
            (0x21, 0x11, 12) => format!("v2 {} {} {} {}", ip(0), ip(4), port(8), port(10)),
            (0x20, 0, 0) => "v2 local".to_owned(),
            other => format!("v2 {other:?} {rest:?}"),
        });
    }
    while !start.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        start.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&start).trim_end().to_owned())
}

/// A server that responds with what each of its connections began with, and how many requests that has seen.
struct PrefaceServer {
    upstream: Upstream,
    seen: Arc<Mutex<Vec<String>>>,
}

impl PrefaceServer {
    fn start() -> PrefaceServer {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let (wrapped, asked) = (seen.clone(), Arc::new(Mutex::new(Vec::<String>::new())));
        let (met, names) = (asked.clone(), asked);
        let upstream = Upstream::wrapped(
            move |mut stream: TcpStream| -> io::Result<Box<dyn Duplex>> {
                let begins = introduction(&mut stream)?;
                wrapped.lock().unwrap().push(begins.clone());
                met.lock().unwrap().push(begins);
                Ok(Box::new(stream))
            },
            move |peer| {
                let begins = names.lock().unwrap()[peer.connection].clone();
                let mut count = 0;
                while peer.request()?.is_some() {
                    count += 1;
                    peer.send(ok(&format!("{count} {begins}")))?;
                }
                Ok(())
            },
        );
        PrefaceServer { upstream, seen }
    }

    fn app(&self, more: &str) -> String {
        format!("[[route]]\nupstream = \"app\"\n\n[upstream.app]\nservers = [\"{}\"]\n{more}\n", self.upstream.url())
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn local(client: &mut Client) -> SocketAddr {
    client.stream().local_addr().unwrap()
}

#[test]
fn each_client_has_connections_of_its_own_that_begin_with_its_address() {
    let server = PrefaceServer::start();
    for version in ["v1", "v2"] {
        let gateway = Gateway::start(&server.app(&format!("proxy_protocol = \"{version}\"")));
        let named = |addr: SocketAddr| match version {
            "v1" => format!("PROXY TCP4 {} 127.0.0.1 {} {}", addr.ip(), addr.port(), gateway.addr.port()),
            _ => format!("v2 {} 127.0.0.1 {} {}", addr.ip(), addr.port(), gateway.addr.port()),
        };
        let mut clients = [gateway.client(), gateway.client_from([127, 0, 0, 9]), gateway.client()];
        for turn in 1..=3 {
            for client in &mut clients {
                let own = named(local(client));
                assert_eq!(client.fetch(&get("/", ""), "").text(), format!("{turn} {own}"));
            }
        }
        // A forged header does not change the client.
        let own = named(local(&mut clients[0]));
        assert_eq!(clients[0].fetch(&get("/", "x-forwarded-for: 192.0.2.1\r\n"), "").text(), format!("4 {own}"));
    }
    assert_eq!(server.seen().len(), 6);
}

#[test]
fn clients_of_one_proxy_share_its_connection_and_none_to_the_server() {
    let server = PrefaceServer::start();
    let gateway =
        Gateway::with("trusted_proxies = [\"127.0.0.1\"]", &server.app("proxy_protocol = \"v1\"\nmax_idle = 2"));
    let mut proxy = gateway.client();
    let port = gateway.addr.port();
    let mut fetch = |who: &str| proxy.fetch(&get("/", &format!("x-forwarded-for: {who}\r\n")), "").text();
    for turn in 1..=2 {
        assert_eq!(fetch("192.0.2.1"), format!("{turn} PROXY TCP4 192.0.2.1 127.0.0.1 0 {port}"));
        assert_eq!(fetch("2001:db8::2"), format!("{turn} PROXY TCP6 2001:db8::2 ::ffff:127.0.0.1 0 {port}"));
    }
    // The maximum number of idle connections holds for all clients together, so that of the third client is closed.
    assert!(fetch("192.0.2.3").starts_with("1 "));
    assert!(fetch("192.0.2.3").starts_with("1 "));
    assert_eq!(server.seen().len(), 4);
    // The same connection, without a PROXY header if the next config has none.
    let plain = Upstream::text("plain");
    gateway.reload_with(&server.upstream.url(), &plain.url());
    gateway.reload_with("proxy_protocol = \"v1\"", "");
    assert_eq!(gateway.get("/").text(), "plain");
}

/// Starts a gateway that expects PROXY headers, over TLS and without, and states the client in them to its upstream.
fn receiver(ca: &Ca, upstream: &Upstream) -> Gateway {
    let config = format!(
        "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n\n[[listener]]\n\
         address = \"127.0.0.1:0\"\nproxy_protocol = true\ntls = {{ certificates = [{{ cert = \"0.pem\", key = \"0.key\" }}] \
         }}\n\n[[listener]]\naddress = \"127.0.0.2:0\"\nproxy_protocol = true\n\n[[route]]\nupstream = \"{}\"\n",
        upstream.url()
    );
    Gateway::launch(&[], |dir| {
        ca.issue(&["a.test", "localhost"], "gateway").save(dir, "0");
        config_arguments(dir, &config)
    })
}

#[test]
fn the_proxy_header_precedes_tls_and_http2() {
    let upstream = Upstream::text("in");
    let ca = Ca::new("test");
    let behind = receiver(&ca, &upstream);
    let [secure, plain] = behind.listeners()[..] else { panic!("two listeners") };
    for (url, more, version) in [
        (format!("https://localhost:{}", secure.port()), "tls = { ca = \"ca.pem\" }", "v1"),
        (format!("https://localhost:{}", secure.port()), "tls = { ca = \"ca.pem\" }\nprotocol = \"http1\"", "v2"),
        (format!("h2c://{plain}"), "", "v2"),
        (format!("http://{plain}"), "", "v1"),
    ] {
        let app = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[route]]\nupstream = \
             \"app\"\n[upstream.app]\nservers = [\"{url}\"]\nproxy_protocol = \"{version}\"\n{more}\n"
        );
        let gateway = Gateway::launch(&[], |dir| {
            std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
            config_arguments(dir, &app)
        });
        let mut clients: Vec<Client> = (1..=3).map(|host| gateway.client_from([127, 0, 0, host])).collect();
        for _ in 0..2 {
            for (host, client) in (1..=3).zip(&mut clients) {
                let response = client.fetch(&get("/", ""), "");
                assert_eq!((response.status(), response.text().as_str()), (200, "in"), "{url} {version}");
                let seen = upstream.request();
                let forwarded_for = seen.get("x-forwarded-for").unwrap().to_owned();
                // For the second gateway the peer is the client; the header of the first gateway has no effect.
                let first = forwarded_for.split(", ").next().unwrap();
                assert_eq!(first, format!("127.0.0.{host}"), "{url} {version}: {forwarded_for}");
            }
        }
        // Streams of one client share a connection, which belongs to this client.
        let mut streams = H2Client::connect(gateway.addr);
        for _ in 0..2 {
            assert_eq!(streams.fetch(h2::get("/"), Sent::default()).status(), 200);
            assert!(upstream.request().get("x-forwarded-for").unwrap().starts_with("127.0.0.1"));
        }
    }
    assert_eq!(behind.metric("http_rejected_total", &[("reason", "proxy_header")]).unwrap_or_default(), 0.0);
}

#[test]
fn checks_are_the_gateways_own() {
    for (version, own) in [("v1", "PROXY UNKNOWN"), ("v2", "v2 local")] {
        let server = PrefaceServer::start();
        let health = "health = { type = \"http\", every = \"100ms\" }";
        let gateway = Gateway::start(&server.app(&format!("proxy_protocol = \"{version}\"\n{health}")));
        wait_until("it has been checked twice", || server.upstream.requests().len() + server.seen().len() > 3);
        let seen: HashSet<String> = server.seen().into_iter().collect();
        assert_eq!(seen, HashSet::from([own.to_owned()]));
        gateway.assert_metric(
            "upstream_up",
            &[("upstream", "app"), ("server", &server.upstream.addr.to_string())],
            1.0,
        );
    }
}

#[test]
fn a_unix_socket_gets_a_header_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let gateway = Gateway::start(&format!(
        "[[route]]\nupstream = \"app\"\n[upstream.app]\nservers = [\"unix:{}\"]\nproxy_protocol = \"v1\"",
        path.display()
    ));
    let mut client = gateway.client();
    client.send(get("/", ""));
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let port = local(&mut client).port();
    assert_eq!(
        introduction(&mut stream).unwrap(),
        format!("PROXY TCP4 127.0.0.1 127.0.0.1 {port} {}", gateway.addr.port())
    );
    drop((stream, listener));
    assert_eq!(client.read_response("GET").status(), 502);
}
