//! Which changes weaken protection: more requests pass, more clients are trusted, or more is shown.
//!
//! Two sources: the compiled routes and limits, which know what they inherit, and rules for single options.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use crate::config::schema::DefaultValue;
use crate::config::schema::lookup::list_entries;
use crate::config::{Config, WrittenOption};
use crate::limiting::algorithm::Rule;
use crate::limiting::key::Missing;
use crate::limiting::limit::{Limit, Mode, OnError};
use crate::route::{Action, Route, Strictness};

/// When a change of an option weakens protection.
enum WeakerIf {
    /// A larger number does. The text is the value if the option is absent: a number, or `inf` for no bound.
    More(&'static str),
    /// A smaller number does.
    Less(&'static str),
    /// A later word of the list does. If the option is absent, it has the default of the schema.
    Later(&'static [&'static str]),
    /// More items do.
    Grows,
    /// Removing the option does.
    Removed,
    /// Adding the option does.
    Added,
}

/// Options with their rules: section, option, or the start of it if it ends with a dot.
const RULES: &[(&str, &str, WeakerIf)] = &[
    ("decide", "once", WeakerIf::Added),
    ("limit", "rate", WeakerIf::More("0")),
    ("limit", "in_flight", WeakerIf::More("0")),
    ("limit", "debt", WeakerIf::More("0")),
    ("limit", "cost", WeakerIf::Less("1")),
    ("limit", "cost.reserve.base", WeakerIf::Less("0")),
    ("limit", "cost.reserve.bytes_per_token", WeakerIf::More("4")),
    ("limit", "cost.reserve.add", WeakerIf::Removed),
    ("limit", "cost.reserve.default_add", WeakerIf::Less("1000")),
    ("limit", "cost.reserve.at_most", WeakerIf::Less("100000")),
    ("limit", "weights.", WeakerIf::Less("1")),
    ("limit", "charge_on", WeakerIf::Added),
    ("limit", "refund_on", WeakerIf::Grows),
    ("limit", "after", WeakerIf::Added),
    ("limit", "when.", WeakerIf::Added),
    ("limit", "repeated", WeakerIf::Later(&["\"refuse\"", "\"first\"", "\"last\""])),
    ("limit", "not_integer", WeakerIf::Later(&["\"refuse\"", "\"ignore\""])),
    ("route", "auth.on_error", WeakerIf::Later(&["\"closed\"", "\"open\""])),
    ("route", "encoded_slashes", WeakerIf::Later(&["\"refuse\"", "\"keep\""])),
    ("route", "breaker.slow", WeakerIf::More("inf")),
    ("route", "breaker.slow_ratio", WeakerIf::More("0.5")),
    ("route", "breaker.error_ratio", WeakerIf::More("inf")),
    ("route", "breaker.errors", WeakerIf::More("inf")),
    ("upstream", "breaker.slow", WeakerIf::More("inf")),
    ("upstream", "breaker.slow_ratio", WeakerIf::More("0.5")),
    ("upstream", "breaker.error_ratio", WeakerIf::More("inf")),
    ("upstream", "breaker.errors", WeakerIf::More("inf")),
    ("upstream", "adaptive", WeakerIf::Removed),
    ("upstream", "adaptive.max", WeakerIf::More("1000")),
    ("upstream", "tls.verify", WeakerIf::Later(&["true", "false"])),
    ("upstream", "tls.ca", WeakerIf::Removed),
    ("admin", "token", WeakerIf::Removed),
    ("admin", "tokens", WeakerIf::Grows),
    ("admin", "edit", WeakerIf::Later(&["false", "true"])),
    ("admin", "audit", WeakerIf::Removed),
    ("admin", "metrics_need_token", WeakerIf::Later(&["true", "false"])),
    ("jwt", "issuer", WeakerIf::Removed),
    ("jwt", "audience", WeakerIf::Removed),
    ("jwt", "algorithms", WeakerIf::Grows),
    ("listener", "tls.client_ca", WeakerIf::Removed),
    ("listener", "tls.client_auth", WeakerIf::Later(&["\"required\"", "\"optional\""])),
    ("listener", "tls.min_version", WeakerIf::Later(&["\"1.3\"", "\"1.2\""])),
    ("listener", "tls.internal.allow_remote", WeakerIf::Later(&["false", "true"])),
    ("listener", "tls.certificates", WeakerIf::Removed),
    ("listener", "hsts.max_age", WeakerIf::Removed),
    ("server", "trusted_proxies", WeakerIf::Grows),
    ("server", "max_connections_per_ip", WeakerIf::More("inf")),
    ("server", "max_headers", WeakerIf::More("100")),
    ("server", "max_header_bytes", WeakerIf::More("32768")),
    ("server", "overload.qps", WeakerIf::More("inf")),
    ("server", "overload.in_flight", WeakerIf::More("inf")),
    ("server", "overload.latency", WeakerIf::More("inf")),
    ("server", "overload.load", WeakerIf::More("inf")),
    ("server", "overload.cpu", WeakerIf::More("inf")),
    ("server", "hints", WeakerIf::Later(&["false", "\"local\"", "true"])),
];

/// Returns whether the change of one option weakens protection, by the option alone.
pub fn weakens(kind: &str, path: &str, before: Option<&WrittenOption>, after: Option<&WrittenOption>) -> bool {
    let is_meant = |rule: &&(&str, &str, WeakerIf)| {
        rule.0 == kind && (rule.1 == path || rule.1.ends_with('.') && path.starts_with(rule.1))
    };
    let Some((.., rule)) = RULES.iter().find(is_meant) else { return false };
    let canonical = |option: Option<&WrittenOption>| option.map(WrittenOption::canonical_text);
    let items = |option: Option<&WrittenOption>| -> HashSet<String> {
        let items = option.into_iter().flat_map(|option| option.list_items(kind));
        items.map(|item| item.canonical).collect()
    };
    match rule {
        WeakerIf::More(absent) => number(canonical(after), absent) > number(canonical(before), absent),
        WeakerIf::Less(absent) => number(canonical(after), absent) < number(canonical(before), absent),
        WeakerIf::Later(words) => {
            let absent = default_text(kind, path);
            let place = |value: Option<String>| match value.as_deref().or(absent) {
                Some(value) => words.iter().position(|word| *word == value),
                None => Some(0),
            };
            place(canonical(after)) > place(canonical(before))
        }
        WeakerIf::Grows => !items(after).is_subset(&items(before)),
        WeakerIf::Removed => before.is_some() && after.is_none(),
        WeakerIf::Added => before.is_none() && after.is_some(),
    }
}

/// Returns the default of an option as the schema has it.
fn default_text(kind: &str, path: &str) -> Option<&'static str> {
    let entries = list_entries();
    let entry = entries.iter().find(|entry| entry.section.name == kind && entry.key == path)?;
    match entry.option.default {
        DefaultValue::Value(text) => Some(text),
        _ => None,
    }
}

/// Returns the number in a canonical text; a rate counts per millisecond. 0 of an option that is unbounded without a
/// value means the same as no value.
fn number(text: Option<String>, absent: &str) -> f64 {
    const UNITS: [(&str, f64); 5] =
        [("hour", 3.6e6), ("day", 8.64e7), ("week", 6.048e8), ("month", 2.592e9), ("year", 3.1536e10)];
    let text = text.unwrap_or_else(|| absent.to_owned());
    let text = text.trim_matches('"');
    let (count, period) = text.split_once('/').unwrap_or((text, "1"));
    let count = match count {
        "unlimited" | "inf" => f64::INFINITY,
        _ => count.trim_end_matches("ms").parse().unwrap_or(0.0),
    };
    let period = match UNITS.iter().find(|(unit, _)| *unit == period) {
        Some((_, ms)) => *ms,
        None => period.trim_end_matches("ms").parse().unwrap_or(1.0),
    };
    if absent == "inf" && count == 0.0 { f64::INFINITY } else { count / period }
}

/// Options of routes and limits whose change weakens protection, as the compiled configs show: what a route inherits
/// counts too.
#[derive(Default)]
pub struct WeakerOptions {
    /// Options that weaken one item, by its kind and name.
    items: HashMap<(&'static str, String), Vec<&'static str>>,
    /// Options that weaken any item.
    all: HashSet<&'static str>,
    /// Names of removed routes that protected requests, which may now reach another route.
    removed_routes: HashSet<String>,
}

impl WeakerOptions {
    /// `replaced` contains the limits that others replace without being weaker.
    pub fn find(old: &Config, new: &Config, replaced: &ReplacedLimits) -> WeakerOptions {
        let (mut found, mut lists) = (WeakerOptions::default(), ComparedLists::default());
        let routes: HashMap<&str, &Route> = old.routes.iter().map(|route| (route.name.as_str(), route)).collect();
        let mut kept = HashSet::new();
        let mut by_path: HashMap<String, Vec<&Route>> = HashMap::new();
        for route in &new.routes {
            if let Some(before) = routes.get(route.name.as_str()) {
                found.add("route", &route.name, weaker_route_options(before, route, replaced, &mut lists));
                kept.insert(route.name.as_str());
            } else {
                by_path.entry(route.matcher.path.to_string()).or_default().push(route);
            }
        }
        for before in old.routes.iter().filter(|route| is_protective(route) && !kept.contains(route.name.as_str())) {
            let same_path = by_path.get(&before.matcher.path.to_string()).map_or(&[][..], Vec::as_slice);
            if !same_path.iter().any(|route| weaker_route_options(before, route, replaced, &mut lists).is_empty()) {
                found.removed_routes.insert(before.name.clone());
            }
        }
        // The options of a wider tier are those of the limit that it belongs to.
        for limit in new.limits.iter().filter(|limit| !limit.is_wider_tier()) {
            if let Some(before) = old.limits.find(&limit.name) {
                let mut options = weaker_limit_options(before, limit);
                // The limit that it is a candidate of is in force in its place.
                let incumbent = limit.candidate_of.as_deref();
                if incumbent.is_some_and(|incumbent| replaced.has(&limit.name, incumbent)) {
                    options.retain(|option| !["candidate_of", "mode"].contains(option));
                }
                options.extend(has_weaker_tiers(old, new, &limit.name).then_some("key"));
                found.add("limit", &limit.name, options);
            }
        }
        found
    }

    fn add(&mut self, kind: &'static str, name: &str, options: Vec<&'static str>) {
        if !options.is_empty() {
            self.all.extend(&options);
            self.items.insert((kind, name.to_owned()), options);
        }
    }

    /// Returns whether an option of the item is weaker.
    pub fn has(&self, kind: &'static str, name: &str, path: &str) -> bool {
        let first = path.split('.').next().unwrap_or(path);
        self.of(kind, name).iter().any(|option| *option == path || *option == first)
    }

    /// Returns the weaker options of an item.
    pub fn of(&self, kind: &'static str, name: &str) -> &[&'static str] {
        self.items.get(&(kind, name.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the removal of a route weakens protection.
    pub fn has_removed_route(&self, name: &str) -> bool {
        self.removed_routes.contains(name)
    }

    /// Returns whether an option that routes or limits inherit made any of them weaker.
    pub fn has_any(&self, path: &str) -> bool {
        self.all.contains(path)
    }
}

/// Results of comparing address lists, by their places in memory: thousands of routes may share a list.
#[derive(Default)]
struct ComparedLists(HashMap<(usize, usize), bool>);

impl ComparedLists {
    /// Returns whether `large` has an item that `small` lacks.
    fn has_grown<T, I: Eq + Hash>(&mut self, small: &Arc<T>, large: &Arc<T>, items: impl Fn(&T) -> HashSet<I>) -> bool {
        let places = (Arc::as_ptr(small).addr(), Arc::as_ptr(large).addr());
        *self.0.entry(places).or_insert_with(|| !items(large).is_subset(&items(small)))
    }
}

/// Limits that a candidate replaces, or that become candidates of the limit that replaces them, where that limit is not
/// weaker.
#[derive(Default)]
pub struct ReplacedLimits(HashSet<(String, String)>);

impl ReplacedLimits {
    /// Compares the limits of such pairs, by what they are in the old and in the new config. `has_weaker_option`
    /// compares the options that both have.
    pub fn find(old: &Config, new: &Config, has_weaker_option: impl Fn(&Limit, &Limit) -> bool) -> ReplacedLimits {
        let turned = |config: &'_ Config| -> Vec<(String, String)> {
            let candidates = config.limits.iter().filter(|limit| !limit.is_wider_tier());
            candidates.filter_map(|limit| Some((limit.candidate_of.clone()?, limit.name.clone()))).collect()
        };
        let of_new = turned(new).into_iter().map(|(incumbent, candidate)| (candidate, incumbent));
        let is_as_strict = |(before, after): &(String, String)| {
            let (Some(before), Some(after)) = (old.limits.find(before), new.limits.find(after)) else { return false };
            // With both in force, the loss of one is no replacement.
            let is_enforced = |route: &Route, name: &str| {
                route.limits.iter().any(|limit| limit.name == name && limit.mode == Mode::Enforce)
            };
            let are_both_enforced = |route: &Route| is_enforced(route, &before.name) && is_enforced(route, &after.name);
            before.mode == Mode::Enforce
                && !old.all_routes().any(are_both_enforced)
                && is_comparable(before, after)
                && weaker_limit_options(before, after).is_empty()
                && !allows_more(&after.rule, &before.rule)
                && !has_weaker_option(before, after)
        };
        ReplacedLimits(turned(old).into_iter().chain(of_new).filter(is_as_strict).collect())
    }

    /// Returns whether `after` replaces `before` without being weaker.
    pub fn has(&self, before: &str, after: &str) -> bool {
        self.0.contains(&(before.to_owned(), after.to_owned()))
    }

    /// Returns whether a limit in force that is not weaker replaces `before`.
    pub fn has_any(&self, before: &str) -> bool {
        self.0.iter().any(|(replaced, _)| replaced == before)
    }
}

/// Returns whether the numbers of two limits say which is weaker: they count the same requests in the same way.
fn is_comparable(before: &Limit, after: &Limit) -> bool {
    let is_of_slots = |limit: &Limit| limit.rule.lease_ms().is_some();
    before.key == after.key
        && before.tier_of.is_none()
        && after.tier_of.is_none()
        && (after.when == before.when || after.when.0.is_empty())
        && after.cost == before.cost
        && is_of_slots(before) == is_of_slots(after)
}

/// Returns whether a route limits or refuses requests that another route might forward.
fn is_protective(route: &Route) -> bool {
    let refuses = matches!(&route.action, Action::Respond(response) if !response.status.is_success());
    refuses
        || !route.limits.is_empty()
        || !route.deny.is_empty()
        || route.auth.is_some()
        || route.max_in_flight.is_some()
}

fn weaker_route_options(
    before: &Route,
    after: &Route,
    replaced: &ReplacedLimits,
    lists: &mut ComparedLists,
) -> Vec<&'static str> {
    let rank = |strictness| match strictness {
        Strictness::Strict => 0,
        Strictness::Defensive => 1,
        Strictness::Monitor => 2,
    };
    let has = |route: &Route, name: &str| {
        route.limits.iter().any(|limit| limit.name == name || replaced.has(name, &limit.name))
    };
    let is_named = |limit: &Limit| limit.candidate_of.is_none() && !limit.is_wider_tier();
    let bound = |most: Option<usize>| most.unwrap_or(usize::MAX);
    // A request that the route no longer matches may reach another route.
    let is_narrower = is_protective(before) && !after.matcher.covers_all_of(&before.matcher);
    [
        ("host", is_narrower),
        ("path", is_narrower),
        ("methods", is_narrower),
        ("header", is_narrower),
        ("limits", before.limits.iter().any(|limit| is_named(limit) && !has(after, &limit.name))),
        ("allow", lists.has_grown(&before.allow, &after.allow, |list| list.iter().collect())),
        ("deny", lists.has_grown(&after.deny, &before.deny, |list| list.iter().collect())),
        ("auth", before.auth.is_some() && after.auth.is_none()),
        ("strictness", rank(after.parsing.strictness) > rank(before.parsing.strictness)),
        ("max_body", after.max_body > before.max_body),
        ("max_in_flight", bound(after.max_in_flight) > bound(before.max_in_flight)),
        ("max_cost_body", reads_less(before, after)),
        ("upgrades", after.upgrades.allows_more_than(&before.upgrades)),
        ("min_body_rate", after.timeouts.min_body_rate < before.timeouts.min_body_rate),
    ]
    .into_iter()
    .filter_map(|(option, is_weaker)| is_weaker.then_some(option))
    .collect()
}

/// Returns whether limits read fewer bytes of a body for the cost of a request. With a key in the body, they refuse what
/// they do not read, which is stricter.
fn reads_less(before: &Route, after: &Route) -> bool {
    let refuses_rest = after.limits.iter().any(|limit| limit.key.reads_body());
    matches!((before.key_body, after.key_body), (Some(before), Some(after)) if after < before) && !refuses_rest
}

fn weaker_limit_options(before: &Limit, after: &Limit) -> Vec<&'static str> {
    let rank = |on_error| match on_error {
        OnError::Closed => 0,
        OnError::Local => 1,
        OnError::Open => 2,
    };
    [
        ("candidate_of", before.mode == Mode::Enforce && after.candidate_of.is_some()),
        ("mode", before.mode == Mode::Enforce && after.mode == Mode::Shadow),
        ("over", after.forwards_excess() && !before.forwards_excess()),
        ("on_error", rank(after.on_error) > rank(before.on_error)),
        ("missing", before.missing != Missing::Skip && after.missing == Missing::Skip),
        ("burst", after.rule.capacity() > before.rule.capacity()),
        ("fair.key", before.fair.is_some() && after.fair.is_none()),
        ("fair.reserve", after.rule.reserve() < before.rule.reserve() && after.fair.is_some()),
    ]
    .into_iter()
    .filter_map(|(option, is_weaker)| is_weaker.then_some(option))
    .collect()
}

/// Returns whether a rule has a larger capacity or a faster rate.
fn allows_more(rule: &Rule, than: &Rule) -> bool {
    let (policy, other) = (rule.policy(), than.policy());
    // Windows are rounded to milliseconds.
    let product = |quota: i64, window_ms: i64| i128::from(quota) * i128::from(window_ms.max(1));
    let is_faster = product(policy.quota, other.window_ms - 1) > product(other.quota, policy.window_ms + 1);
    rule.capacity() > than.capacity() || is_faster
}

/// Returns whether a client gets more from one of the networks that a limit with tiers counted: it is no longer
/// counted, or has larger numbers. A wider network with the same numbers is stricter.
fn has_weaker_tiers(old: &Config, new: &Config, name: &str) -> bool {
    let tiers_of = |config: &Config| -> Vec<(u8, Arc<Rule>)> {
        let tiers = config.limits.iter().filter(|limit| limit.tier_of.as_deref() == Some(name));
        tiers.filter_map(|limit| Some((limit.ipv6_prefix()?, limit.rule.clone()))).collect()
    };
    let after = tiers_of(new);
    tiers_of(old).iter().any(|(prefix, rule)| {
        after.iter().all(|(other_prefix, other)| other_prefix > prefix || allows_more(other, rule))
    })
}
