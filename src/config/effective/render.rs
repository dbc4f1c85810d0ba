//! Writes the effective config as TOML or JSON.

use std::fmt::Write;

use serde_json::{Map, Value as Json, json};

use crate::config::Config;
use crate::config::diagnostics::secret_options;
use crate::config::effective::anonymize::{Anonymizer, has_client_keys, has_client_values};
use crate::config::effective::{WrittenConfig, WrittenSection, paths, secrets};
use crate::config::tree::{Node, Value};
use crate::text::quote;

/// Contents of an output of the effective config.
#[derive(Clone, Copy, Debug, Default)]
pub struct EffectiveFormat {
    /// The file and line of each value.
    pub has_origins: bool,
    /// Hashes instead of names, hosts, addresses and paths.
    pub is_anonymous: bool,
    /// Options that are not written, with their defaults.
    pub has_defaults: bool,
    /// Keys of overrides and names of tenants as logs show them, and no bodies of responses.
    pub is_for_readers: bool,
}

impl Config {
    /// Returns the effective config as TOML. Without `is_anonymous`, it loads and has the same effect, except for
    /// secrets, which are `"***"`.
    pub fn effective_toml(&self, format: EffectiveFormat) -> String {
        let renderer = Renderer::new(self, format);
        let mut text = String::new();
        for section in renderer.sections() {
            renderer.write_section(&section, &mut text);
        }
        text
    }

    /// Returns the effective config as JSON: sections with names as objects, lists of sections as arrays, options by
    /// their path. With `has_origins`, each value is `{"value", "origin"}`; `origin` is `FILE:LINE`, or `default`.
    pub fn effective_json(&self, format: EffectiveFormat) -> Json {
        let renderer = Renderer::new(self, format);
        let mut kinds = Map::new();
        for section in renderer.sections() {
            let options = Json::Object(renderer.option_values(&section));
            let name = renderer.section_name(&section);
            match (kinds.get_mut(section.kind), section.is_listed) {
                (None, true) => drop(kinds.insert(section.kind.to_owned(), json!([options]))),
                (Some(Json::Array(items)), _) => items.push(options),
                (None, false) if name.is_empty() => drop(kinds.insert(section.kind.to_owned(), options)),
                (None, false) => drop(kinds.insert(section.kind.to_owned(), json!({ name: options }))),
                (Some(Json::Object(sections)), _) => drop(sections.insert(name, options)),
                (Some(_), _) => {}
            }
        }
        Json::Object(kinds)
    }
}

struct Renderer<'a> {
    config: &'a Config,
    written: &'a WrittenConfig,
    format: EffectiveFormat,
    anonymizer: Option<Anonymizer>,
}

/// Origin of a value that is not written.
const DEFAULT: &str = "default";

impl<'a> Renderer<'a> {
    fn new(config: &'a Config, format: EffectiveFormat) -> Renderer<'a> {
        let anonymizer = format.is_anonymous.then(Anonymizer::default);
        Renderer { config, written: &config.written, format, anonymizer }
    }

    fn sections(&self) -> Vec<WrittenSection<'a>> {
        let mut sections = match self.format.has_defaults {
            true => self.written.sections_with_defaults(),
            false => self.written.sections(),
        };
        if self.format.is_for_readers {
            self.config.hide_from_readers(&mut sections);
        }
        sections
    }

    fn list_defaults(&self, section: &WrittenSection) -> Vec<(&'static str, Json)> {
        if self.format.has_defaults { section.list_defaults() } else { Vec::new() }
    }

    fn write_section(&self, section: &WrittenSection, text: &mut String) {
        let separator = if text.is_empty() { "" } else { "\n" };
        let _ = match (section.is_listed, section.name.as_str()) {
            (true, _) => writeln!(text, "{separator}[[{}]]", section.kind),
            (false, "") => writeln!(text, "{separator}[{}]", section.kind),
            (false, _) => {
                writeln!(text, "{separator}[{}.{}]", section.kind, quote_key(&self.section_name(section)))
            }
        };
        for option in &section.options {
            let keys: Vec<String> =
                self.key_names(section.kind, &option.shown_keys()).iter().map(|key| quote_key(key)).collect();
            let value = to_toml(&self.shown_value(section.kind, &option.keys, option.shown_node()));
            let _ = write!(text, "{} = {value}", keys.join("."));
            if let Some(origin) = self.origin(option.node).filter(|_| self.format.has_origins) {
                let _ = write!(text, "  # {origin}");
            }
            text.push('\n');
        }
        // As comments: some options are only allowed beside others.
        for (key, value) in self.list_defaults(section) {
            let _ = writeln!(text, "# {key} = {}  # {DEFAULT}", to_toml(&value));
        }
    }

    fn option_values(&self, section: &WrittenSection) -> Map<String, Json> {
        let value = |node, keys| match (self.shown_value(section.kind, keys, node), self.origin(node)) {
            (value, origin) if self.format.has_origins => json!({ "value": value, "origin": origin }),
            (value, _) => value,
        };
        let path = |keys: &[&str]| self.key_names(section.kind, keys).join(".");
        let values =
            section.options.iter().map(|option| (path(&option.shown_keys()), value(option.shown_node(), &option.keys)));
        let defaults = self.list_defaults(section).into_iter().map(|(key, value)| match self.format.has_origins {
            true => (key.to_owned(), json!({ "value": value, "origin": DEFAULT })),
            false => (key.to_owned(), value),
        });
        values.chain(defaults).collect()
    }

    /// Returns the name in the header of the section; empty if it has none there.
    fn section_name(&self, section: &WrittenSection) -> String {
        match &self.anonymizer {
            _ if section.is_listed => String::new(),
            Some(anonymizer) if !section.name.is_empty() => anonymizer.replace_text(&section.name),
            _ => section.name.clone(),
        }
    }

    fn key_names(&self, kind: &str, keys: &[&str]) -> Vec<String> {
        keys.iter().enumerate().map(|(place, key)| self.key_name(kind, &keys[..place], key)).collect()
    }

    /// Returns a key of the table `table`, given by its keys from the section on.
    fn key_name(&self, kind: &str, table: &[&str], key: &str) -> String {
        match &self.anonymizer {
            Some(anonymizer) if has_client_keys(kind, table) => anonymizer.replace_client_value(key),
            Some(anonymizer) => anonymizer.replace_key(key),
            None => key.to_owned(),
        }
    }

    /// Returns `FILE:LINE`.
    fn origin(&self, node: &Node) -> Option<String> {
        let place = self.written.describe_place(node.place)?;
        // A file name with a line break must not end the comment.
        let place: String = place.chars().filter(|c| !c.is_control()).collect();
        Some(match (&self.anonymizer, place.rsplit_once(':')) {
            (Some(anonymizer), Some((file, line))) => format!("{}:{line}", anonymizer.hash(file)),
            _ => place,
        })
    }

    fn shown_value(&self, kind: &str, keys: &[&str], node: &Node) -> Json {
        if secret_options::is_secret(kind, keys) {
            return secrets::MASK.into();
        }
        match &node.value {
            Value::String(text) => match &self.anonymizer {
                Some(anonymizer) if text.written.is_some() => anonymizer.hash(&text.value).into(),
                Some(anonymizer) if has_client_values(kind, keys) => {
                    anonymizer.replace_client_value(&text.value).into()
                }
                Some(anonymizer) => anonymizer.replace_text(&text.value).into(),
                None if let Some(option) = paths::find_path_option(kind, keys) => {
                    self.written.absolute_path(option, node.place.file, text).into()
                }
                None => self.written.absolute_references(node.place.file, &secrets::mask_option(keys, text)).into(),
            },
            Value::Integer(number) => match &self.anonymizer {
                Some(anonymizer) if has_client_values(kind, keys) => anonymizer.hash(&number.to_string()).into(),
                _ => (*number).into(),
            },
            Value::Float(number) => (*number).into(),
            Value::Bool(value) => (*value).into(),
            Value::Array(items) => items.iter().map(|item| self.shown_value(kind, keys, item)).collect(),
            Value::Table(table) => {
                let entry = |entry: &crate::config::tree::TableEntry| {
                    let name = self.key_name(kind, keys, &entry.key);
                    let keys = [keys, &[entry.key.as_str()]].concat();
                    let value = match secret_options::is_secret_name(&entry.key) {
                        true => secrets::MASK.into(),
                        false => self.shown_value(kind, &keys, &entry.node),
                    };
                    (name, value)
                };
                Json::Object(table.entries.iter().map(entry).collect())
            }
            Value::Other(_) | Value::Broken => Json::Null,
        }
    }
}

/// Writes a value on one line.
fn to_toml(value: &Json) -> String {
    match value {
        Json::String(text) => quote(text),
        Json::Array(items) => format!("[{}]", items.iter().map(to_toml).collect::<Vec<_>>().join(", ")),
        Json::Object(entries) if entries.is_empty() => "{}".to_owned(),
        Json::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{} = {}", quote_key(key), to_toml(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        _ => value.to_string(),
    }
}

fn quote_key(key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if is_bare { key.to_owned() } else { quote(key) }
}
