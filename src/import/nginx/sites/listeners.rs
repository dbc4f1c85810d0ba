//! Translates the `listen` directives of all servers to the listeners of the gateway.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::import::error::Result;
use crate::import::model::ImportedConfig;
use crate::import::nginx::scope::Scope;
use crate::import::syntax::Directive;
use crate::import::text::format_list;
use crate::text::quote_literal;

/// The settings that the servers of one address require.
#[derive(Default)]
struct ListenBlock {
    tls: bool,
    proxy_protocol: bool,
    certificates: Vec<(String, String)>,
    /// `client_ca`, `client_auth` and `min_version`.
    options: Vec<String>,
    /// The HTTPS port that a redirecting server names.
    redirects_to: Option<u16>,
    serves: bool,
}

/// The listeners by address.
#[derive(Default)]
pub struct ListenBlocks {
    listeners: BTreeMap<String, ListenBlock>,
}

/// A parsed `listen`.
#[derive(Clone, Debug)]
pub struct Listen {
    pub address: String,
    pub is_default: bool,
    pub tls: bool,
    proxy_protocol: bool,
}

/// The check of client certificates that a server requires.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum CertificateCheck {
    #[default]
    None,
    /// The client may send a certificate of this CA.
    Optional(String),
    /// The client must send a certificate of this CA.
    Required(String),
    /// The client must send a certificate, and the gateway cannot check it.
    Unavailable,
}

/// Reads the check of client certificates that a server requires, from `ssl_verify_client` and the CA.
pub fn read_check(scope: &Scope) -> CertificateCheck {
    let Some(verify) = scope.get("ssl_verify_client") else { return CertificateCheck::None };
    let ca = scope.get("ssl_client_certificate").and_then(Directive::find_file);
    match (verify.arg(0), ca) {
        ("optional", Some(ca)) => CertificateCheck::Optional(ca),
        ("off" | "optional" | "optional_no_ca", _) => CertificateCheck::None,
        ("on", Some(ca)) => CertificateCheck::Required(ca),
        _ => CertificateCheck::Unavailable,
    }
}

/// Returns the address under which listeners of both families are the same: `0.0.0.0:80` and `[::]:80`.
pub fn join_family(address: &str) -> String {
    match address.strip_prefix("0.0.0.0:") {
        Some(port) => format!("[::]:{port}"),
        None => address.to_owned(),
    }
}

/// Reads the `listen` directives of a server. Without any, the server listens on port 80.
pub fn read_listens(server: &Directive, out: &mut ImportedConfig) -> Result<Vec<Listen>> {
    let mut listens = Vec::new();
    let mut any = false;
    for directive in server.inner().iter().filter(|directive| directive.name == "listen") {
        any = true;
        let has = |flag: &str| directive.args.iter().skip(1).any(|arg| arg == flag);
        match parse_address(directive.arg(0)) {
            Some(_) if has("quic") => {
                out.remarks.add(directive, "HTTP/3: write `http3 = true` of [[listener]]");
            }
            Some(address) => listens.push(Listen {
                address,
                is_default: has("default_server") || has("default"),
                tls: has("ssl"),
                proxy_protocol: has("proxy_protocol"),
            }),
            None => {
                out.remarks.add(directive, "not an address and a port");
            }
        }
    }
    if !any {
        listens.push(Listen { address: "0.0.0.0:80".to_owned(), is_default: false, tls: false, proxy_protocol: false });
    }
    Ok(listens)
}

fn parse_address(text: &str) -> Option<String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return path.starts_with('/').then(|| text.to_owned());
    }
    if let Ok(port) = text.parse::<u16>() {
        return Some(format!("0.0.0.0:{port}"));
    }
    let text = text.replacen("*:", "0.0.0.0:", 1).replacen("localhost", "127.0.0.1", 1);
    if let Ok(address) = text.parse::<std::net::SocketAddr>() {
        return Some(address.to_string());
    }
    let ip: std::net::IpAddr = text.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    Some(std::net::SocketAddr::new(ip, 80).to_string())
}

/// Returns the wildcard addresses with the same port, which accept connections to this address, too.
fn wildcards_of(address: &str) -> Vec<String> {
    match address.parse::<SocketAddr>() {
        Ok(socket) if !socket.ip().is_unspecified() => {
            let four = socket.is_ipv4().then(|| format!("0.0.0.0:{}", socket.port()));
            std::iter::once(format!("[::]:{}", socket.port())).chain(four).collect()
        }
        _ => Vec::new(),
    }
}

impl ListenBlocks {
    /// Adds the addresses of a server that only redirects to HTTPS on this port.
    pub fn add_redirect(&mut self, listens: &[Listen], port: u16) {
        for listen in listens {
            self.listeners.entry(listen.address.clone()).or_default().redirects_to.get_or_insert(port);
        }
    }

    /// Adds the addresses of a server that serves requests.
    pub fn add_server(
        &mut self,
        listens: &[Listen],
        scope: &Scope,
        checks: &HashMap<String, CertificateCheck>,
        out: &mut ImportedConfig,
    ) {
        for listen in listens {
            let listener = self.listeners.entry(listen.address.clone()).or_default();
            listener.serves = true;
            listener.proxy_protocol |= listen.proxy_protocol;
            if listen.tls {
                listener.tls = true;
                let check = checks.get(&join_family(&listen.address)).cloned().unwrap_or_default();
                listener.add_tls(scope, &check, out);
            }
        }
    }

    /// Joins `0.0.0.0` and `[::]` with the same port. A listener on `[::]` accepts IPv4, too, so the other could not
    /// bind.
    fn join_families(&mut self) {
        let both: Vec<String> =
            self.listeners.keys().filter(|address| address.starts_with("0.0.0.0:")).cloned().collect();
        for address in both {
            let six = address.replacen("0.0.0.0", "[::]", 1);
            if self.listeners.contains_key(&six)
                && let Some(four) = self.listeners.remove(&address)
                && let Some(six) = self.listeners.get_mut(&six)
            {
                six.tls |= four.tls;
                six.proxy_protocol |= four.proxy_protocol;
                six.serves |= four.serves;
                six.redirects_to = six.redirects_to.or(four.redirects_to);
                six.certificates.extend(four.certificates);
                six.certificates.dedup();
                if six.options.is_empty() {
                    six.options = four.options;
                }
            }
        }
    }

    /// Leaves out addresses for which a listener on all addresses has the same port, because both cannot bind.
    fn leave_out_covered(&mut self, out: &mut ImportedConfig) {
        let wildcard_of =
            |address: &str| wildcards_of(address).into_iter().find(|wildcard| self.listeners.contains_key(wildcard));
        let covered: Vec<(String, String)> =
            self.listeners.keys().filter_map(|address| Some((address.clone(), wildcard_of(address)?))).collect();
        for (address, wildcard) in covered {
            let lost = self.listeners.remove(&address);
            let mut text = format!("{address}: left out, because {wildcard} accepts its connections, too");
            if lost.is_some_and(|listener| listener.redirects_to.is_some() && !listener.serves)
                && self.is_serving(&wildcard)
            {
                text.push_str("; its redirect to HTTPS is lost");
            }
            out.remarks.add_text(text);
        }
    }

    /// Returns whether listeners that serve requests accept the connections to all these addresses.
    pub fn covers(&self, listens: &[Listen]) -> bool {
        listens.iter().all(|listen| wildcards_of(&listen.address).iter().any(|wildcard| self.is_serving(wildcard)))
    }

    fn is_serving(&self, address: &str) -> bool {
        self.listeners.get(address).is_some_and(|listener| listener.serves)
    }

    /// Writes the listeners. The first address that only redirects becomes `redirect_http`.
    pub fn write_listeners(mut self, out: &mut ImportedConfig) {
        self.join_families();
        self.leave_out_covered(out);
        let trusts_proxies = out.server.iter().any(|line| line.starts_with("trusted_proxies"));
        let mut plain = Vec::new();
        let mut redirect: Option<(String, u16)> = None;
        for (address, mut listener) in self.listeners {
            if listener.proxy_protocol && !trusts_proxies {
                listener.proxy_protocol = false;
                let text = format!(
                    "{address}: `proxy_protocol` is left out, as no proxy is trusted; write the proxies to trusted_proxies, and \
                     proxy_protocol = true to this listener"
                );
                out.remarks.add_text(text);
            }
            if let (Some(port), false) = (listener.redirects_to, listener.serves) {
                match &redirect {
                    None => redirect = Some((address, port)),
                    Some((first, _)) => {
                        let text = format!(
                            "{address}: only one address can redirect to HTTPS, and {first} does, so this one is left out"
                        );
                        out.remarks.add_text(text);
                    }
                }
                continue;
            }
            if !listener.tls && !listener.proxy_protocol {
                plain.push(address);
                continue;
            }
            let mut lines = vec![format!("address = {}", quote_literal(&address))];
            if listener.proxy_protocol {
                lines.push("proxy_protocol = true".to_owned());
            }
            if listener.tls {
                let pair = |(cert, key): &(String, String)| {
                    format!("{{ cert = {}, key = {} }}", quote_literal(cert), quote_literal(key))
                };
                let pairs: Vec<String> = listener.certificates.iter().map(pair).collect();
                if pairs.is_empty() {
                    out.remarks
                        .add_text(format!("{address}: the TLS settings are incomplete, so this listener is left out"));
                    continue;
                }
                let mut parts = vec![format!("certificates = [{}]", pairs.join(", "))];
                parts.extend(listener.options);
                lines.push(format!("tls = {{ {} }}", parts.join(", ")));
            }
            out.listeners.push(lines);
        }
        if !plain.is_empty() {
            out.server.insert(0, format!("listen = {}", format_list(&plain)));
        } else if out.listeners.is_empty() {
            out.server.insert(0, "listen = \"127.0.0.1:8080\"".to_owned());
        }
        if let Some((address, port)) = redirect {
            out.server.push(format!("redirect_http = {{ listen = {}, https_port = {port} }}", quote_literal(&address)));
        }
    }
}

impl ListenBlock {
    fn add_tls(&mut self, scope: &Scope, check: &CertificateCheck, out: &mut ImportedConfig) {
        let pairs = scope.list("ssl_certificate").iter().zip(scope.list("ssl_certificate_key"));
        for (cert, key) in pairs {
            let (Some(chain), Some(secret)) = (cert.find_file(), key.find_file()) else {
                let missing = if cert.find_file().is_none() { cert } else { key };
                out.remarks.add(missing, "the import cannot read this file, so the certificate is left out");
                continue;
            };
            if !self.certificates.contains(&(chain.clone(), secret.clone())) {
                self.certificates.push((chain, secret));
            }
        }
        let mut option = |line: String| {
            if !self.options.iter().any(|own| own.split(' ').next() == line.split(' ').next()) {
                self.options.push(line);
            }
        };
        if let Some(directive) = scope.get("ssl_protocols") {
            let oldest = if directive.args.iter().any(|arg| arg != "TLSv1.3") { "1.2" } else { "1.3" };
            option(format!("min_version = \"{oldest}\""));
            if directive.args.iter().any(|arg| !matches!(arg.as_str(), "TLSv1.2" | "TLSv1.3")) {
                out.remarks.add(directive, "only TLS 1.2 and 1.3 are available");
            }
        }
        let (ca, auth) = match check {
            CertificateCheck::Required(ca) => (ca, "required"),
            CertificateCheck::Optional(ca) => (ca, "optional"),
            CertificateCheck::None | CertificateCheck::Unavailable => {
                let asks = scope.get("ssl_verify_client").filter(|verify| verify.arg(0).starts_with("optional"));
                if let Some(verify) = asks {
                    out.remarks.add(
                        verify,
                        "this listener does not ask for certificates: its servers differ, or the CA is not available",
                    );
                }
                return;
            }
        };
        // A written depth has a comment of its own.
        if let Some(verify) = scope.get("ssl_verify_client").filter(|_| scope.get("ssl_verify_depth").is_none()) {
            let why = "nginx accepts chains with one intermediate certificate at most; the gateway accepts longer ones of this CA";
            out.remarks.add(verify, why);
        }
        option(format!("client_ca = {}", quote_literal(ca)));
        option(format!("client_auth = \"{auth}\""));
    }
}
