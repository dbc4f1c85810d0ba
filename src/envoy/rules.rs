//! `[[rls]]`: which limits apply to the descriptors of a rate limit request. The config compiler builds a
//! [`RateLimitDomain`] for each domain, and `proxy::doors::grpc` finds the rule of each descriptor.
//!
//! The most specific rule applies. Rules are compared entry by entry, in the order of the request: an exact value
//! precedes one with `*` in it, and that precedes `*` alone. Of equal rules, the first in the config applies.
//!
//! Rules are stored in tries, so a lookup costs little however many exact values there are. A lookup visits each node
//! at most once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::envoy::pattern::{DescriptorPattern, EntryPattern, ValuePattern};
use crate::envoy::rate_limit::ENTRIES_MAX;
use crate::limiting::limit::Limit;
use crate::limiting::source::DescriptorEntry;
use crate::route::Route;

/// All domains by name.
#[derive(Debug, Default)]
pub struct RateLimitDomains {
    by_name: HashMap<Vec<u8>, RateLimitDomain>,
    /// The limits of each domain, as routes that no request of the proxy matches: decisions have their names.
    pub routes: Vec<Route>,
}

/// The rules of one domain.
#[derive(Debug, Default)]
pub struct RateLimitDomain {
    /// Index of the route that has the limits of the domain; see `Config::route_at`.
    pub route: usize,
    rules: Vec<RateLimitRule>,
    /// Rules whose entries must come in order.
    ordered: Trie,
    /// Rules whose entries may come in any order, sorted by key.
    unordered: Trie,
}

/// One `[[rls]]`.
#[derive(Debug, Default, PartialEq)]
pub struct RateLimitRule {
    pub pattern: DescriptorPattern,
    /// Indexes into the limits of the domain's route. Empty exempts the descriptor from limits.
    pub limits: Vec<usize>,
    /// The limits that have another cost here than on the route.
    pub priced: Vec<Arc<Limit>>,
    /// Names of limits that do not apply to the other descriptors of a request that has this one.
    pub replaces: Vec<String>,
}

impl RateLimitRule {
    /// Returns a limit of the rule with its cost here. `limit`: the one of the domain's route.
    pub fn with_price<'l>(&'l self, limit: &'l Arc<Limit>) -> &'l Arc<Limit> {
        self.priced.iter().find(|priced| priced.name == limit.name).unwrap_or(limit)
    }
}

/// The entry with the address of the client, as the action `remote_address` of Envoy names it.
pub const ADDRESS_ENTRY: &str = "remote_address";

#[derive(Debug, Default)]
struct Trie {
    nodes: Vec<TrieNode>,
}

#[derive(Debug, Default)]
struct TrieNode {
    /// Index of the rule that ends here.
    rule: Option<usize>,
    by_key: HashMap<Vec<u8>, Branches>,
}

/// The next nodes after a key, by the value of the entry.
#[derive(Debug, Default)]
struct Branches {
    exact: HashMap<Vec<u8>, usize>,
    wildcards: Vec<(ValuePattern, usize)>,
    any: Option<usize>,
}

/// How specific a match is, entry by entry: smaller is more specific.
type Ranks = [usize; ENTRIES_MAX];

const RANK_EXACT: usize = 0;
const RANK_ANY: usize = usize::MAX;

/// A search in one trie.
struct Search<'s> {
    trie: &'s Trie,
    descriptor: &'s [DescriptorEntry<'s>],
    /// Indexes of the entries in the order in which the trie has them.
    order: &'s [usize],
    best: Option<(Ranks, usize)>,
}

impl RateLimitDomains {
    pub fn insert(&mut self, name: &str, domain: RateLimitDomain, route: Route) {
        self.routes.push(route);
        self.by_name.insert(name.as_bytes().to_vec(), domain);
    }

    /// Returns the limits that cost something else in a rule than on the route of its domain.
    pub fn priced_limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.by_name.values().flat_map(|domain| &domain.rules).flat_map(|rule| &rule.priced)
    }

    pub fn find(&self, name: &[u8]) -> Option<&RateLimitDomain> {
        self.by_name.get(name)
    }
}

impl RateLimitDomain {
    pub fn new(route: usize) -> RateLimitDomain {
        RateLimitDomain { route, ..RateLimitDomain::default() }
    }

    /// Adds a rule. Returns false if an earlier one has the same pattern.
    pub fn add_rule(&mut self, rule: RateLimitRule) -> bool {
        let (index, pattern) = (self.rules.len(), &rule.pattern);
        // The order of a single entry is no question.
        let is_new = if pattern.is_ordered && pattern.entries.len() > 1 {
            self.ordered.insert(pattern.entries.iter(), index)
        } else {
            let mut entries: Vec<&EntryPattern> = pattern.entries.iter().collect();
            entries.sort_by(|a, b| a.key.cmp(&b.key));
            self.unordered.insert(entries.into_iter(), index)
        };
        self.rules.push(rule);
        is_new
    }

    /// Returns whether a rule replaces limits of others.
    pub fn has_replacements(&self) -> bool {
        self.rules.iter().any(|rule| !rule.replaces.is_empty())
    }

    /// Returns the rules in the order of the config.
    pub fn rules(&self) -> &[RateLimitRule] {
        &self.rules
    }

    /// Returns the rule of a descriptor with at most [`ENTRIES_MAX`] entries; `None` if none matches.
    pub fn find_rule(&self, descriptor: &[DescriptorEntry<'_>]) -> Option<&RateLimitRule> {
        let count = descriptor.len().min(ENTRIES_MAX);
        let mut order: [usize; ENTRIES_MAX] = std::array::from_fn(|at| at);
        let in_order = self.ordered.find(descriptor, &order[..count]);
        order[..count].sort_unstable_by_key(|at| descriptor[*at].key);
        let in_any_order = self.unordered.find(descriptor, &order[..count]);
        let (_, index) = in_order.into_iter().chain(in_any_order).min()?;
        self.rules.get(index)
    }
}

impl Trie {
    fn insert<'p>(&mut self, entries: impl Iterator<Item = &'p EntryPattern>, rule: usize) -> bool {
        if self.nodes.is_empty() {
            self.nodes.push(TrieNode::default());
        }
        let mut at = 0;
        for EntryPattern { key, value } in entries {
            let new = self.nodes.len();
            let branches = self.nodes[at].by_key.entry(key.as_bytes().to_vec()).or_default();
            at = match value {
                ValuePattern::Exact(text) => *branches.exact.entry(text.as_bytes().to_vec()).or_insert(new),
                ValuePattern::Any => *branches.any.get_or_insert(new),
                wildcard => match branches.wildcards.iter().find(|(known, _)| known == wildcard) {
                    Some((_, node)) => *node,
                    None => {
                        branches.wildcards.push((wildcard.clone(), new));
                        new
                    }
                },
            };
            if at == new {
                self.nodes.push(TrieNode::default());
            }
        }
        let is_new = self.nodes[at].rule.is_none();
        self.nodes[at].rule.get_or_insert(rule);
        is_new
    }

    fn find(&self, descriptor: &[DescriptorEntry<'_>], order: &[usize]) -> Option<(Ranks, usize)> {
        if self.nodes.is_empty() {
            return None;
        }
        let mut search = Search { trie: self, descriptor, order, best: None };
        search.visit(0, 0, &mut [RANK_EXACT; ENTRIES_MAX]);
        search.best
    }
}

impl Search<'_> {
    /// Visits a node that the first `depth` entries lead to.
    fn visit(&mut self, node: usize, depth: usize, ranks: &mut Ranks) {
        let node = &self.trie.nodes[node];
        let Some(place) = self.order.get(depth).copied() else {
            if let Some(rule) = node.rule {
                let candidate = (*ranks, rule);
                self.best = Some(self.best.map_or(candidate, |best| best.min(candidate)));
            }
            return;
        };
        let entry = self.descriptor[place];
        let Some(branches) = node.by_key.get(entry.key) else { return };
        if let Some(next) = branches.exact.get(entry.value) {
            ranks[place] = RANK_EXACT;
            self.visit(*next, depth + 1, ranks);
        }
        for (rank, (pattern, next)) in branches.wildcards.iter().enumerate() {
            if pattern.matches(entry.value) {
                ranks[place] = rank + 1;
                self.visit(*next, depth + 1, ranks);
            }
        }
        if let Some(next) = branches.any {
            ranks[place] = RANK_ANY;
            self.visit(next, depth + 1, ranks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str, is_ordered: bool) -> DescriptorPattern {
        let entry = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap();
            EntryPattern { key: key.to_owned(), value: ValuePattern::parse(value) }
        };
        DescriptorPattern { entries: text.split(' ').map(entry).collect(), is_ordered }
    }

    /// A domain in which rule `i` has the limit `i`.
    fn domain(rules: &[(&str, bool)]) -> RateLimitDomain {
        let mut domain = RateLimitDomain::new(0);
        for (index, (text, is_ordered)) in rules.iter().enumerate() {
            let rule =
                RateLimitRule { pattern: pattern(text, *is_ordered), limits: vec![index], ..RateLimitRule::default() };
            assert!(domain.add_rule(rule), "{text}");
        }
        domain
    }

    fn find(domain: &RateLimitDomain, text: &str) -> Option<usize> {
        let pairs: Vec<(&str, &str)> = text.split(' ').map(|pair| pair.split_once('=').unwrap()).collect();
        let entries: Vec<DescriptorEntry> =
            pairs.iter().map(|(key, value)| DescriptorEntry { key: key.as_bytes(), value: value.as_bytes() }).collect();
        domain.find_rule(&entries).map(|rule| rule.limits[0])
    }

    #[test]
    fn the_most_specific_rule_applies() {
        let domain = domain(&[
            ("path=*", true),
            ("path=/a*", true),
            ("path=/a", true),
            ("path=/ab*", true),
            ("path=/a user=*", true),
            ("path=* user=bob", true),
        ]);
        for (text, rule) in [
            ("path=/a", Some(2)),
            ("path=/ab", Some(1)),
            ("path=/b", Some(0)),
            ("path=", Some(0)),
            ("path=/a user=eve", Some(4)),
            ("path=/a user=bob", Some(4)),
            ("path=/b user=bob", Some(5)),
            ("path=/b user=eve", None),
            ("user=bob path=/a", None),
            ("path=/a user=bob x=1", None),
            ("Path=/a", None),
        ] {
            assert_eq!(find(&domain, text), rule, "{text}");
        }
    }

    #[test]
    fn a_table_matches_in_any_order() {
        let domain = domain(&[("user=* path=/a", false), ("path=/a user=eve", true), ("z=1 y=*", false)]);
        for (text, rule) in [
            ("path=/a user=bob", Some(0)),
            ("user=bob path=/a", Some(0)),
            ("path=/a user=eve", Some(1)),
            ("user=eve path=/a", Some(0)),
            ("y=2 z=1", Some(2)),
            ("path=/a path=/a", None),
            ("path=/a", None),
        ] {
            assert_eq!(find(&domain, text), rule, "{text}");
        }
        let mut domain = domain;
        let again = RateLimitRule { pattern: pattern("path=/a user=*", false), ..RateLimitRule::default() };
        assert!(!domain.add_rule(again));
    }

    #[test]
    fn repeated_keys_match_in_order() {
        let domain = domain(&[("generic_key=a generic_key=b", true), ("generic_key=a generic_key=*", true)]);
        assert_eq!(find(&domain, "generic_key=a generic_key=b"), Some(0));
        assert_eq!(find(&domain, "generic_key=a generic_key=a"), Some(1));
        assert_eq!(find(&domain, "generic_key=b generic_key=a"), None);
    }

    /// Compares with a search through all rules.
    #[test]
    fn the_trie_finds_what_a_scan_finds() {
        use rand::rngs::StdRng;
        use rand::{Rng, SeedableRng};
        let mut rng = StdRng::seed_from_u64(7);
        let values = ["a", "b", "ab", "a*", "*b", "*"];
        for _ in 0..300 {
            let mut domain = RateLimitDomain::new(0);
            let mut patterns: Vec<DescriptorPattern> = Vec::new();
            for _ in 0..12 {
                let count = rng.random_range(1..=3);
                let is_ordered: bool = rng.random();
                let mut keys: Vec<&str> = (0..count).map(|_| ["k", "l", "m"][rng.random_range(0..3)]).collect();
                if !is_ordered {
                    keys.sort_unstable();
                    keys.dedup();
                }
                let entry = |key: &&str, rng: &mut StdRng| EntryPattern {
                    key: (*key).to_owned(),
                    value: ValuePattern::parse(values[rng.random_range(0..values.len())]),
                };
                let entries = keys.iter().map(|key| entry(key, &mut rng)).collect();
                let pattern = DescriptorPattern { entries, is_ordered };
                let limits = vec![patterns.len()];
                domain.add_rule(RateLimitRule { pattern: pattern.clone(), limits, ..RateLimitRule::default() });
                patterns.push(pattern);
            }
            for _ in 0..50 {
                let count = rng.random_range(1..=3);
                let pairs: Vec<(&str, &str)> = (0..count)
                    .map(|_| (["k", "l", "m"][rng.random_range(0..3)], ["a", "b", "ab", "c"][rng.random_range(0..4)]))
                    .collect();
                let entries: Vec<DescriptorEntry> = pairs
                    .iter()
                    .map(|(key, value)| DescriptorEntry { key: key.as_bytes(), value: value.as_bytes() })
                    .collect();
                let matches = |pattern: &DescriptorPattern| {
                    let in_order = || pattern.entries.iter().zip(&entries).all(|(one, entry)| one.matches(entry));
                    let anyhow = || pattern.entries.iter().all(|one| entries.iter().any(|entry| one.matches(entry)));
                    let unique =
                        entries.iter().all(|one| entries.iter().filter(|other| other.key == one.key).count() == 1);
                    pattern.entries.len() == entries.len()
                        && if pattern.is_ordered { in_order() } else { unique && anyhow() }
                };
                let found = domain.find_rule(&entries).map(|rule| rule.limits[0]);
                let expected = patterns.iter().any(matches);
                assert_eq!(found.is_some(), expected, "{pairs:?} {patterns:?}");
                assert!(found.is_none_or(|index| matches(&patterns[index])), "{pairs:?} {patterns:?}");
            }
        }
    }
}
