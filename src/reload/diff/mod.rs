//! Difference of two configs, for the log, the response of `POST /-/reload` and `sluicegate diff`. Called by the
//! reloader with the active config and the new one.
//!
//! The compiled configs decide whether a section differs, so defaults, order and comments never count. What is written
//! then shows which of its options do: `options` makes a line of each, `weaker` marks those that weaken protection, and
//! `line` writes them.

mod line;
mod options;
mod sets;
mod weaker;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::schema::root;
use crate::config::{Config, ListenerSettings, WrittenSection};
use crate::limiting::limit::Limit;
use crate::limiting::limit::cost::Cost;
use crate::reload::diff::line::ChangeLines;
use crate::reload::diff::options::{ChangedSections, ListedChanges};
use crate::route::matcher::Matcher;
use crate::route::{Action, Route};
use crate::upstream::Upstream;

/// Differences of two configs; displays as one line.
#[derive(Debug, Default, PartialEq)]
pub struct Diff {
    listeners: Changes,
    routes: Changes,
    limits: Changes,
    upstreams: Changes,
    /// Rules for rate limit requests.
    rls: Changes,
    /// Sections that exist once, such as `server`.
    settings: Changes,
    /// The changes in the files of sets.
    sets: Vec<String>,
    /// Kinds and names of sections that differ only by these sets.
    by_sets: HashSet<(&'static str, String)>,
    /// Changes, option by option.
    lines: ChangeLines,
}

#[derive(Debug, Default, PartialEq)]
struct Changes {
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
    /// Changed limits whose keys start with a full budget, because another algorithm or key cannot use the old state.
    /// `None` for kinds without state.
    anew: Option<Vec<String>>,
}

/// Verb of what is in both configs.
const CHANGED: &str = "changed";

/// Maximum number of names per kind of change in the one-line form.
const SHOWN: usize = 10;

impl Diff {
    pub fn compare(old: &Config, new: &Config) -> Diff {
        let mut diff = Diff {
            listeners: Changes::compare(listener_contents(old), listener_contents(new)),
            routes: Changes::compare(route_contents(old), route_contents(new)),
            limits: Changes {
                anew: Some(limits_starting_anew(old, new)),
                ..Changes::compare(limit_contents(old), limit_contents(new))
            },
            upstreams: Changes::compare(upstream_contents(old), upstream_contents(new)),
            rls: Changes::compare(rls_contents(old), rls_contents(new)),
            settings: setting_contents(old, new),
            sets: Vec::new(),
            by_sets: HashSet::new(),
            lines: ChangeLines::default(),
        };
        let sections = ChangedSections {
            kinds: [
                (root::LISTENER.name, &diff.listeners),
                (root::UPSTREAM.name, &diff.upstreams),
                (root::LIMIT.name, &diff.limits),
                (root::ROUTE.name, &diff.routes),
                (root::RLS.name, &diff.rls),
            ],
            settings: &diff.settings.changed,
        };
        let ListedChanges { lines, sets, by_sets } = options::list_changes(old, new, &sections);
        (diff.lines, diff.sets, diff.by_sets) = (ChangeLines::new(lines), sets, by_sets);
        diff
    }

    /// Returns whether the configs have the same effect.
    pub fn is_empty(&self) -> bool {
        self.kinds().iter().all(|(.., changes)| changes.is_empty()) && self.lines.total() == 0
    }

    /// Returns a line per difference, with the number of those that are left out.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.lines.texts()
    }

    /// Returns the lines, each with whether it weakens protection.
    pub fn marked_lines(&self) -> impl Iterator<Item = (bool, String)> + '_ {
        self.lines.marked_texts()
    }

    /// Returns how many differences there are, and how many of them weaken protection.
    pub fn counts(&self) -> (usize, usize) {
        (self.lines.total(), self.lines.weaker())
    }

    /// Returns the lines with their parts.
    pub fn lines_json(&self) -> Value {
        self.lines.to_json()
    }

    pub fn to_json(&self) -> Value {
        let mut kinds = serde_json::Map::new();
        for (_, plural, changes) in self.kinds() {
            let mut kind = json!({ "added": changes.added, "removed": changes.removed, "changed": changes.changed });
            if let Some(anew) = &changes.anew {
                kind["starting_anew"] = json!(anew);
            }
            kinds.insert(plural.to_owned(), kind);
        }
        Value::Object(kinds)
    }

    fn kinds(&self) -> [(&'static str, &'static str, &Changes); 6] {
        [
            (root::LISTENER.name, "listeners", &self.listeners),
            (root::ROUTE.name, "routes", &self.routes),
            (root::LIMIT.name, "limits", &self.limits),
            (root::UPSTREAM.name, "upstreams", &self.upstreams),
            (root::RLS.name, "rls", &self.rls),
            ("setting", "settings", &self.settings),
        ]
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, plural, changes) in self.kinds() {
            for (names, verb) in [
                (changes.added.as_slice(), "added"),
                (&changes.removed, "removed"),
                (&changes.changed, CHANGED),
                (changes.anew.as_deref().unwrap_or_default(), "starting anew"),
            ] {
                let is_own = |name: &&String| {
                    verb != CHANGED || self.by_sets.is_empty() || !self.by_sets.contains(&(kind, (*name).clone()))
                };
                let names: Vec<&String> = names.iter().filter(is_own).collect();
                if names.is_empty() {
                    continue;
                }
                let kind = if names.len() == 1 { kind } else { plural };
                let list = names.iter().take(SHOWN).map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
                write!(f, "{separator}{kind} {verb}: {list}")?;
                if names.len() > SHOWN {
                    write!(f, " and {} more", names.len() - SHOWN)?;
                }
                separator = "; ";
            }
        }
        for set in self.sets.iter().take(SHOWN) {
            write!(f, "{separator}{set}")?;
            separator = "; ";
        }
        if separator.is_empty() { f.write_str("only comments or layout") } else { Ok(()) }
    }
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    /// Compares items by name and content.
    fn compare<T: PartialEq>(old: BTreeMap<String, T>, new: BTreeMap<String, T>) -> Changes {
        let mut changes = Changes::default();
        for (name, content) in &new {
            match old.get(name) {
                None => changes.added.push(name.clone()),
                Some(before) if before != content => changes.changed.push(name.clone()),
                Some(_) => {}
            }
        }
        changes.removed = old.into_keys().filter(|name| !new.contains_key(name)).collect();
        changes
    }
}

fn listener_contents(config: &Config) -> BTreeMap<String, &ListenerSettings> {
    config.listeners.iter().map(|listener| (listener.address.to_string(), &**listener)).collect()
}

fn route_contents(config: &Config) -> BTreeMap<String, impl PartialEq> {
    config.routes.iter().map(|route| (route.name.clone(), route_content(route, config))).collect()
}

/// Returns everything that a route contains, with names instead of items that have their own entry in the diff.
fn route_content<'c>(route: &'c Route, config: &'c Config) -> impl PartialEq + use<'c> {
    let name_of = |index: usize| config.upstreams.get(index).map(|upstream| &upstream.name);
    let action = match &route.action {
        Action::Upstream(index) => Err(name_of(*index)),
        other => Ok(other),
    };
    let split = route.split.as_ref().map(|split| {
        let branches = split.branches.iter().map(|branch| (name_of(branch.upstream), branch.weight));
        (branches.collect::<Vec<_>>(), &split.key)
    });
    let mirror = route.mirror.as_ref().map(|mirror| (name_of(mirror.upstream), mirror.percent, mirror.max_body));
    // Candidates and wider tiers are added by themselves.
    let limits = route.limits.iter().filter(|limit| limit.candidate_of.is_none() && !limit.is_wider_tier());
    let price_of = |limit: &Limit| {
        let own = config.limits.find(&limit.name).is_some_and(|own| own.cost == limit.cost);
        (!own).then(|| limit.cost.clone())
    };
    let limits: Vec<(&str, Option<Cost>)> = limits.map(|limit| (limit.name.as_str(), price_of(limit))).collect();
    ((matcher_content(&route.matcher), action, limits), (split, mirror), route.own_settings())
}

/// Returns the conditions of a route, without the order of alternatives.
fn matcher_content(matcher: &Matcher) -> impl PartialEq + use<'_> {
    let Matcher { hosts, path, methods, headers } = matcher;
    let mut hosts: Vec<String> = hosts.iter().map(|host| format!("{host:?}")).collect();
    let mut methods: Vec<&str> = methods.iter().map(|method| method.as_str()).collect();
    let mut headers: Vec<(&str, String)> =
        headers.iter().map(|(name, pattern)| (name.as_str(), pattern.to_string())).collect();
    hosts.sort_unstable();
    methods.sort_unstable();
    headers.sort_unstable();
    (hosts, path, methods, headers)
}

/// Returns the limits of each section: with tiers, it has several.
fn limit_contents(config: &Config) -> BTreeMap<String, Vec<&Limit>> {
    let mut contents = BTreeMap::<String, Vec<&Limit>>::new();
    for limit in config.limits.iter() {
        contents.entry(limit.tier_of.as_ref().unwrap_or(&limit.name).clone()).or_default().push(limit);
    }
    contents
}

/// Returns limits whose previous state is no longer used.
fn limits_starting_anew(old: &Config, new: &Config) -> Vec<String> {
    let starts_anew = |limit: &&Arc<Limit>| {
        let before = old.limits.find(&limit.name);
        before.is_some_and(|before| options::reason_to_start_anew(before, limit).is_some())
    };
    let sections = new.limits.iter().filter(|limit| !limit.is_wider_tier());
    sections.filter(starts_anew).map(|limit| limit.name.clone()).collect()
}

fn upstream_contents(config: &Config) -> BTreeMap<String, &Upstream> {
    config.upstreams.iter().map(|upstream| (upstream.name.clone(), &**upstream)).collect()
}

/// Returns the options of each `[[rls]]`, by its domain and descriptor.
fn rls_contents(config: &Config) -> BTreeMap<String, BTreeMap<String, String>> {
    let rules = config.written.sections().into_iter().filter(|section| section.kind == root::RLS.name);
    let options = |section: &WrittenSection<'_>| {
        section.options.iter().map(|option| (option.path(), option.canonical_text())).collect()
    };
    rules.map(|section| (section.name.clone(), options(&section))).collect()
}

fn setting_contents(old: &Config, new: &Config) -> Changes {
    let tables = [
        (root::ACME.name, old.acme.as_ref().map(|acme| &acme.settings) == new.acme.as_ref().map(|acme| &acme.settings)),
        (root::ADMIN.name, old.admin == new.admin),
        (root::HEADERS.name, old.ratelimit_headers == new.ratelimit_headers),
        (root::JWT.name, old.jwt == new.jwt),
        (root::SERVER.name, old.server == new.server),
        (root::STORE.name, old.store == new.store),
    ];
    let names = tables.into_iter().filter(|(_, same)| !same).map(|(name, _)| name.to_owned());
    Changes { changed: names.collect(), ..Changes::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(items: &[(&str, &str)]) -> BTreeMap<String, String> {
        items.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
    }

    #[test]
    fn names_what_came_went_and_changed() {
        let changes = Changes::compare(
            items(&[("a", "1"), ("b", "1"), ("c", "1")]),
            items(&[("b", "2"), ("c", "1"), ("d", "1")]),
        );
        let diff = Diff { limits: Changes { anew: Some(Vec::new()), ..changes }, ..Diff::default() };
        assert_eq!(diff.to_string(), "limit added: d; limit removed: a; limit changed: b");
        assert_eq!(
            diff.to_json()["limits"],
            json!({ "added": ["d"], "removed": ["a"], "changed": ["b"], "starting_anew": [] })
        );
    }

    #[test]
    fn a_limit_that_decided_is_not_changed_by_that() {
        let text = "[[route]]\nupstream = \"echo:\"\nlimits = [\"daily\"]\n\
                    [limit.daily]\nalgorithm = \"calendar\"\nrate = \"10/day\"\n";
        let config = |text: &str| crate::config::load_text("test", text).unwrap();
        let (old, new) = (config(text), config(text));
        old.limits[0].rule.decide(None, 1_795_000_000_000, 1, 0);
        assert_eq!(Diff::compare(&old, &new).to_string(), "only comments or layout");
        let new = config(&text.replace("10/day", "11/day"));
        assert_eq!(Diff::compare(&old, &new).to_string(), "limit changed: daily");
    }

    #[test]
    fn a_regular_expression_is_used_as_written() {
        let config = |pattern: &str| {
            let limit = format!("[limit.x]\nrate = \"1/s\"\nwhen = {{ path = \"{pattern}\" }}\n");
            crate::config::load_text("test", &format!("[[route]]\nupstream = \"echo:\"\n{limit}")).unwrap()
        };
        let between = |old, new| Diff::compare(&config(old), &config(new)).to_string();
        assert_eq!(between("~ a|b", "~ a|b"), "only comments or layout");
        for new in ["~i a|b", "~ a|c", "!~ a|b"] {
            assert_eq!(between("~ a|b", new), "limit changed: x", "{new}");
        }
    }

    #[test]
    fn a_long_line_is_cut_and_marked() {
        let names: Vec<(String, String)> = (10..25).map(|i| (format!("r{i}"), String::new())).collect();
        let diff = Diff { routes: Changes::compare(BTreeMap::new(), names.into_iter().collect()), ..Diff::default() };
        assert!(diff.to_string().ends_with("r19 and 5 more"), "{diff}");
    }
}
