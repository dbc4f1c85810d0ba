//! Access control of the admin listener, based on the request head and the peer. Called by `pages` before a body is
//! read.

use std::time::Duration;

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, StatusCode, Version};
use serde_json::json;

use crate::admin::access::{Access, AccessFault, AccessRefusal, AdminCaller, refuse};
use crate::config::Admin;
use crate::config::admin_tokens::Role;

/// A malformed head: the status and the remedy.
pub type HeadRefusal = (StatusCode, &'static str);

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FOREIGN_SITE: &str = "requests from pages of other sites are refused";
const NOT_LOCAL: &str = "without `token` in [admin] only this machine may see keys and change state: set one, or send the request \
                         over loopback";
const HOST_NOT_LOCAL: &str = "use an IP address or localhost as host, or set `token` in [admin] and send it";

/// Checks that the request names exactly one host (RFC 9112, 3.2). HTTP/1.0 has no `Host`.
pub fn check_host(head: &Parts) -> Result<(), HeadRefusal> {
    let bad_request = |detail| Err((StatusCode::BAD_REQUEST, detail));
    let mut hosts = head.headers.get_all(HOST).iter();
    let (host, target) = (hosts.next(), head.uri.authority());
    if hosts.next().is_some() {
        return bad_request("the request has two Host headers: send one");
    }
    let Some(host) = host else {
        return match target {
            None if head.version == Version::HTTP_10 => Ok(()),
            _ => bad_request("the request has no Host header: send one"),
        };
    };
    let Ok(host) = host.to_str().map(str::to_ascii_lowercase) else {
        return bad_request("the Host header is not text");
    };
    if !host.is_empty() && !host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@')) {
        return bad_request("the Host header is not a host with or without a port");
    }
    match target.map(|target| target.as_str().to_ascii_lowercase()) {
        Some(target) if strip_default_port(&target) != strip_default_port(&host) => {
            bad_request("the target of the request names another host than its Host header")
        }
        _ => Ok(()),
    }
}

/// Returns `host` without the default port of `http`.
fn strip_default_port(host: &str) -> &str {
    host.strip_suffix(":80").unwrap_or(host)
}

/// Checks access to a page and returns the caller. `is_local` is true if the peer is on this machine. `find_caller`
/// returns the owner of the request's token; `None` if no token is configured.
pub fn check_access(
    access: Access,
    headers: &HeaderMap,
    admin: &Admin,
    is_local: bool,
    find_caller: impl FnOnce() -> Result<Option<AdminCaller>, AccessRefusal>,
) -> Result<AdminCaller, AccessRefusal> {
    let Some(needed) = access.needed_role() else { return Ok(AdminCaller::ANONYMOUS) };
    if access == Access::Metrics && !admin.metrics_need_token {
        return Ok(AdminCaller::ANONYMOUS);
    }
    let manages = needed.includes(Role::Keys);
    if manages {
        check_same_site(headers)?;
    }
    let caller = find_caller()?;
    if admin.tokens.is_empty() {
        check_without_token(headers, is_local || !manages)?;
    }
    let role = if is_local { Role::Edit } else { Role::Read };
    let caller = caller.unwrap_or(AdminCaller { role, ..AdminCaller::ANONYMOUS });
    match caller.role.includes(needed) {
        true => Ok(caller),
        false => Err(refuse_role(caller, needed)),
    }
}

/// Checks a request that any token allows; without tokens, one from this machine.
pub fn check_any_token(
    headers: &HeaderMap,
    admin: &Admin,
    is_local: bool,
    find_caller: impl FnOnce() -> Result<Option<AdminCaller>, AccessRefusal>,
) -> Result<AdminCaller, AccessRefusal> {
    check_same_site(headers)?;
    let caller = find_caller()?;
    if admin.tokens.is_empty() {
        check_without_token(headers, is_local)?;
    }
    Ok(caller.unwrap_or(AdminCaller { role: Role::Edit, ..AdminCaller::ANONYMOUS }))
}

/// Returns a refusal that names the required role and the role of the token.
pub fn refuse_role(caller: AdminCaller, needed: Role) -> AccessRefusal {
    let name = caller.name.as_deref().unwrap_or("session");
    let detail =
        format!("this needs the role `{}`; the token `{name}` has the role `{}`", needed.label(), caller.role.label());
    let mut refusal = refuse(AccessFault::RoleTooLow, detail);
    refusal.problem.more = json!({ "required_role": needed.label(), "token_role": caller.role.label() });
    AccessRefusal { caller: Some(Box::new(caller)), ..refusal }
}

/// Refuses a peer that sent too many wrong tokens. A right token is still accepted: others may share the address.
pub fn refuse_attempts(wait: Duration) -> AccessRefusal {
    let seconds = wait.as_secs().max(1);
    let detail = format!("too many wrong tokens from this address; wrong ones get this response for {seconds} s");
    let mut refusal = refuse(AccessFault::TooManyAttempts, detail);
    refusal.problem.more = json!({ "retry_after_seconds": seconds });
    refusal
}

/// Checks a request to a gateway without tokens. A page in a local browser could reach the listener under a host name
/// of its own choice (DNS rebinding), so no host name is trusted.
fn check_without_token(headers: &HeaderMap, is_allowed: bool) -> Result<(), AccessRefusal> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    match host.is_none_or(is_local_name) {
        false => Err(refuse(AccessFault::NotLocal, HOST_NOT_LOCAL)),
        true if !is_allowed => Err(refuse(AccessFault::NotLocal, NOT_LOCAL)),
        true => Ok(()),
    }
}

/// Rejects requests that a browser marks as coming from another site; other clients send no such mark.
pub fn check_same_site(headers: &HeaderMap) -> Result<(), AccessRefusal> {
    let foreign = || Err(refuse(AccessFault::ForeignSite, FOREIGN_SITE));
    if headers.get(FETCH_SITE).is_some_and(|site| site != "same-origin" && site != "none") {
        return foreign();
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    match (origin, host) {
        (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => foreign(),
    }
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
pub mod tests {
    use std::time::{Instant, SystemTime};

    use super::*;
    use crate::admin::access::credentials::find_caller;
    use crate::admin::access::sessions::Sessions;
    use crate::config::admin_tokens::{AdminToken, TokenDigest};

    fn head(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    pub fn admin(tokens: Vec<AdminToken>, metrics_need_token: bool) -> Admin {
        let listen = crate::net::ListenAddr::Tcp(([127, 0, 0, 1], 9900).into());
        Admin {
            listen,
            tokens,
            metrics_need_token,
            edit: false,
            key_display: Default::default(),
            audit: None,
            shows_unused_series: true,
            environment: None,
        }
    }

    /// A token that is its own name.
    pub fn token(name: &str, role: Role) -> AdminToken {
        AdminToken { name: name.to_owned(), digest: TokenDigest::of_token(name.as_bytes()), role, expires: None }
    }

    fn check(access: Access, headers: &HeaderMap, admin: &Admin, local: bool) -> Result<AdminCaller, AccessRefusal> {
        let sessions = Sessions::default();
        let find = || find_caller(headers, admin, &sessions, SystemTime::now(), Instant::now());
        check_access(access, headers, admin, local, find)
    }

    fn status(access: Access, headers: &HeaderMap, admin: &Admin, local: bool) -> u16 {
        check(access, headers, admin, local).map_or_else(|refusal| refusal.problem.status.as_u16(), |_| 200)
    }

    #[test]
    fn every_page_but_probes_needs_the_token_that_is_set() {
        use Access::{Keys, Metrics, Open, Read};
        let bearer = head(&[("host", "gw.example:9900"), ("authorization", "Bearer secret")]);
        let basic = head(&[("host", "127.0.0.1"), ("authorization", "Basic  secret")]);
        let wrong = head(&[("host", "127.0.0.1"), ("authorization", "Bearer secre")]);
        let none = head(&[("host", "127.0.0.1:9900")]);
        let host_only = head(&[("host", "gw.example:9900")]);
        let (set, unset) = (admin(vec![token("secret", Role::Edit)], false), admin(Vec::new(), false));
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
            (&host_only, &unset, true, [200, 200, 403, 403]),
        ] {
            let statuses = [Open, Metrics, Read, Keys].map(|access| status(access, headers, admin, local));
            assert_eq!(statuses, all, "{headers:?} {:?} {local}", admin.tokens);
        }
        let strict = self::admin(vec![token("secret", Role::Edit)], true);
        assert_eq!([&bearer, &none].map(|headers| status(Metrics, headers, &strict, true)), [200, 401]);
        assert_eq!(status(Open, &none, &strict, false), 200);
    }

    #[test]
    fn a_role_opens_its_pages_and_those_of_lower_roles() {
        use Access::{Edit, Keys, Limits, Metrics, Read};
        let tokens = Role::ALL.iter().map(|role| token(role.label(), *role)).collect();
        let admin = admin(tokens, true);
        for (i, role) in Role::ALL.iter().enumerate() {
            let bearer = format!("Bearer {}", role.label());
            let mut headers = head(&[("host", "127.0.0.1")]);
            headers.insert("authorization", bearer.parse().unwrap());
            for (j, access) in [Metrics, Read, Keys, Limits, Edit].into_iter().enumerate() {
                let code = if i >= j { 200 } else { 403 };
                assert_eq!(status(access, &headers, &admin, true), code, "{role:?} {access:?}");
            }
        }
        let headers = head(&[("host", "127.0.0.1"), ("authorization", "Bearer keys")]);
        let problem = check(Edit, &headers, &admin, true).unwrap_err().problem;
        assert_eq!(problem.detail, "this needs the role `edit`; the token `keys` has the role `keys`");
        assert_eq!(problem.more, json!({ "required_role": "edit", "token_role": "keys" }));
    }

    #[test]
    fn several_tokens_are_accepted_until_each_expires() {
        let now = SystemTime::now();
        let until =
            |name, seconds| AdminToken { expires: Some(now + Duration::from_secs(seconds)), ..token(name, Role::Edit) };
        let stale = AdminToken { expires: Some(now), ..token("gone", Role::Edit) };
        let admin = admin(vec![stale, until("old", 60), token("new", Role::Edit)], false);
        for (bearer, expected) in [("Bearer old", 200), ("Bearer new", 200), ("Bearer gone", 401), ("Bearer ne", 401)] {
            let mut headers = head(&[("host", "127.0.0.1")]);
            headers.insert("authorization", bearer.parse().unwrap());
            assert_eq!(status(Access::Edit, &headers, &admin, true), expected, "{bearer}");
        }
        let headers = head(&[("host", "127.0.0.1"), ("authorization", "Bearer gone")]);
        let refusal = check(Access::Edit, &headers, &admin, true).unwrap_err();
        assert!(refusal.problem.detail.starts_with("the token `gone` expired at "), "{refusal:?}");
    }

    #[test]
    fn pages_of_other_sites_change_nothing() {
        for fields in [
            [("host", "127.0.0.1:9900"), ("origin", "http://evil.example")],
            [("host", "127.0.0.1:9900"), ("origin", "null")],
            [("host", "127.0.0.1:9900"), ("sec-fetch-site", "cross-site")],
            [("host", "evil.example:9900"), ("origin", "http://evil.example:9900")],
        ] {
            assert_eq!(status(Access::Limits, &head(&fields), &admin(Vec::new(), false), true), 403, "{fields:?}");
        }
        let own = [("host", "localhost:9900"), ("origin", "http://localhost:9900"), ("sec-fetch-site", "same-origin")];
        assert_eq!(status(Access::Limits, &head(&own), &admin(Vec::new(), false), true), 200);
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
