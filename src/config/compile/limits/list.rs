//! Lists of limits: `limits` of a route, of its `auth`, and of services. An entry is the name of a limit, or a table
//! with the name and the `cost` of the requests of this list. Called by `routes`, `decide` and `rls`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::compile::limits::candidates::CompanionLists;
use crate::config::compile::limits::cost::{CostContext, check_cost, compile_cost};
use crate::config::compile::names::Definitions;
use crate::config::diagnostics::report::Place;
use crate::config::reader::{At, Section};
use crate::config::schema::{limit, limit_list, route};
use crate::config::tree::{Node, Table, Value};
use crate::config::{hints, values};
use crate::limiting::limit::Limit;

/// Maximum number of limits in a list: one store decision carries no more.
const LIMITS_MAX: usize = 16;

/// One entry of a list: the name, and the table if the entry is a table.
struct Entry<'a> {
    name: At<String>,
    table: Option<Section<'a>>,
}

/// Compiles `limits` of a route, of its `auth`, or of a service.
pub fn compile_limit_list(
    section: &Section,
    all: &Definitions<Arc<Limit>>,
    companions: &CompanionLists,
) -> Option<Vec<Arc<Limit>>> {
    let Some(node) = section.node(&route::LIMITS) else { return Some(Vec::new()) };
    let entries = read_entries(section, node)?;
    let names: Vec<At<String>> = entries.iter().map(|entry| entry.name.clone()).collect();
    if let Some(At { place, .. }) = names.get(LIMITS_MAX) {
        let what = format!("{} limits on one route", names.len());
        return section.report_fault_at(route::LIMITS.name, *place, &what, &format!("a route may have {LIMITS_MAX}"));
    }
    let mut limits = Vec::with_capacity(names.len());
    for (i, At { place, value }) in names.iter().enumerate() {
        if names[..i].iter().any(|earlier| earlier.value == *value) {
            section.report_fault_at::<()>(
                route::LIMITS.name,
                *place,
                &format!("`{value}` occurs twice"),
                "each limit applies once per request",
            );
        }
        if values::parse_rate(value).is_ok() {
            let what = format!("`{value}` is a rate, but the names of limits are expected here");
            limits.push(section.report_fault_at(route::LIMITS.name, *place, &what, hints::LIMIT_HELP));
            continue;
        }
        limits.push(all.find(section.sources, *place, value));
    }
    let ordered_limits = order_chain(section, &names, limits.into_iter().collect::<Option<_>>()?)?;
    let limits = companions.add_to_list(section, &names, ordered_limits)?;
    if limits.len() > LIMITS_MAX {
        let what = format!("{} limits with their candidates and tiers", limits.len());
        let place = section.node(&route::LIMITS).map_or(section.place, |node| node.place);
        return section.report_fault_at(route::LIMITS.name, place, &what, &format!("a route may have {LIMITS_MAX}"));
    }
    set_prices(limits, entries, all)
}

/// Returns the limits that a list names, with their places.
pub fn list_names(section: &Section) -> Vec<At<String>> {
    let items = section.node(&route::LIMITS).map_or(&[][..], list_items);
    items
        .iter()
        .filter_map(|item| name_of(item).map(|value| At { place: item.place, value: value.to_owned() }))
        .collect()
}

/// Returns where a list names a limit, or the place of the section.
pub fn place_of(section: &Section, limit: &str) -> Place {
    list_names(section).iter().find(|at| at.value == limit).map_or(section.place, |at| at.place)
}

/// Returns the name of the limit that an entry is for.
pub fn name_of(item: &Node) -> Option<&str> {
    match &item.value {
        Value::String(text) => Some(&text.value),
        Value::Table(table) => match &table.get(limit_list::NAME.name)?.node.value {
            Value::String(text) => Some(&text.value),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the limits that have a cost by status in a list. They may be refunded early wherever they are listed, so no
/// refusal of them may be remembered.
pub fn list_repriced_limits(routes: &[Section], decide: &Table) -> HashSet<String> {
    let decide_lists = decide.entries.iter().filter_map(|entry| match &entry.node.value {
        Value::Table(section) => section.get(route::LIMITS.name).map(|list| &list.node),
        _ => None,
    });
    let entries = routes.iter().flat_map(list_entries).chain(decide_lists.flat_map(list_items));
    let depends_on_status = |item: &Node| {
        let Value::Table(entry) = &item.value else { return false };
        let cost = entry.get(limit_list::COST.name).map(|cost| &cost.node.value);
        matches!(cost, Some(Value::Table(cost)) if cost.get(limit::cost::STATUS.name).is_some())
    };
    entries.filter(|item| depends_on_status(item)).filter_map(name_of).map(str::to_owned).collect()
}

/// Returns the entries of all lists of limits of a route, including that of `auth`.
pub fn list_entries<'s>(route: &Section<'s>) -> impl Iterator<Item = &'s Node> + use<'s> {
    let of_auth = match route.node(&route::AUTH).map(|node| &node.value) {
        Some(Value::Table(auth)) => auth.get(route::auth::LIMITS.name).map(|entry| &entry.node),
        _ => None,
    };
    route.node(&route::LIMITS).into_iter().chain(of_auth).flat_map(list_items)
}

fn list_items(node: &Node) -> &[Node] {
    match &node.value {
        Value::Array(items) => items,
        _ => std::slice::from_ref(node),
    }
}

fn read_entries<'a>(section: &Section<'a>, node: &'a Node) -> Option<Vec<Entry<'a>>> {
    let read = |item: &'a Node| -> Option<Entry<'a>> {
        let Value::Table(table) = &item.value else {
            let Value::String(_) = &item.value else {
                return section.report_wrong_type(route::LIMITS.name, "a string or a list of strings", item);
            };
            let value = section.parse_node(route::LIMITS.name, item, |text| Ok(text.to_owned()))?;
            return Some(Entry { name: At { place: item.place, value }, table: None });
        };
        if table.get(limit_list::NAME.name).is_none() {
            let what = "it lists names of limits, not limits";
            return section.report_fault(route::LIMITS.name, item, what, hints::LIMIT_HELP);
        }
        let table = Section::new(section.sources, &limit_list::TABLE, "`limits`", table);
        let value = table.read_string(&limit_list::NAME)?;
        Some(Entry { name: At { place: item.place, value }, table: Some(table) })
    };
    // Every entry is read, to find all mistakes, before one of them fails the list.
    let entries: Vec<_> = list_items(node).iter().map(read).collect();
    entries.into_iter().collect()
}

/// Gives the limits their price in this list. Tiers have that of their limit, and candidates that of their incumbent,
/// unless the list names them.
fn set_prices(
    mut limits: Vec<Arc<Limit>>,
    entries: Vec<Entry>,
    all: &Definitions<Arc<Limit>>,
) -> Option<Vec<Arc<Limit>>> {
    let mut is_valid = true;
    for Entry { name: At { value: name, .. }, table } in &entries {
        let Some(table) = table.as_ref().filter(|table| table.node(&limit_list::COST).is_some()) else {
            continue;
        };
        let weights = all.get(name).map(|limit| limit.weights());
        let cost = compile_cost(table, weights);
        let is_named = |other: &str| entries.iter().any(|entry| entry.name.value == other);
        let has_price = |limit: &Limit| {
            limit.listed_name() == name || limit.candidate_of.as_ref() == Some(name) && !is_named(limit.listed_name())
        };
        for limit in limits.iter_mut().filter(|limit| has_price(limit)) {
            let Some(cost) = &cost else {
                is_valid = false;
                break;
            };
            let context = CostContext {
                rule: &limit.rule,
                settles: limit.settles_by_source(),
                has_lease: limit.store_ref.lease.is_some(),
            };
            match check_cost(table, cost, context) {
                Some(()) if limit.cost == *cost => {}
                Some(()) => *limit = Arc::new(limit.with_cost(cost.clone())),
                None => {
                    is_valid = false;
                    break;
                }
            }
        }
    }
    entries.into_iter().filter_map(|entry| entry.table).for_each(Section::report_unread_keys);
    is_valid.then_some(limits)
}

/// Returns the limits in an order in which each follows its base.
fn order_chain(section: &Section, names: &[At<String>], mut waiting: Vec<Arc<Limit>>) -> Option<Vec<Arc<Limit>>> {
    let place = |limit: &Limit| names.iter().find(|at| at.value == limit.name).map_or(section.place, |at| at.place);
    let mut chain: Vec<Arc<Limit>> = Vec::with_capacity(waiting.len());
    let mut is_valid = true;
    for limit in &waiting {
        let Some(base) = limit.after.as_ref().filter(|base| !names.iter().any(|at| at.value == **base)) else {
            continue;
        };
        let what = format!("`{}` comes after `{base}`, which is not a limit of this route", limit.name);
        section.report_fault_at::<()>(
            route::LIMITS.name,
            place(limit),
            &what,
            &format!("add \"{base}\" to the limits of this route"),
        );
        is_valid = false;
    }
    if !is_valid {
        return None;
    }
    while !waiting.is_empty() {
        let ready = |limit: &Arc<Limit>| {
            limit.after.as_ref().is_none_or(|base| chain.iter().any(|earlier| earlier.name == *base))
        };
        // Otherwise the chain is circular, which is reported where it is written.
        let next = waiting.iter().position(ready)?;
        chain.push(waiting.remove(next));
    }
    Some(chain)
}
