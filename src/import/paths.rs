//! Turns the locations of one server into paths of routes. Sluicegate tries routes in another order than nginx tries
//! locations.

use std::collections::{BTreeSet, HashSet};

use regex::RegexBuilder;

use crate::import::encoding::{encode_path, fits_route, format_literal};
use crate::import::expressions::{Reading, translate_path_regex};
use crate::import::model::{ImportedConfig, ImportedRedirect, RouteAction, RouteBody};
use crate::import::remarks::Remarks;
use crate::limiting::source::Source;

/// Maximum number of bytes of a compiled regular expression, the same as in a config.
const REGEX_MAX: usize = 1 << 20;

/// Matches the decoded paths of a location.
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
    /// A regular expression of the server, which comes before all locations.
    Server {
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
            LocationMatcher::Regex { .. } | LocationMatcher::Server { .. } => None,
        }
    }
}

impl LocationMatcher {
    /// Returns the path without the slash at its end. nginx redirects from there if the location is proxied.
    pub fn find_bare_path(&self) -> Option<&str> {
        match self {
            LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. } => {
                path.strip_suffix('/').filter(|bare| !bare.is_empty())
            }
            LocationMatcher::Segments(_) | LocationMatcher::Regex { .. } | LocationMatcher::Server { .. } => None,
        }
    }

    /// Returns whether only one path matches.
    pub fn is_exact(&self) -> bool {
        matches!(self, LocationMatcher::Exact(_))
    }
}

/// A translated location: its paths and its route.
#[derive(Clone, Debug)]
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
    // The comment on a regular expression that may take requests of other routes.
    let (mut overriding, mut overriding_all) = (None, None);
    for mut location in locations {
        let origin = location.body.origin.clone();
        let is_first = matches!(location.matcher, LocationMatcher::Server { .. });
        match &mut location.matcher {
            LocationMatcher::Regex { pattern, ignore_case } | LocationMatcher::Server { pattern, ignore_case } => {
                let is_counted = out.count_regex();
                let translate = |reading| match is_counted {
                    true => compile(pattern, *ignore_case, reading),
                    false => Err("there are too many".to_owned()),
                };
                let found = match translate(Reading::Exact) {
                    Ok(found) => Some(found),
                    Err(why) => {
                        let wider = translate(Reading::Wider).ok();
                        let what = match wider {
                            Some(_) => "its route has more paths and is closed",
                            None => "the routes whose requests it may take are closed",
                        };
                        let number = out
                            .remarks
                            .add_text(format!("{origin}: this regular expression is not available ({why}), so {what}"));
                        location.body.close(number);
                        let one = if is_first { &mut overriding_all } else { &mut overriding };
                        *one = one.or(Some(number).filter(|_| wider.is_none()));
                        wider
                    }
                };
                let Some((expression, ignores)) = found else { continue };
                if !Source::Path.has_common_match(&[(&expression, ignores, true)]) {
                    out.remarks.add_text(format!("{origin}: no request has such a path, so it never matches"));
                    continue;
                }
                (*pattern, *ignore_case) = (expression, ignores);
            }
            LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => {
                let path = path.as_str();
                if !path.starts_with('/')
                    || path.split('/').any(|part| matches!(part, "." | ".."))
                    || path.contains("//")
                {
                    out.remarks.add_text(format!("{origin}: no request has such a path, so it never matches"));
                    continue;
                }
            }
        }
        kept.push(location);
    }
    let is_whole = |location: &Location| match &location.matcher {
        LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => path == "/",
        _ => false,
    };
    if !kept.iter().any(is_whole) {
        kept.push(Location { matcher: LocationMatcher::Prefix { path: "/".to_owned(), first: false }, body: fallback });
    }
    close_overridden(&mut kept, overriding, overriding_all);
    let mut done = HashSet::new();
    let redirects: Vec<Location> =
        kept.iter().filter_map(|location| redirect_to_slash(location, &kept, &mut done)).collect();
    kept.extend(redirects);
    let mut routes = match kept.iter().all(is_by_segments) {
        true => kept.into_iter().map(|location| (format_path(&location.matcher), location.body)).collect(),
        false => order_as_nginx(kept, &mut out.remarks),
    };
    remove_shadowed(&mut routes, &mut out.remarks);
    routes
}

/// Closes the locations whose requests an expression that is not available may take. `all`: the comment on one of the server.
fn close_overridden(kept: &mut [Location], overriding: Option<usize>, all: Option<usize>) {
    if let Some(number) = overriding {
        let is_taken = |location: &Location| {
            !matches!(location.matcher, LocationMatcher::Exact(_) | LocationMatcher::Prefix { first: true, .. })
        };
        kept.iter_mut().filter(|location| is_taken(location)).for_each(|location| location.body.close(number));
    }
    if let Some(number) = all {
        kept.iter_mut().for_each(|location| location.body.close(number));
    }
}

/// Returns the regular expression for canonical paths, and whether it ignores case.
fn compile(pattern: &str, ignore_case: bool, reading: Reading) -> Result<(String, bool), String> {
    let (encoded, ignores) = translate_path_regex(pattern, ignore_case, reading)?;
    match RegexBuilder::new(&encoded).case_insensitive(ignores).size_limit(REGEX_MAX).build() {
        Ok(_) => Ok((encoded, ignores)),
        Err(_) => Err("it is too large".to_owned()),
    }
}

/// Leaves out routes that the same paths lead to as to an earlier one, which nginx chooses.
fn remove_shadowed(routes: &mut Vec<(String, RouteBody)>, remarks: &mut Remarks) {
    let mut known = HashSet::new();
    routes.retain(|(path, body)| {
        let is_new = known.insert((path.clone(), body.condition.clone()));
        if !is_new {
            let why = "an earlier route takes all its requests, so it is left out";
            remarks.add_text(format!("{}: {why}", body.origin));
        }
        is_new
    });
}

/// Returns the redirect from `/api` to `/api/` that nginx adds for a proxied `location /api/` or `location = /api/`.
/// `done`: the paths that have one.
fn redirect_to_slash(location: &Location, all: &[Location], done: &mut HashSet<String>) -> Option<Location> {
    let path = location.matcher.literal_path()?;
    let bare = location.matcher.find_bare_path().filter(|_| location.body.redirects_to_slash)?;
    if !done.insert(bare.to_owned()) {
        return None;
    }
    let redirect = ImportedRedirect { to: encode_path(path), status: 301, keeps_query: true };
    let is_proxied = |other: &Location| other.matcher.literal_path() == Some(path) && other.body.is_proxied();
    let action = match all.iter().any(is_proxied) {
        true => RouteAction::Redirect(redirect),
        // An internal location refuses both paths.
        false => location.body.action.clone(),
    };
    let mut body = RouteBody::new(format!("{}, without its slash", location.body.origin), action);
    // `location = /api/` determines the headers, if there is one.
    let is_same = |other: &&Location| {
        other.matcher.is_exact() && other.matcher.literal_path() == Some(path) && other.body.condition.is_none()
    };
    body.response = all.iter().find(is_same).unwrap_or(location).body.response.added_only();
    body.guards.clone_from(&location.body.server_guards);
    Some(Location { matcher: LocationMatcher::Exact(bare.to_owned()), body })
}

/// Returns true if a path by segments matches the same requests. The `/api` of a `location /api/` has a redirect, or a
/// location of its own.
fn is_by_segments(location: &Location) -> bool {
    match &location.matcher {
        LocationMatcher::Exact(path) => fits_route(path) && (path == "/" || !path.ends_with('/')),
        LocationMatcher::Segments(path) => fits_route(path),
        LocationMatcher::Prefix { path, .. } => {
            location.body.pattern.is_none()
                && (path == "/" || fits_route(path) && path.ends_with('/') && location.body.is_proxied())
        }
        LocationMatcher::Regex { .. } | LocationMatcher::Server { .. } => false,
    }
}

fn format_path(matcher: &LocationMatcher) -> String {
    match matcher {
        LocationMatcher::Exact(path) => format!("= {}", encode_path(path)),
        LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => encode_path(path),
        LocationMatcher::Regex { pattern, .. } | LocationMatcher::Server { pattern, .. } => format!("~ {pattern}"),
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
    // An exact path would come before all regular expressions.
    let has_server = locations.iter().any(|location| matches!(location.matcher, LocationMatcher::Server { .. }));
    // nginx tries five groups in this order: those of the server, exact, `^~`, regular expressions, other prefixes.
    let mut groups: [Vec<(usize, String, RouteBody)>; 5] = Default::default();
    for Location { matcher, mut body } in locations {
        let expression =
            |pattern: &str, ignore_case: bool| format!("~ {}{pattern}", if ignore_case { "(?i)" } else { "" });
        let (group, length, path) = match matcher {
            LocationMatcher::Server { pattern, ignore_case } => (0, 0, expression(&pattern, ignore_case)),
            LocationMatcher::Exact(path)
                if !has_server && fits_route(&path) && (path == "/" || !path.ends_with('/')) =>
            {
                (1, 0, format!("= {}", encode_path(&path)))
            }
            LocationMatcher::Exact(path) => (1, 0, format!("~ ^{}$", format_literal(&path))),
            LocationMatcher::Regex { pattern, ignore_case } => (3, 0, expression(&pattern, ignore_case)),
            LocationMatcher::Segments(path) => {
                (4, path.len(), format!("~ ^{}(/|$)", format_literal(path.trim_end_matches('/'))))
            }
            LocationMatcher::Prefix { path, first } => {
                let starts = |length: &usize| path.get(..*length).is_some_and(|start| firsts.contains(start));
                let below_first = has_regexes && !first && lengths.iter().any(starts);
                if below_first {
                    // The regular expressions cannot come after the shorter location and before this one.
                    let number = remarks.add_text(format!(
                        "{}: a shorter location has `^~`, and nginx tries regular expressions for this one, which no order of \
                         routes does, so it is closed",
                        body.origin
                    ));
                    body.close(number);
                }
                let bare = path.trim_end_matches('/');
                let redirected = path != "/" && path.ends_with('/') && body.is_proxied() && !prefixes.contains(bare);
                let text = match &body.pattern {
                    Some(pattern) => format!("~ {pattern}"),
                    None if redirected => format!("~ ^{}(/|$)", format_literal(bare)),
                    None => format!("~ ^{}", format_literal(&path)),
                };
                (if first || below_first { 2 } else { 4 }, path.len(), text)
            }
        };
        groups[group].push((length, path, body));
    }
    for group in [2, 4] {
        groups[group].sort_by_key(|(length, ..)| std::cmp::Reverse(*length));
    }
    groups.into_iter().flatten().map(|(_, path, body)| (path, body)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(locations: &[LocationMatcher]) -> Vec<String> {
        let texts: Vec<&str> = locations.iter().filter_map(LocationMatcher::literal_path).collect();
        let translate = |matcher: &LocationMatcher| {
            let mut body = RouteBody::new(String::new(), RouteAction::Upstream("app".to_owned()));
            body.redirects_to_slash = matcher.find_bare_path().is_some_and(|bare| !texts.contains(&bare));
            Location { matcher: matcher.clone(), body }
        };
        let locations = locations.iter().map(translate).collect();
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
    fn of_equal_expressions_the_first_in_the_order_of_nginx_stays() {
        let regex = |pattern: &str| LocationMatcher::Regex { pattern: pattern.to_owned(), ignore_case: false };
        assert_eq!(paths(&[prefix("/"), prefix("/a"), regex("^/a")]), ["~ ^/a", "~ ^/"]);
        assert_eq!(paths(&[regex("^/(?!x)"), prefix("/")]), ["~ ^/"]);
        assert_eq!(paths(&[regex("^/e/$"), LocationMatcher::Exact("/e/".to_owned())]), ["~ ^/e/$", "= /e", "~ ^/"]);
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
