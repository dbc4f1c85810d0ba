//! TLS settings of a listener, made from the contents of files. Equal contents make equal settings.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig, version};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::labels::labels;
use crate::tls::certs::{CertificateValidity, Certificates, NamedKey};
use crate::tls::challenge::ChallengeStore;
use crate::tls::tickets::ListenerTickets;
use crate::tls::{Alpn, InternalTls, certs, crypto_provider, pem};

/// Contents of the files of a listener, in PEM, and its options.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificates with keys. The first is shown for names that none of them has.
    pub certificates: Vec<PemPair>,
    /// Lower-case names for which an ACME server issues certificates.
    pub ordered: Vec<String>,
    /// Development certificates, which the local CA issues.
    pub internal: Option<InternalTls>,
    /// CAs that may sign certificates of clients.
    pub client_ca: Option<String>,
    pub client_auth: ClientAuth,
    pub min_version: MinVersion,
    /// True if HTTP/2 is offered (ALPN `h2`).
    pub http2: bool,
}

impl ServerFiles {
    /// Returns a digest of everything here and of the listener's address. Session tickets are valid for one digest.
    fn digest(&self, address: &str) -> [u8; 32] {
        let mut digest = Sha256::new();
        let mut add = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        let ServerFiles { certificates, ordered, internal, client_ca, client_auth, min_version, http2 } = self;
        // The library defines the format of sessions in tickets.
        add(b"rustls 0.23");
        add(address.as_bytes());
        add(format!("{} {} {internal:?} {client_auth:?} {min_version:?} {http2}", certificates.len(), ordered.len())
            .as_bytes());
        for part in certificates.iter().flat_map(|pair| [&pair.cert, &pair.key]).chain(ordered).chain(client_ca) {
            add(part.as_bytes());
        }
        digest.finalize().into()
    }
}

/// A certificate chain, the owner's certificate first, and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct PemPair {
    pub cert: String,
    pub key: String,
}

/// Requirement for clients to authenticate with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    None,
    /// A client may show a certificate, which must be valid then.
    Optional,
    Required,
}

labels! {
    /// The oldest version of TLS that clients may use.
    MinVersion:
    Tls12 = "1.2",
    Tls13 = "1.3",
}

/// TLS settings of one listener.
#[derive(Clone)]
pub struct ServerTls {
    files: ServerFiles,
    /// The parsed `files.certificates`.
    own: Vec<NamedKey>,
    /// Hosts of routes that the development certificate covers too. They may change without ending sessions.
    route_hosts: Vec<String>,
    pub certificates: Arc<LiveCertificates>,
    /// Settings of the TLS library. Its tickets and sessions are valid for these settings and this listener only.
    pub config: Arc<ServerConfig>,
    /// Settings for `tls-alpn-01` challenges of an ACME server.
    pub challenges: Option<Arc<ServerConfig>>,
}

/// The current certificates of a listener: those of files, and those that an ACME server or the local CA has issued so
/// far.
#[derive(Debug)]
pub struct LiveCertificates(ArcSwap<Certificates>);

impl LiveCertificates {
    /// Returns the certificates at this moment.
    pub fn current(&self) -> Arc<Certificates> {
        self.0.load_full()
    }
}

impl ResolvesServerCert for LiveCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().resolve(hello)
    }
}

/// A certificate in use.
pub struct ListedCertificate {
    /// The names of the certificate, or its subject if it has no names.
    pub names: Vec<String>,
    /// Expiry in seconds of Unix time.
    pub not_after_s: i64,
    pub source: CertificateSource,
}

labels! {
    /// Source of a certificate.
    CertificateSource:
    File = "file",
    Acme = "acme",
    /// The local CA of development certificates.
    Internal = "internal",
}

/// Certificates that an ACME server has issued, by name.
pub type IssuedCertificates = BTreeMap<String, NamedKey>;

/// The faulty file, and what is wrong with it, without parts of its contents. The number is the index of a certificate
/// or key in the list.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerTlsMistake {
    Cert(usize, String),
    Key(usize, String),
    ClientCa(String),
}

/// TLS 1.3 tickets that a client gets for each handshake, also for one that resumes a session. Most clients use each
/// ticket once, and open two connections at the same time.
const TICKETS: usize = 2;
/// The name of HTTP/3 in the handshake.
const HTTP_3: &[u8] = b"h3";

impl ServerTls {
    /// Makes the settings of the listener at `address`, with none of the ordered certificates yet.
    /// Responses to challenges come from `challenges`.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn new(
        address: &str,
        files: ServerFiles,
        challenges: Option<&Arc<ChallengeStore>>,
    ) -> Result<ServerTls, ServerTlsMistake> {
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
        let provider = crypto_provider();
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
        config.alpn_protocols = Alpn::offered_names(files.http2);
        config.send_tls13_tickets = TICKETS;
        // A session lives in its ticket only. The library would keep others in memory, without a time limit.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::new(ListenerTickets::new(files.digest(address)));
        let challenges = challenges.map(|challenges| challenges.server_config()).transpose();
        let challenges = challenges.map_err(|error| ServerTlsMistake::Cert(0, error.to_string()))?;
        Ok(ServerTls { files, own, route_hosts: Vec::new(), certificates, config: Arc::new(config), challenges })
    }

    /// Returns the settings of handshakes over QUIC. Early data (0-RTT) is off: it arrives before the client has proven
    /// its address, and others can replay it.
    pub fn quic_config(&self) -> ServerConfig {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![HTTP_3.into()];
        config.max_early_data_size = 0;
        config
    }

    /// Takes over the sessions of `earlier` if its settings are equal, so that clients can resume them.
    pub fn keep_sessions(&mut self, earlier: &ServerTls) {
        if self == earlier {
            self.config = earlier.config.clone();
            self.certificates = earlier.certificates.clone();
        }
    }

    /// Returns the names for which an ACME server issues certificates.
    pub fn ordered_names(&self) -> &[String] {
        &self.files.ordered
    }

    /// Has new handshakes use the certificates of `issued` for the names of this listener.
    pub fn use_issued(&self, issued: &IssuedCertificates) {
        let names = &self.files.ordered;
        let there = names.iter().filter_map(|name| issued.get(name).cloned());
        let keys = self.own.iter().cloned().chain(there).collect();
        let missing: HashSet<String> = names.iter().filter(|name| !issued.contains_key(*name)).cloned().collect();
        self.certificates.0.store(Arc::new(Certificates::new(keys, missing)));
    }

    /// Returns the options of development certificates, if the listener uses them.
    pub fn internal(&self) -> Option<&InternalTls> {
        self.files.internal.as_ref()
    }

    /// Adds a host of a route to the names of the development certificate, unless it has it already.
    pub fn add_route_host(&mut self, host: String) {
        if !self.internal_names().contains(&&*host) {
            self.route_hosts.push(host);
        }
    }

    /// Returns the names of the development certificate, the most important first.
    pub fn internal_names(&self) -> Vec<&str> {
        let own = self.internal().into_iter().flat_map(|internal| &internal.names);
        own.chain(&self.route_hosts).map(String::as_str).collect()
    }

    /// Has new handshakes use this development certificate, besides the certificates of files.
    pub fn use_internal(&self, leaf: NamedKey) {
        let keys = self.own.iter().cloned().chain([leaf]).collect();
        self.certificates.0.store(Arc::new(Certificates::new(keys, HashSet::new())));
    }

    /// Returns the certificates in use, those of files first.
    pub fn list_certificates(&self) -> Vec<ListedCertificate> {
        let current = self.certificates.current();
        let all = current.validities.iter().zip(&current.names).enumerate();
        all.map(|(place, (validity, names))| ListedCertificate {
            names: if names.is_empty() { vec![validity.name.clone()] } else { names.clone() },
            not_after_s: validity.not_after_s,
            source: match (place < self.own.len(), self.internal()) {
                (true, _) => CertificateSource::File,
                (false, Some(_)) => CertificateSource::Internal,
                (false, None) => CertificateSource::Acme,
            },
        })
        .collect()
    }

    /// Returns the validity of the development certificate in use.
    pub fn internal_validity(&self) -> Option<CertificateValidity> {
        self.certificates.current().validities.get(self.own.len()).cloned()
    }
}

impl NamedKey {
    /// Reads a PEM text with a key and a chain, which must be valid for `name`.
    ///
    /// # Errors
    /// The certificate or key cannot be used. The error says why, and quotes nothing of the text.
    pub fn from_pem(text: &str, name: &str) -> Result<NamedKey, String> {
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
        Some(Ok((_, certificate))) => (certs::certificate_names(&certificate), CertificateValidity::new(&certificate)),
        _ => return Err(cert("its first certificate cannot be read".to_owned())),
    };
    let private = pem::private_key(&pair.key).map_err(|what| key(&what))?;
    let private = any_supported_type(&private)
        .map_err(|_| key("the type of the private key is not supported: use ECDSA, RSA or Ed25519"))?;
    let certified_key = CertifiedKey::new(chain, private);
    match certified_key.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
            Ok(NamedKey { key: Arc::new(certified_key), names, validity: term })
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

/// Does not show the contents of files.
impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerTls({} certificates)", self.files.certificates.len())
    }
}
