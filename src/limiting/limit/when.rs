//! The compiled `when` of a limit: whether the limit applies to a request.

use std::net::IpAddr;
use std::sync::Arc;

use regex::Regex;

use crate::limiting::integers::{NotInteger, ValueError, integer};
use crate::limiting::limit::address_set::AddressSet;
use crate::limiting::limit::schedule::Schedule;
use crate::limiting::source::calls::{Call, CallProtocol};
use crate::limiting::source::{Facts, Repeated, Source, SourceKind, SourceOrigin};
use crate::net::{IpSet, NamedSet};
use crate::text::Wildcard;

/// Conditions that must all be true. Without conditions the limit always applies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct When(pub Vec<Condition>);

/// One condition of a `when`.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    Text {
        source: Source,
        test: Test,
    },
    /// The address of the client is in one of the sets or networks; with `inside` false, in none of them.
    Client {
        sets: Vec<Arc<AddressSet>>,
        nets: IpSet,
        inside: bool,
    },
    /// The wall clock of this machine is at one of these times.
    Time(Schedule),
}

/// Test of a value of the request.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// There is a value, and one of the patterns matches it.
    Any(Vec<Pattern>),
    /// There is no value, or none of the patterns matches it.
    None(Vec<Pattern>),
}

/// Pattern that a value is compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    NotEmpty,
    Text(String),
    /// An integer between the two, both included.
    Integer(i64, i64),
    Wildcard(Wildcard),
    Set(Arc<NamedSet>),
    Regex(Expression),
}

/// A regular expression. It matches anywhere in the value unless it is anchored.
#[derive(Clone, Debug)]
pub struct Expression {
    pub regex: Regex,
    pub ignore_case: bool,
}

impl Expression {
    /// Returns true if the expression matches. A byte that is not UTF-8 counts as one character.
    pub fn is_match(&self, value: &[u8]) -> bool {
        self.regex.is_match(&String::from_utf8_lossy(value))
    }
}

/// Compares expressions by their text.
impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        (self.regex.as_str(), self.ignore_case) == (other.regex.as_str(), other.ignore_case)
    }
}

impl When {
    /// Sources whose values are compared as text. The client address is compared with networks instead.
    pub const SOURCES: [SourceKind; 16] = [
        SourceKind::Country,
        SourceKind::Method,
        SourceKind::Path,
        SourceKind::Host,
        SourceKind::Route,
        SourceKind::User,
        SourceKind::Header,
        SourceKind::Cookie,
        SourceKind::Query,
        SourceKind::Param,
        SourceKind::Claim,
        SourceKind::Tls,
        SourceKind::Descriptor,
        SourceKind::JsonRpcMethod,
        SourceKind::McpTool,
        SourceKind::GraphqlOperation,
    ];

    /// Returns whether a condition can only be true if a source has a value for which `is_meant` is true.
    pub fn requires(&self, is_meant: impl Fn(&Source) -> bool) -> bool {
        self.0.iter().any(|condition| match condition {
            Condition::Text { source, test: Test::Any(_) } => is_meant(source),
            Condition::Text { .. } | Condition::Client { .. } | Condition::Time(_) => false,
        })
    }

    /// Returns whether all conditions are true.
    ///
    /// # Errors
    /// The result depends on a repeated value of which `repeated` does not choose one, or on a value that must be an
    /// integer and is none.
    pub fn is_met(&self, facts: &Facts, repeated: Repeated, not_integer: NotInteger) -> Result<bool, ValueError> {
        let mut holds = Ok(true);
        for condition in self.0.iter().filter(|condition| !condition.reads_calls()) {
            match condition.is_met(facts, repeated, not_integer) {
                Ok(true) => {}
                // The result is false whatever the unclear values are.
                Ok(false) => return Ok(false),
                Err(unclear) => holds = Err(unclear),
            }
        }
        match self.call_protocol().map(|protocol| self.select_calls(protocol, facts, not_integer)) {
            Some(Ok(calls)) if calls.is_empty() => Ok(false),
            Some(Err(unclear)) => Err(unclear),
            Some(Ok(_)) | None => holds,
        }
    }

    /// Returns the protocol of the calls for which conditions have a value each.
    fn call_protocol(&self) -> Option<CallProtocol> {
        self.sources().find_map(Source::call_protocol)
    }

    /// Returns the calls in the body for which all conditions about calls are true. The others are as if they were not
    /// in the batch.
    ///
    /// # Errors
    /// The body cannot be read as calls, or a value that must be an integer is not one.
    pub fn select_calls<'f>(
        &self,
        protocol: CallProtocol,
        facts: &'f Facts,
        not_integer: NotInteger,
    ) -> Result<Vec<&'f Call>, ValueError> {
        let conditions = || {
            self.0.iter().filter_map(|condition| match condition {
                Condition::Text { source, test } if source.reads_calls() => Some((source, test)),
                _ => None,
            })
        };
        let mut selected = Vec::new();
        for call in facts.calls(protocol)? {
            let mut is_met = true;
            for (source, test) in conditions() {
                is_met &= test.is_met(call.value(source).map(str::as_bytes), not_integer)?;
            }
            if is_met {
                selected.push(call);
            }
        }
        Ok(selected)
    }

    /// Returns whether all conditions are true if only some sources are known. An error is an unknown source that the
    /// result depends on, because no known condition is false.
    pub fn is_met_if_known<'w>(
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
                // An unclear value refuses the request, so its result is known too.
                known if known.is_met(facts, repeated, not_integer) == Ok(false) => return Ok(false),
                _ => {}
            }
        }
        unknown
    }

    /// Sources whose values have to be integers.
    pub fn integer_sources(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().filter_map(|condition| match condition {
            Condition::Text { source, test } if test.has_integers() => Some(source),
            Condition::Text { .. } | Condition::Client { .. } | Condition::Time(_) => None,
        })
    }

    /// Returns whether a condition reads the address of the client.
    pub fn reads_client(&self) -> bool {
        self.0.iter().any(|condition| match condition {
            Condition::Text { source, .. } => source.reads_address(),
            Condition::Client { .. } => true,
            Condition::Time(_) => false,
        })
    }

    /// Returns whether a condition reads the body.
    pub fn reads_body(&self) -> bool {
        self.sources().any(|source| source.kind().origin() == SourceOrigin::Body)
    }

    /// Sources that are compared as text. The client address, which every request has, is not among them.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().filter_map(|condition| match condition {
            Condition::Text { source, .. } => Some(source),
            Condition::Client { .. } | Condition::Time(_) => None,
        })
    }
}

impl Condition {
    /// Returns whether each call in the body has its own value. It is enough that one of them meets the condition.
    fn reads_calls(&self) -> bool {
        matches!(self, Condition::Text { source, .. } if source.reads_calls())
    }

    /// Returns whether the condition is true.
    ///
    /// # Errors
    /// The result depends on a repeated value of which `repeated` does not choose one, or on a value that must be an
    /// integer and is none.
    pub fn is_met(&self, facts: &Facts, repeated: Repeated, not_integer: NotInteger) -> Result<bool, ValueError> {
        Ok(match self {
            // A claim that is an array has all its elements as values.
            Condition::Text { source: Source::Claim(name), test } => {
                let mut is_taken = Ok(false);
                for value in facts.claim_values(name, repeated)? {
                    match test.matches_any(value.as_bytes(), not_integer) {
                        Ok(false) => {}
                        Ok(true) => {
                            is_taken = Ok(true);
                            break;
                        }
                        Err(unclear) => is_taken = Err(unclear),
                    }
                }
                is_taken? == matches!(test, Test::Any(_))
            }
            Condition::Text { source, test } => match source.call_protocol() {
                Some(protocol) => {
                    let mut is_met = false;
                    for call in facts.calls(protocol)? {
                        is_met |= test.is_met(call.value(source).map(str::as_bytes), not_integer)?;
                    }
                    is_met
                }
                None => test.is_met(facts.text(source, repeated)?.as_deref(), not_integer)?,
            },
            Condition::Client { sets, nets, inside } => is_client_inside(sets, nets, *inside, facts.client),
            Condition::Time(schedule) => schedule.contains(facts.now_ms()),
        })
    }
}

/// Returns whether the client is in one of the sets or networks; with `inside` false, in none of them. A network that
/// may be in a set counts in the way in which the limit applies.
fn is_client_inside(sets: &[Arc<AddressSet>], nets: &IpSet, inside: bool, client: IpAddr) -> bool {
    let contains = |set: &Arc<AddressSet>| if inside { set.may_contain(client) } else { set.contains(client) };
    (nets.contains(client) || sets.iter().any(contains)) == inside
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

    /// Returns whether a value, which may be absent, passes the test.
    fn is_met(&self, value: Option<&[u8]>, not_integer: NotInteger) -> Result<bool, ValueError> {
        let is_taken = value.map(|value| self.matches_any(value, not_integer)).transpose()?.unwrap_or(false);
        Ok(is_taken == matches!(self, Test::Any(_)))
    }

    /// Returns whether one of the patterns matches the value.
    fn matches_any(&self, value: &[u8], not_integer: NotInteger) -> Result<bool, ValueError> {
        if self.patterns().iter().any(|pattern| pattern.matches(value)) {
            return Ok(true);
        }
        if self.has_integers() {
            not_integer.apply_to(integer(value))?;
        }
        Ok(false)
    }
}

impl Pattern {
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Pattern::NotEmpty => !value.is_empty(),
            Pattern::Text(text) => value == text.as_bytes(),
            Pattern::Integer(from, to) => integer(value).is_some_and(|int| (*from..=*to).contains(&int)),
            Pattern::Wildcard(wildcard) => wildcard.matches(value),
            Pattern::Set(set) => str::from_utf8(value).is_ok_and(|text| set.strings.contains(text)),
            // Bytes that are not UTF-8 become replacement characters, so they hide no match beside them.
            Pattern::Regex(expression) => expression.is_match(value),
        }
    }
}
