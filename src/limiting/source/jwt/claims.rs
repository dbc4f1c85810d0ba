//! Claims of verified tokens, and how limits read them: by name, or by a JSON pointer into nested ones.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::limiting::source::{Ambiguous, Repeated};

/// Claims of a verified token.
#[derive(Debug, PartialEq)]
pub struct Claims {
    /// An object.
    document: Value,
    /// First and last second at which the token is valid, including the leeway. `None` means always.
    valid: Option<(i64, i64)>,
}

/// Claims of the token in one line of a header; `None` if it has no valid one. A line is ambiguous if some servers find
/// a token in it and others do not.
pub type LineClaims = Result<Option<Arc<Claims>>, Ambiguous>;

/// Claims of the tokens of one request.
pub enum TokenClaims {
    One(Arc<Claims>),
    /// Servers differ in the token that they use: the request has several lines, or one that is ambiguous.
    Several {
        first: LineClaims,
        last: LineClaims,
    },
}

impl TokenClaims {
    /// Returns the claims if the request has only one token.
    pub fn into_only(self) -> Option<Arc<Claims>> {
        match self {
            TokenClaims::One(claims) => Some(claims),
            TokenClaims::Several { .. } => None,
        }
    }

    /// Returns the value of a claim. An array is several values, also if it has one element: with the next one, a
    /// client would have another key.
    ///
    /// # Errors
    /// There are several values or several tokens, and `repeated` does not choose one; or the token is ambiguous.
    pub fn get(&self, name: &str, repeated: Repeated) -> Result<Option<Cow<'_, str>>, Ambiguous> {
        let Some(value) = self.choose(repeated)?.and_then(|claims| claims.find(name)) else { return Ok(None) };
        let Value::Array(items) = value else { return Ok(text_of(value)) };
        let item = match repeated {
            Repeated::Refuse if !items.is_empty() => return Err(Ambiguous),
            Repeated::Refuse | Repeated::First => items.first(),
            Repeated::Last => items.last(),
        };
        Ok(item.and_then(text_of))
    }

    /// Returns the value of a claim, or all elements of an array.
    ///
    /// # Errors
    /// There are several tokens, and `repeated` does not choose one; or the token is ambiguous.
    pub fn list(&self, name: &str, repeated: Repeated) -> Result<Vec<Cow<'_, str>>, Ambiguous> {
        Ok(self.choose(repeated)?.map(|claims| claims.list(name)).unwrap_or_default())
    }

    fn choose(&self, repeated: Repeated) -> Result<Option<&Claims>, Ambiguous> {
        match (self, repeated) {
            (TokenClaims::One(claims), _) => Ok(Some(claims)),
            (TokenClaims::Several { .. }, Repeated::Refuse) => Err(Ambiguous),
            (TokenClaims::Several { first: line, .. }, Repeated::First)
            | (TokenClaims::Several { last: line, .. }, Repeated::Last) => match line {
                Ok(claims) => Ok(claims.as_deref()),
                Err(Ambiguous) => Err(Ambiguous),
            },
        }
    }
}

impl Claims {
    /// Converts the claims of a token that has just been verified. `leeway_s` is the tolerated difference of clocks.
    pub(super) fn from_verified(claims: Map<String, Value>, leeway_s: i64) -> Claims {
        // Times may have fractions.
        #[expect(clippy::cast_possible_truncation, reason = "saturates, and is far from any time that matters")]
        let time = |name: &str| claims.get(name).and_then(Value::as_f64).map(|seconds| seconds.floor() as i64);
        let from = time("nbf").map_or(i64::MIN, |nbf| nbf.saturating_sub(leeway_s));
        let until = time("exp").map_or(i64::MAX, |exp| exp.saturating_add(leeway_s));
        Claims { valid: Some((from, until)), document: Value::Object(claims) }
    }

    /// Returns a claim that is a string, an integer or a boolean.
    pub fn get(&self, name: &str) -> Option<Cow<'_, str>> {
        self.find(name).and_then(text_of)
    }

    fn list(&self, name: &str) -> Vec<Cow<'_, str>> {
        match self.find(name) {
            Some(Value::Array(items)) => items.iter().filter_map(text_of).collect(),
            one => one.and_then(text_of).into_iter().collect(),
        }
    }

    /// Returns the claim with this name, or what a pointer points to.
    fn find(&self, name: &str) -> Option<&Value> {
        if name.starts_with('/') { self.document.pointer(name) } else { self.document.get(name) }
    }

    pub(super) fn is_valid_at(&self, now_s: i64) -> bool {
        self.valid.is_none_or(|(from, until)| from <= now_s && now_s <= until)
    }
}

fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) if !number.is_f64() => Some(number.to_string().into()),
        Value::Bool(flag) => Some(flag.to_string().into()),
        _ => None,
    }
}

impl Default for Claims {
    fn default() -> Claims {
        Claims { document: Value::Object(Map::new()), valid: None }
    }
}

impl FromIterator<(String, String)> for Claims {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(values: I) -> Claims {
        let values = values.into_iter().map(|(name, value)| (name, Value::String(value)));
        Claims { document: Value::Object(values.collect()), valid: None }
    }
}
