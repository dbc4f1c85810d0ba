//! Access control of the admin listener, based on the request head and the peer. Called by `pages` before a body is
//! read.

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, StatusCode, Version};
use sha2::{Digest, Sha256};

use crate::config::Admin;

/// A refusal: the status and the remedy.
pub type AccessRefusal = (StatusCode, &'static str);

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What a page reveals or changes, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Health only.
    Open,
    /// Counters, labelled with names from the config.
    Metrics,
    /// The config.
    Read,
    /// Usage of single keys.
    Keys,
    /// Decisions, resets and refunds.
    Limits,
    /// Changes of the config.
    Edit,
}

const TOKEN: &str = "send the admin token: `Authorization: Bearer TOKEN`";

/// Checks that the request names exactly one host (RFC 9112, 3.2). HTTP/1.0 has no `Host`.
pub fn check_host(head: &Parts) -> Result<(), AccessRefusal> {
    let refused = |detail| Err((StatusCode::BAD_REQUEST, detail));
    let mut hosts = head.headers.get_all(HOST).iter();
    let (host, target) = (hosts.next(), head.uri.authority());
    if hosts.next().is_some() {
        return refused("the request has two Host headers: send one");
    }
    let Some(host) = host else {
        return match target {
            None if head.version == Version::HTTP_10 => Ok(()),
            _ => refused("the request has no Host header: send one"),
        };
    };
    let Ok(host) = host.to_str().map(str::to_ascii_lowercase) else {
        return refused("the Host header is not text");
    };
    if !host.is_empty() && !host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@')) {
        return refused("the Host header is not a host with or without a port");
    }
    match target.map(|target| target.as_str().to_ascii_lowercase()) {
        Some(target) if strip_default_port(&target) != strip_default_port(&host) => {
            refused("the target of the request names another host than its Host header")
        }
        _ => Ok(()),
    }
}

/// Returns `host` without the default port of `http`.
fn strip_default_port(host: &str) -> &str {
    host.strip_suffix(":80").unwrap_or(host)
}

/// Checks access. `local` tells that the peer is on this machine.
pub fn check_access(access: Access, headers: &HeaderMap, admin: &Admin, local: bool) -> Result<(), AccessRefusal> {
    let token = admin.token.as_deref();
    match access {
        Access::Open => Ok(()),
        Access::Metrics if !admin.metrics_need_token => Ok(()),
        Access::Metrics => check_host_is_local(headers, token),
        Access::Read => check_host_is_local(headers, token),
        Access::Keys | Access::Limits | Access::Edit => {
            check_same_site(headers)?;
            check_host_is_local(headers, token)?;
            match token.is_some() || local {
                true => Ok(()),
                false => Err((
                    StatusCode::FORBIDDEN,
                    "without `token` in [admin] only this machine may see keys and change state: set one, or send the request \
                     over loopback",
                )),
            }
        }
    }
}

/// Without a token, a page in a local browser could reach the listener under a host name of its own choice (DNS
/// rebinding), so no host name is trusted.
fn check_host_is_local(headers: &HeaderMap, token: Option<&str>) -> Result<(), AccessRefusal> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    match token {
        Some(token) if has_token(headers, token) => Ok(()),
        Some(_) => Err((StatusCode::UNAUTHORIZED, TOKEN)),
        None if host.is_none_or(is_local_name) => Ok(()),
        None => Err((
            StatusCode::FORBIDDEN,
            "use an IP address or localhost as host, or set `token` in [admin] and send it",
        )),
    }
}

/// Rejects requests that a browser marks as coming from another site; other clients send no such mark.
pub fn check_same_site(headers: &HeaderMap) -> Result<(), AccessRefusal> {
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

/// Compares digests completely, so that the time reveals nothing about the token.
fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let stated = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
    let Some((scheme, stated)) = stated.split_at_checked(7) else { return false };
    let (stated, token) = (Sha256::digest(stated.trim_ascii()), Sha256::digest(token));
    let difference = stated.iter().zip(&token).fold(0, |sum, (a, b)| sum | (a ^ b));
    scheme.eq_ignore_ascii_case(b"bearer ") && difference == 0
}

/// Returns whether the host is `localhost` or an IP address, with or without a port.
fn is_local_name(host: &str) -> bool {
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

    fn admin(token: Option<&str>, metrics_need_token: bool) -> Admin {
        let listen = crate::net::ListenAddr::Tcp(([127, 0, 0, 1], 9900).into());
        Admin {
            listen,
            token: token.map(str::to_owned),
            metrics_need_token,
            edit: false,
            key_display: Default::default(),
        }
    }

    #[test]
    fn every_page_but_probes_needs_the_token_that_is_set() {
        use Access::{Keys, Metrics, Open, Read};
        let bearer = head(&[("host", "gw.example:9900"), ("authorization", "Bearer secret")]);
        let basic = head(&[("host", "127.0.0.1"), ("authorization", "Basic  secret")]);
        let wrong = head(&[("host", "127.0.0.1"), ("authorization", "Bearer secre")]);
        let none = head(&[("host", "127.0.0.1:9900")]);
        let named = head(&[("host", "gw.example:9900")]);
        let (set, unset) = (admin(Some("secret"), false), admin(None, false));
        let status = |access, headers: &HeaderMap, admin: &Admin, local| {
            check_access(access, headers, admin, local).map_or_else(|(status, _)| status.as_u16(), |()| 200)
        };
        for (headers, admin, local, all) in [
            (&bearer, &set, false, [200, 200, 200, 200]),
            (&bearer, &set, true, [200, 200, 200, 200]),
            (&basic, &set, true, [200, 200, 401, 401]),
            (&wrong, &set, true, [200, 200, 401, 401]),
            (&none, &set, true, [200, 200, 401, 401]),
            (&none, &set, false, [200, 200, 401, 401]),
            (&none, &unset, true, [200, 200, 200, 200]),
            (&none, &unset, false, [200, 200, 200, 403]),
            (&bearer, &unset, false, [200, 200, 403, 403]),
            (&named, &unset, true, [200, 200, 403, 403]),
        ] {
            let found = [Open, Metrics, Read, Keys].map(|access| status(access, headers, admin, local));
            assert_eq!(found, all, "{headers:?} {:?} {local}", admin.token);
        }
        let closed = super::tests::admin(Some("secret"), true);
        assert_eq!([&bearer, &none].map(|headers| status(Metrics, headers, &closed, true)), [200, 401]);
        assert_eq!(status(Open, &none, &closed, false), 200);
    }

    #[test]
    fn pages_of_other_sites_change_nothing() {
        for fields in [
            [("host", "127.0.0.1:9900"), ("origin", "http://evil.example")],
            [("host", "127.0.0.1:9900"), ("origin", "null")],
            [("host", "127.0.0.1:9900"), ("sec-fetch-site", "cross-site")],
            [("host", "evil.example:9900"), ("origin", "http://evil.example:9900")],
        ] {
            assert!(check_access(Access::Limits, &head(&fields), &admin(None, false), true).is_err(), "{fields:?}");
        }
        let own = [("host", "localhost:9900"), ("origin", "http://localhost:9900"), ("sec-fetch-site", "same-origin")];
        assert_eq!(check_access(Access::Limits, &head(&own), &admin(None, false), true), Ok(()));
    }

    #[test]
    fn names_are_not_addresses() {
        for (host, literal) in [
            ("127.0.0.1", true),
            ("127.0.0.1:9900", true),
            ("[::1]", true),
            ("[::1]:9900", true),
            ("localhost:9900", true),
            ("LOCALHOST", true),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("sluicegate:9900", false),
            ("", false),
        ] {
            assert_eq!(is_local_name(host), literal, "{host}");
        }
    }
}
