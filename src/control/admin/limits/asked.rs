//! What is asked about limits: bodies and queries, checked against the config. Called by `mod.rs`.

use std::sync::Arc;

use http::StatusCode;

use super::json::{Faults, JsonNode, Problem, parse};
use super::receipt::Receipt;
use crate::config::{Config, closest, percent_decoded};
use crate::control::admin::cached::Effort;
use crate::limit::decision::{Check, Op};
use crate::limit::key::{COST_MAX, KeyPart};
use crate::limit::limits::Limit;
use crate::limit::source::{Ambiguous, Repeated, Source, SourceValue, SourceValues};
use crate::limit::{Limiter, Outcome};

/// The body of `POST /-/decide`.
pub struct DecideBody {
    pub op: Op,
    pub decisions: Vec<DecisionRequest>,
}

/// Limits asked together: all of them are charged or none.
pub struct DecisionRequest {
    pub limits: Vec<Arc<Limit>>,
    pub parts: NamedValues,
    pub cost: Option<i64>,
}

pub enum Refund {
    Receipt(Receipt),
    Units { parts: NamedValues, cost: i64 },
}

/// Values of a key's sources, by what these are called.
#[derive(Default)]
pub struct NamedValues(Vec<(String, SourceValue<'static>)>);

const DECISIONS_MAX: usize = 1000;
/// As many as a route may have.
const LIMITS_MAX: usize = 16;
/// Pairs of bytes that are looked at to tell which limit an unknown name was to be: ten milliseconds or so.
const COMPARED_MAX: usize = 1_000_000;
/// A request's field may not be longer either.
const VALUE_MAX: usize = 8 * 1024;

impl SourceValues for NamedValues {
    /// Each is named once.
    fn value(&self, source: &Source, _: Repeated) -> Result<Option<SourceValue<'_>>, Ambiguous> {
        let found = self.0.iter().find(|(name, _)| source.is_called(name));
        Ok(found.map(|(_, value)| value.borrowed()))
    }
}

/// A value as the requests of its owner would show it.
fn given(source: &Source, bytes: Vec<u8>) -> Result<SourceValue<'static>, String> {
    if bytes.len() > VALUE_MAX {
        return Err(format!("it is longer than {VALUE_MAX} bytes"));
    }
    source.written(bytes).map_err(|text| format!("`{text}` is not an IP address"))
}

impl DecideBody {
    pub fn read(body: &[u8], config: &Config, effort: &Effort) -> Result<DecideBody, Problem> {
        let value = parse(body)?;
        let faults = Faults::default();
        let order = order(&faults.root(&value), config, effort);
        faults.finish(order)
    }
}

fn order(root: &JsonNode, config: &Config, effort: &Effort) -> Option<DecideBody> {
    root.only(&["operation", "decisions"])?;
    let op = root.need("operation").and_then(|node| match node.text()? {
        "take" => Some(Op::Take),
        "peek" => Some(Op::Peek),
        other => node.fault(format!("unknown operation `{other}`; one of take, peek")),
    });
    let decisions = root.need("decisions")?.items(1..=DECISIONS_MAX)?;
    // Each is read, for its mistakes, before one of them fails the order.
    let decisions: Vec<_> = decisions.iter().map(|node| decision(node, config, effort)).collect();
    Some(DecideBody { op: op?, decisions: decisions.into_iter().collect::<Option<_>>()? })
}

fn decision(node: &JsonNode, config: &Config, effort: &Effort) -> Option<DecisionRequest> {
    node.only(&["limits", "key", "cost"])?;
    let items = node.need("limits")?.items(1..=LIMITS_MAX)?;
    let mut limits: Vec<Arc<Limit>> = Vec::with_capacity(items.len());
    for item in &items {
        let Some(name) = item.text() else { continue };
        match config.limits.named(name) {
            Some(_) if limits.iter().any(|limit| limit.name == name) => {
                item.fault::<()>(format!("`{name}` stands there twice"));
            }
            Some(limit) => limits.push(limit.clone()),
            None => drop(item.unknown_limit::<()>(|| unknown(config, name, effort))),
        }
    }
    let limits = in_turn(limits, &items);
    let parts = match node.get("key") {
        // What the unknown limits are keyed by is unknown too.
        Some(key) if limits.len() == items.len() => named(&key, &limits)?,
        _ => NamedValues::default(),
    };
    let cost = match node.get("cost") {
        Some(cost) => Some(cost.integer(0..=COST_MAX)?),
        None => None,
    };
    Some(DecisionRequest { limits, parts, cost })
}

/// What is said of a name that no limit has; `effort`: what was spent on names like this one.
pub fn unknown(config: &Config, name: &str, effort: &Effort) -> String {
    let mut left = COMPARED_MAX;
    let known = config.limits.iter().map(|limit| limit.name.as_str()).take_while(|known| {
        left = left.saturating_sub(known.len() * name.len());
        left > 0
    });
    let help = match effort.make(|| closest(name, known)).flatten() {
        Some(close) => format!("did you mean `{close}`?"),
        None => "GET /-/limits lists them".to_owned(),
    };
    format!("there is no limit `{name}`; {help}")
}

/// The limits, each after its base as on a route: alone it would never be asked.
fn in_turn(mut waiting: Vec<Arc<Limit>>, items: &[JsonNode]) -> Vec<Arc<Limit>> {
    for item in items {
        let base = waiting.iter().find(|limit| item.is(&limit.name)).and_then(|limit| limit.after.as_ref());
        if let Some(base) = base.filter(|base| !items.iter().any(|item| item.is(base))) {
            item.fault::<()>(format!("it comes after `{base}`: name both"));
        }
    }
    let mut ordered: Vec<Arc<Limit>> = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let ready = |limit: &Arc<Limit>| {
            limit.after.as_ref().is_none_or(|base| ordered.iter().any(|earlier| earlier.name == *base))
        };
        let Some(next) = waiting.iter().position(ready) else { break };
        ordered.push(waiting.remove(next));
    }
    ordered.append(&mut waiting);
    ordered
}

/// A name that no limit asked is keyed by is a mistake: left alone it would leave a part absent.
fn named(node: &JsonNode, limits: &[Arc<Limit>]) -> Option<NamedValues> {
    let mut named: Vec<(String, SourceValue)> = Vec::new();
    let parts = || limits.iter().flat_map(|limit| &limit.key.0);
    for (name, value) in node.entries()?.into_iter().take_while(|_| !node.enough_faults()) {
        let Some(source) = parts().find_map(|part| part.called(name)) else {
            let mut known: Vec<String> =
                parts().filter(|part| **part != KeyPart::All).map(ToString::to_string).collect();
            known.sort_unstable();
            known.dedup();
            let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
            value.fault::<()>(format!("these limits are keyed by {known}"));
            continue;
        };
        if named.iter().any(|(earlier, _)| source.is_called(earlier)) {
            value.fault::<()>(format!("`{source}` stands there twice"));
        }
        let Some(bytes) = bytes(&value) else { continue };
        match given(source, bytes) {
            Ok(given) if source.is_called(name) => named.push((name.to_owned(), given)),
            Ok(given) => named.push((source.to_string(), given)),
            Err(why) => drop(value.fault::<()>(why)),
        }
    }
    Some(NamedValues(named))
}

/// A string, or `{"percent": TEXT}` for bytes that no string of JSON holds.
fn bytes(value: &JsonNode) -> Option<Vec<u8>> {
    let Some(encoded) = value.get("percent") else {
        return match value.is_object() {
            true => value.fault("it must be a string, or {\"percent\": \"caf%E9\"}"),
            false => value.text().map(|text| text.as_bytes().to_vec()),
        };
    };
    value.only(&["percent"])?;
    percent_decoded(encoded.text()?).or_else(|| encoded.fault("it is not percent-encoded: bytes are written %XX"))
}

/// The body of a refund: a receipt, or a key and units.
pub fn refund(limit: &Arc<Limit>, body: &[u8]) -> Result<Refund, Problem> {
    let value = parse(body)?;
    let faults = Faults::default();
    let refund = read_refund(&faults.root(&value), limit);
    faults.finish(refund)
}

fn read_refund(root: &JsonNode, limit: &Arc<Limit>) -> Option<Refund> {
    root.only(&["receipt", "key", "cost"])?;
    let Some(node) = root.get("receipt") else {
        let parts = match root.get("key") {
            Some(key) => named(&key, std::slice::from_ref(limit))?,
            None => NamedValues::default(),
        };
        let cost = root.need("cost")?.integer(1..=COST_MAX)?;
        return Some(Refund::Units { parts, cost });
    };
    for name in ["key", "cost"] {
        if let Some(node) = root.get(name) {
            node.fault::<()>("the receipt says it");
        }
    }
    let Some(receipt) = Receipt::read(node.text()?) else {
        return node.fault("it is not a receipt that a decision gave");
    };
    match receipt.names() {
        Some((name, _)) if name == limit.name => Some(Refund::Receipt(receipt)),
        Some((name, _)) => node.fault(format!("it is a receipt of the limit `{name}`")),
        None => node.fault("it is not a receipt that a decision gave"),
    }
}

/// `key=PART&key=PART`, in the order of the limit's key, and `cost=N`.
pub fn query(limit: &Limit, query: &str) -> Result<(NamedValues, Option<i64>), Problem> {
    let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    let (mut values, mut cost) = (Vec::new(), None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decoded(value).ok_or_else(|| bad(format!("`{name}` is not percent-encoded")))?;
        match name {
            "key" => values.push(value),
            "cost" => {
                let value = str::from_utf8(&value).ok().and_then(|value| value.parse().ok());
                let within = value.filter(|cost| (0..=COST_MAX).contains(cost));
                cost = Some(within.ok_or_else(|| bad(format!("`cost` is an integer from 0 to {COST_MAX}")))?);
            }
            _ => return Err(bad(format!("unknown parameter `{name}`; there are `key` and `cost`"))),
        }
    }
    let parts: Vec<&KeyPart> = limit.key.0.iter().filter(|part| **part != KeyPart::All).collect();
    if parts.len() != values.len() {
        let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
        return Err(bad(match names.as_slice() {
            [] => format!("`{}` has one budget for all: leave `key` out", limit.name),
            names => {
                format!("`{}` is keyed by {}: write `key` once for each, in this order", limit.name, names.join(", "))
            }
        }));
    }
    // Alternatives say the same, so it does not matter which one has the value.
    let sources = parts.iter().filter_map(|part| part.sources().first());
    let named = sources.zip(values).map(|(source, value)| {
        given(source, value).map(|value| (source.to_string(), value)).map_err(|why| bad(format!("key {source}: {why}")))
    });
    Ok((NamedValues(named.collect::<Result<_, _>>()?), cost))
}

/// The check of a limit that somebody manages, by the numbers of its key, and what the key has instead
/// of numbers; a part that is absent has to be said.
pub fn check(
    limiter: &Limiter,
    limit: &Arc<Limit>,
    parts: &NamedValues,
    cost: i64,
) -> Result<(Check, Option<Outcome>), Problem> {
    limiter.check(limit, parts, cost).map_err(|_| {
        let names: Vec<String> = limit.key.0.iter().map(ToString::to_string).collect();
        let detail = format!("`{}` is keyed by {}: give each of them in `key`", limit.name, names.join(", "));
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    })
}
