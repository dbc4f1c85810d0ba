//! The option `prices`: what models cost in money, in a file of its own. Called by `settlement`.
//!
//! Prices are decimal numbers for a million tokens, as providers publish them. One unit of the limit is a millionth of
//! the currency, so a price is kept as units for a million tokens, and the cost of a response is exact: it is rounded
//! up once, to a unit.

use jiff::civil::Date;

use crate::config::reader::Section;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{limit, prices};
use crate::config::source::SourceTexts;
use crate::config::tree::{Node, TableEntry, Value, parse_file};
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::settlement::readings::TEXT_MAX;
use crate::limiting::settlement::weights::{ModelWeights, Weights};

/// Maximum number of models with their own prices or weights.
pub const MODELS_MAX: usize = 1000;
/// Name of the prices or weights of other models.
pub const DEFAULT: &str = "default";
/// Units of the limit in one unit of the currency, and tokens that a price is for.
const MILLION: i64 = 1_000_000;
/// The largest price, in units of the currency.
const PRICE_MAX: i64 = 1_000_000;
const PRICE_HELP: &str = "write the price of a million tokens with at most six decimals: input = \"0.15\"";

/// Reads the file that `prices` names; `node` is the value. `None` means a mistake.
pub fn compile_prices(section: &Section, node: &Node) -> Option<ModelWeights> {
    let text = section.read_file(&limit::PRICES)?;
    let path = section.read_string(&limit::PRICES)?;
    let path = section.sources.resolve_path(node.place.file, &path);
    let name = path.display().to_string();
    // The mistakes of a list are reported once, however many limits name it.
    let others = SourceTexts::default();
    let sources = if section.sources.has_source(&name) { &others } else { section.sources };
    let dir = path.parent().map(ToOwned::to_owned).unwrap_or_default();
    let file = sources.add_source(name, dir, text);
    let tree = parse_file(sources, file);
    let root = Section::new(sources, &prices::file::TABLE, "the price list", &tree);
    let date = root.parse_string(&prices::file::DATE, parse_date);
    if root.node(&prices::file::DATE).is_none() {
        root.report_missing::<()>(
            "the price list has no `date`".to_owned(),
            "write the day of these prices: date = \"2026-11-01\"",
        );
    }
    let models = read_models(&root);
    root.report_unread_keys();
    date.and(models)
}

/// Reports a name that no model can have, and returns whether it is one.
pub fn check_model_name(section: &Section, option: &str, entry: &TableEntry) -> bool {
    let name = &entry.key;
    let is_model = !name.is_empty()
        && name.len() <= TEXT_MAX
        && !name.trim_end_matches('*').contains('*')
        && !name.ends_with("**");
    if !is_model {
        let help = format!("write a name of 1 to {TEXT_MAX} bytes, with at most one `*`, at its end: \"gpt-4o*\"");
        section.report_fault::<()>(option, &entry.node, &format!("`{name}` is not a model name"), &help);
    }
    is_model
}

fn parse_date(text: &str) -> Result<Date, TextFault> {
    let help = "write the day on which you looked the prices up: date = \"2026-11-01\"";
    text.parse().or_else(|_| invalid_text(format!("`{text}` is not a day"), help))
}

/// Reads the prices of all models. A model without a price costs as much as the most expensive one, kind by kind.
fn read_models(root: &Section) -> Option<ModelWeights> {
    let option = &prices::file::MODELS;
    let Some(node) = root.node(option) else {
        return root.report_missing(
            "the price list has no models".to_owned(),
            "[models.\"gpt-4o-mini*\"]\ninput = \"0.15\"\noutput = \"0.60\"",
        );
    };
    let table = root.read_table(option)?;
    if table.entries.is_empty() || table.entries.len() > MODELS_MAX {
        let what = format!("{} models", table.entries.len());
        return root.report_fault(option.name, node, &what, &format!("list 1 to {MODELS_MAX}"));
    }
    let (mut models, mut default, mut is_whole) = (Vec::new(), None, true);
    for entry in &table.entries {
        let Value::Table(own) = &entry.node.value else {
            root.report_wrong_type::<()>(
                option.name,
                "tables like { input = \"0.15\", output = \"0.60\" } by model",
                &entry.node,
            );
            is_whole = false;
            continue;
        };
        is_whole &= check_model_name(root, option.name, entry);
        let own = Section::new(root.sources, &prices::model::TABLE, format!("`models.{}`", entry.key), own);
        let weights = read_prices(&own);
        own.report_unread_keys();
        match (weights, entry.key.as_str()) {
            (None, _) => is_whole = false,
            (Some(weights), DEFAULT) => default = Some(weights),
            (Some(weights), name) => models.push((name.to_owned(), weights)),
        }
    }
    let nothing = Weights { input: 0, cached: 0, cache_write: 0, output: 0, per_tokens: MILLION };
    let default = default.unwrap_or_else(|| ModelWeights::new(models.clone(), nothing).heaviest());
    is_whole.then(|| ModelWeights::new(models, default))
}

fn read_prices(own: &Section) -> Option<Weights> {
    let read = |option: &ConfigOption| own.node(option).map(|node| read_price(own, option, node));
    let (input, output) = (read(&prices::model::INPUT), read(&prices::model::OUTPUT));
    let (cached, cache_write) = (read(&prices::model::CACHED), read(&prices::model::CACHE_WRITE));
    if input.is_none() || output.is_none() {
        return own.report_missing(format!("{} needs `input` and `output`", own.title), PRICE_HELP);
    }
    let input = input??;
    Some(Weights {
        input,
        cached: cached.unwrap_or(Some(input))?,
        cache_write: cache_write.unwrap_or(Some(input))?,
        output: output??,
        per_tokens: MILLION,
    })
}

/// Reads a price as units for a million tokens. A number is read by its decimal digits, without rounding.
fn read_price(own: &Section, option: &ConfigOption, node: &Node) -> Option<i64> {
    let parsed = match &node.value {
        Value::String(text) => text.parse_value(parse_price),
        Value::Integer(number) => parse_price(&number.to_string()),
        Value::Float(number) => parse_price(&number.to_string()),
        _ => return own.report_wrong_type(option.name, "a price like \"0.15\"", node),
    };
    match parsed {
        Ok(units) => Some(units),
        Err(TextFault { what, help }) => own.report_fault(option.name, node, &what, &help),
    }
}

fn parse_price(text: &str) -> Result<i64, TextFault> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(decimals) || text.ends_with('.') {
        return invalid_text(format!("`{text}` is not a price"), PRICE_HELP);
    }
    if decimals.trim_end_matches('0').len() > 6 {
        return invalid_text(format!("`{text}` has more than six decimals"), PRICE_HELP);
    }
    let units = format!("{whole}{:0<6.6}", decimals).parse::<i64>().ok().filter(|units| *units <= PRICE_MAX * MILLION);
    units
        .map_or_else(|| invalid_text(format!("`{text}` is too large"), format!("the largest price is {PRICE_MAX}")), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_digit_by_digit() {
        let read = |text: &str| parse_price(text).ok();
        for (text, units) in [
            ("0.15", 150_000),
            ("2.50", 2_500_000),
            ("15", 15_000_000),
            ("0", 0),
            ("0.0375", 37_500),
            ("0.000001", 1),
            ("0.1000000", 100_000),
            ("1000000", 1_000_000_000_000),
        ] {
            assert_eq!(read(text), Some(units), "{text}");
        }
        for text in [
            "",
            ".5",
            "5.",
            "-1",
            "+1",
            "1e3",
            "0.0000001",
            "1000001",
            "99999999999999999999",
            "1,5",
            "$1",
            "1 ",
            "NaN",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
