//! Typed reading of one table. Each getter reports what is wrong with its key and returns `None`,
//! so a compiler asks for everything and every mistake is found; `finish` reports the keys nobody
//! asked for. Called by `compile`.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::hints;
use super::report::{Diagnostic, MistakeKind, Place};
use super::schema::Schema;
use super::source::SourceTexts;
use super::tree::{Node, Table, TableEntry, Value};
use super::values::{self, Fault};
use crate::upstream::Fraction;

pub struct Section<'a> {
    pub sources: &'a SourceTexts,
    /// How messages call it: `[limit.login]`.
    pub title: String,
    pub place: Place,
    schema: &'static Schema,
    table: &'a Table,
    asked: RefCell<Vec<&'static str>>,
}

/// A value with the place it was written at.
#[derive(Clone, Copy, Debug)]
pub struct At<T> {
    pub place: Place,
    pub value: T,
}

impl<'a> Section<'a> {
    pub fn new(
        sources: &'a SourceTexts,
        schema: &'static Schema,
        title: impl Into<String>,
        table: &'a Table,
    ) -> Section<'a> {
        Section { sources, title: title.into(), place: table.place, schema, table, asked: RefCell::default() }
    }

    /// As it was written.
    pub fn own_table(&self) -> &'a Table {
        self.table
    }

    pub fn mistake(&self, mistake: Diagnostic) {
        self.sources.mistake(mistake);
    }

    pub fn entry(&self, key: &'static str) -> Option<&'a TableEntry> {
        debug_assert!(
            self.schema.keys().any(|known| known == key),
            "`{key}` is not in the schema of {}",
            self.schema.name
        );
        self.asked.borrow_mut().push(key);
        let entry = self.table.get(key)?;
        self.sources.saw(self.schema.name, key);
        Some(entry)
    }

    pub fn node(&self, key: &'static str) -> Option<&'a Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// A string in a language of `values`.
    pub fn parse<T>(&self, key: &'static str, parse: impl Fn(&str) -> Result<T, Fault>) -> Option<T> {
        self.parse_at(key, parse).map(|at| at.value)
    }

    pub fn parse_at<T>(&self, key: &'static str, parse: impl Fn(&str) -> Result<T, Fault>) -> Option<At<T>> {
        let node = self.node(key)?;
        self.parse_node(key, node, parse).map(|value| At { place: node.place, value })
    }

    pub fn parse_node<T>(&self, key: &str, node: &Node, parse: impl Fn(&str) -> Result<T, Fault>) -> Option<T> {
        let Value::String(text) = &node.value else {
            return self.wrong_type(key, "a string", node);
        };
        match text.parse(parse) {
            Ok(value) => Some(value),
            Err(Fault { what, help }) => self.fault(key, node, &what, &help),
        }
    }

    pub fn string(&self, key: &'static str) -> Option<String> {
        self.parse(key, |text| Ok(text.to_owned()))
    }

    /// The text of the file that is named there, which is watched from now on.
    pub fn file(&self, key: &'static str) -> Option<String> {
        let path = self.string(key)?;
        let node = self.node(key)?;
        match self.sources.read(&self.sources.resolve(node.place.file, &path)) {
            Ok(text) => Some(text),
            Err(error) => self.fault(key, node, &format!("it cannot be read: {error}"), error.help()),
        }
    }

    pub fn bool(&self, key: &'static str) -> Option<bool> {
        match self.node(key)? {
            Node { value: Value::Bool(value), .. } => Some(*value),
            node => self.wrong_type(key, "true or false", node),
        }
    }

    pub fn integer(&self, key: &'static str, range: RangeInclusive<i64>) -> Option<i64> {
        let node = self.node(key)?;
        let Value::Integer(value) = node.value else {
            return self.wrong_type(key, "an integer", node);
        };
        self.within(key, node, value, range)
    }

    /// A part of a whole, more than none of it: from 0.001 to 1.
    pub fn fraction(&self, key: &'static str) -> Option<Fraction> {
        let node = self.node(key)?;
        let number = match node.value {
            Value::Float(number) => number,
            Value::Integer(1) => 1.0,
            Value::Integer(_) => 0.0,
            _ => return self.wrong_type(key, "a number from 0.001 to 1", node),
        };
        match Fraction::parse(number) {
            Some(share) => Some(share),
            None => self.fault(key, node, "it must be from 0.001 to 1", "write a part of 1: 0.5 is a half"),
        }
    }

    /// Bytes: an integer, or a string with a unit.
    pub fn size(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.node(key)?;
        let value = match node.value {
            Value::Integer(value) => match u64::try_from(value) {
                Ok(value) => value,
                Err(_) => return self.fault(key, node, "a size is not negative", ""),
            },
            Value::String(_) => self.parse_node(key, node, values::size)?,
            _ => return self.wrong_type(key, "a size like \"10MiB\", or an integer of bytes", node),
        };
        self.within(key, node, value, range)
    }

    pub fn duration(&self, key: &'static str, range: RangeInclusive<Duration>) -> Option<Duration> {
        let node = self.node(key)?;
        if let Value::Integer(value) = node.value {
            let what = format!("it must be a string with a unit, found the integer {value}");
            return self.fault(key, node, &what, &format!("write {key} = \"{value}s\" or \"{value}ms\""));
        }
        let value = self.parse_node(key, node, values::duration)?;
        if range.contains(&value) {
            return Some(value);
        }
        self.fault(key, node, &format!("it must be from {:?} to {:?}", range.start(), range.end()), "")
    }

    /// One of a closed list of words.
    pub fn choice<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.parse(key, |text| choose(text, words))
    }

    /// One of a closed set with labels.
    pub fn label<T: Copy>(&self, key: &'static str, all: &[T], label: fn(T) -> &'static str) -> Option<T> {
        let words: Vec<(&str, T)> = all.iter().map(|value| (label(*value), *value)).collect();
        self.choice(key, &words)
    }

    /// A string, or a list of strings.
    pub fn strings<T>(&self, key: &'static str, parse: impl Fn(&str) -> Result<T, Fault>) -> Option<Vec<At<T>>> {
        let node = self.node(key)?;
        let items = match &node.value {
            Value::Array(items) => items.as_slice(),
            Value::String(_) => std::slice::from_ref(node),
            _ => return self.wrong_type(key, "a string or a list of strings", node),
        };
        let read = |item: &Node| Some(At { place: item.place, value: self.parse_node(key, item, &parse)? });
        // Every item is read, for its mistakes, before one of them fails the list.
        let values: Vec<_> = items.iter().map(read).collect();
        values.into_iter().collect()
    }

    /// A table with a schema of its own.
    pub fn section(&self, key: &'static str, schema: &'static Schema) -> Option<Section<'a>> {
        let table = self.table(key)?;
        Some(Section::new(self.sources, schema, format!("`{key}`"), table))
    }

    /// A table whose keys are names the user chose.
    pub fn table(&self, key: &'static str) -> Option<&'a Table> {
        match self.node(key)? {
            Node { value: Value::Table(table), .. } => Some(table),
            node => self.wrong_type(key, "a table", node),
        }
    }

    pub fn wrong_type<T>(&self, key: &str, expected: &str, node: &Node) -> Option<T> {
        if matches!(node.value, Value::Broken) {
            return None;
        }
        let help = match &node.value {
            Value::String(text)
                if text.written.is_none()
                    && (text.value.parse::<i64>().is_ok() || text.value.parse::<bool>().is_ok()) =>
            {
                format!("remove the quotes: {key} = {}", text.value)
            }
            _ => String::new(),
        };
        self.fault(key, node, &format!("it must be {expected}, found {}", node.type_name()), &help)
    }

    pub fn fault<T>(&self, key: &str, node: &Node, what: &str, help: &str) -> Option<T> {
        self.fault_at(key, node.place, what, help)
    }

    pub fn fault_at<T>(&self, key: &str, place: Place, what: &str, help: &str) -> Option<T> {
        self.mistake(Diagnostic::new(place, format!("`{key}` in {}: {what}", self.title)).help(help));
        None
    }

    /// The key that must be there is not.
    pub fn absent<T>(&self, message: impl Into<String>, help: &str) -> Option<T> {
        self.mistake(Diagnostic::new(self.place, message).kind(MistakeKind::Absent).help(help));
        None
    }

    fn within<T: PartialOrd + std::fmt::Display>(
        &self,
        key: &str,
        node: &Node,
        value: T,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        if range.contains(&value) {
            return Some(value);
        }
        self.fault(key, node, &format!("it must be from {} to {}", range.start(), range.end()), "")
    }

    pub fn finish(self) {
        self.unknown();
    }

    /// Reports every key that no getter asked for.
    pub fn unknown(&self) {
        let asked = self.asked.borrow();
        for entry in self.table.entries.iter().filter(|entry| !asked.contains(&entry.key.as_str())) {
            let message = format!("unknown key `{}` in {}", entry.key, self.title);
            let help = hints::unknown_key(self.schema, entry);
            self.mistake(Diagnostic::new(entry.place, message).label("unknown key").help(help));
        }
    }
}

pub fn choose<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, Fault> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let help = match hints::closest(text, names.iter().copied()) {
        Some(word) => format!("did you mean \"{word}\"? One of {}", names.join(", ")),
        None => format!("one of {}", names.join(", ")),
    };
    values::fault(format!("unknown value `{text}`"), help)
}
