//! Certificates and keys in PEM. Messages say what is wrong and nothing of the contents.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Every certificate in `text`, the first that of the owner; never none.
///
/// # Errors
/// What is wrong with the text.
pub fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err("it holds no certificate in PEM".to_owned()),
    }
}

/// The first private key in `text`: PKCS #8, PKCS #1 or SEC 1.
///
/// # Errors
/// What is wrong with the text.
pub fn private_key(text: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| match text.contains("ENCRYPTED") {
        true => "the private key is encrypted: store it without a passphrase".to_owned(),
        false => "it holds no private key in PEM".to_owned(),
    })
}
