//! What a reload changes, by name: for the log and the answer of `POST /-/reload`. Called by the
//! reloader with the config in force and the new one.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::config::Config;
use crate::limit::rule::Limit;
use crate::route::{Action, Route};

/// Differences of two configs. Displays as one line.
#[derive(Debug, Default, PartialEq)]
pub struct Diff {
    listeners: Changes,
    routes: Changes,
    limits: Changes,
    upstreams: Changes,
    /// Tables that exist once, such as `server`.
    settings: Changes,
}

#[derive(Debug, Default, PartialEq)]
struct Changes {
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
    /// Of the changed limits those whose keys begin with a whole budget: the state of an algorithm
    /// says nothing to another, nor that of a key to another.
    anew: Vec<String>,
}

/// Names shown of each kind of change in the one-line form.
const SHOWN: usize = 10;

impl Diff {
    pub fn between(old: &Config, new: &Config) -> Diff {
        Diff {
            listeners: Changes::between(listeners(old), listeners(new)),
            routes: Changes::between(routes(old), routes(new)),
            limits: Changes { anew: anew(old, new), ..Changes::between(limits(old), limits(new)) },
            upstreams: Changes::between(upstreams(old), upstreams(new)),
            settings: Changes::between(settings(old), settings(new)),
        }
    }

    pub fn json(&self) -> Value {
        let mut kinds = serde_json::Map::new();
        for (_, plural, changes) in self.kinds() {
            let mut kind = json!({ "added": changes.added, "removed": changes.removed, "changed": changes.changed });
            if plural == "limits" {
                kind["starting_anew"] = json!(changes.anew);
            }
            kinds.insert(plural.to_owned(), kind);
        }
        Value::Object(kinds)
    }

    fn kinds(&self) -> [(&'static str, &'static str, &Changes); 5] {
        [
            ("listener", "listeners", &self.listeners),
            ("route", "routes", &self.routes),
            ("limit", "limits", &self.limits),
            ("upstream", "upstreams", &self.upstreams),
            ("setting", "settings", &self.settings),
        ]
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, plural, changes) in self.kinds() {
            for (names, verb) in [
                (&changes.added, "added"),
                (&changes.removed, "removed"),
                (&changes.changed, "changed"),
                (&changes.anew, "starting anew"),
            ] {
                if names.is_empty() {
                    continue;
                }
                let kind = if names.len() == 1 { kind } else { plural };
                let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
                write!(f, "{separator}{kind} {verb}: {shown}")?;
                if names.len() > SHOWN {
                    write!(f, " and {} more", names.len() - SHOWN)?;
                }
                separator = "; ";
            }
        }
        if separator.is_empty() { f.write_str("nothing but comments or layout") } else { Ok(()) }
    }
}

impl Changes {
    /// From name and content of each item.
    fn between(old: BTreeMap<String, String>, new: BTreeMap<String, String>) -> Changes {
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

fn listeners(config: &Config) -> BTreeMap<String, String> {
    config.listeners.iter().map(|addr| (addr.to_string(), String::new())).collect()
}

fn routes(config: &Config) -> BTreeMap<String, String> {
    config.routes.iter().map(|route| (route.name.clone(), content(route, config))).collect()
}

/// Everything a route says, with names in place of what has a line of its own in the diff.
fn content(route: &Route, config: &Config) -> String {
    let Route {
        name: _,
        matcher,
        // Of the path.
        params: _,
        action,
        limits,
        allow,
        deny,
        rewrite,
        request_headers,
        response_headers,
        max_body,
        max_in_flight,
        timeouts,
        refuse,
        ratelimit_headers,
    } = route;
    let action = match action {
        Action::Upstream(index) => config.upstreams.get(*index).map_or(String::new(), |u| u.name.clone()),
        other => format!("{other:?}"),
    };
    let limits: Vec<&str> = limits.iter().map(|limit| limit.name.as_str()).collect();
    format!(
        "{:?}",
        (
            (matcher, action, limits, allow, deny, rewrite),
            (request_headers, response_headers, max_body, max_in_flight, timeouts, refuse, ratelimit_headers)
        )
    )
}

fn limits(config: &Config) -> BTreeMap<String, String> {
    config.limits.iter().map(|limit| (limit.name.clone(), format!("{limit:?}"))).collect()
}

/// Limits of which the state of before is not looked at any more.
fn anew(old: &Config, new: &Config) -> Vec<String> {
    let before: BTreeMap<&str, _> = old.limits.iter().map(|limit| (limit.name.as_str(), limit)).collect();
    let changed = |limit: &&std::sync::Arc<Limit>| {
        before.get(limit.name.as_str()).is_some_and(|old| old.rule.name() != limit.rule.name() || old.key != limit.key)
    };
    new.limits.iter().filter(changed).map(|limit| limit.name.clone()).collect()
}

fn upstreams(config: &Config) -> BTreeMap<String, String> {
    config.upstreams.iter().map(|upstream| (upstream.name.clone(), format!("{upstream:?}"))).collect()
}

fn settings(config: &Config) -> BTreeMap<String, String> {
    [
        ("server", format!("{:?}", config.server)),
        ("admin", format!("{:?}", config.admin)),
        ("store", format!("{:?}", config.store)),
        ("headers", format!("{:?}", config.ratelimit_headers)),
        ("jwt", format!("{:?}", config.jwt)),
    ]
    .into_iter()
    .map(|(name, content)| (name.to_owned(), content))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(items: &[(&str, &str)]) -> BTreeMap<String, String> {
        items.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
    }

    #[test]
    fn names_what_came_went_and_changed() {
        let changes = Changes::between(
            items(&[("a", "1"), ("b", "1"), ("c", "1")]),
            items(&[("b", "2"), ("c", "1"), ("d", "1")]),
        );
        let diff = Diff { limits: changes, ..Diff::default() };
        assert_eq!(diff.to_string(), "limit added: d; limit removed: a; limit changed: b");
        assert_eq!(
            diff.json()["limits"],
            json!({ "added": ["d"], "removed": ["a"], "changed": ["b"], "starting_anew": [] })
        );
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let names: Vec<(String, String)> = (10..25).map(|i| (format!("r{i}"), String::new())).collect();
        let diff = Diff { routes: Changes::between(BTreeMap::new(), names.into_iter().collect()), ..Diff::default() };
        assert!(diff.to_string().ends_with("r19 and 5 more"), "{diff}");
    }
}
