//! Cross-origin requests of pages in browsers (CORS): which origins may read the responses of a route, and how
//! preflights are answered, as in the Fetch standard.
//!
//! Input: the config compiler builds a [`CorsPolicy`] per route. Output: the values of the `Access-Control-*` headers.
//! `proxy::steps::response::preflight` recognizes preflights, and `proxy::steps::response::cors` writes the headers.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
};
use http::{HeaderName, HeaderValue};
use regex::Regex;

/// The response headers of CORS. The gateway alone sets them on a route with `cors`: browsers reject a response that
/// has one twice.
pub const CORS_HEADERS: [HeaderName; 7] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
    HeaderName::from_static("access-control-allow-private-network"),
];

/// The origin of pages that have none of their own, such as sandboxed frames and local files.
const OPAQUE: &str = "null";

/// The cross-origin rules of a route, with the values of its response headers.
#[derive(Clone, Debug, PartialEq)]
pub struct CorsPolicy {
    pub origins: AllowedOrigins,
    /// Browsers send cookies, client certificates and passwords that they have stored.
    pub credentials: bool,
    /// The methods that preflights allow. `None`: the method that the preflight asks for.
    pub methods: Option<HeaderValue>,
    /// The request headers that preflights allow. `None`: those that the preflight asks for.
    pub headers: Option<HeaderValue>,
    /// The response headers that pages may read.
    pub exposed: HeaderValue,
    /// How long browsers may remember a preflight, in seconds.
    pub max_age: HeaderValue,
}

/// The origins whose pages may read responses.
#[derive(Clone, Debug, PartialEq)]
pub enum AllowedOrigins {
    Any,
    Listed(Vec<OriginPattern>),
}

/// A pattern for origins in canonical form.
#[derive(Clone, Debug)]
pub enum OriginPattern {
    Exact(String),
    /// `https://*.example.com:8443`, stored as `https://` and `.example.com:8443`. Matches one or more labels between
    /// them.
    Subdomains {
        start: String,
        end: String,
    },
    /// Matches the whole origin.
    Regex(Regex),
}

impl CorsPolicy {
    /// Returns the value of `Access-Control-Allow-Origin` for a request with this `Origin`; `None` if its page may not
    /// read the response. An origin is repeated as the browser sent it, because the browser compares the bytes.
    pub fn allow_origin(&self, origin: Option<&HeaderValue>) -> Option<HeaderValue> {
        match &self.origins {
            AllowedOrigins::Any => Some(HeaderValue::from_static("*")),
            AllowedOrigins::Listed(patterns) => {
                let text = origin?.to_str().ok()?;
                let is_listed = |origin: &str| patterns.iter().any(|pattern| pattern.matches(origin));
                is_listed(&canonicalize_origin(text)?).then(|| origin.cloned())?
            }
        }
    }

    /// Returns whether responses depend on the origin, so that caches must keep them apart.
    pub fn depends_on_origin(&self) -> bool {
        self.origins != AllowedOrigins::Any
    }
}

impl OriginPattern {
    /// Returns whether the pattern matches a canonical origin.
    pub fn matches(&self, origin: &str) -> bool {
        match self {
            OriginPattern::Exact(own) => own == origin,
            OriginPattern::Subdomains { start, end } => {
                origin.len() > start.len() + end.len() && origin.starts_with(start) && origin.ends_with(end)
            }
            OriginPattern::Regex(regex) => regex.is_match(origin),
        }
    }
}

/// Compares patterns as written.
impl PartialEq for OriginPattern {
    fn eq(&self, other: &OriginPattern) -> bool {
        match (self, other) {
            (OriginPattern::Exact(own), OriginPattern::Exact(other)) => own == other,
            (OriginPattern::Subdomains { start, end }, OriginPattern::Subdomains { start: from, end: to }) => {
                (start, end) == (from, to)
            }
            (OriginPattern::Regex(own), OriginPattern::Regex(other)) => own.as_str() == other.as_str(),
            _ => false,
        }
    }
}

/// Returns the canonical form of an origin: scheme and host in lower case, without the default port of `http` and
/// `https`. Returns `None` if the text is not `SCHEME://HOST`, `SCHEME://HOST:PORT` or `null`.
pub fn canonicalize_origin(text: &str) -> Option<Cow<'_, str>> {
    if text == OPAQUE {
        return Some(Cow::Borrowed(OPAQUE));
    }
    let (scheme, authority) = text.split_once("://")?;
    let is_scheme_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) || !scheme.bytes().all(is_scheme_byte) {
        return None;
    }
    let (host, port) = split_port(authority)?;
    let default_port = |scheme: &str| match () {
        () if scheme.eq_ignore_ascii_case("https") => Some(443),
        () if scheme.eq_ignore_ascii_case("http") => Some(80),
        () => None,
    };
    let written_port = port.filter(|port| Some(*port) != default_port(scheme));
    let is_canonical = written_port == port
        && !authority.starts_with('[')
        && !text.bytes().any(|byte| byte.is_ascii_uppercase())
        && !has_leading_zero(authority);
    if is_canonical {
        return Some(Cow::Borrowed(text));
    }
    let origin = format!("{scheme}://{host}").to_ascii_lowercase();
    Some(Cow::Owned(match written_port {
        Some(port) => format!("{origin}:{port}"),
        None => origin,
    }))
}

/// Splits an authority into host and port. An IPv6 address gets its canonical form. Returns `None` if it is not a host
/// with or without a port.
fn split_port(authority: &str) -> Option<(Cow<'_, str>, Option<u16>)> {
    let port_of = |rest: &str| match rest.strip_prefix(':') {
        None => rest.is_empty().then_some(None),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok().map(Some),
        Some(_) => None,
    };
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        let address: Ipv6Addr = address.parse().ok()?;
        return Some((Cow::Owned(format!("[{address}]")), port_of(rest)?));
    }
    let (host, rest) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_host = !host.is_empty() && host.bytes().all(is_host_byte) && !host.starts_with('.') && !host.contains("..");
    is_host.then_some((Cow::Borrowed(host), port_of(rest)?))
}

/// Returns whether the port of an authority is written with a leading zero.
fn has_leading_zero(authority: &str) -> bool {
    authority.rsplit_once(':').is_some_and(|(_, port)| port.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_one_canonical_form() {
        for (text, canonical) in [
            ("https://app.example.com", Some("https://app.example.com")),
            ("HTTPS://App.Example.COM", Some("https://app.example.com")),
            ("https://app.example.com:443", Some("https://app.example.com")),
            ("https://app.example.com:0443", Some("https://app.example.com")),
            ("https://app.example.com:08443", Some("https://app.example.com:8443")),
            ("http://app.example.com:80", Some("http://app.example.com")),
            ("http://app.example.com:443", Some("http://app.example.com:443")),
            ("http://[::1]:3000", Some("http://[::1]:3000")),
            ("http://[0:0:0:0:0:0:0:1]", Some("http://[::1]")),
            ("http://[2001:DB8::1]:80", Some("http://[2001:db8::1]")),
            ("capacitor://localhost", Some("capacitor://localhost")),
            ("chrome-extension://abcdef", Some("chrome-extension://abcdef")),
            ("null", Some("null")),
            ("NULL", None),
            ("", None),
            ("*", None),
            ("app.example.com", None),
            ("://app.example.com", None),
            ("https://", None),
            ("https://a.test/", None),
            ("https://a.test:", None),
            ("https://a.test:x", None),
            ("https://a.test:+1", None),
            ("https://a.test:65536", None),
            ("https://user@a.test", None),
            ("https://a.test?x", None),
            ("https://a.test#x", None),
            ("https://a test", None),
            ("https://.example.com", None),
            ("https://a..example.com", None),
            ("https://[::1", None),
            ("https://[::1]x", None),
            ("https://a.test, https://b.test", None),
            ("1https://a.test", None),
            ("https://\u{e4}.test", None),
        ] {
            assert_eq!(canonicalize_origin(text).as_deref(), canonical, "{text}");
            if let Some(canonical) = canonical {
                assert_eq!(canonicalize_origin(canonical).as_deref(), Some(canonical), "{text}");
            }
        }
    }

    fn policy(patterns: Vec<OriginPattern>) -> CorsPolicy {
        let value = HeaderValue::from_static;
        CorsPolicy {
            origins: AllowedOrigins::Listed(patterns),
            credentials: true,
            methods: None,
            headers: None,
            exposed: value("retry-after"),
            max_age: value("600"),
        }
    }

    #[test]
    fn only_listed_origins_are_repeated() {
        let policy = policy(vec![
            OriginPattern::Exact("https://app.example.com".to_owned()),
            OriginPattern::Subdomains { start: "https://".to_owned(), end: ".example.org".to_owned() },
            OriginPattern::Regex(Regex::new(r"^(?:https://[a-z]+\.example\.net)$").unwrap()),
        ]);
        for (origin, is_listed) in [
            ("https://app.example.com", true),
            ("HTTPS://APP.example.com:443", true),
            ("https://a.example.org", true),
            ("https://a.b.example.org", true),
            ("https://x.example.net", true),
            ("http://app.example.com", false),
            ("https://app.example.com:8443", false),
            ("https://app.example.com.evil.test", false),
            ("https://evilapp.example.com", false),
            ("https://example.org", false),
            ("https://.example.org", false),
            ("https://evil-example.org", false),
            ("https://a.example.org:8443", false),
            ("https://evil.test/.example.org", false),
            ("https://evil.test?.example.org", false),
            ("https://evil.test#.example.org", false),
            ("https://evil.test\\.example.org", false),
            ("http://a.example.org", false),
            ("https://x.example.net.evil.test", false),
            ("https://x.example.net\t", false),
            ("null", false),
            ("*", false),
            ("", false),
        ] {
            let value = HeaderValue::from_str(origin).unwrap();
            assert_eq!(policy.allow_origin(Some(&value)), is_listed.then_some(value), "{origin}");
        }
        assert_eq!(policy.allow_origin(None), None);
        assert_eq!(policy.allow_origin(Some(&HeaderValue::from_bytes(b"https://\xff.example.org").unwrap())), None);
    }

    #[test]
    fn every_origin_gets_the_asterisk() {
        let policy = CorsPolicy { origins: AllowedOrigins::Any, ..policy(Vec::new()) };
        assert!(!policy.depends_on_origin());
        for origin in [None, Some(HeaderValue::from_static("null")), Some(HeaderValue::from_static("https://a.test"))] {
            assert_eq!(policy.allow_origin(origin.as_ref()).unwrap(), "*");
        }
    }
}
