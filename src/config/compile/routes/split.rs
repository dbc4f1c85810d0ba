//! Options `split` and `split_by` of a route. Called by `routes`.

use crate::config::compile::context::LimitContext;
use crate::config::compile::limits::compile_key_option;
use crate::config::compile::routes::action::find_upstream;
use crate::config::compile::upstreams::Upstreams;
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::config::tree::{Node, Value};
use crate::limiting::key::Key;
use crate::limiting::source::{PathParam, Source};
use crate::route::split::{Branch, Split};

/// Maximum number of upstreams of a split.
const BRANCHES_MAX: usize = 16;

/// Compiles `split` with its key. `params`: the parameters of the route's path.
pub fn compile_split(
    section: &Section,
    params: &[PathParam],
    context: &LimitContext,
    upstreams: &mut Upstreams,
) -> Option<Split> {
    const HELP: &str = "write split = [{ upstream = \"app\", weight = 95 }, { upstream = \"next\", weight = 5 }]";
    let key_node = section.node(&route::SPLIT_BY);
    let Some(node) = section.node(&route::SPLIT) else {
        return section.report_fault(route::SPLIT_BY.name, key_node?, "the route has no `split`", HELP);
    };
    let key = match key_node {
        Some(node) => Some(compile_split_key(section, node, params, context)?),
        None => None,
    };
    let Value::Array(items) = &node.value else {
        return section.report_wrong_type(route::SPLIT.name, "a list of tables", node);
    };
    if items.len() > BRANCHES_MAX {
        let what = format!("more than {BRANCHES_MAX} upstreams");
        return section.report_fault(route::SPLIT.name, node, &what, &format!("there may be {BRANCHES_MAX}"));
    }
    let mut branches: Vec<Branch> = Vec::new();
    for item in items {
        let Value::Table(table) = &item.value else {
            return section.report_wrong_type(route::SPLIT.name, "a list of tables", item);
        };
        let own = Section::new(section.sources, &route::split::TABLE, "`split`", table);
        let Some(upstream) = own.node(&route::split::UPSTREAM) else {
            return own.report_missing("`split` has an entry without an upstream", HELP);
        };
        let index = find_upstream(&own, &route::split::UPSTREAM, upstream, upstreams);
        let weight = own.get(&route::split::WEIGHT);
        own.report_unread_keys();
        let index = index?;
        if branches.iter().any(|branch| branch.upstream == index) {
            let help = "add the weights up in one entry";
            return section.report_fault(route::SPLIT.name, item, "two entries have the same upstream", help);
        }
        branches.push(Branch::new(index, &upstreams.list[index].name, weight));
    }
    if branches.iter().all(|branch| branch.weight == 0) {
        return section.report_fault(route::SPLIT.name, node, "no upstream has a weight above 0", HELP);
    }
    Some(Split { branches, key })
}

fn compile_split_key(section: &Section, node: &Node, params: &[PathParam], context: &LimitContext) -> Option<Key> {
    let key = compile_key_option(section, &route::SPLIT_BY, node, context)?;
    if key.reads_body() {
        let what = "the upstream is chosen before the body is read";
        let help = "use values of the request head, such as \"header:x-user\"";
        return section.report_fault(route::SPLIT_BY.name, node, what, help);
    }
    let absent = key.sources().find_map(|source| match source {
        Source::Param(name) if !params.iter().any(|param| param.name == *name) => Some(name.clone()),
        _ => None,
    });
    if let Some(name) = absent {
        let what = format!("it reads param:{name}, which the path of this route does not have");
        let help = format!("write {{{name}}} for a segment of `path`, like \"/users/{{{name}}}\"");
        return section.report_fault(route::SPLIT_BY.name, node, &what, &help);
    }
    Some(key)
}
