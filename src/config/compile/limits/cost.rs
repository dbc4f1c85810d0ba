//! Compiles `cost`: of a limit, or of a limit in a list, where it is the price of the requests of that list. Called by
//! `limits` and by the lists.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::compile::limits::settlement::compile_reserve;
use crate::config::compile::matcher::parse_method;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Node, Value};
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::algorithm::Rule;
use crate::limiting::integers::COST_MAX;
use crate::limiting::limit::cost::{CallPattern, CallPrices, Cost, MethodPrices, StatusPattern, StatusPrices};
use crate::limiting::limit::graphql_cost::GraphqlPrices;
use crate::limiting::settlement::weights::ModelWeights;
use crate::limiting::source::SourceKind;
use crate::limiting::source::calls::is_named;

/// Maximum number of costs in a table.
const PRICES_MAX: usize = 100;
/// Key of the cost of everything that a table does not list.
const DEFAULT: &str = "default";

/// Compiles the option; without it, a request costs 1. `weights` are the weights of the limit.
pub fn compile_cost(section: &Section, weights: Option<Arc<ModelWeights>>) -> Option<Cost> {
    let source = |text: &str| {
        let help = format!("write an integer without quotes, {}", values::describe_sources(Cost::SOURCES));
        values::parse_source(text, Cost::SOURCES, &help).map(Cost::Stated)
    };
    match section.node(&limit::COST) {
        None => Some(Cost::Fixed(1)),
        Some(Node { value: Value::Integer(_), .. }) => section.read_as(&limit::COST).map(Cost::Fixed),
        Some(Node { value: Value::String(_), .. }) => section.parse_string(&limit::COST, source),
        Some(Node { value: Value::Table(_), .. }) => compile_table(section, weights),
        Some(node) => section.report_wrong_type(
            limit::COST.name,
            &format!("an integer, {}", values::describe_sources(Cost::SOURCES)),
            node,
        ),
    }
}

/// Compiles what a request costs of a limit: its `cost`, or its `costs` by call.
pub fn compile_limit_cost(section: &Section, weights: Option<Arc<ModelWeights>>) -> Option<Cost> {
    let Some(node) = section.node(&limit::COSTS) else { return compile_cost(section, weights) };
    let prices = compile_prices(section, &limit::COSTS, parse_call_pattern);
    if section.node(&limit::COST).is_some() {
        let what = "cannot be combined with `cost`";
        return section.report_fault(limit::COSTS.name, node, what, "keep one: a cost has one reason");
    }
    prices.map(|(listed, default)| Cost::ByCall(Box::new(CallPrices { listed, default })))
}

/// Parses the calls that have a cost: a method, the start of methods, or a method and the tool that it names, or the
/// start of tools.
fn parse_call_pattern(text: &str) -> Result<CallPattern, TextFault> {
    const HELP: &str = "write a method like \"eth_getLogs\", the start of several like \"debug_*\", a tool like \
                        \"tools/call:search\" or \"tools/call:delete_*\", or default";
    if text.is_empty() || text.len() > 256 || text.chars().any(char::is_control) {
        return invalid_text(format!("`{}` is not a method of 1 to 256 bytes", text.escape_debug()), HELP);
    }
    let (method, tool) = match text.split_once(':') {
        Some((method, tool)) if is_named(method) => (method, Some(tool)),
        // Methods of MCP have a slash.
        Some((method, _)) if method.contains('/') => {
            return invalid_text(format!("calls of `{method}` name no tool, prompt or resource"), HELP);
        }
        _ => (text, None),
    };
    let (name, is_start) = match tool.unwrap_or(text) {
        "" => return invalid_text(format!("`{text}` names no tool"), HELP),
        name => name.strip_suffix('*').map_or((name, false), |start| (start, true)),
    };
    if name.contains('*') || name.is_empty() {
        return invalid_text(format!("`{text}` has a `*` elsewhere than at the end of a name"), HELP);
    }
    let (method, name) = (method.to_owned(), name.to_owned());
    Ok(match (tool, is_start) {
        (Some(_), true) => CallPattern::ToolPrefix { method, start: name },
        (Some(_), false) => CallPattern::Tool { method, tool: name },
        (None, true) => CallPattern::Prefix(name),
        (None, false) => CallPattern::Method(name),
    })
}

fn compile_table(section: &Section, weights: Option<Arc<ModelWeights>>) -> Option<Cost> {
    let cost = section.read_section(&limit::COST)?;
    let kinds: [&ConfigOption; 5] =
        [&limit::cost::RESERVE, &limit::cost::METHOD, &limit::cost::STATUS, &limit::cost::COUNT, &limit::cost::GRAPHQL];
    let cost_options: Vec<(&ConfigOption, &Node)> =
        kinds.into_iter().filter_map(|kind| Some((kind, cost.node(kind)?))).collect();
    let cost_result = match cost_options.as_slice() {
        [] => cost.report_missing(
            "`cost` says nothing of the cost",
            "write cost = { method = { GET = 1, POST = 5 } }, { status = { \"4xx\" = 5, default = 1 } }, \
             { reserve = { default_add = 1000 } }, { count = \"json:/items\" } or { graphql = {} }",
        ),
        [(kind, _)] if kind.name == limit::cost::METHOD.name => {
            let parse = |text: &str| parse_method(text).map(|method| method.as_str().to_owned());
            let prices = compile_prices(&cost, kind, parse);
            prices.map(|(listed, default)| Cost::ByMethod(Box::new(MethodPrices { listed, default })))
        }
        [(kind, _)] if kind.name == limit::cost::STATUS.name => {
            let prices = compile_prices(&cost, kind, parse_status_pattern);
            prices.map(|(listed, default)| Cost::ByStatus(Arc::new(StatusPrices { listed, default })))
        }
        [(kind, _)] if kind.name == limit::cost::COUNT.name => {
            let help = "write a pointer to an array in the body, like \"json:/items\"";
            let parse = |text: &str| values::parse_source(text, &[SourceKind::Json], help);
            cost.parse_string(kind, parse).map(Cost::Counted)
        }
        [(kind, _)] if kind.name == limit::cost::GRAPHQL.name => {
            compile_graphql(&cost).map(|prices| Cost::Graphql(Box::new(prices)))
        }
        [_] => {
            weights.and_then(|weights| compile_reserve(&cost, weights)).map(|reserve| Cost::Reserved(Box::new(reserve)))
        }
        [_, (kind, node), ..] => {
            let what = format!("cannot be combined with {}", cost_options[0].0.name);
            cost.report_fault(kind.name, node, &what, "keep one: a cost has one reason")
        }
    };
    cost.report_unread_keys();
    cost_result
}

/// Compiles the estimate of GraphQL queries.
fn compile_graphql(cost: &Section) -> Option<GraphqlPrices> {
    let graphql = cost.read_section(&limit::cost::GRAPHQL)?;
    let (weights, default_weight) = match graphql.node(&limit::graphql::WEIGHTS) {
        Some(_) => {
            let listed = compile_prices(&graphql, &limit::graphql::WEIGHTS, parse_graphql_name);
            let table = graphql.read_table(&limit::graphql::WEIGHTS);
            let default = table.and_then(|table| table.get(DEFAULT)).map_or(Some(1), |entry| match entry.node.value {
                Value::Integer(units) => Some(units),
                _ => None,
            });
            listed.zip(default).map(|((listed, _), default)| (listed.into_iter().collect(), default)).unzip()
        }
        None => (Some(HashMap::new()), Some(1)),
    };
    let lists = match graphql.node(&limit::graphql::LISTS) {
        Some(node) => graphql.read_strings(&limit::graphql::LISTS, parse_graphql_name).and_then(|lists| {
            let help = "write [\"first\", \"last\"], or leave it out for first, last and limit";
            match lists.is_empty() {
                true => graphql.report_fault(limit::graphql::LISTS.name, node, "the list is empty", help),
                false => Some(lists.into_iter().map(|at| at.value).collect()),
            }
        }),
        None => Some(GraphqlPrices::LISTS.map(str::to_owned).to_vec()),
    };
    let prices = GraphqlPrices {
        weights: HashMap::new(),
        default_weight: 1,
        lists: Vec::new(),
        list_size: graphql.get(&limit::graphql::LIST_SIZE),
        max_depth: graphql.get(&limit::graphql::MAX_DEPTH),
        stored: graphql.get(&limit::graphql::STORED),
    };
    graphql.report_unread_keys();
    Some(GraphqlPrices { weights: weights?, default_weight: default_weight?, lists: lists?, ..prices })
}

fn parse_graphql_name(text: &str) -> Result<String, TextFault> {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let is_name = text.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit());
    match is_name && text.bytes().next().is_some_and(is_letter) {
        true => Ok(text.to_owned()),
        false => invalid_text(format!("`{text}` is not a name in GraphQL"), "names have letters, digits and `_`"),
    }
}

/// Compiles a table of costs. Requests that it does not list cost its `default`, or its highest cost, so that nothing
/// is cheap by oversight.
fn compile_prices<K: PartialEq>(
    cost: &Section,
    option: &ConfigOption,
    parse: impl Fn(&str) -> Result<K, TextFault>,
) -> Option<(Vec<(K, i64)>, i64)> {
    let table = cost.read_table(option)?;
    let (mut listed, mut default, mut is_whole) = (Vec::new(), None, true);
    for entry in &table.entries {
        let report = |what: &str, help: &str| cost.report_fault::<()>(option.name, &entry.node, what, help);
        let Value::Integer(units @ 0..=COST_MAX) = entry.node.value else {
            report(&format!("`{}` must be an integer from 0 to {COST_MAX}", entry.key), "write units, like GET = 1");
            is_whole = false;
            continue;
        };
        if entry.key == DEFAULT {
            default = Some(units);
            continue;
        }
        match parse(&entry.key) {
            Ok(key) if listed.iter().any(|(other, _)| *other == key) => {
                report(&format!("`{}` occurs twice", entry.key), "remove one of the two");
                is_whole = false;
            }
            Ok(key) => listed.push((key, units)),
            Err(TextFault { what, help }) => {
                report(&what, &help);
                is_whole = false;
            }
        }
    }
    if !is_whole {
        return None;
    }
    if listed.is_empty() || listed.len() > PRICES_MAX {
        let help = format!("list 1 to {PRICES_MAX} of them, or write an integer for one cost");
        return cost.report_fault(option.name, cost.node(option)?, &format!("{} costs", listed.len()), &help);
    }
    let most = listed.iter().map(|(_, units)| *units).max().unwrap_or_default();
    Some((listed, default.unwrap_or(most)))
}

fn parse_status_pattern(text: &str) -> Result<StatusPattern, TextFault> {
    let class = text.strip_suffix("xx").and_then(|digit| digit.parse().ok()).filter(|class| (2..=5).contains(class));
    let status = text.parse().ok().filter(|code| (200..=599).contains(code));
    let status = status.and_then(|code: u16| http::StatusCode::from_u16(code).ok());
    match class.map(StatusPattern::Class).or_else(|| status.map(StatusPattern::Status)) {
        Some(pattern) => Ok(pattern),
        None => invalid_text(
            format!("`{text}` is neither a status nor a class of statuses"),
            "write a status from 200 to 599, a class like \"4xx\", or default",
        ),
    }
}

/// The parts of a limit that its cost depends on.
#[derive(Clone, Copy)]
pub struct CostContext<'a> {
    pub rule: &'a Rule,
    /// The limit has `settle`.
    pub settles: bool,
    /// The limit debits units of hot keys in advance.
    pub has_lease: bool,
}

/// Reports a cost that no request can ever pay, and one by status where the limit cannot correct its charges.
pub fn check_cost(section: &Section, cost: &Cost, context: CostContext) -> Option<()> {
    let option: &ConfigOption = if matches!(cost, Cost::ByCall(_)) { &limit::COSTS } else { &limit::COST };
    let Some(node) = section.node(option) else { return Some(()) };
    let most = context.rule.max_cost();
    let help = format!("the largest that fits is {most}");
    let report = |what: &str, help: &str| section.report_fault(option.name, node, what, help);
    if let (Rule::Distinct(_), false) = (context.rule, *cost == Cost::Fixed(1)) {
        return report("a limit with `distinct` counts each value once", "write cost = 1, or leave it out");
    }
    match cost {
        Cost::Fixed(fixed) if *fixed > most => {
            report(&format!("a cost of {fixed} never fits, so no request would be admitted"), &help)
        }
        Cost::ByMethod(prices) => {
            let default = ("others", prices.default);
            let mut all = prices.listed.iter().map(|(name, cost)| (name.as_str(), *cost)).chain([default]);
            match all.find(|(_, cost)| *cost > most) {
                Some((name, cost)) => report(
                    &format!("the cost of {name} is {cost}, which never fits, so no such request would be admitted"),
                    &help,
                ),
                None => Some(()),
            }
        }
        Cost::ByCall(prices) if prices.max_cost() > most => {
            let what = format!("a call that costs {} never fits, so no such call would be admitted", prices.max_cost());
            report(&what, &help)
        }
        Cost::ByStatus(prices) if prices.default > most => {
            let what = format!("a request is charged {} before its response, which never fits", prices.default);
            report(&what, &format!("{help}; it is `default`, or without it the most in the table"))
        }
        Cost::Graphql(prices) if prices.stored.is_some_and(|stored| stored > most) => {
            report("`stored` never fits, so no such request would be admitted", &help)
        }
        Cost::ByStatus(_) if context.settles => {
            report("a cost by status cannot be combined with `settle`", "keep one: both say what the response costs")
        }
        Cost::ByStatus(_) if context.rule.lease_ms().is_some() => {
            report("this algorithm always releases its slots when a request ends", "write an integer")
        }
        Cost::ByStatus(_) if context.has_lease => {
            report("a cost by status cannot be combined with `lease`: units of a lease are not refunded", "remove one")
        }
        _ => Some(()),
    }
}
