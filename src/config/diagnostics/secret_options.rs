//! The options whose values are secrets, so that no output contains them.

use std::sync::LazyLock;

use crate::config::schema::lookup::{OptionPlace, locate_value};
use crate::config::schema::row::{ConfigOption, Secrecy};
use crate::config::schema::{self, Schema};
use crate::telemetry::access_log;

/// Parts of names of headers, cookies and parameters whose values are usually secrets.
const SECRET_PARTS: [&str; 9] =
    ["token", "secret", "passw", "auth", "cookie", "session", "signature", "api-key", "apikey"];

/// Parameters of URLs that are secrets.
pub const URL_PARAMETERS: [&str; 6] = ["token=", "api_key=", "api-key=", "apikey=", "secret=", "signature="];

/// Last keys of an option: the table and its own.
type LastKeys = [&'static str; 2];

/// Options that are the body of a response.
static BODIES: LazyLock<Vec<LastKeys>> = LazyLock::new(|| list_options(Secrecy::Body));
/// Options that are URLs whose query may contain a secret with any name.
static SECRET_QUERIES: LazyLock<Vec<LastKeys>> = LazyLock::new(|| list_options(Secrecy::SecretQuery));
static SECRETS: LazyLock<Vec<LastKeys>> = LazyLock::new(|| list_options(Secrecy::Secret));

fn list_options(secrecy: Secrecy) -> Vec<LastKeys> {
    let table = |schema: &'static Schema| schema.name.rsplit('.').next().unwrap_or(schema.name);
    let is_meant = |option: &&ConfigOption| option.secrecy == secrecy && !option.value_type().has_own_keys();
    let of_table = |schema: &&'static Schema| {
        let options = schema.options.iter().filter(is_meant);
        options.map(|option| [table(schema), option.name]).collect::<Vec<_>>()
    };
    schema::ALL.iter().flat_map(of_table).collect()
}

/// Returns whether an option of a section is a secret. `keys` start after the section and its name.
pub fn is_secret(kind: &str, keys: &[&str]) -> bool {
    let Some(OptionPlace { option, is_entry, .. }) = locate_value(kind, keys) else { return false };
    match option.secrecy {
        Secrecy::Secret => is_entry || !option.value_type().has_own_keys(),
        Secrecy::SecretByKey => is_entry && keys.last().is_some_and(|name| access_log::is_secret_name(name)),
        Secrecy::Public | Secrecy::SecretQuery | Secrecy::Body => false,
    }
}

/// Returns whether a value may be a secret: also one instead of the table that has secrets.
pub fn may_be_secret(kind: &str, keys: &[&str]) -> bool {
    is_secret(kind, keys) || locate_value(kind, keys).is_some_and(|place| place.option.secrecy == Secrecy::Secret)
}

/// Returns whether an option is a URL whose query may contain a secret with any name. `keys` may start anywhere.
pub fn has_secret_query(keys: &[&str]) -> bool {
    SECRET_QUERIES.iter().any(|query| keys.ends_with(query))
}

/// Returns whether an option is the body of a response, which only some clients may be allowed to read.
pub fn is_body(keys: &[&str]) -> bool {
    BODIES.iter().any(|body| keys.ends_with(body))
}

/// Returns whether the value of a key may be a body: also under a misspelt key, or instead of the table.
pub fn resembles_body(keys: &[&str]) -> bool {
    BODIES.iter().any(|[table, body]| match keys {
        [.., last] if last == table => true,
        [.., parent, last] => parent == table && strsim::osa_distance(last, body) <= 1,
        _ => false,
    })
}

/// Returns whether the value of a header, or of an entry of a nested table, is usually a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name == "sha256" || SECRET_PARTS.iter().any(|part| name.contains(part))
}

/// Returns whether a key may be a misspelt secret option, or one in the wrong section.
pub fn resembles_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_near = |secret: &str| secret.len() > 3 && strsim::osa_distance(&name, secret) <= 2;
    SECRETS.iter().any(|[_, secret]| is_near(secret)) || ["secret", "passw"].iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_option_and_by_name() {
        assert!(is_secret("admin", &["token"]) && is_secret("jwt", &["key"]));
        assert!(is_secret("route", &["request_headers", "set", "authorization"]));
        assert!(is_secret("route", &["header", "X-Origin-Secret"]) && is_secret("route", &["header", "x-access-key"]));
        assert!(is_secret("limit", &["when", "query", "api_key"]) && !is_secret("limit", &["when", "query", "act"]));
        assert!(!is_secret("limit", &["key"]) && !is_secret("route", &["header", "x-version"]));
        assert!(has_secret_query(&["route", "auth", "forward"]) && has_secret_query(&["spans", "to"]));
        assert!(!has_secret_query(&["redirect", "to"]));
        assert!(is_body(&["respond", "body"]) && !is_body(&["respond", "status"]));
        assert!(
            resembles_body(&["route", "respond", "bdoy"])
                && resembles_body(&["refuse"])
                && !resembles_body(&["respond", "code"])
        );
        assert!(resembles_secret("tokn") && resembles_secret("Key_secret") && !resembles_secret("key"));
    }
}
