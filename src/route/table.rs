//! Which route takes a request: a look-up whose cost does not grow with the number of routes.
//! Built by the config compiler, which also asks it for conflicts; asked once per request.

use std::cmp::Reverse;
use std::collections::HashMap;

use http::{HeaderMap, Method};
use regex::RegexSet;

use super::{HostPattern, Matcher, PathPattern, Route, Segment};

/// Hosts are tried exact, then by wildcard (longest suffix first), then the routes without host.
/// A request that no route of one host takes is offered to the next.
#[derive(Debug, Default)]
pub struct RouteTable {
    exact: HashMap<String, Paths>,
    /// By suffix with its leading dot.
    suffixes: HashMap<String, Paths>,
    longest_suffix: usize,
    any: Paths,
}

/// The paths of one host. Segments form a trie, literals are tried before parameters and longer
/// paths before shorter ones; after it come the regexes in config order.
///
/// Each node has one way to it, so a look-up visits a node at most once, whatever the path.
#[derive(Debug)]
struct Paths {
    nodes: Vec<Node>,
    regexes: Vec<usize>,
    /// Over `regexes`, when they are many.
    set: Option<RegexSet>,
}

/// Lists hold route indices in the order to try them.
#[derive(Debug, Default)]
struct Node {
    literals: HashMap<String, usize>,
    param: Option<usize>,
    /// Routes whose path ends here.
    exact: Vec<usize>,
    /// Routes whose path may go on from here.
    prefix: Vec<usize>,
}

/// From this many regexes on one pass over all of them is cheaper than one each.
const REGEX_SET_FROM: usize = 9;

impl RouteTable {
    pub fn new(routes: &[Route]) -> RouteTable {
        let mut table = RouteTable::default();
        for (index, Route { matcher, .. }) in routes.iter().enumerate() {
            if matcher.hosts.is_empty() {
                table.any.insert(index, &matcher.path);
            }
            for host in &matcher.hosts {
                let paths = match host {
                    HostPattern::Exact(name) => table.exact.entry(name.clone()).or_default(),
                    HostPattern::Suffix(suffix) => {
                        table.longest_suffix = table.longest_suffix.max(suffix.len());
                        table.suffixes.entry(suffix.clone()).or_default()
                    }
                };
                paths.insert(index, &matcher.path);
            }
        }
        table.hosts_mut().for_each(|paths| paths.finish(routes));
        table
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
        let takes = |index: usize| routes.get(index).is_some_and(|route| route.matcher.takes(method, headers));
        let search = |paths: &Paths| paths.find(routes, path, &takes);
        if let Some(index) = self.exact.get(host).and_then(search) {
            return Some(index);
        }
        if !self.suffixes.is_empty() {
            let dots = host.bytes().enumerate().skip(1).filter(|(_, byte)| *byte == b'.').map(|(at, _)| at);
            for at in dots.filter(|at| host.len() - at <= self.longest_suffix) {
                if let Some(index) = self.suffixes.get(&host[at..]).and_then(search) {
                    return Some(index);
                }
            }
        }
        search(&self.any)
    }

    /// Routes that can never take a request, each with the first route that takes all of its
    /// requests before it: same path, and on every host of the shadowed one.
    pub fn conflicts(routes: &[Route]) -> Vec<(usize, usize)> {
        let mut table = RouteTable::new(routes);
        let mut open_on: Vec<usize> = vec![0; routes.len()];
        let mut shadowed_by: Vec<Option<usize>> = vec![None; routes.len()];
        for paths in table.hosts_mut() {
            for group in paths.groups(routes) {
                for (tried, index) in group.iter().enumerate() {
                    let covers = |by: &&usize| routes[**by].matcher.covers(&routes[*index].matcher);
                    match group[..tried].iter().find(covers) {
                        Some(by) => shadowed_by[*index] = shadowed_by[*index].or(Some(*by)),
                        None => open_on[*index] += 1,
                    }
                }
            }
        }
        let pairs = shadowed_by.into_iter().enumerate().filter(|(index, _)| open_on[*index] == 0);
        pairs.filter_map(|(index, by)| Some((index, by?))).collect()
    }

    fn hosts_mut(&mut self) -> impl Iterator<Item = &mut Paths> {
        self.exact.values_mut().chain(self.suffixes.values_mut()).chain([&mut self.any])
    }
}

impl Default for Paths {
    fn default() -> Paths {
        Paths { nodes: vec![Node::default()], regexes: Vec::new(), set: None }
    }
}

impl Paths {
    fn insert(&mut self, index: usize, path: &PathPattern) {
        let list = match path {
            PathPattern::Regex(_) => &mut self.regexes,
            PathPattern::Segments { segments, exact } => {
                let end = segments.iter().fold(0, |node, segment| self.step(node, segment));
                if *exact { &mut self.nodes[end].exact } else { &mut self.nodes[end].prefix }
            }
        };
        // A host may be listed twice in one route.
        if list.last() != Some(&index) {
            list.push(index);
        }
    }

    fn step(&mut self, node: usize, segment: &Segment) -> usize {
        let new = self.nodes.len();
        let next = match segment {
            Segment::Literal(text) => *self.nodes[node].literals.entry(text.clone()).or_insert(new),
            Segment::Param(_) => *self.nodes[node].param.get_or_insert(new),
        };
        if next == new {
            self.nodes.push(Node::default());
        }
        next
    }

    /// Puts every list into the order to try it: most conditions first, then config order. Equal
    /// regexes are tried together, where the first of them stands.
    fn finish(&mut self, routes: &[Route]) {
        let most_first = |index: &usize| (Reverse(routes[*index].matcher.conditions()), *index);
        for node in &mut self.nodes {
            node.exact.sort_by_key(most_first);
            node.prefix.sort_by_key(most_first);
        }
        let mut first: HashMap<&str, usize> = HashMap::new();
        for index in &self.regexes {
            first.entry(regex_text(&routes[*index])).or_insert(*index);
        }
        self.regexes.sort_by_key(|index| (first.get(regex_text(&routes[*index])).copied(), most_first(index)));
        if self.regexes.len() >= REGEX_SET_FROM {
            // Above its size limit there is no set, and they are asked one by one.
            self.set = RegexSet::new(self.regexes.iter().map(|index| regex_text(&routes[*index]))).ok();
        }
    }

    fn find(&self, routes: &[Route], path: &str, takes: &impl Fn(usize) -> bool) -> Option<usize> {
        let by_segments = match path.strip_prefix('/') {
            Some("") => self.walk(0, None, takes),
            Some(rest) => self.walk(0, Some(rest), takes),
            // `*` has no segments; only a route for every path takes it.
            None => first(&self.nodes[0].prefix, takes),
        };
        by_segments.or_else(|| self.by_regex(routes, path, takes))
    }

    /// `rest` is what follows the slash after the segments walked, `None` when the path ended
    /// without one.
    fn walk(&self, node: usize, rest: Option<&str>, takes: &impl Fn(usize) -> bool) -> Option<usize> {
        let node = &self.nodes[node];
        let Some(rest) = rest else {
            return first(&node.exact, takes).or_else(|| first(&node.prefix, takes));
        };
        let (segment, next) = rest.split_once('/').map_or((rest, None), |(segment, next)| (segment, Some(next)));
        let deeper = |child: usize| self.walk(child, next, takes);
        let found = if segment.is_empty() {
            None
        } else {
            let literal = node.literals.get(segment).copied();
            literal.and_then(deeper).or_else(|| node.param.and_then(deeper))
        };
        found.or_else(|| first(&node.prefix, takes))
    }

    fn by_regex(&self, routes: &[Route], path: &str, takes: &impl Fn(usize) -> bool) -> Option<usize> {
        if let Some(set) = &self.set {
            return set.matches(path).iter().filter_map(|at| self.regexes.get(at).copied()).find(|index| takes(*index));
        }
        let matches = |index: &usize| match routes.get(*index).map(|route| &route.matcher.path) {
            Some(PathPattern::Regex(regex)) => regex.is_match(path),
            _ => false,
        };
        self.regexes.iter().copied().find(|index| takes(*index) && matches(index))
    }

    /// The routes of equal path, each list in the order to try it.
    fn groups(&self, routes: &[Route]) -> Vec<&[usize]> {
        let ends = self.nodes.iter().flat_map(|node| [node.exact.as_slice(), node.prefix.as_slice()]);
        let same = |a: &usize, b: &usize| regex_text(&routes[*a]) == regex_text(&routes[*b]);
        ends.chain(self.regexes.chunk_by(same)).collect()
    }
}

fn first(list: &[usize], takes: &impl Fn(usize) -> bool) -> Option<usize> {
    list.iter().copied().find(|index| takes(*index))
}

fn regex_text(route: &Route) -> &str {
    match &route.matcher.path {
        PathPattern::Regex(regex) => regex.as_str(),
        PathPattern::Segments { .. } => "",
    }
}

impl Matcher {
    fn conditions(&self) -> usize {
        usize::from(!self.methods.is_empty()) + self.headers.len()
    }

    /// The conditions besides host and path.
    fn takes(&self, method: &Method, headers: &HeaderMap) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self.headers.iter().all(|(name, value)| headers.get_all(name).iter().any(|found| found == value))
    }

    /// Whether it takes all that `other` takes, host and path being equal.
    fn covers(&self, other: &Matcher) -> bool {
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty() && other.methods.iter().all(|method| self.methods.contains(method)));
        methods && self.headers.iter().all(|condition| other.headers.contains(condition))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, StatusCode};
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;
    use crate::net::IpSet;
    use crate::route::{Action, HeaderEdit, Refuse, Rewrite, Timeouts};

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
            allow: IpSet::default(),
            deny: IpSet::default(),
            rewrite: Rewrite::default(),
            request_headers: HeaderEdit::default(),
            response_headers: HeaderEdit::default(),
            max_body: 0,
            max_in_flight: None,
            timeouts: Timeouts { body: ZERO, min_body_rate: 0, connect: ZERO, response: ZERO, stream: ZERO },
            refuse: Refuse { status: StatusCode::OK, body: None, content_type: HeaderValue::from_static("a/b") },
            ratelimit_headers: None,
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
        let exact = path != text || segments.iter().any(|segment| matches!(segment, Segment::Param(_)));
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
            ("/users/{id}", &["/users/42", "/users/%2F"], &["/users/42/x", "/users/", "/users", "/users/42/"]),
            ("/{a}/{b}", &["/x/y"], &["/x", "/x/", "//", "/x//y", "*"]),
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
        if given.last() == Some(&"") {
            given.pop();
            if *exact && !given.is_empty() {
                return None;
            }
        }
        if segments.len() > given.len() || (*exact && segments.len() < given.len()) {
            return None;
        }
        // Per segment: literal 0, parameter 1, not named by a prefix 2; then exact before prefix.
        let mut fit = Vec::new();
        for (i, text) in given.iter().enumerate() {
            fit.push(match segments.get(i) {
                Some(Segment::Literal(literal)) if literal == text => 0,
                Some(Segment::Literal(_)) => return None,
                Some(Segment::Param(_)) => 1,
                None => 2,
            });
        }
        fit.push(if *exact { 0 } else { 1 });
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
