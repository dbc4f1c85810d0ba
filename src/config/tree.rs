//! A TOML file as a tree of owned values, each with its place, in file order, with `${...}` already replaced. Built by
//! `source`, read through `reader`.

use std::collections::HashMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::schema::row::{ConfigOption, DefaultValue};
use crate::config::source::SourceTexts;
use crate::config::substitute::Text;
use crate::config::{substitute, syntax};

#[derive(Clone, Debug)]
pub struct Node {
    pub place: Place,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub enum Value {
    String(Text),
    Integer(i64),
    /// Always finite.
    Float(f64),
    Bool(bool),
    Array(Vec<Node>),
    Table(Table),
    /// A value of a type that no option has; contains the type's name.
    Other(&'static str),
    /// Unusable; the mistake has been reported.
    Broken,
}

#[derive(Clone, Debug)]
pub struct Table {
    pub place: Place,
    pub entries: Vec<TableEntry>,
}

#[derive(Clone, Debug)]
pub struct TableEntry {
    pub key: String,
    pub place: Place,
    pub node: Node,
}

impl Table {
    pub fn get(&self, key: &str) -> Option<&TableEntry> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

impl Node {
    /// Returns the value of a string that is one `${...}` as a whole: a variable or file may give a number or a
    /// boolean.
    fn substituted(&self) -> Option<&str> {
        let Value::String(Text { value, written: Some(written) }) = &self.value else { return None };
        let is_whole = written.starts_with("${") && written.find('}') == Some(written.len() - 1);
        is_whole.then(|| value.trim())
    }

    pub fn integer(&self) -> Option<i64> {
        match self.value {
            Value::Integer(value) => Some(value),
            _ => self.substituted()?.parse().ok(),
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(value),
            _ => self.substituted()?.parse().ok(),
        }
    }

    /// Returns a number that may have a fraction.
    pub fn number(&self) -> Option<f64> {
        match self.value {
            Value::Float(number) => Some(number),
            // An integer that is too large for the options of this type is out of their range in any case.
            Value::Integer(number) => Some(i32::try_from(number).map_or(f64::INFINITY, f64::from)),
            _ => self.substituted()?.parse().ok().filter(|number: &f64| number.is_finite()),
        }
    }

    /// Returns the type's name for messages.
    pub fn type_name(&self) -> &'static str {
        match &self.value {
            Value::String(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a boolean",
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
            Value::Other(name) => name,
            Value::Broken => "a broken value",
        }
    }
}

/// Parses one file. Syntax errors are reported, and the readable part is kept so that its mistakes are reported too.
pub fn parse_file(sources: &SourceTexts, file: usize) -> Table {
    let source = sources.source(file);
    let place = Place { file, start: 0, end: 0 };
    if let Some(mistake) = syntax::find_deep_nesting(&source, file) {
        sources.add_mistake(mistake);
        return Table { place, entries: Vec::new() };
    }
    let (document, errors) = DeTable::parse_recoverable(&source.text);
    let mut foreign = false;
    for (i, error) in errors.iter().enumerate() {
        // An unclosed list takes every later line for an element.
        let in_list =
            |error: &Error| error.message().starts_with("missing comma") || error.message().contains("in array");
        if i > 0 && in_list(error) && in_list(&errors[i - 1]) {
            continue;
        }
        // One mistake is enough for a file in another language.
        if syntax::is_foreign_at(&source, error) && std::mem::replace(&mut foreign, true) {
            continue;
        }
        sources.add_mistake(syntax::to_diagnostic(&source, file, error));
    }
    Builder { sources, file }.build_table(document.get_ref(), place)
}

struct Builder<'a> {
    sources: &'a SourceTexts,
    file: usize,
}

impl Builder<'_> {
    fn build_table(&self, table: &DeTable, place: Place) -> Table {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue>)| {
            let name: &std::borrow::Cow<str> = key.get_ref();
            TableEntry { key: name.to_string(), place: self.place(key.span()), node: self.build_node(value) }
        };
        let mut entries: Vec<TableEntry> = table.iter().map(entry).collect();
        entries.sort_by_key(|entry| entry.place.start);
        Table { place, entries }
    }

    fn build_node(&self, value: &Spanned<DeValue>) -> Node {
        let place = self.place(value.span());
        let value = match value.get_ref() {
            DeValue::String(text) => match substitute::replace_expressions(self.sources, place, text) {
                Some(text) => Value::String(text),
                None => Value::Broken,
            },
            DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(integer) => Value::Integer(integer),
                Err(_) => {
                    self.sources.add_mistake(
                        Diagnostic::new(place, "this integer is too large")
                            .with_help(format!("the largest is {}", i64::MAX)),
                    );
                    Value::Broken
                }
            },
            DeValue::Boolean(value) => Value::Bool(*value),
            DeValue::Array(items) => Value::Array(items.iter().map(|item| self.build_node(item)).collect()),
            DeValue::Table(table) => Value::Table(self.build_table(table, place)),
            DeValue::Float(text) => match text.as_str().replace('_', "").parse::<f64>() {
                Ok(number) if number.is_finite() => Value::Float(number),
                _ => Value::Other("a float"),
            },
            DeValue::Datetime(_) => Value::Other("a date"),
        };
        Node { place, value }
    }

    fn place(&self, span: std::ops::Range<usize>) -> Place {
        Place { file: self.file, start: span.start, end: span.end }
    }
}

/// The place of what no file contains.
const NO_PLACE: Place = Place { file: 0, start: 0, end: 0 };

/// Returns the default of an option, which has no place; `None` if it depends on others.
pub fn parse_default(option: &ConfigOption) -> Option<Node> {
    match option.default {
        DefaultValue::Value(text) => convert_json(serde_json::from_str(text).ok()?),
        _ => None,
    }
}

/// Returns the list that an option without a value means. `None` if that depends on other options.
pub fn parse_unset_list(option: &ConfigOption) -> Option<Node> {
    match option.default {
        DefaultValue::Absent => Some(Node { place: NO_PLACE, value: Value::Array(Vec::new()) }),
        _ if option.unset.starts_with('[') => convert_json(serde_json::from_str(option.unset).ok()?),
        _ => parse_default(option),
    }
}

fn convert_json(json: serde_json::Value) -> Option<Node> {
    let value = match json {
        serde_json::Value::Null => return None,
        serde_json::Value::Bool(value) => Value::Bool(value),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(number) => Value::Integer(number),
            None => Value::Float(number.as_f64()?),
        },
        serde_json::Value::String(value) => Value::String(Text { value, written: None }),
        serde_json::Value::Array(items) => Value::Array(items.into_iter().map(convert_json).collect::<Option<_>>()?),
        serde_json::Value::Object(entries) => {
            let entry = |(key, json)| Some(TableEntry { key, place: NO_PLACE, node: convert_json(json)? });
            Value::Table(Table { place: NO_PLACE, entries: entries.into_iter().map(entry).collect::<Option<_>>()? })
        }
    };
    Some(Node { place: NO_PLACE, value })
}

/// Merges the tables with the same name of several files. A key that occurs twice is a mistake that names both places.
pub fn merge_tables(sources: &SourceTexts, what: &str, tables: Vec<Table>) -> Option<Table> {
    let mut tables = tables.into_iter();
    let mut result = tables.next()?;
    let mut places: HashMap<String, Place> = result.entries.iter().map(|e| (e.key.clone(), e.place)).collect();
    for entry in tables.flat_map(|table| table.entries) {
        match places.get(&entry.key) {
            Some(first) => sources.add_mistake(
                Diagnostic::new(entry.place, report_duplicate(what, &entry))
                    .with_label("defined again here")
                    .with_related(*first, "first defined here")
                    .with_help("remove or rename one of the two"),
            ),
            None => {
                places.insert(entry.key.clone(), entry.place);
                result.entries.push(entry);
            }
        }
    }
    Some(result)
}

fn report_duplicate(what: &str, entry: &TableEntry) -> String {
    match entry.node.value {
        Value::Table(_) => format!("[{what}.{}] is defined twice", entry.key),
        _ => format!("`{}` of [{what}] is defined twice", entry.key),
    }
}
