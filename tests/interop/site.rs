//! An Express application behind a gateway with TLS, and with plain HTTP on another port. A helper.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::support::app::App;
use crate::support::ca::Ca;
use crate::support::gateway::Gateway;
use crate::support::wait_until;

pub struct Site {
    pub gateway: Gateway,
    /// The digest of the key of its certificate.
    pub digest: String,
    _app: App,
}

impl Site {
    /// `rest` are further lines of the one route, and sections.
    pub fn start(rest: &str) -> Site {
        Site::start_with("", rest)
    }

    /// The same, with further lines of the listener for TLS.
    pub fn start_with(listener: &str, rest: &str) -> Site {
        let app = App::script("express.js");
        let (gateway, digest) = secured_with(listener, &route(&app.url(), rest));
        Site { gateway, digest, _app: app }
    }

    pub fn ca_file(&self) -> String {
        ca_file(&self.gateway)
    }

    /// Returns the URL of `path` over TLS, with a name in the certificate.
    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.gateway.addr.port())
    }

    /// Returns the address of the listener for plain HTTP.
    pub fn plain(&self) -> SocketAddr {
        self.gateway.listeners()[1]
    }
}

/// Starts a gateway with TLS for `a.test`, `localhost` and 127.0.0.1. `rest` is everything except its listeners,
/// `[server]` and `[admin]`.
pub fn secured(rest: &str) -> Gateway {
    secured_with("", rest).0
}

/// The same, with further lines of the listener for TLS. Also returns the digest of its key.
pub fn secured_with(listener: &str, rest: &str) -> (Gateway, String) {
    let ca = Ca::new("the tests' own authority");
    let pair = ca.issue(&["a.test", "localhost", "127.0.0.1"], "gateway");
    let gateway = Gateway::launch(&[], |dir| {
        pair.save(dir, "0");
        fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
        let config = dir.join("sluicegate.toml");
        let head = format!(
            "[server]\nworkers = 1\naccess_log = true\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\ntls = {{ certificates = [{{ cert = \"0.pem\", key = \"0.key\" }}] }}\n\
             {listener}[[listener]]\naddress = \"127.0.0.2:0\"\n"
        );
        fs::write(&config, format!("{head}{rest}")).unwrap();
        vec!["run".to_owned(), "--config".to_owned(), config.display().to_string()]
    });
    let is_open = || !listener.contains("http3") || gateway.log_lines(&["HTTP/3 is open"]) > 0;
    wait_until("HTTP/3 is open", is_open);
    (gateway, pair.key_digest())
}

/// The certificate of the authority of a `secured` gateway.
pub fn ca_file(gateway: &Gateway) -> String {
    gateway.dir.path().join("ca.pem").display().to_string()
}

/// One route to one server; `rest` are further lines of the route, and sections.
pub fn route(server: &str, rest: &str) -> String {
    let rest = format!("{rest}\n[upstream.app]\nservers = [\"{server}\"]\n");
    format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"app\"\n{rest}")
}

/// Returns the body of `/bytes/COUNT`.
pub fn pattern(count: usize) -> Vec<u8> {
    let block = (0..1_u32 << 14).flat_map(|word| word.wrapping_mul(4).wrapping_mul(2_654_435_761).to_be_bytes());
    block.collect::<Vec<u8>>().into_iter().cycle().take(count).collect()
}

/// Returns the SHA-256 digest of a file in hexadecimal.
pub fn sha256(file: &Path) -> String {
    Sha256::digest(fs::read(file).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}
