//! Translates regular expressions of nginx into regular expressions of a config.
//!
//! Input: a pattern as nginx reads it. Output: an expression of the crate `regex` that matches the same requests, or the
//! reason why there is none. Both dialects accept most patterns, but some mean different things in them, such as
//! `[a&&b]`, `é+`, `\w` or `a++`. So `pcre` reads a pattern to a tree of bytes, and refuses what it does not know. The
//! pattern stays as it is only if the crate reads the same tree from it. Otherwise `writing` writes the tree.
//!
//! - `pcre`: reads patterns. To accept another construct, add it there with a row of its test.
//! - `alignment`: whether bytes, and encoded bytes or characters, match alike.
//! - `writing`: writes trees as expressions.

mod alignment;
mod pcre;
mod writing;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};

use crate::import::expressions::alignment::{Subject, is_aligned, is_wide, list_bytes, read_class};
use crate::import::expressions::pcre::read_pattern;
use crate::import::expressions::writing::{format_encoded, format_plain};

pub use crate::import::expressions::pcre::Reading;

/// A run of any characters of a path, plain or encoded.
const ANY_RUN: &str = "(?:[^%]|%..)*";

/// Translates a pattern for decoded paths to an expression for canonical ones. Returns it with whether it still ignores
/// case.
pub fn translate_path_regex(pattern: &str, ignore_case: bool, reading: Reading) -> Result<(String, bool), String> {
    let tree = read_pattern(pattern, ignore_case, reading)?;
    if !is_aligned(&tree, Subject::Path) {
        let written = format_encoded(&tree).ok_or("a class of many characters")?;
        // The search must not start inside of an encoded byte.
        let is_anchored = tree.properties().look_set_prefix().contains(Look::Start);
        return Ok((if is_anchored { written } else { format!("^{ANY_RUN}(?:{written})") }, false));
    }
    // Canonical paths are ASCII, so bytes and characters are one.
    match parse_bytes(pattern, ignore_case).is_some_and(|same| same == tree) {
        true => Ok((pattern.to_owned(), ignore_case)),
        false => Ok((format_plain(&tree, Subject::Path), false)),
    }
}

/// Translates a pattern for a value of a request, such as a header. Returns it with whether it still ignores case.
pub fn translate_value_regex(pattern: &str, ignore_case: bool) -> Result<(String, bool), String> {
    let tree = read_pattern(pattern, ignore_case, Reading::Exact)?;
    if !is_aligned(&tree, Subject::Text) {
        return Err("nginx counts the bytes of characters that are not ASCII".to_owned());
    }
    let characters = widen_classes(&tree);
    let mut parser = ParserBuilder::new();
    let parsed = parser.case_insensitive(ignore_case).build().parse(pattern).ok();
    if parsed.is_some_and(|parsed| remove_captures(&parsed) == characters) {
        return Ok((pattern.to_owned(), ignore_case));
    }
    // For ASCII alone, without Unicode: `K` is not the sign of kelvin, and `\d` no digit of another script.
    if is_ascii(&characters) && parse_bytes(pattern, ignore_case).is_some_and(|same| same == tree) {
        return Ok((format!("(?-u){pattern}"), ignore_case));
    }
    Ok((format_plain(&characters, Subject::Text), false))
}

/// Translates a pattern for values that are known to be ASCII, where bytes and characters are one.
pub fn translate_ascii_regex(pattern: &str, ignore_case: bool) -> Result<String, String> {
    let tree = read_pattern(pattern, ignore_case, Reading::Exact)?;
    Ok(format_plain(&widen_classes(&tree), Subject::Text))
}

/// Parses a pattern as the crate `regex` reads it for bytes.
fn parse_bytes(pattern: &str, ignore_case: bool) -> Option<Hir> {
    let mut parser = ParserBuilder::new();
    parser.utf8(false).unicode(false).case_insensitive(ignore_case);
    parser.build().parse(pattern).ok().map(|tree| remove_captures(&tree))
}

/// Copies a tree without its captures.
fn remove_captures(tree: &Hir) -> Hir {
    rebuild(tree, &|class| Hir::class(class.clone()))
}

/// Copies a tree of bytes as one of characters: a class with all bytes of characters that are not ASCII has all those
/// characters.
fn widen_classes(tree: &Hir) -> Hir {
    rebuild(tree, &|class| {
        let Some(set) = read_class(class) else { return Hir::class(class.clone()) };
        let mut characters: Vec<ClassUnicodeRange> = list_bytes(&set)
            .filter(u8::is_ascii)
            .map(|byte| ClassUnicodeRange::new(char::from(byte), char::from(byte)))
            .collect();
        if is_wide(&set, Subject::Text) {
            characters.push(ClassUnicodeRange::new('\u{80}', char::MAX));
        }
        Hir::class(Class::Unicode(ClassUnicode::new(characters)))
    })
}

fn rebuild(tree: &Hir, copy_class: &dyn Fn(&Class) -> Hir) -> Hir {
    let copy_all = |parts: &[Hir]| parts.iter().map(|part| rebuild(part, copy_class)).collect();
    match tree.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => Hir::literal(literal.0.clone()),
        HirKind::Class(class) => copy_class(class),
        HirKind::Look(look) => Hir::look(*look),
        HirKind::Repetition(repetition) => {
            let Repetition { min, max, greedy, .. } = *repetition;
            Hir::repetition(Repetition { min, max, greedy, sub: Box::new(rebuild(&repetition.sub, copy_class)) })
        }
        HirKind::Capture(capture) => rebuild(&capture.sub, copy_class),
        HirKind::Concat(parts) => Hir::concat(copy_all(parts)),
        HirKind::Alternation(parts) => Hir::alternation(copy_all(parts)),
    }
}

/// Returns whether a tree matches ASCII alone.
fn is_ascii(tree: &Hir) -> bool {
    match tree.kind() {
        HirKind::Empty | HirKind::Look(_) => true,
        HirKind::Literal(literal) => literal.0.is_ascii(),
        HirKind::Class(Class::Unicode(class)) => class.is_ascii(),
        HirKind::Class(Class::Bytes(class)) => class.is_ascii(),
        HirKind::Repetition(repetition) => is_ascii(&repetition.sub),
        HirKind::Capture(capture) => is_ascii(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(is_ascii),
    }
}

#[cfg(test)]
mod tests;
