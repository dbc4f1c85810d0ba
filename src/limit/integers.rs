//! Integers that requests state, as a cost or where `when` has an integer pattern. Called by `key` and `when`.

use super::source::Ambiguous;
use crate::labels::labels;

labels! {
    /// What happens when a request states something else where a limit reads an integer.
    #[derive(Default)]
    NotInteger:
    /// The request is refused: servers may read a number that the gateway does not.
    #[default]
    Refuse = "refuse",
    /// A cost counts as absent, and an integer pattern does not match.
    Ignore = "ignore",
}

/// Why a limit cannot tell what a request states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclear {
    /// Servers differ in which value they read.
    Ambiguous,
    /// The value must be an integer, and the limit says `not_integer = "refuse"`.
    NotInteger,
}

impl From<Ambiguous> for Unclear {
    fn from(_: Ambiguous) -> Unclear {
        Unclear::Ambiguous
    }
}

impl NotInteger {
    /// The integer of a value that `read` found; `None` where none is stated.
    ///
    /// # Errors
    /// The value is no integer and has to be one.
    pub fn judged(self, read: Option<i64>) -> Result<Option<i64>, Unclear> {
        match (read, self) {
            (None, NotInteger::Refuse) => Err(Unclear::NotInteger),
            (read, _) => Ok(read),
        }
    }
}

/// Reads an integer: ASCII digits, with a minus sign before them or without. Integers beyond 64 bits count as the
/// ends of that range, so that a longer number is not a way around a limit.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0_i64, |value, digit| {
        let digit = i64::from(digit - b'0');
        value.saturating_mul(10).saturating_add(if negative { -digit } else { digit })
    });
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_whole_and_end_at_64_bits() {
        for (text, int) in [
            ("0", Some(0)),
            ("-7", Some(-7)),
            ("-0", Some(0)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("99999999999999999999", Some(i64::MAX)),
            ("-99999999999999999999", Some(i64::MIN)),
            ("", None),
            ("-", None),
            ("--1", None),
            ("+1", None),
            ("1.0", None),
            ("1e3", None),
            ("1_000", None),
            ("0x3e8", None),
            (" 1", None),
            ("1 ", None),
            ("1a", None),
            ("\u{661}", None),
            ("1\0", None),
        ] {
            assert_eq!(integer(text.as_bytes()), int, "{text}");
        }
    }
}
