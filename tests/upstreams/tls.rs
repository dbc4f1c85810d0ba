//! TLS to upstream servers: trust, error texts, and the end of a response.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rcgen::date_time_ymd;
use rustls::crypto::aws_lc_rs::kx_group::{X25519, X25519MLKEM768};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, NamedGroup, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::support::app;
use crate::support::ca::{Ca, Pair};
use crate::support::client::{get, post};
use crate::support::dns::{DnsServer, Reply};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::machine::Stopwatch;
use crate::support::ports::ReservedPort;
use crate::support::upstream::{Duplex, Peer, Upstream, ok};
use crate::support::{wait_until, write_atomically};

/// Returns the TLS settings of a server with this certificate. `clients` is the CA of the client certificates that it
/// requests; `alpn` lists its protocols.
pub fn server_config(pair: &Pair, clients: Option<&Ca>, alpn: &[&str]) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = CertificateDer::pem_slice_iter(pair.cert.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A server's end of a TLS connection, which sends close_notify if `polite`.
struct Secured {
    stream: StreamOwned<ServerConnection, TcpStream>,
    polite: bool,
}

impl Read for Secured {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buf)
    }
}

impl Write for Secured {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Duplex for Secured {
    fn finish(&mut self) -> io::Result<()> {
        self.stream.conn.send_close_notify();
        self.stream.flush()
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        if self.polite {
            let _ = self.finish();
        }
    }
}

pub fn secured(
    config: Arc<ServerConfig>,
    polite: bool,
    script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
) -> Upstream {
    let wrap = move |tcp| {
        let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
        let stream = StreamOwned::new(connection, tcp);
        Ok(Box::new(Secured { stream, polite }) as Box<dyn Duplex>)
    };
    Upstream::wrapped(wrap, script)
}

/// Responds with the body it got, or the target where there is none.
fn echo(peer: &mut Peer) -> io::Result<()> {
    while let Some(request) = peer.request()? {
        let body = if request.body.is_empty() { request.target().to_owned() } else { request.text() };
        peer.send(ok(&body))?;
    }
    Ok(())
}

fn server(pair: &Pair) -> Upstream {
    secured(server_config(pair, None, &["http/1.1"]), true, echo)
}

/// Starts a gateway with a route `/NAME` for each upstream (name, server, further lines), and these files.
pub fn gateway(env: &[(&str, &str)], files: &[(&str, &str)], upstreams: &[(&str, &str, &str)]) -> Gateway {
    Gateway::launch(env, |dir| {
        for (name, text) in files {
            std::fs::write(dir.join(name), text).unwrap();
        }
        let sections = upstreams.iter().map(|(name, url, rest)| {
            format!(
                "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nupstream = \"{name}\"\n\
                 [upstream.{name}]\nservers = [\"{url}\"]\n{rest}\n"
            )
        });
        let config = crate::support::gateway::config("", &sections.collect::<String>());
        config_arguments(dir, &config)
    })
}

fn https(upstream: &Upstream) -> String {
    format!("https://{}", upstream.addr)
}

fn named(upstream: &Upstream) -> String {
    format!("https://localhost:{}", upstream.addr.port())
}

#[test]
fn the_first_key_exchange_that_a_server_knows_needs_one_round_trip() {
    let authority = Ca::new("one");
    let pair = authority.issue(&["127.0.0.1"], "server");
    let agreed = Arc::new(Mutex::new(Vec::new()));
    let servers = [&[X25519MLKEM768 as &dyn SupportedKxGroup, X25519][..], &[X25519]].map(|groups| {
        let config = ServerConfig::clone(&server_config(&pair, None, &["http/1.1"]));
        let provider = CryptoProvider { kx_groups: groups.to_vec(), ..CryptoProvider::clone(config.crypto_provider()) };
        let builder = ServerConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions();
        let config = builder.unwrap().with_no_client_auth().with_cert_resolver(config.cert_resolver);
        let (config, agreed) = (Arc::new(config), agreed.clone());
        let wrap = move |mut tcp: TcpStream| {
            let mut session = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
            while session.is_handshaking() {
                session.complete_io(&mut tcp)?;
            }
            let group = session.negotiated_key_exchange_group().map(|group| group.name());
            agreed.lock().unwrap().push((group.unwrap(), session.handshake_kind().unwrap()));
            Ok(Box::new(Secured { stream: StreamOwned::new(session, tcp), polite: true }) as Box<dyn Duplex>)
        };
        Upstream::wrapped(wrap, echo)
    });
    let tls = "tls = { ca = \"ca.pem\" }";
    let upstreams = [("new", &*https(&servers[0]), tls), ("old", &*https(&servers[1]), tls)];
    let gateway = gateway(&[], &[("ca.pem", &authority.pem())], &upstreams);
    for target in ["/new", "/old"] {
        assert_eq!(gateway.client().fetch(&get(target, ""), "").text(), target);
    }
    let groups = [NamedGroup::X25519MLKEM768, NamedGroup::X25519];
    assert_eq!(*agreed.lock().unwrap(), groups.map(|group| (group, HandshakeKind::Full)));
}

#[test]
fn bodies_go_both_ways_and_the_connection_is_kept() {
    let authority = Ca::new("one");
    let upstream = server(&authority.issue(&["localhost", "127.0.0.1"], "server"));
    let tls = "tls = { ca = \"ca.pem\" }";
    let upstreams = [("name", &*named(&upstream), tls), ("address", &*https(&upstream), tls)];
    let gateway = gateway(&[], &[("ca.pem", &authority.pem())], &upstreams);
    let mut client = gateway.client();
    for (name, connections) in [("name", 1), ("address", 2)] {
        let body = "0123456789abcdef".repeat(64 * 1024);
        for _ in 0..2 {
            let target = format!("/{name}");
            assert_eq!(client.fetch(&get(&target, ""), "").text(), target);
            let response = client.fetch(&post(&target, body.len() as u64, ""), &body);
            assert_eq!((response.status(), response.text() == body), (200, true));
        }
        assert_eq!(upstream.connections(), connections);
        gateway.assert_metric("upstream_requests_total", &[("upstream", name), ("outcome", "ok")], 4.0);
    }
}

#[test]
fn the_certificate_must_contain_the_looked_up_name() {
    let authority = Ca::new("one");
    let upstream = server(&authority.issue(&["app.test"], "server"));
    let dns = DnsServer::start(Reply::Addresses(vec![upstream.addr.ip()], 60));
    let gateway = Gateway::launch(&[], |dir| {
        std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
        let routes = ["app", "other"].map(|name| {
            let port = upstream.addr.port();
            format!(
                "[[route]]\npath = \"/{name}\"\nupstream = \"{name}\"\nrewrite = {{ upstream_host = true }}\n\
                 [upstream.{name}]\nservers = [\"https://{name}.test:{port}\"]\ntls = {{ ca = \"ca.pem\" }}\n"
            )
        });
        let config = crate::support::gateway::config(&dns.line(), &routes.concat());
        std::fs::write(dir.join("sluicegate.toml"), config).unwrap();
        vec!["run".to_owned(), "--config".to_owned(), dir.join("sluicegate.toml").display().to_string()]
    });
    assert_eq!(gateway.get("/app").text(), "/app");
    let host = format!("app.test:{}", upstream.addr.port());
    assert_eq!(upstream.request().get("host"), Some(host.as_str()));
    assert_eq!(gateway.get("/other").status(), 502);
    gateway.assert_metric("upstream_requests_total", &[("upstream", "other"), ("outcome", "tls_error")], 1.0);
}

#[test]
fn an_untrusted_server_gets_no_requests() {
    let (authority, other) = (Ca::new("one"), Ca::new("other"));
    let good = server(&authority.issue(&["127.0.0.1"], "server"));
    let name = server(&authority.issue(&["app.internal"], "server"));
    let expired =
        server(&authority.issue_with(&["127.0.0.1"], "server", |params| params.not_after = date_time_ymd(2020, 1, 1)));
    let plain = Upstream::start(|peer| peer.send("HTTP/1.1 400 Bad Request\r\n\r\n"));
    let closing = Upstream::start(|_| Ok(()));
    let ca = "tls = { ca = \"ca.pem\" }";
    let upstreams = [
        ("good", https(&good), ca),
        ("name", https(&name), ca),
        ("expired", https(&expired), ca),
        ("issuer", https(&good), "tls = { ca = \"other.pem\" }"),
        ("plain", https(&plain), ca),
        ("closing", https(&closing), ca),
        ("system", https(&good), ""),
    ];
    let files = [("ca.pem", &*authority.pem()), ("other.pem", &*other.pem())];
    let gateway = gateway(&[], &files, &upstreams.each_ref().map(|(name, url, rest)| (*name, &**url, *rest)));
    assert_eq!(gateway.get("/good").status(), 200);
    for (name, reason) in [
        ("name", "certificate not valid for name"),
        ("expired", "certificate expired"),
        ("issuer", "UnknownIssuer"),
        ("plain", "corrupt message"),
        ("closing", ""),
        ("system", "UnknownIssuer"),
    ] {
        let response = gateway.get(&format!("/{name}"));
        assert_eq!(response.status(), 502, "{name}");
        assert_eq!(response.json()["detail"], "the TLS handshake with the upstream server failed", "{name}");
        gateway.assert_metric("upstream_requests_total", &[("upstream", name), ("outcome", "tls_error")], 1.0);
        let log = gateway.log();
        assert!(log.lines().any(|line| line.contains("error=tls_error") && line.contains(reason)), "{name}: {log}");
    }
    assert!(name.requests().is_empty() && expired.requests().is_empty());
}

#[test]
fn the_name_may_be_another_and_need_not_be_verified() {
    let authority = Ca::new("one");
    let upstream = server(&authority.issue(&["app.internal"], "server"));
    let upstreams = [
        ("named", &*https(&upstream), "tls = { ca = \"ca.pem\", server_name = \"app.internal\" }"),
        ("open", &*https(&upstream), "tls = { verify = false }"),
    ];
    let gateway = gateway(&[], &[("ca.pem", &authority.pem())], &upstreams);
    for target in ["/named", "/open"] {
        assert_eq!(gateway.get(target).text(), target);
    }
    assert_eq!(upstream.connections(), 2, "connections are for equal settings only");
    let warnings: Vec<String> =
        gateway.log().lines().filter(|line| line.contains("not verified")).map(str::to_owned).collect();
    assert!(matches!(&*warnings, [only] if only.contains("WARN")), "{warnings:?}");
}

#[test]
fn the_authorities_of_the_system_are_trusted() {
    let authority = Ca::new("system");
    let dir = tempfile::tempdir().unwrap();
    let roots = dir.path().join("roots.pem");
    std::fs::write(&roots, authority.pem()).unwrap();
    let upstream = server(&authority.issue(&["127.0.0.1"], "server"));
    let env = [("SSL_CERT_FILE", roots.to_str().unwrap())];
    let gateway = gateway(&env, &[], &[("app", &https(&upstream), "")]);
    assert_eq!(gateway.get("/app").text(), "/app");
}

#[test]
fn a_client_certificate_is_presented_on_request() {
    let authority = Ca::new("one");
    let config = server_config(&authority.issue(&["127.0.0.1"], "server"), Some(&authority), &[]);
    let upstream = secured(config, true, echo);
    let own = authority.issue(&["gateway"], "server");
    let files = [("ca.pem", &*authority.pem()), ("own.pem", &own.cert), ("own.key", &own.key)];
    let upstreams = [
        ("with", &*https(&upstream), "tls = { ca = \"ca.pem\", cert = \"own.pem\", key = \"own.key\" }"),
        ("without", &*https(&upstream), "tls = { ca = \"ca.pem\" }"),
    ];
    let gateway = gateway(&[], &files, &upstreams);
    assert_eq!(gateway.get("/with").text(), "/with");
    assert_eq!(gateway.get("/without").status(), 502);
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn a_response_that_may_have_been_cut_is_not_passed_on_as_whole() {
    let authority = Ca::new("one");
    let config = server_config(&authority.issue(&["127.0.0.1"], "server"), None, &[]);
    let close = |peer: &mut Peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\n\r\nall of it")
    };
    let (polite, rude) = (secured(config.clone(), true, close), secured(config, false, close));
    let ca = "tls = { ca = \"ca.pem\" }";
    let upstreams = [("polite", &*https(&polite), ca), ("rude", &*https(&rude), ca)];
    let gateway = gateway(&[], &[("ca.pem", &authority.pem())], &upstreams);
    assert_eq!(gateway.get("/polite").text(), "all of it");
    let mut client = gateway.client();
    client.send(get("/rude", ""));
    assert!(client.try_read_response("GET").is_err());
}

#[test]
fn a_server_that_closes_between_requests_costs_none() {
    let authority = Ca::new("one");
    let one_each = |peer: &mut Peer| {
        peer.request()?;
        peer.send(ok("one"))
    };
    let config = server_config(&authority.issue(&["127.0.0.1"], "server"), None, &[]);
    let servers = [true, false].map(|polite| secured(config.clone(), polite, one_each));
    let ca = "tls = { ca = \"ca.pem\" }";
    let upstreams = [("polite", &*https(&servers[0]), ca), ("rude", &*https(&servers[1]), ca)];
    let gateway = gateway(&[], &[("ca.pem", &authority.pem())], &upstreams);
    let mut client = gateway.client();
    for (target, server) in ["/polite", "/rude"].iter().zip(&servers) {
        for count in 1..=3 {
            assert_eq!(client.fetch(&post(target, 1, ""), "x").status(), 200, "{target}");
            wait_until("the server has closed", || server.ended() == count);
        }
    }
}

#[test]
fn a_handshake_that_never_ends_is_over_at_the_connect_timeout() {
    let upstream = Upstream::silent();
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nconnect_timeout = \"200ms\"\n",
        https(&upstream)
    ));
    let watch = Stopwatch::start();
    let response = gateway.get("/");
    watch.assert_ms(180..2000);
    assert_eq!(
        (response.status(), &response.json()["detail"]),
        (502, &"no upstream server accepted a connection in time".into())
    );
}

#[test]
fn pem_files_are_reloaded_and_a_broken_one_changes_nothing() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let (before, after) = (server(&old.issue(&["127.0.0.1"], "server")), server(&new.issue(&["127.0.0.1"], "server")));
    let ca = "tls = { ca = \"ca.pem\" }\nmax_idle = 0";
    let upstreams = [("before", &*https(&before), ca), ("after", &*https(&after), ca)];
    let gateway = gateway(&[], &[("ca.pem", &old.pem())], &upstreams);
    let statuses = || ["/before", "/after"].map(|target| gateway.get(target).status());
    assert_eq!(statuses(), [200, 502]);
    let write = |text: &str| write_atomically(&gateway.dir.path().join("ca.pem"), text);
    write("nothing");
    wait_until("the broken file was read", || gateway.metric("config_last_reload_successful", &[]) == Some(0.0));
    assert_eq!(statuses(), [200, 502]);
    write(&new.pem());
    wait_until("the new authority is trusted", || statuses() == [502, 200]);
}

/// Runs `openssl s_server` with a self-signed certificate of these arguments of `openssl req`, and returns it with its
/// port. Without extensions (`is_v1`), the certificate has version 1.
fn openssl_server(dir: &Path, name: &str, arguments: &[&str], is_v1: bool) -> (Child, u16) {
    let file = |ending: &str| dir.join(format!("{name}.{ending}")).display().to_string();
    let (cert, key, request) = (file("pem"), file("key"), file("csr"));
    let files = ["-nodes", "-keyout", &key, "-subj", "/CN=app.test"];
    if is_v1 {
        app::run("openssl", "openssl", &[&["req", "-out", &request], arguments, &files].concat());
        app::run("openssl", "openssl", &["x509", "-req", "-in", &request, "-signkey", &key, "-out", &cert]);
    } else {
        app::run("openssl", "openssl", &[&["req", "-x509", "-out", &cert], arguments, &files].concat());
    }
    let port = ReservedPort::new().port();
    let accept = format!("127.0.0.1:{port}");
    let server = Command::new("openssl")
        .args(["s_server", "-quiet", "-www", "-accept", &accept, "-cert", &cert, "-key", &key])
        .args(["-cipher", "DEFAULT:@SECLEVEL=0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it listens", || TcpStream::connect(&accept).is_ok());
    (server, port)
}

/// Certificates as operators make them with one command.
#[test]
fn self_signed_certificates_can_be_trusted_themselves_or_not_verified() {
    let dir = tempfile::tempdir().unwrap();
    let made: [(&str, &[&str], bool); 5] = [
        // An authority (CA:TRUE), with an alternative name and without.
        ("named", &["-newkey", "rsa:2048", "-addext", "subjectAltName=DNS:app.test"], true),
        ("common", &["-newkey", "rsa:2048"], true),
        ("v1", &["-newkey", "rsa:2048"], true),
        ("pss", &["-newkey", "rsa-pss", "-pkeyopt", "rsa_keygen_bits:2048"], true),
        // A key that the library does not verify.
        ("short", &["-newkey", "rsa:1024"], false),
    ];
    let mut servers = Vec::new();
    let mut upstreams = Vec::new();
    for (name, arguments, can_be_trusted) in &made {
        let (server, port) = openssl_server(dir.path(), name, arguments, *name == "v1");
        servers.push(server);
        let ca = dir.path().join(format!("{name}.pem")).display().to_string();
        let other = dir.path().join("named.pem").display().to_string();
        for (kind, tls, accepted) in [
            ("any", "verify = false".to_owned(), true),
            ("own", format!("server_name = \"app.test\", ca = \"{ca}\""), *can_be_trusted),
            ("name", format!("server_name = \"other.test\", ca = \"{ca}\""), false),
            ("other", format!("server_name = \"app.test\", ca = \"{other}\""), *name == "named"),
        ] {
            upstreams.push((
                format!("{name}-{kind}"),
                format!("https://127.0.0.1:{port}"),
                format!("tls = {{ {tls} }}"),
                accepted,
            ));
        }
    }
    let sections: Vec<(&str, &str, &str)> =
        upstreams.iter().map(|(name, url, tls, _)| (&**name, &**url, &**tls)).collect();
    let gateway = gateway(&[], &[], &sections);
    for (name, _, _, accepted) in &upstreams {
        let status = gateway.client().fetch(&get(&format!("/{name}"), ""), "").status();
        assert_eq!(status, if *accepted { 200 } else { 502 }, "{name}: {}", gateway.log());
    }
    assert!(gateway.log().contains("certificate of an authority (CA:TRUE), and `ca` does not list it"));
    servers.iter_mut().for_each(|server| server.kill().unwrap());
}
