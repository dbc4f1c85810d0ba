//! Which route takes a request: a look-up whose cost does not grow with the number of routes, in memory
//! that lies close together. Built by the config compiler, which also asks for conflicts; asked once per
//! request.

use http::{HeaderMap, Method};
use regex::RegexSet;

use super::plan::{EXACT, Plan, SUFFIX, regex_text};
use super::steps::{Steps, small};
use super::{PathPattern, Route};

/// Hosts are tried exact, then by wildcard (longest suffix first), then the routes without host.
/// A request that no route of one host takes is offered to the next.
///
/// The paths of one host form a trie of segments: literals are tried before parameters and longer paths
/// before shorter ones, a template that ends in a slash before one that only takes it; after it come the regexes in config order. Each node has one way to it, so a
/// look-up visits a node at most once, whatever the path.
#[derive(Debug)]
pub struct RouteTable {
    /// To the tries by host, and within them by literal.
    steps: Steps,
    /// The first is the root for any host.
    nodes: Vec<RouteNode>,
    lists: Vec<Listed>,
    regexes: Vec<Regexes>,
    /// Some routes name their host in full.
    names_hosts: bool,
    longest_suffix: usize,
}

#[derive(Debug)]
struct RouteNode {
    /// The node behind any one segment; 0 is none.
    param: u32,
    /// Routes whose path ends here.
    exact: List,
    /// Routes whose path may go on from here.
    prefix: List,
    /// One more than the place of a root's regexes; 0 is none.
    regexes: u32,
    /// There are steps from here.
    branches: bool,
    /// The routes of `exact` are templates: one slash may follow.
    slash: bool,
}

/// Routes in the order to try them.
#[derive(Clone, Copy, Debug)]
struct List {
    start: u32,
    count: u32,
}

/// Twice the index of a route, and one more if it has conditions besides host and path: those that have
/// none need not be looked at.
#[derive(Clone, Copy, Debug)]
struct Listed(u32);

#[derive(Debug)]
struct Regexes {
    routes: Vec<Listed>,
    /// Over all of them, when they are many.
    set: Option<RegexSet>,
}

/// From this many regexes on one pass over all of them is cheaper than one each.
const REGEX_SET_FROM: usize = 9;

impl RouteTable {
    pub fn new(routes: &[Route]) -> RouteTable {
        let plan = Plan::new(routes);
        let (mut lists, mut regexes) = (Vec::new(), Vec::new());
        let mut list = |routes_here: &[u32]| {
            let start = small(lists.len());
            lists.extend(routes_here.iter().map(|index| Listed::new(*index, routes)));
            List { start, count: small(routes_here.len()) }
        };
        let nodes = plan.nodes.iter().map(|node| {
            if !node.regexes.is_empty() {
                regexes.push(Regexes::new(&node.regexes, routes));
            }
            RouteNode {
                param: node.param,
                exact: list(&node.exact),
                prefix: list(&node.prefix),
                regexes: if node.regexes.is_empty() { 0 } else { small(regexes.len()) },
                branches: node.branches,
                slash: node.slash,
            }
        });
        let nodes = nodes.collect();
        lists.shrink_to_fit();
        let Plan { names_hosts, longest_suffix, .. } = plan;
        RouteTable { steps: Steps::new(plan.steps), nodes, lists, regexes, names_hosts, longest_suffix }
    }

    /// `host` and `path` in canonical form.
    pub fn find(
        &self,
        routes: &[Route],
        host: &str,
        path: &str,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<usize> {
        let takes = |listed: Listed| {
            let matcher = || routes.get(listed.index()).is_some_and(|route| route.matcher.takes(method, headers));
            !listed.is_conditional() || matcher()
        };
        let search = |root: u32| self.search(root, routes, path, &takes);
        let exact = if self.names_hosts { self.steps.find(EXACT, host) } else { None };
        if let Some(index) = exact.and_then(search) {
            return Some(index);
        }
        if self.longest_suffix > 0 {
            let dots = host.bytes().enumerate().skip(1).filter(|(_, byte)| *byte == b'.').map(|(at, _)| at);
            for at in dots.filter(|at| host.len() - at <= self.longest_suffix) {
                if let Some(index) = self.steps.find(SUFFIX, &host[at..]).and_then(search) {
                    return Some(index);
                }
            }
        }
        search(0)
    }

    /// Routes that can never take a request, each with the first route that takes all of its
    /// requests before it: same path, and on every host of the shadowed one.
    pub fn conflicts(routes: &[Route]) -> Vec<(usize, usize)> {
        Plan::new(routes).conflicts(routes)
    }

    fn search(&self, root: u32, routes: &[Route], path: &str, takes: &impl Fn(Listed) -> bool) -> Option<usize> {
        let by_segments = match path.strip_prefix('/') {
            Some("") => self.walk(root, None, takes),
            Some(rest) => self.walk(root, Some(rest), takes),
            // `*` has no segments; only a route for every path takes it.
            None => self.first(self.node(root).prefix, takes),
        };
        by_segments.or_else(|| {
            let place = self.node(root).regexes.checked_sub(1)?;
            self.regexes[place as usize].find(routes, path, takes)
        })
    }

    /// `rest` is what follows the slash after the segments walked, `None` when the path ended
    /// without one.
    fn walk(&self, at: u32, rest: Option<&str>, takes: &impl Fn(Listed) -> bool) -> Option<usize> {
        let node = self.node(at);
        let Some(rest) = rest else {
            return self.first(node.exact, takes).or_else(|| self.first(node.prefix, takes));
        };
        let (segment, next) = rest.split_once('/').map_or((rest, None), |(segment, next)| (segment, Some(next)));
        let deeper = |child: u32| self.walk(child, next, takes);
        let found = if segment.is_empty() {
            None
        } else {
            let literal = if node.branches { self.steps.find(at, segment) } else { None };
            literal.and_then(deeper).or_else(|| Some(node.param).filter(|param| *param > 0).and_then(deeper))
        };
        let here = || self.first(node.prefix, takes);
        let slashed = || if rest.is_empty() && node.slash { self.first(node.exact, takes) } else { None };
        found.or_else(here).or_else(slashed)
    }

    fn node(&self, at: u32) -> &RouteNode {
        &self.nodes[at as usize]
    }

    fn first(&self, list: List, takes: &impl Fn(Listed) -> bool) -> Option<usize> {
        let start = list.start as usize;
        let listed = &self.lists[start..start + list.count as usize];
        listed.iter().find(|listed| takes(**listed)).map(|listed| listed.index())
    }
}

impl Listed {
    fn new(index: u32, routes: &[Route]) -> Listed {
        Listed(index * 2 + u32::from(routes[index as usize].matcher.conditions() > 0))
    }

    fn index(self) -> usize {
        self.0 as usize / 2
    }

    fn is_conditional(self) -> bool {
        self.0 % 2 == 1
    }
}

impl Regexes {
    fn new(indices: &[u32], routes: &[Route]) -> Regexes {
        let many = indices.len() >= REGEX_SET_FROM;
        // Above its size limit there is no set, and they are asked one by one.
        let texts = || indices.iter().map(|index| regex_text(&routes[*index as usize]));
        Regexes {
            routes: indices.iter().map(|index| Listed::new(*index, routes)).collect(),
            set: if many { RegexSet::new(texts()).ok() } else { None },
        }
    }

    fn find(&self, routes: &[Route], path: &str, takes: &impl Fn(Listed) -> bool) -> Option<usize> {
        let found = match &self.set {
            Some(set) => {
                let matched = set.matches(path);
                matched.iter().filter_map(|at| self.routes.get(at).copied()).find(|listed| takes(*listed))
            }
            None => {
                let matches = |listed: Listed| match routes.get(listed.index()).map(|route| &route.matcher.path) {
                    Some(PathPattern::Regex(regex)) => regex.is_match(path),
                    _ => false,
                };
                self.routes.iter().copied().find(|listed| takes(*listed) && matches(*listed))
            }
        };
        found.map(Listed::index)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::sync::Arc;

    use http::{HeaderName, HeaderValue, StatusCode};
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;
    use crate::limit::refuse::Refuse;
    use crate::route::{Action, HostPattern, Matcher, Reading, Segment, Strictness, Timeouts, Upgrades};

    const ZERO: std::time::Duration = std::time::Duration::ZERO;
    const X_V: HeaderName = HeaderName::from_static("x-v");

    fn route(host: &str, path: &str, methods: &str, version: Option<&str>) -> Route {
        let hosts = host.split_whitespace().map(|host| match host.strip_prefix('*') {
            Some(suffix) => HostPattern::Suffix(suffix.to_owned()),
            None => HostPattern::Exact(host.to_owned()),
        });
        Route {
            name: format!("{host} {path}"),
            matcher: Matcher {
                hosts: hosts.collect(),
                path: pattern(path),
                methods: methods.split_whitespace().map(|method| method.parse().unwrap()).collect(),
                headers: version.map(|text| (X_V, HeaderValue::from_str(text).unwrap())).into_iter().collect(),
            },
            params: Vec::new(),
            action: Action::Echo,
            limits: Vec::new(),
            allow: Arc::default(),
            deny: Arc::default(),
            rewrite: Arc::default(),
            request_headers: Arc::default(),
            response_headers: Arc::default(),
            reading: Reading::new(Strictness::Strict, None),
            max_body: 0,
            max_in_flight: None,
            key_body: None,
            timeouts: Arc::new(Timeouts {
                body: ZERO,
                min_body_rate: 0,
                min_response_rate: 0,
                connect: ZERO,
                response: ZERO,
                stream: ZERO,
                tunnel: ZERO,
            }),
            refuse: Arc::new(Refuse {
                status: StatusCode::OK,
                body: None,
                content_type: HeaderValue::from_static("a/b"),
            }),
            ratelimit_headers: None,
            upgrades: Upgrades::Any,
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
        RouteTable::new(routes).find(routes, host, path, &Method::GET, &HeaderMap::new())
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
        let found = |method, headers| table.find(&routes, "h", "/a/b", &method, headers);
        assert_eq!([found(Method::GET, &v2), found(Method::GET, &none)], [Some(2), Some(1)]);
        assert_eq!([found(Method::PUT, &v2), found(Method::DELETE, &v2)], [Some(3), Some(0)]);
        assert_eq!(RouteTable::conflicts(&routes), []);
    }

    #[test]
    fn shadowed_routes_are_conflicts() {
        let conflicts = RouteTable::conflicts;
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
        let host_rank =
            if hosts.is_empty() { Some((2, 0)) } else { hosts.iter().filter_map(|h| host_fit(h, host)).min() };
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
        // Per segment: literal 0, parameter 1, not named by a prefix 2; then exact before prefix, before a slash that is only taken.
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
        Some((host_rank?, fit, Reverse(route.matcher.conditions()), index))
    }

    fn host_fit(pattern: &HostPattern, host: &str) -> Option<(u8, usize)> {
        match pattern {
            HostPattern::Exact(name) => (name == host).then_some((0, 0)),
            HostPattern::Suffix(suffix) => {
                (host.len() > suffix.len() && host.ends_with(suffix)).then(|| (1, host.len() - suffix.len()))
            }
        }
    }

    proptest! {
        #[test]
        fn find_agrees_with_ranking_every_route(
            specs in proptest::collection::vec((
                prop_oneof![Just(""), Just("a.b"), Just("*.b"), Just("*.a.b"), Just("a.b *.b"), Just("b")],
                r"(= )?(/(a|b|\{x\})){0,4}/?",
                prop_oneof![Just(""), Just("GET"), Just("POST"), Just("GET POST")],
                proptest::option::of("[12]"),
            ), 0..40),
            requests in proptest::collection::vec((
                prop_oneof![Just(""), Just("b"), Just("a.b"), Just("c.b"), Just("c.a.b")],
                "(/[abc]){1,5}/?|/",
                proptest::option::of("[12]"),
            ), 1..20),
        ) {
            let routes: Vec<Route> = specs.iter().map(|(h, p, m, v)| route(h, p, m, v.as_deref())).collect();
            let table = RouteTable::new(&routes);
            let unreachable: Vec<usize> = RouteTable::conflicts(&routes).into_iter().map(|(index, _)| index).collect();
            for (host, path, version) in &requests {
                let value = version.as_deref().map(|v| (X_V, HeaderValue::from_str(v).unwrap()));
                let headers: HeaderMap = value.into_iter().collect();
                let candidates = routes.iter().enumerate().filter(|(_, r)| r.matcher.takes(&Method::GET, &headers));
                let ranked = candidates.filter_map(|(i, r)| Some((rank(r, i, host, path)?, i)));
                let expected = ranked.min_by(|a, b| a.0.cmp(&b.0)).map(|(_, index)| index);
                let found = table.find(&routes, host, path, &Method::GET, &headers);
                prop_assert_eq!(found, expected, "{} {}", host, path);
                prop_assert!(!found.is_some_and(|index| unreachable.contains(&index)));
            }
        }

        #[test]
        fn nothing_asked_for_panics(host in r"\PC{0,20}", path in r"(/|\PC){0,20}") {
            let paths = ["/", "= /a", "/{x}/{y}", "~ ^.$", "/é"];
            let routes = paths.map(|path| route("*.b", path, "", None));
            found(&routes, &host, &path);
            found(&routes, &format!("{host}.b"), &path);
        }
    }
}
