//! Writes paths of nginx for canonical paths. nginx compares the decoded path. A canonical path has the characters plain
//! that a segment may contain, and all other bytes encoded.

use crate::canonical::is_segment_byte;

/// Encodes a path as in canonical requests.
pub fn encode_path(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match is_plain(byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
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

/// Returns true for characters that are never encoded in a canonical path. The slash is one, as an encoded one is refused.
pub fn is_plain(byte: u8) -> bool {
    byte == b'/' || is_segment_byte(byte)
}

/// Writes the regular expression that matches a byte of a path.
pub fn format_byte(byte: u8) -> String {
    match byte {
        byte if is_plain(byte) => regex_syntax::escape(&char::from(byte).to_string()),
        byte => format!("%{byte:02X}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// A literal matches exactly its text.
        #[test]
        fn literals_match_their_text(text in "[a@ é+%/4-]{1,6}", other in "[a@ é+%/4-]{1,6}") {
            let regex = Regex::new(&format!("^{}$", format_literal(&text))).unwrap();
            prop_assert!(regex.is_match(&encode_path(&text)));
            prop_assert_eq!(regex.is_match(&encode_path(&other)), text == other);
        }
    }
}
