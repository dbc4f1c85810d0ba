//! Examples of values for options that several kinds of values are written for, or whose values other programs write
//! differently. Called by `reader` for values of a wrong type, and by `hints` for keys of other programs.

use std::time::Duration;

use crate::config::schema;
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{DefaultValue, Schema};
use crate::config::tree::{Node, Value};

pub const AUTH_EXAMPLE: &str = "write auth = { basic = \"users.htpasswd\" }";
pub const FORWARD_AUTH_EXAMPLE: &str = "write auth = { forward = \"http://127.0.0.1:4180/oauth2/auth\" }";
pub const CERTIFICATES_EXAMPLE: &str = "write certificates = [{ cert = \"chain.pem\", key = \"key.pem\" }]";

/// Options and examples of their values, by section.
const EXAMPLES: &[(&Schema, &str, &str)] = &[
    (&schema::ROUTE, "auth", AUTH_EXAMPLE),
    (&schema::AUTH, "basic", "name an htpasswd file: auth = { basic = \"users.htpasswd\" }"),
    (
        &schema::ROUTE,
        "redirect",
        "write redirect = \"https://example.com{path}\", or redirect = { to = \"...\", status = 301 }",
    ),
    (&schema::ROUTE, "error_pages", "write error_pages = { 404 = \"404.html\", \"5xx\" = \"5xx.html\" }"),
    (&schema::SERVER, "error_pages", "write error_pages = { 404 = \"404.html\", \"5xx\" = \"5xx.html\" }"),
    (&schema::ROUTE, "intercept", "write intercept = true, or intercept = [404, \"5xx\"]"),
    (&schema::SERVER, "intercept", "write intercept = true, or intercept = [404, \"5xx\"]"),
    (&schema::ROUTE, "compress", "write compress = true, or compress = { algorithms = [\"gzip\"] }"),
    (&schema::SERVER, "compress", "write compress = true, or compress = { algorithms = [\"gzip\"] }"),
    (&schema::ADMIN_TOKEN, "expires", "write the date in quotes: expires = \"2027-01-31\""),
    (&schema::ADMIN, "tokens", "write [[admin.tokens]] with two brackets, once for each token"),
    (&schema::LISTENER, "hsts", "begin with hsts = \"1d\""),
    (
        &schema::LISTENER,
        "tls",
        "write tls = { certificates = [{ cert = \"chain.pem\", key = \"key.pem\" }] }, or tls = { internal = true } for \
         development",
    ),
];

/// Returns the remedy for a value of a wrong type.
pub fn describe_right_value(schema: &Schema, key: &str, node: &Node) -> Option<&'static str> {
    let (.., example) = EXAMPLES.iter().find(|(of, known, _)| of.name == schema.name && *known == key)?;
    Some(match (key, word_of(node)) {
        ("tls", Some("internal")) => "write tls = { internal = true }",
        ("compress", Some("zstd")) => "write compress = { algorithms = [\"zstd\"] }",
        ("compress", Some("br" | "brotli")) => "write compress = { algorithms = [\"br\"] }",
        ("compress", Some("gzip")) => "write compress = { algorithms = [\"gzip\"] }",
        _ => example,
    })
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
    let is_rate = schema.name == schema::LIMIT.name
        && value_type.alternatives().any(|one| matches!(one, ValueType::Rate | ValueType::CalendarRate));
    if !is_meant || !(is_rate || value_type.alternatives().any(is_bound)) {
        return None;
    }
    let is_word = matches!(node.value, Value::String(_));
    Some(match option.default {
        _ if is_rate => "for no limit, remove the limit, or take its name out of `limits`".to_owned(),
        DefaultValue::Absent => format!("for no bound, leave `{key}` out"),
        _ if option.meaning.contains("0 = no bound") => format!("for no bound, write {key} = 0"),
        _ if is_word => format!("`{key}` always has a bound: {}", option.describe_type()),
        // The message has the bounds.
        _ => return None,
    })
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
    use crate::config::diagnostics::report::Place;
    use crate::config::substitute::Text;

    #[test]
    fn values_that_mean_no_bound_elsewhere_have_a_remedy() {
        let hint = |schema: &Schema, key: &str, value: Value| {
            describe_no_bound(schema, key, &Node { place: Place { file: 0, start: 0, end: 0 }, value })
        };
        let text = |text: &str| Value::String(Text { value: text.to_owned(), written: None });
        for value in [Value::Integer(0), Value::Integer(-1), text("unlimited"), text("None"), text("off")] {
            let found = hint(&schema::UPSTREAM, "max_in_flight", value);
            assert_eq!(found.as_deref(), Some("for no bound, leave `max_in_flight` out"));
        }
        let rate = hint(&schema::LIMIT, "rate", text("unlimited"));
        assert_eq!(rate.as_deref(), Some("for no limit, remove the limit, or take its name out of `limits`"));
        let always = hint(&schema::SERVER, "max_connections", text("unlimited"));
        assert_eq!(always.as_deref(), Some("`max_connections` always has a bound: 1 to 10000000"));
        let zero = hint(&schema::SERVER, "max_connections_per_ip", Value::Integer(-1));
        assert_eq!(zero.as_deref(), Some("for no bound, write max_connections_per_ip = 0"));
        assert_eq!(hint(&schema::SERVER, "max_connections", Value::Integer(0)), None);
        // Accepted, no such value, and no bound.
        assert_eq!(hint(&schema::SERVER, "max_connections_per_ip", Value::Integer(0)), None);
        assert_eq!(hint(&schema::UPSTREAM, "max_in_flight", Value::Integer(5)), None);
        assert_eq!(hint(&schema::UPSTREAM, "proxy_protocol", text("none")), None);
    }
}
