//! Translates sizes of nginx, such as `8m`.

use crate::import::error::Result;
use crate::import::syntax::{Directive, shorten};
use crate::import::text::quote_string;

/// Translates a size of nginx, such as `8m`, to a value of a config. In nginx, 0 means no limit.
pub fn translate_size(at: &Directive) -> Result<String> {
    let text = at.arg(0).to_ascii_lowercase();
    let (digits, unit) = match text.char_indices().last() {
        Some((end, 'k')) => (&text[..end], "KiB"),
        Some((end, 'm')) => (&text[..end], "MiB"),
        Some((end, 'g')) => (&text[..end], "GiB"),
        _ => (text.as_str(), ""),
    };
    match digits.parse::<u64>() {
        Ok(0) => Ok(quote_string("1024GiB")),
        Ok(number) if number <= 1 << 40 && unit.is_empty() => Ok(number.to_string()),
        Ok(number) if number <= 1 << 20 => Ok(quote_string(&format!("{number}{unit}"))),
        _ => Err(at.error(format!("`{}` is not a size", shorten(at.arg(0))))),
    }
}
