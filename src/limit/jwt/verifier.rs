//! Signature checks of tokens with `ring`, for `jsonwebtoken`, which leaves them to a provider.
//! Nothing is ever signed here.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{Error as Mismatch, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey};
use ring::{hmac, signature};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: verifier,
    // Only for JSON Web Keys, of which none are read.
    key_utils: KeyUtils::new_unimplemented(),
};

pub fn install() {
    // An error says that it is installed.
    let _ = PROVIDER.install_default();
}

/// How one algorithm checks.
enum ClaimCheck {
    Hmac(hmac::Key),
    Public(signature::UnparsedPublicKey<Vec<u8>>),
}

struct Signature {
    algorithm: Algorithm,
    check: ClaimCheck,
}

/// A key of another family than the algorithm's is an error: else a public key, which everybody
/// has, would do as the secret of a MAC.
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let bytes = key.try_get_as_bytes()?;
    let mac = |algorithm| ClaimCheck::Hmac(hmac::Key::new(algorithm, bytes));
    let public = |algorithm: &'static dyn signature::VerificationAlgorithm| {
        ClaimCheck::Public(signature::UnparsedPublicKey::new(algorithm, bytes.to_vec()))
    };
    let check = match algorithm {
        Algorithm::HS256 => mac(hmac::HMAC_SHA256),
        Algorithm::HS384 => mac(hmac::HMAC_SHA384),
        Algorithm::HS512 => mac(hmac::HMAC_SHA512),
        Algorithm::RS256 => public(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::ES256 => public(&signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::EdDSA => public(&signature::ED25519),
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    Ok(Box::new(Signature { algorithm: *algorithm, check }))
}

impl Verifier<Vec<u8>> for Signature {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), Mismatch> {
        match &self.check {
            ClaimCheck::Hmac(key) => hmac::verify(key, message, signature),
            ClaimCheck::Public(key) => key.verify(message, signature),
        }
        .map_err(|_| Mismatch::new())
    }
}

impl JwtVerifier for Signature {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
