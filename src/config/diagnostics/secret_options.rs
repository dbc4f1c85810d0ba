//! The options whose values are secrets, so that no output contains them.

use crate::telemetry::access_log;

/// Options that are secrets: section and last key.
const SECRETS: [(&str, &str); 4] = [("admin", "token"), ("admin", "sha256"), ("admin", "keys_secret"), ("jwt", "key")];

/// Parts of names of headers, cookies and parameters whose values are usually secrets.
const SECRET_PARTS: [&str; 9] =
    ["token", "secret", "passw", "auth", "cookie", "session", "signature", "api-key", "apikey"];

/// Tables with names that the operator chose and values that may be secrets.
const HEADER_TABLES: [&[&str]; 11] = [
    &["spans", "headers"],
    &["request_headers", "set"],
    &["response_headers", "set"],
    &["response_headers", "default"],
    &["response_headers", "add"],
    &["response_headers", "add_on_success"],
    &["header"],
    &["when", "header"],
    &["when", "query"],
    &["when", "jwt"],
    &["when", "descriptor"],
];

/// Options that are bodies of responses.
const BODIES: [[&str; 2]; 2] = [["respond", "body"], ["refuse", "body"]];

/// Parameters of URLs that are secrets.
pub const URL_PARAMETERS: [&str; 6] = ["token=", "api_key=", "api-key=", "apikey=", "secret=", "signature="];

/// Returns whether an option of a section is a secret. `keys` start after the section and its name.
pub fn is_secret(kind: &str, keys: &[&str]) -> bool {
    let Some(last) = keys.last() else { return false };
    let is_table = |table: &&&[&str]| keys.len() > table.len() && keys.starts_with(table);
    match HEADER_TABLES.iter().find(is_table) {
        Some(table) => table[0] == "spans" || access_log::is_secret_name(last),
        None => SECRETS.contains(&(kind, last)) || keys.starts_with(&["when", "cookie"]),
    }
}

/// Returns whether an option is a URL whose query may contain a secret with any name. `keys` may start anywhere.
pub fn has_secret_query(keys: &[&str]) -> bool {
    keys.ends_with(&["auth", "forward"]) || keys.ends_with(&["spans", "to"])
}

/// Returns whether an option is the body of a response, which only some clients may be allowed to read.
pub fn is_body(keys: &[&str]) -> bool {
    BODIES.iter().any(|body| keys.ends_with(body))
}

/// Returns whether the value of a key may be a body: also under a misspelt key, or in place of the table.
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
    SECRETS.iter().any(|(_, secret)| is_near(secret)) || ["secret", "passw"].iter().any(|part| name.contains(part))
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
