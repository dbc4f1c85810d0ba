//! Examples of values for options that several kinds of values are written for, or whose values other programs write
//! differently. Called by `reader` for values of a wrong type, and by `hints` for keys of other programs.

use std::time::Duration;

use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::schema::row::{ConfigOption, DefaultValue};
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{Schema, limit, listener, server};
use crate::config::tree::{Node, Value};

pub const FORWARD_AUTH_EXAMPLE: &str = "write auth = { forward = \"http://127.0.0.1:4180/oauth2/auth\" }";
pub const TOKEN_AUTH_EXAMPLE: &str =
    "write auth = { jwt = \"NAME\" }, and the keys in a section:\n\n[jwt.NAME]\nissuer = \"https://login.example.com\"";
pub const CERTIFICATES_EXAMPLE: &str = "write certificates = [{ cert = \"chain.pem\", key = \"key.pem\" }]";

/// Returns the remedy for a value of a wrong type.
pub fn describe_right_value(option: &ConfigOption, node: &Node) -> Option<&'static str> {
    Some(match (option.name, word_of(node)) {
        (key, Some("internal")) if key == listener::TLS.name => "write tls = { internal = true }",
        (key, Some(algorithm)) if key == server::COMPRESS.name => match algorithm {
            "zstd" => "write compress = { algorithms = [\"zstd\"] }",
            "br" | "brotli" => "write compress = { algorithms = [\"br\"] }",
            "gzip" => "write compress = { algorithms = [\"gzip\"] }",
            _ => option.example,
        },
        _ => option.example,
    })
    .filter(|example| !example.is_empty())
}

/// Words that mean "no bound" in other programs.
const NO_BOUND: [&str; 11] =
    ["unlimited", "infinite", "infinity", "inf", "none", "off", "no", "never", "disabled", "0", "-1"];

/// Returns the remedy for a value that means "no bound" in other programs, such as 0, -1 or `"unlimited"`, where it is
/// not accepted here.
pub fn describe_no_bound(schema: &Schema, key: &str, node: &Node) -> Option<String> {
    let option = schema.find(key)?;
    let value_type = option.value_type();
    let is_outside = |number: i64| match () {
        () if let Some(range) = value_type.integer_range() => !range.contains(&number),
        () if let Some(range) = value_type.size_range() => u64::try_from(number).map_or(true, |n| !range.contains(&n)),
        () if let Some(range) = value_type.duration_range() => number < 0 || !range.contains(&Duration::ZERO),
        () => true,
    };
    let is_meant = match &node.value {
        Value::Integer(number) => *number <= 0 && is_outside(*number),
        Value::String(text) => NO_BOUND.contains(&text.value.to_ascii_lowercase().as_str()),
        _ => false,
    };
    let is_bound = |one: ValueType| {
        use ValueType::{Decimal, Duration, Fraction, Integer, Size};
        matches!(one, Integer { .. } | Size { .. } | Duration { .. } | Decimal(_) | Fraction)
    };
    // An override may have the rate "unlimited".
    let is_rate = schema.name == limit::TABLE.name
        && value_type.alternatives().any(|one| matches!(one, ValueType::Rate | ValueType::CalendarRate));
    if !is_meant || !(is_rate || value_type.alternatives().any(is_bound)) {
        return None;
    }
    let is_word = matches!(node.value, Value::String(_));
    Some(match option.default {
        _ if is_rate => "for no limit, remove the limit, or take its name out of `limits`".to_owned(),
        DefaultValue::Absent => format!("for no bound, leave `{key}` out"),
        _ if option.meaning.contains("0 = no bound") => format!("for no bound, write {key} = 0"),
        _ if is_word || is_named_as_bound(key) => format!("`{key}` always has a bound: {}", option.describe_type()),
        // The message has the bounds.
        _ => return None,
    })
}

/// Returns whether the name of an option says that it is a bound. Every other number that is out of range has a message
/// with the range.
fn is_named_as_bound(key: &str) -> bool {
    key.starts_with("max_") || key.ends_with("timeout")
}

/// Returns a warning for a bound of 0 where 0 is a bound, although it means "no bound" in other programs.
pub fn warn_of_zero(option: &ConfigOption, title: &str, place: Place) -> Option<Diagnostic> {
    if !option.name.starts_with("max_") || option.meaning.contains("0 = ") {
        return None;
    }
    let what = format!("`{}` in {title} is 0, which is not \"no bound\" here: nothing is admitted", option.name);
    let help = "leave it out for the default, or write the bound that you want";
    Some(Diagnostic::new(place, what).with_help(help))
}

fn word_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::String(text) => Some(&text.value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema;
    use crate::config::substitute::Text;

    #[test]
    fn values_that_mean_no_bound_elsewhere_have_a_remedy() {
        let hint = |schema: &Schema, key: &str, value: Value| {
            describe_no_bound(schema, key, &Node { place: Place { file: 0, start: 0, end: 0 }, value })
        };
        let text = |text: &str| Value::String(Text { value: text.to_owned(), written: None });
        for value in [Value::Integer(0), Value::Integer(-1), text("unlimited"), text("None"), text("off")] {
            let found = hint(&schema::upstream::TABLE, "max_in_flight", value);
            assert_eq!(found.as_deref(), Some("for no bound, leave `max_in_flight` out"));
        }
        let rate = hint(&schema::limit::TABLE, "rate", text("unlimited"));
        assert_eq!(rate.as_deref(), Some("for no limit, remove the limit, or take its name out of `limits`"));
        let always = hint(&schema::server::TABLE, "max_connections", text("unlimited"));
        assert_eq!(always.as_deref(), Some("`max_connections` always has a bound: 1 to 10000000"));
        let zero = hint(&schema::server::TABLE, "max_connections_per_ip", Value::Integer(-1));
        assert_eq!(zero.as_deref(), Some("for no bound, write max_connections_per_ip = 0"));
        for number in [0, -1] {
            let found = hint(&schema::server::TABLE, "max_connections", Value::Integer(number));
            assert_eq!(found, always);
        }
        let timeout = hint(&schema::server::TABLE, "header_timeout", Value::Integer(0)).unwrap();
        assert!(timeout.starts_with("`header_timeout` always has a bound: "), "{timeout}");
        assert_eq!(hint(&schema::route::split::TABLE, "weight", Value::Integer(-1)), None);
        // Accepted, no such value, and no bound.
        assert_eq!(hint(&schema::server::TABLE, "max_connections_per_ip", Value::Integer(0)), None);
        assert_eq!(hint(&schema::upstream::TABLE, "max_in_flight", Value::Integer(5)), None);
        assert_eq!(hint(&schema::upstream::TABLE, "proxy_protocol", text("none")), None);
    }
}
