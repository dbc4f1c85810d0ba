//! Regular expressions that are written in a config, for the values of a source. One of which a part can match nothing
//! is a mistake.

use http::header::{AUTHORIZATION, HOST};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use crate::canonical;
use crate::limiting::source::Source;
use crate::limiting::source::canonical::title_scheme;
use crate::names::{TextFault, invalid_text};
use crate::text::{hex_byte, push_percent_encoded};

/// Most characters of a range in a class that are tried. Sources with an alphabet have no characters beyond ASCII.
const RANGE_MAX: usize = 256;

impl Source {
    /// Checks that a regular expression can match a value, and each part of it a part of one.
    ///
    /// # Errors
    /// The expression, or a part of it, matches nothing.
    pub fn check_written_expression(&self, pattern: &str, ignore_case: bool) -> Result<(), TextFault> {
        let mut parser = ParserBuilder::new();
        parser.case_insensitive(ignore_case).dot_matches_new_line(true);
        // The compiler of expressions reports texts that the parser refuses.
        let Ok(tree) = parser.build().parse(pattern) else { return Ok(()) };
        let shown = match self {
            // The pattern may have a secret.
            Source::Header(_) | Source::Cookie(_) => "the expression".to_owned(),
            _ => format!("`{pattern}`"),
        };
        let is_credential = matches!(self, Source::Header(name) if *name == AUTHORIZATION);
        let scheme = Some(&tree).filter(|_| is_credential).and_then(find_wrong_scheme);
        match scheme.or_else(|| self.find_impossible(&tree)) {
            Some((what, help)) => {
                let help = if ignore_case || !help.is_empty() { help } else { format!("write \"~i {pattern}\"") };
                invalid_text(format!("{what}, so some of {shown} matches nothing"), help)
            }
            None if !self.has_match(pattern, ignore_case) => {
                invalid_text(format!("{shown} matches no value that a request can have"), self.describe_values())
            }
            None => Ok(()),
        }
    }

    /// Returns why a part of an expression matches nothing, and a remedy that may be empty.
    fn find_impossible(&self, tree: &Hir) -> Option<(String, String)> {
        match tree.kind() {
            HirKind::Empty | HirKind::Look(_) => None,
            HirKind::Literal(literal) => {
                let text = String::from_utf8_lossy(&literal.0);
                let wrong = text.chars().find(|c| !self.may_contain(*c));
                let escape = || if *self == Source::Path { find_wrong_escape(&literal.0) } else { None };
                wrong.map(|wrong| self.describe_impossible(wrong)).or_else(escape)
            }
            HirKind::Class(class) => {
                let characters: Vec<char> = match class {
                    Class::Unicode(class) => {
                        class.ranges().iter().flat_map(|range| (range.start()..=range.end()).take(RANGE_MAX)).collect()
                    }
                    Class::Bytes(class) => {
                        class.ranges().iter().flat_map(|range| range.start()..=range.end()).map(char::from).collect()
                    }
                };
                let is_possible = characters.iter().any(|c| self.may_contain(*c));
                // A class without characters says itself that it matches nothing.
                characters.first().filter(|_| !is_possible).map(|first| self.describe_impossible(*first))
            }
            HirKind::Repetition(repetition) => self.find_impossible(&repetition.sub),
            HirKind::Capture(capture) => self.find_impossible(&capture.sub),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => {
                parts.iter().find_map(|part| self.find_impossible(part))
            }
        }
    }

    /// Returns whether values of requests may contain a character.
    fn may_contain(&self, c: char) -> bool {
        let is_ascii = |test: fn(u8) -> bool| u8::try_from(c).is_ok_and(test);
        match self {
            // A `?` as one of several ends of a path, as in `(/|\?|$)`, does no harm.
            Source::Path => is_ascii(|byte| matches!(byte, b'/' | b'%' | b'?') || canonical::is_segment_byte(byte)),
            Source::Host => is_ascii(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._~!$&'()*+;=[]:".contains(&byte)
            }),
            Source::Method => is_ascii(|byte| byte.is_ascii_graphic() && !byte.is_ascii_lowercase()),
            Source::Country => c.is_ascii_uppercase(),
            Source::Cookie(_) => c != ' ',
            Source::Header(name) if *name == HOST => !c.is_ascii_uppercase(),
            _ => true,
        }
    }

    /// Describes a character that values cannot contain, and what to write instead.
    fn describe_impossible(&self, c: char) -> (String, String) {
        match self {
            Source::Method if c.is_ascii_lowercase() => ("methods are in upper case".to_owned(), String::new()),
            Source::Country => ("countries are two upper-case letters".to_owned(), String::new()),
            Source::Host | Source::Header(_) if c.is_ascii_uppercase() => {
                ("hosts are compared in lower case".to_owned(), String::new())
            }
            Source::Host if !c.is_ascii() => {
                (format!("no host has the character `{c}`"), "write names in their ASCII form, with xn--".to_owned())
            }
            Source::Path => {
                let mut text = String::new();
                c.to_string().bytes().for_each(|byte| push_percent_encoded(&mut text, byte));
                (format!("no path has the character `{}`", c.escape_debug()), format!("write it as {text}"))
            }
            Source::Cookie(_) => {
                ("a space in a cookie counts as `+`".to_owned(), "write \\+ in place of the space".to_owned())
            }
            _ => (format!("no request has the character `{}`", c.escape_debug()), "leave it out".to_owned()),
        }
    }
}

/// Finds in a literal of an expression an encoded byte in a spelling that no canonical path has.
fn find_wrong_escape(literal: &[u8]) -> Option<(String, String)> {
    let mut escapes = literal.windows(3).filter(|bytes| bytes[0] == b'%');
    escapes.find_map(|bytes| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut right = String::new();
        match hex_byte(bytes[1], bytes[2]) {
            Some(byte) if canonical::is_segment_byte(byte) => right.push(char::from(byte)),
            Some(byte) => push_percent_encoded(&mut right, byte),
            None => right.push_str("%25"),
        }
        (right != text).then(|| (format!("no path has `{text}`"), format!("write `{right}`")))
    })
}

/// Finds a common scheme at the start of an expression that is not in the case that requests have here.
fn find_wrong_scheme(tree: &Hir) -> Option<(String, String)> {
    let first = match tree.kind() {
        HirKind::Concat(parts) => parts.iter().find(|part| !matches!(part.kind(), HirKind::Look(Look::Start)))?,
        _ => tree,
    };
    let HirKind::Literal(literal) = first.kind() else { return None };
    let (scheme, rest) = match literal.0.iter().position(|byte| *byte == b' ') {
        Some(end) => literal.0.split_at(end),
        None => (&literal.0[..], &b""[..]),
    };
    let title = String::from_utf8_lossy(&title_scheme(scheme)?).into_owned();
    let is_wrong = title.as_bytes() != scheme || rest.starts_with(b"  ");
    is_wrong.then(|| {
        let what = format!("the scheme reads `{title}` here, with one space after it, however clients write it");
        (what, format!("write \"~ ^{title} ...\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::source::SourceKind;

    fn source(text: &str) -> Source {
        Source::parse(text, SourceKind::ALL).unwrap().unwrap()
    }

    #[test]
    fn expressions_of_which_a_part_matches_nothing_are_refused() {
        for (name, pattern, words) in [
            ("path", "^/é", Some("write it as %C3%A9")),
            ("path", "^/(a|b c)", Some("write it as %20")),
            ("path", r"\?x=", Some("before the `?`")),
            ("path", r"^/api(/|\?|$)", None),
            ("path", r"\.(css|js)(\?.*)?$", None),
            ("path", "^api/", Some("begins with `/`")),
            // Requests of routes that keep repeated slashes.
            ("path", "//", None),
            ("header:authorization", "^(bearer|token) ", Some("Bearer")),
            ("header:authorization", "bearer ", Some("Bearer")),
            ("header:upgrade", "WebSocket", Some("websocket")),
            ("path", "^/%61dmin", Some("write `a`")),
            ("path", "^/%40", Some("write `@`")),
            ("path", "^/caf%c3%a9", Some("write `%C3`")),
            ("path", "^/[é-ü]", Some("no path has")),
            ("path", r"^/[^/]+/\w+\.php$", None),
            ("path", "^/(?:[^%]|%..)*%2540", None),
            ("path", r"^/[^\s\S]", Some("matches no value")),
            ("path", "(?i)^/ADMIN", None),
            ("host", "^A", Some("~i")),
            ("host", "^bücher", Some("xn--")),
            ("host", r"^\[2001:", None),
            ("header:host", "^A", Some("~i")),
            ("method", "^get$", Some("~i")),
            ("method", r"^\w+$", None),
            ("cookie:s", "a b", Some("\\+")),
            ("header:authorization", "^bearer sk", Some("Bearer")),
            ("header:authorization", "^Bearer  sk", Some("one space")),
            ("header:authorization", "^Bearer sk", None),
            ("header:authorization", "^token-[0-9]", None),
            ("header:x-a", "^é b", None),
        ] {
            let found = source(name).check_written_expression(pattern, false).map_err(|fault| fault.to_string());
            match (&found, words) {
                (Ok(()), None) => {}
                (Err(found), Some(words)) => assert!(found.contains(words), "{name} {pattern}: {found}"),
                _ => panic!("{name} {pattern}: {found:?}"),
            }
        }
        assert_eq!(Source::Host.check_written_expression("^API", true), Ok(()));
    }
}
