//! Which limits refund a request that an overloaded upstream refuses: those of routes to an upstream with `adaptive`.
//! Called by `compile`.

use std::collections::HashSet;

use crate::config::compile::names::NamedSection;
use crate::config::reader::Section;
use crate::config::tree::{Node, Value};

/// Returns the names of the limits on routes whose upstream has `adaptive`. Mistakes in these sections are reported when
/// they are compiled.
pub fn list_refunded_limits(routes: &[Section], upstreams: &[NamedSection]) -> HashSet<String> {
    let adaptive: HashSet<&str> = upstreams
        .iter()
        .filter(|upstream| upstream.section.node("adaptive").is_some())
        .map(|upstream| upstream.name)
        .collect();
    let mut limits = HashSet::new();
    if adaptive.is_empty() {
        return limits;
    }
    for route in routes {
        let is_adaptive = route.node("upstream").and_then(text_of).is_some_and(|name| adaptive.contains(name));
        if !is_adaptive {
            continue;
        }
        let of_auth = match route.node("auth").map(|node| &node.value) {
            Some(Value::Table(auth)) => {
                auth.entries.iter().find(|entry| entry.key == "limits").map(|entry| &entry.node)
            }
            _ => None,
        };
        for node in route.node("limits").into_iter().chain(of_auth) {
            let items = match &node.value {
                Value::Array(items) => items.as_slice(),
                _ => std::slice::from_ref(node),
            };
            limits.extend(items.iter().filter_map(text_of).map(str::to_owned));
        }
    }
    limits
}

fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::String(text) => Some(&text.value),
        _ => None,
    }
}
