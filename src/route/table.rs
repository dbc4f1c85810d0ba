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
