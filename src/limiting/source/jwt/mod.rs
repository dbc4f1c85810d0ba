//! JSON Web Tokens (RFC 7519): verifies the token of a request and returns its claims, which limits use as keys and
//! conditions. Input are the headers of a request; output are the claims, or none if the token is invalid. The
//! `proxy` module calls it for routes whose limits read claims. `verifier` checks signatures.
//!
//! To add a signature algorithm, add it to the words of `algorithms` in `config::compile::limits::jwt`.

#[cfg(test)]
mod tests;
mod verifier;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
pub use jsonwebtoken::{Algorithm, DecodingKey};
use jsonwebtoken::{Validation, decode};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::limiting::source::Ambiguous;
use crate::limiting::source::inputs;
use crate::limiting::source::inputs::{FoundValue, Repeated};

/// Settings for the verification of tokens, and a cache of recently verified ones.
pub struct TokenVerifier {
    /// Header with the token, optionally after `Bearer `.
    pub header: HeaderName,
    key: DecodingKey,
    validation: Validation,
    cache: Mutex<TokenCache>,
    /// Hash of the configured key, to compare settings.
    key_digest: [u8; 32],
}

/// Claims of a verified token that limits can use: strings, integers and booleans.
#[derive(Debug, Default, PartialEq)]
pub struct Claims {
    values: HashMap<String, String>,
    /// First and last second at which the token is valid, including the leeway. `None` means always.
    valid: Option<(i64, i64)>,
}

/// Claims of the tokens of one request; `None` for an invalid token.
pub enum TokenClaims {
    One(Arc<Claims>),
    /// The request has several tokens, and servers differ in which one they use.
    Several {
        first: Option<Arc<Claims>>,
        last: Option<Arc<Claims>>,
    },
}

/// A request's token, before its signature is verified.
pub enum PresentedToken {
    /// The request contains no token.
    Missing,
    /// The request contains several tokens, of which servers may use any, or a token that has expired.
    Invalid,
    /// The token was verified recently, and is still valid.
    Verified(Arc<Claims>),
    /// The signature is still to be verified.
    Unverified,
}

/// Tolerated difference between the clocks of the issuer and the gateway.
const LEEWAY_S: u64 = 60;
/// Size of a cache generation. The cache has at most twice as many tokens.
const GENERATION_MAX: usize = 1024;

/// Cache with two generations. When the young one is full, it replaces the old one, which drops all tokens that were
/// not used meanwhile.
#[derive(Default)]
struct TokenCache {
    young: HashMap<[u8; 32], Arc<Claims>>,
    old: HashMap<[u8; 32], Arc<Claims>>,
}

impl TokenVerifier {
    /// Creates the settings. `secret` is only used to compare keys.
    pub fn new(
        header: HeaderName,
        key: DecodingKey,
        secret: &[u8],
        algorithms: &[Algorithm],
        issuer: &[String],
        audience: &[String],
    ) -> TokenVerifier {
        verifier::install_provider();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.algorithms = algorithms.to_vec();
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
        let key_digest = Sha256::digest(secret).into();
        TokenVerifier { header, key, validation, cache: Mutex::default(), key_digest }
    }

    /// Returns the claims of a request's token. Returns `None` if there is no token, or none that is valid at `now_s`.
    pub fn verify_request(&self, headers: &HeaderMap, now_s: i64) -> Option<TokenClaims> {
        let of = |repeated| inputs::find_header(headers, &self.header, repeated);
        let verified = |found: FoundValue| self.verify_header(&found.ok()??, now_s);
        match of(Repeated::Refuse) {
            Err(Ambiguous) => {
                let (first, last) = (verified(of(Repeated::First)), verified(of(Repeated::Last)));
                Some(TokenClaims::Several { first, last })
            }
            one => verified(one).map(TokenClaims::One),
        }
    }

    /// Returns the same claims as [`TokenVerifier::verify_request`], and remembers none: to explain a request must not
    /// change how the next one is verified.
    pub fn verify_without_cache(&self, headers: &HeaderMap, now_s: i64) -> Option<TokenClaims> {
        let fresh = TokenVerifier {
            header: self.header.clone(),
            key: self.key.clone(),
            validation: self.validation.clone(),
            cache: Mutex::default(),
            key_digest: self.key_digest,
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
        let token = token_of(&field);
        // Another scheme, such as `Basic`, is no token.
        if token.is_empty() || (self.header == AUTHORIZATION && token.contains(&b' ')) {
            return PresentedToken::Missing;
        }
        match self.lock().get(&Sha256::digest(token).into()) {
            Some(claims) if claims.is_valid_at(now_s) => PresentedToken::Verified(claims),
            Some(_) => PresentedToken::Invalid,
            None => PresentedToken::Unverified,
        }
    }

    fn verify_header(&self, field: &[u8], now_s: i64) -> Option<Arc<Claims>> {
        let token = token_of(field);
        let id: [u8; 32] = Sha256::digest(token).into();
        let known = self.lock().get(&id);
        if let Some(claims) = known {
            return claims.is_valid_at(now_s).then_some(claims);
        }
        let token = decode::<Map<String, Value>>(token, &self.key, &self.validation).ok()?;
        // A token with an unknown critical extension must be rejected (RFC 7515, 4.1.11), and no extension is known
        // here.
        token.header.crit.is_none().then_some(())?;
        let claims = Arc::new(Claims::from_verified(token.claims));
        self.lock().put(id, claims.clone());
        Some(claims)
    }

    /// Locks the cache. A panic in another worker leaves complete generations, so it remains usable.
    fn lock(&self) -> std::sync::MutexGuard<'_, TokenCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the token in the value of a header, without `Bearer `.
fn token_of(field: &[u8]) -> &[u8] {
    match field {
        [scheme @ .., _] if scheme.len() >= 7 && scheme[..7].eq_ignore_ascii_case(b"bearer ") => {
            field[7..].trim_ascii()
        }
        token => token,
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Compares the settings, without the cache.
impl PartialEq for TokenVerifier {
    fn eq(&self, other: &TokenVerifier) -> bool {
        let TokenVerifier { header, key: _, validation, cache: _, key_digest } = self;
        (header, validation, key_digest) == (&other.header, &other.validation, &other.key_digest)
    }
}

impl TokenCache {
    fn get(&mut self, id: &[u8; 32]) -> Option<Arc<Claims>> {
        if let Some(claims) = self.young.get(id) {
            return Some(claims.clone());
        }
        let claims = self.old.remove(id)?;
        self.put(*id, claims.clone());
        Some(claims)
    }

    fn put(&mut self, id: [u8; 32], claims: Arc<Claims>) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, claims);
    }
}

impl TokenClaims {
    /// Returns the claims if the request has only one token.
    pub fn into_only(self) -> Option<Arc<Claims>> {
        match self {
            TokenClaims::One(claims) => Some(claims),
            TokenClaims::Several { .. } => None,
        }
    }

    /// Returns a claim.
    ///
    /// # Errors
    /// There are several tokens, and `repeated` does not choose one.
    pub fn get(&self, name: &str, repeated: Repeated) -> Result<Option<&str>, Ambiguous> {
        let claims = match (self, repeated) {
            (TokenClaims::One(claims), _) => Some(claims),
            (TokenClaims::Several { .. }, Repeated::Refuse) => return Err(Ambiguous),
            (TokenClaims::Several { first, .. }, Repeated::First) => first.as_ref(),
            (TokenClaims::Several { last, .. }, Repeated::Last) => last.as_ref(),
        };
        Ok(claims.and_then(|claims| claims.get(name)))
    }
}

impl Claims {
    /// Converts the claims of a token that has just been verified.
    fn from_verified(claims: Map<String, Value>) -> Claims {
        // Times may have fractions.
        #[expect(clippy::cast_possible_truncation, reason = "saturates, and is far from any time that matters")]
        let time = |name: &str| claims.get(name).and_then(Value::as_f64).map(|seconds| seconds.floor() as i64);
        let leeway = i64::try_from(LEEWAY_S).unwrap_or(0);
        let from = time("nbf").map_or(i64::MIN, |nbf| nbf.saturating_sub(leeway));
        let until = time("exp").map_or(i64::MAX, |exp| exp.saturating_add(leeway));
        let text = |value| match value {
            Value::String(text) => Some(text),
            Value::Number(number) if !number.is_f64() => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        };
        let values = claims.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect();
        Claims { values, valid: Some((from, until)) }
    }

    /// Returns a claim.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn is_valid_at(&self, now_s: i64) -> bool {
        self.valid.is_none_or(|(from, until)| from <= now_s && now_s <= until)
    }
}

impl FromIterator<(String, String)> for Claims {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(values: I) -> Claims {
        Claims { values: values.into_iter().collect(), valid: None }
    }
}
