//! Options of costs that only the response reports: `settle`, `weights`, `ask_usage`, and `reserve` in `cost`. Called
//! by `limits`, `charges` and `cost`.

use std::sync::Arc;

use crate::config::closest::find_closest;
use crate::config::compile::limits::prices::{DEFAULT, MODELS_MAX, check_model_name, compile_prices};
use crate::config::reader::{At, Section};
use crate::config::schema::limit;
use crate::config::tree::Value;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::limit::bytes::CountedBytes;
use crate::limiting::limit::settle::{Settle, SettleField, UsageRules};
use crate::limiting::settlement::reserve::Reserve;
use crate::limiting::settlement::sources::{UsageDialect, UsageSource, UsageSources};
use crate::limiting::settlement::weights::{ModelWeights, Weights};
use crate::limiting::source::{JsonPointer, Source, SourceKind};
use crate::names::parse_header_name;

/// Maximum number of sources of `settle`, and of `add` in a reservation.
const SOURCES_MAX: usize = 16;

/// One source in `settle`.
enum SettleSource {
    Field(SettleField),
    Usage(UsageSource),
    Bytes(CountedBytes),
}

/// Compiles `settle` and `ask_usage`. `None` means a mistake; `Some(None)` means that `settle` is not set.
#[expect(clippy::option_option, reason = "as every compiler of a section: None is an error")]
pub fn compile_settle(
    section: &Section,
    weights: Option<&Arc<ModelWeights>>,
    reserve: Option<&Reserve>,
) -> Option<Option<Settle>> {
    let requests_usage = match section.node(&limit::ASK_USAGE) {
        Some(_) => section.read(&limit::ASK_USAGE)?,
        None => false,
    };
    let mut settle = Settle::default();
    let mut sources = Vec::new();
    if let Some(node) = section.node(&limit::SETTLE) {
        let items = section.read_strings(&limit::SETTLE, parse_settle_source)?;
        if items.is_empty() || items.len() > SOURCES_MAX {
            let help = format!("list 1 to {SOURCES_MAX} sources, or leave it out");
            return section.report_fault(limit::SETTLE.name, node, &format!("{} sources", items.len()), &help);
        }
        for At { value, .. } in items {
            match value {
                SettleSource::Field(field) => settle.fields.push(field),
                SettleSource::Usage(source) => sources.push(source),
                SettleSource::Bytes(CountedBytes { request, response }) => {
                    settle.bytes.request |= request;
                    settle.bytes.response |= response;
                }
            }
        }
        if settle.bytes.is_any() && (!settle.fields.is_empty() || !sources.is_empty()) {
            let what = "bytes cannot be combined with other sources";
            let help = "keep one, or write a limit for each";
            return section.report_fault(limit::SETTLE.name, node, what, help);
        }
    }
    let reads_events = sources
        .iter()
        .any(|source| matches!(source, UsageSource::Events(_) | UsageSource::Dialect(UsageDialect::OpenAi)));
    for option in [&*limit::WEIGHTS, &*limit::PRICES] {
        if let Some(node) = section.node(option).filter(|_| sources.is_empty()) {
            let help = "add settle = \"openai\", or another dialect or pointer; headers and trailers state units";
            return section.report_fault(option.name, node, "`settle` reads no usage to weigh", help);
        }
    }
    if let Some(node) = section.node(&limit::ASK_USAGE).filter(|_| requests_usage && !reads_events) {
        let help = "add settle = \"openai\", or an \"sse:\" pointer, or remove it";
        return section.report_fault(limit::ASK_USAGE.name, node, "`settle` reads no usage of streams", help);
    }
    if let Some(node) =
        section.node(&limit::ASK_USAGE).filter(|_| requests_usage && section.node(&limit::CANDIDATE_OF).is_some())
    {
        let help = "set it in the incumbent: the candidate reads the same response";
        return section.report_fault(
            limit::ASK_USAGE.name,
            node,
            "a candidate (`candidate_of`) changes no request",
            help,
        );
    }
    if !sources.is_empty() {
        let weights = weights.cloned()?;
        let bytes_per_token =
            reserve.map_or(Reserve::BYTES_PER_TOKEN, |reserve| reserve.bytes_per_token).unsigned_abs();
        let sources = Arc::new(UsageSources::new(sources));
        settle.usage = Some(UsageRules { sources, weights, bytes_per_token, requests_usage });
    }
    Some((settle != Settle::default()).then_some(settle))
}

fn parse_settle_source(text: &str) -> Result<SettleSource, TextFault> {
    let pointer = |text: &str| JsonPointer::parse(text);
    if let Some(dialect) = UsageDialect::ALL.iter().find(|dialect| dialect.label() == text) {
        return Ok(SettleSource::Usage(UsageSource::Dialect(*dialect)));
    }
    match text {
        CountedBytes::RESPONSE => return Ok(SettleSource::Bytes(CountedBytes { response: true, request: false })),
        CountedBytes::REQUEST => return Ok(SettleSource::Bytes(CountedBytes { response: false, request: true })),
        _ => {}
    }
    match text.split_once(':') {
        Some(("header", name)) => parse_header_name(name).map(SettleField::Header).map(SettleSource::Field),
        Some(("trailer", name)) => parse_header_name(name).map(SettleField::Trailer).map(SettleSource::Field),
        Some(("json", path)) => pointer(path).map(UsageSource::Json).map(SettleSource::Usage),
        Some(("sse", path)) => pointer(path).map(UsageSource::Events).map(SettleSource::Usage),
        _ => {
            let dialects = UsageDialect::ALL.iter().map(|dialect| dialect.label());
            let help = match find_closest(text, dialects.clone()) {
                Some(dialect) => format!("did you mean \"{dialect}\"?"),
                None => format!(
                    "write the name of an API ({}), \"json:POINTER\", \"sse:POINTER\", \"header:NAME\", \"trailer:NAME\", \"response_bytes\" or \"request_bytes\"",
                    dialects.collect::<Vec<_>>().join(", ")
                ),
            };
            invalid_text(format!("unknown source `{text}`"), help)
        }
    }
}

/// Compiles `weights` or `prices`; without them, each token costs one unit. `None` means a mistake.
pub fn compile_weights(section: &Section) -> Option<Arc<ModelWeights>> {
    match (section.node(&limit::WEIGHTS), section.node(&limit::PRICES)) {
        (None, None) => return Some(Arc::default()),
        (None, Some(node)) => return compile_prices(section, node).map(Arc::new),
        (Some(_), Some(node)) => {
            let help = "keep one: weights are units of a token, prices are money for a million tokens";
            return section.report_fault(limit::PRICES.name, node, "it has `weights` as well", help);
        }
        (Some(_), None) => {}
    }
    let table = section.read_table(&limit::WEIGHTS)?;
    let (mut models, mut default, mut is_whole) = (Vec::new(), Weights::default(), true);
    for entry in &table.entries {
        let name = &entry.key;
        let Value::Table(own) = &entry.node.value else {
            section.report_wrong_type::<()>(
                limit::WEIGHTS.name,
                "tables like { input = 1, output = 2 } by model",
                &entry.node,
            );
            is_whole = false;
            continue;
        };
        is_whole &= check_model_name(section, limit::WEIGHTS.name, entry);
        let own = Section::new(section.sources, &limit::weights::TABLE, format!("`weights.{name}`"), own);
        let weights = read_weights(&own);
        own.report_unread_keys();
        match name.as_str() {
            DEFAULT => default = weights,
            _ => models.push((name.clone(), weights)),
        }
    }
    if models.len() > MODELS_MAX {
        let what = format!("{} models", models.len());
        let node = section.node(&limit::WEIGHTS)?;
        return section.report_fault(limit::WEIGHTS.name, node, &what, &format!("list at most {MODELS_MAX}"));
    }
    is_whole.then(|| Arc::new(ModelWeights::new(models, default)))
}

fn read_weights(own: &Section) -> Weights {
    let input = own.get(&limit::weights::INPUT);
    Weights {
        input,
        cached: own.get(&limit::weights::CACHED).unwrap_or(input),
        cache_write: own.get(&limit::weights::CACHE_WRITE).unwrap_or(input),
        output: own.get(&limit::weights::OUTPUT),
        per_tokens: 1,
    }
}

/// Compiles `cost = { reserve = ... }`; `cost` is the table.
pub fn compile_reserve(cost: &Section, weights: Arc<ModelWeights>) -> Option<Reserve> {
    let reserve = cost.read_section(&limit::cost::RESERVE)?;
    let add = compile_add(&reserve);
    let base = reserve.get(&limit::reserve::BASE);
    let bytes_per_token = reserve.get(&limit::reserve::BYTES_PER_TOKEN);
    let default_add = reserve.get(&limit::reserve::DEFAULT_ADD);
    let at_most = reserve.get(&limit::reserve::AT_MOST);
    reserve.report_unread_keys();
    Some(Reserve { base, bytes_per_token, add: add?, default_add, at_most, weights })
}

fn compile_add(reserve: &Section) -> Option<Vec<Source>> {
    let Some(node) = reserve.node(&limit::reserve::ADD) else { return Some(Vec::new()) };
    let parse = |text: &str| match Source::parse(text, &[SourceKind::Json]) {
        Some(source) => source,
        None => {
            invalid_text(format!("unknown source `{text}`"), "write a pointer into the body, like \"json:/max_tokens\"")
        }
    };
    let pointers = reserve.read_strings(&limit::reserve::ADD, parse)?;
    if pointers.is_empty() || pointers.len() > SOURCES_MAX {
        let help = format!("list 1 to {SOURCES_MAX} pointers, or leave it out");
        return reserve.report_fault(limit::reserve::ADD.name, node, &format!("{} sources", pointers.len()), &help);
    }
    Some(pointers.into_iter().map(|at| at.value).collect())
}
