//! Whether a limit applies to a request: the compiled `when`. The config compiler builds it, the
//! limiter asks it before it asks the limit.

use std::net::IpAddr;
use std::sync::Arc;

use regex::Regex;

use super::integers::{NotInteger, Unclear, integer};
use super::source::{Facts, Repeated, Source, SourceKind};
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
    /// An integer from the first to the second.
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
    /// chooses none, or on one that must be an integer and is none.
    pub fn holds(&self, facts: &Facts, repeated: Repeated, not_integer: NotInteger) -> Result<bool, Unclear> {
        let mut holds = Ok(true);
        for condition in &self.0 {
            match condition.holds(facts, repeated, not_integer) {
                Ok(true) => {}
                // However the others are read.
                Ok(false) => return Ok(false),
                Err(unclear) => holds = Err(unclear),
            }
        }
        holds
    }

    /// Whether it holds, where only some sources are known: `Err` is an unknown one that it depends on, as no known
    /// condition fails.
    pub fn unknown<'w>(
        &'w self,
        facts: &Facts,
        repeated: Repeated,
        not_integer: NotInteger,
        is_known: impl Fn(&Source) -> bool,
    ) -> Result<bool, &'w Source> {
        let mut unknown = Ok(true);
        for condition in &self.0 {
            match condition {
                Condition::Text { source, .. } if !is_known(source) => unknown = unknown.and(Err(source)),
                // A value that stands there more than once has the request refused, which is known as well.
                known if known.holds(facts, repeated, not_integer) == Ok(false) => return Ok(false),
                _ => {}
            }
        }
        unknown
    }

    /// What has to be an integer.
    pub fn integers(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().filter_map(|condition| match condition {
            Condition::Text { source, test } if test.has_integers() => Some(source),
            Condition::Text { .. } | Condition::Client { .. } => None,
        })
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
    fn holds(&self, facts: &Facts, repeated: Repeated, not_integer: NotInteger) -> Result<bool, Unclear> {
        Ok(match self {
            Condition::Text { source, test } => {
                let value = facts.text(source, repeated)?;
                let is_taken = value.map(|value| test.takes(&value, not_integer)).transpose()?.unwrap_or(false);
                is_taken == matches!(test, Test::Any(_))
            }
            Condition::Client { sets, nets, inside } => client_in(sets, nets, facts.client) == *inside,
        })
    }
}

fn client_in(sets: &[Arc<Set>], nets: &IpSet, client: IpAddr) -> bool {
    nets.contains(client) || sets.iter().any(|set| set.networks.contains(client))
}

impl Test {
    fn patterns(&self) -> &[Pattern] {
        match self {
            Test::Any(patterns) | Test::None(patterns) => patterns,
        }
    }

    fn has_integers(&self) -> bool {
        self.patterns().iter().any(|pattern| matches!(pattern, Pattern::Integer(..)))
    }

    /// Whether one of the patterns takes the value.
    fn takes(&self, value: &[u8], not_integer: NotInteger) -> Result<bool, Unclear> {
        if self.patterns().iter().any(|pattern| pattern.takes(value)) {
            return Ok(true);
        }
        if self.has_integers() {
            not_integer.judged(integer(value))?;
        }
        Ok(false)
    }
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
