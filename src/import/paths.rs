//! Turns the locations of one server into paths of routes. Sluicegate tries routes in another order than nginx tries
//! locations.

use std::collections::{BTreeSet, HashSet};

use regex::RegexBuilder;

use crate::import::model::{ImportedConfig, ImportedRedirect, RouteAction, RouteBody};
use crate::import::remarks::Remarks;

/// Maximum number of bytes of a compiled regular expression, the same as in a config.
const REGEX_MAX: usize = 1 << 20;

/// Matches the paths of a location.
#[derive(Clone, Debug, PartialEq)]
pub enum LocationMatcher {
    Exact(String),
    /// Matches every path that starts with this text. With `first` (`^~`), nginx does not try regular expressions.
    Prefix {
        path: String,
        first: bool,
    },
    /// Matches the path and everything below it, by segments.
    Segments(String),
    Regex {
        pattern: String,
        ignore_case: bool,
    },
}

impl LocationMatcher {
    /// Returns the path, unless it is a regular expression.
    pub fn literal_path(&self) -> Option<&str> {
        match self {
            LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => {
                Some(path)
            }
            LocationMatcher::Regex { .. } => None,
        }
    }
}

impl LocationMatcher {
    /// Returns whether only one path matches.
    pub fn is_exact(&self) -> bool {
        matches!(self, LocationMatcher::Exact(_))
    }
}

/// A translated location: its paths and its route.
#[derive(Debug)]
pub struct Location {
    pub matcher: LocationMatcher,
    pub body: RouteBody,
}

/// Orders the routes of a server's locations. nginx finds the longest prefix, which is any text; then regular
/// expressions in their order take precedence. In Sluicegate, paths by segments take precedence over regular
/// expressions. Where the results would differ, all but exact paths become regular expressions in nginx's order.
pub fn order_routes(
    locations: Vec<Location>,
    fallback: RouteBody,
    out: &mut ImportedConfig,
) -> Vec<(String, RouteBody)> {
    let mut kept: Vec<Location> = Vec::new();
    let mut patterns = HashSet::new();
    // The comment on a regular expression that may take requests of other routes.
    let mut overriding = None;
    for mut location in locations {
        let origin = location.body.origin.clone();
        match &mut location.matcher {
            LocationMatcher::Regex { pattern, ignore_case } => {
                if !out.count_regex() || !can_compile(pattern, *ignore_case) {
                    let relaxed = relax_pattern(pattern).filter(|relaxed| can_compile(relaxed, *ignore_case));
                    let what = match relaxed {
                        Some(_) => "its route has more paths and is closed",
                        None => "the routes whose requests it may take are closed",
                    };
                    let number = out.remarks.add_text(format!(
                        "{origin}: this regular expression is not available (look-around, back-reference, size or number), so {what}"
                    ));
                    let Some(relaxed) = relaxed else {
                        overriding = Some(number);
                        continue;
                    };
                    *pattern = relaxed;
                    location.body.close(number);
                }
                // A second regular expression with the same text never matches.
                if !patterns.insert((pattern.clone(), *ignore_case)) {
                    continue;
                }
            }
            LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => {
                if !path.starts_with('/')
                    || path.split('/').any(|part| matches!(part, "." | ".."))
                    || path.contains("//")
                {
                    out.remarks.add_text(format!("{origin}: no request has such a path, so it never matches"));
                    continue;
                }
                *path = encode_path(path);
            }
        }
        kept.push(location);
    }
    if let Some(number) = overriding {
        let is_taken = |location: &Location| {
            !matches!(location.matcher, LocationMatcher::Exact(_) | LocationMatcher::Prefix { first: true, .. })
        };
        kept.iter_mut().filter(|location| is_taken(location)).for_each(|location| location.body.close(number));
    }
    let is_whole = |location: &Location| match &location.matcher {
        LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => path == "/",
        _ => false,
    };
    if !kept.iter().any(is_whole) {
        kept.push(Location { matcher: LocationMatcher::Prefix { path: "/".to_owned(), first: false }, body: fallback });
    }
    let taken: HashSet<String> =
        kept.iter().filter_map(|location| location.matcher.literal_path()).map(str::to_owned).collect();
    let redirects: Vec<Location> = kept.iter().filter_map(|location| redirect_to_slash(location, &taken)).collect();
    kept.extend(redirects);
    match kept.iter().all(is_by_segments) {
        true => kept.into_iter().map(|location| (format_path(&location.matcher), location.body)).collect(),
        false => order_as_nginx(kept, &mut out.remarks),
    }
}

fn can_compile(pattern: &str, ignore_case: bool) -> bool {
    RegexBuilder::new(pattern).case_insensitive(ignore_case).size_limit(REGEX_MAX).build().is_ok()
}

/// Removes look-arounds and back-references from a regular expression, which then matches more. Returns `None` if it has
/// none.
fn relax_pattern(pattern: &str) -> Option<String> {
    let mut relaxed = String::new();
    let mut rest = pattern;
    // The depth of groups inside of a look-around, which are skipped.
    let mut depth = 0_usize;
    let mut in_class = false;
    let mut has_changed = false;
    while let Some(next) = rest.chars().next() {
        let looks = ["(?!", "(?=", "(?<!", "(?<="].iter().any(|start| rest.starts_with(start));
        let mut length = next.len_utf8();
        if next == '\\' {
            let escaped = rest[length..].chars().next();
            length += escaped.map_or(0, char::len_utf8);
            if depth == 0 && !in_class && escaped.is_some_and(|c| c.is_ascii_digit() && c != '0') {
                relaxed.push_str(".*");
                has_changed = true;
                rest = &rest[length..];
                continue;
            }
        } else if in_class {
            in_class = next != ']';
        } else if next == '[' {
            in_class = true;
        } else if next == '(' && (looks || depth > 0) {
            depth += 1;
            has_changed = true;
        } else if next == ')' && depth > 0 {
            depth -= 1;
            rest = &rest[length..];
            continue;
        }
        if depth == 0 {
            relaxed.push_str(&rest[..length]);
        }
        rest = &rest[length..];
    }
    (has_changed && depth == 0).then_some(relaxed)
}

/// Returns the redirect from `/api` to `/api/` that nginx adds for a proxied `location /api/`. Returns `None` if `/api`
/// is among the paths that other locations have `taken`.
fn redirect_to_slash(location: &Location, taken: &HashSet<String>) -> Option<Location> {
    let LocationMatcher::Prefix { path, .. } = &location.matcher else { return None };
    let bare = path.strip_suffix('/').filter(|bare| !bare.is_empty() && is_plain(bare) && !taken.contains(*bare))?;
    let is_open = matches!(location.body.action, RouteAction::Upstream(_)) && location.body.closed.is_none();
    if !is_open && !location.body.redirects_to_slash {
        return None;
    }
    let redirect = ImportedRedirect { to: path.clone(), status: 301, keeps_query: true };
    let mut body =
        RouteBody::new(format!("{}, without its slash", location.body.origin), RouteAction::Redirect(redirect));
    body.response = location.body.response.added_only();
    Some(Location { matcher: LocationMatcher::Exact(bare.to_owned()), body })
}

/// Returns true if a path by segments matches the same requests. The `/api` of a `location /api/` has a redirect, or a
/// location of its own.
fn is_by_segments(location: &Location) -> bool {
    match &location.matcher {
        LocationMatcher::Exact(path) => is_plain(path) && (path == "/" || !path.ends_with('/')),
        LocationMatcher::Segments(path) => is_plain(path),
        LocationMatcher::Prefix { path, .. } => {
            path == "/" || is_plain(path) && path.ends_with('/') && location.body.is_proxied()
        }
        LocationMatcher::Regex { .. } => false,
    }
}

fn format_path(matcher: &LocationMatcher) -> String {
    match matcher {
        LocationMatcher::Exact(path) => format!("= {path}"),
        LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => path.clone(),
        LocationMatcher::Regex { pattern, .. } => format!("~ {pattern}"),
    }
}

fn order_as_nginx(locations: Vec<Location>, remarks: &mut Remarks) -> Vec<(String, RouteBody)> {
    let prefixes: HashSet<String> = locations
        .iter()
        .filter_map(|location| match &location.matcher {
            LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => Some(path.clone()),
            _ => None,
        })
        .collect();
    let firsts: HashSet<String> = locations
        .iter()
        .filter_map(|location| match &location.matcher {
            LocationMatcher::Prefix { path, first: true } => Some(path.clone()),
            _ => None,
        })
        .collect();
    let lengths: BTreeSet<usize> = firsts.iter().map(String::len).collect();
    let has_regexes = locations.iter().any(|location| matches!(location.matcher, LocationMatcher::Regex { .. }));
    // nginx tries four groups in this order: exact, `^~`, regular expressions, other prefixes.
    let mut groups: [Vec<(usize, String, RouteBody)>; 4] = Default::default();
    for Location { matcher, mut body } in locations {
        let (group, length, path) = match matcher {
            LocationMatcher::Exact(path) if is_plain(&path) && (path == "/" || !path.ends_with('/')) => {
                (0, 0, format!("= {path}"))
            }
            LocationMatcher::Exact(path) => (0, 0, format!("~ ^{}$", regex::escape(&path))),
            LocationMatcher::Regex { pattern, ignore_case } => {
                (2, 0, format!("~ {}{pattern}", if ignore_case { "(?i)" } else { "" }))
            }
            LocationMatcher::Segments(path) => {
                (3, path.len(), format!("~ ^{}(/|$)", regex::escape(path.trim_end_matches('/'))))
            }
            LocationMatcher::Prefix { path, first } => {
                let starts = |length: &usize| path.get(..*length).is_some_and(|start| firsts.contains(start));
                let below_first = has_regexes && !first && lengths.iter().any(starts);
                if below_first {
                    let number = remarks.add_text(format!(
                        "{}: regular expressions are not tried for it, as a shorter location has `^~`",
                        body.origin
                    ));
                    body.add_remark(number);
                }
                let bare = path.trim_end_matches('/');
                let redirected = path != "/" && path.ends_with('/') && body.is_proxied() && !prefixes.contains(bare);
                let text = match redirected {
                    true => format!("~ ^{}(/|$)", regex::escape(bare)),
                    false => format!("~ ^{}", regex::escape(&path)),
                };
                (if first || below_first { 1 } else { 3 }, path.len(), text)
            }
        };
        groups[group].push((length, path, body));
    }
    for group in [1, 3] {
        groups[group].sort_by_key(|(length, ..)| std::cmp::Reverse(*length));
    }
    groups.into_iter().flatten().map(|(_, path, body)| (path, body)).collect()
}

/// Returns true if no segment of a path has a special meaning in a config.
fn is_plain(path: &str) -> bool {
    path.split('/').all(|segment| !segment.starts_with(':') && !segment.contains('*'))
}

/// Encodes a path as in canonical requests: all but these characters are percent-encoded.
fn encode_path(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte) => {
                encoded.push(char::from(byte))
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(locations: &[LocationMatcher]) -> Vec<String> {
        let body = || RouteBody::new(String::new(), RouteAction::Upstream("app".to_owned()));
        let locations = locations.iter().map(|matcher| Location { matcher: matcher.clone(), body: body() }).collect();
        order_routes(locations, RouteBody::with_status(String::new(), 404), &mut ImportedConfig::default())
            .into_iter()
            .map(|(path, _)| path)
            .collect()
    }

    fn prefix(path: &str) -> LocationMatcher {
        LocationMatcher::Prefix { path: path.to_owned(), first: false }
    }

    #[test]
    fn directories_stay_segments() {
        assert_eq!(
            paths(&[prefix("/"), prefix("/api/"), LocationMatcher::Exact("/x".to_owned())]),
            ["/", "/api/", "= /x", "= /api"]
        );
        assert_eq!(paths(&[prefix("/api/")]), ["/api/", "/", "= /api"]);
        assert_eq!(paths(&[prefix("/a b/"), prefix("/")]), ["/a%20b/", "/", "= /a%20b"]);
        let exact = LocationMatcher::Exact("/api".to_owned());
        assert_eq!(paths(&[prefix("/api/"), exact]), ["/api/", "= /api", "/"]);
    }

    #[test]
    fn relaxed_patterns_match_more() {
        for (pattern, relaxed) in [
            (r"/\.(?!well-known).*", Some(r"/\..*")),
            (r"^/(?!(a|b)/)x[()]", Some(r"^/x[()]")),
            (r"^/(.)\1", Some(r"^/(.).*")),
            (r"(?<=a(?:b))c\(", Some(r"c\(")),
            (r"^/(a|b)", None),
            (r"(?!", None),
        ] {
            assert_eq!(relax_pattern(pattern).as_deref(), relaxed, "{pattern}");
        }
    }

    #[test]
    fn everything_else_is_in_the_order_of_nginx() {
        let php = LocationMatcher::Regex { pattern: "\\.php$".to_owned(), ignore_case: true };
        let first = LocationMatcher::Prefix { path: "/static/".to_owned(), first: true };
        let found = paths(&[
            prefix("/"),
            prefix("/log"),
            prefix("/login/"),
            php,
            first,
            LocationMatcher::Exact("/x".to_owned()),
        ]);
        let regexes = ["~ ^/static(/|$)", "~ (?i)\\.php$", "~ ^/login(/|$)", "~ ^/log", "~ ^/"];
        assert_eq!(found, [&["= /x", "= /login", "= /static"][..], &regexes].concat());
    }
}
