//! How the servers of an upstream are reached: `protocol` and `tls` of `[upstream.NAME]`. Called by `upstream`.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use rustls::pki_types::ServerName;

use crate::config::reader::Section;
use crate::config::report::Diagnostic;
use crate::config::schema;
use crate::config::values::{Fault, fault};
use crate::upstream::WireProtocol;
use crate::upstream::tls::{ClientPair, PairFault, Trust, TrustedRoots, UpstreamTls};

const PEM_HELP: &str = "give a file in PEM; a certificate and its key go together";

/// The certificate authorities of this machine, read when the first upstream needs them.
#[derive(Default)]
pub struct SystemRoots(OnceCell<TrustedRoots>);

/// What the URLs of servers do not say.
pub struct Reach<'a> {
    roots: &'a SystemRoots,
    pub protocol: WireProtocol,
    tls: OnceCell<Arc<UpstreamTls>>,
    asked: Cell<bool>,
}

impl SystemRoots {
    fn get(&self) -> TrustedRoots {
        self.0.get_or_init(|| TrustedRoots::of_system(&rustls_native_certs::load_native_certs().certs)).clone()
    }
}

impl<'a> Reach<'a> {
    pub fn plain(roots: &'a SystemRoots) -> Reach<'a> {
        Reach { roots, protocol: WireProtocol::Auto, tls: OnceCell::new(), asked: Cell::new(false) }
    }

    /// Of an `[upstream.NAME]`.
    pub fn read(section: &Section, roots: &'a SystemRoots) -> Reach<'a> {
        let words = [("auto", WireProtocol::Auto), ("http1", WireProtocol::Http1), ("http2", WireProtocol::Http2)];
        let protocol = section.choice("protocol", &words).unwrap_or_default();
        let reach = Reach { protocol, ..Reach::plain(roots) };
        if let Some(tls) = section.section("tls", &schema::UPSTREAM_TLS) {
            if let Some(tls) = own_tls(&tls, roots, protocol) {
                let _ = reach.tls.set(Arc::new(tls));
            }
            tls.finish();
        }
        reach
    }

    /// For an `https` server.
    pub fn tls(&self) -> Result<Arc<UpstreamTls>, Fault> {
        self.asked.set(true);
        if let Some(tls) = self.tls.get() {
            return Ok(tls.clone());
        }
        match UpstreamTls::new(Trust::Roots(self.roots.get()), None, None, self.protocol) {
            Ok(tls) => Ok(self.tls.get_or_init(|| Arc::new(tls)).clone()),
            Err(what) => fault(what, ""),
        }
    }

    /// Reports what no server uses.
    pub fn finish(&self, section: &Section) {
        if let Some(node) = section.node("tls").filter(|_| !self.asked.get()) {
            section.fault::<()>("tls", node, "no server is asked over TLS", "write https://HOST, or remove this");
        }
    }
}

fn own_tls(section: &Section, roots: &SystemRoots, protocol: WireProtocol) -> Option<UpstreamTls> {
    let verify = section.bool("verify").unwrap_or(true);
    if let Some(node) = section.node("verify").filter(|_| !verify) {
        let what = "the servers of this upstream are not verified, so anybody on the way may pose as one";
        section.sources.warn(Diagnostic::new(node.place, what).help("trust their own authority: ca = \"ca.pem\""));
    }
    let server_name = section.parse("server_name", server_name).flatten();
    let [ca, cert, key] = ["ca", "cert", "key"].map(|option| file(section, option));
    let mistake = |option: &'static str, what: &str| {
        section.node(option).and_then(|node| section.fault(option, node, what, PEM_HELP))
    };
    let trust = match ca? {
        Some(_) if !verify => {
            let what = "nothing is verified with it while `verify` is false";
            return section.fault("ca", section.node("ca")?, what, "keep one of the two");
        }
        _ if !verify => Trust::Anyone,
        None => Trust::Roots(roots.get()),
        Some(pem) => match TrustedRoots::of_pem(&pem) {
            Ok(roots) => Trust::Roots(roots),
            Err(what) => return mistake("ca", &what),
        },
    };
    let pair = match (cert?, key?) {
        (Some(cert), Some(key)) => match ClientPair::of_pem(&cert, &key) {
            Ok(pair) => Some(pair),
            Err(PairFault::Cert(what)) => return mistake("cert", &what),
            Err(PairFault::Key(what)) => return mistake("key", &what),
        },
        (Some(_), None) => return mistake("cert", "it has no `key`"),
        (None, Some(_)) => return mistake("key", "it has no `cert`"),
        (None, None) => None,
    };
    UpstreamTls::new(trust, pair, server_name, protocol).or_else(|what| mistake("key", &what).ok_or(())).ok()
}

/// The text of a file, which is watched, if one is named; `None` where that is a mistake.
fn file(section: &Section, option: &'static str) -> Option<Option<String>> {
    match section.node(option) {
        None => Some(None),
        Some(_) if section.string(option)?.is_empty() => Some(None),
        Some(_) => section.file(option).map(Some),
    }
}

fn server_name(text: &str) -> Result<Option<ServerName<'static>>, Fault> {
    match ServerName::try_from(text.to_owned()) {
        Ok(name) => Ok(Some(name)),
        Err(_) if text.is_empty() => Ok(None),
        Err(_) => {
            fault(format!("`{text}` is not a name that a certificate can hold"), "write a host name or an address")
        }
    }
}
