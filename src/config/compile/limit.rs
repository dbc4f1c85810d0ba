//! `[limit.NAME]`: whose budget, how much, and what else is said of it. Called by `compile`.

use std::collections::HashMap;
use std::sync::Arc;

use super::afterwards::afterwards;
use super::context::LimitContext;
use super::names::{Definitions, NamedSection};
use super::numbers::usize_of;
use super::refuse::own_refuse;
use super::rule::{rule, strangers};
use super::{overrides, when};
use crate::config::reader::{At, Section};
use crate::config::report::Diagnostic;
use crate::config::schema;
use crate::config::source::SourceTexts;
use crate::config::tree::{Node, Value};
use crate::config::values::{self, Fault};
use crate::limit::algo::{SPECS, Spec};
use crate::limit::integers::NotInteger;
use crate::limit::key::{COST_MAX, Cost, Key, KeyPart, Missing};
use crate::limit::limits::{Limit, Mode, OnError, id};
use crate::limit::source::{Prefixes, Repeated, Source, SourceKind};
use crate::limit::store::shares::SHARE_MIN;

const KEY_PARTS_MAX: usize = 16;
const KEYS_MIN: i64 = SHARE_MIN as i64;
/// Limits without keys of their own to which those of others leave less than this are told of.
const KEYS_LEFT: usize = 1000;

pub fn limits(named: Vec<NamedSection>, context: &LimitContext) -> Definitions<Arc<Limit>> {
    let mut limits = Definitions::new(schema::LIMIT.name);
    let mut after: HashMap<&str, At<String>> = HashMap::new();
    let mut sources = None;
    let mut taken = SharesTaken::default();
    for NamedSection { name, place, section } in named {
        let base = section.parse_at("after", |text| Ok(text.to_owned()));
        let limit = limit(&section, name, context, base.as_ref()).map(Arc::new);
        after.extend(base.map(|base| (name, base)));
        sources = Some(section.sources);
        taken.note(limit.as_deref(), &section, context);
        section.finish();
        limits.insert(name, place, limit);
    }
    let Some(sources) = sources else { return limits };
    taken.look_at_rest(sources, context);
    for (name, At { place, value }) in &after {
        limits.find(sources, *place, value);
        let mut next = value.as_str();
        for _ in 0..after.len() {
            if next == *name {
                let message = format!("`after` in [limit.{name}]: it comes after itself");
                let help = "one limit must come first, without `after`";
                sources.mistake(Diagnostic::new(*place, message).help(help));
                break;
            }
            let Some(At { value, .. }) = after.get(next) else { break };
            next = value;
        }
    }
    limits
}

/// What limits with keys of their own take of those in memory.
#[derive(Default)]
struct SharesTaken {
    keys: usize,
    /// By the limit that takes most.
    most: Option<(usize, At<String>)>,
    others: usize,
}

impl SharesTaken {
    fn note(&mut self, limit: Option<&Limit>, section: &Section, context: &LimitContext) {
        let Some(limit) = limit else { return };
        let (Some(own), Some(node)) = (limit.max_keys, section.node("max_keys")) else {
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
            let help = format!("raise max_keys of [store] to {taken} or more, or give the limits less");
            section.fault::<()>("max_keys", node, &what, &help);
        }
    }

    /// What is left is for the others, in equal parts.
    fn look_at_rest(self, sources: &SourceTexts, context: &LimitContext) {
        let SharesTaken { keys, most: Some((_, At { place, value: name })), others } = self else { return };
        let Some(rest) = context.max_keys.checked_sub(keys).filter(|_| others > 0) else { return };
        let each = rest / others;
        if each >= KEYS_LEFT {
            return;
        }
        let whose = match others {
            1 => format!("{rest} of the {} keys of [store] for the limit without", context.max_keys),
            _ => format!("{rest} of the {} keys of [store] for {others} limits without", context.max_keys),
        };
        let what = format!("`max_keys` in [limit.{name}]: limits with keys of their own leave {whose}");
        let least = keys.saturating_add(others.saturating_mul(KEYS_LEFT));
        let help = format!("raise max_keys of [store], to {least} or more, or give this limit less");
        let diagnostic = Diagnostic::new(place, what).help(help);
        match each < SHARE_MIN {
            true => sources.mistake(diagnostic),
            false => sources.warn(diagnostic),
        }
    }
}

fn limit(section: &Section, name: &str, context: &LimitContext, after: Option<&At<String>>) -> Option<Limit> {
    let algorithms: Vec<(&str, &'static Spec)> = SPECS.iter().map(|spec| (spec.name, spec)).collect();
    let spec = match section.node("algorithm") {
        Some(_) => section.choice("algorithm", &algorithms),
        None => SPECS.first(),
    };
    let rule = match spec {
        Some(spec) => rule(section, spec),
        // For its mistakes.
        None => section.parse("rate", values::rate).and(None),
    };
    strangers(section, spec);
    let key = key(section, context);
    let when = when::when(section, context);
    let overrides = overrides::overrides(section, spec, rule.is_some(), key.as_ref());
    let after = after.map(|at| at.value.clone());
    let cost = cost(section);
    let missing = section.label("missing", Missing::ALL, Missing::label).unwrap_or(Missing::Shared);
    let possible = key.as_ref().is_none_or(|key| judge_bodies(section, key, missing).is_some());
    let repeated = section.label("repeated", Repeated::ALL, Repeated::label).unwrap_or_default();
    let not_integer = section.label("not_integer", NotInteger::ALL, NotInteger::label).unwrap_or_default();
    let mode = section.label("mode", Mode::ALL, Mode::label).unwrap_or(Mode::Enforce);
    let on_error = section.label("on_error", OnError::ALL, OnError::label).unwrap_or(context.on_error);
    let max_keys = usize_of(section.integer("max_keys", KEYS_MIN..=1_000_000_000));
    let afterwards = afterwards(section, rule.as_ref());
    let refuse = own_refuse(section).map(Box::new);
    let ((rule, _), key, cost, when, overrides, afterwards) = (rule?, key?, cost?, when?, overrides?, afterwards?);
    if !possible {
        return None;
    }
    if let (Cost::Fixed(fixed), Some(node)) = (&cost, section.node("cost")) {
        let most = rule.most();
        if *fixed > most {
            let what = format!("a cost of {fixed} never fits, so nothing would be admitted");
            return section.fault("cost", node, &what, &format!("the largest that fits is {most}"));
        }
    }
    let rule = Arc::new(rule);
    Some(Limit {
        name: name.to_owned(),
        id: id(name),
        rule,
        key,
        missing,
        repeated,
        not_integer,
        cost,
        mode,
        on_error,
        when,
        overrides,
        after,
        max_keys,
        afterwards,
        refuse,
    })
}

fn key(section: &Section, context: &LimitContext) -> Option<Key> {
    let Some(node) = section.node("key") else {
        return Some(Key(vec![KeyPart::Source(Source::Ip(Prefixes::default()))]));
    };
    key_of(section, "key", node, context)
}

/// What `name` says that requests are told apart by.
pub fn key_of(section: &Section, name: &'static str, node: &Node, context: &LimitContext) -> Option<Key> {
    let parts = section.strings(name, values::key_part)?;
    if parts.is_empty() {
        return section.fault(name, node, "the list is empty", "for one budget shared by all, write key = \"all\"");
    }
    if parts.len() > KEY_PARTS_MAX {
        return section.fault(
            name,
            node,
            &format!("{} parts", parts.len()),
            &format!("a key may have {KEY_PARTS_MAX}"),
        );
    }
    let mut key: Vec<KeyPart> = Vec::with_capacity(parts.len());
    for At { place, value: part } in parts {
        for source in part.sources() {
            if let Err(Fault { what, help }) = context.readable(source.clone()) {
                return section.fault_at(name, place, &what, &help);
            }
        }
        let has_same = |earlier: &KeyPart| {
            *earlier == part || earlier.sources().iter().any(|source| part.sources().contains(source))
        };
        if key.iter().any(has_same) {
            return section.fault_at(name, place, "this part stands there twice", "remove one of the two");
        }
        key.push(part);
    }
    Some(Key(key))
}

/// Looks for a key that no request has whole: no body is both a form and JSON.
fn judge_bodies(section: &Section, key: &Key, missing: Missing) -> Option<()> {
    let needs = |kind: SourceKind| {
        key.0
            .iter()
            .find(|part| !part.sources().is_empty() && part.sources().iter().all(|source| source.kind() == kind))
    };
    let (Some(form), Some(json), Some(node)) = (needs(SourceKind::Form), needs(SourceKind::Json), section.node("key"))
    else {
        return Some(());
    };
    let what = "no body is both a form and JSON, so one of these parts is always absent";
    let help = format!("write \"{form}{}{json}\" for one budget by whichever the body has", KeyPart::OR);
    match missing {
        Missing::Skip => section.fault("key", node, &format!("{what} and the limit never applies"), &help),
        Missing::Refuse => section.fault("key", node, &format!("{what} and every request is refused"), &help),
        Missing::Shared => {
            let what = format!("`key` in {}: {what}: a client has two budgets, one in each", section.title);
            section.sources.warn(Diagnostic::new(node.place, what).help(help));
            Some(())
        }
    }
}

fn cost(section: &Section) -> Option<Cost> {
    let source = |text: &str| {
        let help = format!("write an integer without quotes, {}", values::forms(Cost::SOURCES));
        values::source(text, Cost::SOURCES, &help).map(Cost::Stated)
    };
    match section.node("cost") {
        None => Some(Cost::Fixed(1)),
        Some(Node { value: Value::Integer(_), .. }) => section.integer("cost", 0..=COST_MAX).map(Cost::Fixed),
        Some(Node { value: Value::String(_), .. }) => section.parse("cost", source),
        Some(node) => section.wrong_type("cost", &format!("an integer, {}", values::forms(Cost::SOURCES)), node),
    }
}
