//! Writes trees as expressions of the crate `regex`. Groups capture nothing.

use regex_syntax::hir::{Class, ClassUnicode, Hir, HirKind, Look, Repetition};

use crate::import::encoding::{format_byte, format_literal, is_plain};
use crate::import::expressions::alignment::{Subject, is_wide, list_bytes, read_class};
use crate::import::expressions::pcre::ByteSet;

/// Most characters of a class that are written one by one.
const CHARACTERS_MAX: usize = 64;
/// Nothing matches it.
const NOTHING: &str = "[^\\s\\S]";

/// Writes an expression so that it matches the canonical spelling of paths. Returns `None` for classes of many characters.
pub fn format_encoded(tree: &Hir) -> Option<String> {
    format_tree(tree, &|part| match part.kind() {
        HirKind::Literal(literal) => Some(literal.0.iter().copied().map(format_byte).collect()),
        HirKind::Class(class) => match (read_class(class), class) {
            (Some(set), _) => Some(format_encoded_set(&set)),
            (None, Class::Unicode(class)) => format_characters(class),
            (None, Class::Bytes(_)) => None,
        },
        _ => None,
    })
}

/// Writes an expression for a subject that it is aligned to.
pub fn format_plain(tree: &Hir, subject: Subject) -> String {
    let written = format_tree(tree, &|part| match part.kind() {
        HirKind::Literal(literal) => Some(regex_syntax::escape(&String::from_utf8_lossy(&literal.0))),
        HirKind::Class(class) => match (read_class(class), class) {
            (Some(set), _) => Some(format_plain_set(&set, subject)),
            (None, Class::Unicode(class)) => Some(format_class(class)),
            (None, Class::Bytes(_)) => None,
        },
        _ => None,
    });
    written.unwrap_or_else(|| NOTHING.to_owned())
}

/// Writes a tree. `format` writes its literals and classes.
fn format_tree(tree: &Hir, format: &dyn Fn(&Hir) -> Option<String>) -> Option<String> {
    Some(match tree.kind() {
        HirKind::Empty => String::new(),
        HirKind::Literal(_) | HirKind::Class(_) => format(tree)?,
        HirKind::Look(Look::Start) => "^".to_owned(),
        HirKind::Look(Look::End) => "$".to_owned(),
        HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => {
            let sub = format_tree(&repetition.sub, format)?;
            let times = format_times(repetition);
            match repetition.sub.kind() {
                HirKind::Class(_) if sub == "." || sub.starts_with('[') => format!("{sub}{times}"),
                _ => format!("(?:{sub}){times}"),
            }
        }
        HirKind::Capture(capture) => format!("(?:{})", format_tree(&capture.sub, format)?),
        HirKind::Concat(parts) => parts.iter().map(|part| format_tree(part, format)).collect::<Option<String>>()?,
        HirKind::Alternation(parts) => {
            let parts: Vec<String> = parts.iter().map(|part| format_tree(part, format)).collect::<Option<_>>()?;
            format!("(?:{})", parts.join("|"))
        }
    })
}

fn format_times(repetition: &Repetition) -> String {
    match (repetition.min, repetition.max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) if min == max => format!("{{{min}}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// Writes characters of which some are not ASCII, as trees join them for `é|4`. Returns `None` if there are many.
fn format_characters(class: &ClassUnicode) -> Option<String> {
    let characters = || class.ranges().iter().flat_map(|range| range.start()..=range.end());
    let is_short = characters().nth(CHARACTERS_MAX).is_none();
    let written: Vec<String> =
        characters().take(CHARACTERS_MAX).map(|each| format_literal(&each.to_string())).collect();
    is_short.then(|| format!("(?:{})", written.join("|")))
}

/// Writes a class with characters beyond ASCII. A class with most characters is written as `[^...]`, with those it lacks.
fn format_class(class: &ClassUnicode) -> String {
    let mut class = class.clone();
    let negates = class.ranges().last().is_some_and(|last| last.end() == char::MAX);
    if negates {
        class.negate();
    }
    // No subject has line ends.
    let ranges = || class.ranges().iter().filter(|range| (range.start(), range.end()) != ('\n', '\n'));
    if negates && ranges().next().is_none() {
        return ".".to_owned();
    }
    let escape = |character: char| match character.is_control() {
        true => format!("\\x{{{:x}}}", u32::from(character)),
        false => regex_syntax::escape(&character.to_string()),
    };
    let written: String = ranges()
        .map(|range| match range.start() == range.end() {
            true => escape(range.start()),
            false => format!("{}-{}", escape(range.start()), escape(range.end())),
        })
        .collect();
    format!("[{}{written}]", if negates { "^" } else { "" })
}

/// Writes a set of bytes that are a unit each, or a wide one.
fn format_plain_set(set: &ByteSet, subject: Subject) -> String {
    // A subject has no other bytes, and no line ends.
    let is_possible =
        |byte: u8| byte != b'\n' && if subject == Subject::Path { is_plain(byte) } else { byte.is_ascii() };
    let own: Vec<u8> = list_bytes(set).filter(|byte| is_possible(*byte)).collect();
    if is_wide(set, subject) {
        let missing: Vec<u8> = (0..=u8::MAX).filter(|byte| is_possible(*byte) && !set[usize::from(*byte)]).collect();
        return if missing.is_empty() { ".".to_owned() } else { format!("[^{}]", format_ranges(&missing)) };
    }
    if own.is_empty() { NOTHING.to_owned() } else { format!("[{}]", format_ranges(&own)) }
}

/// Writes a set of bytes: those that a path may have plain, and those that it may have encoded.
fn format_encoded_set(set: &ByteSet) -> String {
    let bytes: Vec<u8> = list_bytes(set).collect();
    if let [only] = bytes.as_slice() {
        return format_byte(*only);
    }
    if is_wide(set, Subject::Path) {
        let missing: Vec<u8> = (0..=u8::MAX).filter(|byte| is_plain(*byte) && !bytes.contains(byte)).collect();
        let missing: String = missing.into_iter().map(escape).collect();
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
        [] => NOTHING.to_owned(),
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

fn escape(byte: u8) -> String {
    match byte.is_ascii_control() {
        true => format!("\\x{byte:02x}"),
        false => regex_syntax::escape(&char::from(byte).to_string()),
    }
}
