//! Names of headers in which the gateway states the identity of a client. Called by `auth` and `forward_auth`.

use http::HeaderName;

use crate::config::compile::edit::check_editable;
use crate::config::values::{TextFault, invalid_text};
use crate::received_headers::is_needed;

/// Parses the name of a header in which the gateway states an identity. The gateway removes this header from every
/// request of a client, so it must not be one that requests need.
pub fn parse_identity_header(text: &str) -> Result<HeaderName, TextFault> {
    let name = check_editable(text)?;
    if FORWARDING.contains(&name.as_str())
        || is_needed(name.as_str())
        || !name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        let help = "choose a name that no client has to send, such as \"x-forwarded-user\"";
        return invalid_text(format!("`{name}` cannot carry an identity"), help);
    }
    Ok(name)
}

/// Headers about the client, which the gateway sets itself.
const FORWARDING: &[&str] = &[
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
];
