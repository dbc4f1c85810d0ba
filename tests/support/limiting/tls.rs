//! Redis over TLS, with certificates made for the test.

use sluicegate::limiting::store::redis_tls::TlsFiles;

use super::RedisServer;
use super::topology::Sentinel;
pub use crate::support::ca::{Ca, Pair};
use crate::support::ports::ReservedPort;

/// A server with a TLS port, and a plain port for the test itself.
pub struct TlsServer {
    pub server: RedisServer,
    pub port: u16,
    _port: ReservedPort,
    pub dir: tempfile::TempDir,
}

impl TlsServer {
    /// `more` are further arguments.
    pub fn start(pair: &Pair, ca: &Ca, more: &[&str]) -> TlsServer {
        let (dir, reserved) = (tempfile::tempdir().unwrap(), ReservedPort::new());
        let port = reserved.port();
        let path = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (cert, key, ca) = (path("cert", &pair.cert), path("key", &pair.key), path("ca", &ca.pem()));
        let tls = ["--tls-port", &port.to_string(), "--tls-cert-file", &cert, "--tls-key-file", &key];
        let server =
            RedisServer::start(&[&tls[..], &["--tls-ca-cert-file", &ca, "--tls-auth-clients", "yes"], more].concat());
        TlsServer { server, port, _port: reserved, dir }
    }

    /// A sentinel that calls the server `mine`. Both speak TLS only.
    pub fn sentinel(&self) -> Sentinel {
        let dir = self.dir.path().display();
        Sentinel::start(|port| {
            format!(
                "port 0\ntls-port {port}\ntls-replication yes\ntls-cert-file {dir}/cert\ntls-key-file {dir}/key\n\
                 tls-ca-cert-file {dir}/ca\nsentinel monitor mine 127.0.0.1 {} 1\n",
                self.port
            )
        })
    }

    pub fn url(&self, host: &str) -> String {
        format!("rediss://{host}:{}", self.port)
    }
}

pub fn files(ca: &Ca, client: Option<&Pair>) -> TlsFiles {
    let of = |part: fn(&Pair) -> &String| client.map(|pair| part(pair).clone());
    TlsFiles { ca: Some(ca.pem()), client_cert: of(|pair| &pair.cert), client_key: of(|pair| &pair.key) }
}
