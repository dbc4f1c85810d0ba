//! Keys that verify signatures, and JSON Web Key Sets (RFC 7517), in which issuers publish them. What a key may verify
//! is bound to the key: by its type and curve, and by `alg`, `use` and `key_ops` if it has them.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::signature::{self, ParsedPublicKey, RsaPublicKeyComponents, VerificationAlgorithm};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use sha2::{Digest, Sha256};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::RSAPublicKey;

/// Maximum number of keys of a set; further ones are skipped.
pub const KEYS_MAX: usize = 100;
/// Maximum number of keys with which one token is verified, so that a token without `kid` costs no more than these.
const TRIES_MAX: usize = 8;
/// Smallest and largest modulus of an RSA key, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;
/// Maximum number of reasons that a set keeps for its skipped keys.
const REASONS_MAX: usize = 5;

/// A key, and the algorithms that it may verify.
#[derive(Debug)]
pub struct VerificationKey {
    /// `kid`; a key without one may verify any token.
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    pub(super) decoding: DecodingKey,
}

/// The keys of one issuer.
#[derive(Debug)]
pub struct KeySet {
    keys: Vec<VerificationKey>,
    digest: [u8; 32],
    /// The text of the set; empty if the keys have another source.
    document: Vec<u8>,
    /// Why other keys of the set are not used, the first of them.
    pub skipped: Vec<String>,
}

/// The members of a key that are read. Others have no meaning here.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    k: Option<String>,
    d: Option<IgnoredAny>,
}

impl VerificationKey {
    /// Creates a key from a PEM document.
    ///
    /// # Errors
    /// It is not the public key of one of these algorithms, or too weak.
    pub fn from_pem(pem: &str, algorithms: &[Algorithm]) -> Result<VerificationKey, String> {
        let bytes = pem.trim().as_bytes();
        let wrong = || "it is not the public key of these algorithms in PEM form".to_owned();
        let decoding = match algorithms.first().map(|algorithm| algorithm.family()) {
            Some(AlgorithmFamily::Rsa) => {
                let key = DecodingKey::from_rsa_pem(bytes).map_err(|_| wrong())?;
                let der = key.try_get_as_bytes().map_err(|_| wrong())?;
                let (_, key) = RSAPublicKey::from_der(der).map_err(|_| wrong())?;
                read_rsa(key.modulus, key.exponent)?
            }
            Some(AlgorithmFamily::Ec) => DecodingKey::from_ec_pem(bytes).map_err(|_| wrong())?,
            Some(AlgorithmFamily::Ed) => DecodingKey::from_ed_pem(bytes).map_err(|_| wrong())?,
            Some(AlgorithmFamily::Hmac) | None => return Err("a PEM document is not a secret".to_owned()),
        };
        for algorithm in algorithms {
            check_key(*algorithm, &decoding).map_err(|()| format!("it is not a public key of {algorithm:?}"))?;
        }
        Ok(VerificationKey { id: None, algorithms: algorithms.to_vec(), decoding })
    }

    /// Creates a shared secret.
    pub fn from_secret(secret: &[u8], algorithms: &[Algorithm]) -> VerificationKey {
        VerificationKey { id: None, algorithms: algorithms.to_vec(), decoding: DecodingKey::from_secret(secret) }
    }

    /// Creates a key of a set. `accepted`: the algorithms of which it verifies those that fit it.
    fn from_jwk(jwk: Jwk, accepted: &[Algorithm]) -> Result<VerificationKey, String> {
        let Jwk { kty, kid, alg, usage, key_ops, crv, n, e, x, y, k, d } = jwk;
        if usage.is_some_and(|usage| usage != "sig") {
            return Err("its `use` is not `sig`".to_owned());
        }
        if key_ops.is_some_and(|operations| operations.iter().all(|operation| operation != "verify")) {
            return Err("its `key_ops` lack `verify`".to_owned());
        }
        if d.is_some() {
            return Err("it is a private key, which everybody knows who can read the set".to_owned());
        }
        let of_family: &[Algorithm] = match (kty.as_str(), crv.as_deref()) {
            ("RSA", _) => AlgorithmFamily::Rsa.algorithms(),
            ("EC", Some("P-256")) => &[Algorithm::ES256],
            ("EC", Some("P-384")) => &[Algorithm::ES384],
            ("OKP", Some("Ed25519")) => &[Algorithm::EdDSA],
            ("oct", _) => AlgorithmFamily::Hmac.algorithms(),
            (kty, Some(crv)) => return Err(format!("keys of type {kty:?} with the curve {crv:?} are not supported")),
            (kty, None) => return Err(format!("keys of type {kty:?} are not supported")),
        };
        let is_named = |algorithm: &Algorithm| alg.as_ref().is_none_or(|alg| *alg == format!("{algorithm:?}"));
        let fits = |algorithm: &&Algorithm| is_named(algorithm) && accepted.contains(algorithm);
        let mut algorithms: Vec<Algorithm> = of_family.iter().filter(fits).copied().collect();
        if algorithms.is_empty() {
            let alg = alg.map_or_else(|| format!("the key type {kty:?}"), |alg| format!("the algorithm {alg:?}"));
            return Err(format!("{alg} is not among the accepted ones"));
        }
        let decoding = match of_family[0].family() {
            AlgorithmFamily::Rsa => read_rsa(&decode("n", n.as_deref())?, &decode("e", e.as_deref())?)?,
            AlgorithmFamily::Ec => {
                let (x, y) = (decode("x", x.as_deref())?, decode("y", y.as_deref())?);
                let length = if of_family[0] == Algorithm::ES256 { 32 } else { 48 };
                if [x.len(), y.len()] != [length; 2] {
                    return Err(format!("`x` and `y` do not have {length} bytes"));
                }
                DecodingKey::from_ec_der(&[&[4], x.as_slice(), &y].concat())
            }
            AlgorithmFamily::Ed => DecodingKey::from_ed_der(&decode("x", x.as_deref())?),
            AlgorithmFamily::Hmac => {
                let secret = decode("k", k.as_deref())?;
                algorithms.retain(|algorithm| secret.len() >= least_secret(*algorithm));
                DecodingKey::from_secret(&secret)
            }
        };
        match algorithms.first().map(|algorithm| check_key(*algorithm, &decoding)) {
            Some(Ok(())) => Ok(VerificationKey { id: kid, algorithms, decoding }),
            Some(Err(())) => Err("it is not a valid public key".to_owned()),
            None => Err("the secret is too short".to_owned()),
        }
    }
}

impl KeySet {
    /// Creates a set of one key.
    pub fn of(key: VerificationKey) -> KeySet {
        KeySet::new(vec![key], Vec::new(), Vec::new())
    }

    fn new(keys: Vec<VerificationKey>, skipped: Vec<String>, document: Vec<u8>) -> KeySet {
        let mut digest = Sha256::new();
        for key in &keys {
            let bytes = key.decoding.try_get_as_bytes().unwrap_or_default();
            digest.update(format!("{:?} {:?} {} ", key.id, key.algorithms, bytes.len()));
            digest.update(bytes);
        }
        KeySet { keys, digest: digest.finalize().into(), document, skipped }
    }

    /// Reads a JSON Web Key Set. Keys that cannot verify a token of an `accepted` algorithm are skipped.
    ///
    /// # Errors
    /// The text is not a set, or none of its keys can be used.
    pub fn from_jwks(text: &[u8], accepted: &[Algorithm]) -> Result<KeySet, String> {
        #[derive(Deserialize)]
        struct Jwks {
            keys: Vec<Value>,
        }
        let Jwks { keys } =
            serde_json::from_slice(text).map_err(|error| format!("it is not a JSON Web Key Set: {error}"))?;
        let (mut read, mut skipped, mut left_out) = (Vec::new(), Vec::new(), 0);
        for (place, jwk) in keys.into_iter().enumerate() {
            let name = jwk.get("kid").and_then(Value::as_str);
            let name = name.map_or_else(|| format!("key {}", place + 1), |kid| format!("key {kid:?}"));
            let key = match place < KEYS_MAX {
                true => serde_json::from_value(jwk)
                    .map_err(|error| error.to_string())
                    .and_then(|jwk| VerificationKey::from_jwk(jwk, accepted)),
                false => Err(format!("a set may have {KEYS_MAX} keys")),
            };
            match key {
                Ok(key) => read.push(key),
                Err(why) if skipped.len() < REASONS_MAX => skipped.push(format!("{name}: {why}")),
                Err(_) => left_out += 1,
            }
        }
        if left_out > 0 {
            skipped.push(format!("and {left_out} more"));
        }
        match (read.is_empty(), skipped.is_empty()) {
            (true, true) => Err("the set has no keys".to_owned()),
            (true, false) => Err(format!("none of its keys can be used: {}", skipped.join("; "))),
            (false, _) => Ok(KeySet::new(read, skipped, text.to_vec())),
        }
    }

    /// Reads the same set with other accepted algorithms.
    ///
    /// # Errors
    /// None of the keys can be used with them.
    pub fn read_again(&self, accepted: &[Algorithm]) -> Result<KeySet, String> {
        KeySet::from_jwks(&self.document, accepted)
    }

    /// Returns a hash of the keys.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether a key has this `kid`.
    pub fn has_id(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref() == Some(id))
    }

    /// Returns the keys that may have signed a token with this `kid` and algorithm, up to a bound: those with the same
    /// `kid`, then, if one of the two has none, the others.
    pub(super) fn candidates(&self, id: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &VerificationKey> {
        let fits = move |key: &&VerificationKey| key.algorithms.contains(&algorithm);
        let is_same = move |key: &&VerificationKey| id.is_some() && key.id.as_deref() == id;
        let may_be = move |key: &&VerificationKey| id.is_none() || key.id.is_none();
        let same_keys = self.keys.iter().filter(is_same);
        same_keys.chain(self.keys.iter().filter(may_be)).filter(fits).take(TRIES_MAX)
    }
}

/// Returns the least number of bytes of a secret (RFC 7518, section 3.2).
pub fn least_secret(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::HS512 => 64,
        Algorithm::HS384 => 48,
        _ => 32,
    }
}

/// Returns how an algorithm verifies a signature; `None` for those with a shared secret.
pub(super) fn signature_of(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match algorithm {
        Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
        Algorithm::ES256 => &signature::ECDSA_P256_SHA256_FIXED,
        Algorithm::ES384 => &signature::ECDSA_P384_SHA384_FIXED,
        Algorithm::EdDSA => &signature::ED25519,
        _ => return None,
    })
}

/// Checks that the key is one of the algorithm, such as a point on its curve.
fn check_key(algorithm: Algorithm, key: &DecodingKey) -> Result<(), ()> {
    let Some(signature) = signature_of(algorithm) else { return Ok(()) };
    let bytes = key.try_get_as_bytes().map_err(drop)?;
    ParsedPublicKey::new(signature, bytes).map(drop).map_err(drop)
}

/// Reads an RSA key. Keys whose size the verification would reject are rejected at once, with the reason.
fn read_rsa(n: &[u8], e: &[u8]) -> Result<DecodingKey, String> {
    let (n, e) = (trim_zeros(n), trim_zeros(e));
    let bits = n.first().map_or(0, |first| n.len() * 8 - first.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        let (least, most) = RSA_BITS.into_inner();
        return Err(format!("the RSA key has {bits} bits; {least} to {most} are accepted"));
    }
    let invalid = || "it is not a valid RSA key".to_owned();
    // An even exponent is impossible, and with 1 everybody could sign.
    if e.last().is_none_or(|last| last % 2 == 0) || e == [1] {
        return Err(invalid());
    }
    let der: PublicKeyX509Der<'_> = RsaPublicKeyComponents { n, e }.as_der().map_err(|_| invalid())?;
    Ok(DecodingKey::from_rsa_der(der.as_ref()))
}

fn trim_zeros(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// Decodes the member `name` of a key.
fn decode(name: &str, text: Option<&str>) -> Result<Vec<u8>, String> {
    let bytes = text.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    bytes.ok_or_else(|| format!("its `{name}` is missing or not base64url"))
}
