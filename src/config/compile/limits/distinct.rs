//! Option `distinct` of limits: what is counted instead of requests. Called by `limits` for the values, and by `rule`
//! for the numbers.

use crate::config::compile::context::LimitContext;
use crate::config::compile::limits::compile_key_option;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::tree::Node;
use crate::limiting::algorithm::distinct::DISTINCT;
use crate::limiting::algorithm::{Rule, SPECS, Spec};
use crate::limiting::key::{Key, KeyPart};
use crate::limiting::limit::distinct::DistinctValues;
use crate::limiting::source::SourceKind;

const VALUE_HELP: &str = "write what is counted, like distinct = \"ip\"";

/// Returns the algorithm of a limit that names none.
pub fn default_algorithm(section: &Section) -> Option<&'static Spec> {
    let is_default = |spec: &&Spec| match section.node(&limit::DISTINCT) {
        Some(_) => spec.name == "sliding_log",
        None => true,
    };
    SPECS.iter().find(is_default)
}

/// Returns the rule that counts values, if the limit has `distinct`.
pub fn count_values(section: &Section, rule: Rule) -> Option<Rule> {
    let Some(node) = section.node(&limit::DISTINCT) else { return Some(rule) };
    match rule.counting_distinct() {
        Ok(rule) => Some(rule),
        Err(misfit) => {
            let option = limit::TABLE.find(misfit.param).filter(|_| misfit.param != DISTINCT);
            let place = option.and_then(|option| section.node(option)).map_or(node.place, |node| node.place);
            section.report_fault_at(misfit.param, place, &misfit.what, &misfit.help)
        }
    }
}

/// Compiles which values are counted. `None` means a mistake; `Some(None)` means that requests are.
#[expect(clippy::option_option, reason = "as every compiler of a section: None is an error")]
pub fn compile_distinct(
    section: &Section,
    key: Option<&Key>,
    context: &LimitContext,
) -> Option<Option<Box<DistinctValues>>> {
    let Some(node) = section.node(&limit::DISTINCT) else { return Some(None) };
    let values = compile_key_option(section, &limit::DISTINCT, node, context)?;
    check_values(section, node, &values, key?)?;
    let counted_key = Key(key?.0.iter().chain(&values.0).cloned().collect());
    Some(Some(Box::new(DistinctValues { key: values, counted_key })))
}

fn check_values(section: &Section, node: &Node, values: &Key, key: &Key) -> Option<()> {
    let report = |what: &str, help: &str| section.report_fault(limit::DISTINCT.name, node, what, help);
    if values.0.contains(&KeyPart::All) {
        return report("all requests would have the same value", VALUE_HELP);
    }
    if let Some(part) = values.0.iter().find(|part| key.0.contains(part)) {
        let what = format!("{part} is a part of the key, so each key has only one value");
        return report(&what, "count another source, or take it out of the key");
    }
    let is_read_from = |key: &Key, kind| key.sources().any(|source| source.kind() == kind);
    for (of_key, of_value) in [(SourceKind::Form, SourceKind::Json), (SourceKind::Json, SourceKind::Form)] {
        if is_read_from(key, of_key) && is_read_from(values, of_value) {
            let what = "no body is both a form and JSON, and the key is in the other one";
            return report(what, "read both from a form, or both from JSON");
        }
    }
    let others = [
        (&limit::SETTLE.option, "a value counts once, whatever its requests cost"),
        (&limit::STATE.option, "values are always stored as a sorted set"),
    ];
    for (option, why) in others {
        if section.node(option).is_some() {
            return report(&format!("cannot be combined with {}: {why}", option.name), "remove one of the two");
        }
    }
    Some(())
}
