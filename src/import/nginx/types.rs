//! The types of responses from the config: nginx chooses them by the extension of the path.

use crate::import::nginx::scope::Scope;
use crate::import::paths::LocationMatcher;
use crate::import::syntax::Directive;

/// The types that nginx knows without a `types` block.
const BUILT_IN: [(&str, &str); 3] = [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")];

/// Returns the type of a response to the requests of a location. `None` for a type that a response cannot have.
pub fn find_type(scope: &Scope, matcher: &LocationMatcher) -> Option<String> {
    let extension = match matcher {
        LocationMatcher::Exact(path) => read_extension(path),
        _ => None,
    };
    match extension.and_then(|extension| look_up(scope.get("types"), extension)) {
        Some(kind) => accept_type(kind),
        None => find_default_type(scope),
    }
}

/// Returns the type of responses without an extension. `None` for a type that a response cannot have.
pub fn find_default_type(scope: &Scope) -> Option<String> {
    accept_type(scope.get("default_type").map_or("text/plain", |directive| directive.arg(0)))
}

fn accept_type(kind: &str) -> Option<String> {
    let is_type = kind.contains('/') && kind.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    is_type.then(|| kind.to_owned())
}

/// Returns whether the paths of a location have extensions, so that nginx chooses between several types.
pub fn has_extension(matcher: &LocationMatcher) -> bool {
    match matcher {
        LocationMatcher::Exact(_) => false,
        LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => read_extension(path).is_some(),
        LocationMatcher::Regex { pattern, .. } | LocationMatcher::Server { pattern, .. } => pattern
            .match_indices("\\.")
            .any(|(at, _)| pattern[at + 2..].starts_with(|c: char| c == '(' || c.is_ascii_alphabetic())),
    }
}

fn read_extension(path: &str) -> Option<&str> {
    let (_, name) = path.rsplit_once('/')?;
    name.rsplit_once('.').map(|(_, extension)| extension).filter(|extension| !extension.is_empty())
}

/// Finds the type of an extension in a `types` block.
fn look_up<'t>(types: Option<&'t Directive>, extension: &str) -> Option<&'t str> {
    let Some(types) = types else {
        let built_in = BUILT_IN.iter().find(|(known, _)| known.eq_ignore_ascii_case(extension));
        return built_in.map(|(_, kind)| *kind);
    };
    let has = |line: &&Directive| line.args.iter().any(|known| known.eq_ignore_ascii_case(extension));
    types.inner().iter().rfind(has).map(|line| line.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_those_of_the_last_segment() {
        let regex = |pattern: &str| LocationMatcher::Regex { pattern: pattern.to_owned(), ignore_case: false };
        for (path, expected) in [("/a.html", Some("html")), ("/a.b/c", None), ("/a.", None), ("/.x", Some("x"))] {
            assert_eq!(read_extension(path), expected, "{path}");
        }
        for (pattern, expected) in [(r"\.php$", true), (r"\.(jpg|png)$", true), ("^/a", false), (r"^/v\d", false)] {
            assert_eq!(has_extension(&regex(pattern)), expected, "{pattern}");
        }
        assert_eq!(look_up(None, "HTML"), Some("text/html"));
        assert_eq!(look_up(None, "json"), None);
    }
}
