//! Options that act on the outcome of a request: `charge_on`, `refund_on`, `clear_on`, `settle`, `max_delayed`,
//! `linger`. Called by `limits`.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use crate::config::closest::find_closest;
use crate::config::compile::limits::settlement;
use crate::config::reader::Section;
use crate::config::schema::limit;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::grpc::GrpcCode;
use crate::labels::labels;
use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::params::{LINGER, OptionValues};
use crate::limiting::limit::charge_rules::{ChargeCondition, ChargeRules, OutcomeSet};
use crate::limiting::settlement::reserve::Reserve;
use crate::limiting::settlement::weights::ModelWeights;

/// Default of `linger`, equal to the default of `response_timeout`: no slot is released while the gateway itself still
/// waits for the response.
const LINGER_MS: i64 = 60_000;

/// Compiles the options. `None` means a mistake; `Some(None)` means that none of the options is set.
#[expect(clippy::option_option, reason = "as every compiler of a section: None is an error")]
pub fn compile_charge_rules(
    section: &Section,
    rule: Option<&(Rule, OptionValues)>,
    weights: Option<&Arc<ModelWeights>>,
    reserve: Option<&Reserve>,
) -> Option<Option<ChargeRules>> {
    let charge_on = parse_outcomes(section, &limit::CHARGE_ON, CLASSES);
    let refund_on = parse_outcomes(section, &limit::REFUND_ON, Word::ALL);
    let clear_on = parse_outcomes(section, &limit::CLEAR_ON, CLASSES);
    let settle = settlement::compile_settle(section, weights, reserve);
    let clear_on = clear_on?;
    let charge = match (charge_on?, refund_on?) {
        (Some(_), Some(_)) => {
            let node = section.node(&limit::REFUND_ON)?;
            let help = "keep one: charge_on charges only the listed outcomes, refund_on all except the listed ones";
            return section.report_fault(limit::REFUND_ON.name, node, "cannot be combined with charge_on", help);
        }
        (Some(outcomes), None) => ChargeCondition::On(outcomes),
        (None, Some(outcomes)) => ChargeCondition::RefundOn(outcomes),
        (None, None) => ChargeCondition::Always,
    };
    let max_delayed = section.get(&limit::MAX_DELAYED);
    let (rule, options) = rule?;
    if clear_on.is_some() {
        check_clear(section, rule)?;
    }
    let mut afterwards = ChargeRules { charge, settle: settle?, clear_on, max_delayed, ..ChargeRules::for_rule(rule) };
    if afterwards.lease {
        let linger_ms = options.get(&LINGER).unwrap_or(LINGER_MS);
        afterwards.linger = Duration::from_millis(linger_ms.unsigned_abs());
    }
    if let (Some(node), false) = (section.node(&limit::MAX_DELAYED), rule.has_queue()) {
        let help = "it bounds the requests that wait in the `queue` of a leaky_bucket";
        return section.report_fault(limit::MAX_DELAYED.name, node, "this limit delays no requests", help);
    }
    let is_changed = afterwards.charge != ChargeCondition::Always || afterwards.settle.is_some();
    if afterwards.lease && (is_changed || afterwards.clear_on.is_some()) {
        let (option, node) = find_outcome_option(section)?;
        let what = "this algorithm always releases its slots when a request ends";
        return section.report_fault(option.name, node, what, "remove it");
    }
    Some(afterwards.unless_default())
}

/// Reports a `clear_on` that would undo more than the charges of its key.
fn check_clear(section: &Section, rule: &Rule) -> Option<()> {
    let node = section.node(&limit::CLEAR_ON)?;
    let what = match rule {
        Rule::Fair(_) => "cannot be combined with fair: one tenant would clear the budget of all",
        _ if rule.has_queue() => "this limit delays requests, and those that wait would lose their places",
        _ => return Some(()),
    };
    section.report_fault(limit::CLEAR_ON.name, node, what, "remove one of the two")
}

/// Returns the first option of a limit by which the outcome of a request changes its charge.
pub fn find_outcome_option<'a>(section: &Section<'a>) -> Option<(&'static ConfigOption, &'a Node)> {
    let options: [&ConfigOption; 4] =
        [&limit::CHARGE_ON.option, &limit::REFUND_ON.option, &limit::SETTLE.option, &limit::CLEAR_ON.option];
    options.into_iter().find_map(|option| Some((option, section.node(option)?)))
}

/// Reads a list of statuses, status classes and `words`.
#[expect(clippy::option_option, reason = "as above")]
fn parse_outcomes(section: &Section, option: &ConfigOption, words: &[Word]) -> Option<Option<OutcomeSet>> {
    let Some(node) = section.node(option) else { return Some(None) };
    let items = match &node.value {
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        return section.report_fault(option.name, node, "the list is empty", "name statuses, or leave it out");
    }
    let mut outcomes = OutcomeSet::default();
    let mut is_valid = true;
    for item in items {
        is_valid &= parse_outcome(section, option, item, words, &mut outcomes).is_some();
    }
    is_valid.then_some(Some(outcomes))
}

fn parse_outcome(
    section: &Section,
    option: &ConfigOption,
    item: &Node,
    words: &[Word],
    outcomes: &mut OutcomeSet,
) -> Option<()> {
    match &item.value {
        Value::Integer(code) => {
            let status = u16::try_from(*code).ok().filter(|code| (200..=599).contains(code));
            match status.and_then(|code| StatusCode::from_u16(code).ok()) {
                Some(status) => outcomes.statuses.push(status),
                None => {
                    let what = format!("{code} is not a status code of a response");
                    return section.report_fault(option.name, item, &what, "statuses go from 200 to 599");
                }
            }
        }
        Value::String(text) if text.value.starts_with(GRPC_PREFIX) => {
            outcomes.grpc.push(section.parse_node(option.name, item, parse_grpc_code)?);
        }
        Value::String(_) => match section.parse_node(option.name, item, |text| parse_outcome_word(text, words))? {
            Word::Success => outcomes.classes.push(2),
            Word::Redirection => outcomes.classes.push(3),
            Word::ClientError => outcomes.classes.push(4),
            Word::ServerError => outcomes.classes.push(5),
            Word::ConnectError => outcomes.connect_error = true,
            Word::ClientAbort => outcomes.client_abort = true,
        },
        _ => {
            return section.report_wrong_type(
                option.name,
                "a list of statuses like 401 and classes like \"5xx\"",
                item,
            );
        }
    }
    Some(())
}

labels! {
    /// An outcome other than a single status.
    Word:
    Success = "2xx",
    Redirection = "3xx",
    ClientError = "4xx",
    ServerError = "5xx",
    ConnectError = "connect_error",
    ClientAbort = "client_abort",
}

const CLASSES: &[Word] = &[Word::Success, Word::Redirection, Word::ClientError, Word::ServerError];

fn parse_outcome_word(text: &str, words: &[Word]) -> Result<Word, TextFault> {
    if let Some(word) = words.iter().find(|word| word.label() == text) {
        return Ok(*word);
    }
    let all = words.iter().map(|word| word.label());
    let help = match find_closest(text, all.clone()) {
        Some(word) => format!("did you mean \"{word}\"?"),
        None => {
            let all: Vec<&str> = all.collect();
            format!("write statuses like 401 without quotes, or one of {}", all.join(", "))
        }
    };
    invalid_text(format!("unknown outcome `{text}`"), help)
}

/// Prefix of a gRPC outcome.
const GRPC_PREFIX: &str = "grpc:";

/// Parses `grpc:UNAVAILABLE` or `grpc:14`.
fn parse_grpc_code(text: &str) -> Result<GrpcCode, TextFault> {
    let code = text.trim_start_matches(GRPC_PREFIX);
    let code_by_name = GrpcCode::ALL.iter().copied().find(|known| known.label() == code);
    if let Some(code) = code_by_name.or_else(|| GrpcCode::from_number(code)) {
        return Ok(code);
    }
    let names = GrpcCode::ALL.iter().map(|known| known.label());
    let help = match find_closest(&code.to_ascii_uppercase(), names) {
        Some(name) => format!("did you mean \"{GRPC_PREFIX}{name}\"?"),
        None => "write a code of gRPC by its name or number, like \"grpc:UNAVAILABLE\" or \"grpc:14\"".to_owned(),
    };
    invalid_text(format!("`{code}` is not a gRPC status code"), help)
}
