//! Sections `[[rls]]`: which limits apply to the descriptors of rate limit requests. Called by `compile`.
//!
//! Input: the sections and the compiled limits. Output: the rules of each domain, and one route for each domain, which
//! has the limits of all its rules. No request of the proxy matches such a route; it gives the decisions of the domain
//! their name in metrics and logs.

use std::sync::Arc;

use crate::config::compile::decide::own_route;
use crate::config::compile::limits::list::{compile_limit_list, place_of};
use crate::config::compile::routes::RouteContext;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::pattern_look::PatternLook;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::{At, Section};
use crate::config::schema::rls;
use crate::config::tree::{Node, Table, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::envoy::pattern::{DescriptorPattern, EntryPattern, ValuePattern};
use crate::envoy::rate_limit::{DOMAIN_MAX, ENTRIES_MAX, TEXT_MAX};
use crate::envoy::rules::{ADDRESS_ENTRY, RateLimitDomain, RateLimitDomains, RateLimitRule};
use crate::limiting::key::KeyPart;
use crate::limiting::limit::Limit;
use crate::limiting::limit::over::Over;
use crate::limiting::overrides::table::OverrideBudget;
use crate::limiting::source::{Repeated, Source};
use crate::route::Route;

/// Before the name of a domain, in the name of its route.
const ROUTE_PREFIX: &str = "rls:";
const DESCRIPTOR_HELP: &str = "write descriptor = { path = \"/login\", remote_address = \"*\" }, or a list of tables with one entry each \
                               if their order matters";

/// One compiled section.
struct CompiledRule {
    place: Place,
    domain: String,
    pattern: DescriptorPattern,
    limits: Vec<Arc<Limit>>,
    replaces: Vec<At<String>>,
}

/// Compiles the sections. `routes` are the routes of requests, with their places; see `Config::route_at`.
pub fn compile_rls(
    sections: &[Section],
    context: &RouteContext,
    (routes, places): (&[Route], &[Place]),
    decide_routes: usize,
) -> RateLimitDomains {
    let rules = sections.iter().filter_map(|section| {
        let rule = compile_rule(section, context);
        section.report_unknown();
        Some((section, rule?))
    });
    let mut domains: Vec<(String, RateLimitDomain, Vec<Arc<Limit>>)> = Vec::new();
    let mut replaced: Vec<(&Section, usize, Vec<At<String>>)> = Vec::new();
    for (section, CompiledRule { place, domain: name, pattern, limits, replaces }) in rules {
        let at = domains.iter().position(|(known, ..)| *known == name).unwrap_or_else(|| {
            domains.push((name, RateLimitDomain::new(routes.len() + decide_routes + domains.len()), Vec::new()));
            domains.len() - 1
        });
        let (_, domain, all) = &mut domains[at];
        let indexes = limits.iter().map(|limit| {
            all.iter().position(|known| known.name == limit.name).unwrap_or_else(|| {
                all.push(limit.clone());
                all.len() - 1
            })
        });
        let indexes: Vec<usize> = indexes.collect();
        let priced = indexes.iter().zip(&limits).filter(|(index, limit)| all[**index].cost != limit.cost);
        let priced = priced.map(|(_, limit)| limit.clone()).collect();
        let names = replaces.iter().map(|name| name.value.clone()).collect();
        let rule = RateLimitRule { pattern, limits: indexes, priced, replaces: names };
        replaced.push((section, at, replaces));
        if !domain.add_rule(rule) {
            let message = "`descriptor` in [[rls]]: an earlier [[rls]] of this domain has the same descriptor";
            let help = "name all limits of a descriptor in one [[rls]]";
            section.add_mistake(Diagnostic::new(place, message).with_help(help));
        }
    }
    for (section, at, names) in replaced {
        let (domain, _, limits) = &domains[at];
        for At { place, value } in names.iter().filter(|name| !limits.iter().any(|limit| limit.name == name.value)) {
            let what = format!("no [[rls]] of the domain `{domain}` has the limit `{value}`");
            let help = "name limits of other descriptors of this domain";
            section.report_fault_at::<()>(rls::REPLACES.name, *place, &what, help);
        }
    }
    let mut result = RateLimitDomains::default();
    for (name, domain, limits) in domains {
        let route = own_route(&format!("{ROUTE_PREFIX}{name}"), limits, context);
        if let (Some(section), Some(place)) =
            (sections.first(), routes.iter().position(|other| other.name == route.name))
        {
            let message = format!("the route `{}` has the name that an [[rls]] has in metrics", route.name);
            section.add_mistake(Diagnostic::new(places[place], message).with_help("give it another `name`"));
        }
        result.insert(&name, domain, route);
    }
    result
}

fn compile_rule(section: &Section, context: &RouteContext) -> Option<CompiledRule> {
    let domain = match section.node(&rls::DOMAIN) {
        Some(_) => section.parse_string(&rls::DOMAIN, parse_domain),
        None => section
            .report_missing("an [[rls]] has no `domain`", "add the `domain` of Envoy's filter, like domain = \"edge\""),
    };
    let node = section.node(&rls::DESCRIPTOR);
    let pattern = match node {
        Some(node) => compile_pattern(section, node),
        None => section.report_missing("an [[rls]] has no `descriptor`", DESCRIPTOR_HELP),
    };
    let limits = match section.node(&rls::LIMITS) {
        Some(_) => compile_limit_list(section, context.limits, context.companions),
        None => section.report_missing(
            "an [[rls]] has no `limits`",
            "add limits = [\"NAME\"], or limits = [] to exempt these descriptors from limits",
        ),
    };
    let replaces = section.read_strings(&rls::REPLACES, |text| Ok(text.to_owned())).unwrap_or_default();
    let (domain, pattern, limits) = (domain?, pattern?, limits?);
    if let Some(At { place, value }) = replaces.iter().find(|name| limits.iter().any(|own| own.name == name.value)) {
        let what = format!("`{value}` is a limit of this descriptor itself");
        return section.report_fault_at(rls::REPLACES.name, *place, &what, "take it out of one of the two lists");
    }
    check_limits(section, &limits, &pattern)?;
    Some(CompiledRule { place: node.map_or(section.place, |node| node.place), domain, pattern, limits, replaces })
}

fn parse_domain(text: &str) -> Result<String, TextFault> {
    match text.len() {
        1..=DOMAIN_MAX if !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => invalid_text(
            "it is not a domain",
            format!("domains have 1 to {DOMAIN_MAX} bytes and no control characters"),
        ),
    }
}

fn compile_pattern(section: &Section, node: &Node) -> Option<DescriptorPattern> {
    let (tables, is_ordered): (Vec<&Table>, bool) = match &node.value {
        Value::Table(table) => (vec![table], false),
        Value::Array(items) => {
            let mut tables = Vec::with_capacity(items.len());
            for item in items {
                match &item.value {
                    Value::Table(table) if table.entries.len() == 1 => tables.push(table),
                    Value::Table(_) => {
                        let what = "a table in the list does not have exactly one entry";
                        return section.report_fault(rls::DESCRIPTOR.name, item, what, DESCRIPTOR_HELP);
                    }
                    _ => return section.report_wrong_type(rls::DESCRIPTOR.name, "a table or a list of tables", item),
                }
            }
            (tables, true)
        }
        _ => return section.report_wrong_type(rls::DESCRIPTOR.name, "a table or a list of tables", node),
    };
    let mut entries = Vec::new();
    for entry in tables.iter().flat_map(|table| &table.entries) {
        let Value::String(text) = &entry.node.value else {
            return section.report_wrong_type(rls::DESCRIPTOR.name, "a table of strings", &entry.node);
        };
        let value = text.parse_value(|text| Ok::<_, TextFault>(text.to_owned())).unwrap_or_default();
        if !(1..=TEXT_MAX).contains(&entry.key.len()) || value.len() > TEXT_MAX {
            let what = format!("keys have 1 to {TEXT_MAX} bytes, and values at most {TEXT_MAX}");
            return section.report_fault(
                rls::DESCRIPTOR.name,
                &entry.node,
                &what,
                "requests of Envoy are never longer than that",
            );
        }
        let look = PatternLook::of(&value).filter(|look| *look != PatternLook::Wildcard);
        if let Some(look) = look {
            let what = format!("a value of the descriptor is compared as it is, but it looks like {}", look.noun());
            let warning = Diagnostic::new(entry.node.place, what).with_help(
                "write whole values; `*` stands for any characters, and limits have further patterns in `when`",
            );
            section.sources.add_warning(DiagnosticCode::WildcardName, warning);
        }
        entries.push(EntryPattern { key: entry.key.clone(), value: ValuePattern::parse(&value) });
    }
    if !(1..=ENTRIES_MAX).contains(&entries.len()) {
        let what = format!("it has {} entries", entries.len());
        return section.report_fault(
            rls::DESCRIPTOR.name,
            node,
            &what,
            &format!("a descriptor has 1 to {ENTRIES_MAX} entries"),
        );
    }
    Some(DescriptorPattern { entries, is_ordered })
}

/// Reports limits that cannot decide the requests of a rule.
fn check_limits(section: &Section, limits: &[Arc<Limit>], pattern: &DescriptorPattern) -> Option<()> {
    let mut ok = Some(());
    for limit in limits {
        let Err(TextFault { what, help }) = check_limit(limit, pattern) else { continue };
        let place = place_of(section, &limit.name);
        ok = section.report_fault_at(rls::LIMITS.name, place, &format!("`{}` {what}", limit.name), &help);
    }
    ok
}

fn check_limit(limit: &Limit, pattern: &DescriptorPattern) -> Result<(), TextFault> {
    if limit.rule.lease_ms().is_some() {
        return invalid_text(
            "counts requests in progress, but Envoy does not report when a request ends",
            "use a limit of a rate, or Envoy's circuit breakers",
        );
    }
    let mut is_delaying = limit.rule.has_queue();
    limit
        .overrides
        .visit_written(|budget| is_delaying |= matches!(budget, OverrideBudget::Rule(rule) if rule.has_queue()));
    if is_delaying {
        return invalid_text(
            "delays requests, but Envoy does not wait for an answer that long",
            "set nodelay = true, or use another algorithm",
        );
    }
    if limit.forwards_excess() && limit.over != Over::Annotate {
        return invalid_text(
            "sends what exceeds it to another upstream (`over`), but here Envoy forwards requests",
            "use over = \"annotate\", which names the limit in a header and in the metadata of the request",
        );
    }
    if limit.charge_rules.as_ref().is_some_and(|rules| rules.depends_on_response()) {
        return invalid_text(
            "depends on the response (`charge_on`, `refund_on`, `clear_on`, `settle` or a cost by status), which rate limit \
             requests do not report",
            "use a limit without these options; Envoy can send the difference as hits of its own (apply_on_stream_done)",
        );
    }
    if limit.cost.reserve().is_some() {
        return invalid_text(
            "estimates its cost from the body (`reserve`), which rate limit requests do not have",
            "use another limit; Envoy sends the cost as hits_addend",
        );
    }
    let counted = limit.distinct.iter().flat_map(|distinct| &distinct.key.0);
    for part in limit.key.0.iter().chain(counted).filter(|part| **part != KeyPart::All) {
        let readable: Vec<&Source> = part.sources().iter().filter(|source| has_value(source, pattern)).collect();
        let Some(source) = readable.first() else {
            return invalid_text(
                format!("is keyed by {part}, which this descriptor does not have"),
                entry_help(pattern),
            );
        };
        check_repeated(limit, source, pattern)?;
    }
    if let Some(source) = limit.cost.sources().iter().find(|source| !has_value(source, pattern)) {
        return invalid_text(
            format!("has the cost {source}, which this descriptor does not have"),
            entry_help(pattern),
        );
    }
    if let Some(source) = limit.when.sources().find(|source| !has_value(source, pattern)) {
        return invalid_text(format!("depends on {source}, which this descriptor does not have"), entry_help(pattern));
    }
    if limit.when.reads_client() && !has_entry(pattern, ADDRESS_ENTRY) {
        let what = format!("depends on the address of the client, but this descriptor has no {ADDRESS_ENTRY}");
        return invalid_text(what, entry_help(pattern));
    }
    Ok(())
}

/// Reports a key of an entry that the descriptor has twice, which would refuse every request.
fn check_repeated(limit: &Limit, source: &Source, pattern: &DescriptorPattern) -> Result<(), TextFault> {
    let Source::Descriptor(name) = source else { return Ok(()) };
    let count = pattern.entries.iter().filter(|entry| entry.key == *name).count();
    if count > 1 && limit.repeated == Repeated::Refuse {
        let what = format!("is keyed by {source}, which this descriptor has {count} times");
        return invalid_text(what, "set repeated = \"first\" or \"last\" in the limit");
    }
    Ok(())
}

fn has_entry(pattern: &DescriptorPattern, name: &str) -> bool {
    pattern.entries.iter().any(|entry| entry.key == name)
}

/// Returns whether a descriptor that the pattern matches has a value of the source.
fn has_value(source: &Source, pattern: &DescriptorPattern) -> bool {
    match source {
        Source::Ip(_) | Source::Country => has_entry(pattern, ADDRESS_ENTRY),
        Source::Descriptor(name) => has_entry(pattern, name),
        _ => false,
    }
}

fn entry_help(pattern: &DescriptorPattern) -> String {
    let mut names: Vec<String> = pattern.entries.iter().map(|entry| format!("descriptor:{}", entry.key)).collect();
    if has_entry(pattern, ADDRESS_ENTRY) {
        names.push("ip".to_owned());
    }
    names.dedup();
    format!("it has {}", names.join(", "))
}
