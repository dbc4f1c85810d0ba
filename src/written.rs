//! Texts that somebody wrote, in a config or to the admin listener: why one is refused, and the names
//! that stand in them. Called by whoever reads such texts; `config` shows what is wrong with them.

use http::HeaderName;

/// Why a text is refused, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub what: String,
    pub help: String,
}

pub fn fault<T>(what: impl Into<String>, help: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { what: what.into(), help: help.into() })
}

pub fn header_name(text: &str) -> Result<HeaderName, Fault> {
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) => Ok(name),
        Err(_) => fault(format!("`{text}` is not a header name"), "header names have letters, digits and `-`"),
    }
}

pub fn cookie_name(text: &str) -> Result<String, Fault> {
    // The same characters as in header names, but cookies tell upper case from lower.
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => fault(format!("`{text}` is not a cookie name"), "cookie names have letters, digits, `-` and `_`"),
    }
}

/// The name of a parameter in the template of a path.
pub fn param_name(text: &str) -> Result<String, Fault> {
    match text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        true => fault(
            format!("`{{{text}}}` is not a parameter"),
            "parameter names have letters, digits and `_`: \"/users/{id}\"",
        ),
        false => Ok(text.to_owned()),
    }
}

/// The name of a query parameter or claim, decoded.
pub fn input_name(text: &str, kind: &str) -> Result<String, Fault> {
    match text.len() {
        1..=128 if !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => fault(format!("`{text}` is not the name of a {kind}"), "names have 1 to 128 bytes, no control characters"),
    }
}
