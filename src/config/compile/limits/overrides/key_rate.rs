//! A rate that requests state: `rate = "jwt:rate"` with `rate_within`, or with `rates` by plan. Called by `limits`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::compile::context::LimitContext;
use crate::config::compile::limits::dates;
use crate::config::compile::limits::overrides::{compile_budget, compile_live_budget};
use crate::config::compile::limits::rule::has_source;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::pattern_look::PatternLook;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::tree::{Node, Table, TableEntry, Value};
use crate::config::values;
use crate::limiting::algorithm::dates::CalendarUnit;
use crate::limiting::algorithm::params::ParamKind;
use crate::limiting::algorithm::{Rule, Spec};
use crate::limiting::limit::key_rate::{KeyRate, KeyRates, NumberedRates};
use crate::limiting::overrides::table::OverrideBudget;

/// A rate that requests state, and the options of the limit with the highest one in its place.
pub struct CompiledKeyRate {
    pub rate: Box<KeyRate>,
    pub with_highest: Table,
}

const RATE: &str = limit::RATE.option.name;
const WITHIN: &str = limit::RATE_WITHIN.option.name;
const RATES: &str = limit::RATES.option.name;
/// Name of the rate of keys without a plan that is listed.
const DEFAULT: &str = "default";
/// Maximum number of plans.
const PLANS_MAX: usize = 1000;
const HELP: &str =
    "write rate_within = [\"10/min\", \"1000/min\"] for a number, or rates = { free = \"10/min\" } for a plan";

/// Compiles the rate if it names a source. The outer `None` means a mistake.
pub fn compile_key_rate(
    section: &Section,
    spec: &'static Spec,
    context: &LimitContext,
) -> Option<Option<CompiledKeyRate>> {
    let (within, rates) = (section.node(&limit::RATE_WITHIN), section.node(&limit::RATES));
    let Some(node) = section.node(&limit::RATE).filter(|node| has_source(node) && spec.leading.name == RATE) else {
        let what = "the rate of the limit names no source";
        let help = "write rate = \"jwt:rate\", or remove this option";
        let surplus = within.map(|node| (WITHIN, node)).or(rates.map(|node| (RATES, node)));
        return surplus.map_or(Some(None), |(name, node)| section.report_fault(name, node, what, help));
    };
    let help = || format!("write a rate, {}", values::describe_sources(KeyRate::SOURCES));
    let source = section.parse_node(RATE, node, |text| {
        values::parse_source(text, KeyRate::SOURCES, &help()).and_then(|source| context.check_readable(source))
    })?;
    let mut base = section.written_table().clone();
    let others = [limit::OVERRIDES.name, limit::WHEN.name, limit::KEY.name, RATE, WITHIN, RATES];
    base.entries.retain(|entry| !others.contains(&entry.key.as_str()));
    let rated = Rated { section, spec, base: Arc::new(base) };
    let (rates, highest) = match (within, rates) {
        (Some(within), None) => rated.compile_numbers(within)?,
        (None, Some(node)) => rated.compile_plans(node)?,
        (Some(_), Some(rates)) => {
            return section.report_fault(RATES, rates, "the limit has `rate_within` as well", "keep one of the two");
        }
        (None, None) => return section.report_fault(RATE, node, "it is not said which rates are possible", HELP),
    };
    let mut with_highest = section.written_table().clone();
    for entry in with_highest.entries.iter_mut().filter(|entry| entry.key == RATE) {
        entry.node = highest.clone();
    }
    Some(Some(CompiledKeyRate { rate: Box::new(KeyRate { source, rates }), with_highest }))
}

/// A limit without its rate.
struct Rated<'s> {
    section: &'s Section<'s>,
    spec: &'static Spec,
    base: Arc<Table>,
}

impl Rated<'_> {
    /// Compiles the lowest and the highest rate. Returns the value of the highest, too.
    fn compile_numbers<'n>(&self, node: &'n Node) -> Option<(KeyRates, &'n Node)> {
        let section = self.section;
        let Value::Array(items) = &node.value else { return section.report_wrong_type(WITHIN, "a list", node) };
        let [low, high] = items.as_slice() else {
            return section.report_fault(WITHIN, node, "it has not two rates", "write the lowest and the highest");
        };
        let parts = |node: &Node| match &node.value {
            Value::String(text) => {
                let (count, unit) = text.value.split_once('/')?;
                Some((count.trim().parse::<i64>().ok()?, unit.trim().to_owned()))
            }
            _ => None,
        };
        let (Some((least, unit)), Some((most, other))) = (parts(low), parts(high)) else {
            return section.report_fault(WITHIN, node, "it has not two rates", "write [\"10/min\", \"1000/min\"]");
        };
        if unit != other || least < 0 || most <= least {
            let what = "the second rate is not a higher one of the same period";
            return section.report_fault(WITHIN, node, what, "write [\"10/min\", \"1000/min\"]");
        }
        self.compile_rate(high)?;
        let lowest = match least {
            0 => OverrideBudget::Blocked,
            _ => self.compile_rate(low)?,
        };
        let (spec, base) = (self.spec, self.base.clone());
        let compile = move |number: i64| match compile_live_budget(spec, &base, &format!("{RATE}={number}/{unit}")) {
            Ok((OverrideBudget::Rule(rule), _)) => Some(Rule::clone(&rule)),
            _ => None,
        };
        let is_calendar = matches!(self.spec.leading.kind, ParamKind::CalendarRate);
        let period = parse_period(is_calendar, &other)?;
        let is_period = move |text: &str| parse_period(is_calendar, text) == Some(period);
        let rates = NumberedRates::new((least.max(1), most), lowest, (Box::new(compile), Box::new(is_period)));
        Some((KeyRates::Numbers(Arc::new(rates)), high))
    }

    /// Compiles the rates of all plans. Returns the value of the highest, too.
    fn compile_plans<'n>(&self, node: &'n Node) -> Option<(KeyRates, &'n Node)> {
        let section = self.section;
        let Value::Table(table) = &node.value else { return section.report_wrong_type(RATES, "a table", node) };
        if table.entries.is_empty() || table.entries.len() > PLANS_MAX {
            let what = format!("{} rates", table.entries.len());
            return section.report_fault(RATES, node, &what, &format!("list 1 to {PLANS_MAX}"));
        }
        let (mut plans, mut default, mut is_whole) = (HashMap::new(), OverrideBudget::Blocked, true);
        let mut highest: Option<(i128, i128, &Node)> = None;
        for entry in &table.entries {
            let Some(budget) = self.compile_rate(&entry.node) else {
                is_whole = false;
                continue;
            };
            if let OverrideBudget::Rule(rule) = &budget {
                let policy = rule.policy();
                let (quota, window_ms) = (i128::from(policy.quota), i128::from(policy.window_ms.max(1)));
                if highest.is_none_or(|(most, per_ms, _)| quota * per_ms > most * window_ms) {
                    highest = Some((quota, window_ms, &entry.node));
                }
            }
            match entry.key.as_str() {
                DEFAULT => default = budget,
                plan => {
                    if let Some(look) = PatternLook::of(plan) {
                        let what = format!("plans are compared as they are, but `{plan}` looks like {}", look.noun());
                        let warning = Diagnostic::new(entry.place, what)
                            .with_help("write the whole name of each plan; `default` is for all others");
                        section.sources.add_warning(DiagnosticCode::WildcardName, warning);
                    }
                    plans.insert(plan.to_owned(), budget);
                }
            }
        }
        is_whole.then_some(())?;
        let Some((_, _, highest)) = highest else {
            return section.report_fault(RATES, node, "no plan has a rate", "write a rate, like free = \"10/min\"");
        };
        Some((KeyRates::Plans { plans, default }, highest))
    }

    fn compile_rate(&self, node: &Node) -> Option<OverrideBudget> {
        let rate = TableEntry { key: RATE.to_owned(), place: node.place, node: node.clone() };
        compile_budget(self.section.sources, &self.section.title, self.spec, &self.base, vec![rate])
    }
}

/// The period of a rate: its length in ms, or its calendar unit.
#[derive(Clone, Copy, PartialEq)]
enum Period {
    Length(i64),
    Unit(CalendarUnit),
}

/// Parses the text after the slash of a rate.
fn parse_period(is_calendar: bool, text: &str) -> Option<Period> {
    let rate = format!("1/{text}");
    match is_calendar {
        true => dates::parse_calendar_rate(&rate).ok().map(|rate| Period::Unit(rate.unit)),
        false => values::parse_rate(&rate).ok().map(|rate| Period::Length(rate.per_ms)),
    }
}
