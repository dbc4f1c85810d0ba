//! Compiles the rule of a limit: reads the options that its algorithm declares and lets the algorithm build the rule.
//! Called by `limits`, and by `overrides` for single keys.

use crate::config::compile::limits::dates;
use crate::config::compile::limits::fair::share_rule;
use crate::config::compile::limits::lease::has_lease_table;
use crate::config::reader::Section;
use crate::config::values;
use crate::limiting::algorithm::params::{OptionValues, Param, ParamKind, ParamValue};
use crate::limiting::algorithm::{Rule, SPECS, Spec, all_params};

/// Returns the rule and the options of `section`, or of a limit merged with an override.
pub fn compile_rule(section: &Section, spec: &Spec) -> Option<(Rule, OptionValues)> {
    let leading = spec.leading.name;
    let mut is_valid = section.node(leading).is_some();
    if !is_valid {
        let help = format!("add one, like {leading} = {}", param_example(&spec.leading));
        section.report_missing::<()>(format!("{} has no {leading}", section.title), &help);
    }
    let mut values = Vec::new();
    for param in spec.params() {
        let value = section.node(param.name).and_then(|_| read_param(section, param));
        is_valid &= value.is_some() || section.node(param.name).is_none();
        values.push((param.name, value));
    }
    let options = OptionValues::new(values, may_be_corrected(section));
    match (spec.build)(&options) {
        Ok(rule) if is_valid => share_rule(section, rule).map(|rule| (rule, options)),
        Ok(_) => None,
        Err(misfit) => {
            // Missing and malformed options have been reported already.
            if is_valid || options.has(misfit.param) {
                let place = section.node(misfit.param).map_or(section.place, |node| node.place);
                section.report_fault_at::<()>(misfit.param, place, &misfit.what, &misfit.help);
            }
            None
        }
    }
}

fn read_param(section: &Section, param: &Param) -> Option<ParamValue> {
    let name = param.name;
    match param.kind {
        ParamKind::Rate => section.parse_string(name, values::parse_rate).map(ParamValue::Rate),
        ParamKind::CalendarRate => section.parse_string(name, dates::parse_calendar_rate).map(ParamValue::CalendarRate),
        ParamKind::Integer { .. } => section.read_integer(name).map(ParamValue::Integer),
        ParamKind::Duration { .. } => {
            if name == "lease" && has_lease_table(section) {
                let what = "a concurrency limit has leases of slots, which are a duration";
                return section.report_fault(name, section.node(name)?, what, "write lease = \"15s\"");
            }
            let value = section.read_duration(name)?;
            i64::try_from(value.as_millis()).ok().map(ParamValue::Integer)
        }
        ParamKind::Flag => section.read_bool(name).map(ParamValue::Flag),
        ParamKind::Choice([first, second]) => {
            section.read_choice(name, &[(first, false), (second, true)]).map(ParamValue::Flag)
        }
        ParamKind::Zone => section.parse_string(name, dates::parse_zone).map(ParamValue::Zone),
        ParamKind::TimeOfDay => section.parse_string(name, dates::parse_time_of_day).map(ParamValue::TimeOfDay),
        ParamKind::Weekday => section.read_choice(name, dates::WEEKDAYS).map(ParamValue::Weekday),
    }
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

/// Returns whether the outcome of a request may change its charge.
fn may_be_corrected(section: &Section) -> bool {
    ["charge_on", "refund_on", "settle"].iter().any(|key| section.node(key).is_some())
}

/// Reports options that belong to other algorithms.
pub fn report_foreign_params(section: &Section, spec: Option<&Spec>) {
    for Param { name, .. } in all_params() {
        let (Some(entry), Some(spec)) = (section.entry(name), spec) else { continue };
        if spec.has_param(name) || *name == "lease" && has_lease_table(section) {
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
