//! Which limits refund a request that an upstream refuses because it has no capacity. Called by `compile`.

use std::collections::{HashMap, HashSet};

use crate::config::compile::limits::list::{list_entries, name_of};
use crate::config::compile::limits::over::UPSTREAM;
use crate::config::compile::names::NamedSection;
use crate::config::reader::Section;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{limit, route, upstream};
use crate::config::tree::{Node, Value};

/// Returns the limits that may have charged a request before an upstream refuses it, each with the name of an upstream.
/// The routes of these limits lead
///
/// - to an upstream with `adaptive`, or
/// - with a limit that diverts requests to an upstream with `adaptive` or `breaker`.
///
/// Mistakes in these sections are reported when they are compiled.
pub fn list_refunded_limits(
    routes: &[Section],
    upstreams: &[NamedSection],
    limits: &[NamedSection],
) -> HashMap<String, String> {
    let having = |options: &[&ConfigOption]| -> HashSet<&str> {
        let has_one = |upstream: &&NamedSection| options.iter().any(|option| upstream.section.node(option).is_some());
        upstreams.iter().filter(has_one).map(|upstream| upstream.name).collect()
    };
    let (adaptive, refusing) = (having(&[&upstream::ADAPTIVE]), having(&[&upstream::ADAPTIVE, &upstream::BREAKER]));
    let mut upstreams_by_limit = HashMap::new();
    if refusing.is_empty() {
        return upstreams_by_limit;
    }
    let diverting: HashMap<&str, &str> = limits
        .iter()
        .filter_map(|limit| {
            let target = limit.section.node(&limit::OVER).and_then(text_of)?.strip_prefix(UPSTREAM)?;
            refusing.get(target).map(|target| (limit.name, *target))
        })
        .collect();
    for route in routes {
        let names: Vec<&str> = list_entries(route).filter_map(name_of).collect();
        let target = route.node(&route::UPSTREAM).and_then(text_of);
        let own = target.and_then(|name| adaptive.get(name).copied());
        let branch = || list_branches(route).into_iter().find_map(|name| refusing.get(name).copied());
        let own = own.or_else(branch);
        if let Some(upstream) = own.or_else(|| names.iter().find_map(|name| diverting.get(name).copied())) {
            upstreams_by_limit.extend(names.into_iter().map(|name| (name.to_owned(), upstream.to_owned())));
        }
    }
    upstreams_by_limit
}

/// Returns the names of the upstreams of a `split`, whose breakers decide after the limits.
fn list_branches<'s>(route: &'s Section) -> Vec<&'s str> {
    let items = match route.node(&route::SPLIT).map(|node| &node.value) {
        Some(Value::Array(items)) => items.as_slice(),
        _ => &[],
    };
    let upstream_of = |item: &'s Node| match &item.value {
        Value::Table(table) => {
            text_of(&table.entries.iter().find(|entry| entry.key == route::split::UPSTREAM.name)?.node)
        }
        _ => None,
    };
    items.iter().filter_map(upstream_of).collect()
}

fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::String(text) => Some(&text.value),
        _ => None,
    }
}
