//! JSON Web Tokens (RFC 7519): verifies the token of a request and returns its claims, which limits use as keys and
//! conditions. Input are the headers of a request; output are the claims, or none if the token is invalid. The
//! `proxy` module calls it for routes whose limits read claims.
//!
//! - `presented`: finds the token in a header, however servers read it.
//! - `jwk`: keys, and which of them may verify a token; `verifier`: checks signatures.
//! - `remote_keys`: the keys that `crate::jwks` fetches from an issuer.
//! - `claims`: finds values in a verified token; `token_cache`: tokens that were verified recently.
//!
//! To add a signature algorithm, add it to the words of `algorithms` in `config::compile::jwt`, and to `jwk`.

pub mod claims;
pub mod jwk;
mod presented;
pub mod remote_keys;
#[cfg(test)]
mod tests;
mod token_cache;
mod verifier;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
pub use jsonwebtoken::Algorithm;
use jsonwebtoken::{Header, Validation, decode, decode_header};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::limiting::source::Ambiguous;
use crate::limiting::source::inputs;
use crate::limiting::source::inputs::{FoundValue, Repeated};
pub use crate::limiting::source::jwt::claims::{Claims, LineClaims, TokenClaims};
use crate::limiting::source::jwt::jwk::KeySet;
use crate::limiting::source::jwt::presented::{read_token, strip_bearer};
use crate::limiting::source::jwt::remote_keys::RemoteKeys;
use crate::limiting::source::jwt::token_cache::TokenCache;

/// Settings for the verification of tokens, and a cache of recently verified ones.
pub struct TokenVerifier {
    /// Header with the token, optionally after `Bearer `.
    pub header: HeaderName,
    keys: KeySource,
    /// The checks of a token: one for each accepted algorithm.
    validations: Arc<[Validation]>,
    cache: Mutex<TokenCache>,
}

/// The source of the keys.
#[derive(Clone)]
pub enum KeySource {
    /// The config or a file.
    Fixed(Arc<KeySet>),
    /// The issuer.
    Remote(Arc<RemoteKeys>),
}

/// A request's token, before its signature is verified.
pub enum PresentedToken {
    /// The request contains no token.
    Missing,
    /// The request contains several tokens, of which servers may use any, or a token that has expired or is not written
    /// as it was issued.
    Invalid,
    /// The token was verified recently, and is still valid.
    Verified(Arc<Claims>),
    /// The signature is still to be verified.
    Unverified,
}

/// Tolerated difference between the clocks of the issuer and the gateway.
const LEEWAY_S: u64 = 60;

impl KeySource {
    /// Returns the keys that serve at `now_s`; `None` if the issuer has not been reached for too long.
    fn current(&self, now_s: i64) -> Option<Arc<KeySet>> {
        match self {
            KeySource::Fixed(keys) => Some(keys.clone()),
            KeySource::Remote(keys) => keys.current(now_s),
        }
    }
}

impl TokenVerifier {
    /// Creates the settings. Empty lists of issuers or audiences are not checked.
    pub fn new(
        header: HeaderName,
        keys: KeySource,
        algorithms: &[Algorithm],
        issuer: &[String],
        audience: &[String],
    ) -> TokenVerifier {
        verifier::install_provider();
        let validation_of = |algorithm: &Algorithm| {
            let mut validation = Validation::new(*algorithm);
            validation.leeway = LEEWAY_S;
            validation.validate_nbf = true;
            let mut required: HashSet<&str> = HashSet::new();
            if !issuer.is_empty() {
                validation.set_issuer(issuer);
                required.insert("iss");
            }
            validation.validate_aud = !audience.is_empty();
            if !audience.is_empty() {
                validation.set_audience(audience);
                required.insert("aud");
            }
            validation.set_required_spec_claims(&required.into_iter().collect::<Vec<_>>());
            validation
        };
        let validations = algorithms.iter().map(validation_of).collect();
        TokenVerifier { header, keys, validations, cache: Mutex::default() }
    }

    /// Returns the keys if an issuer publishes them.
    pub fn remote_keys(&self) -> Option<&Arc<RemoteKeys>> {
        match &self.keys {
            KeySource::Fixed(_) => None,
            KeySource::Remote(keys) => Some(keys),
        }
    }

    /// Returns whether there are keys at `now_s`. Without them, no token can be verified.
    pub fn has_keys(&self, now_s: i64) -> bool {
        self.keys.current(now_s).is_some()
    }

    /// Returns the claims of a request's token. Returns `None` if there is no token, or if it is not valid at `now_s`.
    pub fn verify_request(&self, headers: &HeaderMap, now_s: i64) -> Option<TokenClaims> {
        let of = |repeated| inputs::find_header(headers, &self.header, repeated);
        let verified = |found: FoundValue| -> LineClaims {
            let Some(field) = found? else { return Ok(None) };
            Ok(read_token(&field)?.and_then(|token| self.verify_token(&token, now_s)))
        };
        match verified(of(Repeated::Refuse)) {
            Ok(claims) => claims.map(TokenClaims::One),
            Err(Ambiguous) => {
                let (first, last) = (verified(of(Repeated::First)), verified(of(Repeated::Last)));
                Some(TokenClaims::Several { first, last })
            }
        }
    }

    /// Returns the same claims as [`TokenVerifier::verify_request`], and remembers none: to explain a request must not
    /// change how the next one is verified.
    pub fn verify_without_cache(&self, headers: &HeaderMap, now_s: i64) -> Option<TokenClaims> {
        let fresh = TokenVerifier {
            header: self.header.clone(),
            keys: self.keys.clone(),
            validations: self.validations.clone(),
            cache: Mutex::default(),
        };
        fresh.verify_request(headers, now_s)
    }

    /// Returns what is known of the request's token at `now_s`, without verifying a signature.
    pub fn find_verified(&self, headers: &HeaderMap, now_s: i64) -> PresentedToken {
        let field = match inputs::find_header(headers, &self.header, Repeated::Refuse) {
            Ok(Some(field)) => field,
            Ok(None) => return PresentedToken::Missing,
            Err(Ambiguous) => return PresentedToken::Invalid,
        };
        let token = strip_bearer(&field);
        // Another scheme, such as `Basic`, is not a token.
        if token.is_empty() || (self.header == AUTHORIZATION && token.contains(&b' ')) {
            return PresentedToken::Missing;
        }
        // A login has one spelling, while a limit also counts those that only some servers accept.
        if read_token(&field).ok().flatten().is_none_or(|read| *read != *token) {
            return PresentedToken::Invalid;
        }
        let Some(keys) = self.keys.current(now_s) else { return PresentedToken::Unverified };
        let known = self.lock().get(keys.digest(), &Sha256::digest(token).into());
        match known {
            Some(claims) if claims.is_valid_at(now_s) => PresentedToken::Verified(claims),
            Some(_) => PresentedToken::Invalid,
            None => PresentedToken::Unverified,
        }
    }

    /// Requests newer keys from the issuer if the token may have been signed with one that is not known yet, and
    /// returns what reports the end of the refresh. Returns `None` if newer keys would not help, or were fetched just
    /// now.
    pub fn request_missing_key(&self, headers: &HeaderMap, now_s: i64) -> Option<watch::Receiver<u64>> {
        let remote = self.remote_keys()?;
        let field = inputs::find_header(headers, &self.header, Repeated::Refuse).ok()??;
        let token = read_token(&field).ok()??;
        let (_, Header { kid, .. }) = self.read_header(&token)?;
        let is_known = |keys: Arc<KeySet>| kid.as_ref().is_some_and(|kid| keys.has_id(kid));
        if remote.current(now_s).is_some_and(is_known) || self.verify_token(&token, now_s).is_some() {
            return None;
        }
        remote.request_refresh(Instant::now())
    }

    /// Reads the header of a token, and returns what is to be checked of it. Returns `None` if it is not a token of an
    /// accepted algorithm.
    fn read_header(&self, token: &[u8]) -> Option<(&Validation, Header)> {
        let header = decode_header(token).ok()?;
        let validation = self.validations.iter().find(|validation| validation.algorithms == [header.alg])?;
        // A token with an unknown critical extension must be rejected (RFC 7515, 4.1.11), and no extension is known
        // here.
        header.crit.is_none().then_some((validation, header))
    }

    fn verify_token(&self, token: &[u8], now_s: i64) -> Option<Arc<Claims>> {
        let keys = self.keys.current(now_s)?;
        let id: [u8; 32] = Sha256::digest(token).into();
        let known = self.lock().get(keys.digest(), &id);
        if let Some(claims) = known {
            return claims.is_valid_at(now_s).then_some(claims);
        }
        let (validation, header) = self.read_header(token)?;
        let mut candidates = keys.candidates(header.kid.as_deref(), header.alg);
        let claims = candidates.find_map(|key| {
            decode::<Map<String, Value>>(token, &key.decoding, validation).ok().map(|token| token.claims)
        });
        // The library also accepts a list that has the issuer among others (RFC 7519, 4.1.1: one string).
        let claims =
            claims.filter(|claims| validation.iss.is_none() || claims.get("iss").is_some_and(Value::is_string));
        let claims = Arc::new(Claims::from_verified(claims?, i64::try_from(LEEWAY_S).unwrap_or(0)));
        self.lock().put(keys.digest(), id, claims.clone());
        Some(claims)
    }

    /// Locks the cache. A panic in another worker leaves complete generations, so it remains usable.
    fn lock(&self) -> std::sync::MutexGuard<'_, TokenCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenVerifier { header, keys, validations, cache: _ } = self;
        let algorithms: Vec<_> = validations.iter().flat_map(|validation| &validation.algorithms).collect();
        let mut settings = f.debug_struct("Jwt");
        settings.field("header", header).field("algorithms", &algorithms);
        if let KeySource::Remote(keys) = keys {
            settings.field("remote", &keys.settings);
        }
        settings.finish_non_exhaustive()
    }
}

/// Compares the settings, without the cache.
impl PartialEq for TokenVerifier {
    fn eq(&self, other: &TokenVerifier) -> bool {
        let TokenVerifier { header, keys, validations, cache: _ } = self;
        (header, validations, keys) == (&other.header, &other.validations, &other.keys)
    }
}

/// Compares the settings: an issuer may have other keys in the meantime.
impl PartialEq for KeySource {
    fn eq(&self, other: &KeySource) -> bool {
        match (self, other) {
            (KeySource::Fixed(one), KeySource::Fixed(other)) => one.digest() == other.digest(),
            (KeySource::Remote(one), KeySource::Remote(other)) => one.settings == other.settings,
            (KeySource::Fixed(_), KeySource::Remote(_)) | (KeySource::Remote(_), KeySource::Fixed(_)) => false,
        }
    }
}
