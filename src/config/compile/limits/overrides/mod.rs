//! `overrides` of a limit: budgets of single keys, compiled like the limit itself with other numbers. Called by
//! `limits`; live overrides and rows of files use the same code. `key_rate` compiles rates that requests state, and
//! `patterns` warns of keys that look like patterns.
//!
//! Input: the section of a limit, or one written row, and the algorithm and key of the limit. Output: the overrides of
//! the limit, and a diagnostic for each that has an error. To add a kind of budget, add a variant to `OverrideBudget`
//! and read it here.

pub(crate) mod key_rate;
mod patterns;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::config::compile::limits::overrides::patterns::{find_look, warn_of_patterns};
use crate::config::compile::limits::rule;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::pattern_look::PatternLook;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::effective::budgets::describe_budget;
use crate::config::reader::{At, Section};
use crate::config::schema::limit;
use crate::config::schema::row::ConfigOption;
use crate::config::source::{PrivateFile, SourceTexts};
use crate::config::substitute::Text;
use crate::config::tree::{Node, Table as Tree, TableEntry, Value};
use crate::config::unreadable;
use crate::config::values;
use crate::limiting::algorithm::params::Param;
use crate::limiting::algorithm::{Spec, all_params};
use crate::limiting::key::shown_key::{KeyHash, KeyHasher};
use crate::limiting::key::{Key, KeyPart};
use crate::limiting::limit::over::Over;
use crate::limiting::limit::when::Pattern;
use crate::limiting::overrides::row_file::OverrideFile;
use crate::limiting::overrides::table::{
    OverrideBudget, OverrideEntry, OverrideSetting, OverrideTable, OverrideValue, ParsedBudget, ParsedBudgets,
    PartHasher, parse_end,
};
use crate::limiting::overrides::{ENTRIES_MAX, HASH_NEEDS_SECRET, Overrides};
use crate::limiting::source::Source;
use crate::names::TextFault;

/// Compiles the overrides. `stated`: the options of the limit with the highest rate, if requests state their rate.
pub fn compile_overrides(
    section: &Section,
    stated: Option<&Tree>,
    spec: Option<&'static Spec>,
    has_rule: bool,
    key: Option<&Key>,
    hasher: &KeyHasher,
) -> Option<Overrides> {
    let node = section.node(&limit::OVERRIDES);
    let (Some(spec), true, Some(key)) = (spec, has_rule, key) else { return None };
    let mut base = stated.unwrap_or_else(|| section.written_table()).clone();
    // The base is copied for each entry.
    base.entries
        .retain(|entry| ![limit::OVERRIDES.name, limit::WHEN.name, limit::KEY.name].contains(&entry.key.as_str()));
    if stated.is_some() {
        // An entry states its rate, as the limit has none.
        base.entries.retain(|entry| entry.key != limit::RATE.option.name);
    }
    let base = Arc::new(base);
    let (mut table, mut file) = (OverrideTable::default(), None);
    if let Some(node) = node {
        let items = match &node.value {
            Value::Array(items) => items.as_slice(),
            Value::Table(_) if has_file(node) => std::slice::from_ref(node),
            _ => {
                return section.report_wrong_type(
                    limit::OVERRIDES.name,
                    "a list of tables, or { file = \"PATH\" }",
                    node,
                );
            }
        };
        if items.len() > ENTRIES_MAX {
            let what = format!("{} entries", items.len());
            return section.report_fault(limit::OVERRIDES.name, node, &what, &format!("there may be {ENTRIES_MAX}"));
        }
        let mut is_valid = true;
        for item in items {
            if let Some(path) = has_file(item).then(|| read_file_path(section, item)) {
                is_valid &= path.is_some() && file.is_none();
                if let (Some(_), Some(_)) = (&path, &file) {
                    let what = "there is a file already";
                    section.report_fault::<()>(limit::OVERRIDES.name, item, what, "name one file for each limit");
                }
                file = file.or(path);
                continue;
            }
            is_valid &= compile_entry(section, spec, &base, (key, hasher), item, &mut table).is_some();
        }
        if !is_valid {
            return None;
        }
    }
    let hasher = PartHasher::new(key, hasher);
    let template =
        Arc::new(move |value: &str, parsed: &mut ParsedBudgets| compile_live_entry(spec, &base, value, parsed));
    let path = file.as_ref().map(|file| file.value.clone());
    let keeps_slashes = section.sources.keeps_slashes();
    let overrides = Overrides::new(table, path.map(OverrideFile::new), hasher, template, keeps_slashes);
    match file {
        Some(At { place, value: path }) => apply_file(section, &overrides, key, (place, &path)).map(|()| overrides),
        None => Some(overrides),
    }
}

/// Returns whether the entry names a file.
pub fn has_file(item: &Node) -> bool {
    let file = |entry: &TableEntry| entry.key == limit::overrides::FILE.name;
    matches!(&item.value, Value::Table(table) if table.entries.iter().any(file))
}

/// Reads the path of an entry that names a file.
fn read_file_path(section: &Section, item: &Node) -> Option<At<PathBuf>> {
    let Value::Table(tree) = &item.value else { return None };
    let title = format!("`overrides` of {}", section.title);
    let own = Section::new(section.sources, &limit::overrides::TABLE, title, tree);
    let node = own.node(&limit::overrides::FILE)?;
    let path = own.read_string(&limit::overrides::FILE)?;
    if let Some(entry) = tree.entries.iter().find(|entry| entry.key != limit::overrides::FILE.name) {
        let help = "an entry with a file has nothing else; the numbers are in its rows";
        return own.report_fault_at(&entry.key, entry.place, "the entry names a file", help);
    }
    Some(At { place: node.place, value: section.sources.resolve_absolute(node.place.file, &path) })
}

/// Reads the rows of a file. Rows with mistakes are left out, with a warning.
fn apply_file(section: &Section, overrides: &Overrides, key: &Key, (place, path): (Place, &Path)) -> Option<()> {
    let sources = section.sources;
    sources.add_private_file(path, PrivateFile::Config);
    let text = match unreadable::read_rows(path) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("cannot read `{}`: {error}", path.display());
            sources.add_mistake(Diagnostic::new(place, message).with_help(error.help()));
            return None;
        }
    };
    match overrides.apply_file(key, &text) {
        Ok(replaced) => {
            if let Some(mistakes) = replaced.rejected.describe() {
                let what = format!("rows of `{}` are skipped: {mistakes}", path.display());
                let help = "correct these rows; the others apply";
                sources.add_warning(DiagnosticCode::SkippedRows, Diagnostic::new(place, what).with_help(help));
            }
            warn_of_patterns(sources, key, place, (path, &text));
            Some(())
        }
        Err(what) => {
            section.report_fault_at(limit::overrides::FILE.name, place, &what, "remove some, or keep them in Redis")
        }
    }
}

fn compile_entry(
    section: &Section,
    spec: &Spec,
    base: &Tree,
    (key, hasher): (&Key, &KeyHasher),
    item: &Node,
    table: &mut OverrideTable,
) -> Option<()> {
    let Value::Table(tree) = &item.value else {
        return section.report_wrong_type(limit::OVERRIDES.name, "a list of tables", item);
    };
    let title = format!("`overrides` of {}", section.title);
    let own = Section::new(section.sources, &limit::overrides::TABLE, title, tree);
    let values = match own.node(&limit::overrides::KEY) {
        Some(node) => read_values(&own, node, hasher),
        None => own.report_missing(format!("{} has an entry without a key", own.title), &help(spec)),
    };
    // Numbers that the entry does not set come from the limit.
    let options = amount_options(all_params()).filter_map(|name| limit::overrides::TABLE.find(name));
    let amounts: Vec<&TableEntry> = options.filter_map(|option| own.entry(option)).collect();
    let until = own.parse_string(&limit::overrides::UNTIL, parse_until);
    let note = own.parse_string(&limit::overrides::NOTE, parse_note);
    own.report_unknown();
    if amounts.is_empty() {
        return section.report_fault(limit::OVERRIDES.name, item, "the entry changes nothing", &help(spec));
    }
    let values = match_key_values(&own, key, values?, item)?;
    let amounts: Vec<TableEntry> = amounts.into_iter().cloned().collect();
    let written = describe_written(base, &amounts);
    let budget = compile_budget(section.sources, &own.title, spec, base, amounts)?;
    if own.node(&limit::overrides::UNTIL).is_some() && until.is_none()
        || own.node(&limit::overrides::NOTE).is_some() && note.is_none()
    {
        return None;
    }
    match table.insert(&values, OverrideEntry { budget, written, until_ms: until, note, setting: None }) {
        true => Some(()),
        false => {
            let what =
                "the same key already has an entry, or entries use `*` and hashes in more than 16 different ways";
            section.report_fault(limit::OVERRIDES.name, item, what, "remove one of the entries")
        }
    }
}

/// Reads the values: each is a string, `{ percent = "caf%E9" }` for bytes that no string can hold, or `{ hash = DIGITS
/// }`.
fn read_values(own: &Section, node: &Node, hasher: &KeyHasher) -> Option<Vec<At<OverrideValue>>> {
    let items = match &node.value {
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let read = |item: &Node| {
        let value = match &item.value {
            Value::String(text) if text.value == "*" => OverrideValue::Any,
            Value::String(text) => OverrideValue::Bytes(text.value.clone().into_bytes()),
            Value::Table(table) => read_table_value(own, table, hasher)?,
            _ => return own.report_wrong_type(limit::overrides::KEY.name, "a string, or a list of strings", item),
        };
        Some(At { place: item.place, value })
    };
    // Every item is parsed, to find all mistakes, before one of them fails the list.
    let values: Vec<_> = items.iter().map(read).collect();
    values.into_iter().collect()
}

fn read_table_value(own: &Section, table: &Tree, hasher: &KeyHasher) -> Option<OverrideValue> {
    let section = Section::new(own.sources, &limit::override_key::TABLE, format!("`key` of {}", own.title), table);
    let bytes = section.parse_string(&limit::override_key::PERCENT, |text| match values::percent_decode(text) {
        Some(bytes) => Ok(bytes),
        None => values::invalid_text("it is not percent-encoded", "write bytes as %XX, and `%` itself as %25"),
    });
    let hash = section.parse_string(&limit::override_key::HASH, |text| match KeyHash::parse(text) {
        Some(_) if !hasher.is_lasting => values::invalid_text("no secret is set", HASH_NEEDS_SECRET),
        Some(hash) => Ok(hash),
        None => values::invalid_text("it is not a hash", "copy the 16 digits, 0 to 9 and a to f, from the log"),
    });
    section.report_unknown();
    match (section.node(&limit::override_key::PERCENT), section.node(&limit::override_key::HASH)) {
        (Some(_), None) => bytes.map(OverrideValue::Bytes),
        (None, Some(_)) => hash.map(OverrideValue::Hash),
        (Some(_), Some(node)) => section.report_fault(
            limit::override_key::HASH.name,
            node,
            "the value is given twice",
            "write `percent` or `hash`",
        ),
        (None, None) => section.report_missing(
            format!("{} has no value", section.title),
            "write a string, { percent = \"caf%E9\" } for bytes that no string can contain, or { hash = DIGITS }",
        ),
    }
}

/// Returns one value for each part of the key.
fn match_key_values(
    own: &Section,
    key: &Key,
    written: Vec<At<OverrideValue>>,
    item: &Node,
) -> Option<Vec<OverrideValue>> {
    if written.len() != key.0.len() {
        let what = format!("it has {} values, the key of the limit has {} parts", written.len(), key.0.len());
        let node = own.node(&limit::overrides::KEY).unwrap_or(item);
        return own.report_fault(
            limit::overrides::KEY.name,
            node,
            &what,
            "write one for each part, in their order; \"*\" is any value",
        );
    }
    let mut values = Vec::with_capacity(written.len());
    for (part, At { place, value }) in key.0.iter().zip(written) {
        let OverrideValue::Bytes(bytes) = value else {
            values.push(value);
            continue;
        };
        match part.canonicalize_written(bytes) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                if *part == KeyPart::Source(Source::Route) {
                    own.sources.add_route_pattern(place, Pattern::Text(text.clone().into_owned()));
                }
                let merged = part.sources().iter().find_map(|source| source.merge_written(&text));
                merged.into_iter().for_each(|merged| own.sources.add_slashed_value(place, merged));
                if let Some(look) = find_look(part, &text) {
                    let what = match look {
                        PatternLook::Wildcard => {
                            "an override has no patterns: the `*` stands for itself next to other characters".to_owned()
                        }
                        look => format!("an override has no patterns, but this value looks like {}", look.noun()),
                    };
                    let help =
                        "write the whole value; \"*\" alone is any value, and limits can have patterns in `when`";
                    own.sources.add_warning(DiagnosticCode::WildcardName, Diagnostic::new(place, what).with_help(help));
                }
                values.push(OverrideValue::Bytes(bytes));
            }
            Err(what) => {
                let help = "write a value that this part of the key can have".to_owned();
                let TextFault { what, help } = own.sources.hide_value(place, TextFault { what, help });
                return own.report_fault_at(limit::overrides::KEY.name, place, &what, &help);
            }
        }
    }
    Some(values)
}

/// Compiles the limit's rule with the numbers of `changed` instead of its own.
pub fn compile_budget(
    sources: &SourceTexts,
    title: &str,
    spec: &Spec,
    base: &Tree,
    changed: Vec<TableEntry>,
) -> Option<OverrideBudget> {
    let strangers: Vec<&TableEntry> = changed.iter().filter(|entry| !spec.has_param(&entry.key)).collect();
    for entry in &strangers {
        let message = format!("`{}` in {title}: {} has no such parameter", entry.key, spec.name);
        sources.add_mistake(Diagnostic::new(entry.place, message).with_help(help(spec)));
    }
    if !strangers.is_empty() {
        return None;
    }
    if let Some(entry) = changed.iter().find(|entry| entry.key == spec.leading.name) {
        let budget = match &entry.node.value {
            Value::Integer(0) => Some(OverrideBudget::Blocked),
            Value::String(text) if text.value.trim() == "0" => Some(OverrideBudget::Blocked),
            Value::String(text) if text.value.trim() == "unlimited" => Some(OverrideBudget::Unlimited),
            _ => None,
        };
        if budget.is_some() {
            return budget;
        }
    }
    let first_place = changed.first().map(|entry| entry.place);
    let mut tree = base.clone();
    tree.entries.retain(|entry| !changed.iter().any(|new| new.key == entry.key));
    tree.entries.extend(changed);
    let section = Section::new(sources, &limit::TABLE, title, &tree);
    let (rule, _) = rule::compile_rule(&section, spec)?;
    if let Some(option) = find_option_without_queue(base).filter(|_| rule.has_queue()) {
        let message = format!("{title} lets requests wait, which `{option}` of the limit excludes");
        let help = "shorten `queue`, or leave it out, so that no request waits";
        sources.add_mistake(Diagnostic::new(first_place.unwrap_or(section.place), message).with_help(help));
        return None;
    }
    Some(OverrideBudget::Rule(Arc::new(rule)))
}

/// Returns an option of the limit that cannot be combined with a queue, in which requests of a key wait.
fn find_option_without_queue(base: &Tree) -> Option<&'static str> {
    let has = |option: &&ConfigOption| {
        base.entries.iter().any(|entry| {
            let is_delay =
                matches!(&entry.node.value, Value::String(text) if [Over::Refuse, Over::Delay].iter().any(|over| over.text() == text.value));
            entry.key == option.name && !is_delay
        })
    };
    [&limit::CLEAR_ON.option, &limit::OVER.option].into_iter().find(has).map(|option| option.name)
}

/// Returns the options that an entry may change: amounts, not the shape of the limit.
fn amount_options<'p>(params: impl Iterator<Item = &'p Param>) -> impl Iterator<Item = &'static str> {
    params.filter(|param| param.overridable).map(|param| param.name)
}

fn describe_amounts(spec: &Spec) -> String {
    amount_options(spec.params()).collect::<Vec<_>>().join(", ")
}

fn help(spec: &Spec) -> String {
    let (name, leading) = (spec.name, spec.leading.name);
    format!("an entry of {name} names a `key` and {}; {leading} may be 0 or \"unlimited\", too", describe_amounts(spec))
}

const UNTIL: &str = limit::overrides::UNTIL.option.name;
const NOTE: &str = limit::overrides::NOTE.option.name;
/// The admin API adds these parts to an entry: when it was set, and by which token.
const SET_AT: &str = "set_at";
const SET_BY: &str = "set_by";
/// Longest note of an entry, in bytes.
const NOTE_MAX: usize = 200;

/// Parses the end of an entry, in ms since 1970.
fn parse_until(text: &str) -> Result<i64, TextFault> {
    match parse_end(text) {
        Some(time) => Ok(time.as_millisecond()),
        None => values::invalid_text(
            format!("`{text}` is not a time"),
            "write a date and time with its offset: \"2026-12-31T00:00:00Z\" or \"2026-12-31T00:00:00+01:00\"",
        ),
    }
}

fn parse_note(text: &str) -> Result<Box<str>, TextFault> {
    match text.len() <= NOTE_MAX && !text.chars().any(char::is_control) {
        true => Ok(text.into()),
        false => {
            values::invalid_text("it is too long, or has control characters", format!("write {NOTE_MAX} bytes at most"))
        }
    }
}

/// Parses the time at which an entry was set.
fn parse_set_at(text: &str) -> Result<i64, TextFault> {
    match text.parse::<Timestamp>() {
        Ok(time) => Ok(time.as_millisecond()),
        Err(_) => values::invalid_text(format!("`{text}` is not a time"), "leave it out: the admin API writes it"),
    }
}

/// Describes the numbers of the limit with those of `changed` instead of its own, as they are written.
fn describe_written(base: &Tree, changed: &[TableEntry]) -> Arc<str> {
    let own = |name: &str| changed.iter().find(|entry| entry.key == name);
    describe_budget(|name| own(name).or_else(|| base.get(name)).map(|entry| &entry.node.value)).into()
}

/// Compiles a live entry such as `rate=100/s;burst=5;until=2026-12-31T00:00:00Z;note=launch`. `parsed` remembers budgets.
fn compile_live_entry(
    spec: &Spec,
    base: &Tree,
    value: &str,
    parsed: &mut ParsedBudgets,
) -> Result<OverrideEntry, String> {
    let (mut until_ms, mut note, mut set_at, mut set_by) = (None, None, None, None);
    let mut amounts = Vec::new();
    let describe = |name: &str, TextFault { what, help }: TextFault| format!("`{name}`: {what}; {help}");
    for pair in value.split(';') {
        let (name, text) = pair.split_once('=').map_or(("", ""), |(name, text)| (name.trim(), text.trim()));
        let is_twice = match name {
            UNTIL => until_ms.replace(parse_until(text).map_err(|fault| describe(name, fault))?).is_some(),
            NOTE => note.replace(parse_note(text).map_err(|fault| describe(name, fault))?).is_some(),
            SET_AT => set_at.replace(parse_set_at(text).map_err(|fault| describe(name, fault))?).is_some(),
            SET_BY => set_by.replace(parse_note(text).map_err(|fault| describe(name, fault))?).is_some(),
            _ => {
                amounts.push(pair);
                false
            }
        };
        if is_twice {
            return Err(format!("`{name}` occurs twice; remove one"));
        }
    }
    let (budget, written) =
        parsed.get_or_parse(amounts.join(";"), |amounts| compile_live_budget(spec, base, amounts))?;
    let setting = set_at.map(|at_ms| Box::new(OverrideSetting { at_ms, by: set_by }));
    Ok(OverrideEntry { budget, written, until_ms, note, setting })
}

/// Compiles a live budget such as `rate=100/s;burst=5`. Returns it with its text.
pub fn compile_live_budget(spec: &Spec, base: &Tree, value: &str) -> ParsedBudget {
    let sources = SourceTexts::default();
    let file = sources.add_source("override".to_owned(), std::path::PathBuf::new(), value.to_owned());
    let place = Place { file, start: 0, end: value.len() };
    let mut amounts: Vec<TableEntry> = Vec::new();
    for pair in value.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not NAME=VALUE"))?;
        let (name, text) = (name.trim(), text.trim());
        if !amount_options(all_params()).any(|known| known == name) {
            return Err(format!("`{name}` is not possible here; write {}", describe_amounts(spec)));
        }
        if amounts.iter().any(|entry| entry.key == name) {
            return Err(format!("`{name}` occurs twice; remove one"));
        }
        let value = match text.parse::<i64>() {
            Ok(value) => Value::Integer(value),
            Err(_) => Value::String(Text { value: text.to_owned(), written: None }),
        };
        amounts.push(TableEntry { key: name.to_owned(), place, node: Node { place, value } });
    }
    if amounts.is_empty() {
        let example = rule::param_example(&spec.leading).trim_matches('"');
        return Err(format!("the entry changes nothing; write {}={example}", spec.leading.name));
    }
    // The places of the limit belong to other source texts.
    let mut base = base.clone();
    for entry in &mut base.entries {
        (entry.place, entry.node.place) = (place, place);
    }
    base.place = place;
    let written = describe_written(&base, &amounts);
    match compile_budget(&sources, "the override", spec, &base, amounts) {
        Some(budget) if !sources.has_mistakes() => Ok((budget, written)),
        _ => {
            let report = sources.into_report().to_json();
            let words = ["message", "help"].map(|part| report[0][part].as_str().unwrap_or_default().to_owned());
            Err(words.join("; ").trim_end_matches("; ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;

    fn overrides(limit: &str) -> (Overrides, Key) {
        let text = format!("[[route]]\nupstream = \"echo:\"\n[limit.x]\n{limit}");
        let config = load_text("test", &text).unwrap_or_else(|report| panic!("{report}"));
        let limit = Arc::into_inner(Arc::into_inner(config.limits).unwrap().all.remove(0)).unwrap();
        (Arc::into_inner(limit.overrides).unwrap(), limit.key)
    }

    /// Asserts the result for each value in the hash of the limit.
    fn assert_results(limit: &str, values: &[(&str, &str)]) {
        let (overrides, key) = overrides(limit);
        for (value, mistake) in values {
            let mut live = [(b"a".to_vec(), value.as_bytes().to_vec())].into();
            let found = overrides.set_live(&key, &mut live).describe();
            match mistake.is_empty() {
                true => assert_eq!(found, None, "{value}"),
                false => {
                    let found = found.unwrap();
                    assert!(found.starts_with(&format!("a: {mistake}")), "{value}: {found}");
                }
            }
        }
    }

    #[test]
    fn live_values_are_read_like_the_limit() {
        assert_results(
            "rate = \"10/s\"\nburst = 20\nkey = \"header:x\"",
            &[
                ("rate=100/day", ""),
                ("burst=5", ""),
                (" rate = 1/s ; burst = 7; debt = 3; ", ""),
                ("debt=0", ""),
                ("rate=0", ""),
                ("rate=unlimited", ""),
                ("rate=1/s; until=2026-12-31T00:00:00+01:00 ;note=launch = a big one", ""),
                ("until=2026-12-31T00:00:00Z", "the entry changes nothing; write rate=10/s"),
                ("rate=1/s;until=tomorrow", "`until`: `tomorrow` is not a time; write a date"),
                ("rate=1/s;note=a;note=b", "`note` occurs twice; remove one"),
                ("", "the entry changes nothing; write rate=10/s"),
                ("rate", "`rate` is not NAME=VALUE"),
                ("rate=5/fortnight", "`rate` in the override: unknown unit `fortnight`; units are"),
                ("burst=99999999999999999", "`burst` in the override: it must be from 1 to 4503599627370496"),
                ("start=empty", "`start` is not possible here; write rate, burst, debt"),
                ("key=x", "`key` is not possible here; write rate, burst, debt"),
                ("rate=1/s;rate=2/s", "`rate` occurs twice; remove one"),
                (
                    "rate=0;queue=1s",
                    "`queue` in the override: token_bucket has no such parameter; an entry of token_bucket names a \
                     `key` and rate, burst, debt; rate may be 0 or \"unlimited\", too",
                ),
            ],
        );
    }

    #[test]
    fn live_values_have_the_numbers_of_their_algorithm() {
        assert_results(
            "algorithm = \"concurrency\"\nin_flight = 5\nkey = \"header:x\"",
            &[
                ("in_flight=7", ""),
                ("in_flight=0", ""),
                ("in_flight=unlimited", ""),
                ("", "the entry changes nothing; write in_flight=20"),
                ("in_flight=many", "`in_flight` in the override: it must be an integer, found a string"),
                ("in_flight=100001", "`in_flight` in the override: it must be from 1 to 100000"),
                ("rate=0", "`rate` in the override: concurrency has no such parameter; an entry of concurrency names"),
            ],
        );
        assert_results(
            "algorithm = \"leaky_bucket\"\nrate = \"5/s\"\nkey = \"header:x\"",
            &[
                ("queue=2s", ""),
                ("rate=1/s;queue=0ms", ""),
                ("queue=2", "`queue` in the override: it must be a string with a unit, found the integer 2"),
                ("nodelay=true", "`nodelay` is not possible here; write rate, queue"),
            ],
        );
        // A key whose requests wait must not be reset, or they would lose their places.
        let waits = "the override lets requests wait, which `clear_on` of the limit excludes; shorten `queue`";
        assert_results(
            "algorithm = \"leaky_bucket\"\nrate = \"5/s\"\nkey = \"header:x\"\nqueue = \"1s\"\ndelay_after = 10\nclear_on = [200]",
            &[("queue=2s", ""), ("queue=3s", waits), ("rate=100/s", waits), ("rate=4/s", ""), ("rate=0", "")],
        );
    }
}
