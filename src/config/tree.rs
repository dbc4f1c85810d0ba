//! A TOML file as a tree of owned values, each with its place, in the order of the file, with
//! `${...}` in strings already replaced. Built by `source`, read through `reader`.

use std::collections::HashMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use super::report::{Diagnostic, Place};
use super::source::SourceTexts;
use super::substitute::{self, Text};
use super::syntax;

#[derive(Clone, Debug)]
pub struct Node {
    pub place: Place,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub enum Value {
    String(Text),
    Integer(i64),
    /// Finite.
    Float(f64),
    Bool(bool),
    Array(Vec<Node>),
    Table(Table),
    /// Of a type that no option takes; the name of the type.
    Other(&'static str),
    /// Its mistake is reported.
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
    /// The type as a message names it.
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

/// The tree of one file. Syntax errors are reported, and what could be read around them is kept
/// so that its mistakes are reported too.
pub fn parse(sources: &SourceTexts, file: usize) -> Table {
    let source = sources.source(file);
    let (document, errors) = DeTable::parse_recoverable(&source.text);
    let mut foreign = false;
    for (i, error) in errors.iter().enumerate() {
        // A list that is not closed takes every later line for an element.
        let in_list =
            |error: &Error| error.message().starts_with("missing comma") || error.message().contains("in array");
        if i > 0 && in_list(error) && in_list(&errors[i - 1]) {
            continue;
        }
        // One line of another language says it for all.
        if syntax::is_foreign_at(&source, error) && std::mem::replace(&mut foreign, true) {
            continue;
        }
        sources.mistake(syntax::diagnostic(&source, file, error));
    }
    let place = Place { file, start: 0, end: 0 };
    Builder { sources, file }.table(document.get_ref(), place)
}

struct Builder<'a> {
    sources: &'a SourceTexts,
    file: usize,
}

impl Builder<'_> {
    fn table(&self, table: &DeTable, place: Place) -> Table {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue>)| {
            let name: &std::borrow::Cow<str> = key.get_ref();
            TableEntry { key: name.to_string(), place: self.place(key.span()), node: self.node(value) }
        };
        let mut entries: Vec<TableEntry> = table.iter().map(entry).collect();
        entries.sort_by_key(|entry| entry.place.start);
        Table { place, entries }
    }

    fn node(&self, value: &Spanned<DeValue>) -> Node {
        let place = self.place(value.span());
        let value = match value.get_ref() {
            DeValue::String(text) => match substitute::replace(self.sources, place, text) {
                Some(text) => Value::String(text),
                None => Value::Broken,
            },
            DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(integer) => Value::Integer(integer),
                Err(_) => {
                    self.sources.mistake(
                        Diagnostic::new(place, "this integer is too large")
                            .help(format!("the largest is {}", i64::MAX)),
                    );
                    Value::Broken
                }
            },
            DeValue::Boolean(value) => Value::Bool(*value),
            DeValue::Array(items) => Value::Array(items.iter().map(|item| self.node(item)).collect()),
            DeValue::Table(table) => Value::Table(self.table(table, place)),
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

/// The one table that the same-named tables of several files make; a key given twice is a
/// mistake that names both places.
pub fn merge(sources: &SourceTexts, what: &str, tables: Vec<Table>) -> Option<Table> {
    let mut tables = tables.into_iter();
    let mut merged = tables.next()?;
    let mut places: HashMap<String, Place> = merged.entries.iter().map(|e| (e.key.clone(), e.place)).collect();
    for entry in tables.flat_map(|table| table.entries) {
        match places.get(&entry.key) {
            Some(first) => sources.mistake(
                Diagnostic::new(entry.place, twice(what, &entry))
                    .label("defined again here")
                    .related(*first, "first defined here")
                    .help("remove or rename one of the two"),
            ),
            None => {
                places.insert(entry.key.clone(), entry.place);
                merged.entries.push(entry);
            }
        }
    }
    Some(merged)
}

fn twice(what: &str, entry: &TableEntry) -> String {
    match entry.node.value {
        Value::Table(_) => format!("[{what}.{}] is defined twice", entry.key),
        _ => format!("`{}` of [{what}] is defined twice", entry.key),
    }
}
