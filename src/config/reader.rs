//! Typed access to one table. Each getter reports what is wrong with its key and returns `None`, so the compiler reads
//! everything and every mistake is found. `report_unread_keys` reports the keys that no getter read. Called by
//! `compile`.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place};
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{self, Schema};
use crate::config::source::SourceTexts;
use crate::config::tree::{Node, Table, TableEntry, Value};
use crate::config::values::TextFault;
use crate::config::{closest, examples, hints, values};
use crate::upstream::Fraction;

pub struct Section<'a> {
    pub sources: &'a SourceTexts,
    /// Name of the section in messages: `[limit.login]`.
    pub title: String,
    pub place: Place,
    schema: &'static Schema,
    table: &'a Table,
    read_keys: RefCell<Vec<&'static str>>,
}

/// A value with the place where it was written.
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
        Section { sources, title: title.into(), place: table.place, schema, table, read_keys: RefCell::default() }
    }

    /// Returns the table as it was written.
    pub fn written_table(&self) -> &'a Table {
        self.table
    }

    pub fn add_mistake(&self, mistake: Diagnostic) {
        self.sources.add_mistake(mistake);
    }

    pub fn entry(&self, key: &'static str) -> Option<&'a TableEntry> {
        debug_assert!(
            self.schema.keys().any(|known| known == key),
            "`{key}` is not in the schema of {}",
            self.schema.name
        );
        self.read_keys.borrow_mut().push(key);
        let entry = self.table.get(key)?;
        self.sources.mark_key_seen(self.schema.name, key);
        Some(entry)
    }

    pub fn node(&self, key: &'static str) -> Option<&'a Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// Reads a string and parses it with a function of `values`.
    pub fn parse_string<T>(&self, key: &'static str, parse: impl Fn(&str) -> Result<T, TextFault>) -> Option<T> {
        self.parse_at(key, parse).map(|at| at.value)
    }

    pub fn parse_at<T>(&self, key: &'static str, parse: impl Fn(&str) -> Result<T, TextFault>) -> Option<At<T>> {
        let node = self.node(key)?;
        self.parse_node(key, node, parse).map(|value| At { place: node.place, value })
    }

    pub fn parse_node<T>(&self, key: &str, node: &Node, parse: impl Fn(&str) -> Result<T, TextFault>) -> Option<T> {
        let Value::String(text) = &node.value else {
            return self.report_wrong_type(key, "a string", node);
        };
        match text.parse_value(parse) {
            Ok(value) => Some(value),
            Err(TextFault { what, help }) => self.report_fault(key, node, &what, &help),
        }
    }

    pub fn read_string(&self, key: &'static str) -> Option<String> {
        self.parse_string(key, |text| Ok(text.to_owned()))
    }

    /// Reads the text of the file that the key names, and watches the file.
    pub fn read_file(&self, key: &'static str) -> Option<String> {
        let path = self.read_string(key)?;
        let node = self.node(key)?;
        match self.sources.read_file(&self.sources.resolve_path(node.place.file, &path)) {
            Ok(text) => Some(text),
            Err(error) => self.report_fault(key, node, &format!("it cannot be read: {error}"), error.help()),
        }
    }

    pub fn read_bool(&self, key: &'static str) -> Option<bool> {
        match self.node(key)? {
            Node { value: Value::Bool(value), .. } => Some(*value),
            node => self.report_wrong_type(key, "true or false", node),
        }
    }

    /// Reads an integer within the bounds that the schema has for the key.
    pub fn read_integer(&self, key: &'static str) -> Option<i64> {
        let node = self.node(key)?;
        let range = self.bounds(key, ValueType::integer_range).unwrap_or(i64::MIN..=i64::MAX);
        let Value::Integer(value) = node.value else {
            return self.report_wrong_type(key, "an integer", node);
        };
        self.check_range(key, node, value, range)
    }

    /// Reads a fraction from 0.001 to 1.
    pub fn read_fraction(&self, key: &'static str) -> Option<Fraction> {
        let node = self.node(key)?;
        let number = match node.value {
            Value::Float(number) => number,
            Value::Integer(1) => 1.0,
            Value::Integer(_) => 0.0,
            _ => return self.report_wrong_type(key, "a number from 0.001 to 1", node),
        };
        match Fraction::parse(number) {
            Some(share) => Some(share),
            None => self.report_fault(key, node, "it must be from 0.001 to 1", "write a part of 1: 0.5 is a half"),
        }
    }

    /// Reads a number from 0.001 to the bound that the schema has for the key, in 1/1000.
    pub fn read_thousandths(&self, key: &'static str) -> Option<u64> {
        let node = self.node(key)?;
        let most = self.bounds(key, ValueType::decimal_max).unwrap_or(1);
        let number = match node.value {
            Value::Float(number) => number,
            Value::Integer(number) => match i32::try_from(number) {
                Ok(number) => f64::from(number),
                Err(_) => f64::INFINITY,
            },
            _ => return self.report_wrong_type(key, "a number", node),
        };
        match to_thousandths(number, most) {
            Some(thousandths) => Some(thousandths),
            None => self.report_fault(key, node, &format!("it must be from 0.001 to {most}"), ""),
        }
    }

    /// Reads a number of bytes: an integer, or a string with a unit.
    pub fn read_size(&self, key: &'static str) -> Option<u64> {
        let node = self.node(key)?;
        let range = self.bounds(key, ValueType::size_range).unwrap_or(0..=u64::MAX);
        let value = match node.value {
            Value::Integer(value) => match u64::try_from(value) {
                Ok(value) => value,
                Err(_) => return self.report_fault(key, node, "a size is not negative", ""),
            },
            Value::String(_) => self.parse_node(key, node, values::parse_size)?,
            _ => return self.report_wrong_type(key, "a size like \"10MiB\", or an integer of bytes", node),
        };
        self.check_range(key, node, value, range)
    }

    pub fn read_duration(&self, key: &'static str) -> Option<Duration> {
        let node = self.node(key)?;
        let range = self.bounds(key, ValueType::duration_range).unwrap_or(Duration::ZERO..=Duration::MAX);
        if let Value::Integer(value) = node.value {
            let what = format!("it must be a string with a unit, found the integer {value}");
            return self.report_fault(key, node, &what, &format!("write {key} = \"{value}s\" or \"{value}ms\""));
        }
        let value = self.parse_node(key, node, values::parse_duration)?;
        if range.contains(&value) {
            return Some(value);
        }
        self.report_fault(key, node, &format!("it must be from {:?} to {:?}", range.start(), range.end()), "")
    }

    /// Reads a string that must be one of `words`.
    pub fn read_choice<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.parse_string(key, |text| find_choice(text, words))
    }

    /// Reads one label of a closed set.
    pub fn read_label<T: Copy>(&self, key: &'static str, all: &[T], label: fn(T) -> &'static str) -> Option<T> {
        let words: Vec<(&str, T)> = all.iter().map(|value| (label(*value), *value)).collect();
        self.read_choice(key, &words)
    }

    /// Reads a string or a list of strings.
    pub fn read_strings<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, TextFault>,
    ) -> Option<Vec<At<T>>> {
        let node = self.node(key)?;
        let items = match &node.value {
            Value::Array(items) => items.as_slice(),
            Value::String(_) => std::slice::from_ref(node),
            _ => return self.report_wrong_type(key, "a string or a list of strings", node),
        };
        let read = |item: &Node| Some(At { place: item.place, value: self.parse_node(key, item, &parse)? });
        // Every item is parsed, to find all mistakes, before one of them fails the list.
        let values: Vec<_> = items.iter().map(read).collect();
        values.into_iter().collect()
    }

    /// Reads a nested table with its own schema.
    pub fn read_section(&self, key: &'static str, schema: &'static Schema) -> Option<Section<'a>> {
        let table = self.read_table(key)?;
        Some(Section::new(self.sources, schema, format!("`{key}`"), table))
    }

    /// Reads a table whose keys are names that the user chose.
    pub fn read_table(&self, key: &'static str) -> Option<&'a Table> {
        match self.node(key)? {
            Node { value: Value::Table(table), .. } => Some(table),
            node => self.report_wrong_type(key, "a table", node),
        }
    }

    pub fn report_wrong_type<T>(&self, key: &str, expected: &str, node: &Node) -> Option<T> {
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
            _ => {
                let example = self.schema.find(key).and_then(|option| examples::describe_right_value(option, node));
                example.unwrap_or_default().to_owned()
            }
        };
        self.report_fault(key, node, &format!("it must be {expected}, found {}", node.type_name()), &help)
    }

    pub fn report_fault<T>(&self, key: &str, node: &Node, what: &str, help: &str) -> Option<T> {
        let no_bound = examples::describe_no_bound(self.schema, key, node);
        self.report_fault_at(key, node.place, what, no_bound.as_deref().unwrap_or(help))
    }

    pub fn report_fault_at<T>(&self, key: &str, place: Place, what: &str, help: &str) -> Option<T> {
        let path = if self.schema.find(key).is_some() { self.schema.path_of(key) } else { String::new() };
        let message = format!("`{key}` in {}: {what}", self.title);
        self.add_mistake(Diagnostic::new(place, message).with_help(help).with_option(path));
        None
    }

    /// Reports that a required key is missing.
    pub fn report_missing<T>(&self, message: impl Into<String>, help: &str) -> Option<T> {
        self.add_mistake(Diagnostic::new(self.place, message).with_kind(MistakeKind::Absent).with_help(help));
        None
    }

    /// Returns the bounds that the schema has for a key.
    fn bounds<T>(&self, key: &str, of: fn(&ValueType) -> Option<T>) -> Option<T> {
        let bounds = self.schema.find(key).and_then(|option| of(&option.value_type()));
        debug_assert!(bounds.is_some(), "the schema of {} has no such bounds for `{key}`", self.schema.name);
        bounds
    }

    fn check_range<T: PartialOrd + std::fmt::Display>(
        &self,
        key: &str,
        node: &Node,
        value: T,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        if range.contains(&value) {
            return Some(value);
        }
        self.report_fault(key, node, &format!("it must be from {} to {}", range.start(), range.end()), "")
    }

    pub fn report_unread_keys(self) {
        self.report_unknown();
    }

    /// Reports every key that no getter read.
    pub fn report_unknown(&self) {
        let read_keys = self.read_keys.borrow();
        for entry in self.table.entries.iter().filter(|entry| !read_keys.contains(&entry.key.as_str())) {
            let message = format!("unknown key `{}` in {}", entry.key, self.title);
            let help = hints::describe_unknown_key(self.schema, entry);
            let section = self.schema.name.split('.').next().filter(|name| *name != schema::root::TABLE.name);
            let mistake = Diagnostic::new(entry.place, message).with_label("unknown key").with_help(help);
            self.add_mistake(mistake.with_option(section.unwrap_or_default()));
        }
    }
}

/// Returns a number from 0.001 to `most` in 1/1000, rounded.
fn to_thousandths(number: f64, most: u32) -> Option<u64> {
    let is_within = (0.001..=f64::from(most)).contains(&number);
    // The text of the rounded number has no fraction and no exponent.
    is_within.then(|| format!("{:.0}", number * 1000.0).parse().ok())?
}

pub fn find_choice<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, TextFault> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let help = match closest::find_closest(text, names.iter().copied()) {
        Some(word) => format!("did you mean \"{word}\"? One of {}", names.join(", ")),
        None => format!("one of {}", names.join(", ")),
    };
    values::invalid_text(format!("unknown value `{text}`"), help)
}
