//! TLS to Redis: trusted authorities and client certificate, from `ca`, `client_cert` and `client_key` of `[store]`.

use std::sync::{Arc, LazyLock};
use std::{fmt, io};

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::tls::pem;
use crate::tls::trust::{Trust, TrustedRoots};

/// TLS settings. They are equal if the contents of the files are.
#[derive(Clone, Default)]
pub struct RedisTls {
    files: TlsFiles,
    /// `None` trusts the public certificate authorities and sends no client certificate.
    config: Option<Arc<ClientConfig>>,
}

/// Contents of the PEM files.
#[derive(Clone, Default, PartialEq)]
pub struct TlsFiles {
    pub ca: Option<String>,
    pub client_cert: Option<String>,
    pub client_key: Option<String>,
}

/// The option at fault, and what is wrong with its file. The text does not contain any of the file.
#[derive(Debug, PartialEq)]
pub struct TlsMistake {
    pub option: &'static str,
    pub what: String,
}

impl RedisTls {
    /// Creates the settings.
    ///
    /// # Errors
    /// A file is not valid PEM, or certificate and key do not match.
    pub fn new(files: TlsFiles) -> Result<RedisTls, TlsMistake> {
        if files == TlsFiles::default() {
            return Ok(RedisTls::default());
        }
        let config = config(&files)?;
        Ok(RedisTls { files, config: Some(Arc::new(config)) })
    }

    /// Performs the TLS handshake with `host`.
    pub async fn connect(&self, host: &str, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        static PUBLIC: LazyLock<Result<Arc<ClientConfig>, String>> =
            LazyLock::new(|| config(&TlsFiles::default()).map(Arc::new).map_err(|mistake| mistake.what));
        let config = match &self.config {
            Some(config) => config.clone(),
            None => PUBLIC.clone().map_err(io::Error::other)?,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(config).connect(name, tcp).await
    }
}

impl PartialEq for RedisTls {
    fn eq(&self, other: &RedisTls) -> bool {
        self.files == other.files
    }
}

/// Shows a short hash of the files, and nothing else of them.
impl fmt::Debug for RedisTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sha = sha1_smol::Sha1::new();
        for file in [&self.files.ca, &self.files.client_cert, &self.files.client_key] {
            sha.update(file.as_deref().unwrap_or_default().as_bytes());
            sha.update(&[0]);
        }
        write!(f, "Tls({})", &sha.digest().to_string()[..8])
    }
}

fn config(files: &TlsFiles) -> Result<ClientConfig, TlsMistake> {
    let roots = match &files.ca {
        Some(pem) => TrustedRoots::from_pem(pem).map_err(|what| mistake("ca", what))?,
        None => TrustedRoots::of_browsers(),
    };
    let builder = Trust::Roots(roots).into_client().map_err(|what| mistake("ca", what))?;
    match (&files.client_cert, &files.client_key) {
        (Some(cert), Some(key)) => {
            let chain = certificates("client_cert", cert)?;
            let key = pem::private_key(key).map_err(|what| mistake("client_key", what))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| mistake("client_key", error))
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(_), None) => Err(mistake("client_cert", "it has no `client_key`")),
        (None, Some(_)) => Err(mistake("client_key", "it has no `client_cert`")),
    }
}

fn certificates(option: &'static str, text: &str) -> Result<Vec<CertificateDer<'static>>, TlsMistake> {
    pem::certificates(text).map_err(|what| mistake(option, what))
}

fn mistake(option: &'static str, what: impl ToString) -> TlsMistake {
    TlsMistake { option, what: what.to_string() }
}
