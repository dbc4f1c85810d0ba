//! What a reload changes, by name: for the log and the answer of `POST /-/reload`. Called by the
//! reloader with the config in force and the new one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::{Config, ListenerSettings};
use crate::limit::limits::Limit;
use crate::route::{Action, Route};
use crate::upstream::Upstream;

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
    /// says nothing to another, nor that of a key to another. `None` for what keeps no state.
    anew: Option<Vec<String>>,
}

/// Names shown of each kind of change in the one-line form.
const SHOWN: usize = 10;

impl Diff {
    pub fn between(old: &Config, new: &Config) -> Diff {
        Diff {
            listeners: Changes::between(listeners(old), listeners(new)),
            routes: Changes::between(routes(old), routes(new)),
            limits: Changes { anew: Some(anew(old, new)), ..Changes::between(limits(old), limits(new)) },
            upstreams: Changes::between(upstreams(old), upstreams(new)),
            settings: settings(old, new),
        }
    }

    pub fn json(&self) -> Value {
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
                (changes.added.as_slice(), "added"),
                (&changes.removed, "removed"),
                (&changes.changed, "changed"),
                (changes.anew.as_deref().unwrap_or_default(), "starting anew"),
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
    fn between<T: PartialEq>(old: BTreeMap<String, T>, new: BTreeMap<String, T>) -> Changes {
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

fn listeners(config: &Config) -> BTreeMap<String, &ListenerSettings> {
    config.listeners.iter().map(|listener| (listener.address.to_string(), &**listener)).collect()
}

fn routes(config: &Config) -> BTreeMap<String, impl PartialEq> {
    config.routes.iter().map(|route| (route.name.clone(), content(route, config))).collect()
}

/// Everything a route says, with names in place of what has a line of its own in the diff.
fn content<'c>(route: &'c Route, config: &'c Config) -> impl PartialEq + use<'c> {
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
        key_body,
        timeouts,
        refuse,
        ratelimit_headers,
        upgrades,
        reading,
    } = route;
    let action = match action {
        Action::Upstream(index) => Err(config.upstreams.get(*index).map(|upstream| &upstream.name)),
        other => Ok(other),
    };
    let limits: Vec<&str> = limits.iter().map(|limit| limit.name.as_str()).collect();
    (
        (matcher, action, limits, allow, deny, rewrite),
        (
            request_headers,
            response_headers,
            max_body,
            max_in_flight,
            key_body,
            timeouts,
            refuse,
            ratelimit_headers,
            upgrades,
            reading,
        ),
    )
}

fn limits(config: &Config) -> BTreeMap<String, &Limit> {
    config.limits.iter().map(|limit| (limit.name.clone(), &**limit)).collect()
}

/// Limits of which the state of before is not looked at any more.
fn anew(old: &Config, new: &Config) -> Vec<String> {
    let changed = |limit: &&Arc<Limit>| {
        let before = old.limits.named(&limit.name);
        before.is_some_and(|old| old.rule.name() != limit.rule.name() || old.key != limit.key)
    };
    new.limits.iter().filter(changed).map(|limit| limit.name.clone()).collect()
}

fn upstreams(config: &Config) -> BTreeMap<String, &Upstream> {
    config.upstreams.iter().map(|upstream| (upstream.name.clone(), &**upstream)).collect()
}

fn settings(old: &Config, new: &Config) -> Changes {
    let tables = [
        ("acme", old.acme.as_ref().map(|acme| &acme.settings) == new.acme.as_ref().map(|acme| &acme.settings)),
        ("admin", old.admin == new.admin),
        ("headers", old.ratelimit_headers == new.ratelimit_headers),
        ("jwt", old.jwt == new.jwt),
        ("server", old.server == new.server),
        ("store", old.store == new.store),
    ];
    let changed = tables.into_iter().filter(|(_, same)| !same).map(|(name, _)| name.to_owned());
    Changes { changed: changed.collect(), ..Changes::default() }
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
        let diff = Diff { limits: Changes { anew: Some(Vec::new()), ..changes }, ..Diff::default() };
        assert_eq!(diff.to_string(), "limit added: d; limit removed: a; limit changed: b");
        assert_eq!(
            diff.json()["limits"],
            json!({ "added": ["d"], "removed": ["a"], "changed": ["b"], "starting_anew": [] })
        );
    }

    #[test]
    fn a_limit_that_decided_is_not_changed_by_that() {
        let text = "[[route]]\nupstream = \"echo:\"\nlimits = [\"daily\"]\n\
                    [limit.daily]\nalgorithm = \"calendar\"\nrate = \"10/day\"\n";
        let config = |text: &str| crate::config::from_text("test", text).unwrap();
        let (old, new) = (config(text), config(text));
        old.limits[0].rule.decide(None, 1_795_000_000_000, 1, 0);
        assert_eq!(Diff::between(&old, &new).to_string(), "nothing but comments or layout");
        let new = config(&text.replace("10/day", "11/day"));
        assert_eq!(Diff::between(&old, &new).to_string(), "limit changed: daily");
    }

    #[test]
    fn a_regular_expression_is_what_is_written() {
        let config = |pattern: &str| {
            let limit = format!("[limit.x]\nrate = \"1/s\"\nwhen = {{ path = \"{pattern}\" }}\n");
            crate::config::from_text("test", &format!("[[route]]\nupstream = \"echo:\"\n{limit}")).unwrap()
        };
        let between = |old, new| Diff::between(&config(old), &config(new)).to_string();
        assert_eq!(between("~ a|b", "~ a|b"), "nothing but comments or layout");
        for new in ["~i a|b", "~ a|c", "!~ a|b"] {
            assert_eq!(between("~ a|b", new), "limit changed: x", "{new}");
        }
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let names: Vec<(String, String)> = (10..25).map(|i| (format!("r{i}"), String::new())).collect();
        let diff = Diff { routes: Changes::between(BTreeMap::new(), names.into_iter().collect()), ..Diff::default() };
        assert!(diff.to_string().ends_with("r19 and 5 more"), "{diff}");
    }
}
