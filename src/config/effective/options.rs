//! Sections and options of a config that may be spread over several files.

use std::collections::HashMap;

use crate::config::diagnostics::secret_options;
use crate::config::effective::canonical::ListItem;
use crate::config::effective::{WrittenConfig, canonical, secrets};
use crate::config::schema::lookup::locate_value;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{self, limit_list, listener, rls, route};
use crate::config::tree::{Node, Table, TableEntry, Value};
use crate::config::values;

/// A section with its options in file order: `[KIND]`, `[KIND.NAME]` or one of `[[KIND]]`.
pub struct WrittenSection<'a> {
    pub kind: &'a str,
    /// NAME of `[KIND.NAME]`, the address of a listener, and the `name` of a route, which may be empty.
    pub name: String,
    /// The section is one of a list, `[[KIND]]`.
    pub is_listed: bool,
    pub options: Vec<WrittenOption<'a>>,
}

/// An option that is written, such as `retry.attempts`.
pub struct WrittenOption<'a> {
    /// Keys from the section on, without the shorthand of a table with a single value.
    pub keys: Vec<&'a str>,
    pub(super) node: &'a Node,
    /// The value as it is compared; `None` if that is how it is written.
    compared: Option<Node>,
    /// The value as it is shown; `None` if that is how it is written.
    pub(super) shown: Option<Node>,
    /// The last of `keys` as it is shown; `None` if that is how it is written.
    pub(super) shown_name: Option<String>,
}

impl WrittenConfig {
    /// Returns all sections: those that exist once in the order of the schema, then those of each kind in file order.
    pub fn sections(&self) -> Vec<WrittenSection<'_>> {
        let mut sections = Vec::new();
        for kind in schema::root::TABLE.options.iter().filter(|option| !option.value_type().tables().is_empty()) {
            let nodes = self.documents.iter().filter_map(|table| Some(&table.get(kind.name)?.node));
            let (mut own, mut named) = (Vec::new(), Vec::new());
            for node in nodes {
                match &node.value {
                    Value::Table(table) => divide_entries(kind, table, &mut own, &mut named),
                    Value::Array(items) => named.extend(items.iter().filter_map(|item| list_section(kind.name, item))),
                    _ => {}
                }
            }
            if !own.is_empty() {
                let options = own.into_iter().flat_map(|entry| flatten_entry(kind.name, entry)).collect();
                sections.push(WrittenSection { kind: kind.name, name: String::new(), is_listed: false, options });
            }
            sections.append(&mut named);
        }
        for section in &mut sections {
            for option in &mut section.options {
                option.compared = self
                    .make_paths_absolute(section.kind, &option.keys, option.node)
                    .or_else(|| canonical::canonical_matcher(section.kind, &option.keys, option.node));
            }
        }
        sections
    }
}

/// Divides the table of a kind into its own options and its sections with names.
fn divide_entries<'a>(
    kind: &'static ConfigOption,
    table: &'a Table,
    own: &mut Vec<&'a TableEntry>,
    named: &mut Vec<WrittenSection<'a>>,
) {
    for entry in &table.entries {
        let is_named = match kind.value_type() {
            ValueType::Named(_) => true,
            ValueType::TableOrNamed(schema) => schema.find(&entry.key).is_none(),
            _ => false,
        };
        match &entry.node.value {
            Value::Table(table) if is_named => {
                let options = table.entries.iter().flat_map(|entry| flatten_entry(kind.name, entry)).collect();
                named.push(WrittenSection { kind: kind.name, name: entry.key.clone(), is_listed: false, options });
            }
            _ => own.push(entry),
        }
    }
}

fn list_section<'a>(kind: &'static str, item: &'a Node) -> Option<WrittenSection<'a>> {
    let Value::Table(table) = &item.value else { return None };
    let options = table.entries.iter().flat_map(|entry| flatten_entry(kind, entry)).collect();
    if kind == rls::TABLE.name {
        return Some(WrittenSection { kind, name: describe_rule(table), is_listed: true, options });
    }
    let is_listener = kind == listener::TABLE.name;
    let name = match table.get(if is_listener { listener::ADDRESS.name } else { route::NAME.name }) {
        Some(TableEntry { node: Node { value: Value::String(text), .. }, .. }) => match is_listener {
            true => values::parse_listen(&text.value).map_or_else(|_| text.value.clone(), |addr| addr.to_string()),
            false => text.value.clone(),
        },
        _ => String::new(),
    };
    Some(WrittenSection { kind, name, is_listed: true, options })
}

/// Returns the domain and the descriptor of an `[[rls]]`, which no other has.
fn describe_rule(table: &Table) -> String {
    let text = |option: &ConfigOption| {
        table.get(option.name).map_or_else(String::new, |entry| canonical::canonical_text(&entry.node))
    };
    format!("{} {}", text(&rls::DOMAIN), text(&rls::DESCRIPTOR))
}

/// Returns the options of an entry: those within it if it is a table, else itself.
fn flatten_entry<'a>(kind: &str, entry: &'a TableEntry) -> Vec<WrittenOption<'a>> {
    let mut options = Vec::new();
    let mut keys = vec![entry.key.as_str()];
    let shorthand = locate_value(kind, &keys).map(|place| place.option.shorthand).filter(|key| !key.is_empty());
    match (&entry.node.value, shorthand) {
        (Value::Table(_), _) | (_, None) => flatten_node(&mut keys, &entry.node, &mut options),
        (_, Some(key)) => options.push(WrittenOption {
            keys: vec![&entry.key, key],
            node: &entry.node,
            compared: None,
            shown: None,
            shown_name: None,
        }),
    }
    options
}

fn flatten_node<'a>(keys: &mut Vec<&'a str>, node: &'a Node, options: &mut Vec<WrittenOption<'a>>) {
    match &node.value {
        Value::Table(table) if !table.entries.is_empty() => {
            for entry in &table.entries {
                keys.push(&entry.key);
                flatten_node(keys, &entry.node, options);
                keys.pop();
            }
        }
        _ => options.push(WrittenOption { keys: keys.clone(), node, compared: None, shown: None, shown_name: None }),
    }
}

impl WrittenSection<'_> {
    /// Returns the options by path.
    pub fn by_path(&self) -> HashMap<String, &WrittenOption<'_>> {
        self.options.iter().map(|option| (option.path(), option)).collect()
    }
}

/// A limit of a list.
pub struct ListedLimit {
    pub name: String,
    /// The cost in the list. The inner `None` means that it is more than an integer.
    pub cost: Option<Option<i64>>,
}

impl WrittenOption<'_> {
    /// Returns the path as in the reference: `retry.attempts`. It identifies the option, and must not be shown.
    pub fn path(&self) -> String {
        self.keys.join(".")
    }

    /// Returns the path as messages show it.
    pub fn shown_path(&self) -> String {
        self.shown_keys().join(".")
    }

    pub(super) fn shown_keys(&self) -> Vec<&str> {
        let mut keys = self.keys.clone();
        if let (Some(last), Some(name)) = (keys.last_mut(), &self.shown_name) {
            *last = name;
        }
        keys
    }

    /// Returns whether the value must not be shown.
    pub fn is_secret(&self, kind: &str) -> bool {
        secret_options::is_secret(kind, &self.keys)
    }

    /// Returns a text that is equal for values that mean the same: `"60s"` and `"1m"`, `"ip"` and `["ip"]`.
    pub fn canonical_text(&self) -> String {
        canonical::canonical_text(self.compared_node())
    }

    /// Returns a text that is equal only for values that are written in the same way.
    pub fn exact_text(&self) -> String {
        canonical::exact_text(self.node)
    }

    /// Returns the value for a message: without secrets, and of bounded length.
    pub fn shown_text(&self, kind: &str) -> String {
        match self.is_secret(kind) {
            true => secrets::MASK.to_owned(),
            false => canonical::shown_text(&self.keys, self.shown_node()),
        }
    }

    /// Returns the items of a list, or the single value as a list.
    pub fn list_items(&self, kind: &str) -> Vec<ListItem> {
        canonical::list_items(self.compared_node(), self.shown_node(), self.is_secret(kind))
    }

    /// Returns the limits of a list of limits.
    pub fn listed_limits(&self) -> Vec<ListedLimit> {
        let items = match &self.node.value {
            Value::Array(items) => items.as_slice(),
            _ => std::slice::from_ref(self.node),
        };
        let names = items.iter().filter_map(|item| match &item.value {
            Value::String(name) => Some(ListedLimit { name: name.value.clone(), cost: None }),
            Value::Table(table) => {
                let Value::String(name) = &table.get(limit_list::NAME.name)?.node.value else { return None };
                let cost = table.get(limit_list::COST.name).map(|cost| cost.node.integer());
                Some(ListedLimit { name: name.value.clone(), cost })
            }
            _ => None,
        });
        names.collect()
    }

    fn compared_node(&self) -> &Node {
        self.compared.as_ref().unwrap_or(self.node)
    }

    pub(super) fn shown_node(&self) -> &Node {
        self.shown.as_ref().unwrap_or(self.node)
    }

    /// Returns whether the value is a list.
    pub fn is_list(&self) -> bool {
        matches!(self.node.value, Value::Array(_))
    }
}
