//! The values that requests can have, by source, as regular expressions. They tell whether a pattern matches any of
//! them.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TE, UPGRADE};
use regex_automata::Anchored;
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::start;
use regex_automata::util::syntax;

use crate::limiting::source::Source;
use crate::received_headers::HTTP_PROTOCOLS;

/// The most states that a comparison visits. Whoever writes a longer expression is believed.
const STATES_MAX: usize = 500;
/// The largest machine that is compared, in bytes.
const MACHINE_MAX: usize = 100_000;

static PATH: LazyLock<String> = LazyLock::new(|| write_path_language(false));
static KEPT_PATH: LazyLock<String> = LazyLock::new(|| write_path_language(true));

/// Returns the expression of all paths, with repeated slashes or without.
fn write_path_language(keeps_slashes: bool) -> String {
    // A byte that is not a character of a segment is encoded, with upper-case digits.
    let escape = "%(?:[01][0-9A-F]|2[0235F]|3[CEF]|5[B-E]|60|7[BCDF]|[89A-F][0-9A-F])";
    let no_dot = format!("(?:[!$&-\\-0-;=@-Z_a-z~]|{escape})");
    let any = format!("(?:[!$&-.0-;=@-Z_a-z~]|{escape})");
    // Segments of one or two dots are resolved, and empty ones removed.
    let segment = format!("(?:{no_dot}{any}*|\\.{no_dot}{any}*|\\.\\.{any}+)");
    match keeps_slashes {
        false => format!("/(?:{segment}(?:/{segment})*/?)?|\\*"),
        true => format!("/+(?:{segment}(?:/+{segment})*/*)?|\\*"),
    }
}
const QUERY: &str = "[!$-;=?-~]*";
static TARGET: LazyLock<String> = LazyLock::new(|| format!("(?:{})(?:\\?{QUERY})?", *PATH));
static KEPT_TARGET: LazyLock<String> = LazyLock::new(|| format!("(?:{})(?:\\?{QUERY})?", *KEPT_PATH));
const HOST_NAME: &str = "[-0-9a-z._~!$&'()*+,;=%]+|\\[[0-9a-f:.]+\\]";
static AUTHORITY: LazyLock<String> = LazyLock::new(|| format!("(?:{HOST_NAME})(?::[0-9]+)?"));
/// Schemes begin with an upper-case letter, and one space is between words.
const CREDENTIALS: &str = "[^ \t]+|[^a-z \t][^A-Z \t]*(?: [^ \t]+)+";
/// A protocol, with a version or without.
const PROTOCOL: &str = "[!#$%&'*+\\-.^_`|~0-9A-Za-z]+(?:/[!#$%&'*+\\-.^_`|~0-9A-Za-z]+)?";
/// Contains `websocket` in another case, or is HTTP.
static NO_PROTOCOL: LazyLock<String> = LazyLock::new(|| {
    let word = "websocket";
    let cases =
        word.char_indices().map(|(at, c)| format!("{}{}(?i:{})", &word[..at], c.to_ascii_uppercase(), &word[at + 1..]));
    format!(".*(?:{}).*|(?i:{})(?:/.*)?", cases.collect::<Vec<_>>().join("|"), HTTP_PROTOCOLS.join("|"))
});

thread_local! {
    /// The machines of languages that were compared, because a config compares many expressions.
    static CACHED: RefCell<HashMap<String, Automaton>> = RefCell::default();
}

fn take_cached(language: &str) -> Option<Automaton> {
    CACHED.with_borrow_mut(|cached| cached.remove(language))
}

impl Source {
    /// Returns an expression that matches every value that requests can have, and one for values that they cannot have
    /// nevertheless, which may be empty. `None` if any text can be a value. `keeps_slashes`: those that requests of a
    /// route with `merge_slashes = false` can have.
    fn value_language(&self, keeps_slashes: bool) -> Option<(&str, &str)> {
        Some(match self {
            Source::Path if keeps_slashes => (&KEPT_PATH, ""),
            Source::Target if keeps_slashes => (&KEPT_TARGET, ""),
            Source::Path => (&PATH, ""),
            Source::Target => (&TARGET, ""),
            Source::QueryString => (QUERY, ""),
            Source::Host => (HOST_NAME, ""),
            Source::Method => ("[!#$%&'*+\\-.^_`|~0-9A-Z]+", "CONNECT"),
            Source::Country => ("[A-Z]{2}", ""),
            Source::Cookie(_) => ("[^ ]*", ""),
            Source::Header(name) => match *name {
                HOST => (&AUTHORITY, ""),
                AUTHORIZATION => (CREDENTIALS, ""),
                UPGRADE => (PROTOCOL, &NO_PROTOCOL),
                CONTENT_LENGTH => ("0|[1-9][0-9]*", ""),
                CONNECTION => ("upgrade|te", ""),
                TE => ("trailers", ""),
                _ => return None,
            },
            _ => return None,
        })
    }

    /// Returns whether an expression matches a value that requests can have. If that takes too long to find out, it
    /// returns true.
    pub fn has_match(&self, expression: &str, ignore_case: bool) -> bool {
        self.has_common_value(&[(expression, ignore_case, true)], true)
    }

    /// Returns whether an expression that matches a value only matches values with repeated slashes, which requests
    /// have on routes with `merge_slashes = false` alone.
    pub fn needs_repeated_slashes(&self, expression: &str, ignore_case: bool) -> bool {
        matches!(self, Source::Path | Source::Target) && !self.has_common_match(&[(expression, ignore_case, true)])
    }

    /// Returns whether a value that requests can have is one that each expression matches or, with false as its last
    /// part, does not match. The first boolean ignores case. If that takes too long to find out, it returns true.
    pub fn has_common_match(&self, expressions: &[(&str, bool, bool)]) -> bool {
        self.has_common_value(expressions, false)
    }

    fn has_common_value(&self, expressions: &[(&str, bool, bool)], keeps_slashes: bool) -> bool {
        let Some((all, none)) = self.value_language(keeps_slashes) else { return true };
        // Without the classes of Unicode, machines are much smaller.
        let is_unicode = matches!(self, Source::Header(_) | Source::Cookie(_));
        let syntax = syntax::Config::new().dot_matches_new_line(true).unicode(is_unicode).utf8(false);
        let mut languages = vec![(all, true)];
        languages.extend(Some((none, false)).filter(|_| !none.is_empty()));
        let whole = |(language, matches): (&str, bool)| {
            let automaton = take_cached(language).or_else(|| Automaton::new(&format!("^(?:{language})$"), syntax));
            Some((automaton?, matches))
        };
        let Some(mut automata) = languages.iter().copied().map(whole).collect::<Option<Vec<_>>>() else { return true };
        for (expression, ignore_case, matches) in expressions {
            let written = Automaton::new(expression, syntax.case_insensitive(*ignore_case));
            let Some(written) = written else { return true };
            automata.push((written, *matches));
        }
        let result = find_common(&mut automata).unwrap_or(true);
        CACHED.with_borrow_mut(|cached| {
            let machines = automata.into_iter().map(|(automaton, _)| automaton);
            cached.extend(languages.into_iter().map(|(language, _)| language.to_owned()).zip(machines));
        });
        result
    }

    /// Returns whether a pattern in which `*` stands for any characters matches a value that requests can have.
    pub(super) fn has_wildcard_match(&self, pattern: &str) -> bool {
        let parts: Vec<String> = pattern.split('*').map(regex::escape).collect();
        self.has_match(&format!("^{}$", parts.join(".*")), false)
    }
}

/// An expression as a machine that reads a value byte by byte.
struct Automaton {
    dfa: DFA,
    cache: Cache,
}

/// How far a machine has come in a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Progress {
    state: LazyStateID,
    /// The expression has matched a part of the value.
    has_matched: bool,
}

impl Automaton {
    /// Returns `None` if the expression is wrong or too large.
    fn new(expression: &str, syntax: syntax::Config) -> Option<Automaton> {
        // States keep their names, because a full cache is an error.
        let config = DFA::config().minimum_cache_clear_count(Some(0)).unicode_word_boundary(true);
        let size = thompson::Config::new().nfa_size_limit(Some(MACHINE_MAX));
        let dfa = DFA::builder().syntax(syntax).thompson(size).configure(config).build(expression).ok()?;
        let cache = dfa.create_cache();
        Some(Automaton { dfa, cache })
    }

    fn start(&mut self) -> Option<Progress> {
        let state = self.dfa.start_state(&mut self.cache, &start::Config::new().anchored(Anchored::No)).ok()?;
        Some(Progress { state, has_matched: state.is_match() })
    }

    /// Returns `None` if the cache is full or the machine cannot read the byte.
    fn read(&mut self, progress: Progress, byte: u8) -> Option<Progress> {
        if progress.has_matched {
            return Some(progress);
        }
        let state = self.dfa.next_state(&mut self.cache, progress.state, byte).ok()?;
        (!state.is_quit()).then(|| Progress { state, has_matched: state.is_match() })
    }

    /// Returns whether the expression matches a value that ends here.
    fn matches_at_end(&mut self, progress: Progress) -> Option<bool> {
        if progress.has_matched {
            return Some(true);
        }
        Some(self.dfa.next_eoi_state(&mut self.cache, progress.state).ok()?.is_match())
    }
}

/// Returns whether a value exists that each machine matches or, with false beside it, does not match. `None` if there
/// are too many states to find out.
fn find_common(automata: &mut [(Automaton, bool)]) -> Option<bool> {
    let first = automata.iter_mut().map(|(automaton, _)| automaton.start()).collect::<Option<Vec<Progress>>>()?;
    let bytes = list_distinct_bytes(automata);
    let mut visited = HashSet::from([first.clone()]);
    let mut waiting = vec![first];
    while let Some(all) = waiting.pop() {
        let mut is_common = true;
        for ((automaton, matches), progress) in automata.iter_mut().zip(&all) {
            is_common &= automaton.matches_at_end(*progress)? == *matches;
        }
        if is_common {
            return Some(true);
        }
        'bytes: for byte in bytes.iter().copied() {
            let mut next = Vec::with_capacity(all.len());
            for ((automaton, matches), progress) in automata.iter_mut().zip(&all) {
                let progress = automaton.read(*progress, byte)?;
                let is_lost =
                    if *matches { progress.state.is_dead() && !progress.has_matched } else { progress.has_matched };
                if is_lost {
                    continue 'bytes;
                }
                next.push(progress);
            }
            if visited.insert(next.clone()) {
                waiting.push(next);
            }
        }
        if visited.len() > STATES_MAX {
            return None;
        }
    }
    Some(false)
}

/// Returns one of all bytes that no machine distinguishes, for each such class.
fn list_distinct_bytes(automata: &[(Automaton, bool)]) -> Vec<u8> {
    let mut classes = HashSet::new();
    let classes_of =
        |byte| automata.iter().map(|(automaton, _)| automaton.dfa.byte_classes().get(byte)).collect::<Vec<u8>>();
    (0..=u8::MAX).filter(|byte| classes.insert(classes_of(*byte))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;
    use crate::canonical;
    use crate::limiting::source::SourceKind;

    fn source(text: &str) -> Source {
        Source::parse(text, SourceKind::ALL).unwrap().unwrap()
    }

    #[test]
    fn expressions_that_match_no_request_are_found() {
        for (name, expression, expected) in [
            ("path", "^api/", false),
            ("path", "//", true),
            ("path", r"/\.\./", false),
            ("path", r"\.\.", true),
            ("path", "^/(api|x)(/|$)", true),
            ("path", r"^/api(/|\?|$)", true),
            ("path", r"\?", false),
            ("path", "%", true),
            ("path", "%[a-f]", false),
            ("path", "%40", false),
            ("path", r"\bapi\b", true),
            ("path", r"^\w", false),
            ("path", "é", false),
            ("target", r"^/a\?b=", true),
            ("target", r"^\?", false),
            ("host", ":8080$", false),
            ("host", "^api[.]", true),
            ("host", "A", false),
            ("header:host", ":8080$", true),
            ("method", "^get$", false),
            ("header:authorization", "^(bearer|token) ", false),
            ("header:authorization", "^(Bearer|token) ", true),
            ("header:authorization", "^Bearer  ", false),
            ("header:authorization", "^sk-", true),
            ("header:upgrade", "WebSocket", false),
            ("header:upgrade", "(?i)WebSocket", true),
            ("header:upgrade", "^(?i:h2c?|tls/.*)$", false),
            ("header:upgrade", "^h2", true),
            ("header:upgrade", ",", false),
            ("method", "^CONNECT$", false),
            ("method", "CONNECT", true),
            ("method", "[,(]", false),
            ("header:content-length", "^0.", false),
            ("header:content-length", "^[0-9]{7,}$", true),
            ("header:connection", "keep-alive", false),
            ("header:te", "gzip", false),
            ("header:x-a", "anything", true),
            // Whoever writes such an expression is believed.
            ("path", &format!("^/{} $", "(a|b)?.{0,30}c".repeat(30)), true),
        ] {
            assert_eq!(source(name).has_match(expression, false), expected, "{name} {expression}");
        }
        assert!(source("method").has_match("^get$", true));
        let below = |expression, none| {
            Source::Path.has_common_match(&[
                (expression, false, true),
                ("/index\\.html$", false, true),
                (none, false, false),
            ])
        };
        assert!(below("^/a/.+$", "^/b") && !below("^/a/.+$", "^/a") && !below("[.]php$", "^/b"));
        assert!(source("path").has_wildcard_match("*%*") && source("path").has_wildcard_match("*//*"));
        for (expression, needs) in [("//", true), ("^/a/?/b", false), ("^/a//[bc]$", true), ("/", false)] {
            assert_eq!(source("path").needs_repeated_slashes(expression, false), needs, "{expression}");
        }
        assert!(!source("target").needs_repeated_slashes("//", false), "a query may have them");
    }

    proptest! {
        /// Every path is in its language, and an expression that matches a path is known to match some.
        #[test]
        fn an_expression_that_matches_a_path_is_possible(
            path in "/[/.%a-cA-C0-9@:; ~{}?é-]{0,12}",
            expression in r"(\^|)([/ab.%]|\\\.|[(]a|/[)]|\[ab/\]|%2F|\.\*){1,6}(\$|)",
        ) {
            for (form, language) in [
                (canonical::repair_path(&path), &*PATH),
                (canonical::keep_repeated_slashes(&path), &*KEPT_PATH),
            ] {
                let language = Regex::new(&format!("(?s)^(?:{language})$")).unwrap();
                prop_assert!(language.is_match(form.to_read(&path)), "{}", form.to_read(&path));
            }
            let path = canonical::keep_repeated_slashes(&path).to_read(&path).to_owned();
            if let Ok(regex) = Regex::new(&expression) && regex.is_match(&path) {
                prop_assert!(Source::Path.has_match(&expression, false), "{} matches {}", expression, path);
            }
        }
    }
}
