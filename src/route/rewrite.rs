//! `rewrite.path` and `rewrite.query`: the target that the server gets, made of captures of the path that the route has
//! matched.
//!
//! Input: the compiled options, and the path and query of a request. Output: another path or query. The result is not
//! judged here: `proxy::head::rewritten` does that, under the rules for received paths.

use std::ops::Range;

use crate::canonical::{CanonicalPath, find_segment, find_sent_piece, repair_path};
use crate::limiting::source::inputs::remove_parameters;
use crate::route::matcher::PathPattern;
use crate::template::{Piece, TextTemplate};
use crate::text::push_percent_encoded;

/// A compiled `rewrite.path` and `rewrite.query`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TargetRewrite {
    /// The path to send. `None` leaves it to the prefixes.
    pub path: Option<TextTemplate<Capture>>,
    pub query: QueryEdit,
}

/// A piece of the path that the route has matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// The segment with this index: a parameter of the route's template.
    Segment(usize),
    /// The group with this number of the route's regular expression.
    Group(usize),
}

/// Changes of the query, in the order of the fields. Names are plain texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct QueryEdit {
    /// Parameters to remove: all in `remove` and in `set`.
    pub remove: Vec<String>,
    /// Parameters to append: first `set`, then `add`. The literal texts of values are encoded.
    pub append: Vec<(String, TextTemplate<Capture>)>,
}

/// The target of a request after the `rewrite` of its route.
#[derive(Clone, Debug)]
pub struct RewrittenTarget {
    /// The path in its spelling for servers.
    pub path: String,
    /// The query without `?`. `None` sends none.
    pub query: Option<String>,
    /// The canonical form of `path`.
    canonical: CanonicalPath,
}

impl RewrittenTarget {
    pub fn new(path: String, query: Option<String>) -> RewrittenTarget {
        RewrittenTarget { canonical: repair_path(&path), path, query }
    }

    /// Returns the canonical form of the path, with merged slashes.
    pub fn read_path(&self) -> &str {
        self.canonical.to_read(&self.path)
    }
}

/// The path of a request, and where its groups are.
pub struct MatchedPath<'p> {
    /// The path that the route has matched.
    read: &'p str,
    /// The same path in the spelling for servers.
    sent: &'p str,
    /// The ranges of the groups in `read`. Empty if no capture is a group.
    groups: Vec<Option<Range<usize>>>,
}

/// A group begins or ends within an encoded byte, such as `%2F`.
#[derive(Debug, PartialEq, Eq)]
pub struct SplitByte;

impl TargetRewrite {
    /// Returns whether any text has a group of a regular expression.
    fn has_groups(&self) -> bool {
        let texts = self.path.iter().chain(self.query.append.iter().map(|(_, value)| value));
        texts.flat_map(TextTemplate::placeholders).any(|capture| matches!(capture, Capture::Group(_)))
    }
}

impl<'p> MatchedPath<'p> {
    /// Finds the captures that `rewrite` needs in a path that `pattern` matches.
    ///
    /// # Errors
    /// A capture has a part of an encoded byte, so that it has no meaning of its own.
    pub fn new(
        pattern: &PathPattern,
        read: &'p str,
        sent: &'p str,
        rewrite: &TargetRewrite,
    ) -> Result<MatchedPath<'p>, SplitByte> {
        let mut groups = Vec::new();
        if let PathPattern::Regex(regex) = pattern
            && rewrite.has_groups()
            && let Some(captures) = regex.captures(read)
        {
            groups.extend(captures.iter().map(|group| group.map(|group| group.range())));
        }
        let mut ends = groups.iter().flatten().flat_map(|range| [range.start, range.end]);
        if ends.any(|at| is_within_encoded_byte(read, at)) {
            return Err(SplitByte);
        }
        Ok(MatchedPath { read, sent, groups })
    }

    /// Returns the range of a group in the path that the route has matched.
    pub fn find_group(&self, number: usize) -> Option<Range<usize>> {
        self.groups.get(number).cloned().flatten()
    }

    /// Returns a capture in the spelling for servers. A group that took no part in the match is empty.
    fn capture(&self, capture: Capture) -> &'p str {
        match capture {
            Capture::Segment(index) => find_segment(self.sent, index).unwrap_or_default(),
            Capture::Group(number) => match self.groups.get(number) {
                Some(Some(range)) => find_sent_piece(self.read, self.sent, range.start, range.end),
                _ => "",
            },
        }
    }

    /// Returns the path that `template` makes. Where two pieces meet, one slash is enough, so that an empty capture
    /// leaves no empty segment. Repeated slashes within a piece are those that the route keeps.
    pub fn render_path(&self, template: &TextTemplate<Capture>) -> String {
        let mut path = String::new();
        for piece in template.pieces() {
            let text = match piece {
                Piece::Literal(text) => text,
                Piece::Placeholder(capture) => self.capture(*capture),
            };
            path.push_str(if path.ends_with('/') { text.trim_start_matches('/') } else { text });
        }
        path
    }
}

impl QueryEdit {
    /// Returns the query for the server. `None` sends none.
    pub fn apply(&self, query: Option<&str>, matched: &MatchedPath) -> Option<String> {
        let mut new_query = query.map(|query| remove_parameters(query, &self.remove)).unwrap_or_default();
        for (name, value) in &self.append {
            if !new_query.is_empty() {
                new_query.push('&');
            }
            push_plain(&mut new_query, name);
            new_query.push('=');
            new_query += &value.render(|capture, out| push_capture(out, matched.capture(*capture)));
        }
        let is_received = query.is_some_and(|query| query == new_query);
        (!new_query.is_empty() || is_received).then_some(new_query)
    }
}

/// Returns whether a boundary is between `%` and its two digits. In a canonical path, each `%` begins an encoded byte.
fn is_within_encoded_byte(path: &str, at: usize) -> bool {
    let before = &path.as_bytes()[..at.min(path.len())];
    matches!(before, [.., b'%'] | [.., b'%', _])
}

/// Returns a plain text of the config as it stands in a query.
pub fn encode_plain(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    push_plain(&mut output, text);
    output
}

fn push_plain(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            push_percent_encoded(out, byte);
        }
    }
}

/// Appends a piece of the path to a query, where it must not add parameters and `+` would be a space. `%` stays,
/// because the piece is encoded already.
fn push_capture(out: &mut String, piece: &str) {
    for byte in piece.bytes() {
        if byte == b'%' { out.push('%') } else { push_plain(out, char::from(byte).encode_utf8(&mut [0; 4])) }
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    fn groups(text: &str) -> TextTemplate<Capture> {
        let parse = |name: &str, _: usize| Ok::<_, std::num::ParseIntError>(Some(Capture::Group(name.parse()?)));
        TextTemplate::parse(text, parse).unwrap()
    }

    fn rewrite(regex: &str, to: &str, read: &str, sent: &str) -> Result<String, SplitByte> {
        let target = TargetRewrite { path: Some(groups(to)), query: QueryEdit::default() };
        let pattern = PathPattern::Regex(Regex::new(regex).unwrap());
        let matched = MatchedPath::new(&pattern, read, sent, &target)?;
        Ok(matched.render_path(target.path.as_ref().unwrap()))
    }

    #[test]
    fn captures_keep_the_spelling_for_servers() {
        for (regex, to, read, sent, path) in [
            ("^/blog/(.*)$", "/v1/{1}", "/blog/a/b", "/blog/a/b", "/v1/a/b"),
            ("^/(.)/(.*)$", "/{2}/{1}", "/@/b@", "/%40/b%40", "/b%40/%40"),
            ("^/(@)(.*)$", "/x{2}", "/@:b", "/%40:b", "/x:b"),
            ("^/(a)?(b)$", "/{1}/{2}", "/b", "/b", "/b"),
            ("^/a(.*)$", "/v/{1}", "/a", "/a", "/v/"),
            ("^/x/(.*)$", "/v/{1}", "/x/a%2F..%3F", "/x/a%2F..%3F", "/v/a%2F..%3F"),
            ("^/x/(.*)$", "/{0}", "/x/y", "/x/y", "/x/y"),
            ("^/x/(.*)/(.*)$", "/{1}/a/{2}", "/x/y/z", "/x//y///z", "/y/a/z"),
            ("^/x(/.*)$", "/v{1}", "/x/https:/a", "/x//https://a", "/v//https://a"),
        ] {
            assert_eq!(rewrite(regex, to, read, sent).as_deref(), Ok(path), "{regex} {sent}");
        }
        for regex in ["^/x/%(.*)$", "^/x/(%.)", "^/x/.(.)F", "^/x/..(.*)$"] {
            assert_eq!(rewrite(regex, "/v/{1}", "/x/%2F", "/x/%2F"), Err(SplitByte), "{regex}");
        }
    }

    #[test]
    fn a_query_is_edited_by_name() {
        let path = "/a/1&x=2+%26";
        let pattern = PathPattern::Regex(Regex::new("^/a/(.*)$").unwrap());
        let value = groups("{1}");
        let query = QueryEdit {
            remove: vec!["id".to_owned(), "gone".to_owned()],
            append: vec![("id".to_owned(), value), ("b c".to_owned(), groups("1"))],
        };
        let rewrite = TargetRewrite { path: None, query };
        let matched = MatchedPath::new(&pattern, path, path, &rewrite).unwrap();
        let appended = "id=1%26x%3D2%2B%26&b%20c=1";
        for (received, sent) in [
            (None, ""),
            (Some(""), ""),
            (Some("x=1"), "x=1&"),
            (Some("id=2&x=1&id=3"), "x=1&"),
            (Some("%69d=2&ID=3&id[]=4&gone"), ""),
            (Some("x=1;id=2&y"), "x=1&y&"),
            (Some("?id=2&idx=3"), "idx=3&"),
        ] {
            assert_eq!(rewrite.query.apply(received, &matched), Some(format!("{sent}{appended}")), "{received:?}");
        }
        let only_removes = QueryEdit { remove: vec!["id".to_owned()], append: Vec::new() };
        for (received, sent) in [(None, None), (Some(""), Some("")), (Some("id=1"), None), (Some("a&&b"), Some("a&&b"))]
        {
            assert_eq!(only_removes.apply(received, &matched).as_deref(), sent, "{received:?}");
        }
    }
}
