//! Formats values as TOML.

use crate::text::quote_literal;

/// Formats one string as a string, and several as an array.
pub fn format_list<S: AsRef<str>>(items: &[S]) -> String {
    match items {
        [one] => quote_literal(one.as_ref()),
        items => format_array(items),
    }
}

/// Formats strings as an array.
pub fn format_array<S: AsRef<str>>(items: &[S]) -> String {
    let items: Vec<String> = items.iter().map(|item| quote_literal(item.as_ref())).collect();
    format!("[{}]", items.join(", "))
}

/// Formats names and values as an inline table.
pub fn format_pairs(pairs: &[(String, String)]) -> String {
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{} = {}", quote_literal(name), quote_literal(value))).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// Formats an expression for a `Cookie` header with a cookie. `value`: an expression for what follows its name. nginx
/// ignores the case of names.
pub fn format_cookie_pattern(name: &str, value: &str) -> String {
    format!("(?:^|; *)(?i:{}) *= *{value}", regex::escape(name))
}

/// Formats a duration, in whole seconds where possible.
pub fn format_duration(ms: u64) -> String {
    match ms % 1000 {
        0 => format!("\"{}s\"", ms / 1000),
        _ => format!("\"{ms}ms\""),
    }
}

/// Formats the name of a section. A name with a dot is quoted.
pub fn format_section(name: &str) -> String {
    if name.contains('.') { quote_literal(name) } else { name.to_owned() }
}

/// Replaces the characters that the name of a limit, a set or an upstream cannot have.
pub fn clean_name(text: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    let name: String = text.chars().map(fits).take(56).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_names_are_formatted() {
        assert_eq!(format_list(&["a"]), "\"a\"");
        assert_eq!(format_list(&["a", "b"]), "[\"a\", \"b\"]");
        assert_eq!(clean_name("ä b/c"), "--b-c");
    }
}
