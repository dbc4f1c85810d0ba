//! How the servers of an upstream are reached: `protocol`, `tls`, `max_headers` and `max_header_bytes` of
//! `[upstream.NAME]`. Called by `upstreams`.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use rustls::pki_types::ServerName;

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::Section;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::upstream;
use crate::config::values::{TextFault, invalid_text};
use crate::tls::trust::{Trust, TrustedRoots};
use crate::upstream::tls::{ClientIdentity, ClientIdentityError, UpstreamTls};
use crate::upstream::{HeadBounds, WireProtocol};

const PEM_HELP: &str = "give a file in PEM; a certificate and its key go together";

/// The system's certificate authorities, read when the first upstream needs them.
#[derive(Default)]
pub struct SystemRoots(OnceCell<TrustedRoots>);

/// Settings that the URLs of servers do not contain.
pub struct TransportOptions<'a> {
    roots: &'a SystemRoots,
    pub protocol: WireProtocol,
    pub head_bounds: HeadBounds,
    tls: OnceCell<Arc<UpstreamTls>>,
    used: Cell<bool>,
}

impl SystemRoots {
    fn load_roots(&self) -> TrustedRoots {
        self.0.get_or_init(|| TrustedRoots::from_system(rustls_native_certs::load_native_certs().certs)).clone()
    }
}

impl<'a> TransportOptions<'a> {
    pub fn for_urls(roots: &'a SystemRoots, head_bounds: HeadBounds) -> TransportOptions<'a> {
        let (protocol, tls) = (WireProtocol::Auto, OnceCell::new());
        TransportOptions { roots, protocol, head_bounds, tls, used: Cell::new(false) }
    }

    /// Reads them from an `[upstream.NAME]` section. `defaults`: the settings of servers that are written as URLs.
    pub fn from_section(section: &Section, defaults: &TransportOptions<'a>) -> TransportOptions<'a> {
        let roots = defaults.roots;
        let head_bounds = HeadBounds {
            headers: section.get(&upstream::MAX_HEADERS).unwrap_or(defaults.head_bounds.headers),
            bytes: section.get(&upstream::MAX_HEADER_BYTES).unwrap_or(defaults.head_bounds.bytes),
            keeps_case: defaults.head_bounds.keeps_case,
        };
        let protocol = section.get(&upstream::PROTOCOL);
        let transport = TransportOptions { protocol, ..TransportOptions::for_urls(roots, head_bounds) };
        if let Some(tls) = section.read_section(&upstream::TLS) {
            if let Some(tls) = compile_own_tls(&tls, roots, protocol) {
                let _ = transport.tls.set(Arc::new(tls));
            }
            tls.report_unread_keys();
        }
        transport
    }

    /// Returns the TLS settings of an `https` server.
    pub fn tls_settings(&self) -> Result<Arc<UpstreamTls>, TextFault> {
        self.used.set(true);
        if let Some(tls) = self.tls.get() {
            return Ok(tls.clone());
        }
        match UpstreamTls::new(Trust::Roots(self.roots.load_roots()), None, None, self.protocol) {
            Ok(tls) => Ok(self.tls.get_or_init(|| Arc::new(tls)).clone()),
            Err(what) => invalid_text(what, ""),
        }
    }

    /// Reports settings that no server uses.
    pub fn report_unused(&self, section: &Section) {
        if let Some(node) = section.node(&upstream::TLS).filter(|_| !self.used.get()) {
            section.report_fault::<()>(
                upstream::TLS.name,
                node,
                "no server uses TLS",
                "write https://HOST, or remove this",
            );
        }
    }
}

fn compile_own_tls(section: &Section, roots: &SystemRoots, protocol: WireProtocol) -> Option<UpstreamTls> {
    let verify = section.get(&upstream::tls::VERIFY);
    if let Some(node) = section.node(&upstream::tls::VERIFY).filter(|_| !verify) {
        let what = "the servers of this upstream are not verified, so anybody on the way may pose as one";
        section.sources.add_warning(
            DiagnosticCode::UnverifiedServers,
            Diagnostic::new(node.place, what)
                .with_help("trust their authority, or their own certificate: ca = \"ca.pem\""),
        );
    }
    let server_name = section.parse_string(&upstream::tls::SERVER_NAME, parse_server_name).flatten();
    let [ca, cert, key] =
        [&upstream::tls::CA, &upstream::tls::CERT, &upstream::tls::KEY].map(|option| read_tls_file(section, option));
    let mistake = |option: &ConfigOption, what: &str| {
        section.node(option).and_then(|node| section.report_fault(option.name, node, what, PEM_HELP))
    };
    let trust = match ca? {
        Some(_) if !verify => {
            let what = "it is not used while `verify` is false";
            return section.report_fault(
                upstream::tls::CA.name,
                section.node(&upstream::tls::CA)?,
                what,
                "keep one of the two",
            );
        }
        _ if !verify => Trust::Anyone,
        None => Trust::Roots(roots.load_roots()),
        Some(pem) => match TrustedRoots::from_pem(&pem) {
            Ok(roots) => Trust::Roots(roots),
            Err(what) => return mistake(&upstream::tls::CA, &what),
        },
    };
    let pair = match (cert?, key?) {
        (Some(cert), Some(key)) => match ClientIdentity::from_pem(&cert, &key) {
            Ok(pair) => Some(pair),
            Err(ClientIdentityError::Cert(what)) => return mistake(&upstream::tls::CERT, &what),
            Err(ClientIdentityError::Key(what)) => return mistake(&upstream::tls::KEY, &what),
        },
        (Some(_), None) => return mistake(&upstream::tls::CERT, "it has no `key`"),
        (None, Some(_)) => return mistake(&upstream::tls::KEY, "it has no `cert`"),
        (None, None) => None,
    };
    UpstreamTls::new(trust, pair, server_name, protocol)
        .or_else(|what| mistake(&upstream::tls::KEY, &what).ok_or(()))
        .ok()
}

/// Reads and watches a file if the option names one. The outer `None` is a mistake.
fn read_tls_file(section: &Section, option: &ConfigOption) -> Option<Option<String>> {
    match section.node(option) {
        None => Some(None),
        Some(_) if section.read_string(option)?.is_empty() => Some(None),
        Some(_) => section.read_pem(option).map(Some),
    }
}

fn parse_server_name(text: &str) -> Result<Option<ServerName<'static>>, TextFault> {
    match ServerName::try_from(text.to_owned()) {
        Ok(name) => Ok(Some(name)),
        Err(_) if text.is_empty() => Ok(None),
        Err(_) => invalid_text(
            format!("`{text}` is not a name that a certificate can contain"),
            "write a host name or an address",
        ),
    }
}
