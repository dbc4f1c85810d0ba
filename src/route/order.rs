//! All routes in the order in which they are tried. Shown by the admin listener.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use crate::route::Route;
use crate::route::matcher::{HostPattern, PathPattern, Segment};
use crate::route::plan::regex_text;

/// A route for one of its hosts.
#[derive(Clone, Copy, Debug)]
pub struct RankedRoute<'r> {
    /// `None` for any host.
    pub host: Option<&'r HostPattern>,
    /// Index of the route.
    pub index: usize,
}

/// Returns every route once for each of its hosts. The first one that matches a request gets it. There is one
/// exception: a template without a final slash gets a request with one only after the same template with a final slash.
pub fn rank_routes(routes: &[Route]) -> Vec<RankedRoute<'_>> {
    let mut ranked = Vec::with_capacity(routes.len());
    for (index, route) in routes.iter().enumerate() {
        if route.matcher.hosts.is_empty() {
            ranked.push(RankedRoute { host: None, index });
        }
        ranked.extend(route.matcher.hosts.iter().map(|host| RankedRoute { host: Some(host), index }));
    }
    // Routes with equal regexes are tried together, at the position of the first.
    let mut first: HashMap<(u8, &str, &str), usize> = HashMap::new();
    for route in &ranked {
        let (rank, host) = (host_rank(route.host).0, host_text(route.host));
        first.entry((rank, host, regex_text(&routes[route.index]))).or_insert(route.index);
    }
    ranked.sort_by_cached_key(|route| {
        let place = first.get(&(host_rank(route.host).0, host_text(route.host), regex_text(&routes[route.index])));
        RouteRank { host: route.host, route: &routes[route.index], regex: place.copied(), index: route.index }
    });
    ranked
}

/// Sorts routes; smaller is tried first.
struct RouteRank<'r> {
    host: Option<&'r HostPattern>,
    route: &'r Route,
    /// Position of the first route of the host with the same regex.
    regex: Option<usize>,
    index: usize,
}

impl Ord for RouteRank<'_> {
    fn cmp(&self, other: &RouteRank) -> Ordering {
        let conditions = |rank: &RouteRank| (Reverse(rank.route.matcher.count_conditions()), rank.index);
        host_rank(self.host)
            .cmp(&host_rank(other.host))
            .then_with(|| host_text(self.host).cmp(host_text(other.host)))
            .then_with(|| match (&self.route.matcher.path, &other.route.matcher.path) {
                (PathPattern::Segments { segments, exact }, PathPattern::Segments { segments: others, exact: its }) => {
                    compare_segments(segments, others).then(its.cmp(exact))
                }
                (PathPattern::Segments { .. }, PathPattern::Regex(_)) => Ordering::Less,
                (PathPattern::Regex(_), PathPattern::Segments { .. }) => Ordering::Greater,
                (PathPattern::Regex(_), PathPattern::Regex(_)) => self.regex.cmp(&other.regex),
            })
            .then_with(|| conditions(self).cmp(&conditions(other)))
    }
}

impl PartialOrd for RouteRank<'_> {
    fn partial_cmp(&self, other: &RouteRank) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RouteRank<'_> {
    fn eq(&self, other: &RouteRank) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for RouteRank<'_> {}

/// Exact hosts first, then wildcards, then hosts with any ending, the longest first, then any host.
fn host_rank(host: Option<&HostPattern>) -> (u8, Reverse<usize>) {
    match host {
        Some(HostPattern::Exact(_)) => (0, Reverse(0)),
        Some(HostPattern::Suffix(suffix)) => (1, Reverse(suffix.len())),
        Some(HostPattern::Prefix(prefix)) => (2, Reverse(prefix.len())),
        None => (3, Reverse(0)),
    }
}

fn host_text(host: Option<&HostPattern>) -> &str {
    match host {
        Some(HostPattern::Exact(text) | HostPattern::Suffix(text) | HostPattern::Prefix(text)) => text,
        None => "",
    }
}

/// Literals before parameters, and longer paths before their beginnings.
fn compare_segments(ours: &[Segment], theirs: &[Segment]) -> Ordering {
    fn kind(segment: &Segment) -> (u8, &str) {
        match segment {
            Segment::Literal(text) => (0, text),
            Segment::Param(_) => (1, ""),
        }
    }
    let differ = ours.iter().zip(theirs).map(|(our, their)| kind(our).cmp(&kind(their))).find(|order| order.is_ne());
    differ.unwrap_or_else(|| theirs.len().cmp(&ours.len()))
}
