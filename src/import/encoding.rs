//! Writes paths and regular expressions of nginx for canonical paths. nginx compares the decoded path. A canonical path
//! has the characters plain that a segment may contain, and all other bytes encoded.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, Hir, HirKind, Look};

use crate::canonical::is_segment_byte;

/// Any character of a path, plain or encoded.
const ANY: &str = "(?:[^%]|%..)";
/// The deepest nesting of groups.
const NEST_MAX: u32 = 50;
/// Most characters of a class that are written one by one.
const CHARACTERS_MAX: usize = 64;

/// A set of bytes of the decoded path.
type ByteSet = [bool; 256];

/// Encodes a path as in canonical requests.
pub fn encode_path(path: &str) -> String {
    let mut output = String::with_capacity(path.len());
    for byte in path.bytes() {
        match is_plain(byte) {
            true => output.push(char::from(byte)),
            false => output.push_str(&format!("%{byte:02X}")),
        }
    }
    output
}

/// Returns whether the path of a route can be this text. A `*` and a segment like `:id` are mistakes there, because other
/// programs give them a meaning.
pub fn fits_route(path: &str) -> bool {
    !path.contains('*') && !path.contains("/:")
}

/// Writes the regular expression that matches a text.
pub fn format_literal(text: &str) -> String {
    text.bytes().map(format_byte).collect()
}

/// Writes a regular expression of nginx as one that matches the canonical forms of the same paths. Returns the
/// expression, and whether it still ignores case. Returns `None` for what cannot be translated, such as a word boundary.
pub fn encode_regex(pattern: &str, ignore_case: bool) -> Option<(String, bool)> {
    let mut builder = ParserBuilder::new();
    builder.utf8(false).unicode(false).case_insensitive(ignore_case).nest_limit(NEST_MAX);
    let tree = builder.build().parse(pattern).ok()?;
    if check_alignment(&tree)[0].is_some() {
        return Some((pattern.to_owned(), ignore_case));
    }
    let regex = format_tree(&tree)?;
    // The search must not start inside of an encoded byte.
    let is_anchored = tree.properties().look_set_prefix().contains(Look::Start);
    Some((if is_anchored { regex } else { format!("^{ANY}*(?:{regex})") }, false))
}

/// Returns true for characters that are never encoded in a canonical path. The slash is one, as an encoded one is refused.
fn is_plain(byte: u8) -> bool {
    byte == b'/' || is_segment_byte(byte)
}

/// Returns true for the characters of which an encoding consists after its `%`.
fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte)
}

/// Whether what follows an expression cannot start inside of an encoded byte: if the expression itself may start there
/// (the first value), and if it cannot (the second). `None` if the expression must be rewritten.
type Alignment = [Option<bool>; 2];

/// Checks whether an expression matches the same encoded and decoded.
fn check_alignment(tree: &Hir) -> Alignment {
    match tree.kind() {
        HirKind::Empty | HirKind::Look(Look::End) => [Some(false), Some(true)],
        HirKind::Look(Look::Start) => [Some(true); 2],
        HirKind::Look(_) => [None; 2],
        HirKind::Literal(literal) => {
            let is_same = literal.0.iter().copied().all(is_plain);
            let starts = !literal.0.first().copied().is_some_and(is_digit);
            [is_same && starts, is_same].map(|fits| fits.then_some(true))
        }
        HirKind::Class(class) => {
            let Some(set) = read_class(class) else { return [None; 2] };
            let (is_same, starts) = (list_bytes(&set).all(is_plain), !list_bytes(&set).any(is_digit));
            [is_same && starts, is_same].map(|fits| fits.then_some(true))
        }
        HirKind::Repetition(repetition) => {
            let (min, max) = (repetition.min, repetition.max);
            if let HirKind::Class(class) = repetition.sub.kind()
                && max.is_none()
                && read_class(class).is_some_and(|set| is_wide(&set))
            {
                return [min == 0, min <= 1].map(|fits| fits.then_some(false));
            }
            let once = check_alignment(&repetition.sub);
            [false, true].map(|aligned| {
                let mut after = once[usize::from(aligned)]?;
                if max != Some(1) {
                    after &= once[usize::from(after)]?;
                }
                Some(after && (min > 0 || aligned))
            })
        }
        HirKind::Capture(capture) => check_alignment(&capture.sub),
        HirKind::Concat(parts) => {
            let parts: Vec<Alignment> = parts.iter().map(check_alignment).collect();
            [false, true].map(|aligned| parts.iter().try_fold(aligned, |aligned, part| part[usize::from(aligned)]))
        }
        HirKind::Alternation(parts) => {
            let parts: Vec<Alignment> = parts.iter().map(check_alignment).collect();
            [0, 1].map(|start| parts.iter().try_fold(true, |all, part| Some(part[start]? && all)))
        }
    }
}

/// Returns whether a class has every byte that may be encoded, so that a run of it includes whole encodings.
fn is_wide(set: &ByteSet) -> bool {
    let is_needed = |byte: u8| !is_plain(byte) && byte != b'\n' || is_digit(byte);
    (0..=u8::MAX).filter(|byte| is_needed(*byte)).all(|byte| set[usize::from(byte)])
}

/// Writes an expression so that it matches the canonical spelling. Groups capture nothing.
fn format_tree(tree: &Hir) -> Option<String> {
    Some(match tree.kind() {
        HirKind::Empty => String::new(),
        HirKind::Literal(literal) => literal.0.iter().copied().map(format_byte).collect(),
        HirKind::Class(class) => match (read_class(class), class) {
            (Some(set), _) => format_set(&set),
            (None, Class::Unicode(class)) => format_characters(class)?,
            (None, Class::Bytes(_)) => return None,
        },
        HirKind::Look(Look::Start) => "^".to_owned(),
        HirKind::Look(Look::End) => "$".to_owned(),
        HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => {
            let times = match (repetition.min, repetition.max) {
                (0, None) => "*".to_owned(),
                (1, None) => "+".to_owned(),
                (0, Some(1)) => "?".to_owned(),
                (min, None) => format!("{{{min},}}"),
                (min, Some(max)) if min == max => format!("{{{min}}}"),
                (min, Some(max)) => format!("{{{min},{max}}}"),
            };
            format!("(?:{}){times}", format_tree(&repetition.sub)?)
        }
        HirKind::Capture(capture) => format!("(?:{})", format_tree(&capture.sub)?),
        HirKind::Concat(parts) => parts.iter().map(format_tree).collect::<Option<String>>()?,
        HirKind::Alternation(parts) => {
            format!("(?:{})", parts.iter().map(format_tree).collect::<Option<Vec<_>>>()?.join("|"))
        }
    })
}

fn read_class(class: &Class) -> Option<ByteSet> {
    let mut set = [false; 256];
    match class {
        Class::Bytes(class) => {
            for range in class.ranges() {
                (range.start()..=range.end()).for_each(|byte| set[usize::from(byte)] = true);
            }
        }
        // Without Unicode, this is a class of ASCII.
        Class::Unicode(class) => {
            for range in class.ranges() {
                let (start, end) = (u8::try_from(range.start()).ok()?, u8::try_from(range.end()).ok()?);
                (start.is_ascii() && end.is_ascii()).then_some(())?;
                (start..=end).for_each(|byte| set[usize::from(byte)] = true);
            }
        }
    }
    Some(set)
}

/// Writes characters of which some are not ASCII, as the parser joins them for `é|4`. Returns `None` if there are many.
fn format_characters(class: &ClassUnicode) -> Option<String> {
    let characters = || class.ranges().iter().flat_map(|range| range.start()..=range.end());
    let is_short = characters().nth(CHARACTERS_MAX).is_none();
    let alternatives: Vec<String> =
        characters().take(CHARACTERS_MAX).map(|each| format_literal(&each.to_string())).collect();
    is_short.then(|| format!("(?:{})", alternatives.join("|")))
}

fn list_bytes(set: &ByteSet) -> impl Iterator<Item = u8> {
    (0..=u8::MAX).filter(|byte| set[usize::from(*byte)])
}

fn format_byte(byte: u8) -> String {
    match byte {
        byte if is_plain(byte) => escape(byte),
        byte => format!("%{byte:02X}"),
    }
}

fn escape(byte: u8) -> String {
    regex_syntax::escape(&char::from(byte).to_string())
}

/// Writes a set of bytes: those that a path may have plain, and those that it may have encoded.
fn format_set(set: &ByteSet) -> String {
    let bytes: Vec<u8> = list_bytes(set).collect();
    if let [only] = bytes.as_slice() {
        return format_byte(*only);
    }
    if is_wide(set) {
        let missing: String =
            (0..=u8::MAX).filter(|byte| is_plain(*byte) && !bytes.contains(byte)).map(escape).collect();
        return format!("(?:[^%{missing}]|%..)");
    }
    let plain: Vec<u8> = bytes.iter().copied().filter(|byte| is_plain(*byte)).collect();
    let mut parts: Vec<String> = Vec::new();
    if !plain.is_empty() {
        parts.push(format!("[{}]", format_ranges(&plain)));
    }
    // The second digits of the encoded bytes, by their first digit.
    for high in 0..16_u8 {
        let lows: Vec<u8> = (0..16_u8)
            .filter(|low| {
                let byte = high << 4 | low;
                bytes.contains(&byte) && !is_plain(byte)
            })
            .map(|low| format!("{low:X}").bytes().next().unwrap_or(b'0'))
            .collect();
        match lows.as_slice() {
            [] => {}
            [only] => parts.push(format!("%{high:X}{}", char::from(*only))),
            lows => parts.push(format!("%{high:X}[{}]", format_ranges(lows))),
        }
    }
    match parts.as_slice() {
        // Nothing matches an empty class.
        [] => "[^\\s\\S]".to_owned(),
        [only] => only.clone(),
        parts => format!("(?:{})", parts.join("|")),
    }
}

/// Formats bytes in ascending order as the inside of a class.
fn format_ranges(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in bytes.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [first, .., last] if run.len() > 2 => text.push_str(&format!("{}-{}", escape(*first), escape(*last))),
            run => run.iter().for_each(|byte| text.push_str(&escape(*byte))),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    fn encoded(pattern: &str) -> Option<String> {
        encode_regex(pattern, false).map(|(written, _)| written)
    }

    #[test]
    fn common_expressions_stay_as_they_are() {
        for pattern in [
            r"\.php$",
            r"^/api/(v1|v2)/[^/]+/x$",
            r"^/users/[0-9]+$",
            "admin",
            r"\.(?:png|jpe?g)$",
            "^/.*$",
            r"^/a/.*\.js$",
            "/[a-z_-]+/edit",
            "^/@fs/",
            r"^/[\+a]",
        ] {
            assert_eq!(encoded(pattern).as_deref(), Some(pattern));
        }
        assert_eq!(encode_regex(r"\.PHP$", true), Some((r"\.PHP$".to_owned(), true)));
    }

    #[test]
    fn other_characters_are_encoded() {
        for (pattern, written) in [
            ("^/a b", "^/a%20b"),
            ("^/é$", "^/%C3%A9$"),
            ("^/a.c$", "^/a(?:[^%]|%..)c$"),
            ("^/[^/]{2}$", "^/(?:(?:[^%/]|%..)){2}$"),
            ("[0-9]", "^(?:[^%]|%..)*(?:[0-9])"),
            ("^/[ a]", "^/(?:[a]|%20)"),
            ("^/(?:é|4)", "^/(?:4|%C3%A9)"),
        ] {
            assert_eq!(encoded(pattern).as_deref(), Some(written), "{pattern}");
        }
        for pattern in [r"\badmin", "(?m)^/a", "(?=a)", r"(a)\1"] {
            assert_eq!(encoded(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn nested_groups_end_soon() {
        let nested = format!("{}.*{}", "(".repeat(22), ")*".repeat(22));
        for _ in 0..1000 {
            assert_eq!(encoded(&nested).as_deref(), Some(nested.as_str()));
        }
    }

    /// Spells bytes as a canonical path.
    fn spell(decoded: &[u8]) -> String {
        let spell = |byte: &u8| match *byte {
            byte if is_plain(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        decoded.iter().map(spell).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// The written expression matches a canonical path if and only if the original matches the decoded path.
        #[test]
        fn written_expressions_match_the_same_paths(
            parts in prop::collection::vec(prop::sample::select(vec![
                "^", "$", "/", "a", "b", "4", "0", "2", "A", "F", "@", r"\+", r"\$", "%", " ", "é", r"\.", "-", ".", ".*", ".+", ".?", "[^/]", "[^/]+",
                "[^a]", "[^@]*", "[0-9]", "[a-f]", "[@a]", r"\w", r"\d+", r"\s", "[^0]{2}", "(?:a|@)", "(4|b)?", "(?:/a)*", "(?:0|.)", "|",
            ]), 0..7),
            ignore_case in any::<bool>(),
            decoded in prop::collection::vec(prop::sample::select(b"/ab40@A%+2F \xc3\xa9$.-".to_vec()), 0..8),
        ) {
            let pattern = parts.concat();
            let path = [b"/", decoded.as_slice()].concat();
            let original = regex::bytes::RegexBuilder::new(&pattern).unicode(false).case_insensitive(ignore_case).build();
            let Ok(original) = original else { return Ok(()) };
            let (written, ignores) = encode_regex(&pattern, ignore_case).unwrap();
            let written = Regex::new(&format!("{}{written}", if ignores { "(?i)" } else { "" })).unwrap();
            let spelled = spell(&path);
            prop_assert_eq!(written.is_match(&spelled), original.is_match(&path), "{} as {}: {}", pattern, written, spelled);
        }

        /// A literal matches exactly its text.
        #[test]
        fn literals_match_their_text(text in "[a@ é+%/4-]{1,6}", other in "[a@ é+%/4-]{1,6}") {
            let regex = Regex::new(&format!("^{}$", format_literal(&text))).unwrap();
            prop_assert!(regex.is_match(&spell(text.as_bytes())));
            prop_assert_eq!(regex.is_match(&spell(other.as_bytes())), text == other);
        }
    }
}
