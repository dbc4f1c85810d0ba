//! Translates sizes of nginx, such as `8m`.

use crate::import::error::Result;
use crate::import::syntax::{Directive, shorten};
use crate::text::quote_literal;

/// Translates a size of nginx, such as `8m`, to a value of a config. In nginx, 0 means no limit.
pub fn translate_size(at: &Directive) -> Result<String> {
    let fault = || at.error(format!("`{}` is not a size", shorten(at.arg(0))));
    let (number, unit) = split_size(at.arg(0)).ok_or_else(fault)?;
    match number {
        0 => Ok(quote_literal("1024GiB")),
        number if number <= 1 << 40 && unit.is_empty() => Ok(number.to_string()),
        number if number <= 1 << 20 => Ok(quote_literal(&format!("{number}{unit}"))),
        _ => Err(fault()),
    }
}

/// Parses a size of nginx to bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_size(text)?;
    let shift = match unit {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => 0,
    };
    number.checked_mul(1 << shift)
}

fn split_size(text: &str) -> Option<(u64, &'static str)> {
    let text = text.to_ascii_lowercase();
    let (digits, unit) = match text.char_indices().last() {
        Some((end, 'k')) => (&text[..end], "KiB"),
        Some((end, 'm')) => (&text[..end], "MiB"),
        Some((end, 'g')) => (&text[..end], "GiB"),
        _ => (text.as_str(), ""),
    };
    Some((digits.parse().ok()?, unit))
}
