//! Who may do what on the admin listener, decided from a request's head and its peer. Called by
//! `admin` before it does anything that changes state or shows the config.

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, StatusCode};
use sha2::{Digest, Sha256};

/// A refusal: the status and what to do about it.
pub type Refused = (StatusCode, &'static str);

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// For what changes state. `local`: the peer is on this machine.
pub fn may_change(headers: &HeaderMap, token: Option<&str>, local: bool) -> Result<(), Refused> {
    same_site(headers)?;
    match (token, local) {
        (Some(token), _) if bears(headers, token) => Ok(()),
        (Some(_), _) => Err((StatusCode::UNAUTHORIZED, "send the admin token: `Authorization: Bearer TOKEN`")),
        (None, true) => may_look(headers, None),
        (None, false) => Err((
            StatusCode::FORBIDDEN,
            "without `token` in [admin] only this machine may change state: set one, or ask over loopback",
        )),
    }
}

/// For what shows the config. A page in a browser on this machine could reach us under a name of
/// its own choice (DNS rebinding), so a name is believed only with the token.
pub fn may_look(headers: &HeaderMap, token: Option<&str>) -> Result<(), Refused> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    if host.is_none_or(is_literal) || token.is_some_and(|token| bears(headers, token)) {
        return Ok(());
    }
    Err((
        StatusCode::FORBIDDEN,
        "ask by IP address or as localhost, or send the admin token: `Authorization: Bearer TOKEN`",
    ))
}

/// Browsers say when a request comes from another site; other clients say nothing.
fn same_site(headers: &HeaderMap) -> Result<(), Refused> {
    let foreign = (StatusCode::FORBIDDEN, "requests from pages of other sites are refused");
    if headers.get(FETCH_SITE).is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(foreign);
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    match (origin, host) {
        (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(foreign),
    }
}

/// Digests are compared, whole, so that the time taken tells nothing of the token.
fn bears(headers: &HeaderMap, token: &str) -> bool {
    let stated = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
    let Some((scheme, stated)) = stated.split_at_checked(7) else { return false };
    let (stated, token) = (Sha256::digest(stated.trim_ascii()), Sha256::digest(token));
    let difference = stated.iter().zip(&token).fold(0, |sum, (a, b)| sum | (a ^ b));
    scheme.eq_ignore_ascii_case(b"bearer ") && difference == 0
}

/// True of `localhost` and of IP addresses, with or without a port.
fn is_literal(host: &str) -> bool {
    if host.parse::<std::net::SocketAddr>().is_ok() {
        return true;
    }
    if let Some(v6) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return v6.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_token_is_needed_when_set_and_off_this_machine() {
        let bearer = head(&[("host", "gw.example:9090"), ("authorization", "Bearer secret")]);
        let wrong = head(&[("host", "127.0.0.1"), ("authorization", "Bearer secre")]);
        let none = head(&[("host", "127.0.0.1:9090")]);
        for (headers, token, local, status) in [
            (&bearer, Some("secret"), false, None),
            (&wrong, Some("secret"), true, Some(401)),
            (&none, Some("secret"), true, Some(401)),
            (&none, None, true, None),
            (&none, None, false, Some(403)),
            (&bearer, None, false, Some(403)),
        ] {
            let refused = may_change(headers, token, local).err().map(|(status, _)| status.as_u16());
            assert_eq!(refused, status, "{headers:?} {token:?} {local}");
        }
    }

    #[test]
    fn pages_of_other_sites_change_nothing() {
        for fields in [
            [("host", "127.0.0.1:9090"), ("origin", "http://evil.example")],
            [("host", "127.0.0.1:9090"), ("origin", "null")],
            [("host", "127.0.0.1:9090"), ("sec-fetch-site", "cross-site")],
            [("host", "evil.example:9090"), ("origin", "http://evil.example:9090")],
        ] {
            assert!(may_change(&head(&fields), None, true).is_err(), "{fields:?}");
        }
        let own = [("host", "localhost:9090"), ("origin", "http://localhost:9090"), ("sec-fetch-site", "same-origin")];
        assert_eq!(may_change(&head(&own), None, true), Ok(()));
    }

    #[test]
    fn names_are_not_addresses() {
        for (host, literal) in [
            ("127.0.0.1", true),
            ("127.0.0.1:9090", true),
            ("[::1]", true),
            ("[::1]:9090", true),
            ("localhost:9090", true),
            ("LOCALHOST", true),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("sluicegate:9090", false),
            ("", false),
        ] {
            assert_eq!(is_literal(host), literal, "{host}");
        }
    }
}
