//! Translates groups of regular expressions in targets: `$1` becomes `{1}`. A path with groups is `path` of `rewrite`.

use regex::Regex;

use crate::import::expressions::{Reading, translate_path_regex};
use crate::import::model::ImportedRedirect;
use crate::import::nginx::redirects::translate_target;
use crate::import::syntax::Directive;

/// A redirect by the groups of an expression.
pub struct CapturedRedirect {
    pub redirect: ImportedRedirect,
    /// The `path` of `rewrite`, which `{path}` of the redirect stands for. `None` if the target has no groups.
    pub path: Option<String>,
    /// The query of the target comes before that of the request.
    pub joins_queries: bool,
}

/// How a redirect with `joins_queries` differs from nginx.
pub const JOINED: &str = "for a request without a query, that of the target ends with `&`";

/// Reads a `rewrite` that redirects, such as `rewrite ^/u/([0-9]+)$ /users/$1 permanent`.
pub fn read_captured_redirect(at: &Directive) -> Option<CapturedRedirect> {
    let [pattern, target, flag] = at.args.as_slice() else { return None };
    let is_url = target.starts_with("http://") || target.starts_with("https://") || target.starts_with("$scheme");
    let status = match flag.as_str() {
        "permanent" => 301,
        "redirect" => 302,
        // Without a flag, nginx redirects to a URL, and rewrites to a path.
        _ => return None,
    };
    if at.name != "rewrite" || !is_url && !target.starts_with('/') {
        return None;
    }
    let (target, keeps_query) = target.strip_suffix('?').map_or((target.as_str(), true), |target| (target, false));
    let Some((target, query)) = target.split_once('?') else {
        return translate_captured_target(target, status, keeps_query, (pattern, false));
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~=&/:,".contains(&byte);
    if query.is_empty() || !query.bytes().all(is_plain) {
        return None;
    }
    let mut found = translate_captured_target(target, status, false, (pattern, false))?;
    // nginx appends the query of the request.
    found.redirect.to.push_str(&format!("?{query}{}", if keeps_query { "&{query}" } else { "" }));
    found.joins_queries = keeps_query;
    Some(found)
}

/// Translates a target with groups of an expression: its pattern, and whether it ignores case.
pub fn translate_captured_target(
    target: &str,
    status: u16,
    keeps_query: bool,
    (pattern, ignore_case): (&str, bool),
) -> Option<CapturedRedirect> {
    let authority = target.find("://").map_or(0, |at| at + 3);
    let (origin, path) = match authority {
        0 => ("", target),
        _ => target.split_at(authority + target[authority..].find('/')?),
    };
    let path = translate_captures(path, pattern, ignore_case)?;
    let text = if path.contains('{') { "$uri" } else { &path };
    let redirect = match (origin, text) {
        ("", "$uri") => ImportedRedirect { to: "{path}".to_owned(), status, keeps_query },
        _ => ImportedRedirect { keeps_query, ..translate_target(&format!("{origin}{text}"), status)? },
    };
    Some(CapturedRedirect { redirect, path: path.contains('{').then_some(path), joins_queries: false })
}

/// Translates a path with groups, such as `/v1/$2`. Returns `None` if the path or the expression has anything that a
/// `rewrite` reads in another way.
pub fn translate_captures(path: &str, pattern: &str, ignore_case: bool) -> Option<String> {
    let groups = count_groups(pattern, ignore_case)?;
    let mut output = String::new();
    let mut rest = path;
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at);
        output.push_str(before);
        // nginx has the groups from 1 to 9.
        let after = &after[1..];
        let is_braced = after.starts_with('{');
        let digit = after.trim_start_matches('{').chars().next().and_then(|digit| digit.to_digit(10))?;
        if !(1..=groups).contains(&(digit as usize)) || is_braced && after.get(2..3) != Some("}") {
            return None;
        }
        output.push_str(&format!("{{{digit}}}"));
        rest = &after[if is_braced { 3 } else { 1 }..];
    }
    output.push_str(rest);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/{}".contains(&byte);
    let is_canonical = |text: &str| {
        text.starts_with('/') && !text.contains("//") && !text.split('/').any(|part| matches!(part, "." | ".."))
    };
    let has_braces = path.split('$').any(|part| part.trim_start_matches('{').contains('{'));
    (output.bytes().all(is_plain) && is_canonical(&output) && !has_braces).then_some(output)
}

/// Returns the number of groups of an expression that the config has as nginx has it.
fn count_groups(pattern: &str, ignore_case: bool) -> Option<usize> {
    // An expression that is written in another way has no groups.
    let (written, _) = translate_path_regex(pattern, ignore_case, Reading::Exact).ok()?;
    let regex = Regex::new(&written).ok().filter(|_| written == pattern)?;
    Some(regex.captures_len().saturating_sub(1).min(9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_become_captures() {
        for (path, pattern, expected) in [
            ("/v1/$2", "^/(a|b)/(.*)$", Some("/v1/{2}")),
            ("/${1}x/$12", "^/([0-9]+)$", Some("/{1}x/{1}2")),
            ("/new", "^/old$", Some("/new")),
            ("/$2", "^/(.*)$", None),
            ("$1", "^/(.*)$", None),
            ("/$uri", "^/(.*)$", None),
            ("/{1}", "^/(.*)$", None),
            ("/$1?a=b", "^/(.*)$", None),
            ("/../$1", "^/(.*)$", None),
            ("/$", "^/(.*)$", None),
            ("/${1", "^/(.*)$", None),
            ("/$1", "^/(?!x)(.*)$", None),
        ] {
            assert_eq!(translate_captures(path, pattern, false).as_deref(), expected, "{path} {pattern}");
        }
    }

    #[test]
    fn targets_may_have_a_query() {
        let translate = |target: &str| {
            let at = Directive::written("rewrite", &["^/u/([0-9]+)$", target, "permanent"]);
            let found = read_captured_redirect(&at)?;
            Some((found.redirect.to, found.path.unwrap_or_default(), found.joins_queries))
        };
        for (target, expected) in [
            ("/new?a=1", Some(("/new?a=1&{query}", "", true))),
            ("/new?a=1?", Some(("/new?a=1", "", false))),
            ("/users/$1?a=1&b", Some(("{path}?a=1&b&{query}", "/users/{1}", true))),
            ("https://example.com/new?a=1", Some(("https://example.com/new?a=1&{query}", "", true))),
            ("/new?id=$1", None),
            ("/new??", None),
            ("/new?a={query}", None),
        ] {
            let expected = expected.map(|(to, path, joins)| (to.to_owned(), path.to_owned(), joins));
            assert_eq!(translate(target), expected, "{target}");
        }
    }

    #[test]
    fn targets_keep_their_origin() {
        let translate = |target: &str| {
            let found = translate_captured_target(target, 301, true, ("^/u/([0-9]+)$", false))?;
            Some((found.redirect.to, found.path.unwrap_or_default()))
        };
        let pair = |to: &str, path: &str| Some((to.to_owned(), path.to_owned()));
        assert_eq!(translate("/users/$1"), pair("{path}", "/users/{1}"));
        assert_eq!(translate("https://example.com/users/$1"), pair("https://example.com{path}", "/users/{1}"));
        assert_eq!(translate("$scheme://$host/u"), pair("{scheme}://{host}/u", ""));
        assert_eq!(translate("https://$1.example.com/u"), None);
        assert_eq!(translate("https://$http_x/u"), None);
    }
}
