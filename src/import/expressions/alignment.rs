//! Checks whether an expression that compares bytes means the same where a request has another unit: the encoded bytes
//! of a canonical path (`%40`), or the characters of a header's value. A match of bytes may start or end inside of a
//! unit, and a repetition may count its bytes.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

use crate::import::encoding::is_plain;
use crate::import::expressions::pcre::ByteSet;

/// What an expression is compared with.
#[derive(Clone, Copy, PartialEq)]
pub enum Subject {
    /// Canonical paths: bytes that are not plain are encoded.
    Path,
    /// Text, in which characters that are not ASCII have several bytes.
    Text,
}

impl Subject {
    /// Returns true for bytes that are a unit of their own.
    fn is_single(self, byte: u8) -> bool {
        match self {
            Subject::Path => is_plain(byte),
            Subject::Text => byte.is_ascii(),
        }
    }

    /// Returns true for single bytes that may also stand inside of a longer unit.
    fn is_inner(self, byte: u8) -> bool {
        self == Subject::Path && (byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte))
    }

    /// Checks a literal or a class. Returns whether it is made of whole units, and whether it cannot start inside of one.
    fn check_bytes(self, mut bytes: impl Iterator<Item = u8> + Clone) -> (bool, bool) {
        (bytes.clone().all(|byte| self.is_single(byte)), !bytes.any(|byte| self.is_inner(byte)))
    }
}

/// Whether what follows an expression cannot start inside of a unit: if the expression itself may start there (the first
/// value), and if it cannot (the second). `None` if the expression must be rewritten.
type Alignment = [Option<bool>; 2];

/// Returns whether an expression, searched anywhere, matches the same units as it matches bytes.
pub fn is_aligned(tree: &Hir, subject: Subject) -> bool {
    match (subject, tree.kind()) {
        (Subject::Path, _) => check_alignment(tree, subject)[0].is_some(),
        // In a text, only a run of `.` or `[^a]` starts inside of a character. A longer run then starts with it. Where a
        // search starts with a single `.`, the run may be as long.
        (Subject::Text, HirKind::Class(class)) if is_wide_class(class, subject) => true,
        (Subject::Text, HirKind::Concat(parts)) => match parts.split_first() {
            Some((first, rest)) if matches!(first.kind(), HirKind::Class(class) if is_wide_class(class, subject)) => {
                let rest: Vec<Alignment> = rest.iter().map(|part| check_alignment(part, subject)).collect();
                follow(false, &rest).is_some()
            }
            _ => check_alignment(tree, subject)[1].is_some(),
        },
        (Subject::Text, _) => check_alignment(tree, subject)[1].is_some(),
    }
}

fn is_wide_class(class: &Class, subject: Subject) -> bool {
    read_class(class).is_some_and(|set| is_wide(&set, subject))
}

/// Returns whether a class has every byte of longer units, so that a run of it includes whole units.
pub fn is_wide(set: &ByteSet, subject: Subject) -> bool {
    let is_needed = |byte: u8| !subject.is_single(byte) && byte != b'\n' || subject.is_inner(byte);
    (0..=u8::MAX).filter(|byte| is_needed(*byte)).all(|byte| set[usize::from(byte)])
}

/// Returns the bytes of a class, or `None` if it has characters that are not ASCII, as alternatives such as `é|4` have.
pub fn read_class(class: &Class) -> Option<ByteSet> {
    let mut set = [false; 256];
    match class {
        Class::Bytes(class) => {
            for range in class.ranges() {
                (range.start()..=range.end()).for_each(|byte| set[usize::from(byte)] = true);
            }
        }
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

/// Lists the bytes of a set in order.
pub fn list_bytes(set: &ByteSet) -> impl Iterator<Item = u8> + Clone {
    (0..=u8::MAX).filter(|byte| set[usize::from(*byte)])
}

fn check_alignment(tree: &Hir, subject: Subject) -> Alignment {
    let whole = |is_whole: bool, starts: bool| [is_whole && starts, is_whole].map(|fits| fits.then_some(true));
    match tree.kind() {
        HirKind::Empty | HirKind::Look(Look::End) => [Some(false), Some(true)],
        HirKind::Look(Look::Start) => [Some(true); 2],
        HirKind::Look(_) => [None; 2],
        HirKind::Literal(literal) => match (subject, str::from_utf8(&literal.0)) {
            // Whole characters are found only where characters start. Bytes that are no UTF-8 read as U+FFFD.
            (Subject::Text, Ok(text)) => whole(!text.contains('\u{fffd}'), true),
            (Subject::Text, Err(_)) => [None; 2],
            (Subject::Path, _) => {
                let first = literal.0.first().copied();
                let starts = !first.is_some_and(|byte| subject.is_inner(byte));
                whole(subject.check_bytes(literal.0.iter().copied()).0, starts)
            }
        },
        HirKind::Class(class) => match read_class(class) {
            Some(set) => {
                let (is_whole, starts) = subject.check_bytes(list_bytes(&set));
                whole(is_whole, starts)
            }
            None => whole(subject == Subject::Text && !has_replacement(class), true),
        },
        HirKind::Repetition(repetition) => {
            let (min, max) = (repetition.min, repetition.max);
            if let HirKind::Class(class) = repetition.sub.kind()
                && max.is_none()
                && is_wide_class(class, subject)
            {
                return [min == 0, min <= 1].map(|fits| fits.then_some(false));
            }
            let once = check_alignment(&repetition.sub, subject);
            [false, true].map(|aligned| {
                let mut after = once[usize::from(aligned)]?;
                if max != Some(1) {
                    after &= once[usize::from(after)]?;
                }
                Some(after && (min > 0 || aligned))
            })
        }
        HirKind::Capture(capture) => check_alignment(&capture.sub, subject),
        HirKind::Concat(parts) => {
            let parts: Vec<Alignment> = parts.iter().map(|part| check_alignment(part, subject)).collect();
            [false, true].map(|aligned| follow(aligned, &parts))
        }
        HirKind::Alternation(parts) => {
            let parts: Vec<Alignment> = parts.iter().map(|part| check_alignment(part, subject)).collect();
            [0, 1].map(|start| parts.iter().try_fold(true, |all, part| Some(part[start]? && all)))
        }
    }
}

/// Checks parts that follow each other.
fn follow(aligned: bool, parts: &[Alignment]) -> Option<bool> {
    parts.iter().try_fold(aligned, |aligned, part| part[usize::from(aligned)])
}

fn has_replacement(class: &Class) -> bool {
    match class {
        Class::Unicode(class) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&char::REPLACEMENT_CHARACTER))
        }
        Class::Bytes(_) => false,
    }
}
