//! Reads certificates and keys in PEM. Error messages never contain parts of the input.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Reads all certificates in `text`, at least one. The first one belongs to the owner.
///
/// # Errors
/// What is wrong with the text.
pub fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err("it contains no PEM certificate".to_owned()),
    }
}

/// Reads the first private key in `text`: PKCS #8, PKCS #1 or SEC 1.
///
/// # Errors
/// What is wrong with the text.
pub fn private_key(text: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| match text.contains("ENCRYPTED") {
        true => "the private key is encrypted: store it without a passphrase".to_owned(),
        false => "it contains no PEM private key".to_owned(),
    })
}
