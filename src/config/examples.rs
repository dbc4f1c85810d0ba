//! Examples of values for options that several kinds of values are written for, or whose values other programs write
//! differently. Called by `reader` for values of a wrong type, and by `hints` for keys of other programs.

use crate::config::schema;
use crate::config::schema::Schema;
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

fn word_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::String(text) => Some(&text.value),
        _ => None,
    }
}
