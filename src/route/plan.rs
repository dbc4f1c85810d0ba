//! Where the routes of a config stand before their table is built: tries with lists that still grow,
//! and who shadows whom. Used by `table`.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::steps::small;
use super::{HostPattern, PathPattern, Route, Segment};

/// Where a look-up begins: the steps from here are exact hosts,
pub const EXACT: u32 = u32::MAX;
/// and from here suffixes with their leading dot.
pub const SUFFIX: u32 = u32::MAX - 1;

pub struct Plan<'a> {
    pub nodes: Vec<PlanNode>,
    /// From a node by a literal to another one.
    pub steps: HashMap<(u32, &'a str), u32>,
    /// Some routes name their host in full.
    pub names_hosts: bool,
    pub longest_suffix: usize,
}

/// Lists hold route indices in the order to try them.
#[derive(Default)]
pub struct PlanNode {
    /// There are steps from here.
    pub branches: bool,
    /// Templates end here, which take a slash behind them; an exact path never ends at the same node.
    pub slash: bool,
    pub param: u32,
    pub exact: Vec<u32>,
    pub prefix: Vec<u32>,
    /// Of a root.
    pub regexes: Vec<u32>,
}

impl<'a> Plan<'a> {
    pub fn new(routes: &'a [Route]) -> Plan<'a> {
        let mut plan =
            Plan { nodes: vec![PlanNode::default()], steps: HashMap::new(), names_hosts: false, longest_suffix: 0 };
        for (index, Route { matcher, .. }) in routes.iter().enumerate() {
            let index = small(index);
            if matcher.hosts.is_empty() {
                plan.insert(0, index, &matcher.path);
            }
            for host in &matcher.hosts {
                let root = match host {
                    HostPattern::Exact(name) => {
                        plan.names_hosts = true;
                        plan.step(EXACT, name)
                    }
                    HostPattern::Suffix(suffix) => {
                        plan.longest_suffix = plan.longest_suffix.max(suffix.len());
                        plan.step(SUFFIX, suffix)
                    }
                };
                plan.insert(root, index, &matcher.path);
            }
        }
        plan.nodes.iter_mut().for_each(|node| node.finish(routes));
        plan
    }

    fn insert(&mut self, root: u32, index: u32, path: &'a PathPattern) {
        let list = match path {
            PathPattern::Regex(_) => &mut self.nodes[root as usize].regexes,
            PathPattern::Segments { segments, exact } => {
                let end = segments.iter().fold(root, |node, segment| match segment {
                    Segment::Literal(text) => self.step(node, text),
                    Segment::Param(_) => self.param(node),
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

    fn step(&mut self, from: u32, text: &'a str) -> u32 {
        let new = small(self.nodes.len());
        let to = *self.steps.entry((from, text)).or_insert(new);
        if to == new {
            self.nodes.push(PlanNode::default());
        }
        if let Some(node) = self.nodes.get_mut(from as usize) {
            node.branches = true;
        }
        to
    }

    fn param(&mut self, from: u32) -> u32 {
        let new = small(self.nodes.len());
        let param = &mut self.nodes[from as usize].param;
        if *param == 0 {
            *param = new;
            self.nodes.push(PlanNode::default());
            return new;
        }
        *param
    }

    /// See [`RouteTable::conflicts`](super::table::RouteTable::conflicts).
    pub fn conflicts(&self, routes: &[Route]) -> Vec<(usize, usize)> {
        let mut open_on: Vec<usize> = vec![0; routes.len()];
        let mut shadowed_by: Vec<Option<usize>> = vec![None; routes.len()];
        for group in self.nodes.iter().flat_map(|node| node.groups(routes)) {
            for (tried, index) in group.iter().enumerate() {
                let index = *index as usize;
                let covers = |by: &&u32| routes[**by as usize].matcher.covers(&routes[index].matcher);
                match group[..tried].iter().find(covers) {
                    Some(by) => shadowed_by[index] = shadowed_by[index].or(Some(*by as usize)),
                    None => open_on[index] += 1,
                }
            }
        }
        let pairs = shadowed_by.into_iter().enumerate().filter(|(index, _)| open_on[*index] == 0);
        pairs.filter_map(|(index, by)| Some((index, by?))).collect()
    }
}

impl PlanNode {
    /// Puts every list into the order to try it: most conditions first, then config order. Equal
    /// regexes are tried together, where the first of them stands.
    fn finish(&mut self, routes: &[Route]) {
        let most_first = |index: &u32| (Reverse(routes[*index as usize].matcher.conditions()), *index);
        self.exact.sort_by_key(most_first);
        self.prefix.sort_by_key(most_first);
        let text = |index: &u32| regex_text(&routes[*index as usize]);
        let mut first: HashMap<&str, u32> = HashMap::new();
        for index in &self.regexes {
            first.entry(text(index)).or_insert(*index);
        }
        self.regexes.sort_by_key(|index| (first.get(text(index)).copied(), most_first(index)));
    }

    /// The routes of equal path, each list in the order to try it.
    fn groups<'n>(&'n self, routes: &'n [Route]) -> impl Iterator<Item = &'n [u32]> {
        let same = |a: &u32, b: &u32| regex_text(&routes[*a as usize]) == regex_text(&routes[*b as usize]);
        [self.exact.as_slice(), self.prefix.as_slice()].into_iter().chain(self.regexes.chunk_by(same))
    }
}

pub fn regex_text(route: &Route) -> &str {
    match &route.matcher.path {
        PathPattern::Regex(regex) => regex.as_str(),
        PathPattern::Segments { .. } => "",
    }
}
