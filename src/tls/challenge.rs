//! Challenges by which an ACME server validates names (RFC 8555, RFC 8737). The control thread publishes responses to
//! the open challenges, and workers serve them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, ServerConfig};

use crate::labels::labels;
use crate::net::host_address;
use crate::tls::{crypto_provider, pem};

labels! {
    /// Types of challenges, in the order in which they are tried by default.
    ChallengeKind:
    TlsAlpn01 = "tls-alpn-01",
    Http01 = "http-01",
    /// A TXT record, which a program of the operator publishes. The only one for wildcards.
    Dns01 = "dns-01",
}

impl ChallengeKind {
    /// Returns whether the challenge exists for the name: a host, a wildcard, or an address as in URLs.
    pub fn can_prove(self, name: &str) -> bool {
        match self {
            ChallengeKind::TlsAlpn01 | ChallengeKind::Http01 => !name.starts_with("*."),
            ChallengeKind::Dns01 => host_address(name).is_none(),
        }
    }
}

/// The only protocol that an ACME server offers in the handshake of a `tls-alpn-01` challenge (ALPN).
const ALPN: &[u8] = b"acme-tls/1";

/// Responses to the challenges that are open now.
#[derive(Debug, Default)]
pub struct OpenChallenges {
    /// Key authorizations of `http-01` challenges, by token.
    pub http: HashMap<String, String>,
    /// Certificates of `tls-alpn-01` challenges, by lower-case name.
    pub tls: HashMap<String, Arc<CertifiedKey>>,
}

/// The current [`OpenChallenges`], shared by the control thread and the workers.
#[derive(Default)]
pub struct ChallengeStore(ArcSwap<OpenChallenges>);

impl ChallengeStore {
    /// Publishes the open challenges, instead of earlier ones.
    pub fn publish(&self, open: Arc<OpenChallenges>) {
        self.0.store(open);
    }

    /// Returns the challenges that were published last.
    pub fn published(&self) -> Arc<OpenChallenges> {
        self.0.load_full()
    }

    /// Returns the body of the response to the `http-01` challenge with `token`.
    pub fn key_authorization(&self, token: &str) -> Option<String> {
        self.0.load().http.get(token).cloned()
    }

    /// Makes TLS settings for a handshake that [is a challenge](is_challenge).
    ///
    /// # Errors
    /// The TLS library rejects the settings, which are always the same.
    pub fn server_config(self: &Arc<ChallengeStore>) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder_with_provider(crypto_provider());
        let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(self.clone());
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Reads the certificate of a `tls-alpn-01` challenge and its key from PEM. No other client accepts such a certificate,
/// because it has a critical extension.
pub fn certificate_from_pem(text: &str) -> Option<Arc<CertifiedKey>> {
    let (chain, key) = (pem::certificates(text).ok()?, pem::private_key(text).ok()?);
    Some(Arc::new(CertifiedKey::new(chain, any_supported_type(&key).ok()?)))
}

/// Returns whether a client is an ACME server that validates a `tls-alpn-01` challenge. No other client offers its
/// protocol alone.
pub fn is_challenge(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|offered| offered.eq([ALPN]))
}

impl ResolvesServerCert for ChallengeStore {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().tls.get(&hello.server_name()?.to_ascii_lowercase()).cloned()
    }
}

/// Does not show the challenges.
impl fmt::Debug for ChallengeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChallengeStore")
    }
}
