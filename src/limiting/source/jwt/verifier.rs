//! Verifies signatures of tokens with `aws-lc-rs`, as the provider that `jsonwebtoken` requires. Nothing is signed
//! here.

use aws_lc_rs::{hmac, signature};
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{Error as Mismatch, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey};

use crate::limiting::source::jwt::jwk;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: create_verifier,
    // Only needed for the JSON Web Keys of the library; `jwk` reads them here.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs the provider for this process.
pub fn install_provider() {
    // An error means that it is already installed.
    let _ = PROVIDER.install_default();
}

/// Key and method of one algorithm.
enum SignatureKey {
    Hmac(Box<hmac::Key>),
    Public(signature::UnparsedPublicKey<Vec<u8>>),
}

struct Signature {
    algorithm: Algorithm,
    check: SignatureKey,
}

/// Creates the verifier of an algorithm. A key of another family is an error: otherwise a public key, which anybody may
/// know, could be used as the secret of a MAC.
fn create_verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let bytes = key.try_get_as_bytes()?;
    let mac = |algorithm| SignatureKey::Hmac(Box::new(hmac::Key::new(algorithm, bytes)));
    let check = match (algorithm, jwk::signature_of(*algorithm)) {
        (_, Some(signature)) => SignatureKey::Public(signature::UnparsedPublicKey::new(signature, bytes.to_vec())),
        (Algorithm::HS256, None) => mac(hmac::HMAC_SHA256),
        (Algorithm::HS384, None) => mac(hmac::HMAC_SHA384),
        (Algorithm::HS512, None) => mac(hmac::HMAC_SHA512),
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    Ok(Box::new(Signature { algorithm: *algorithm, check }))
}

impl Verifier<Vec<u8>> for Signature {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), Mismatch> {
        match &self.check {
            SignatureKey::Hmac(key) => hmac::verify(key, message, signature),
            SignatureKey::Public(key) => key.verify(message, signature),
        }
        .map_err(|_| Mismatch::new())
    }
}

impl JwtVerifier for Signature {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
