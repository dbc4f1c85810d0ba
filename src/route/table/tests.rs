use std::cmp::Reverse;

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;
use regex::Regex;

use super::*;
use crate::route::matcher::{HeaderPattern, HostPattern, Matcher, Segment};
use crate::route::order::rank_routes;
use crate::route::{Action, ParsingRules, Strictness, Timeouts};

const ZERO: std::time::Duration = std::time::Duration::ZERO;
const X_V: HeaderName = HeaderName::from_static("x-v");

fn route(host: &str, path: &str, methods: &str, version: Option<&str>) -> Route {
    let hosts = host.split_whitespace().map(|host| match (host.strip_prefix('*'), host.strip_suffix('*')) {
        (Some(suffix), _) => HostPattern::Suffix(suffix.to_owned()),
        (None, Some(prefix)) => HostPattern::Prefix(prefix.to_owned()),
        (None, None) => HostPattern::Exact(host.to_owned()),
    });
    let timeouts = Timeouts {
        body: ZERO,
        min_body_rate: 0,
        min_response_rate: 0,
        connect: ZERO,
        response: ZERO,
        stream: ZERO,
        tunnel: ZERO,
    };
    Route {
        name: format!("{host} {path}"),
        matcher: Matcher {
            hosts: hosts.collect(),
            path: pattern(path),
            methods: methods.split_whitespace().map(|method| method.parse().unwrap()).collect(),
            headers: version
                .map(|text| (X_V, HeaderPattern::Text(HeaderValue::from_str(text).unwrap())))
                .into_iter()
                .collect(),
        },
        params: Vec::new(),
        action: Action::Echo,
        ..Route::bare(timeouts, ParsingRules::new(Strictness::Strict, None))
    }
}

/// The syntax of the config file, as far as the tests need it.
fn pattern(text: &str) -> PathPattern {
    if let Some(regex) = text.strip_prefix("~ ") {
        return PathPattern::Regex(Regex::new(regex).unwrap());
    }
    let path = text.trim_start_matches("= ");
    let segments: Vec<Segment> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| match segment.strip_prefix('{') {
            Some(name) => Segment::Param(name.trim_end_matches('}').to_owned()),
            None => Segment::Literal(segment.to_owned()),
        })
        .collect();
    let template = segments.iter().any(|segment| matches!(segment, Segment::Param(_)));
    let exact = path != text || (template && !path.ends_with('/'));
    PathPattern::Segments { segments, exact }
}

fn found(routes: &[Route], host: &str, path: &str) -> Option<usize> {
    RouteTable::new(routes).find_route(routes, host, path, &Method::GET, &HeaderMap::new())
}

#[test]
fn paths_match_by_whole_segments() {
    for (path, matching, other) in [
        ("/v1/", &["/v1", "/v1/", "/v1/x", "/v1/x/y/"][..], &["/v10", "/", "/V1", "/v", "*"][..]),
        ("= /a", &["/a"], &["/a/", "/a/b", "/", "/ab"]),
        ("= /", &["/"], &["/a", "*", ""]),
        ("/", &["/", "/a", "/a/", "*"], &[]),
        (
            "/users/{id}",
            &["/users/42", "/users/42/", "/users/%2F"],
            &["/users/42/x", "/users/", "/users", "/users/4//"],
        ),
        ("/users/{id}/", &["/users/42", "/users/42/", "/users/42/x/"], &["/users/", "/users"]),
        ("/u/{id}/vote", &["/u/1/vote", "/u/1/vote/"], &["/u/1/", "/u/1/vote/x", "/u/1/vote//"]),
        ("/{a}/{b}", &["/x/y", "/x/y/"], &["/x", "/x/", "//", "/x//y", "*"]),
        ("~ ^/(a|b)$", &["/a", "/b"], &["/c", "/a/"]),
    ] {
        let routes = [route("", path, "", None)];
        matching.iter().for_each(|p| assert_eq!(found(&routes, "h", p), Some(0), "{path} {p}"));
        other.iter().for_each(|p| assert_eq!(found(&routes, "h", p), None, "{path} {p}"));
    }
}

#[test]
fn the_most_specific_path_comes_first() {
    let paths =
        ["~ ^/users", "/", "/users", "/users/{id}", "/users/me", "= /users/me", "/{x}/{y}", "/{x}/{y}/z", "~ /z"];
    let routes = paths.map(|path| route("", path, "", None));
    for (path, expected) in [
        ("/users/me", "= /users/me"),
        ("/users/me/x", "/users/me"),
        ("/users/7", "/users/{id}"),
        ("/users/7/x", "/users"),
        ("/users/7/z", "/users"),
        ("/a/b", "/{x}/{y}"),
        ("/a/b/z", "/{x}/{y}/z"),
        ("/a/b/c", "/"),
    ] {
        assert_eq!(found(&routes, "h", path).map(|index| paths[index]), Some(expected), "{path}");
    }
    assert_eq!(found(&routes[..1], "h", "/users/9"), Some(0));
    let slashed = ["/u/{id}", "/u/{id}/", "= /u/me", "/u"].map(|path| route("", path, "", None));
    let of = |path| found(&slashed, "h", path);
    assert_eq!([of("/u/7"), of("/u/7/"), of("/u/7/x"), of("/u/me"), of("/u/me/")], [0, 1, 1, 2, 1].map(Some));
    assert_eq!(found(&routes[..2], "h", "/users/9"), Some(1), "a regex comes after every path");
}

#[test]
fn the_most_specific_host_comes_first_and_falls_through() {
    let hosts = ["", "*.example.com", "*.api.example.com", "v1.api.example.com", "*.com"];
    let mut routes: Vec<Route> = hosts.iter().map(|host| route(host, "/all", "", None)).collect();
    routes.push(route("", "/only", "", None));
    routes.push(route("*.com", "/only/com", "", None));
    for (host, path, expected) in [
        ("v1.api.example.com", "/all", Some(3)),
        ("v2.api.example.com", "/all", Some(2)),
        ("a.b.api.example.com", "/all", Some(2)),
        ("api.example.com", "/all", Some(1)),
        ("example.com", "/all", Some(4)),
        (".example.com", "/all", Some(4)),
        ("com", "/all", Some(0)),
        ("", "/all", Some(0)),
        ("v1.api.example.com", "/only/x", Some(5)),
        ("v1.api.example.com", "/only/com", Some(6)),
        ("v1.api.example.com", "/none", None),
    ] {
        assert_eq!(found(&routes, host, path), expected, "{host} {path}");
    }
}

#[test]
fn most_conditions_are_tried_first() {
    let routes = [
        route("", "/a", "", None),
        route("", "/a", "GET", None),
        route("", "/a", "GET", Some("2")),
        route("", "/a", "POST PUT", None),
    ];
    let table = RouteTable::new(&routes);
    let (v2, none) = (HeaderMap::from_iter([(X_V, HeaderValue::from_static("2"))]), HeaderMap::new());
    let found = |method, headers| table.find_route(&routes, "h", "/a/b", &method, headers);
    assert_eq!([found(Method::GET, &v2), found(Method::GET, &none)], [Some(2), Some(1)]);
    assert_eq!([found(Method::PUT, &v2), found(Method::DELETE, &v2)], [Some(3), Some(0)]);
    assert_eq!(RouteTable::find_shadowed(&routes), []);
}

#[test]
fn shadowed_routes_are_conflicts() {
    let conflicts = RouteTable::find_shadowed;
    let twice = [route("", "/a", "", None), route("", "/b", "", None), route("", "/a/", "", None)];
    assert_eq!(conflicts(&twice), [(2, 0)]);
    let named = [route("", "/u/{id}", "GET PUT", None), route("", "/u/{name}", "PUT", None)];
    assert_eq!(conflicts(&named), [(1, 0)]);
    let wider = [route("", "/a", "GET", None), route("", "/a", "GET PUT", None), route("", "/a", "", None)];
    assert_eq!(conflicts(&wider), []);
    let forms = [route("", "/a", "", None), route("", "= /a", "", None), route("", "~ ^/a", "", None)];
    assert_eq!(conflicts(&forms), []);
    let regexes = [route("", "~ ^/a", "", None), route("", "~ ^/b", "", None), route("", "~ ^/a", "", None)];
    assert_eq!(conflicts(&regexes), [(2, 0)]);
    let hosts = [route("a b", "/", "", None), route("b", "/", "", None), route("b c", "/", "", None)];
    assert_eq!(conflicts(&hosts), [(1, 0)], "the last is still reached on c");
    let listed_twice = [route("a a", "/", "", None), route("", "/", "", None)];
    assert_eq!(conflicts(&listed_twice), []);
}

#[test]
fn a_regex_behind_a_prefix_is_a_conflict() {
    let is_shadowed = |prefix: (&str, &str, &str), regex: (&str, &str, &str)| {
        let routes = [route(regex.0, regex.1, regex.2, None), route(prefix.0, prefix.1, prefix.2, None)];
        RouteTable::find_shadowed(&routes) == [(0, 1)]
    };
    let everything = ("", "/", "");
    assert!(is_shadowed(everything, ("", "~ ^/admin", "")));
    assert!(is_shadowed(everything, ("", "~ [.]php$", "GET")));
    assert!(is_shadowed(("*.e.test", "/", ""), ("*.e.test", "~ x", "")));
    assert!(is_shadowed(("", "/", "GET"), ("", "~ x", "GET")));
    assert!(is_shadowed(("", "/api", ""), ("", "~ ^/api/(v1|v2)/login", "")));
    assert!(is_shadowed(("", "/{any}/", ""), ("", "~ ^/api/x", "")));
    assert!(is_shadowed(("", "/a/b", ""), ("", "~ ^/a/b$", "")));
    for reached in [
        (("a", "/", ""), ("", "~ ^/admin", "")),
        (everything, ("a", "~ ^/admin", "")),
        (("", "/", "GET"), ("", "~ ^/admin", "")),
        (("", "= /", ""), ("", "~ ^/admin", "")),
        (("", "/api", ""), ("", "~ ^/api", "")),
        (("", "/api", ""), ("", "~ /api/", "")),
        (("", "/api", ""), ("", "~ ^/(api|b)/", "")),
        (("", "/api", ""), ("", "~ (?i)^/api/x", "")),
        (("", "/{any}/", ""), ("", "~ ^/$", "")),
    ] {
        assert!(!is_shadowed(reached.0, reached.1), "{reached:?}");
    }
}

#[test]
fn many_regexes_keep_config_order() {
    let texts: Vec<String> = (0..20).map(|i| format!("~ ^/(x|r{})", i % 15)).collect();
    let mut routes: Vec<Route> = texts.iter().map(|text| route("", text, "", None)).collect();
    routes[18] = route("", "~ ^/(x|r3)", "GET", None);
    assert_eq!(found(&routes, "h", "/x"), Some(0));
    assert_eq!(found(&routes, "h", "/r7"), Some(7));
    assert_eq!(found(&routes, "h", "/r3"), Some(18), "equal regexes: most conditions first");
    assert_eq!(found(&routes, "h", "/y"), None);
}

/// How well a route fits, smaller first; computed from the route alone.
fn rank(route: &Route, index: usize, host: &str, path: &str) -> Option<impl Ord + use<>> {
    let hosts = &route.matcher.hosts;
    let host_rank = if hosts.is_empty() { Some((3, 0)) } else { hosts.iter().filter_map(|h| host_fit(h, host)).min() };
    let PathPattern::Segments { segments, exact } = &route.matcher.path else { return None };
    let mut given: Vec<&str> = path[1..].split('/').collect();
    let mut slashed = false;
    if given.last() == Some(&"") {
        given.pop();
        slashed = *exact && !given.is_empty();
        if slashed && !segments.iter().any(|segment| matches!(segment, Segment::Param(_))) {
            return None;
        }
    }
    if segments.len() > given.len() || (*exact && segments.len() < given.len()) {
        return None;
    }
    // Per segment: literal 0, parameter 1, not named by a prefix 2; then exact before prefix, before a slash that is
    // only taken.
    let mut fit = Vec::new();
    for (i, text) in given.iter().enumerate() {
        fit.push(match segments.get(i) {
            Some(Segment::Literal(literal)) if literal == text => 0,
            Some(Segment::Literal(_)) => return None,
            Some(Segment::Param(_)) => 1,
            None => 2,
        });
    }
    fit.push(if *exact { 2 * usize::from(slashed) } else { 1 });
    Some((host_rank?, fit, Reverse(route.matcher.count_conditions()), index))
}

fn host_fit(pattern: &HostPattern, host: &str) -> Option<(u8, usize)> {
    match pattern {
        HostPattern::Exact(name) => (name == host).then_some((0, 0)),
        HostPattern::Suffix(suffix) => {
            (host.len() > suffix.len() && host.ends_with(suffix)).then(|| (1, host.len() - suffix.len()))
        }
        HostPattern::Prefix(prefix) => {
            (host.len() > prefix.len() && host.starts_with(prefix)).then(|| (2, host.len() - prefix.len()))
        }
    }
}

proptest! {
    #[test]
    fn a_shadowed_regex_matches_no_request(
        specs in proptest::collection::vec((
            prop_oneof![Just(""), Just("a.b"), Just("*.b")],
            prop_oneof![
                r"(= )?(/(a|b|\{x\})){0,3}/?",
                r"~ (\(\?i\))?\^?(/(a|b|A|\[ab\]|a\?)){1,3}\$?",
            ],
            prop_oneof![Just(""), Just("GET"), Just("POST")],
        ), 0..12),
        requests in proptest::collection::vec((prop_oneof![Just("b"), Just("a.b"), Just("c.b")], "(/[abA]){1,4}/?|/|//a"), 1..20),
    ) {
        let routes: Vec<Route> = specs.iter().map(|(h, p, m)| route(h, p, m, None)).collect();
        let shadowed: Vec<usize> = RouteTable::find_shadowed(&routes).into_iter().map(|(index, _)| index).collect();
        for (host, path) in &requests {
            let found = found(&routes, host, path);
            prop_assert!(!found.is_some_and(|index| shadowed.contains(&index)), "{} {}", host, path);
        }
    }

    #[test]
    fn find_agrees_with_ranking_every_route(
        specs in proptest::collection::vec((
            prop_oneof![Just(""), Just("a.b"), Just("*.b"), Just("*.a.b"), Just("a.b *.b"), Just("b"), Just("a.*"), Just("c.a.*")],
            r"(= )?(/(a|b|\{x\})){0,4}/?",
            prop_oneof![Just(""), Just("GET"), Just("POST"), Just("GET POST")],
            proptest::option::of("[12]"),
        ), 0..40),
        requests in proptest::collection::vec((
            prop_oneof![Just(""), Just("b"), Just("a.b"), Just("c.b"), Just("c.a.b"), Just("a.c"), Just("a."), Just("c.a.c.b")],
            "(/[abc]){1,5}/?|/",
            proptest::option::of("[12]"),
        ), 1..20),
    ) {
        let routes: Vec<Route> = specs.iter().map(|(h, p, m, v)| route(h, p, m, v.as_deref())).collect();
        let table = RouteTable::new(&routes);
        let unreachable: Vec<usize> = RouteTable::find_shadowed(&routes).into_iter().map(|(index, _)| index).collect();
        for (host, path, version) in &requests {
            let value = version.as_deref().map(|v| (X_V, HeaderValue::from_str(v).unwrap()));
            let headers: HeaderMap = value.into_iter().collect();
            let candidates = routes.iter().enumerate().filter(|(_, r)| r.matcher.matches_conditions(&Method::GET, &headers));
            let ranked = candidates.filter_map(|(i, r)| Some((rank(r, i, host, path)?, i)));
            let expected = ranked.min_by(|a, b| a.0.cmp(&b.0)).map(|(_, index)| index);
            let found = table.find_route(&routes, host, path, &Method::GET, &headers);
            prop_assert_eq!(found, expected, "{} {}", host, path);
            prop_assert!(!found.is_some_and(|index| unreachable.contains(&index)));
            // A final slash is the exception of the listed order.
            if !path.ends_with('/') || path == "/" {
                let listed = rank_routes(&routes).into_iter().find(|ranked| {
                    let route = &routes[ranked.index];
                    let takes = route.matcher.matches_conditions(&Method::GET, &headers);
                    takes
                        && ranked.host.is_none_or(|its| host_fit(its, host).is_some())
                        && rank(route, ranked.index, host, path).is_some()
                });
                prop_assert_eq!(found, listed.map(|ranked| ranked.index), "listed: {} {}", host, path);
            }
        }
    }

    #[test]
    fn nothing_asked_for_panics(host in r"\PC{0,20}", path in r"(/|\PC){0,20}") {
        let paths = ["/", "= /a", "/{x}/{y}", "~ ^.$", "/é"];
        let routes = paths.map(|path| route("*.b é.*", path, "", None));
        found(&routes, &host, &path);
        found(&routes, &format!("{host}.b"), &path);
        found(&routes, &format!("é.{host}"), &path);
    }
}
