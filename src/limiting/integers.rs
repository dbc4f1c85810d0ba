//! Integers in requests: a stated cost, or a value that an integer pattern of `when` is matched with.

use crate::labels::labels;
use crate::limiting::unreadable_body::UnreadableBody;

/// Largest integer, and with a minus the smallest, that the scripts in Redis represent exactly.
pub const EXACT_MAX: i64 = 1 << 53;

labels! {
    /// Handling of a request if a limit reads an integer and the request contains something else.
    #[derive(Default)]
    NotInteger:
    /// Refuses the request, because the upstream server may still read a number there.
    #[default]
    Refuse = "refuse",
    /// Treats a cost as absent; an integer pattern does not match.
    Ignore = "ignore",
}

/// Why a limit cannot use a value of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// The request contains several values, and servers differ in which one they use.
    Ambiguous,
    /// The value is not an integer, and the limit has `not_integer = "refuse"`.
    NotInteger,
    /// The body in which the value is cannot be read.
    Unreadable(UnreadableBody),
}

impl From<UnreadableBody> for ValueError {
    fn from(why: UnreadableBody) -> ValueError {
        ValueError::Unreadable(why)
    }
}

impl NotInteger {
    /// Applies the setting to the result of parsing a value: returns the integer, or `None` if a value that is no
    /// integer is ignored.
    ///
    /// # Errors
    /// The value is not an integer, and the setting is `refuse`.
    pub fn apply_to(self, parsed: Option<i64>) -> Result<Option<i64>, ValueError> {
        match (parsed, self) {
            (None, NotInteger::Refuse) => Err(ValueError::NotInteger),
            (parsed, _) => Ok(parsed),
        }
    }
}

/// Parses an integer: ASCII digits with an optional minus sign. Values beyond 64 bits are clamped, so that a longer
/// number does not bypass a limit.
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

/// Largest cost. Larger ones are clamped, which keeps every product below 2^53.
pub const COST_MAX: i64 = 1_000_000_000;

/// Parses a stated cost and clamps it to [`COST_MAX`]. Returns `None` if it is not an integer or has a sign.
pub fn units(digits: &[u8]) -> Option<i64> {
    integer(digits).filter(|_| !digits.starts_with(b"-")).map(|cost| cost.min(COST_MAX))
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
