//! Describes the route that matches, and why the nearest others do not.

use std::cmp::Reverse;

use http::{HeaderMap, Method};

use crate::config::{Config, WrittenMatcher};
use crate::explain::conditions::is_shown;
use crate::explain::explanation::{MismatchReport, OtherRoute, RouteReport};
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::source::Source;
use crate::proxy::head::validate::ValidatedHead;
use crate::route::Route;
use crate::route::matcher::{HostPattern, PathPattern};
use crate::route::mismatch::Mismatch;

/// Number of routes that are shown besides the one that matches.
pub const SHOWN: usize = 3;
/// Maximum number of compared routes, the first of the config: the admin listener must not be busy for long.
pub const COMPARED_MAX: usize = 1000;
/// Longest path that is compared with regexes, in bytes.
const REGEX_PATH_MAX: usize = 4096;

/// Describes a route of the config, with the text of its conditions as they are written.
pub fn describe_route(config: &Config, index: usize, route: &Route) -> RouteReport {
    let matcher = config.written_matcher(index);
    RouteReport {
        name: route.name.clone(),
        path: matcher.path_with_variables().unwrap_or_else(|| route.matcher.path.to_string()),
        hosts: route.matcher.hosts.iter().map(|host| host_text(&matcher, host)).collect(),
    }
}

/// Returns the routes that come nearest to a request, without that at index `found`.
pub fn find_nearest_routes(
    config: &Config,
    (head, method): (&ValidatedHead, &Method),
    headers: &HeaderMap,
    found: Option<usize>,
    display: &KeyDisplay,
) -> Vec<OtherRoute> {
    let others = config.routes.iter().take(COMPARED_MAX).enumerate().filter(|(index, route)| {
        let is_costly =
            matches!(route.matcher.path, PathPattern::Regex(_)) && head.matched_path().len() > REGEX_PATH_MAX;
        Some(*index) != found && !is_costly
    });
    let mut ranked: Vec<_> = others
        .map(|(index, route)| {
            let mismatches = route.matcher.find_mismatches(head.read_host(), head.matched_path(), method, headers);
            let has = |wanted| mismatches.contains(&wanted);
            let shared = route.matcher.path.count_shared_segments(head.matched_path());
            ((has(Mismatch::Host), has(Mismatch::Path), mismatches.len(), Reverse(shared), index), route, mismatches)
        })
        .collect();
    ranked.sort_by_key(|(rank, ..)| *rank);
    let nearest = ranked.iter().take(SHOWN).map(|((.., index), route, mismatches)| {
        let written = config.written_matcher(*index);
        let describe = |mismatch| describe_mismatch((route, &written), mismatch, (head, method), headers, display);
        OtherRoute { name: route.name.clone(), mismatches: mismatches.iter().map(describe).collect() }
    });
    nearest.collect()
}

fn describe_mismatch(
    (route, written): (&Route, &WrittenMatcher),
    mismatch: &Mismatch,
    (head, method): (&ValidatedHead, &Method),
    headers: &HeaderMap,
    display: &KeyDisplay,
) -> MismatchReport {
    let matcher = &route.matcher;
    let report = |condition: &str, expected: String, found: &str| MismatchReport {
        condition: condition.to_owned(),
        expected: Some(expected),
        found: Some(found.to_owned()),
    };
    match mismatch {
        Mismatch::Host => {
            let hosts: Vec<String> = matcher.hosts.iter().map(|host| host_text(written, host)).collect();
            report("host", hosts.join(", "), head.read_host())
        }
        Mismatch::Path => report(
            "path",
            written.path_with_variables().unwrap_or_else(|| path_text(&matcher.path)),
            head.matched_path(),
        ),
        Mismatch::Method => {
            let methods: Vec<&str> = matcher.methods.iter().map(|method| method.as_str()).collect();
            report("method", methods.join(", "), method.as_str())
        }
        Mismatch::Header(index, name) => {
            let is_shown = is_shown(display, &Source::Header((*name).clone()));
            let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let expected = matcher.headers.get(*index);
            let expected = expected.map(|(name, pattern)| written.shown_header(name.as_str(), &pattern.to_string()));
            MismatchReport {
                condition: format!("header:{name}"),
                expected: expected.filter(|_| is_shown),
                found: headers.get(*name).map(text).filter(|_| is_shown),
            }
        }
    }
}

fn host_text(written: &WrittenMatcher, host: &HostPattern) -> String {
    written.shown_host(&host.to_string())
}

fn path_text(path: &PathPattern) -> String {
    match path {
        PathPattern::Regex(regex) => format!("~ {regex}"),
        PathPattern::Segments { exact: true, .. } => format!("= {path}"),
        PathPattern::Segments { .. } => path.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, Method};
    use proptest::prelude::*;

    use super::*;
    use crate::config::load_text;
    use crate::route::table::RouteTable;

    /// Routes of all kinds, each alone in its table.
    const ROUTES: &[&str] = &[
        "path = \"/\"",
        "path = \"= /\"",
        "path = \"/a\"",
        "path = \"/a/\"",
        "path = \"= /a\"",
        "path = \"= /a/b\"",
        "path = \"/{id}\"",
        "path = \"/{id}/\"",
        "path = \"/a/{id}/b\"",
        "path = \"= /a/{id}\"",
        "path = \"~ ^/a(/b)?$\"",
        "host = \"h.test\"\npath = \"/a\"",
        "host = \"*.h.test\"\npath = \"/\"",
        "host = [\"*.test\", \"h\"]\npath = \"/b\"",
        "methods = [\"GET\", \"PUT\"]\npath = \"/\"",
        "header = { x-a = \"1\", x-b = \"2\" }\npath = \"/a\"",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_route_matches_exactly_if_nothing_mismatches(
            index in 0..ROUTES.len(),
            host in prop_oneof!["h", "h\\.test", "x\\.h\\.test", "\\.h\\.test", "test", ""],
            path in prop_oneof!["\\*", "(/|/a|/b|/x){1,4}"],
            method in prop_oneof!["GET", "POST"],
            fields in proptest::collection::vec((prop_oneof!["x-a", "x-b"], "[12]"), 0..4),
        ) {
            let text = format!("[[route]]\n{}\nupstream = \"echo:\"", ROUTES[index]);
            let Ok(config) = load_text("test", &text) else { return Err(TestCaseError::reject("no route")) };
            let headers: HeaderMap = fields.iter().fold(HeaderMap::new(), |mut map, (name, value)| {
                map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
                map
            });
            let method: Method = method.parse().unwrap();
            let table = RouteTable::new(&config.routes);
            let found = table.find_route(&config.routes, &host, &path, &method, &headers);
            let mismatches = config.routes[0].matcher.find_mismatches(&host, &path, &method, &headers);
            let about = format!("{} {host:?} {path:?} {mismatches:?}", ROUTES[index]);
            prop_assert_eq!(found.is_some(), mismatches.is_empty(), "{}", about);
        }
    }
}
