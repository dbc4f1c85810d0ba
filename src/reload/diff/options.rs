//! Lists the options that differ in sections that differ, one line each.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::config::schema::limit::overrides;
use crate::config::schema::lookup::locate_value;
use crate::config::schema::row::{ConfigOption, LiveChange};
use crate::config::schema::{acme, admin, decide, headers, jwt, limit, listener, rls, route, server, set, store};
use crate::config::{Config, ListItem, ListedLimit, WrittenOption, WrittenSection, unset_items};
use crate::limiting::limit::cost::Cost;
use crate::limiting::limit::{Limit, Mode};
use crate::reload::diff::Changes;
use crate::reload::diff::line::ChangeLine;
use crate::reload::diff::sets::{list_changed_sets, uses_set};
use crate::reload::diff::weaker::{ReplacedLimits, WeakerOptions, weakens};
use crate::route::Route;
use crate::route::matcher::PathPattern;

/// The sections that differ.
pub struct ChangedSections<'d> {
    /// Kinds of sections with names, in the order of their lines.
    pub kinds: [(&'static str, &'d Changes); 5],
    /// Sections that exist once.
    pub settings: &'d [String],
}

/// Kinds whose options other sections inherit or use: each with the kinds that do.
const INHERITED: [(&str, &[&str]); 6] = [
    (server::TABLE.name, &[route::TABLE.name, listener::TABLE.name]),
    (acme::TABLE.name, &[listener::TABLE.name]),
    (store::TABLE.name, &[limit::TABLE.name]),
    (headers::TABLE.name, &[route::TABLE.name]),
    (jwt::TABLE.name, &[route::TABLE.name, limit::TABLE.name]),
    (set::TABLE.name, &[route::TABLE.name, limit::TABLE.name]),
];

/// Kinds for which the compiled config shows whether they differ.
const COMPILED: [&str; 7] = [
    server::TABLE.name,
    acme::TABLE.name,
    admin::TABLE.name,
    store::TABLE.name,
    headers::TABLE.name,
    jwt::TABLE.name,
    set::TABLE.name,
];

/// Maximum number of items of a list in a line.
const ITEMS_SHOWN: usize = 10;

/// Sections of a config by kind and name.
type Sections<'a> = HashMap<String, WrittenSection<'a>>;

struct Comparison<'a> {
    old: &'a Config,
    new: &'a Config,
    old_sections: Sections<'a>,
    new_sections: Sections<'a>,
    replaced: ReplacedLimits,
    weaker: WeakerOptions,
}

/// The lines of a diff, and what its summary needs.
pub struct ListedChanges {
    pub lines: Vec<ChangeLine>,
    /// The changes in the files of sets: `set blocked: added 203.0.113.66`.
    pub sets: Vec<String>,
    /// Kinds and names of sections that differ only by these sets.
    pub by_sets: HashSet<(&'static str, String)>,
}

/// Returns a line for each difference.
pub fn list_changes(old: &Config, new: &Config, changed: &ChangedSections) -> ListedChanges {
    let mut comparison = Comparison {
        old,
        new,
        old_sections: sections_by_name(old),
        new_sections: sections_by_name(new),
        replaced: ReplacedLimits::default(),
        weaker: WeakerOptions::default(),
    };
    comparison.replaced = ReplacedLimits::find(old, new, |before, after| comparison.has_weaker_option(before, after));
    comparison.weaker = WeakerOptions::find(old, new, &comparison.replaced);
    let set_lines: Vec<ChangeLine> = list_changed_sets(old, new)
        .into_iter()
        .filter(|(name, _)| comparison.compare_options(set::TABLE.name, name, false).is_empty())
        .map(|(name, what)| {
            let is_weaker = comparison.is_weaker(set::TABLE.name, &name, &[], None);
            ChangeLine::new(set::TABLE.name, &name, what).with_option(set::FILE.name).with_weaker(is_weaker)
        })
        .collect();
    let mut by_sets = HashSet::new();
    // Sections that differ though none of their options does: they inherit the difference, or it is in a file.
    let (mut own, mut unexplained) = (Vec::new(), Vec::new());
    for (kind, changes) in changed.kinds {
        let mut earlier = HashSet::new();
        // The options of a wider tier are in the section of its limit.
        let sections = changes.changed.iter().map(|name| {
            let tier = (kind == limit::TABLE.name).then(|| new.limits.find(name)).flatten();
            tier.and_then(|limit| limit.tier_of.as_deref()).unwrap_or(name)
        });
        for name in sections.filter(|name| earlier.insert(*name)) {
            let mut lines = comparison.compare_section(kind, name);
            if comparison.differs_by_sets(kind, name, &set_lines) {
                // The line of the set says it for all that use it.
                by_sets.insert((kind, name.to_owned()));
                lines.clear();
            } else if lines.is_empty() {
                unexplained.push((kind, name));
            }
            own.extend(lines);
        }
    }
    let mut lines = comparison.list_restarts();
    let mut settings = comparison.compare_settings(changed, &unexplained);
    let sets = set_lines.iter().map(|line| format!("{} {}: {}", line.kind, line.name, line.what)).collect();
    settings.extend(set_lines);
    let setting_kinds: HashSet<&str> = settings.iter().map(|line| line.kind.as_str()).collect();
    for (kind, name) in unexplained {
        let inherits = INHERITED.iter().any(|(from, users)| users.contains(&kind) && setting_kinds.contains(from));
        own.extend((!inherits).then(|| ChangeLine::new(kind, name, "a file that it names changed")));
    }
    lines.extend(settings);
    lines.extend(comparison.list_order_of_patterns());
    for (kind, changes) in changed.kinds {
        lines.extend(comparison.list_whole_sections(kind, changes));
    }
    lines.extend(own);
    ListedChanges { lines, sets, by_sets }
}

fn sections_by_name(config: &Config) -> Sections<'_> {
    let mut routes = config.routes.iter();
    let mut sections = config.written.sections();
    config.hide_from_readers(&mut sections);
    let sections = sections.into_iter().map(|section| {
        let name = match section.kind {
            // The compiled name of a route without one comes from its host and path.
            kind if kind == route::TABLE.name => routes.next().map_or_else(String::new, |route| route.name.clone()),
            _ => section.name.clone(),
        };
        (section_key(section.kind, &name), section)
    });
    sections.collect()
}

impl<'c> Comparison<'c> {
    /// Returns a line for each option of a section that differs. If only the way of writing does, those that are
    /// written differently count, because something must differ.
    fn compare_section(&self, kind: &'static str, name: &str) -> Vec<ChangeLine> {
        let mut lines = self.compare_options(kind, name, false);
        if lines.is_empty() {
            lines = self.compare_options(kind, name, true);
        }
        let paths: HashSet<String> = lines.iter().filter_map(|line| line.option.clone()).collect();
        let is_named =
            |option: &str| paths.iter().any(|path| path == option || path.starts_with(&format!("{option}.")));
        for (option, effect) in [(route::ALLOW.name, "more"), (route::DENY.name, "fewer")] {
            if self.weaker.has(kind, name, &[option]) && !is_named(option) {
                let what = format!("{option} covers {effect} clients");
                lines.push(ChangeLine::new(kind, name, what).with_option(option).with_weaker(true));
            }
        }
        if kind == limit::TABLE.name
            && let Some(reason) = self.reason_to_start_anew(name)
        {
            lines.push(ChangeLine::new(kind, name, "starts anew").with_note(Some(reason)).with_weaker(true));
        }
        lines
    }

    /// Returns whether a section differs only by sets whose files changed.
    fn differs_by_sets(&self, kind: &'static str, name: &str, changed: &[ChangeLine]) -> bool {
        let Some(section) = self.new_sections.get(&section_key(kind, name)) else { return false };
        self.compare_options(kind, name, true).is_empty()
            && !(kind == limit::TABLE.name && self.reason_to_start_anew(name).is_some())
            && changed.iter().any(|line| uses_set(section, &line.name))
    }

    fn compare_options(&self, kind: &str, name: &str, is_exact: bool) -> Vec<ChangeLine> {
        let text = |option: &WrittenOption| if is_exact { option.exact_text() } else { option.canonical_text() };
        let key = section_key(kind, name);
        let (old, new) = (options_of(&self.old_sections, &key), options_of(&self.new_sections, &key));
        let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        let differs =
            |path: &&&String| old.get(**path).map(|option| text(option)) != new.get(**path).map(|option| text(option));
        let line =
            |path: &String| self.describe_option(kind, name, path, old.get(path).copied(), new.get(path).copied());
        paths.iter().filter(differs).filter_map(|path| line(path)).collect()
    }

    /// Returns the line of an option that differs; `None` if only an order differs that has no meaning.
    fn describe_option(
        &self,
        kind: &str,
        name: &str,
        path: &str,
        before: Option<&WrittenOption>,
        after: Option<&WrittenOption>,
    ) -> Option<ChangeLine> {
        let keys: &[&str] = before.or(after).map_or(&[], |option| &option.keys);
        let option = locate_value(kind, keys).map(|place| place.option);
        if option.is_some_and(|option| option.live_change == LiveChange::NextStart) {
            return None;
        }
        let is_list = |option: Option<&WrittenOption>| option.is_some_and(WrittenOption::is_list);
        let label = after.or(before).map_or_else(|| path.to_owned(), WrittenOption::shown_path);
        let what = match (before, after) {
            (Some(option), _) | (_, Some(option)) if option.is_secret(kind) => {
                let verb = match (before, after) {
                    (None, _) => "added",
                    (_, None) => "removed",
                    _ => "changed",
                };
                format!("{label} {verb}")
            }
            _ if is_list(before) || is_list(after) => describe_list(kind, option, &label, before, after)?,
            _ => {
                let text =
                    |option: Option<&WrittenOption>| option.map_or("default".to_owned(), |it| it.shown_text(kind));
                let (before, after) = (text(before), text(after));
                match before == after {
                    true => format!("{label} changed"),
                    false => format!("{label} {before} \u{2192} {after}"),
                }
            }
        };
        // Overrides can change only numbers, which do not change what keys have used.
        let is_number = kind == limit::TABLE.name && keys != [limit::KEY.name] && overrides::TABLE.find(path).is_some();
        let keeps = is_number && self.reason_to_start_anew(name).is_none();
        let is_weaker = weakens(kind, keys, before, after)
            || match kind {
                _ if kind == decide::TABLE.name || kind == rls::TABLE.name => {
                    keys == [decide::LIMITS.name] && self.has_fewer_limits(before, after)
                }
                _ => self.is_weaker(kind, name, keys, option),
            };
        let line = ChangeLine::new(kind, name, what).with_option(&label).with_weaker(is_weaker);
        Some(line.with_note(keeps.then_some("keys keep what they used")))
    }

    /// Returns whether a list of limits has lost a limit without a replacement, or has a limit at a lower cost.
    fn has_fewer_limits(&self, before: Option<&WrittenOption>, after: Option<&WrittenOption>) -> bool {
        let (before, after) = (listed_limits(self.old, before), listed_limits(self.new, after));
        before.iter().any(|(name, cost)| {
            let counterpart = after.iter().find(|(other, _)| other == name || self.replaced.has(name, other));
            counterpart.is_none_or(|(_, other)| other.zip(*cost).is_some_and(|(other, cost)| other < cost))
        })
    }

    /// Returns whether one of the options of a limit is weaker in the limit that replaces it.
    fn has_weaker_option(&self, before: &Limit, after: &Limit) -> bool {
        let key = |limit: &Limit| section_key(limit::TABLE.name, &limit.name);
        let (old, new) = (options_of(&self.old_sections, &key(before)), options_of(&self.new_sections, &key(after)));
        let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        paths.into_iter().any(|path| {
            let (before, after) = (old.get(path).copied(), new.get(path).copied());
            before.or(after).is_some_and(|option| weakens(limit::TABLE.name, &option.keys, before, after))
        })
    }

    /// Returns whether an option made its route or limit weaker, or those that inherit it.
    fn is_weaker(&self, kind: &str, name: &str, keys: &[&str], option: Option<&ConfigOption>) -> bool {
        let has = |kind, keys: &[&str]| self.weaker.has(kind, name, keys);
        match kind {
            // A faster rate has a larger burst, if that is not set.
            _ if kind == limit::TABLE.name => {
                has(limit::TABLE.name, keys)
                    || keys == [limit::RATE.name] && has(limit::TABLE.name, &[limit::BURST.name])
            }
            _ if kind == route::TABLE.name => has(route::TABLE.name, keys),
            _ if kind == admin::TABLE.name => match keys {
                [keys, source] if *keys == admin::KEYS.name => {
                    self.new.admin.key_display.shows_more_than(&self.old.admin.key_display, source)
                }
                [keys] if *keys == admin::METRICS_NEED_TOKEN.name => {
                    self.old.admin.metrics_need_token && !self.new.admin.metrics_need_token
                }
                _ => false,
            },
            _ if kind == set::TABLE.name => {
                [route::ALLOW.name, route::DENY.name].iter().any(|list| self.weaker.has_any(&[list]))
            }
            _ => option.is_some_and(|option| option.is_inherited) && self.weaker.has_any(keys),
        }
    }

    /// Returns lines for the sections that have no name, and for those that only other sections use.
    fn compare_settings(&self, changed: &ChangedSections, unexplained: &[(&str, &str)]) -> Vec<ChangeLine> {
        let section_kinds: HashSet<&str> = changed.kinds.iter().map(|(kind, _)| *kind).collect();
        let keys: BTreeSet<&String> = self.old_sections.keys().chain(self.new_sections.keys()).collect();
        let mut lines = Vec::new();
        let parts = keys.into_iter().filter_map(|key| key.split_once(' '));
        for (kind, name) in parts.filter(|(kind, _)| !section_kinds.contains(kind)) {
            let users = INHERITED.iter().find(|(inherited, _)| *inherited == kind).map(|(_, users)| *users);
            let is_compiled = COMPILED.contains(&kind);
            let is_changed = changed.settings.iter().any(|changed| changed == kind);
            let is_used = users.is_some_and(|users| match kind {
                _ if kind == set::TABLE.name || kind == jwt::TABLE.name => {
                    changed.kinds.iter().any(|(user, changes)| users.contains(user) && !changes.is_empty())
                }
                _ if kind == server::TABLE.name => {
                    let is_listener = |kind: &str| kind == listener::TABLE.name;
                    unexplained.iter().any(|(user, _)| users.contains(user))
                        || changed.kinds.iter().any(|(kind, changes)| is_listener(kind) && !changes.is_empty())
                }
                _ => unexplained.iter().any(|(user, _)| users.contains(user)),
            });
            if is_changed || is_used || !is_compiled {
                lines.extend(self.compare_options(kind, name, false));
            }
        }
        let setting_kinds: HashSet<&str> = lines.iter().map(|line| line.kind.as_str()).collect();
        let silent = |kind: &&String| !setting_kinds.contains(kind.as_str()) && !self.has_only_restarts(kind);
        let rest = changed.settings.iter().filter(silent);
        let rest: Vec<_> = rest.map(|kind| ChangeLine::new(kind, "", "a file that it names changed")).collect();
        lines.extend(rest);
        lines
    }

    /// Returns whether `[server]` differs by options only that need a restart.
    fn has_only_restarts(&self, kind: &str) -> bool {
        let mut after = self.new.server.clone();
        after.workers = self.old.server.workers;
        after.handover.clone_from(&self.old.server.handover);
        kind == server::TABLE.name && after == self.old.server
    }

    fn list_restarts(&self) -> Vec<ChangeLine> {
        let (old, new) = (&self.old.server, &self.new.server);
        let path = |path: &Option<std::path::PathBuf>| match path {
            Some(path) => format!("\"{}\"", path.display()),
            None => "\"\"".to_owned(),
        };
        let options = [
            (server::WORKERS.name, old.workers.to_string(), new.workers.to_string()),
            (server::HANDOVER.name, path(&old.handover), path(&new.handover)),
        ];
        let differing = options.into_iter().filter(|(_, before, after)| before != after);
        let line = |(option, before, after): (&str, String, String)| {
            let what = format!("{option} {before} \u{2192} {after}");
            ChangeLine::new(server::TABLE.name, "", what).with_option(option).with_note(Some("needs a restart"))
        };
        differing.map(line).collect()
    }

    /// Returns a line if the paths with regular expressions, which are tried in file order, are in another order.
    fn list_order_of_patterns(&self) -> Option<ChangeLine> {
        let names = |config: &'_ Config, other: &Config| -> Vec<String> {
            let other_names: HashSet<&str> =
                other.routes.iter().filter(|route| has_pattern(route)).map(|route| route.name.as_str()).collect();
            let routes =
                config.routes.iter().filter(|route| has_pattern(route) && other_names.contains(route.name.as_str()));
            routes.map(|route| route.name.clone()).collect()
        };
        let differs = names(self.old, self.new) != names(self.new, self.old);
        let what = "paths with regular expressions are tried in another order";
        differs.then(|| ChangeLine::new(route::TABLE.name, "", what).with_option(route::PATH.name))
    }

    fn list_whole_sections(&self, kind: &'static str, changes: &Changes) -> Vec<ChangeLine> {
        let is_limitless =
            |route: &&Route| kind == route::TABLE.name && route.limits.is_empty() && !self.new.limits.is_empty();
        let free: HashSet<&str> =
            self.new.routes.iter().filter(is_limitless).map(|route| route.name.as_str()).collect();
        let additions = changes.added.iter().map(|name| {
            let is_free = free.contains(name.as_str());
            let what = if is_free { "added, without limits" } else { "added" };
            ChangeLine::new(kind, name, what).with_weaker(is_free)
        });
        let removals = changes
            .removed
            .iter()
            .map(|name| ChangeLine::new(kind, name, "removed").with_weaker(self.is_removal_weaker(kind, name)));
        additions.chain(removals).collect()
    }

    fn is_removal_weaker(&self, kind: &str, name: &str) -> bool {
        match kind {
            _ if kind == limit::TABLE.name => {
                // A candidate or another shadow limit refused nobody.
                let is_enforced = |limit: &Limit| limit.mode == Mode::Enforce;
                self.old.limits.find(name).is_none_or(|limit| is_enforced(limit)) && !self.replaced.has_any(name)
            }
            _ if kind == rls::TABLE.name => true,
            _ if kind == route::TABLE.name => self.weaker.has_removed_route(name),
            _ => false,
        }
    }

    fn reason_to_start_anew(&self, name: &str) -> Option<&'static str> {
        let (old, new) = (self.old.limits.find(name)?, self.new.limits.find(name)?);
        reason_to_start_anew(old, new)
    }
}

/// Returns the limits of a list, each with its cost if that is one integer.
fn listed_limits(config: &Config, option: Option<&WrittenOption>) -> Vec<(String, Option<i64>)> {
    let own_cost = |name: &str| match config.limits.find(name)?.cost {
        Cost::Fixed(units) => Some(units),
        _ => None,
    };
    let with_cost = |ListedLimit { name, cost }: ListedLimit| {
        let cost = cost.unwrap_or_else(|| own_cost(&name));
        (name, cost)
    };
    let limits = option.map_or_else(Vec::new, WrittenOption::listed_limits);
    limits.into_iter().map(with_cost).collect()
}

/// Returns why keys of a changed limit start with a full budget; `None` if they keep what they used.
pub fn reason_to_start_anew(old: &Limit, new: &Limit) -> Option<&'static str> {
    match (old.rule.name() == new.rule.name(), old.key == new.key) {
        _ if old.fair.is_some() != new.fair.is_some() => Some("`fair` added or removed"),
        (true, true) => None,
        (false, _) => Some("algorithm changed"),
        (true, false) => Some("key changed"),
    }
}

fn has_pattern(route: &Route) -> bool {
    matches!(route.matcher.path, PathPattern::Regex(_))
}

/// Returns the key of a section in [`Sections`]. Kinds contain no space.
fn section_key(kind: &str, name: &str) -> String {
    format!("{kind} {name}")
}

fn options_of<'s>(sections: &'s Sections<'s>, key: &str) -> HashMap<String, &'s WrittenOption<'s>> {
    sections.get(key).map(WrittenSection::by_path).unwrap_or_default()
}

/// Describes a list that differs; `None` if only its order does, and that has no meaning.
fn describe_list(
    kind: &str,
    option: Option<&ConfigOption>,
    path: &str,
    before: Option<&WrittenOption>,
    after: Option<&WrittenOption>,
) -> Option<String> {
    let unset = option.and_then(unset_items);
    let depends = unset.is_none() && before.is_some() != after.is_some();
    let items = |written: Option<&WrittenOption>| match written {
        Some(written) => written.list_items(kind),
        None => unset.clone().unwrap_or_default(),
    };
    let is_set_after = after.is_some();
    let (before, after) = (items(before), items(after));
    let canonical = |items: &[ListItem]| items.iter().map(|item| item.canonical.clone()).collect::<HashSet<_>>();
    let (old, new) = (canonical(&before), canonical(&after));
    let only = |items: &[ListItem], others: &HashSet<String>| {
        let only: Vec<&str> =
            items.iter().filter(|item| !others.contains(&item.canonical)).map(|item| item.shown.as_str()).collect();
        let more = only.len().saturating_sub(ITEMS_SHOWN);
        let list = only.iter().take(ITEMS_SHOWN).copied().collect::<Vec<_>>().join(", ");
        (!only.is_empty()).then(|| if more > 0 { format!("{list} and {more} more") } else { list })
    };
    let (removed, added) = (only(&before, &new), only(&after, &old));
    let is_limits = kind == route::TABLE.name && path == route::LIMITS.name;
    Some(match (removed, added) {
        // An empty list is another value than none.
        (None, None) if depends && is_set_after => format!("{path}: [], no longer the default"),
        (None, None) if depends => format!("{path}: the default, no longer []"),
        (None, None) if old.is_empty() => return None,
        (None, None) if option.is_some_and(|option| option.is_unordered) => return None,
        (None, None) => format!("{path} in another order"),
        (Some(removed), None) if is_limits => format!("no longer limited by {}", removed.replace('"', "")),
        (None, Some(added)) if is_limits => format!("now limited by {}", added.replace('"', "")),
        (Some(removed), Some(added)) if is_limits => {
            format!("no longer limited by {}, but by {}", removed.replace('"', ""), added.replace('"', ""))
        }
        (Some(removed), None) => format!("{path}: removed {removed}"),
        (None, Some(added)) => format!("{path}: added {added}"),
        (Some(removed), Some(added)) => format!("{path}: removed {removed}; added {added}"),
    })
}
