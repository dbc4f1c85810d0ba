//! Who a request says it is, when it can prove it: claims of a signed token (RFC 7519). Built by
//! the config compiler; asked by the request page for routes whose limits name a claim.

mod verifier;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, HeaderName};
pub use jsonwebtoken::{Algorithm, DecodingKey};
use jsonwebtoken::{Validation, decode};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::source::inputs::{self, Ambiguous, Found, Repeated};

/// How tokens are verified, and those verified lately.
pub struct Jwt {
    /// Holds the token, after `Bearer ` if that is there.
    pub header: HeaderName,
    key: DecodingKey,
    validation: Validation,
    cache: Mutex<Cache>,
    /// Of the key as configured.
    key_digest: [u8; 32],
}

/// The claims of a verified token that a key or a condition can use: strings, integers, booleans.
#[derive(Debug, Default, PartialEq)]
pub struct Claims {
    values: HashMap<String, String>,
    /// The times outside of which the token is not valid, in seconds, leeway included.
    valid: Option<(i64, i64)>,
}

/// What the tokens of one request say; `None` of one that is not valid.
pub enum TokenClaims {
    One(Arc<Claims>),
    /// Servers would not agree on which one counts.
    Several {
        first: Option<Arc<Claims>>,
        last: Option<Arc<Claims>>,
    },
}

/// Clocks of issuers may differ from ours by this much.
const LEEWAY_S: u64 = 60;
/// Tokens remembered are at most twice this many.
const GENERATION_MAX: usize = 1024;

/// Two generations: the old one goes whole when the young one is full, and with it every token
/// that was not seen meanwhile.
#[derive(Default)]
struct Cache {
    young: HashMap<[u8; 32], Arc<Claims>>,
    old: HashMap<[u8; 32], Arc<Claims>>,
}

impl Jwt {
    /// `secret` is only used to tell one key from another.
    pub fn new(
        header: HeaderName,
        key: DecodingKey,
        secret: &[u8],
        algorithms: &[Algorithm],
        issuer: &[String],
        audience: &[String],
    ) -> Jwt {
        verifier::install();
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
        Jwt { header, key, validation, cache: Mutex::default(), key_digest }
    }

    /// What the request's token says; `None` when there is none, or one that is not valid at `now_s`.
    pub fn claims(&self, headers: &HeaderMap, now_s: i64) -> Option<TokenClaims> {
        let of = |repeated| inputs::header(headers, &self.header, repeated);
        let verified = |found: Found| self.verified(&found.ok()??, now_s);
        match of(Repeated::Refuse) {
            Err(Ambiguous) => {
                let (first, last) = (verified(of(Repeated::First)), verified(of(Repeated::Last)));
                Some(TokenClaims::Several { first, last })
            }
            one => verified(one).map(TokenClaims::One),
        }
    }

    fn verified(&self, field: &[u8], now_s: i64) -> Option<Arc<Claims>> {
        let token = match field {
            [scheme @ .., _] if scheme.len() >= 7 && scheme[..7].eq_ignore_ascii_case(b"bearer ") => {
                field[7..].trim_ascii()
            }
            token => token,
        };
        let id: [u8; 32] = Sha256::digest(token).into();
        let known = self.lock().get(&id);
        if let Some(claims) = known {
            return claims.valid_at(now_s).then_some(claims);
        }
        let token = decode::<Map<String, Value>>(token, &self.key, &self.validation).ok()?;
        // Whoever does not know an extension that a token says is critical must not take it (RFC 7515,
        // 4.1.11), and none is known here.
        token.header.crit.is_none().then_some(())?;
        let claims = Arc::new(Claims::of(token.claims));
        self.lock().put(id, claims.clone());
        Some(claims)
    }

    /// A panic while holding it leaves whole generations.
    fn lock(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Whether both verify alike; tokens remembered change nothing of that.
impl PartialEq for Jwt {
    fn eq(&self, other: &Jwt) -> bool {
        let Jwt { header, key: _, validation, cache: _, key_digest } = self;
        (header, validation, key_digest) == (&other.header, &other.validation, &other.key_digest)
    }
}

impl Cache {
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
    /// # Errors
    /// There is more than one token, or one under another name of its field, and `repeated` chooses none.
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
    /// Of claims just found valid.
    fn of(claims: Map<String, Value>) -> Claims {
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

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn valid_at(&self, now_s: i64) -> bool {
        self.valid.is_none_or(|(from, until)| from <= now_s && now_s <= until)
    }
}

impl FromIterator<(String, String)> for Claims {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(values: I) -> Claims {
        Claims { values: values.into_iter().collect(), valid: None }
    }
}

#[cfg(test)]
mod tests;
