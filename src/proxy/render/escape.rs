//! Escapes values for the format of an error page.

use std::fmt::Write;

use crate::route::error_pages::PageFormat;

/// Appends a value, escaped for a format.
///
/// In HTML, everything but letters, digits and a few harmless characters becomes a character reference. The result is
/// the same text everywhere in a page, and cannot end an attribute, with or without quotes. In JSON, the value fits
/// into a string. Plain text gets no control characters.
pub fn push_escaped(out: &mut String, value: &str, format: PageFormat) {
    for c in value.chars() {
        let _ = match format {
            PageFormat::Html if c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '.' | ',' | '_' | '~') => {
                out.write_char(c)
            }
            PageFormat::Html if c.is_ascii() => write!(out, "&#{};", u32::from(c)),
            PageFormat::Json if matches!(c, '"' | '\\' | '<' | '>' | '&' | '\'') || c.is_control() => {
                write!(out, "\\u{:04x}", u32::from(c))
            }
            PageFormat::Text if c.is_control() => Ok(()),
            _ => out.write_char(c),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escape(value: &str, format: PageFormat) -> String {
        let mut out = String::new();
        push_escaped(&mut out, value, format);
        out
    }

    #[test]
    fn values_are_escaped_by_format() {
        let value = "<b a='\"'>&\\\n`{x}=";
        assert_eq!(
            escape(value, PageFormat::Html),
            "&#60;b a&#61;&#39;&#34;&#39;&#62;&#38;&#92;&#10;&#96;&#123;x&#125;&#61;"
        );
        assert_eq!(
            escape(value, PageFormat::Json),
            "\\u003cb a=\\u0027\\u0022\\u0027\\u003e\\u0026\\u005c\\u000a`{x}="
        );
        assert_eq!(escape(value, PageFormat::Text), "<b a='\"'>&\\`{x}=");
    }

    proptest! {
        #[test]
        fn json_has_the_same_text(value in any::<String>()) {
            let document = format!("\"{}\"", escape(&value, PageFormat::Json));
            prop_assert_eq!(serde_json::from_str::<String>(&document).unwrap(), value);
        }

        #[test]
        fn html_has_no_markup(value in any::<String>()) {
            let has_markup = escape(&value, PageFormat::Html).contains(['<', '>', '"', '\'', '`', '=', '\\', '\n', '{']);
            prop_assert!(!has_markup, "{value:?}");
        }
    }
}
