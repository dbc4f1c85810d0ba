//! Keeps the values of `${...}` out of messages. `substitute` records them; `source` hides them.

use std::sync::Arc;

use crate::config::diagnostics::report::SourceText;

/// A `${...}` expression and its value, which may be a secret.
#[derive(Debug, PartialEq)]
pub struct Substitution {
    pub value: String,
    pub written: String,
}

/// Shorter values are not hidden: they occur in many messages by coincidence.
const HIDDEN_MIN: usize = 4;

impl Substitution {
    /// Returns `self`, or `None` if there is nothing to hide: the value is too short, or one of `texts` contains it
    /// literally.
    pub fn if_hideable(&self, texts: &[Arc<SourceText>]) -> Option<&Substitution> {
        let is_public = || texts.iter().any(|source| source.text.contains(&self.value));
        (self.value.len() >= HIDDEN_MIN && !is_public()).then_some(self)
    }

    /// Replaces the value by the expression in `message`, even if the message changed its case, trimmed or escaped it.
    pub fn hide_value(&self, message: &mut String) {
        let escaped = format!("{:?}", self.value);
        for spelling in [self.value.as_str(), self.value.trim(), escaped.trim_matches('"')] {
            if spelling.len() >= HIDDEN_MIN {
                replace_any_case(message, spelling, &self.written);
            }
        }
    }
}

fn replace_any_case(text: &mut String, from: &str, to: &str) {
    // ASCII only, so that an offset in one text is the same offset in the other.
    let (mut rest, from) = (text.to_ascii_lowercase(), from.to_ascii_lowercase());
    let mut at = 0;
    while let Some(found) = rest.find(&from) {
        text.replace_range(at + found..at + found + from.len(), to);
        at += found + to.len();
        rest.drain(..found + from.len());
    }
}
