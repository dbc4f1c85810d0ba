//! Sections `[limit.NAME]`. Called by `compile`.
//!
//! Input: the sections and facts from other sections (`LimitContext`). Output: compiled limits. `rule` reads the
//! options that an algorithm declares and `dates` those of calendars; `when` compiles conditions and `schedule` those
//! about the time, `overrides` budgets of single keys and rates that requests state, `fair` the tenants that share a
//! budget, `distinct` values that are counted, `cost` what a request costs, `charges` what its outcome changes,
//! `settlement` costs that responses report, `lease` leases of hot keys, `ban` longer refusals, `refuse` the refusal,
//! `over` what else can happen, `candidates` which limit may replace which, `tiers` limits that count several networks
//! of a client, `list` lists of limits.
//!
//! An option of an algorithm is declared by the algorithm (`limiting::algorithm`) and needs no code here.

pub(crate) mod ban;
pub(crate) mod candidates;
pub(crate) mod charges;
pub(crate) mod cost;
pub(crate) mod dates;
pub(crate) mod distinct;
pub(crate) mod fair;
pub(crate) mod lease;
pub(crate) mod list;
pub(crate) mod over;
pub(crate) mod overload;
pub(crate) mod overrides;
mod prices;
pub(crate) mod refuse;
pub(crate) mod rule;
pub(crate) mod schedule;
pub(crate) mod settlement;
pub(crate) mod tiers;
pub(crate) mod when;

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::compile::context::LimitContext;
use crate::config::compile::jwt::check_key_claim;
use crate::config::compile::limits::ban::compile_ban;
use crate::config::compile::limits::candidates::{References, check_candidates, read_mode};
use crate::config::compile::limits::charges::compile_charge_rules;
use crate::config::compile::limits::cost::{CostContext, check_cost, compile_limit_cost};
use crate::config::compile::limits::distinct::{compile_distinct, default_algorithm};
use crate::config::compile::limits::lease::compile_lease;
use crate::config::compile::limits::over::{check_over, compile_over};
use crate::config::compile::limits::overrides::key_rate::{CompiledKeyRate, compile_key_rate};
use crate::config::compile::limits::refuse::compile_own_refuse;
use crate::config::compile::limits::rule::{compile_rule, has_source, report_foreign_params};
use crate::config::compile::limits::settlement::compile_weights;
use crate::config::compile::limits::tiers::TieredSection;
use crate::config::compile::names::{Definitions, NamedSection};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::{At, Section};
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{key_part, limit};
use crate::config::source::SourceTexts;
use crate::config::tree::{Node, Value};
use crate::config::values;
use crate::config::values::TextFault;
use crate::limiting::algorithm::params::OptionValues;
use crate::limiting::algorithm::{Rule, SPECS, Spec};
use crate::limiting::decision::LimitRef;
use crate::limiting::key::{Key, KeyPart, Missing, Normalization, NormalizedPart};
use crate::limiting::limit::Limit;
use crate::limiting::limit::charge_rules::ChargeRules;
use crate::limiting::limit::cost::Cost;
use crate::limiting::limit::month_day::MonthDay;
use crate::limiting::limit::over::Over;
use crate::limiting::source::{Prefixes, Source, SourceKind};
use crate::limiting::store::shares::SHARE_MIN;

const KEY_PARTS_MAX: usize = 16;
/// Limits without their own `max_keys` are warned about if each is sure of fewer keys than this.
const KEYS_LEFT: usize = 1000;

pub fn compile_limits(
    named: Vec<NamedSection>,
    context: &LimitContext,
    upstreams: &Definitions<usize>,
) -> Definitions<Arc<Limit>> {
    let mut limits = Definitions::new(limit::TABLE.name);
    let (mut after, mut candidates) = (References::new(), References::new());
    let mut sources = None;
    let mut reserved_keys = ReservedKeys::default();
    let names: HashSet<&str> = named.iter().map(|named| named.name).collect();
    for NamedSection { name, place, section } in named {
        let texts = section.sources;
        sources = Some(texts);
        let Ok(tiered) = TieredSection::read(&section, name) else {
            limits.insert(name, place, None);
            continue;
        };
        let section = tiered.as_ref().map_or(section, |tiered| tiered.first(texts));
        let [base, incumbent] =
            [&limit::AFTER, &limit::CANDIDATE_OF].map(|option| section.parse_at(option, |text| Ok(text.to_owned())));
        let over = compile_over(&section, upstreams);
        let references = (base.as_ref(), incumbent.as_ref());
        let mut limit = compile_limit(&section, (name, name), context, references, over.clone());
        let is_sound = limit.is_some();
        for (tier, section) in tiered.iter().filter(|_| is_sound).flat_map(|tiered| tiered.wider(texts)) {
            let tier_name = tier.limit_name(name);
            if names.contains(tier_name.as_str()) {
                let what = format!("`{tier_name}` is the name of a tier, and of another limit");
                section.report_fault_at::<()>(limit::KEY.name, place, &what, "rename one of the two limits");
                continue;
            }
            let mut wider = compile_limit(&section, (&tier_name, name), context, references, over.clone());
            wider.iter_mut().for_each(|wider| tiers::restrict_to_ipv6(wider, name));
            reserved_keys.add_share(wider.as_ref(), (&section, place), context);
            limits.insert(&tier_name, place, wider.map(Arc::new));
        }
        if tiered.is_some() {
            limit.iter_mut().for_each(|limit| limit.tier_of = Some(name.to_owned()));
        }
        let limit = limit.map(Arc::new);
        after.extend(base.map(|base| (name, base)));
        candidates.extend(incumbent.map(|incumbent| (name, incumbent)));
        reserved_keys.add_share(limit.as_deref(), (&section, place), context);
        section.report_unread_keys();
        limits.insert(name, place, limit);
    }
    let Some(sources) = sources else { return limits };
    reserved_keys.warn_about_rest(sources, context);
    check_candidates(sources, &limits, &candidates, &after);
    for (name, At { place, value }) in &after {
        limits.find(sources, *place, value);
        let is_tiered = |name: &str| limits.get(name).is_some_and(|limit| limit.tier_of.is_some());
        if is_tiered(name) || is_tiered(value) {
            let message = format!("`after` in [limit.{name}]: a limit with tiers cannot be part of a chain");
            let help = "write key = \"ip\" in both, or one limit for each size of network";
            sources.add_mistake(Diagnostic::new(*place, message).with_help(help));
        }
        let mut next = value.as_str();
        for _ in 0..after.len() {
            if next == *name {
                let message = format!("`after` in [limit.{name}]: it comes after itself");
                let help = "one limit must come first, without `after`";
                sources.add_mistake(Diagnostic::new(*place, message).with_help(help));
                break;
            }
            let Some(At { value, .. }) = after.get(next) else { break };
            next = value;
        }
    }
    limits
}

/// Number of keys that limits with their own `max_keys` reserve in the memory store, and the limits that share the
/// rest.
#[derive(Default)]
struct ReservedKeys {
    keys: usize,
    /// The limit with the largest share.
    most: Option<(usize, At<String>)>,
    /// Place of the first limit without its own `max_keys`.
    first_other: Option<Place>,
    others: usize,
}

impl ReservedKeys {
    fn add_share(&mut self, limit: Option<&Limit>, (section, place): (&Section, Place), context: &LimitContext) {
        let Some(limit) = limit else { return };
        let (Some(own), Some(node)) = (limit.max_keys, section.node(&limit::MAX_KEYS)) else {
            self.first_other.get_or_insert(place);
            self.others += 1;
            return;
        };
        self.keys = self.keys.saturating_add(own);
        if self.most.as_ref().is_none_or(|(most, _)| own > *most) {
            self.most = Some((own, At { place: node.place, value: limit.name.clone() }));
        }
        if self.keys > context.max_keys {
            let (taken, all) = (self.keys, context.max_keys);
            let what = format!("the limits up to here have {taken} keys of their own, [store] has {all}");
            let help = format!("raise max_keys of [store] to {taken} or more, or lower max_keys of the limits");
            section.report_fault::<()>(limit::MAX_KEYS.name, node, &what, &help);
        }
    }

    /// Warns if too little is left for the limits without their own keys, each of which is sure of an equal part.
    fn warn_about_rest(self, sources: &SourceTexts, context: &LimitContext) {
        let ReservedKeys { keys, most, first_other: Some(first), others } = self else { return };
        let Some(rest) = context.max_keys.checked_sub(keys) else { return };
        let each = rest / others;
        if each >= KEYS_LEFT {
            return;
        }
        let Some((_, At { place, value: name })) = most else {
            if others > 1 {
                let what = format!(
                    "{others} limits share the {rest} keys in memory that `max_keys` of [store] allows, so each is sure of \
                     only {each}"
                );
                let help = format!("raise max_keys of [store] to {} or more", others.saturating_mul(KEYS_LEFT));
                sources.add_warning(DiagnosticCode::FewKeys, Diagnostic::new(first, what).with_help(help));
            }
            return;
        };
        let whose = match others {
            1 => format!("{rest} of the {} keys of [store] for the limit without", context.max_keys),
            _ => format!("{rest} of the {} keys of [store] for {others} limits without", context.max_keys),
        };
        let what = format!("`max_keys` in [limit.{name}]: limits with keys of their own leave {whose}");
        let least = keys.saturating_add(others.saturating_mul(KEYS_LEFT));
        let help = format!("raise max_keys of [store], to {least} or more, or give this limit less");
        let diagnostic = Diagnostic::new(place, what).with_help(help);
        match each < SHARE_MIN {
            true => sources.add_mistake(diagnostic),
            false => sources.add_warning(DiagnosticCode::FewKeys, diagnostic),
        }
    }
}

/// Compiles a limit. `section_name` is its name, or for a wider tier that of the limit with the tiers.
fn compile_limit(
    section: &Section,
    (name, section_name): (&str, &str),
    context: &LimitContext,
    (after, incumbent): (Option<&At<String>>, Option<&At<String>>),
    over: Option<Over>,
) -> Option<Limit> {
    let algorithms: Vec<(&str, &'static Spec)> = SPECS.iter().map(|spec| (spec.name, spec)).collect();
    let spec = match section.node(&limit::ALGORITHM) {
        Some(_) => section.read_choice(&limit::ALGORITHM, &algorithms),
        None => default_algorithm(section),
    };
    let (stated, rule) = compile_rate(section, spec, context);
    let with_highest = stated.as_ref().map(|stated| &stated.with_highest);
    report_foreign_params(section, spec);
    let key = compile_key(section, context);
    let when = when::compile_when(section, context);
    let overrides =
        overrides::compile_overrides(section, with_highest, spec, rule.is_some(), key.as_ref(), context.hasher);
    let fair = fair::compile_fair(section, rule.as_ref().map(|(rule, _)| rule), key.as_ref(), context);
    let [after, candidate_of] = [after, incumbent].map(|name| name.map(|at| at.value.clone()));
    let weights = compile_weights(section);
    let cost = compile_limit_cost(section, weights.clone());
    let missing = section.get(&limit::MISSING);
    let possible = key.as_ref().is_none_or(|key| check_body_sources(section, key, missing).is_some());
    let distinct = compile_distinct(section, key.as_ref(), context);
    let repeated = section.get(&limit::REPEATED);
    let not_integer = section.get(&limit::NOT_INTEGER);
    let mode = read_mode(section, incumbent.is_some());
    let on_error = section.get(&limit::ON_ERROR).unwrap_or(context.on_error);
    let max_keys = section.get(&limit::MAX_KEYS);
    let afterwards =
        compile_charge_rules(section, rule.as_ref(), weights.as_ref(), cost.as_ref().and_then(Cost::reserve));
    let refunded_for = context.find_refunding_upstream(section_name, incumbent.map(|at| &*at.value));
    let is_repriced = context.is_repriced(section_name, incumbent.map(|at| &*at.value));
    let lease = compile_lease(section, rule.as_ref().map(|(rule, _)| rule), refunded_for);
    let refuse = compile_own_refuse(section).map(Arc::new);
    let month_day = compile_month_day(section, rule.as_ref().map(|(rule, _)| rule), context)?;
    let ban = compile_ban(section, name);
    let ((rule, _), key, cost, when) = (rule?, key?, cost?, when?);
    let (overrides, fair, afterwards, over, lease, ban) = (overrides?, fair?, afterwards?, over?, lease?, ban?);
    possible.then_some(())?;
    let settles = afterwards.as_ref().is_some_and(|rules| rules.settle.is_some());
    check_cost(section, &cost, CostContext { rule: &rule, settles, has_lease: lease.is_some() })?;
    check_over(section, &rule, &over)?;
    let rule = Arc::new(rule);
    let afterwards = add_overload_refunds(afterwards, refunded_for.is_some());
    let afterwards = afterwards.unwrap_or_default().with_status_prices(cost.status_prices());
    let afterwards = afterwards.unless_default().map(Arc::new);
    let store_ref = LimitRef::new(name, &cost, afterwards.as_ref(), lease).with_usage(read_usage_days(section));
    let limit = Limit {
        name: name.to_owned(),
        store_ref: if is_repriced { store_ref.to_refundable() } else { store_ref },
        rule,
        keeps_slashes: section.sources.keeps_slashes(),
        key,
        missing,
        repeated,
        not_integer,
        cost,
        mode,
        over,
        on_error,
        when,
        overrides: Arc::new(overrides),
        after,
        candidate_of,
        tier_of: None,
        max_keys,
        charge_rules: afterwards,
        ban,
        fair,
        distinct: distinct?,
        refuse,
        key_rate: stated.map(|stated| stated.rate),
        month_day,
        call_protocol: None,
    };
    set_call_protocol(section, limit.with_varying_refusals())
}

/// Compiles the rule, and the rate that requests state. If they do, the rule has the highest one. A mistake leaves the
/// rule out.
fn compile_rate(
    section: &Section,
    spec: Option<&'static Spec>,
    context: &LimitContext,
) -> (Option<CompiledKeyRate>, Option<(Rule, OptionValues)>) {
    let Some(spec) = spec else {
        // Read only to report its mistakes.
        return (None, section.parse_string(&limit::RATE, values::parse_rate).and(None));
    };
    match compile_key_rate(section, spec, context) {
        Some(None) => (None, compile_rule(section, spec)),
        stated => {
            // The rule is compiled from a copy of the section.
            section.node(&limit::WARM_UP);
            let stated = stated.flatten();
            let rule = stated.as_ref().and_then(|stated| {
                let title = section.title.clone();
                compile_rule(&Section::new(section.sources, &limit::TABLE, title, &stated.with_highest), spec)
            });
            (stated, rule)
        }
    }
}

/// Sets what calls the limit reads. Reports one that reads JSON-RPC calls and GraphQL operations: no request has both.
fn set_call_protocol(section: &Section, limit: Limit) -> Option<Limit> {
    let limit = limit.with_call_protocol();
    let other = limit.sources().find(|source| source.reads_calls() && source.call_protocol() != limit.call_protocol);
    let (Some(other), Some(first)) = (other, limit.sources().find(|source| source.reads_calls())) else {
        return Some(limit);
    };
    let message = format!("{} reads `{first}` and `{other}`, and no request has both", section.title);
    section.report_missing(message, "make it two limits")
}

/// Returns for how many days `usage` keeps what keys used. Part of a day counts as a whole one.
fn read_usage_days(section: &Section) -> Option<u16> {
    section.get(&limit::USAGE).and_then(|kept| u16::try_from(kept.as_secs().div_ceil(86_400)).ok())
}

/// Compiles `resets_on` if it names a source. The outer `None` means a mistake.
fn compile_month_day(section: &Section, rule: Option<&Rule>, context: &LimitContext) -> Option<Option<Box<MonthDay>>> {
    let Some(node) = section.node(&limit::RESETS_ON).filter(|node| has_source(node)) else { return Some(None) };
    let help = || format!("write a day from 1 to 31, {}", values::describe_sources(MonthDay::SOURCES));
    let source = section.parse_node(limit::RESETS_ON.name, node, |text| {
        values::parse_source(text, MonthDay::SOURCES, &help()).and_then(|source| context.check_readable(source))
    })?;
    Some(MonthDay::new(source, rule?).map(Box::new))
}

/// Returns the rules with refunds of what an overloaded upstream refuses, if `is_refunded`.
fn add_overload_refunds(rules: Option<ChargeRules>, is_refunded: bool) -> Option<ChargeRules> {
    match rules {
        None if is_refunded => Some(ChargeRules { refund_overload: true, ..ChargeRules::default() }),
        rules => rules.map(|rules| ChargeRules { refund_overload: is_refunded, ..rules }),
    }
}

fn compile_key(section: &Section, context: &LimitContext) -> Option<Key> {
    let Some(node) = section.node(&limit::KEY) else {
        return Some(Key(vec![KeyPart::Source(Source::Ip(Prefixes::default()))]));
    };
    compile_key_option(section, &limit::KEY, node, context)
}

/// Compiles the key that option `name` describes.
pub fn compile_key_option(
    section: &Section,
    option: &ConfigOption,
    node: &Node,
    context: &LimitContext,
) -> Option<Key> {
    let items = match &node.value {
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    // Every part is read, to find all mistakes, before one of them fails the key.
    let parts: Vec<_> = items.iter().map(|item| read_key_part(section, option, item)).collect();
    let parts: Vec<At<KeyPart>> = parts.into_iter().collect::<Option<_>>()?;
    if parts.is_empty() {
        let help = match option.name == limit::KEY.name {
            true => "for one budget shared by all, write key = \"all\"",
            false => "name a source, like \"ip\"",
        };
        return section.report_fault(option.name, node, "the list is empty", help);
    }
    if parts.len() > KEY_PARTS_MAX {
        return section.report_fault(
            option.name,
            node,
            &format!("{} parts", parts.len()),
            &format!("a key may have {KEY_PARTS_MAX}"),
        );
    }
    let mut key: Vec<KeyPart> = Vec::with_capacity(parts.len());
    for At { place, value: part } in parts {
        for source in part.sources() {
            let readable = context.check_readable(source.clone());
            if let Err(TextFault { what, help }) = readable.and_then(|source| check_key_claim(&source)) {
                return section.report_fault_at(option.name, place, &what, &help);
            }
        }
        let has_same = |earlier: &KeyPart| {
            *earlier == part || earlier.sources().iter().any(|source| part.sources().contains(source))
        };
        if key.iter().any(has_same) {
            return section.report_fault_at(option.name, place, "this part occurs twice", "remove one of the two");
        }
        key.push(part);
    }
    Some(Key(key))
}

/// Reads a part of a key: a string, or a table with `normalize`.
fn read_key_part(section: &Section, option: &ConfigOption, item: &Node) -> Option<At<KeyPart>> {
    let value = match &item.value {
        Value::String(_) => section.parse_node(option.name, item, values::parse_key_part)?,
        Value::Table(table) => {
            let title = format!("`{}` of {}", option.name, section.title);
            let part = Section::new(section.sources, &key_part::TABLE, title, table);
            let (source, steps) = (part.parse_at(&key_part::SOURCE, values::parse_key_part), read_steps(&part));
            if part.node(&key_part::SOURCE).is_none() {
                let message = format!("{} has no source", part.title);
                part.report_missing::<()>(message, "write { source = \"form:email\", normalize = [\"lowercase\"] }");
            }
            part.report_unknown();
            let (At { place, value: source }, steps) = (source?, steps?);
            if source.sources().iter().all(|source| source.kind() == SourceKind::Ip) {
                let what = format!("`{source}` has one spelling only");
                let help = format!("write \"{source}\" in place of the table");
                return part.report_fault_at(key_part::SOURCE.name, place, &what, &help);
            }
            KeyPart::Normalized(Box::new(NormalizedPart { part: source, steps }))
        }
        _ => return section.report_wrong_type(option.name, "a string, a table, or a list of them", item),
    };
    Some(At { place: item.place, value })
}

/// Reads the steps of a normalization.
fn read_steps(part: &Section) -> Option<Vec<Normalization>> {
    let Some(node) = part.node(&key_part::NORMALIZE) else {
        let message = format!("{} has no normalize", part.title);
        let help = "write normalize = [\"lowercase\"], or the source alone in place of the table";
        return part.report_missing(message, help);
    };
    let steps = part.read(&key_part::NORMALIZE)?;
    if steps.is_empty() {
        let help = "write normalize = [\"lowercase\"], or the source alone in place of the table";
        return part.report_fault(key_part::NORMALIZE.name, node, "the list is empty", help);
    }
    match steps.iter().enumerate().find(|(at, step)| steps[..*at].contains(step)) {
        Some((_, step)) => {
            let what = format!("`{}` occurs twice", step.label());
            part.report_fault(key_part::NORMALIZE.name, node, &what, "remove one of the two")
        }
        None => Some(steps),
    }
}

/// Reports a key that no request can have completely: no body is both a form and JSON.
fn check_body_sources(section: &Section, key: &Key, missing: Missing) -> Option<()> {
    let needs = |kind: SourceKind| {
        key.0
            .iter()
            .find(|part| !part.sources().is_empty() && part.sources().iter().all(|source| source.kind() == kind))
    };
    let (Some(form), Some(json), Some(node)) =
        (needs(SourceKind::Form), needs(SourceKind::Json), section.node(&limit::KEY))
    else {
        return Some(());
    };
    let what = "no body is both a form and JSON, so one of these parts is always absent";
    let help = format!("write \"{form}{}{json}\" for one budget by whichever the body has", KeyPart::OR);
    match missing {
        Missing::Skip => {
            section.report_fault(limit::KEY.name, node, &format!("{what} and the limit never applies"), &help)
        }
        Missing::Refuse => {
            section.report_fault(limit::KEY.name, node, &format!("{what} and every request is refused"), &help)
        }
        Missing::Shared => {
            let what = format!("`key` in {}: {what}: a client has two budgets, one in each", section.title);
            section
                .sources
                .add_warning(DiagnosticCode::TwoBodyTypes, Diagnostic::new(node.place, what).with_help(help));
            Some(())
        }
    }
}
