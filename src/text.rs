//! Small forms of text that many modules use: hexadecimal digits, percent-encoding, quoted strings, wildcards and time spans.

use std::fmt;

/// Returns the value of a hexadecimal digit, in upper or lower case.
fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Returns the byte that two hexadecimal digits stand for.
pub fn hex_byte(high: u8, low: u8) -> Option<u8> {
    Some(hex_digit(high)? << 4 | hex_digit(low)?)
}

/// Appends a byte as `%XX`, in upper case.
pub fn push_percent_encoded(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let [high, low] = [byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)]));
    out.extend(['%', high, low]);
}

/// Quotes a text as a TOML and JSON string, on one line.
pub fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Quotes a text as a string of the config, in which `${...}` is not replaced.
pub fn quote_literal(text: &str) -> String {
    quote(text).replace("${", "$${")
}

/// A text in which `*` stands for any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wildcard {
    /// The pieces between the stars; at least one.
    pieces: Vec<String>,
}

impl Wildcard {
    pub fn new(pattern: &str) -> Wildcard {
        Wildcard { pieces: pattern.split('*').map(str::to_owned).collect() }
    }

    pub fn matches(&self, value: &[u8]) -> bool {
        self.matches_by(value, |pattern, byte| pattern == byte)
    }

    /// Matches like a shell: `?` stands for one byte.
    pub fn matches_file(&self, name: &str) -> bool {
        self.matches_by(name.as_bytes(), |pattern, byte| pattern == b'?' || pattern == byte)
    }

    /// Each piece between two stars takes its leftmost match, which leaves the most for the rest.
    fn matches_by(&self, value: &[u8], is_same: impl Fn(u8, u8) -> bool) -> bool {
        let is_match = |piece: &str, bytes: &[u8]| piece.bytes().zip(bytes).all(|(a, b)| is_same(a, *b));
        let [first, middle @ .., last] = self.pieces.as_slice() else {
            return self.pieces.iter().all(|piece| piece.len() == value.len() && is_match(piece, value));
        };
        if value.len() < first.len() + last.len() {
            return false;
        }
        let (head, rest) = value.split_at(first.len());
        let (mut rest, tail) = rest.split_at(rest.len() - last.len());
        is_match(first, head)
            && is_match(last, tail)
            && middle.iter().filter(|piece| !piece.is_empty()).all(|piece| {
                let place = rest.windows(piece.len()).position(|window| is_match(piece, window));
                rest = place.map_or(rest, |place| &rest[place + piece.len()..]);
                place.is_some()
            })
    }
}

impl fmt::Display for Wildcard {
    /// Writes the pattern as it was given.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.pieces.join("*"))
    }
}

/// Returns the length of a unit of time in milliseconds.
pub fn unit_ms(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" => 1,
        "s" | "sec" | "second" | "seconds" => 1000,
        "m" | "min" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        _ => return None,
    })
}

/// Formats a duration as the config has it, in the largest unit that divides it: `0s`, `90s`, `10min`, `1d`.
pub fn format_duration(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")];
    match units.into_iter().find(|(length, _)| ms > 0 && ms.is_multiple_of(*length)) {
        Some((length, unit)) => format!("{}{unit}", ms / length),
        None if ms == 0 => "0s".to_owned(),
        None => format!("{ms}ms"),
    }
}

/// Formats a time span: `430 ms`, `12 s`, `3 min 5 s`, `5 h 2 min`, `3 d 4 h`.
pub fn format_span(ms: i64) -> String {
    let (seconds, minutes, hours) = (ms / 1000, ms / 60_000, ms / 3_600_000);
    let join = |large: i64, unit: &str, small: i64, below: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {below}"),
    };
    match ms {
        ..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{seconds} s"),
        60_000..3_600_000 => join(minutes, "min", seconds % 60, "s"),
        3_600_000..86_400_000 => join(hours, "h", minutes % 60, "min"),
        _ => join(hours / 24, "d", hours % 24, "h"),
    }
}

/// Formats a number of things: `1 limit`, `2 limits`.
pub fn format_count(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Matches by the definition, character by character.
    fn naive(pattern: &[u8], value: &[u8], is_file: bool) -> bool {
        match (pattern, value) {
            ([], []) => true,
            ([b'*', rest @ ..], value) => {
                naive(rest, value, is_file) || matches!(value, [_, after @ ..] if naive(pattern, after, is_file))
            }
            ([a, rest @ ..], [b, after @ ..]) => (a == b || is_file && *a == b'?') && naive(rest, after, is_file),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn wildcards_match_by_their_definition(pattern in "[ab*?]{0,8}", value in "[ab]{0,10}") {
            let wildcard = Wildcard::new(&pattern);
            prop_assert_eq!(wildcard.matches(value.as_bytes()), naive(pattern.as_bytes(), value.as_bytes(), false));
            prop_assert_eq!(wildcard.matches_file(&value), naive(pattern.as_bytes(), value.as_bytes(), true));
            prop_assert_eq!(wildcard.to_string(), pattern);
        }

        #[test]
        fn quoted_texts_are_the_same_in_toml_and_json(text in "\\PC*|[\\x00-\\x7f]{0,20}") {
            let quoted = quote(&text);
            prop_assert!(!quoted.contains('\n'));
            prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text.clone());
            let document = format!("a = {quoted}");
            let table = toml::de::DeTable::parse(&document).unwrap();
            prop_assert_eq!(table.get_ref()["a"].get_ref().as_str(), Some(text.as_str()));
        }
    }

    #[test]
    fn bytes_are_encoded_and_decoded() {
        for byte in 0..=255 {
            let mut text = String::new();
            push_percent_encoded(&mut text, byte);
            assert_eq!(text, format!("%{byte:02X}"));
            let [_, high, low] = *text.as_bytes() else { panic!("{text}") };
            assert_eq!(hex_byte(high, low), Some(byte));
            assert_eq!(hex_byte(high.to_ascii_lowercase(), low.to_ascii_lowercase()), Some(byte));
        }
        assert_eq!((hex_byte(b'+', b'1'), hex_byte(b'g', b'0')), (None, None));
    }

    #[test]
    fn literals_hold_no_substitutions_and_no_control_characters() {
        assert_eq!(quote_literal("a\"b\\c\n${file:/etc/passwd}\u{7f}"), r#""a\"b\\c\n$${file:/etc/passwd}\u007f""#);
    }

    #[test]
    fn spans_have_two_units_at_most() {
        let cases = [(0, "0 ms"), (999, "999 ms"), (61_000, "1 min 1 s"), (3_600_000, "1 h"), (90_000_000, "1 d 1 h")];
        for (ms, text) in cases {
            assert_eq!(format_span(ms), text);
        }
    }
}
