//! TLS to the servers of an upstream: whom it trusts and the client certificate. Built by the config compiler,
//! used for each new connection by `proxy::outbound::dial`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use sha2::{Digest, Sha256};

use crate::tls::pem;
use crate::tls::trust::Trust;
use crate::upstream::WireProtocol;

/// TLS settings of one upstream. Two are equal if their options and files are: their connections are then shared.
pub struct UpstreamTls {
    pub config: Arc<ClientConfig>,
    /// Server name that is sent and verified instead of the host of the URL.
    pub server_name: Option<ServerName<'static>>,
    pub protocol: WireProtocol,
    digest: [u8; 32],
}

/// The gateway's own certificate chain and its key.
pub struct ClientIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// An error in the certificate or in the key.
pub enum ClientIdentityError {
    Cert(String),
    Key(String),
}

impl UpstreamTls {
    /// Builds the TLS settings.
    ///
    /// # Errors
    /// The key does not match the certificate.
    pub fn new(
        trust: Trust,
        pair: Option<ClientIdentity>,
        server_name: Option<ServerName<'static>>,
        protocol: WireProtocol,
    ) -> Result<UpstreamTls, String> {
        let mut digest = Sha256::new();
        let mut say = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        match &trust {
            Trust::Roots(roots) => say(&roots.digest()),
            Trust::Anyone => say(&[]),
        }
        say(&[protocol as u8]);
        say(server_name.as_ref().map(ServerName::to_str).unwrap_or_default().as_bytes());
        for part in pair.iter().flat_map(|pair| pair.chain.iter().map(|der| &**der).chain([pair.key.secret_der()])) {
            say(part);
        }
        let builder = trust.into_client()?;
        let mut config = match pair {
            Some(ClientIdentity { chain, key }) => {
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
            None => builder.with_no_client_auth(),
        };
        let protocols: &[&str] = match protocol {
            WireProtocol::Auto => &["h2", "http/1.1"],
            WireProtocol::Http1 => &["http/1.1"],
            WireProtocol::Http2 => &["h2"],
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(UpstreamTls { config: Arc::new(config), server_name, protocol, digest: digest.finalize().into() })
    }
}

impl PartialEq for UpstreamTls {
    fn eq(&self, other: &UpstreamTls) -> bool {
        self.digest == other.digest
    }
}

impl Eq for UpstreamTls {}

impl Hash for UpstreamTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

/// Shows a digest only: enough to see a change, without the content.
impl fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpstreamTls({})", hex::encode(&self.digest[..4]))
    }
}

impl ClientIdentity {
    /// Reads the certificate chain and the key of two PEM files.
    ///
    /// # Errors
    /// One of the files is not valid.
    pub fn from_pem(cert: &str, key: &str) -> Result<ClientIdentity, ClientIdentityError> {
        let chain = pem::certificates(cert).map_err(ClientIdentityError::Cert)?;
        let key = pem::private_key(key).map_err(ClientIdentityError::Key)?;
        Ok(ClientIdentity { chain, key })
    }
}
