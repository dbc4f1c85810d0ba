//! The tries of a route table while it is being built, and the search for shadowed routes.

use std::cmp::Reverse;
use std::collections::HashMap;

use regex_syntax::hir::Look;
use regex_syntax::hir::literal::Extractor;

use crate::route::Route;
use crate::route::edges::to_u32;
use crate::route::matcher::{HostPattern, PathPattern, Segment};

/// Pseudo node of exact hosts: its edges lead from a host to the root of the host's trie.
pub const EXACT_HOSTS: u32 = u32::MAX;
/// Pseudo node of wildcard hosts: its edges are host suffixes with their leading dot.
pub const WILDCARD_HOSTS: u32 = u32::MAX - 1;
/// Pseudo node of hosts with any ending: its edges are the starts of hosts with the dot at their end.
pub const OPEN_HOSTS: u32 = u32::MAX - 2;

/// The tries of a route table, one per host pattern. Node 0 is the root for any host.
pub struct TablePlan<'a> {
    pub nodes: Vec<PlanNode>,
    /// Edges: from a node and a literal segment to another node.
    pub edges: HashMap<(u32, &'a str), u32>,
    /// Some routes have exact hosts.
    pub has_exact_hosts: bool,
    /// Length of the longest wildcard suffix in bytes. 0 if there is none.
    pub longest_suffix: usize,
    /// Length of the longest start of a host with any ending. 0 if there is none.
    pub longest_prefix: usize,
}

/// A node of a trie. Its lists contain route indices in the order in which the routes are tried.
#[derive(Default)]
pub struct PlanNode {
    /// The node has edges.
    pub branches: bool,
    /// Templates end here, and one slash may follow. An exact path never ends at the same node.
    pub slash: bool,
    /// The node that follows any one segment. 0 if there is none.
    pub param: u32,
    /// Routes whose path ends here.
    pub exact: Vec<u32>,
    /// Routes whose path may continue from here.
    pub prefix: Vec<u32>,
    /// Routes with a regex. Only roots have them.
    pub regexes: Vec<u32>,
}

impl<'a> TablePlan<'a> {
    pub fn new(routes: &'a [Route]) -> TablePlan<'a> {
        let mut plan = TablePlan {
            nodes: vec![PlanNode::default()],
            edges: HashMap::new(),
            has_exact_hosts: false,
            longest_suffix: 0,
            longest_prefix: 0,
        };
        for (index, Route { matcher, .. }) in routes.iter().enumerate() {
            let index = to_u32(index);
            if matcher.hosts.is_empty() {
                plan.insert(0, index, &matcher.path);
            }
            for host in &matcher.hosts {
                let root = match host {
                    HostPattern::Exact(name) => {
                        plan.has_exact_hosts = true;
                        plan.get_or_add_edge(EXACT_HOSTS, name)
                    }
                    HostPattern::Suffix(suffix) => {
                        plan.longest_suffix = plan.longest_suffix.max(suffix.len());
                        plan.get_or_add_edge(WILDCARD_HOSTS, suffix)
                    }
                    HostPattern::Prefix(prefix) => {
                        plan.longest_prefix = plan.longest_prefix.max(prefix.len());
                        plan.get_or_add_edge(OPEN_HOSTS, prefix)
                    }
                };
                plan.insert(root, index, &matcher.path);
            }
        }
        plan.nodes.iter_mut().for_each(|node| node.sort_lists(routes));
        plan
    }

    fn insert(&mut self, root: u32, index: u32, path: &'a PathPattern) {
        let list = match path {
            PathPattern::Regex(_) => &mut self.nodes[root as usize].regexes,
            PathPattern::Segments { segments, exact } => {
                let end = segments.iter().fold(root, |node, segment| match segment {
                    Segment::Literal(text) => self.get_or_add_edge(node, text),
                    Segment::Param(_) => self.get_or_add_param(node),
                });
                let end = &mut self.nodes[end as usize];
                end.slash |= *exact && segments.iter().any(|segment| matches!(segment, Segment::Param(_)));
                if *exact { &mut end.exact } else { &mut end.prefix }
            }
        };
        // A host may be listed twice in one route.
        if list.last() != Some(&index) {
            list.push(index);
        }
    }

    /// Returns the node behind an edge, and adds the edge if it is new.
    fn get_or_add_edge(&mut self, from: u32, text: &'a str) -> u32 {
        let new = to_u32(self.nodes.len());
        let to = *self.edges.entry((from, text)).or_insert(new);
        if to == new {
            self.nodes.push(PlanNode::default());
        }
        if let Some(node) = self.nodes.get_mut(from as usize) {
            node.branches = true;
        }
        to
    }

    /// Returns the node behind any one segment, and adds it if it is new.
    fn get_or_add_param(&mut self, from: u32) -> u32 {
        let new = to_u32(self.nodes.len());
        let param = &mut self.nodes[from as usize].param;
        if *param == 0 {
            *param = new;
            self.nodes.push(PlanNode::default());
            return new;
        }
        *param
    }

    /// See [`RouteTable::find_shadowed`](super::table::RouteTable::find_shadowed).
    pub fn find_shadowed(&self, routes: &[Route]) -> Vec<(usize, usize)> {
        let mut open_on: Vec<usize> = vec![0; routes.len()];
        let mut shadowed_by: Vec<Option<usize>> = vec![None; routes.len()];
        for (place, node) in self.nodes.iter().enumerate() {
            for group in node.routes_by_path(routes) {
                for (tried, index) in group.iter().enumerate() {
                    let matcher = &routes[*index as usize].matcher;
                    let covers = |by: &&u32| routes[**by as usize].matcher.covers(matcher);
                    let prefixes = self.find_prefixes(to_u32(place), &matcher.path);
                    let index = *index as usize;
                    match group[..tried].iter().chain(&prefixes).find(covers) {
                        Some(by) => shadowed_by[index] = shadowed_by[index].or(Some(*by as usize)),
                        None => open_on[index] += 1,
                    }
                }
            }
        }
        let pairs = shadowed_by.into_iter().enumerate().filter(|(index, _)| open_on[*index] == 0);
        pairs.filter_map(|(index, by)| Some((index, by?))).collect()
    }

    /// Returns the routes below `root` whose prefix every path has that a regex matches. They are tried before it.
    fn find_prefixes(&self, root: u32, path: &PathPattern) -> Vec<u32> {
        let PathPattern::Regex(regex) = path else { return Vec::new() };
        let literal = literal_start(regex.as_str());
        // The last segment may continue.
        let segments = literal.rsplit_once('/').map_or("", |(whole, _)| whole);
        let (mut nodes, mut prefixes) = (vec![root], self.nodes[root as usize].prefix.clone());
        for segment in segments.split('/').skip(1).take_while(|segment| !segment.is_empty()) {
            let below = nodes.iter().flat_map(|node| {
                let param = Some(self.nodes[*node as usize].param).filter(|param| *param > 0);
                [self.edges.get(&(*node, segment)).copied(), param]
            });
            nodes = below.flatten().collect();
            prefixes.extend(nodes.iter().flat_map(|node| &self.nodes[*node as usize].prefix));
        }
        prefixes
    }
}

impl PlanNode {
    /// Sorts every list into the order in which it is tried: most conditions first, then config order. Routes with
    /// equal regexes are tried together, at the position of the first.
    fn sort_lists(&mut self, routes: &[Route]) {
        let most_first = |index: &u32| (Reverse(routes[*index as usize].matcher.count_conditions()), *index);
        self.exact.sort_by_key(most_first);
        self.prefix.sort_by_key(most_first);
        let text = |index: &u32| regex_text(&routes[*index as usize]);
        let mut first: HashMap<&str, u32> = HashMap::new();
        for index in &self.regexes {
            first.entry(text(index)).or_insert(*index);
        }
        self.regexes.sort_by_key(|index| (first.get(text(index)).copied(), most_first(index)));
    }

    /// Returns lists of routes with equal paths, each in the order in which it is tried.
    fn routes_by_path<'n>(&'n self, routes: &'n [Route]) -> impl Iterator<Item = &'n [u32]> {
        let same = |a: &u32, b: &u32| regex_text(&routes[*a as usize]) == regex_text(&routes[*b as usize]);
        [self.exact.as_slice(), self.prefix.as_slice()].into_iter().chain(self.regexes.chunk_by(same))
    }
}

/// Returns the text with which every path begins that the regex matches, as far as it is known. If the regex matches
/// one path only, the text ends with a slash, since nothing follows its last segment.
fn literal_start(regex: &str) -> String {
    let Ok(hir) = regex_syntax::parse(regex) else { return String::new() };
    let properties = hir.properties();
    if !properties.look_set_prefix().contains(Look::Start) {
        return String::new();
    }
    let literals = Extractor::new().extract(&hir);
    let is_whole = literals.is_exact() && literals.len() == Some(1) && properties.look_set_suffix().contains(Look::End);
    let start = literals.longest_common_prefix().and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default();
    format!("{start}{}", if is_whole { "/" } else { "" })
}

/// Returns the regex of a route as written. Empty if the route has none.
pub fn regex_text(route: &Route) -> &str {
    match &route.matcher.path {
        PathPattern::Regex(regex) => regex.as_str(),
        PathPattern::Segments { .. } => "",
    }
}
