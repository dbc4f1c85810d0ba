//! Parses names of headers, cookies and parameters in the config and in requests to the admin API. Also has the error
//! type for such texts, [`TextFault`].

use std::fmt;

use http::HeaderName;

use crate::received_headers::{Visibility, find_visibility, is_ambiguous_name};

/// A mistake in a text of the config or of a request to the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFault {
    /// The mistake.
    pub what: String,
    /// The remedy: a text to write instead.
    pub help: String,
}

/// Writes both in one sentence.
impl fmt::Display for TextFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.help)
    }
}

/// Returns a [`TextFault`] as an error.
pub fn invalid_text<T>(what: impl Into<String>, help: impl Into<String>) -> Result<T, TextFault> {
    Err(TextFault { what: what.into(), help: help.into() })
}

/// Parses a header name.
pub fn parse_header_name(text: &str) -> Result<HeaderName, TextFault> {
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) => Ok(name),
        Err(_) => invalid_text(format!("`{text}` is not a header name"), "header names have letters, digits and `-`"),
    }
}

/// Parses the name of a header of requests that limits, conditions or tokens read.
///
/// # Errors
/// It is not the name of a header, or the gateway removes such headers before anything reads them.
pub fn parse_forwarded_header(text: &str) -> Result<HeaderName, TextFault> {
    let name = parse_header_name(text)?;
    let is_removed = find_visibility(name.as_str()) == Visibility::Never;
    if is_removed && !is_ambiguous_name(name.as_str()) {
        return invalid_text(
            format!("the gateway removes the header `{name}` from every request before anything reads it"),
            "name a header that is for the server, like \"authorization\" or \"x-api-key\"",
        );
    }
    if is_ambiguous_name(name.as_str()) {
        let plain: String = name.as_str().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        return invalid_text(
            format!("the gateway never reads the header `{name}`: servers confuse such names with others"),
            match text.contains('*') {
                true => "there are no wildcards in names: write the whole name".to_owned(),
                false => format!("have clients send `{plain}`, and write that"),
            },
        );
    }
    Ok(name)
}

/// Returns whether servers that map headers to variables may confuse two headers: the names differ, but only in
/// punctuation, such as `x_api_key` and `x-api-key`.
pub fn is_header_alias(one: &HeaderName, other: &HeaderName) -> bool {
    let fold = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'_' };
    let (one, other) = (one.as_str(), other.as_str());
    one.len() == other.len() && one != other && one.bytes().map(fold).eq(other.bytes().map(fold))
}

/// Checks a cookie name.
pub fn parse_cookie_name(text: &str) -> Result<String, TextFault> {
    // Cookie names allow the characters of header names, but they are case-sensitive.
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => {
            invalid_text(format!("`{text}` is not a cookie name"), "cookie names have letters, digits, `-` and `_`")
        }
    }
}

/// Checks the name of a parameter in a path template.
pub fn parse_param_name(text: &str) -> Result<String, TextFault> {
    match text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        true => invalid_text(
            format!("`{{{text}}}` is not a parameter"),
            "parameter names have letters, digits and `_`: \"/users/{id}\"",
        ),
        false => Ok(text.to_owned()),
    }
}

/// Checks the decoded name of a query parameter, form field or claim. `kind` is the word for it in the error.
pub fn parse_input_name(text: &str, kind: &str) -> Result<String, TextFault> {
    match text.len() {
        1..=128 if !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => invalid_text(
            format!("`{text}` is not the name of a {kind}"),
            "names have 1 to 128 bytes, no control characters",
        ),
    }
}
