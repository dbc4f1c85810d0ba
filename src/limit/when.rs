//! Whether a limit applies to a request: the compiled `when`. The config compiler builds it, the
//! limiter asks it before it asks the limit.

use std::net::IpAddr;
use std::sync::Arc;

use regex::Regex;

use super::source::{Ambiguous, Facts, Repeated, Source, SourceKind};
use crate::net::{IpSet, Set};

/// Conditions that must all hold; none: the limit always applies.
#[derive(Debug, Default, PartialEq)]
pub struct When(pub Vec<Condition>);

#[derive(Debug, PartialEq)]
pub enum Condition {
    Text {
        source: Source,
        test: Test,
    },
    /// The client's address lies in one of the sets, or (`inside` false) in none.
    Client {
        sets: Vec<Arc<Set>>,
        nets: IpSet,
        inside: bool,
    },
}

#[derive(Debug, PartialEq)]
pub enum Test {
    /// There is a value, and one of the patterns takes it.
    Any(Vec<Pattern>),
    /// There is no value, or none of the patterns takes it.
    None(Vec<Pattern>),
}

#[derive(Debug, PartialEq)]
pub enum Pattern {
    NotEmpty,
    Text(String),
    /// An integer from the first to the second; another text is none.
    Integer(i64, i64),
    /// The pieces between the stars, in order: the first starts the value, the last ends it.
    Wildcard(Vec<String>),
    Set(Arc<Set>),
    Regex(Expression),
}

/// A regular expression that is found anywhere in a value, unless it says where.
#[derive(Clone, Debug)]
pub struct Expression {
    pub regex: Regex,
    pub ignore_case: bool,
}

/// As written.
impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        (self.regex.as_str(), self.ignore_case) == (other.regex.as_str(), other.ignore_case)
    }
}

impl When {
    /// What texts are compared of; the client is compared with networks.
    pub const SOURCES: [SourceKind; 10] = [
        SourceKind::Method,
        SourceKind::Path,
        SourceKind::Host,
        SourceKind::Route,
        SourceKind::Header,
        SourceKind::Cookie,
        SourceKind::Query,
        SourceKind::Param,
        SourceKind::Claim,
        SourceKind::Tls,
    ];

    /// # Errors
    /// Whether it holds depends on a value that stands there more than once, of which `repeated`
    /// chooses none.
    pub fn holds(&self, facts: &Facts, repeated: Repeated) -> Result<bool, Ambiguous> {
        let mut holds = Ok(true);
        for condition in &self.0 {
            match condition.holds(facts, repeated) {
                Ok(true) => {}
                // However the others are read.
                Ok(false) => return Ok(false),
                Err(Ambiguous) => holds = Err(Ambiguous),
            }
        }
        holds
    }

    /// What texts are read of. The client, which every request has, is not among it.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().filter_map(|condition| match condition {
            Condition::Text { source, .. } => Some(source),
            Condition::Client { .. } => None,
        })
    }
}

impl Condition {
    fn holds(&self, facts: &Facts, repeated: Repeated) -> Result<bool, Ambiguous> {
        Ok(match self {
            Condition::Text { source, test } => {
                let value = facts.text(source, repeated)?;
                match test {
                    Test::Any(patterns) => {
                        value.is_some_and(|value| patterns.iter().any(|pattern| pattern.takes(&value)))
                    }
                    Test::None(patterns) => {
                        value.is_none_or(|value| !patterns.iter().any(|pattern| pattern.takes(&value)))
                    }
                }
            }
            Condition::Client { sets, nets, inside } => client_in(sets, nets, facts.client) == *inside,
        })
    }
}

fn client_in(sets: &[Arc<Set>], nets: &IpSet, client: IpAddr) -> bool {
    nets.contains(client) || sets.iter().any(|set| set.networks.contains(client))
}

impl Pattern {
    pub fn takes(&self, value: &[u8]) -> bool {
        match self {
            Pattern::NotEmpty => !value.is_empty(),
            Pattern::Text(text) => value == text.as_bytes(),
            Pattern::Integer(from, to) => integer(value).is_some_and(|int| (*from..=*to).contains(&int)),
            Pattern::Wildcard(pieces) => wildcard(pieces, value),
            Pattern::Set(set) => str::from_utf8(value).is_ok_and(|text| set.strings.contains(text)),
            // Bytes that are no text stand for some character, so they hide nothing beside them.
            Pattern::Regex(Expression { regex, .. }) => regex.is_match(&String::from_utf8_lossy(value)),
        }
    }
}

/// Digits, with a minus sign or without. Those beyond the range of 64 bits count as its ends, so
/// that a longer number is not a way around a limit.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0_i64, |value, digit| {
        let digit = i64::from(digit - b'0');
        value.saturating_mul(10).saturating_add(if negative { -digit } else { digit })
    });
    Some(value)
}

/// Takes the leftmost place for each piece in the middle, which leaves most room for the rest.
fn wildcard(pieces: &[String], value: &[u8]) -> bool {
    let [first, middle @ .., last] = pieces else { return false };
    let Some(mut rest) = value.strip_prefix(first.as_bytes()).and_then(|rest| rest.strip_suffix(last.as_bytes()))
    else {
        return false;
    };
    middle.iter().filter(|piece| !piece.is_empty()).all(|piece| {
        match rest.windows(piece.len()).position(|window| window == piece.as_bytes()) {
            Some(at) => {
                rest = &rest[at + piece.len()..];
                true
            }
            None => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_are_whole_and_end_at_64_bits() {
        for (text, int) in [
            ("0", Some(0)),
            ("-7", Some(-7)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("99999999999999999999", Some(i64::MAX)),
            ("-99999999999999999999", Some(i64::MIN)),
            ("", None),
            ("-", None),
            ("+1", None),
            ("1.0", None),
            (" 1", None),
            ("1a", None),
        ] {
            assert_eq!(integer(text.as_bytes()), int, "{text}");
        }
    }

    /// The definition, character by character.
    fn naive(pattern: &[u8], value: &[u8]) -> bool {
        match (pattern, value) {
            ([], []) => true,
            ([b'*', rest @ ..], value) => {
                naive(rest, value) || matches!(value, [_, after @ ..] if naive(pattern, after))
            }
            ([a, rest @ ..], [b, after @ ..]) => a == b && naive(rest, after),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn stars_stand_for_any_run(pattern in "[ab*]{0,4}\\*[ab*]{0,4}", value in "[ab]{0,10}") {
            let pieces = pattern.split('*').map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(wildcard(&pieces, value.as_bytes()), naive(pattern.as_bytes(), value.as_bytes()));
        }
    }
}
