//! Texts as outputs show them: without passwords in URLs, and without the values of `${...}`, which may be secrets.

use crate::config::diagnostics::secret_options;
use crate::config::diagnostics::secret_options::URL_PARAMETERS;
use crate::config::substitute::Text;

/// Stands for a secret.
pub const MASK: &str = "***";

/// Returns a text as it may be shown: with `${...}` as written but without defaults, and without passwords of URLs.
pub fn mask_text(text: &Text) -> String {
    match &text.written {
        Some(written) => mask_passwords(&hide_defaults(written)),
        None => mask_passwords(&text.value),
    }
}

/// Returns the text of an option as it may be shown. `keys` start after the section and its name.
pub fn mask_option(keys: &[&str], text: &Text) -> String {
    let text = mask_text(text);
    match text.split_once('?') {
        Some((url, _)) if secret_options::has_secret_query(keys) => format!("{url}?{MASK}"),
        _ => text,
    }
}

/// Replaces the DEFAULT of each `${VAR:-DEFAULT}`, which may be a secret for development.
fn hide_defaults(written: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(written.len()), written);
    while let Some((before, after)) = rest.split_once(":-") {
        let is_inside = before.rfind("${").is_some_and(|open| !before[open..].contains('}'));
        shown.push_str(before);
        shown.push_str(":-");
        rest = after;
        if is_inside {
            shown.push_str(MASK);
            rest = &after[after.find('}').unwrap_or(after.len())..];
        }
    }
    shown + rest
}

/// Replaces passwords of URLs: `SCHEME://USER:PASSWORD@HOST`, and the parameters that Redis URLs have for them.
fn mask_passwords(text: &str) -> String {
    let mut result = text.to_owned();
    if let Some((scheme, rest)) = text.split_once("://") {
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        // A password may contain a slash that should have been escaped; then everything up to the last `@` is hidden.
        let login = rest[..end].rfind('@').or_else(|| rest.rfind('@').filter(|at| rest[..*at].contains(':')));
        if let Some(at) = login {
            let user = rest[..at].split(':').next().unwrap_or_default();
            let colon = if rest[..at].contains(':') { ":" } else { "" };
            let mask = if colon.is_empty() { "" } else { MASK };
            result = format!("{scheme}://{user}{colon}{mask}{}", &rest[at..]);
        }
    }
    let of_urls = URL_PARAMETERS.iter().filter(|_| text.contains("://"));
    for name in ["pass=", "password="].iter().chain(of_urls) {
        let mut from = 0;
        while let Some(at) = result[from..].find(*name).map(|at| from + at + name.len()) {
            let end = result[at..].find(['&', ' ', '#']).map_or(result.len(), |end| at + end);
            result.replace_range(at..end, MASK);
            from = at + MASK.len();
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_defaults_are_hidden() {
        let shown = |value: &str| mask_text(&Text { value: value.to_owned(), written: None });
        assert_eq!(shown("redis://u:pw@h:1/2"), "redis://u:***@h:1/2");
        assert_eq!(shown("redis://:pw@h"), "redis://:***@h");
        assert_eq!(shown("redis://u:p/w@h:1"), "redis://u:***@h:1");
        assert_eq!(shown("redis+unix:///s?user=u&pass=pw&db=1"), "redis+unix:///s?user=u&pass=***&db=1");
        assert_eq!(shown("redis+sentinel://h/m?sentinel_password=pw"), "redis+sentinel://h/m?sentinel_password=***");
        assert_eq!(shown("http://h:1/a?x=1&api_key=pw&y=2"), "http://h:1/a?x=1&api_key=***&y=2");
        assert_eq!(shown("http://h:1/a"), "http://h:1/a");
        let written = |text: &str| mask_text(&Text { value: "canary".to_owned(), written: Some(text.to_owned()) });
        assert_eq!(written("a${X:-pw}b${Y}c:-d"), "a${X:-***}b${Y}c:-d");
        assert_eq!(written("redis://u:${PW:-x}@h"), "redis://u:***@h");
    }
}
