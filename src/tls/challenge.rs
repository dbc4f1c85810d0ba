//! How names are proved to an ACME server (RFC 8555, RFC 8737): what it asks for, and the board with the
//! answers to what it asks for now. The control side writes on the board, workers read it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, ServerConfig};

use super::pem;
use crate::labels::labels;

labels! {
    /// In the order in which they are tried unless the config says otherwise.
    ChallengeKind:
    TlsAlpn01 = "tls-alpn-01",
    Http01 = "http-01",
}

/// What the server offers in a handshake that looks for a proof, and nothing else (ALPN).
const ALPN: &[u8] = b"acme-tls/1";

/// The answers to the challenges that are open now.
#[derive(Debug, Default)]
pub struct OpenChallenges {
    /// Tokens with what is answered to them over plain HTTP.
    pub http: HashMap<String, String>,
    /// Lower-case names with the certificates shown in the handshake.
    pub tls: HashMap<String, Arc<CertifiedKey>>,
}

/// Where they are found.
#[derive(Default)]
pub struct ChallengeBoard(ArcSwap<OpenChallenges>);

impl ChallengeBoard {
    pub fn show(&self, open: Arc<OpenChallenges>) {
        self.0.store(open);
    }

    pub fn shown(&self) -> Arc<OpenChallenges> {
        self.0.load_full()
    }

    /// What is answered to `token` over plain HTTP.
    pub fn key_authorization(&self, token: &str) -> Option<String> {
        self.0.load().http.get(token).cloned()
    }

    /// Settings for a handshake that [`asks_for_proof`].
    ///
    /// # Errors
    /// None that depends on anything.
    pub fn handshake(self: &Arc<ChallengeBoard>) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(self.clone());
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// The certificate that proves a name, with its key. (It is no certificate to anybody else: an extension of
/// it is critical and unknown.)
pub fn proof_of_pem(text: &str) -> Option<Arc<CertifiedKey>> {
    let (chain, key) = (pem::certificates(text).ok()?, pem::private_key(text).ok()?);
    Some(Arc::new(CertifiedKey::new(chain, ring::sign::any_supported_type(&key).ok()?)))
}

/// Whether a client is an ACME server that looks for a proof. Nobody else offers this protocol alone.
pub fn asks_for_proof(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|offered| offered.eq([ALPN]))
}

impl ResolvesServerCert for ChallengeBoard {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().tls.get(&hello.server_name()?.to_ascii_lowercase()).cloned()
    }
}

/// Nothing of the answers.
impl fmt::Debug for ChallengeBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChallengeBoard")
    }
}
