//! The JSON Schema of the config, for editors and linters: draft 2020-12 with keywords that draft-07 has too.
//!
//! The schema describes one file. Sections may be split over files, so an option that a section must have is required
//! only where the section cannot be split. Only `sluicegate check` checks rules between options.

use serde_json::{Map, Value, json};

use crate::config::schema::row::{ConfigOption, DefaultValue};
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{self, Schema};

/// A string with a variable such as `${VAR}`. Only the gateway knows its value.
const VARIABLE: &str = r"\$\{";
const TIME_UNIT: &str = "(ms|s|sec|second|seconds|m|min|minute|minutes|h|hour|hours|d|day|days)";

/// Returns the schema.
pub fn json_schema() -> Value {
    let definitions: Map<String, Value> = schema::ALL
        .iter()
        .filter(|schema| schema.name != schema::root::TABLE.name)
        .map(|schema| (schema.name.to_owned(), describe_table(schema)))
        .collect();
    let mut root = describe_table(&schema::root::TABLE);
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "Sluicegate config".into();
    root["$defs"] = definitions.into();
    root
}

/// Returns the schema as the text of a file.
pub fn render_schema() -> String {
    format!("{:#}\n", json_schema())
}

fn describe_table(table: &Schema) -> Value {
    let properties: Map<String, Value> =
        table.options.iter().map(|option| (option.name.to_owned(), describe_option(option))).collect();
    let mut value = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    let required: Vec<&str> = table
        .options
        .iter()
        .filter(|option| option.default == DefaultValue::Required)
        .map(|option| option.name)
        .collect();
    if !required.is_empty() && !is_merged(table) {
        value["required"] = required.into();
    }
    value
}

/// Returns whether several files may each contain a part of the table.
fn is_merged(table: &Schema) -> bool {
    schema::root::TABLE.options.iter().any(|option| match option.value_type() {
        ValueType::Table(section) => section.name == table.name,
        _ => false,
    })
}

fn describe_option(option: &ConfigOption) -> Value {
    let mut value = describe_type(&option.value_type());
    let default = match option.default {
        DefaultValue::Required => "Required.".to_owned(),
        DefaultValue::Absent => String::new(),
        DefaultValue::Value(_) | DefaultValue::Described(_) => format!("Default: {}.", option.describe_default()),
    };
    let mut text = format!("{}. {default}", option.meaning);
    if !option.change_when.is_empty() {
        text = format!("{} {}. Example: {} = {}", text.trim_end(), option.change_when, option.name, option.sample);
    }
    value["description"] = strip_links(text.trim_end()).into();
    if let DefaultValue::Value(default) = option.default
        && let Ok(default) = serde_json::from_str(default)
    {
        value["default"] = default;
    }
    value
}

fn describe_type(of: &ValueType) -> Value {
    match *of {
        ValueType::Boolean => json!({ "type": ["boolean", "string"], "pattern": VARIABLE }),
        ValueType::True => json!({ "enum": [true] }),
        ValueType::False => json!({ "enum": [false] }),
        ValueType::Integer { least: i64::MIN, most: i64::MAX } => {
            json!({ "type": ["integer", "string"], "pattern": VARIABLE })
        }
        // The pattern is about strings only, and the bounds are about integers only.
        ValueType::Integer { least, most } => {
            json!({ "type": ["integer", "string"], "minimum": least, "maximum": most, "pattern": VARIABLE })
        }
        ValueType::Integers(numbers) => json!({ "enum": numbers }),
        ValueType::Size { least, most } => json!({ "anyOf": [
            { "type": "integer", "minimum": least, "maximum": most },
            text_like(r"[0-9]+\s*([kKmMgG][iI]?)?[bB]?\s*"),
        ] }),
        ValueType::Duration { .. } => text_like(&format!(r"[0-9]+\s*{TIME_UNIT}\s*")),
        ValueType::Age => text_like(&format!(r"[0-9]+(y|\s*{TIME_UNIT}\s*)")),
        ValueType::Fraction => json!({ "type": "number", "minimum": 0.001, "maximum": 1 }),
        ValueType::Sample => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        ValueType::Decimal(most) => json!({ "type": "number", "minimum": 0.001, "maximum": most }),
        ValueType::Rate => text_like(&format!(r"\s*[0-9]+\s*/\s*[0-9]*\s*{TIME_UNIT}\s*")),
        ValueType::CalendarRate => text_like(r"\s*[0-9]+\s*/\s*(hour|h|day|d|week|month|year)\s*"),
        ValueType::Words(words) => {
            // Linters that report the last alternative show the words too.
            let pattern = words.join("|").replace('.', r"\.");
            json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": format!("^({pattern})$|{VARIABLE}") }] })
        }
        ValueType::Text(_) | ValueType::Path(_) => json!({ "type": "string" }),
        ValueType::List { item, least, most } => {
            json!({ "anyOf": [describe_type(item), describe_list(item, least, most)] })
        }
        ValueType::Array { item, least, most } => describe_list(item, least, most),
        ValueType::Map(item) => json!({ "type": "object", "additionalProperties": describe_type(item) }),
        ValueType::Table(table) => refer_to(table),
        ValueType::Named(table) => json!({
            "type": "object",
            "additionalProperties": false,
            "patternProperties": { "^[A-Za-z0-9_.-]{1,64}$": refer_to(table) },
        }),
        ValueType::TableOrNamed(table) => {
            let mut value = describe_table(table);
            value["additionalProperties"] = refer_to(table);
            if let Some(members) = value.as_object_mut() {
                members.remove("required");
            }
            value
        }
        ValueType::Either(types) => {
            let flat = types.iter().map(describe_type).flat_map(|value| match value.get("anyOf") {
                Some(Value::Array(alternatives)) => alternatives.clone(),
                _ => vec![value],
            });
            json!({ "anyOf": flat.collect::<Vec<_>>() })
        }
        ValueType::OfAlgorithm => json!({}),
    }
}

fn describe_list(item: &ValueType, least: usize, most: usize) -> Value {
    let mut value = json!({ "type": "array", "items": describe_type(item) });
    if least > 0 {
        value["minItems"] = least.into();
    }
    if most < usize::MAX {
        value["maxItems"] = most.into();
    }
    value
}

/// Describes strings that match `pattern` as a whole, or contain a variable.
fn text_like(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": format!("^{pattern}$|{VARIABLE}") })
}

fn refer_to(table: &Schema) -> Value {
    json!({ "$ref": format!("#/$defs/{}", table.name) })
}

/// Replaces each link of a Markdown text by its text.
pub fn strip_links(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, label, after)) = find_link(rest) {
        plain.push_str(before);
        plain.push_str(label);
        rest = after;
    }
    plain + rest
}

/// Returns the texts before, of and after the first link.
fn find_link(text: &str) -> Option<(&str, &str, &str)> {
    let (head, tail) = text.split_once("](")?;
    let (before, label) = head.rsplit_once('[')?;
    Some((before, label, tail.split_once(')')?.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_texts() {
        assert_eq!(strip_links("a [b c](d#e), `[x]` and [f](g)."), "a b c, `[x]` and f.");
        assert_eq!(strip_links("no ](link"), "no ](link");
    }
}
