//! TLS to Redis: whom to trust and who we are, read by the config from `ca`, `client_cert` and
//! `client_key` of `[store]`. Called by `dial.rs` for each new connection.

use std::sync::{Arc, LazyLock};
use std::{fmt, io};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::tls::pem;

/// Equal when the files are.
#[derive(Clone, Default)]
pub struct Tls {
    files: Files,
    /// `None`: the public certificate authorities, and no certificate of our own.
    config: Option<Arc<ClientConfig>>,
}

/// The files' contents, PEM.
#[derive(Clone, Default, PartialEq)]
pub struct Files {
    pub ca: Option<String>,
    pub client_cert: Option<String>,
    pub client_key: Option<String>,
}

/// The option at fault, and what is wrong with its file; says nothing of the contents.
#[derive(Debug, PartialEq)]
pub struct TlsMistake {
    pub option: &'static str,
    pub what: String,
}

impl Tls {
    pub fn new(files: Files) -> Result<Tls, TlsMistake> {
        if files == Files::default() {
            return Ok(Tls::default());
        }
        let config = config(&files)?;
        Ok(Tls { files, config: Some(Arc::new(config)) })
    }

    pub async fn connect(&self, host: &str, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        static PUBLIC: LazyLock<Result<Arc<ClientConfig>, String>> =
            LazyLock::new(|| config(&Files::default()).map(Arc::new).map_err(|mistake| mistake.what));
        let config = match &self.config {
            Some(config) => config.clone(),
            None => PUBLIC.clone().map_err(io::Error::other)?,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(config).connect(name, tcp).await
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        self.files == other.files
    }
}

/// Shows whether the files changed, and nothing of them.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sha = sha1_smol::Sha1::new();
        for file in [&self.files.ca, &self.files.client_cert, &self.files.client_key] {
            sha.update(file.as_deref().unwrap_or_default().as_bytes());
            sha.update(&[0]);
        }
        write!(f, "Tls({})", &sha.digest().to_string()[..8])
    }
}

fn config(files: &Files) -> Result<ClientConfig, TlsMistake> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(pem) => {
            for certificate in certificates("ca", pem)? {
                roots.add(certificate).map_err(|error| mistake("ca", error))?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| mistake("ca", error))?
        .with_root_certificates(roots);
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
