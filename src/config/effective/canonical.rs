//! Texts of values: for comparing what they mean, and for showing them in a message.

use crate::config::diagnostics::secret_options;
use crate::config::effective::secrets;
use crate::config::schema::route;
use crate::config::schema::row::ConfigOption;
use crate::config::substitute::Text;
use crate::config::tree::{self, Node, Value};
use crate::config::values;
use crate::text::quote;

/// An item of a list.
#[derive(Clone)]
pub struct ListItem {
    /// Equal for items that mean the same.
    pub canonical: String,
    /// The item for a message.
    pub shown: String,
}

/// Maximum number of characters of a value in a message.
const SHOWN_MAX: usize = 100;

/// Returns a text that is equal for values that mean the same.
pub fn canonical_text(node: &Node) -> String {
    match &node.value {
        Value::String(text) => canonical_string(&text.value),
        Value::Array(items) => match items.as_slice() {
            [only] if !matches!(only.value, Value::Array(_)) => canonical_text(only),
            items => format!("[{}]", items.iter().map(canonical_text).collect::<Vec<_>>().join(", ")),
        },
        Value::Table(table) => {
            let mut entries: Vec<String> =
                table.entries.iter().map(|entry| format!("{} = {}", entry.key, canonical_text(&entry.node))).collect();
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Integer(1) => "1.0".to_owned(),
        Value::Float(number) => format!("{number:?}"),
        _ => exact_text(node),
    }
}

/// Returns the default of an option in the same form; `None` if it depends on others.
pub fn default_text(option: &ConfigOption) -> Option<String> {
    tree::parse_default(option).map(|node| canonical_text(&node))
}

/// Returns the host or path of a route as it is compared: hosts in lower case, and prefixes of paths without a slash at
/// their end. `None` for other options, and if that is how it is written.
pub fn canonical_matcher(kind: &str, keys: &[&str], node: &Node) -> Option<Node> {
    let change = |text: &Text| match keys {
        [key] if *key == route::HOST.name => Some(text.value.to_ascii_lowercase()),
        [key] if *key == route::PATH.name && text.value.starts_with('/') => {
            Some(format!("/{}", text.value.trim_matches('/')))
        }
        _ => None,
    };
    if kind != route::TABLE.name {
        return None;
    }
    let value = match &node.value {
        Value::String(text) => {
            let value = change(text).filter(|value| *value != text.value)?;
            Value::String(Text { value, written: None })
        }
        Value::Array(items) => {
            let forms = items.iter().map(|item| canonical_matcher(kind, keys, item));
            let forms: Vec<Option<Node>> = forms.collect();
            forms.iter().any(Option::is_some).then_some(())?;
            let pairs = forms.into_iter().zip(items);
            Value::Array(pairs.map(|(form, item)| form.unwrap_or_else(|| item.clone())).collect())
        }
        _ => return None,
    };
    Some(Node { place: node.place, value })
}

/// Writes durations, rates and sizes in their smallest units.
fn canonical_string(text: &str) -> String {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return quote(text);
    }
    if let Ok(duration) = values::parse_duration(text) {
        return format!("{}ms", duration.as_millis());
    }
    if let Ok(rate) = values::parse_rate(text) {
        return format!("{}/{}ms", rate.count, rate.per_ms);
    }
    match values::parse_size(text) {
        Ok(size) if size != 1 => size.to_string(),
        _ => quote(text),
    }
}

/// Returns a text that is equal only for values that are written in the same way.
pub fn exact_text(node: &Node) -> String {
    match &node.value {
        Value::String(text) => quote(&text.value),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Bool(value) => value.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(exact_text).collect::<Vec<_>>().join(", ")),
        Value::Table(table) => {
            let entries = table.entries.iter().map(|entry| format!("{} = {}", entry.key, exact_text(&entry.node)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Other(name) => (*name).to_owned(),
        Value::Broken => String::new(),
    }
}

/// Returns the value of the option with these keys for a message. Texts with `${...}` appear as they are written.
pub fn shown_text(keys: &[&str], node: &Node) -> String {
    let mut text = match &node.value {
        Value::String(text) => quote(&secrets::mask_option(keys, text)),
        _ => describe(node),
    };
    if let Some((end, _)) = text.char_indices().nth(SHOWN_MAX) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

fn describe(node: &Node) -> String {
    match &node.value {
        Value::String(text) => quote(&secrets::mask_text(text)),
        Value::Array(items) => format!("[{}]", items.iter().map(describe).collect::<Vec<_>>().join(", ")),
        Value::Table(table) => {
            let entries = table.entries.iter().map(|entry| match secret_options::is_secret_name(&entry.key) {
                true => format!("{} = {}", entry.key, quote(secrets::MASK)),
                false => format!("{} = {}", entry.key, describe(&entry.node)),
            });
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        _ => exact_text(node),
    }
}

/// Returns the items that an option without a value means. `None` if they depend on other options.
pub fn unset_items(option: &ConfigOption) -> Option<Vec<ListItem>> {
    tree::parse_unset_list(option).map(|node| list_items(&node, &node, false))
}

/// Returns the items of a list, or a single value as a list. `shown`: the list as it is shown.
pub fn list_items(node: &Node, shown: &Node, is_secret: bool) -> Vec<ListItem> {
    let show = |item: &Node| if is_secret { secrets::MASK.to_owned() } else { shown_text(&[], item) };
    let pairs = items_of(node).iter().zip(items_of(shown));
    pairs.map(|(item, shown)| ListItem { canonical: canonical_text(item), shown: show(shown) }).collect()
}

fn items_of(node: &Node) -> &[Node] {
    match &node.value {
        Value::Array(items) => items,
        _ => std::slice::from_ref(node),
    }
}
