//! The numbers of a limit, in the words of the file: reads the options that an algorithm states and
//! has it build a rule of them. Called by `limit`, and by `overrides` for the numbers of single keys.

use std::time::Duration;

use super::dates;
use crate::config::reader::Section;
use crate::config::values;
use crate::limit::algo::params::{Given, Param, ParamKind, ParamValue};
use crate::limit::algo::{Rule, SPECS, Spec, all_params};

/// The rule that the options of `section` make, and what they are; also those of a limit with an override
/// laid over.
pub fn rule(section: &Section, spec: &Spec) -> Option<(Rule, Given)> {
    let leading = spec.leading.name;
    let mut whole = section.node(leading).is_some();
    if !whole {
        let help = format!("add one, like {leading} = {}", example(&spec.leading));
        section.absent::<()>(format!("{} has no {leading}", section.title), &help);
    }
    let mut values = Vec::new();
    for param in spec.params() {
        let value = section.node(param.name).and_then(|_| read(section, param));
        whole &= value.is_some() || section.node(param.name).is_none();
        values.push((param.name, value));
    }
    let given = Given::new(values, corrected(section));
    match (spec.build)(&given) {
        Ok(rule) => whole.then_some((rule, given)),
        Err(misfit) => {
            // Of what is not there, or is wrong by itself, it has been said.
            if whole || given.has(misfit.param) {
                let place = section.node(misfit.param).map_or(section.place, |node| node.place);
                section.fault_at::<()>(misfit.param, place, &misfit.what, &misfit.help);
            }
            None
        }
    }
}

fn read(section: &Section, param: &Param) -> Option<ParamValue> {
    let name = param.name;
    match param.kind {
        ParamKind::Rate => section.parse(name, values::rate).map(ParamValue::Rate),
        ParamKind::Dated => section.parse(name, dates::rate).map(ParamValue::Dated),
        ParamKind::Integer { least, most } => section.integer(name, least..=most).map(ParamValue::Integer),
        ParamKind::Duration { least_ms, most_ms } => {
            let [least, most] = [least_ms, most_ms].map(|ms| Duration::from_millis(ms.unsigned_abs()));
            let value = section.duration(name, least..=most)?;
            i64::try_from(value.as_millis()).ok().map(ParamValue::Integer)
        }
        ParamKind::Flag => section.bool(name).map(ParamValue::Flag),
        ParamKind::Either([first, second]) => {
            section.choice(name, &[(first, false), (second, true)]).map(ParamValue::Flag)
        }
        ParamKind::Zone => section.parse(name, dates::zone).map(ParamValue::Zone),
        ParamKind::TimeOfDay => section.parse(name, dates::time_of_day).map(ParamValue::TimeOfDay),
        ParamKind::Weekday => section.choice(name, dates::WEEKDAYS).map(ParamValue::Weekday),
    }
}

/// How it is written, for whoever has to.
pub fn example(param: &Param) -> &'static str {
    match param.kind {
        ParamKind::Rate => "\"10/s\"",
        ParamKind::Dated => "\"10000/day\"",
        ParamKind::Integer { .. } => "20",
        ParamKind::Duration { .. } => "\"10s\"",
        ParamKind::Flag => "true",
        ParamKind::Either([first, _]) => first,
        ParamKind::Zone => "\"UTC\"",
        ParamKind::TimeOfDay => "\"00:00\"",
        ParamKind::Weekday => "\"monday\"",
    }
}

/// Whether the end of a request may change what it was charged.
fn corrected(section: &Section) -> bool {
    ["charge_on", "refund_on", "settle"].iter().any(|key| section.node(key).is_some())
}

/// Reports the options of other algorithms.
pub fn strangers(section: &Section, spec: Option<&Spec>) {
    for Param { name, .. } in all_params() {
        let (Some(entry), Some(spec)) = (section.entry(name), spec) else { continue };
        if spec.has(name) {
            continue;
        }
        let own: Vec<&str> = spec.params().map(|param| param.name).collect();
        let owners: Vec<&str> = SPECS.iter().filter(|other| other.has(name)).map(|other| other.name).collect();
        let takes = format!("takes {}", own.join(", "));
        let help = match owners.len() + 1 == SPECS.len() {
            true => format!("it {takes}"),
            false => format!("`{name}` belongs to {}; {} {takes}", owners.join(" and "), spec.name),
        };
        section.fault_at::<()>(name, entry.place, &format!("{} has no such parameter", spec.name), &help);
    }
}
