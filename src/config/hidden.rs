//! Values that stand for `${...}` and that no message may show. Made by `substitute`, applied by `source`.

use std::sync::Arc;

use super::report::SourceText;

/// A value that replaced a `${...}`, and that expression. Values may be secrets.
#[derive(Debug, PartialEq)]
pub struct Substitution {
    pub value: String,
    pub written: String,
}

/// Shorter values are no secrets, and stand in many messages by coincidence.
const HIDDEN_MIN: usize = 4;

impl Substitution {
    /// `None` where there is nothing to hide: the value is too short, or stands in one of `texts` of its own.
    pub fn to_hide(&self, texts: &[Arc<SourceText>]) -> Option<&Substitution> {
        let is_public = || texts.iter().any(|source| source.text.contains(&self.value));
        (self.value.len() >= HIDDEN_MIN && !is_public()).then_some(self)
    }

    /// `message` with the expression in place of the value, however messages spell it: in another case, trimmed, escaped.
    pub fn hide(&self, message: &mut String) {
        let escaped = format!("{:?}", self.value);
        for spelling in [self.value.as_str(), self.value.trim(), escaped.trim_matches('"')] {
            if spelling.len() >= HIDDEN_MIN {
                replace_any_case(message, spelling, &self.written);
            }
        }
    }
}

fn replace_any_case(text: &mut String, from: &str, to: &str) {
    // ASCII only, so that offsets in the one are offsets in the other.
    let (mut rest, from) = (text.to_ascii_lowercase(), from.to_ascii_lowercase());
    let mut at = 0;
    while let Some(found) = rest.find(&from) {
        text.replace_range(at + found..at + found + from.len(), to);
        at += found + to.len();
        rest.drain(..found + from.len());
    }
}
