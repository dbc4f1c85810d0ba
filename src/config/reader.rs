//! Typed access to one table. Each getter reports what is wrong with its key and returns `None`, so the compiler reads
//! everything and every mistake is found. `report_unread_keys` reports the keys that no getter read. Called by
//! `compile`.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place};
use crate::config::hints::foreign_words::find_foreign_word;
use crate::config::schema::row::{ConfigOption, Row};
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{self, Schema};
use crate::config::source::SourceTexts;
use crate::config::substitute::Text;
use crate::config::tree::{self, Node, Table, TableEntry, Value};
use crate::config::unreadable::Unreadable;
use crate::config::values::TextFault;
use crate::config::{closest, examples, hints, values};
use crate::labels::LabelSet;
use crate::limiting::algorithm::params::Rate;
use crate::text::format_duration;
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

    pub fn entry(&self, option: &ConfigOption) -> Option<&'a TableEntry> {
        let key = option.name;
        debug_assert!(self.schema.find(key).is_some(), "`{key}` is not in the schema of {}", self.schema.name);
        self.read_keys.borrow_mut().push(key);
        let entry = self.table.get(key)?;
        self.sources.mark_key_seen(self.schema.name, key);
        Some(entry)
    }

    /// Returns the row of this table for an option of that name. A function may read the options that several tables
    /// share by the rows of one of them, and each table has its own default and bounds.
    fn own_row<'o>(&self, option: &'o ConfigOption) -> &'o ConfigOption {
        self.schema.find(option.name).unwrap_or(option)
    }

    pub fn node(&self, option: &ConfigOption) -> Option<&'a Node> {
        self.entry(option).map(|entry| &entry.node)
    }

    /// Reads a string and parses it with a function of `values`.
    pub fn parse_string<T>(&self, option: &ConfigOption, parse: impl Fn(&str) -> Result<T, TextFault>) -> Option<T> {
        self.parse_at(option, parse).map(|at| at.value)
    }

    pub fn parse_at<T>(&self, option: &ConfigOption, parse: impl Fn(&str) -> Result<T, TextFault>) -> Option<At<T>> {
        let node = self.node(option)?;
        self.parse_node(option.name, node, parse).map(|value| At { place: node.place, value })
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

    pub fn read_string(&self, option: &ConfigOption) -> Option<String> {
        self.parse_string(option, |text| Ok(text.to_owned()))
    }

    /// Reads the text of the file that the key names, and watches the file.
    pub fn read_file(&self, option: &ConfigOption) -> Option<String> {
        self.read_file_by(option, SourceTexts::read_file)
    }

    /// Reads the file with certificates or a key in PEM that the key names, and watches it.
    pub fn read_pem(&self, option: &ConfigOption) -> Option<String> {
        self.read_file_by(option, SourceTexts::read_pem)
    }

    fn read_file_by(
        &self,
        option: &ConfigOption,
        read: impl FnOnce(&SourceTexts, &Path) -> Result<String, Unreadable>,
    ) -> Option<String> {
        let path = self.read_string(option)?;
        let node = self.node(option)?;
        match read(self.sources, &self.sources.resolve_path(node.place.file, &path)) {
            Ok(text) => Some(text),
            Err(error) => self.report_fault(option.name, node, &format!("it cannot be read: {error}"), error.help()),
        }
    }

    /// Returns the value of an option, and its default if it is missing or wrong; what is wrong is reported.
    pub fn get<T: OptionValue>(&self, row: &Row<T>) -> T {
        self.read(row).unwrap_or_else(|| self.default_of(row))
    }

    /// Returns the value of an option with its place.
    pub fn read_at<T: OptionValue>(&self, option: &ConfigOption) -> Option<At<T>> {
        let node = self.node(option)?;
        Some(At { place: node.place, value: T::read(self, self.own_row(option), node)? })
    }

    /// Returns the default of an option.
    pub fn default_of<T: OptionValue>(&self, row: &Row<T>) -> T {
        let row = self.own_row(row);
        tree::parse_default(row).and_then(|node| T::read(self, row, &node)).unwrap_or(T::NOTHING)
    }

    /// Returns the value of an option; `None` if it is missing or wrong.
    pub fn read<T: OptionValue>(&self, row: &Row<T>) -> Option<T> {
        self.read_as(row)
    }

    /// Returns the value of an option that algorithms declare.
    pub fn read_as<T: OptionValue>(&self, option: &ConfigOption) -> Option<T> {
        T::read(self, self.own_row(option), self.node(option)?)
    }

    fn read_integer(&self, option: &ConfigOption, node: &Node) -> Option<i64> {
        if let Some(range) = option.value_type().size_range() {
            let value = self.read_size(option, node, range)?;
            self.warn_of_zero(option, node, value == 0);
            return i64::try_from(value).ok();
        }
        let range = self.bounds(option, ValueType::integer_range).unwrap_or(i64::MIN..=i64::MAX);
        let Some(value) = node.integer() else {
            return self.report_wrong_type(option.name, "an integer", node);
        };
        let value = self.check_range(option.name, node, value, range)?;
        self.warn_of_zero(option, node, value == 0);
        Some(value)
    }

    fn warn_of_zero(&self, option: &ConfigOption, node: &Node, is_zero: bool) {
        let warning = is_zero.then(|| examples::warn_of_zero(option, &self.title, node.place)).flatten();
        if let Some(warning) = warning {
            self.sources.add_warning(DiagnosticCode::ZeroBound, warning);
        }
    }

    fn read_size(&self, option: &ConfigOption, node: &Node, range: RangeInclusive<u64>) -> Option<u64> {
        let value = match (node.integer(), &node.value) {
            (Some(value), _) => match u64::try_from(value) {
                Ok(value) => value,
                Err(_) => return self.report_fault(option.name, node, "a size is not negative", ""),
            },
            (None, Value::String(_)) => self.parse_node(option.name, node, values::parse_size)?,
            _ => {
                return self.report_wrong_type(option.name, "a size like \"10MiB\", or an integer of bytes", node);
            }
        };
        self.check_range(option.name, node, value, range)
    }

    /// Reads a number from 0.001 to the bound that the row has, in 1/1000.
    pub fn read_thousandths(&self, option: &ConfigOption) -> Option<u64> {
        let node = self.node(option)?;
        let most = self.bounds(self.own_row(option), ValueType::decimal_max).unwrap_or(1);
        let Some(number) = node.number() else {
            return self.report_wrong_type(option.name, "a number", node);
        };
        match to_thousandths(number, most) {
            Some(thousandths) => Some(thousandths),
            None => self.report_fault(option.name, node, &format!("it must be from 0.001 to {most}"), ""),
        }
    }

    /// Reads a string that must be one of `words`.
    pub fn read_choice<T: Copy>(&self, option: &ConfigOption, words: &[(&str, T)]) -> Option<T> {
        self.parse_string(option, |text| find_choice(text, words))
    }

    /// Reads a string or a list of strings.
    pub fn read_strings<T>(
        &self,
        option: &ConfigOption,
        parse: impl Fn(&str) -> Result<T, TextFault>,
    ) -> Option<Vec<At<T>>> {
        let node = self.node(option)?;
        let items = match &node.value {
            Value::Array(items) => items.as_slice(),
            Value::String(_) => std::slice::from_ref(node),
            _ => return self.report_wrong_type(option.name, "a string or a list of strings", node),
        };
        let read = |item: &Node| Some(At { place: item.place, value: self.parse_node(option.name, item, &parse)? });
        // Every item is parsed, to find all mistakes, before one of them fails the list.
        let values: Vec<_> = items.iter().map(read).collect();
        values.into_iter().collect()
    }

    /// Reads the table that an option is, or may be.
    pub fn read_section(&self, option: &ConfigOption) -> Option<Section<'a>> {
        let schema = self.own_row(option).value_type().tables().into_iter().next()?;
        Some(Section::new(self.sources, schema, format!("`{}`", option.name), self.read_table(option)?))
    }

    /// Reads a table whose keys are names that the user chose.
    pub fn read_table(&self, option: &ConfigOption) -> Option<&'a Table> {
        match self.node(option)? {
            Node { value: Value::Table(table), .. } => Some(table),
            node => self.report_wrong_type(option.name, "a table", node),
        }
    }

    pub fn report_wrong_type<T>(&self, key: &str, expected: &str, node: &Node) -> Option<T> {
        if matches!(node.value, Value::Broken) {
            return None;
        }
        if let Value::String(Text { written: Some(written), .. }) = &node.value {
            let what = format!("it must be {expected}, and `{written}` is not");
            return self.report_fault(key, node, &what, "correct the variable or the file");
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

    /// Returns the bounds that a row has.
    fn bounds<T>(&self, option: &ConfigOption, of: fn(&ValueType) -> Option<T>) -> Option<T> {
        let bounds = of(&option.value_type());
        debug_assert!(bounds.is_some(), "the row `{}` of {} has no such bounds", option.name, self.schema.name);
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

/// A type that options have.
pub trait OptionValue: Sized {
    /// Stands for a default that is no such value; a test makes sure that no row has one.
    const NOTHING: Self;

    fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<Self>;
}

impl<T: OptionValue> OptionValue for Option<T> {
    const NOTHING: Option<T> = None;

    fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<Option<T>> {
        T::read(section, option, node).map(Some)
    }
}

/// `true` and `false`, or the second and the first of two words.
impl OptionValue for bool {
    const NOTHING: bool = false;

    fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<bool> {
        if let ValueType::Words([first, second]) = option.value_type() {
            return section.parse_node(option.name, node, |text| find_choice(text, &[(first, false), (second, true)]));
        }
        node.boolean().or_else(|| section.report_wrong_type(option.name, "true or false", node))
    }
}

/// An integer, or a number of bytes.
macro_rules! integer_options {
    ($($Integer:ty),*) => {
        $(impl OptionValue for $Integer {
            const NOTHING: $Integer = 0;

            fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<$Integer> {
                <$Integer>::try_from(section.read_integer(option, node)?).ok()
            }
        })*
    };
}

integer_options!(i64, u64, usize, u32, u16);

impl OptionValue for Duration {
    const NOTHING: Duration = Duration::ZERO;

    fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<Duration> {
        let key = option.name;
        let range = section.bounds(option, ValueType::duration_range).unwrap_or(Duration::ZERO..=Duration::MAX);
        if let Value::Integer(value) = node.value {
            let what = format!("it must be a string with a unit, found the integer {value}");
            let fits =
                |unit: &&str| values::parse_duration(&format!("{value}{unit}")).is_ok_and(|one| range.contains(&one));
            let texts: Vec<String> =
                ["s", "ms"].into_iter().filter(fits).map(|unit| format!("\"{value}{unit}\"")).collect();
            let help = match texts.is_empty() {
                false => format!("write {key} = {}", texts.join(" or ")),
                true => format!("write a {}", option.describe_type()),
            };
            return section.report_fault(key, node, &what, &help);
        }
        let value = section.parse_node(key, node, values::parse_duration)?;
        if range.contains(&value) {
            return Some(value);
        }
        let bound = |bound: &Duration| format_duration(u64::try_from(bound.as_millis()).unwrap_or(u64::MAX));
        let what = format!("it must be from {} to {}", bound(range.start()), bound(range.end()));
        section.report_fault(key, node, &what, "")
    }
}

impl OptionValue for Rate {
    const NOTHING: Rate = Rate { count: 1, per_ms: 1 };

    fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<Rate> {
        if let Value::Integer(value) = node.value {
            let what = format!("it must be a string with a period, found the integer {value}");
            return section.report_fault(option.name, node, &what, &format!("write {} = \"{value}/s\"", option.name));
        }
        section.parse_node(option.name, node, values::parse_rate)
    }
}

impl OptionValue for Fraction {
    const NOTHING: Fraction = Fraction::HALF;

    fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<Fraction> {
        let Some(number) = node.number() else {
            return section.report_wrong_type(option.name, "a number from 0.001 to 1", node);
        };
        let help = "write a part of 1: 0.5 is a half";
        let report = || section.report_fault(option.name, node, "it must be from 0.001 to 1", help);
        Fraction::parse(number).or_else(report)
    }
}

/// One of the words of a closed set.
impl<T: LabelSet> OptionValue for T {
    const NOTHING: T = T::ALL[0];

    fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<T> {
        let words: Vec<(&str, T)> = T::ALL.iter().map(|value| (value.label(), *value)).collect();
        section.parse_node(option.name, node, |text| find_choice(text, &words))
    }
}

/// One value, or a list.
impl<T: OptionValue> OptionValue for Vec<T> {
    const NOTHING: Vec<T> = Vec::new();

    fn read(section: &Section, option: &ConfigOption, node: &Node) -> Option<Vec<T>> {
        let items = match &node.value {
            Value::Array(items) => items.as_slice(),
            Value::String(_) => std::slice::from_ref(node),
            _ => return section.report_wrong_type(option.name, "a string or a list of strings", node),
        };
        // Every item is read, to find all mistakes, before one of them fails the list.
        let values: Vec<Option<T>> = items.iter().map(|item| T::read(section, option, item)).collect();
        values.into_iter().collect()
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
    let help = match closest::find_closest(text, names.iter().copied()).or_else(|| find_foreign_word(text, &names)) {
        Some(word) => format!("did you mean \"{word}\"? One of {}", names.join(", ")),
        None => format!("one of {}", names.join(", ")),
    };
    values::invalid_text(format!("unknown value `{text}`"), help)
}
