//! Makes text of clients safe to print: no character controls the terminal, hides, or reorders other text. Called for
//! everything that commands print from the answers of a gateway.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns whether a character may be printed as it is. Control characters move the cursor or start escape sequences;
/// format characters reverse or hide other text.
fn is_printable(char: char) -> bool {
    !char.is_control()
        && !matches!(char,
            '\u{ad}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e000}'..='\u{f8ff}'
            | '\u{e0000}'..='\u{10ffff}')
}

/// Returns the text with other characters as `\u{HEX}`.
pub fn make_visible(text: &str) -> Cow<'_, str> {
    escape_with(text, |visible, char| write!(visible, "\\u{{{:x}}}", u32::from(char)))
}

/// Returns JSON in which strings contain such characters as `\uHEX`. JSON has them only in strings.
pub fn make_json_visible(json: &str) -> Cow<'_, str> {
    escape_with(json, |visible, char| {
        char.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(visible, "\\u{unit:04x}"))
    })
}

fn escape_with(text: &str, escape: impl Fn(&mut String, char) -> std::fmt::Result) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_printable(char) {
            visible.push(char);
        } else {
            // Writing to a string does not fail.
            let _ = escape(&mut visible, char);
        }
    }
    Cow::Owned(visible)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_that_controls_it() {
        assert_eq!(make_visible("/a\u{1b}[2J\u{202e}gpj.\u{7f}\u{9b}é世"), r"/a\u{1b}[2J\u{202e}gpj.\u{7f}\u{9b}é世");
        assert_eq!(make_json_visible("{\"a\":\"\u{61c}\u{e0041}\"}"), r#"{"a":"\u061c\udb40\udc41"}"#);
        assert!(matches!(make_visible("plain"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn visible_json_has_the_same_value(text: String) {
            let json = serde_json::to_string(&text).unwrap();
            let visible = make_json_visible(&json);
            prop_assert!(visible.chars().all(is_printable) && make_visible(&text).chars().all(is_printable));
            prop_assert_eq!(serde_json::from_str::<String>(&visible).unwrap(), text);
        }
    }
}
