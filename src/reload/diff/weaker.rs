//! Which changes weaken protection: more requests pass, more clients are trusted, or more is shown.
//!
//! Two sources: the compiled routes and limits, which know what they inherit, and rules for single options.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use crate::config::schema::lookup::locate_value;
use crate::config::schema::row::Weaker;
use crate::config::schema::{limit, route};
use crate::config::{Config, WrittenOption, default_text, unset_items};
use crate::limiting::algorithm::Rule;
use crate::limiting::key::Missing;
use crate::limiting::limit::key_rate::KeyRates;
use crate::limiting::limit::{Limit, Mode, OnError};
use crate::limiting::overrides::table::OverrideBudget;
use crate::route::{Action, Route, Strictness};

/// Returns whether the change of one option weakens protection, by its row alone.
pub fn weakens(kind: &str, keys: &[&str], before: Option<&WrittenOption>, after: Option<&WrittenOption>) -> bool {
    let Some(option) = locate_value(kind, keys).map(|place| place.option) else { return false };
    let default = default_text(option);
    let unset = if option.unset.is_empty() { default.as_deref().unwrap_or(UNBOUNDED) } else { option.unset };
    let text = |option: Option<&WrittenOption>| option.map_or_else(|| unset.to_owned(), WrittenOption::canonical_text);
    let words = option.value_type().words();
    let amount = |value: Option<&WrittenOption>| amount(&text(value), &words, unset);
    let items = |written: Option<&WrittenOption>| -> HashSet<String> {
        let items = written.map_or_else(|| unset_items(option).unwrap_or_default(), |written| written.list_items(kind));
        items.into_iter().map(|item| item.canonical).collect()
    };
    match option.weaker {
        Weaker::Never | Weaker::Compiled => false,
        Weaker::More => amount(after) > amount(before),
        Weaker::Less => amount(after) < amount(before),
        Weaker::Later(values) => {
            let place = |option| values.iter().position(|value| *value == text(option));
            place(after) > place(before)
        }
        Weaker::NewItem => !items(after).is_subset(&items(before)),
        Weaker::Removed => before.is_some() && after.is_none(),
        Weaker::Added => before.is_none() && after.is_some(),
    }
}

/// The amount of a missing bound.
const UNBOUNDED: &str = "inf";

/// Returns the amount in a canonical text: a number, the place of a word, or 0 and 1 for `false` and `true`. A rate
/// counts per millisecond. 0 of an option that is unbounded without a value means the same as no value.
fn amount(text: &str, words: &[&str], unset: &str) -> f64 {
    const UNITS: [(&str, f64); 5] =
        [("hour", 3.6e6), ("day", 8.64e7), ("week", 6.048e8), ("month", 2.592e9), ("year", 3.1536e10)];
    let text = text.trim_matches('"');
    if let Some(place) = words.iter().position(|word| *word == text) {
        return f64::from(u32::try_from(place).unwrap_or(u32::MAX));
    }
    let (count, period) = text.split_once('/').unwrap_or((text, "1"));
    let count = match count {
        "unlimited" | UNBOUNDED => f64::INFINITY,
        "true" => 1.0,
        _ => count.trim_end_matches("ms").parse().unwrap_or(0.0),
    };
    let period = match UNITS.iter().find(|(unit, _)| *unit == period) {
        Some((_, ms)) => *ms,
        None => period.trim_end_matches("ms").parse().unwrap_or(1.0),
    };
    if unset == UNBOUNDED && count == 0.0 { f64::INFINITY } else { count / period }
}

/// Keys of an option, from its section on.
pub type Keys = &'static [&'static str];

/// Options of routes and limits whose change weakens protection, as the compiled configs show: what a route inherits
/// counts too.
#[derive(Default)]
pub struct WeakerOptions {
    /// Options that weaken one item, by its kind and name.
    items: HashMap<(&'static str, String), Vec<Keys>>,
    /// Options that weaken any item.
    all: HashSet<Keys>,
    /// Names of removed routes that protected requests, which may now reach another route.
    removed_routes: HashSet<String>,
}

impl WeakerOptions {
    /// `replaced` contains the limits that others replace without being weaker.
    pub fn find(old: &Config, new: &Config, replaced: &ReplacedLimits) -> WeakerOptions {
        let (mut found, mut lists) = (WeakerOptions::default(), ComparedLists::default());
        let routes: HashMap<&str, &Route> = old.routes.iter().map(|route| (route.name.as_str(), route)).collect();
        let mut names = HashSet::new();
        let mut by_path: HashMap<String, Vec<&Route>> = HashMap::new();
        for route in &new.routes {
            if let Some(before) = routes.get(route.name.as_str()) {
                found.add(route::TABLE.name, &route.name, weaker_route_options(before, route, replaced, &mut lists));
                names.insert(route.name.as_str());
            } else {
                by_path.entry(route.matcher.path.to_string()).or_default().push(route);
            }
        }
        for before in old.routes.iter().filter(|route| is_protective(route) && !names.contains(route.name.as_str())) {
            let same_path = by_path.get(&before.matcher.path.to_string()).map_or(&[][..], Vec::as_slice);
            if !same_path.iter().any(|route| weaker_route_options(before, route, replaced, &mut lists).is_empty()) {
                found.removed_routes.insert(before.name.clone());
            }
        }
        // The options of a wider tier are those of the limit that it belongs to.
        for limit in new.limits.iter().filter(|limit| !limit.is_wider_tier()) {
            if let Some(before) = old.limits.find(&limit.name) {
                let mut options = weaker_limit_options(before, limit);
                // The limit that it is a candidate of is active in its place.
                let incumbent = limit.candidate_of.as_deref();
                if incumbent.is_some_and(|incumbent| replaced.has(&limit.name, incumbent)) {
                    options
                        .retain(|keys| ![[limit::CANDIDATE_OF.name], [limit::MODE.name]].iter().any(|own| own == keys));
                }
                let key: Keys = &[limit::KEY.option.name];
                options.extend(has_weaker_tiers(old, new, &limit.name).then_some(key));
                found.add(limit::TABLE.name, &limit.name, options);
            }
        }
        found
    }

    fn add(&mut self, kind: &'static str, name: &str, options: Vec<Keys>) {
        if !options.is_empty() {
            self.all.extend(&options);
            self.items.insert((kind, name.to_owned()), options);
        }
    }

    /// Returns whether an option of the item is weaker.
    pub fn has(&self, kind: &'static str, name: &str, keys: &[&str]) -> bool {
        self.of(kind, name).iter().any(|option| keys.starts_with(option))
    }

    /// Returns the weaker options of an item.
    pub fn of(&self, kind: &'static str, name: &str) -> &[Keys] {
        self.items.get(&(kind, name.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the removal of a route weakens protection.
    pub fn has_removed_route(&self, name: &str) -> bool {
        self.removed_routes.contains(name)
    }

    /// Returns whether an option that routes or limits inherit made any of them weaker.
    pub fn has_any(&self, keys: &[&str]) -> bool {
        self.all.contains(keys)
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
        let candidate_pairs = |config: &'_ Config| -> Vec<(String, String)> {
            let candidates = config.limits.iter().filter(|limit| !limit.is_wider_tier());
            candidates.filter_map(|limit| Some((limit.candidate_of.clone()?, limit.name.clone()))).collect()
        };
        let of_new = candidate_pairs(new).into_iter().map(|(incumbent, candidate)| (candidate, incumbent));
        let is_as_strict = |(before, after): &(String, String)| {
            let (Some(before), Some(after)) = (old.limits.find(before), new.limits.find(after)) else { return false };
            // With both in effect, the loss of one is not a replacement.
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
        ReplacedLimits(candidate_pairs(old).into_iter().chain(of_new).filter(is_as_strict).collect())
    }

    /// Returns whether `after` replaces `before` without being weaker.
    pub fn has(&self, before: &str, after: &str) -> bool {
        self.0.contains(&(before.to_owned(), after.to_owned()))
    }

    /// Returns whether a limit in effect that is not weaker replaces `before`.
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
) -> Vec<Keys> {
    let rank = |strictness| match strictness {
        Strictness::Strict => 0,
        Strictness::Defensive => 1,
        Strictness::Monitor => 2,
    };
    let has = |route: &Route, name: &str| {
        route.limits.iter().any(|limit| limit.name == name || replaced.has(name, &limit.name))
    };
    let is_named = |limit: &Limit| limit.candidate_of.is_none() && !limit.is_wider_tier();
    let lacks_limit = before.limits.iter().any(|limit| is_named(limit) && !has(after, &limit.name));
    let bound = |most: Option<usize>| most.unwrap_or(usize::MAX);
    // A request that the route no longer matches may reach another route.
    let is_narrower = is_protective(before) && !after.matcher.covers_all_of(&before.matcher);
    let options: [(Keys, bool); 14] = [
        (&[route::HOST.option.name], is_narrower),
        (&[route::PATH.option.name], is_narrower),
        (&[route::METHODS.option.name], is_narrower),
        (&[route::HEADER.option.name], is_narrower),
        (&[route::LIMITS.option.name], lacks_limit || has_cheaper_limit(before, after)),
        (&[route::ALLOW.option.name], lists.has_grown(&before.allow, &after.allow, |list| list.iter().collect())),
        (&[route::DENY.option.name], lists.has_grown(&after.deny, &before.deny, |list| list.iter().collect())),
        (&[route::AUTH.option.name], before.auth.is_some() && after.auth.is_none()),
        (&[route::STRICTNESS.option.name], rank(after.parsing.strictness) > rank(before.parsing.strictness)),
        (&[route::MAX_BODY.option.name], after.max_body > before.max_body),
        (&[route::MAX_IN_FLIGHT.option.name], bound(after.max_in_flight) > bound(before.max_in_flight)),
        (&[route::MAX_COST_BODY.option.name], reads_less(before, after)),
        (&[route::UPGRADES.option.name], after.upgrades.allows_more_than(&before.upgrades)),
        (&[route::MIN_BODY_RATE.option.name], after.timeouts.min_body_rate < before.timeouts.min_body_rate),
    ];
    options.into_iter().filter_map(|(keys, is_weaker)| is_weaker.then_some(keys)).collect()
}

/// Returns whether requests of a route cost less of a limit than before.
fn has_cheaper_limit(before: &Route, after: &Route) -> bool {
    let find = |name: &str| after.limits.iter().find(|limit| limit.name == name);
    before.limits.iter().any(|old| find(&old.name).is_some_and(|new| new.cost.max_cost() < old.cost.max_cost()))
}

/// Returns whether limits read fewer bytes of a body for the cost of a request. With a key in the body, they refuse
/// what they do not read, which is stricter.
fn reads_less(before: &Route, after: &Route) -> bool {
    let refuses_rest = after.limits.iter().any(|limit| limit.has_key_in_body() || limit.reads_calls());
    matches!((before.key_body, after.key_body), (Some(before), Some(after)) if after < before) && !refuses_rest
}

fn weaker_limit_options(before: &Limit, after: &Limit) -> Vec<Keys> {
    let rank = |on_error| match on_error {
        OnError::Closed => 0,
        OnError::Local => 1,
        OnError::Open => 2,
    };
    let prices = before.cost.graphql_prices().zip(after.cost.graphql_prices());
    let options: [(Keys, bool); 14] = [
        (&[limit::OVERRIDES.option.name], has_weaker_override(before, after)),
        (&[limit::RATE_WITHIN.option.name], states_more(before, after)),
        (&[limit::RATES.option.name], states_more(before, after)),
        (
            &[limit::COST.option.name, limit::cost::GRAPHQL.option.name, limit::graphql::LISTS.option.name],
            prices.is_some_and(|(before, after)| before.lists.iter().any(|name| !after.lists.contains(name))),
        ),
        (
            &[limit::COST.option.name, limit::cost::GRAPHQL.option.name, limit::graphql::STORED.option.name],
            // Without the option, such requests are refused.
            prices.is_some_and(|(before, after)| {
                after.stored.is_some_and(|stored| before.stored.is_none_or(|more| stored < more))
            }),
        ),
        (&[limit::COSTS.option.name], after.cost.has_cheaper_call(&before.cost)),
        (&[limit::CANDIDATE_OF.option.name], before.mode == Mode::Enforce && after.candidate_of.is_some()),
        (&[limit::MODE.option.name], before.mode == Mode::Enforce && after.mode == Mode::Shadow),
        (&[limit::OVER.option.name], after.forwards_excess() && !before.forwards_excess()),
        (&[limit::ON_ERROR.option.name], rank(after.on_error) > rank(before.on_error)),
        (&[limit::MISSING.option.name], before.missing != Missing::Skip && after.missing == Missing::Skip),
        (&[limit::BURST.option.name], after.rule.capacity() > before.rule.capacity()),
        (&[limit::FAIR.option.name, limit::fair::KEY.option.name], before.fair.is_some() && after.fair.is_none()),
        (
            &[limit::FAIR.option.name, limit::fair::RESERVE.option.name],
            after.rule.reserve() < before.rule.reserve() && after.fair.is_some(),
        ),
    ];
    options.into_iter().filter_map(|(keys, is_weaker)| is_weaker.then_some(keys)).collect()
}

/// Returns whether a key for which the config has an override, now or before, has a larger budget than before. A key
/// without one has the numbers of the limit.
fn has_weaker_override(before: &Limit, after: &Limit) -> bool {
    let written = |limit: &Limit| -> HashMap<String, OverrideBudget> {
        let entries = limit.overrides.fixed().entries();
        entries.map(|(field, entry)| (field.to_owned(), entry.budget.clone())).collect()
    };
    let (old, new) = (written(before), written(after));
    let [old_rule, new_rule] = [before, after].map(|limit| OverrideBudget::Rule(limit.rule.clone()));
    old.keys().chain(new.keys()).any(|field| {
        let budgets = (new.get(field), old.get(field));
        budgets.0 != budgets.1 && gives_more(budgets.0.unwrap_or(&new_rule), budgets.1.unwrap_or(&old_rule))
    })
}

/// Returns whether requests may state a higher rate than before, or have a higher one if they state none.
fn states_more(before: &Limit, after: &Limit) -> bool {
    let (Some(old), Some(new)) = (&before.key_rate, &after.key_rate) else { return false };
    match (&old.rates, &new.rates) {
        (KeyRates::Numbers(old), KeyRates::Numbers(new)) => {
            gives_more(&new.lowest, &old.lowest) || allows_more(&after.rule, &before.rule)
        }
        (KeyRates::Plans { plans, default }, KeyRates::Plans { plans: new, default: new_default }) => {
            // A plan that is no longer listed falls to the default, and one that is new comes from there.
            let has_more =
                |plan: &String| gives_more(new.get(plan).unwrap_or(new_default), plans.get(plan).unwrap_or(default));
            gives_more(new_default, default) || plans.keys().chain(new.keys()).any(has_more)
        }
        _ => false,
    }
}

fn gives_more(budget: &OverrideBudget, than: &OverrideBudget) -> bool {
    match (budget, than) {
        (OverrideBudget::Blocked, _) | (_, OverrideBudget::Unlimited) => false,
        (OverrideBudget::Rule(rule), OverrideBudget::Rule(than)) => allows_more(rule, than),
        _ => true,
    }
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
