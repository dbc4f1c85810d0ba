//! What a limit wants once the outcome of a request is known: `charge_on`, `refund_on`, `settle`,
//! `max_delayed`, `linger`. Called by `limit`.

use std::time::Duration;

use http::StatusCode;

use crate::config::hints::closest;
use crate::config::reader::Section;
use crate::config::tree::{Node, Value};
use crate::config::values::{Fault, fault};
use crate::grpc::GrpcCode;
use crate::labels::labels;
use crate::limit::afterwards::{Afterwards, Charge, Outcomes, Settle};
use crate::limit::algo::Rule;
use crate::limit::algo::params::{Given, LINGER};
use crate::written::header_name;

/// The default of `response_timeout`: with both left alone, no slot comes back while the gateway would
/// itself still wait for the answer.
const LINGER_MS: i64 = 60_000;

/// `None` is a mistake; most limits want nothing, `Some(None)`.
#[expect(clippy::option_option, reason = "as every compiler of a section: None is a mistake")]
pub fn afterwards(section: &Section, rule: Option<&(Rule, Given)>) -> Option<Option<Afterwards>> {
    let charge_on = outcomes(section, "charge_on", CLASSES);
    let refund_on = outcomes(section, "refund_on", Word::ALL);
    let settle = match section.node("settle") {
        None => Some(None),
        Some(_) => section.parse("settle", settle_source).map(Some),
    };
    let charge = match (charge_on?, refund_on?) {
        (Some(_), Some(_)) => {
            let node = section.node("refund_on")?;
            let help = "keep one: charge_on charges nothing but what it names, refund_on all but what it names";
            return section.fault("refund_on", node, "it stands beside charge_on", help);
        }
        (Some(outcomes), None) => Charge::On(outcomes),
        (None, Some(outcomes)) => Charge::RefundOn(outcomes),
        (None, None) => Charge::Always,
    };
    let max_delayed = super::numbers::usize_of(section.integer("max_delayed", 0..=10_000_000));
    let (rule, given) = rule?;
    let mut afterwards = Afterwards { charge, settle: settle?, max_delayed, ..Afterwards::of(rule) };
    if afterwards.lease {
        let linger_ms = given.get(&LINGER).unwrap_or(LINGER_MS);
        afterwards.linger = Duration::from_millis(linger_ms.unsigned_abs());
    }
    if let (Some(node), false) = (section.node("max_delayed"), rule.delays()) {
        let help = "it bounds the requests that wait in the `queue` of a leaky_bucket";
        return section.fault("max_delayed", node, "this limit holds no request back", help);
    }
    if afterwards.lease && (afterwards.charge != Charge::Always || afterwards.settle.is_some()) {
        let key = ["charge_on", "refund_on", "settle"].into_iter().find(|key| section.node(key).is_some())?;
        let what = "what this algorithm takes is given back whenever a request ends";
        return section.fault(key, section.node(key)?, what, "remove it");
    }
    Some(afterwards.wanted())
}

/// A list of statuses, classes and `words`.
#[expect(clippy::option_option, reason = "as above")]
fn outcomes(section: &Section, key: &'static str, words: &[Word]) -> Option<Option<Outcomes>> {
    let Some(node) = section.node(key) else { return Some(None) };
    let items = match &node.value {
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        return section.fault(key, node, "the list is empty", "name statuses, or leave it out");
    }
    let mut outcomes = Outcomes::default();
    let mut whole = true;
    for item in items {
        whole &= outcome(section, key, item, words, &mut outcomes).is_some();
    }
    whole.then_some(Some(outcomes))
}

fn outcome(section: &Section, key: &str, item: &Node, words: &[Word], outcomes: &mut Outcomes) -> Option<()> {
    match &item.value {
        Value::Integer(code) => {
            let status = u16::try_from(*code).ok().filter(|code| (200..=599).contains(code));
            match status.and_then(|code| StatusCode::from_u16(code).ok()) {
                Some(status) => outcomes.statuses.push(status),
                None => {
                    let what = format!("{code} is no status of an answer");
                    return section.fault(key, item, &what, "statuses go from 200 to 599");
                }
            }
        }
        Value::String(text) if text.value.starts_with(GRPC_PREFIX) => {
            outcomes.grpc.push(section.parse_node(key, item, grpc_code)?);
        }
        Value::String(_) => match section.parse_node(key, item, |text| word(text, words))? {
            Word::Success => outcomes.classes.push(2),
            Word::Redirection => outcomes.classes.push(3),
            Word::ClientError => outcomes.classes.push(4),
            Word::ServerError => outcomes.classes.push(5),
            Word::ConnectError => outcomes.connect_error = true,
            Word::ClientAbort => outcomes.client_abort = true,
        },
        _ => return section.wrong_type(key, "a list of statuses like 401 and classes like \"5xx\"", item),
    }
    Some(())
}

labels! {
    /// An outcome that is no single status.
    Word:
    Success = "2xx",
    Redirection = "3xx",
    ClientError = "4xx",
    ServerError = "5xx",
    ConnectError = "connect_error",
    ClientAbort = "client_abort",
}

const CLASSES: &[Word] = &[Word::Success, Word::Redirection, Word::ClientError, Word::ServerError];

fn word(text: &str, words: &[Word]) -> Result<Word, Fault> {
    if let Some(word) = words.iter().find(|word| word.label() == text) {
        return Ok(*word);
    }
    let all = words.iter().map(|word| word.label());
    let help = match closest(text, all.clone()) {
        Some(word) => format!("did you mean \"{word}\"?"),
        None => {
            let all: Vec<&str> = all.collect();
            format!("write statuses like 401 without quotes, or one of {}", all.join(", "))
        }
    };
    fault(format!("unknown outcome `{text}`"), help)
}

/// What a gRPC outcome begins with.
const GRPC_PREFIX: &str = "grpc:";

/// `grpc:UNAVAILABLE` or `grpc:14`.
fn grpc_code(text: &str) -> Result<GrpcCode, Fault> {
    let code = text.trim_start_matches(GRPC_PREFIX);
    let named = GrpcCode::ALL.iter().copied().find(|known| known.label() == code);
    if let Some(code) = named.or_else(|| GrpcCode::numbered(code)) {
        return Ok(code);
    }
    let names = GrpcCode::ALL.iter().map(|known| known.label());
    let help = match closest(&code.to_ascii_uppercase(), names) {
        Some(name) => format!("did you mean \"{GRPC_PREFIX}{name}\"?"),
        None => "write a code of gRPC by its name or number, like \"grpc:UNAVAILABLE\" or \"grpc:14\"".to_owned(),
    };
    fault(format!("`{code}` is no status code of gRPC"), help)
}

fn settle_source(text: &str) -> Result<Settle, Fault> {
    match text.split_once(':') {
        Some(("header", name)) => header_name(name).map(Settle::Header),
        Some(("trailer", name)) => header_name(name).map(Settle::Trailer),
        _ => fault(
            format!("unknown source `{text}`"),
            "write \"header:NAME\" or \"trailer:NAME\", a header or a trailer of the response",
        ),
    }
}
