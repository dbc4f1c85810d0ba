//! The conditions of a route: patterns for hosts and paths, methods and headers.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use regex::Regex;

use crate::limiting::limit::when::Expression;

/// The conditions of a route. All must be true; an empty list is not a condition.
#[derive(Debug, PartialEq)]
pub struct Matcher {
    pub hosts: Vec<HostPattern>,
    pub path: PathPattern,
    pub methods: Vec<Method>,
    /// Headers that must be present with such values.
    pub headers: Vec<(HeaderName, HeaderPattern)>,
}

impl Matcher {
    /// Returns the number of conditions besides host and path.
    pub fn count_conditions(&self) -> usize {
        usize::from(!self.methods.is_empty()) + self.headers.len()
    }

    /// Returns true if the conditions besides host and path are true.
    pub fn matches_conditions(&self, method: &Method, headers: &HeaderMap) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self.headers.iter().all(|(name, pattern)| pattern.matches_any(headers, name))
    }

    /// Returns true if this matches every request that `other` matches, as far as patterns can be compared.
    pub fn covers_all_of(&self, other: &Matcher) -> bool {
        let hosts = self.hosts.is_empty()
            || (!other.hosts.is_empty() && other.hosts.iter().all(|host| self.hosts.contains(host)));
        hosts && self.path.covers(&other.path) && self.covers(other)
    }

    /// Returns true if this matches every request that `other` matches, provided that host and path are equal.
    pub fn covers(&self, other: &Matcher) -> bool {
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty() && other.methods.iter().all(|method| self.methods.contains(method)));
        methods && self.headers.iter().all(|condition| other.headers.contains(condition))
    }
}

/// A pattern for the value of a header.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderPattern {
    Text(HeaderValue),
    Regex(Expression),
}

impl HeaderPattern {
    /// Returns true if one of the lines of the header `name` matches.
    pub fn matches_any(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        headers.get_all(name).iter().any(|found| match self {
            HeaderPattern::Text(value) => found == value,
            HeaderPattern::Regex(expression) => expression.is_match(found.as_bytes()),
        })
    }
}

/// Writes the pattern as in the config.
impl fmt::Display for HeaderPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderPattern::Text(value) => {
                let text = String::from_utf8_lossy(value.as_bytes());
                let sign = if text.starts_with(['~', '=']) { "= " } else { "" };
                write!(f, "{sign}{text}")
            }
            HeaderPattern::Regex(Expression { regex, ignore_case: true }) => write!(f, "~i {regex}"),
            HeaderPattern::Regex(Expression { regex, ignore_case: false }) => write!(f, "~ {regex}"),
        }
    }
}

/// A pattern for canonical hosts: in lower case, without a port or a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    Exact(String),
    /// `*.example.com`, stored as `.example.com`. Matches one or more labels before it.
    Suffix(String),
    /// `app.*`, stored as `app.`. Matches one or more labels after it.
    Prefix(String),
}

/// Writes the pattern as in the config.
impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(name) => f.write_str(name),
            HostPattern::Suffix(suffix) => write!(f, "*{suffix}"),
            HostPattern::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// A pattern for canonical paths.
#[derive(Clone, Debug)]
pub enum PathPattern {
    /// The path must start with `segments`. If `exact`, it must also end there, except that one slash may follow the
    /// segments of a template.
    Segments {
        segments: Vec<Segment>,
        exact: bool,
    },
    Regex(Regex),
}

impl PathPattern {
    /// Returns true if this is `other` or the start of it.
    fn covers(&self, other: &PathPattern) -> bool {
        match (self, other) {
            (
                PathPattern::Segments { segments, exact: false },
                PathPattern::Segments { segments: other_segments, .. },
            ) => other_segments.starts_with(segments),
            _ => self == other,
        }
    }
}

/// Writes the pattern as in the config, without the mark of an exact path.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPattern::Regex(regex) => f.write_str(regex.as_str()),
            PathPattern::Segments { segments, .. } => {
                for segment in segments {
                    match segment {
                        Segment::Literal(text) => write!(f, "/{text}")?,
                        Segment::Param(name) => write!(f, "/{{{name}}}")?,
                    }
                }
                f.write_str(if segments.is_empty() { "/" } else { "" })
            }
        }
    }
}

/// Compares patterns as written.
impl PartialEq for PathPattern {
    fn eq(&self, other: &PathPattern) -> bool {
        match (self, other) {
            (
                PathPattern::Segments { segments, exact },
                PathPattern::Segments { segments: other_segments, exact: other_exact },
            ) => (segments, exact) == (other_segments, other_exact),
            (PathPattern::Regex(regex), PathPattern::Regex(other)) => regex.as_str() == other.as_str(),
            (PathPattern::Segments { .. } | PathPattern::Regex(_), _) => false,
        }
    }
}

/// A segment of a path pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    Literal(String),
    /// `{name}`: any one non-empty segment.
    Param(String),
}
