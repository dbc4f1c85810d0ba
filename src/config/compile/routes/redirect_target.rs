//! Checks of redirect targets and statuses that `redirect` and `redirect_map` have in common.

use http::StatusCode;

use crate::config::values::{TextFault, invalid_text, is_host};
use crate::route::matcher::{HostPattern, Matcher};

const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];
pub const TARGET_HELP: &str = "write a URL like \"https://example.com{path}\", or a path like \"/new\"";

/// Parses the status of a redirect.
pub fn parse_redirect_status(text: &str) -> Result<StatusCode, TextFault> {
    let status = text.parse::<u16>().ok().filter(|status| REDIRECTS.contains(status));
    match status.and_then(|status| StatusCode::from_u16(status).ok()) {
        Some(status) => Ok(status),
        None => invalid_text(format!("`{text}` is not the status of a redirect"), "one of 301, 302, 303, 307, 308"),
    }
}

/// Checks the literal characters of a target.
pub fn check_target_bytes(text: &str) -> Result<(), TextFault> {
    let wrong = text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '\\' | '"' | '<' | '>' | '^' | '`' | '|'));
    match wrong {
        None => Ok(()),
        // As in `return 301 https://example.com` of nginx.
        Some(' ') if text.split_once(' ').is_some_and(|(status, _)| parse_redirect_status(status).is_ok()) => {
            let (status, url) = text.split_once(' ').unwrap_or_default();
            invalid_text(
                "the target begins with a status",
                format!("write redirect = {{ to = \"{}\", status = {status} }}", url.trim()),
            )
        }
        Some(c) => {
            invalid_text(format!("`{}` cannot stand in a URL", c.escape_debug()), "percent-encode it: a space is %20")
        }
    }
}

/// Checks that a target is a URL whose authority the client cannot change, or a path.
pub fn check_start(text: &str) -> Result<(), TextFault> {
    let is_path = text.starts_with('/') || text.starts_with("{path}");
    if is_path && !text.starts_with("//") {
        return Ok(());
    }
    let after_scheme = ["https://", "http://", "{scheme}://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let Some(rest) = after_scheme else {
        return invalid_text(format!("`{text}` is neither an http URL nor a path"), TARGET_HELP);
    };
    let end = rest.find(['/', '?', '#']).into_iter().chain(rest.find("{path}")).min().unwrap_or(rest.len());
    let authority = &rest[..end];
    if authority.is_empty() {
        return invalid_text(format!("`{text}` has no host"), TARGET_HELP);
    }
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (authority, None),
    };
    let is_port = port.is_none_or(|port| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let is_address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok());
    let is_own_host = match name.strip_suffix("{host}") {
        Some("") => true,
        Some(labels) => labels.strip_suffix('.').is_some_and(is_host),
        None => false,
    };
    match is_port && (is_address || is_own_host || is_host(&name.to_ascii_lowercase())) {
        true => Ok(()),
        false => invalid_text(
            format!("`{}` is not the host of a redirect", hide_login(authority)),
            "write a name that clients cannot change, like \"example.com\", \"{host}\" or \"www.{host}:8443\"",
        ),
    }
}

/// Returns an authority without user and password.
fn hide_login(authority: &str) -> String {
    authority.rsplit_once('@').map_or_else(|| authority.to_owned(), |(_, host)| format!("***@{host}"))
}

/// Returns the path that a literal target leads to on the same host. `None` for other hosts.
pub fn local_path<'t>(to: &'t str, matcher: Option<&Matcher>) -> Option<&'t str> {
    let path = match to.strip_prefix("https://").or_else(|| to.strip_prefix("http://")) {
        None => to,
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/')?);
            let is_own = |pattern: &HostPattern| matches!(pattern, HostPattern::Exact(name) if name == host);
            matcher?.hosts.iter().any(is_own).then_some(path)?
        }
    };
    path.split(['?', '#']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_cannot_choose_the_authority() {
        for good in [
            "https://example.com{path}",
            "https://Example.com/a?b#c",
            "http://[2001:db8::1]:8080/",
            "http://192.0.2.1",
            "{scheme}://www.{host}:8443{path}",
            "{path}",
            "/{path}",
        ] {
            assert_eq!(check_start(good), Ok(()), "{good}");
        }
        for bad in [
            "//example.com",
            "https://{path}",
            "https://{id}.example.com/",
            "https://example.com{query}",
            "https://example.com:{id}/",
            "https://example.com@evil.com/",
            "https://{host}.evil.com/",
            "https://evil{host}/",
            "https://example.com:0/",
            "https://example.com:99999",
            "https:///x",
            "javascript:alert(1)",
            "ftp://example.com",
            "{query}",
            "{host}/x",
            "example.com",
            "https:/example.com",
            "",
        ] {
            assert!(check_start(bad).is_err(), "{bad}");
        }
        assert!(check_target_bytes("/a b").is_err() && check_target_bytes("/\\evil.com").is_err());
    }
}
