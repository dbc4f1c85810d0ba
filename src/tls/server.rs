//! What a listener needs for its handshakes, made from the contents of files. Equal contents are
//! equal settings.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig, version};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certs::{self, CertificateTerm, Certificates, NamedKey};
use super::challenge::ChallengeBoard;
use super::{Alpn, pem};

/// What the files say, PEM, and the options beside them.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The first answers for names that none of them has.
    pub certificates: Vec<PemPair>,
    /// Lower-case names with certificates that an ACME server issues.
    pub ordered: Vec<String>,
    pub client_ca: Option<String>,
    pub client_auth: ClientAuth,
    pub min_version: MinVersion,
    /// HTTP/2 is offered.
    pub http2: bool,
}

/// A chain, the owner's certificate first, and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct PemPair {
    pub cert: String,
    pub key: String,
}

/// What is asked of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    None,
    /// Who shows a certificate shows a valid one.
    Optional,
    Required,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinVersion {
    Tls12,
    Tls13,
}

/// The settings of one listener.
#[derive(Clone)]
pub struct ServerTls {
    files: ServerFiles,
    /// Those of `files.certificates`.
    own: Vec<NamedKey>,
    pub certificates: Arc<LiveCertificates>,
    /// With tickets and sessions of its own: none is good under other settings, or at another listener.
    pub config: Arc<ServerConfig>,
    /// For handshakes in which an ACME server looks for a proof.
    pub challenges: Option<Arc<ServerConfig>>,
}

/// The certificates that a listener has now: those of files, and those that have been issued so far.
#[derive(Debug)]
pub struct LiveCertificates(ArcSwap<Certificates>);

impl LiveCertificates {
    pub fn now(&self) -> Arc<Certificates> {
        self.0.load_full()
    }
}

impl ResolvesServerCert for LiveCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().resolve(hello)
    }
}

/// What an ACME server has issued, by name.
pub type Issued = BTreeMap<String, NamedKey>;

/// The file at fault, and what is wrong with it; says nothing of the contents. Certificates and keys by
/// their place in the list.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerTlsMistake {
    Cert(usize, String),
    Key(usize, String),
    ClientCa(String),
}

/// TLS 1.3 tickets for each full handshake: clients use each once.
const TICKETS: usize = 2;

impl ServerTls {
    /// With none of the ordered certificates yet. Proofs for an ACME server are on `board`.
    ///
    /// # Errors
    /// The first of the files that cannot be used.
    pub fn new(files: ServerFiles, board: Option<&Arc<ChallengeBoard>>) -> Result<ServerTls, ServerTlsMistake> {
        let keys = files.certificates.iter().enumerate().map(|(place, pair)| named_key(place, pair));
        let own = keys.collect::<Result<Vec<_>, _>>()?;
        let certificates = Arc::new(LiveCertificates(ArcSwap::from_pointee(Certificates::new(
            own.clone(),
            files.ordered.iter().cloned().collect(),
        ))));
        let versions: &[_] = match files.min_version {
            MinVersion::Tls12 => &[&version::TLS13, &version::TLS12],
            MinVersion::Tls13 => &[&version::TLS13],
        };
        let provider = Arc::new(ring::default_provider());
        let client_ca = |what: &dyn fmt::Display| ServerTlsMistake::ClientCa(what.to_string());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|error| client_ca(&error))?;
        let builder = match (&files.client_ca, files.client_auth) {
            (Some(text), ClientAuth::Optional | ClientAuth::Required) => {
                let mut roots = RootCertStore::empty();
                for certificate in pem::certificates(text).map_err(ServerTlsMistake::ClientCa)? {
                    roots.add(certificate).map_err(|error| client_ca(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match files.client_auth {
                    ClientAuth::Optional => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                builder.with_client_cert_verifier(verifier.build().map_err(|error| client_ca(&error))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(certificates.clone());
        config.alpn_protocols = Alpn::offered(files.http2);
        config.send_tls13_tickets = TICKETS;
        config.ticketer = ring::Ticketer::new().map_err(|error| ServerTlsMistake::Cert(0, error.to_string()))?;
        let challenges = board.map(|board| board.handshake()).transpose();
        let challenges = challenges.map_err(|error| ServerTlsMistake::Cert(0, error.to_string()))?;
        Ok(ServerTls { files, own, certificates, config: Arc::new(config), challenges })
    }

    /// Takes over `earlier` where nothing differs, so that its sessions can be resumed.
    pub fn keep(&mut self, earlier: &ServerTls) {
        if self == earlier {
            self.config = earlier.config.clone();
            self.certificates = earlier.certificates.clone();
        }
    }

    /// The names that are to have certificates of an ACME server.
    pub fn ordered(&self) -> &[String] {
        &self.files.ordered
    }

    /// Has new handshakes use `issued`, as far as it is for names of this listener.
    pub fn provide(&self, issued: &Issued) {
        let ordered = &self.files.ordered;
        let there = ordered.iter().filter_map(|name| issued.get(name).cloned());
        let keys = self.own.iter().cloned().chain(there).collect();
        let awaited: HashSet<String> = ordered.iter().filter(|name| !issued.contains_key(*name)).cloned().collect();
        self.certificates.0.store(Arc::new(Certificates::new(keys, awaited)));
    }
}

impl NamedKey {
    /// Of a text with a key and a chain, for `name`.
    ///
    /// # Errors
    /// Why it cannot be used, in words that say nothing of the contents.
    pub fn of_pem(text: &str, name: &str) -> Result<NamedKey, String> {
        let pair = PemPair { cert: text.to_owned(), key: text.to_owned() };
        match named_key(0, &pair) {
            Ok(key) if key.names.iter().any(|stated| stated == name) => Ok(key),
            Ok(_) => Err("its certificate is for another name".to_owned()),
            Err(
                ServerTlsMistake::Cert(_, what) | ServerTlsMistake::Key(_, what) | ServerTlsMistake::ClientCa(what),
            ) => Err(what),
        }
    }
}

fn named_key(place: usize, pair: &PemPair) -> Result<NamedKey, ServerTlsMistake> {
    let cert = |what: String| ServerTlsMistake::Cert(place, what);
    let key = |what: &str| ServerTlsMistake::Key(place, what.to_owned());
    let chain = pem::certificates(&pair.cert).map_err(cert)?;
    let (names, term) = match chain.first().map(|own| X509Certificate::from_der(own)) {
        Some(Ok((_, certificate))) => (certs::names(&certificate), CertificateTerm::of(&certificate)),
        _ => return Err(cert("its first certificate cannot be read".to_owned())),
    };
    let private = pem::private_key(&pair.key).map_err(|what| key(&what))?;
    let private = ring::sign::any_supported_type(&private)
        .map_err(|_| key("the private key is of a kind that is not supported: use ECDSA, RSA or Ed25519"))?;
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
            Ok(NamedKey { key: Arc::new(certified), names, term })
        }
        Err(Error::InconsistentKeys(_)) => Err(key("it is not the key of the certificate in `cert`")),
        Err(error) => Err(cert(format!("its first certificate cannot be used: {error}"))),
    }
}

impl PartialEq for ServerTls {
    fn eq(&self, other: &ServerTls) -> bool {
        self.files == other.files
    }
}

/// Nothing of the files.
impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerTls({} certificates)", self.files.certificates.len())
    }
}
