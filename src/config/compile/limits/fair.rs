//! `fair` of a limit: tenants that share a budget. Called by `limits` for the tenants, and by `rule` for the numbers.

use std::collections::HashMap;

use crate::config::compile::context::LimitContext;
use crate::config::compile::limits::compile_key_option;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Node, Table as Tree, Value};
use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::fair::{FAIR, FairSettings, WEIGHT_MAX};
use crate::limiting::fair_share::FairShare;
use crate::limiting::key::{Key, KeyPart};
use crate::limiting::overrides::table::{OverrideValue, join_values, parse_field};
use crate::limiting::source::SourceOrigin;

const KEY_HELP: &str = "write what identifies a tenant, like key = \"header:x-tenant\"";

/// Returns the rule whose budget tenants share, if the limit has `fair`.
pub fn share_rule(section: &Section, rule: Rule) -> Option<Rule> {
    let Some(node) = section.node(&limit::FAIR) else { return Some(rule) };
    // `compile_fair` reports another type.
    let Value::Table(table) = &node.value else { return None };
    let fair = Section::new(section.sources, &limit::fair::TABLE, format!("`{FAIR}`"), table);
    // A wrong value has been reported, and what the others mean together is not.
    let is_wrong = |is_read: bool, option: &ConfigOption| !is_read && fair.node(option).is_some();
    let reserve = fair.get(&limit::fair::RESERVE);
    let active = fair.get(&limit::fair::ACTIVE);
    let (weight, max_active) = (fair.get(&limit::fair::WEIGHT), fair.get(&limit::fair::MAX_ACTIVE));
    if is_wrong(reserve.is_some(), &limit::fair::RESERVE) || is_wrong(active.is_some(), &limit::fair::ACTIVE) {
        return None;
    }
    let settings = FairSettings {
        reserve,
        active_ms: active.and_then(|active| i64::try_from(active.as_millis()).ok()),
        weight,
        max_active,
    };
    match rule.shared_fairly(settings) {
        Ok(rule) => Some(rule),
        Err(misfit) => {
            let option = limit::TABLE.find(misfit.param).filter(|_| misfit.param != FAIR);
            let place = option.and_then(|option| section.node(option)).map_or(node.place, |node| node.place);
            section.report_fault_at(misfit.param, place, &misfit.what, &misfit.help)
        }
    }
}

/// Compiles who the tenants are. `None` means a mistake; `Some(None)` means that there are none.
#[expect(clippy::option_option, reason = "as every compiler of a section: None is an error")]
pub fn compile_fair(
    section: &Section,
    rule: Option<&Rule>,
    key: Option<&Key>,
    context: &LimitContext,
) -> Option<Option<Box<FairShare>>> {
    if section.node(&limit::FAIR).is_none() {
        return Some(None);
    }
    let fair = section.read_section(&limit::FAIR)?;
    let tenants = match fair.node(&limit::fair::KEY) {
        Some(node) => {
            compile_key_option(&fair, &limit::fair::KEY, node, context).filter(|key| check_key(&fair, node, key))
        }
        None => fair.report_missing(format!("`fair` of {} has no key", section.title), KEY_HELP),
    };
    let weights = match (fair.read_table(&limit::fair::WEIGHTS), &tenants) {
        (Some(table), Some(key)) => compile_weights(&fair, table, key),
        _ => Some(HashMap::new()),
    };
    // These are read with the rule.
    for option in limit::fair::TABLE.options {
        let _ = fair.node(option);
    }
    fair.report_unknown();
    let (tenants, weights, key, Rule::Fair(rule)) = (tenants?, weights?, key?, rule?) else { return None };
    let counted_key = Key(key.0.iter().chain(&tenants.0).cloned().collect());
    Some(Some(Box::new(FairShare { key: tenants, counted_key, weight: rule.weight, weights })))
}

fn check_key(fair: &Section, node: &Node, key: &Key) -> bool {
    if key.0.contains(&KeyPart::All) {
        return fair
            .report_fault::<()>(limit::fair::KEY.name, node, "all requests would be one tenant", KEY_HELP)
            .is_some();
    }
    if key.sources().any(|source| source.kind().origin() == SourceOrigin::Body) {
        let what = "a tenant cannot be read from the body";
        return fair.report_fault::<()>(limit::fair::KEY.name, node, what, KEY_HELP).is_some();
    }
    true
}

/// Compiles the weights by tenant.
fn compile_weights(fair: &Section, table: &Tree, key: &Key) -> Option<HashMap<Box<str>, i64>> {
    let mut weights = HashMap::with_capacity(table.entries.len());
    let mut whole = true;
    for entry in &table.entries {
        let name = format!("weights.{}", entry.key);
        let Value::Integer(weight) = entry.node.value else {
            whole = fair.report_wrong_type::<()>(&name, "an integer", &entry.node).is_some();
            continue;
        };
        if !(1..=WEIGHT_MAX).contains(&weight) {
            let what = format!("it must be from 1 to {WEIGHT_MAX}");
            whole = fair.report_fault::<()>(&name, &entry.node, &what, "").is_some();
            continue;
        }
        match tenant_values(&entry.key, key) {
            Ok(values) => {
                let sources = key.0.iter().flat_map(|part| part.sources());
                let merged = sources.filter(|_| key.0.len() == 1).find_map(|source| source.merge_written(&values));
                merged.into_iter().for_each(|merged| fair.sources.add_slashed_value(entry.place, merged));
                weights.insert(values, weight);
            }
            Err(what) => {
                let help = "write the value of the tenant; `,`, `%` and bytes other than visible ASCII as %XX";
                whole = fair.report_fault_at::<()>(&name, entry.place, &what, help).is_some();
            }
        }
    }
    whole.then_some(weights)
}

/// Returns the values of a tenant as requests have them, from the field that the config has.
fn tenant_values(field: &str, key: &Key) -> Result<Box<str>, String> {
    let mut values: Vec<OverrideValue> = parse_field(field.as_bytes()).collect();
    if values.len() != key.0.len() {
        return Err(format!("it has {} values, and the key has {} parts", values.len(), key.0.len()));
    }
    for (part, value) in key.0.iter().zip(&mut values) {
        match value {
            OverrideValue::Bytes(bytes) => *bytes = part.canonicalize_written(std::mem::take(bytes))?,
            OverrideValue::Any | OverrideValue::Hash(_) => {
                return Err("weights are for single tenants, not for `*` or a hash".to_owned());
            }
        }
    }
    Ok(join_values(&values).into())
}
