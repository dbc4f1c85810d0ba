//! Patterns for descriptors: which entries a descriptor must have.

use std::fmt;

use crate::limiting::source::DescriptorEntry;
use crate::text::Wildcard;

/// Pattern for an entire descriptor. It matches only descriptors with the same number of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorPattern {
    pub entries: Vec<EntryPattern>,
    /// The entries must come in this order.
    pub is_ordered: bool,
}

/// Pattern for one entry: its key, and what its value may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPattern {
    pub key: String,
    pub value: ValuePattern,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePattern {
    Exact(String),
    /// The pieces between the stars in order: the first is a prefix of the value, the last a suffix.
    Wildcard(Wildcard),
    Any,
}

impl ValuePattern {
    /// Parses `*`, a text with stars, or an exact text.
    pub fn parse(text: &str) -> ValuePattern {
        match text {
            "*" => ValuePattern::Any,
            text if text.contains('*') => ValuePattern::Wildcard(Wildcard::new(text)),
            text => ValuePattern::Exact(text.to_owned()),
        }
    }

    /// Returns whether the pattern matches a value.
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            ValuePattern::Any => true,
            ValuePattern::Exact(text) => text.as_bytes() == value,
            ValuePattern::Wildcard(wildcard) => wildcard.matches(value),
        }
    }
}

impl fmt::Display for ValuePattern {
    /// Writes the pattern as the config has it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValuePattern::Any => formatter.write_str("*"),
            ValuePattern::Exact(text) => formatter.write_str(text),
            ValuePattern::Wildcard(wildcard) => wildcard.fmt(formatter),
        }
    }
}

impl EntryPattern {
    /// Returns whether the pattern matches an entry.
    pub fn matches(&self, entry: &DescriptorEntry<'_>) -> bool {
        self.key.as_bytes() == entry.key && self.value.matches(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, value, matches) in [
            ("*", "", true),
            ("*", "a", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "a", true),
            ("a*", "ab", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "acbc", true),
            ("a*b*c", "acb", false),
            ("**", "x", true),
            ("a**b", "ab", true),
        ] {
            assert_eq!(ValuePattern::parse(pattern).matches(value.as_bytes()), matches, "{pattern} {value}");
        }
    }
}
