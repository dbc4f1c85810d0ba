//! The route table: finds the route of a request at a cost that does not grow with the number of routes, in compact
//! memory. Also finds routes that can never match.
//!
//! Input: the compiled routes, arranged by `plan`, with `edges` stored compactly. Output: the index of the route that
//! matches a canonical host and path. To add a match condition, compare it in `find` after the path, and teach `plan`
//! when one route hides another.

use http::{HeaderMap, Method};
use regex::RegexSet;

use crate::route::Route;
use crate::route::edges::{EdgeTable, to_u32};
use crate::route::matcher::PathPattern;
use crate::route::plan::{EXACT_HOSTS, OPEN_HOSTS, TablePlan, WILDCARD_HOSTS, regex_text};

/// The lookup table of all routes.
///
/// Exact hosts are tried first, then wildcard hosts (longest suffix first), then hosts with any ending (longest start
/// first), then routes without a host. If no route of one host matches, the next host is tried.
///
/// The paths of one host form a trie of segments. Literals are tried before parameters, longer paths before shorter
/// ones, and a template that ends with a slash before one that only allows it. The regexes come last, in config order.
/// A node can be reached in one way only, so a lookup visits it at most once.
#[derive(Debug)]
pub struct RouteTable {
    /// Edges to the tries by host, and within the tries by literal segment.
    edges: EdgeTable,
    /// All nodes. The first one is the root for any host.
    nodes: Vec<RouteNode>,
    /// The lists of all nodes.
    lists: Vec<ListedRoute>,
    regexes: Vec<RegexRoutes>,
    /// Some routes have exact hosts.
    has_exact_hosts: bool,
    /// Length of the longest wildcard suffix in bytes. 0 if there is none.
    longest_suffix: usize,
    /// Length of the longest start of a host with any ending. 0 if there is none.
    longest_prefix: usize,
}

/// A node of a trie.
#[derive(Debug)]
struct RouteNode {
    /// The node that follows any one segment. 0 if there is none.
    param: u32,
    /// Routes whose path ends here.
    exact: RouteList,
    /// Routes whose path may continue from here.
    prefix: RouteList,
    /// One more than the index of a root's regexes. 0 if there are none.
    regexes: u32,
    /// The node has edges.
    branches: bool,
    /// The routes in `exact` are templates, so one slash may follow.
    slash: bool,
}

/// A range of `lists`: routes in the order in which they are tried.
#[derive(Clone, Copy, Debug)]
struct RouteList {
    start: u32,
    count: u32,
}

/// A route: twice its index, plus 1 if it has conditions besides host and path. Without such conditions, a lookup need
/// not read the route.
#[derive(Clone, Copy, Debug)]
struct ListedRoute(u32);

/// The regexes of one host.
#[derive(Debug)]
struct RegexRoutes {
    routes: Vec<ListedRoute>,
    /// All regexes as one set, if there are many.
    set: Option<RegexSet>,
}

/// The smallest number of regexes for which one pass over all is cheaper than one pass for each.
const REGEX_SET_FROM: usize = 9;

impl RouteTable {
    pub fn new(routes: &[Route]) -> RouteTable {
        let plan = TablePlan::new(routes);
        let (mut lists, mut regexes) = (Vec::new(), Vec::new());
        let mut list = |routes_here: &[u32]| {
            let start = to_u32(lists.len());
            lists.extend(routes_here.iter().map(|index| ListedRoute::new(*index, routes)));
            RouteList { start, count: to_u32(routes_here.len()) }
        };
        let nodes = plan.nodes.iter().map(|node| {
            if !node.regexes.is_empty() {
                regexes.push(RegexRoutes::new(&node.regexes, routes));
            }
            RouteNode {
                param: node.param,
                exact: list(&node.exact),
                prefix: list(&node.prefix),
                regexes: if node.regexes.is_empty() { 0 } else { to_u32(regexes.len()) },
                branches: node.branches,
                slash: node.slash,
            }
        });
        let nodes = nodes.collect();
        lists.shrink_to_fit();
        let TablePlan { has_exact_hosts, longest_suffix, longest_prefix, edges, .. } = plan;
        let edges = EdgeTable::new(edges);
        RouteTable { edges, nodes, lists, regexes, has_exact_hosts, longest_suffix, longest_prefix }
    }

    /// Returns the index of the route that matches. `host` and `path` must be canonical.
    pub fn find_route(
        &self,
        routes: &[Route],
        host: &str,
        path: &str,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<usize> {
        let accepts = |listed: ListedRoute| {
            let matcher =
                || routes.get(listed.index()).is_some_and(|route| route.matcher.matches_conditions(method, headers));
            !listed.is_conditional() || matcher()
        };
        let search = |root: u32| self.search_host(root, routes, path, &accepts);
        let exact = if self.has_exact_hosts { self.edges.find(EXACT_HOSTS, host) } else { None };
        if let Some(index) = exact.and_then(search) {
            return Some(index);
        }
        if self.longest_suffix > 0 {
            let dots = host.bytes().enumerate().skip(1).filter(|(_, byte)| *byte == b'.').map(|(at, _)| at);
            for at in dots.filter(|at| host.len() - at <= self.longest_suffix) {
                if let Some(index) = self.edges.find(WILDCARD_HOSTS, &host[at..]).and_then(search) {
                    return Some(index);
                }
            }
        }
        if self.longest_prefix > 0 {
            let dots = host.bytes().enumerate().rev().skip(1).filter(|(_, byte)| *byte == b'.').map(|(at, _)| at);
            for at in dots.filter(|at| *at < self.longest_prefix) {
                if let Some(index) = self.edges.find(OPEN_HOSTS, &host[..=at]).and_then(search) {
                    return Some(index);
                }
            }
        }
        search(0)
    }

    /// Returns the routes that can never match, each with the first route that shadows it: on every one of its hosts, a
    /// route with the same path, or a prefix that is tried before its regex, matches all of its requests.
    pub fn find_shadowed(routes: &[Route]) -> Vec<(usize, usize)> {
        TablePlan::new(routes).find_shadowed(routes)
    }

    fn search_host(
        &self,
        root: u32,
        routes: &[Route],
        path: &str,
        accepts: &impl Fn(ListedRoute) -> bool,
    ) -> Option<usize> {
        let by_segments = match path.strip_prefix('/') {
            Some("") => self.walk_trie(root, None, accepts),
            Some(rest) => self.walk_trie(root, Some(rest), accepts),
            // `*` has no segments. Only a route for every path matches it.
            None => self.first_match(self.node(root).prefix, accepts),
        };
        by_segments.or_else(|| {
            let place = self.node(root).regexes.checked_sub(1)?;
            self.regexes[place as usize].find(routes, path, accepts)
        })
    }

    /// Searches the trie from node `at`. `rest`: what follows the slash after the segments so far, `None` if the path
    /// ended without one.
    fn walk_trie(&self, at: u32, rest: Option<&str>, accepts: &impl Fn(ListedRoute) -> bool) -> Option<usize> {
        let node = self.node(at);
        let Some(rest) = rest else {
            return self.first_match(node.exact, accepts).or_else(|| self.first_match(node.prefix, accepts));
        };
        let (segment, next) = rest.split_once('/').map_or((rest, None), |(segment, next)| (segment, Some(next)));
        let deeper = |child: u32| self.walk_trie(child, next, accepts);
        let found = if segment.is_empty() {
            None
        } else {
            let literal = if node.branches { self.edges.find(at, segment) } else { None };
            literal.and_then(deeper).or_else(|| Some(node.param).filter(|param| *param > 0).and_then(deeper))
        };
        let here = || self.first_match(node.prefix, accepts);
        let slashed = || if rest.is_empty() && node.slash { self.first_match(node.exact, accepts) } else { None };
        found.or_else(here).or_else(slashed)
    }

    fn node(&self, at: u32) -> &RouteNode {
        &self.nodes[at as usize]
    }

    fn first_match(&self, list: RouteList, accepts: &impl Fn(ListedRoute) -> bool) -> Option<usize> {
        let start = list.start as usize;
        let listed = &self.lists[start..start + list.count as usize];
        listed.iter().find(|listed| accepts(**listed)).map(|listed| listed.index())
    }
}

impl ListedRoute {
    fn new(index: u32, routes: &[Route]) -> ListedRoute {
        ListedRoute(index * 2 + u32::from(routes[index as usize].matcher.count_conditions() > 0))
    }

    fn index(self) -> usize {
        self.0 as usize / 2
    }

    fn is_conditional(self) -> bool {
        self.0 % 2 == 1
    }
}

impl RegexRoutes {
    fn new(indices: &[u32], routes: &[Route]) -> RegexRoutes {
        let many = indices.len() >= REGEX_SET_FROM;
        // A set above its size limit is not built; the regexes are then tried one by one.
        let texts = || indices.iter().map(|index| regex_text(&routes[*index as usize]));
        RegexRoutes {
            routes: indices.iter().map(|index| ListedRoute::new(*index, routes)).collect(),
            set: if many { RegexSet::new(texts()).ok() } else { None },
        }
    }

    fn find(&self, routes: &[Route], path: &str, accepts: &impl Fn(ListedRoute) -> bool) -> Option<usize> {
        let pattern_place = match &self.set {
            Some(set) => {
                let matched = set.matches(path);
                matched.iter().filter_map(|at| self.routes.get(at).copied()).find(|listed| accepts(*listed))
            }
            None => {
                let matches = |listed: ListedRoute| match routes.get(listed.index()).map(|route| &route.matcher.path) {
                    Some(PathPattern::Regex(regex)) => regex.is_match(path),
                    _ => false,
                };
                self.routes.iter().copied().find(|listed| accepts(*listed) && matches(*listed))
            }
        };
        pattern_place.map(ListedRoute::index)
    }
}

#[cfg(test)]
mod tests;
