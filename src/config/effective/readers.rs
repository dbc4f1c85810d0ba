//! Hides values from callers that may not read the files of the config. They see keys of overrides and names of tenants
//! as logs show them, and no bodies of responses.

use std::borrow::Cow;

use crate::config::Config;
use crate::config::diagnostics::secret_options::is_body;
use crate::config::effective::{WrittenSection, secrets};
use crate::config::schema::limit::{self, override_key, overrides};
use crate::config::substitute::Text;
use crate::config::tree::{Node, Table, TableEntry, Value};
use crate::config::values;
use crate::limiting::key::shown_key::{KeyDisplay, KeyHash, KeyVisibility};
use crate::limiting::key::state_key::{DIGEST_MARK, write_value};
use crate::limiting::key::{Key, KeyPart};
use crate::limiting::overrides::table::{OverrideValue, parse_field};

impl Config {
    /// Sets how sections of this config are shown to callers that may not read its files.
    pub fn hide_from_readers(&self, sections: &mut [WrittenSection<'_>]) {
        for section in sections {
            let limit = (section.kind == limit::TABLE.name).then(|| self.limits.find(&section.name)).flatten();
            for (place, option) in section.options.iter_mut().enumerate() {
                if let ([table, weights, tenant], Some(fair)) =
                    (option.keys.as_slice(), limit.and_then(|limit| limit.fair.as_deref()))
                    && [*table, *weights] == [limit::FAIR.name, limit::fair::WEIGHTS.name]
                {
                    option.shown_name = hide_tenant(tenant, place, &fair.key, &self.admin.key_display);
                }
                option.shown = match (option.keys.as_slice(), limit) {
                    ([key], Some(limit)) if *key == limit::OVERRIDES.name => {
                        hide_entries(option.node, &limit.key, &self.admin.key_display)
                    }
                    (keys, _) if is_body(keys) => Some(text_node(option.node, secrets::MASK)),
                    _ => None,
                };
            }
        }
    }
}

/// Returns `overrides` with keys as logs show them; `None` if that is how they are written.
fn hide_entries(node: &Node, key: &Key, display: &KeyDisplay) -> Option<Node> {
    if key.0.iter().all(|part| display.visibility(part) == KeyVisibility::Plain) {
        return None;
    }
    let mut copy = node.clone();
    let Value::Array(items) = &mut copy.value else { return None };
    for item in items {
        let Value::Table(table) = &mut item.value else { continue };
        for entry in table.entries.iter_mut().filter(|entry| entry.key == overrides::KEY.name) {
            let values = match &mut entry.node.value {
                Value::Array(values) => values.as_mut_slice(),
                _ => std::slice::from_mut(&mut entry.node),
            };
            for (value, part) in values.iter_mut().zip(&key.0) {
                *value = hide_value(value, part, display);
            }
        }
    }
    Some(copy)
}

/// Returns the name of a tenant in `fair.weights` as logs show it; `None` if that is how it is written. `place`: the
/// place of the option in its section, which tells hidden names apart.
fn hide_tenant(tenant: &str, place: usize, key: &Key, display: &KeyDisplay) -> Option<String> {
    let mut is_changed = false;
    let values = parse_field(tenant.as_bytes()).zip(&key.0).zip(tenant.split(','));
    let values = values.map(|((value, part), written)| match (value, display.visibility(part)) {
        (_, KeyVisibility::Plain) => written.to_owned(),
        (OverrideValue::Bytes(bytes), KeyVisibility::Hashed) => {
            is_changed = true;
            format!("{DIGEST_MARK}{}", hash_value(bytes, part, display))
        }
        _ => {
            is_changed = true;
            format!("{} ({place})", secrets::MASK)
        }
    });
    let values: Vec<String> = values.collect();
    is_changed.then(|| values.join(","))
}

fn hash_value(bytes: Vec<u8>, part: &KeyPart, display: &KeyDisplay) -> KeyHash {
    let mut state = part.state_name();
    write_value(&mut state, &part.canonicalize_written(bytes).unwrap_or_default());
    display.hasher.hash(&state)
}

fn hide_value(node: &Node, part: &KeyPart, display: &KeyDisplay) -> Node {
    let bytes = match &node.value {
        Value::String(text) if text.value == "*" => None,
        Value::String(text) => Some(Cow::from(text.value.as_bytes())),
        Value::Table(table) => match table.get(override_key::PERCENT.name).map(|entry| &entry.node.value) {
            Some(Value::String(text)) => values::percent_decode(&text.value).map(Cow::from),
            _ => None,
        },
        _ => None,
    };
    let Some(bytes) = bytes else { return node.clone() };
    match display.visibility(part) {
        KeyVisibility::Plain => node.clone(),
        KeyVisibility::Hidden => text_node(node, secrets::MASK),
        KeyVisibility::Hashed => {
            let hash = text_node(node, &hash_value(bytes.into_owned(), part, display).to_string());
            let entries = vec![TableEntry { key: override_key::HASH.name.to_owned(), place: node.place, node: hash }];
            Node { place: node.place, value: Value::Table(Table { place: node.place, entries }) }
        }
    }
}

/// Returns a text in the place of a value.
fn text_node(node: &Node, text: &str) -> Node {
    Node { place: node.place, value: Value::String(Text { value: text.to_owned(), written: None }) }
}
