//! Why a route does not match a request, condition by condition, for explanations. The lookup of requests is in
//! `table`; a test of `explain` checks that both agree.

use http::{HeaderMap, HeaderName, Method};

use crate::route::matcher::{HostPattern, Matcher, PathPattern, Segment};

/// A condition of a route that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch<'r> {
    Host,
    Path,
    Method,
    /// A header is absent or has another value. Contains its index in [`Matcher::headers`].
    Header(usize, &'r HeaderName),
}

impl Matcher {
    /// Returns the conditions that a request does not meet. `host` and `path` must be canonical.
    pub fn find_mismatches(&self, host: &str, path: &str, method: &Method, headers: &HeaderMap) -> Vec<Mismatch<'_>> {
        let mut mismatches = Vec::new();
        if !self.hosts.is_empty() && !self.hosts.iter().any(|pattern| pattern.matches(host)) {
            mismatches.push(Mismatch::Host);
        }
        if !self.path.matches(path) {
            mismatches.push(Mismatch::Path);
        }
        if !self.methods.is_empty() && !self.methods.contains(method) {
            mismatches.push(Mismatch::Method);
        }
        let wrong = self.headers.iter().enumerate().filter(|(_, (name, pattern))| !pattern.matches_any(headers, name));
        mismatches.extend(wrong.map(|(index, (name, _))| Mismatch::Header(index, name)));
        mismatches
    }
}

impl HostPattern {
    fn matches(&self, host: &str) -> bool {
        match self {
            HostPattern::Exact(name) => name == host,
            HostPattern::Suffix(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
            HostPattern::Prefix(prefix) => host.len() > prefix.len() && host.starts_with(prefix.as_str()),
        }
    }
}

impl PathPattern {
    /// Returns true if the pattern matches a canonical path.
    pub fn matches(&self, path: &str) -> bool {
        let (segments, exact) = match self {
            PathPattern::Regex(regex) => return regex.is_match(path),
            PathPattern::Segments { segments, exact } => (segments, *exact),
        };
        let mut rest = match path.strip_prefix('/') {
            Some("") => None,
            Some(rest) => Some(rest),
            // `*` has no segments.
            None => return segments.is_empty() && !exact,
        };
        for segment in segments {
            let Some(text) = rest else { return false };
            let (found, next) = text.split_once('/').map_or((text, None), |(found, next)| (found, Some(next)));
            let is_equal = match segment {
                Segment::Literal(literal) => literal == found,
                Segment::Param(_) => true,
            };
            if found.is_empty() || !is_equal {
                return false;
            }
            rest = next;
        }
        let is_template = segments.iter().any(|segment| matches!(segment, Segment::Param(_)));
        !exact || rest.is_none() || (is_template && rest == Some(""))
    }

    /// Returns how many leading segments a path shares with the pattern: the more, the nearer it is.
    pub fn count_shared_segments(&self, path: &str) -> usize {
        let PathPattern::Segments { segments, .. } = self else { return 0 };
        let path_segments = path.trim_start_matches('/').split('/');
        let shared = segments.iter().zip(path_segments).take_while(|(segment, text)| match segment {
            Segment::Literal(literal) => literal == text,
            Segment::Param(_) => !text.is_empty(),
        });
        shared.count()
    }
}
