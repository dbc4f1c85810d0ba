//! Compiles the rule of a limit: reads the options that its algorithm declares and lets the algorithm build the rule.
//! Called by `limits`, and by `overrides` for single keys.

use std::time::Duration;

use crate::config::compile::limits::charges::find_outcome_option;
use crate::config::compile::limits::dates;
use crate::config::compile::limits::distinct::count_values;
use crate::config::compile::limits::fair::share_rule;
use crate::config::compile::limits::lease::has_lease_table;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Node, Value};
use crate::limiting::algorithm::params::{OptionValues, Param, ParamKind, ParamValue};
use crate::limiting::algorithm::{Rule, SPECS, Spec, all_params};

/// Returns the rule and the options of `section`, or of a limit merged with an override.
pub fn compile_rule(section: &Section, spec: &Spec) -> Option<(Rule, OptionValues)> {
    let leading = spec.leading.name;
    let node = |param: &Param| row_of(param).and_then(|option| section.node(option));
    let mut is_valid = node(&spec.leading).is_some();
    if !is_valid {
        let help = format!("add one, like {leading} = {}", param_example(&spec.leading));
        section.report_missing::<()>(format!("{} has no {leading}", section.title), &help);
    }
    let mut values = Vec::new();
    for param in spec.params() {
        let value = node(param).and_then(|node| read_param(section, param, node));
        is_valid &= value.is_some() || node(param).is_none();
        values.push((param.name, value));
    }
    let may_be_corrected = find_outcome_option(section).is_some();
    let options = OptionValues::new(values, may_be_corrected);
    match (spec.build)(&options) {
        Ok(rule) if is_valid => {
            let rule = share_rule(section, rule).and_then(|rule| count_values(section, rule))?;
            let rule = warm_up_rule(section, rule)?;
            Some((rule, options))
        }
        Ok(_) => None,
        Err(misfit) => {
            // Missing and malformed options have been reported already.
            if is_valid || options.has(misfit.param) {
                let option = limit::TABLE.find(misfit.param);
                let place = option.and_then(|option| section.node(option)).map_or(section.place, |node| node.place);
                section.report_fault_at::<()>(misfit.param, place, &misfit.what, &misfit.help);
            }
            None
        }
    }
}

/// Returns the rule with the warm-up of the limit, if it has one.
fn warm_up_rule(section: &Section, rule: Rule) -> Option<Rule> {
    let Some(node) = section.node(&limit::WARM_UP) else { return Some(rule) };
    let warm_up = section.get(&limit::WARM_UP)?;
    match rule.warming_up(i64::try_from(warm_up.as_millis()).ok()?) {
        Ok(rule) => Some(rule),
        Err(misfit) => {
            let option = limit::TABLE.find(misfit.param);
            let place = option.and_then(|option| section.node(option)).map_or(node.place, |node| node.place);
            section.report_fault_at(misfit.param, place, &misfit.what, &misfit.help)
        }
    }
}

/// Returns the row of an option that an algorithm declares.
fn row_of(param: &Param) -> Option<&'static ConfigOption> {
    limit::TABLE.find(param.name)
}

fn read_param(section: &Section, param: &Param, node: &Node) -> Option<ParamValue> {
    let option = row_of(param)?;
    match param.kind {
        ParamKind::Rate => section.read_as(option).map(ParamValue::Rate),
        ParamKind::CalendarRate => {
            section.parse_string(option, dates::parse_calendar_rate).map(ParamValue::CalendarRate)
        }
        // The day of each request, whose source `limits` compiles.
        ParamKind::Integer { .. } if option.name == limit::RESETS_ON.name && has_source(node) => {
            Some(ParamValue::Integer(0))
        }
        ParamKind::Integer { .. } => section.read_as(option).map(ParamValue::Integer),
        ParamKind::Duration { .. } => {
            if option.name == limit::LEASE.name && has_lease_table(section) {
                let what = "a concurrency limit has leases of slots, which are a duration";
                return section.report_fault(option.name, node, what, "write lease = \"15s\"");
            }
            let value: Duration = section.read_as(option)?;
            i64::try_from(value.as_millis()).ok().map(ParamValue::Integer)
        }
        ParamKind::Flag | ParamKind::Choice(_) => section.read_as(option).map(ParamValue::Flag),
        ParamKind::Zone => section.parse_string(option, dates::parse_zone).map(ParamValue::Zone),
        ParamKind::TimeOfDay => section.parse_string(option, dates::parse_time_of_day).map(ParamValue::TimeOfDay),
        ParamKind::Weekday => section.read_choice(option, dates::WEEKDAYS).map(ParamValue::Weekday),
    }
}

/// Returns whether the value names a source.
pub fn has_source(node: &Node) -> bool {
    matches!(&node.value, Value::String(text) if text.value.contains(':'))
}

/// Returns an example of the option for messages.
pub fn param_example(param: &Param) -> &'static str {
    match param.kind {
        ParamKind::Rate => "\"10/s\"",
        ParamKind::CalendarRate => "\"10000/day\"",
        ParamKind::Integer { .. } => "20",
        ParamKind::Duration { .. } => "\"10s\"",
        ParamKind::Flag => "true",
        ParamKind::Choice([first, _]) => first,
        ParamKind::Zone => "\"UTC\"",
        ParamKind::TimeOfDay => "\"00:00\"",
        ParamKind::Weekday => "\"monday\"",
    }
}

/// Reports options that belong to other algorithms.
pub fn report_foreign_params(section: &Section, spec: Option<&Spec>) {
    for param in all_params() {
        let name = param.name;
        let (Some(entry), Some(spec)) = (row_of(param).and_then(|option| section.entry(option)), spec) else {
            continue;
        };
        if spec.has_param(name) || name == limit::LEASE.name && has_lease_table(section) {
            continue;
        }
        let own: Vec<&str> = spec.params().map(|param| param.name).collect();
        let owners: Vec<&str> = SPECS.iter().filter(|other| other.has_param(name)).map(|other| other.name).collect();
        let takes = format!("takes {}", own.join(", "));
        let help = match owners.len() + 1 == SPECS.len() {
            true => format!("it {takes}"),
            false => format!("`{name}` belongs to {}; {} {takes}", owners.join(" and "), spec.name),
        };
        section.report_fault_at::<()>(name, entry.place, &format!("{} has no such parameter", spec.name), &help);
    }
}
