//! Values and patterns that are written in a config or in a call of the admin API: overrides, blocks, tenants,
//! conditions and sets. Each is brought into the canonical form of its source, so that it is compared with what
//! requests have. One that no request can have is a mistake: it would match nothing, without a word.

use std::net::{IpAddr, Ipv6Addr};

use crate::canonical;
use crate::geo::is_known_country;
use crate::limiting::source::canonical::{Ambiguous, canonicalize_credential, canonicalize_scheme, title_scheme};
use crate::limiting::source::inputs::trim_quotes;
use crate::limiting::source::{Prefixes, Source, SourceValue};
use crate::names::{TextFault, invalid_text};
use crate::net::Nat64;
use crate::text::push_percent_encoded;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TE, UPGRADE};
use http::{HeaderName, Method};

const CREDENTIAL_HELP: &str = "write the token alone, or the scheme and what follows it, like `Basic dXNlcjpwYXNz`";
const COUNTRY_HELP: &str = "write the two letters of ISO 3166-1, like `DE`; `XX` is an unknown country";
const HOST_HELP: &str =
    "write a name like `api.example.com`, without scheme and path, and not in Unicode but with xn--";

impl Source {
    /// Converts a written value to the form that requests have.
    ///
    /// # Errors
    /// No request can have the value. The error says so, and how it is written correctly.
    pub fn parse_written(&self, value: Vec<u8>) -> Result<SourceValue<'static>, TextFault> {
        let text = String::from_utf8_lossy(&value);
        let bytes: Vec<u8> = match self {
            Source::Ip(prefixes) => return Ok(SourceValue::Ip(prefixes.parse_written(&text)?)),
            Source::Host => canonicalize_host(&text)?.into_bytes(),
            Source::Path if text == "*" => value,
            Source::Path => canonicalize_path(&text)?.into_bytes(),
            Source::Target => canonicalize_target(&text)?.into_bytes(),
            Source::QueryString => check_query(&text).map(|()| value)?,
            Source::Method => check_method(&text).map(|()| value)?,
            Source::Country => check_country(&text).map(|()| value)?,
            Source::Header(name) => self.canonicalize_value(check_header(name, &value)?.into()).into_owned(),
            Source::Credential(_) => match canonicalize_credential(&value) {
                Ok(Some(credential)) => credential.into_owned(),
                Ok(None) | Err(Ambiguous) => {
                    return invalid_text(format!("`{text}` is not one credential"), CREDENTIAL_HELP);
                }
            },
            Source::Param(_) if ["", ".", ".."].contains(&&*text) => {
                return invalid_text(format!("no segment of a path is `{text}`"), "write one like `42`");
            }
            Source::Param(_) | Source::Query(_) | Source::Cookie(_) | Source::Form(_) | Source::Json(_)
                if value.contains(&0) =>
            {
                return invalid_text(format!("{text:?} has a zero byte, and such requests are refused"), "remove it");
            }
            // Browsers show the quotes that servers remove.
            Source::Cookie(_) => self.canonicalize_value(trim_quotes(&value).into()).into_owned(),
            _ => self.canonicalize_value(value.into()).into_owned(),
        };
        Ok(SourceValue::Bytes(bytes.into()))
    }

    /// Converts a written text, like [`Source::parse_written`].
    pub fn parse_written_text(&self, text: &str) -> Result<String, TextFault> {
        let value = self.parse_written(text.as_bytes().to_vec())?;
        Ok(String::from_utf8_lossy(&self.value_text(value)).into_owned())
    }

    /// Converts a written pattern, in which `*` stands for any characters, to one for the values of requests.
    ///
    /// # Errors
    /// The pattern can match no value.
    pub fn parse_written_wildcard(&self, pattern: &str) -> Result<String, TextFault> {
        let canonical = match self {
            Source::Host => canonicalize_host_pattern(pattern)?,
            // A path has some characters encoded, so `*%*` can match.
            Source::Path if self.has_wildcard_match(pattern) => pattern.to_owned(),
            Source::Path => canonicalize_path_pattern(pattern)?,
            Source::Method => check_method(pattern).map(|()| pattern.to_owned())?,
            Source::Header(name) if has_case_fixed(name) => pattern.to_ascii_lowercase(),
            Source::Header(name) if *name == AUTHORIZATION => {
                check_spaces(pattern.as_bytes())?;
                canonicalize_scheme_pattern(pattern)
            }
            Source::Header(_) => check_spaces(pattern.as_bytes()).map(|()| pattern.to_owned())?,
            _ => {
                let canonical = self.canonicalize_value(pattern.as_bytes().into());
                String::from_utf8_lossy(&canonical).into_owned()
            }
        };
        match self.has_wildcard_match(&canonical) {
            true => Ok(canonical),
            false => invalid_text(format!("no request has a value like `{pattern}`"), self.describe_values()),
        }
    }

    /// Returns how a written value with repeated slashes is written for routes that merge them. `None` if it has none.
    pub fn merge_written(&self, value: &str) -> Option<String> {
        if !matches!(self, Source::Path | Source::Target) {
            return None;
        }
        let path = value.split('?').next().unwrap_or_default();
        path.contains("//").then(|| canonical::repair_path(path).to_read(path).to_owned() + &value[path.len()..])
    }

    /// Checks that requests can have an integer as the value.
    ///
    /// # Errors
    /// They cannot.
    pub fn check_written_integer(&self) -> Result<(), TextFault> {
        match self {
            Source::Path => invalid_text("no path is an integer, as all start with `/`", "write a path like \"/7\""),
            Source::Country => invalid_text("no country is an integer", COUNTRY_HELP),
            _ => Ok(()),
        }
    }

    /// Describes what the values of requests look like, as a remedy.
    pub(super) fn describe_values(&self) -> String {
        match self {
            Source::Path | Source::Target => {
                "a path begins with `/`, has no `/./` or `/../`, and ends before the `?` (`query` tests parameters); \
                 what is not plain ASCII is encoded, like %C3%A9"
            }
            Source::Host => HOST_HELP,
            Source::Method => "methods are in upper case, like `GET`",
            Source::Country => COUNTRY_HELP,
            Source::Header(name) => match *name {
                AUTHORIZATION => "write the scheme as `Bearer` or `Basic`, with one space after it",
                UPGRADE => {
                    "it reads the first protocol that is not HTTP, such as `websocket`, however clients write that one"
                }
                CONTENT_LENGTH => "it is an integer, without zeros before it",
                CONNECTION => "it reads `upgrade` or `te`, whatever else clients send; `Upgrade` has the protocol",
                TE => "it reads `trailers`, whatever else clients send",
                _ => "write one that a request can have",
            },
            _ => "write one that a request can have",
        }
        .to_owned()
    }
}

/// Returns the written value if it is canonical.
fn check_spelling(written: &str, canonical: &str) -> Result<(), TextFault> {
    match written == canonical && !written.is_empty() {
        true => Ok(()),
        false => invalid_text(format!("no request has `{written}`"), format!("write `{canonical}`")),
    }
}

fn check_country(text: &str) -> Result<(), TextFault> {
    if is_known_country(text) {
        return Ok(());
    }
    let upper = text.to_ascii_uppercase();
    match upper.as_str() {
        "UK" => invalid_text(format!("no country is `{text}`"), "write `GB`"),
        "EU" => invalid_text(format!("no country is `{text}`"), "list the countries: [\"AT\", \"BE\", ...]"),
        known if is_known_country(known) => invalid_text(format!("no country is `{text}`"), format!("write `{known}`")),
        _ => invalid_text(format!("`{text}` is not the code of a country"), COUNTRY_HELP),
    }
}

fn check_method(text: &str) -> Result<(), TextFault> {
    check_spelling(text, &text.to_ascii_uppercase())?;
    if text == "CONNECT" {
        return invalid_text("CONNECT is always refused, so no limit sees it", "write a method like `GET`");
    }
    match Method::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => invalid_text(format!("`{text}` is not a method"), "write one like `GET`"),
    }
}

fn check_header(name: &HeaderName, value: &[u8]) -> Result<Vec<u8>, TextFault> {
    check_spaces(value)?;
    let text = String::from_utf8_lossy(value);
    match *name {
        HOST => match canonical::authority::parse_authority(value) {
            Some(authority) => Ok(authority.rewritten.map_or_else(|| value.to_vec(), String::into_bytes)),
            None => invalid_text(format!("`{text}` is not a host"), HOST_HELP),
        },
        CONNECTION | TE | UPGRADE => {
            let value = if *name == UPGRADE { fold_websocket(&text) } else { text.to_ascii_lowercase() };
            let source = Source::Header(name.clone());
            match source.has_match(&format!("^{}$", regex::escape(&value)), false) {
                true => Ok(value.into_bytes()),
                false => invalid_text(format!("no request has `{text}` as `{name}`"), source.describe_values()),
            }
        }
        CONTENT_LENGTH => match text.parse::<u64>() {
            Ok(length) => check_spelling(&text, &length.to_string()).map(|()| value.to_vec()),
            Err(_) => invalid_text(format!("`{text}` is not a length"), "write an integer"),
        },
        _ => Ok(value.to_vec()),
    }
}

/// Returns whether the gateway forwards a header in lower case, however clients write it.
fn has_case_fixed(name: &HeaderName) -> bool {
    [HOST, CONNECTION, TE].contains(name)
}

/// Returns a protocol as `Upgrade` names it.
fn fold_websocket(protocol: &str) -> String {
    match protocol.eq_ignore_ascii_case("websocket") {
        true => "websocket".to_owned(),
        false => protocol.to_owned(),
    }
}

/// Checks that a header can have a value: without control characters, and without spaces around it.
fn check_spaces(value: &[u8]) -> Result<(), TextFault> {
    let trimmed = value.trim_ascii();
    if trimmed.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return invalid_text("no header contains control characters", "remove them");
    }
    match trimmed.len() == value.len() {
        true => Ok(()),
        false => invalid_text("no header value begins or ends with a space", "remove the spaces around it"),
    }
}

/// Canonicalizes a pattern for a whole `Authorization` header. What stands before the first space or `*` may be a
/// scheme.
fn canonicalize_scheme_pattern(pattern: &str) -> String {
    if let Some((start, rest)) = pattern.split_once('*')
        && !start.contains([' ', '\t'])
    {
        let title = title_scheme(start.as_bytes()).unwrap_or_else(|| start.as_bytes().to_vec());
        return format!("{}*{rest}", String::from_utf8_lossy(&title));
    }
    String::from_utf8_lossy(&canonicalize_scheme(pattern.as_bytes().into())).into_owned()
}

impl Prefixes {
    /// Parses an address, or a network of the size that counts.
    fn parse_written(self, text: &str) -> Result<IpAddr, TextFault> {
        let Prefixes { v4, v6 } = self;
        let Some((address, size)) = text.split_once('/') else {
            let Ok(ip) = text.parse() else {
                let help = "write one like `192.0.2.7` or `2001:db8::7`";
                return invalid_text(format!("`{text}` is not an address"), help);
            };
            // A request has this address only without `nat64`, and then counts by its network.
            return match Nat64::default().client_of(ip) {
                client @ IpAddr::V4(_) if ip.to_canonical().is_ipv6() => invalid_text(
                    format!("`{text}` is behind NAT64, whose clients count by their IPv4 addresses"),
                    format!("write `{client}`"),
                ),
                _ => Ok(ip),
            };
        };
        let ip: Option<IpAddr> = address.parse().ok();
        let is_whole = |ip: &IpAddr| size == if ip.is_ipv4() { v4 } else { v6 }.to_string();
        match ip.filter(is_whole) {
            Some(ip) => Ok(ip),
            None => invalid_text(
                format!("`{text}` is not a network of this key: they are /{v4} and for IPv6 /{v6}"),
                "write an address, or a network of that size",
            ),
        }
    }
}

/// Canonicalizes a host name or an address, as the gateway reads them in requests.
fn canonicalize_host(text: &str) -> Result<String, TextFault> {
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return Ok(format!("[{ip}]"));
    }
    let Some(authority) = canonical::authority::parse_authority(text.as_bytes()) else {
        return invalid_text(format!("`{text}` is not a host"), HOST_HELP);
    };
    let mut host = authority.rewritten.unwrap_or_else(|| text.to_owned());
    host.truncate(authority.host_len);
    let name = text.rsplit(']').next().unwrap_or_default();
    match name.contains(':') {
        true => invalid_text("the host of a request has no port here", format!("write `{host}`")),
        false => Ok(host),
    }
}

fn canonicalize_host_pattern(pattern: &str) -> Result<String, TextFault> {
    let lower = pattern.to_ascii_lowercase();
    // Addresses of IPv6 have brackets and colons. A part of one is not checked further.
    if lower.contains(['[', ']']) && lower.bytes().all(|byte| byte.is_ascii_hexdigit() || b"[]:.*".contains(&byte)) {
        return Ok(lower);
    }
    match canonicalize_host(&lower)? {
        host if host == lower => Ok(host),
        host => invalid_text(format!("no host is `{pattern}`"), format!("write `{host}`")),
    }
}

/// Canonicalizes a path as the gateway does. Characters that may be plain or encoded are accepted in both spellings;
/// everything else must be written as requests have it.
fn canonicalize_path(text: &str) -> Result<String, TextFault> {
    let path = text.split(['?', '#']).next().unwrap_or_default();
    if !path.starts_with('/') {
        return invalid_text(
            format!("no path is `{text}`, as all start with `/`"),
            format!("write `/{}`", path.trim_start_matches(['*', '/'])),
        );
    }
    // A route with `merge_slashes = false` keeps repeated slashes.
    let canonical = canonical::keep_repeated_slashes(path);
    match path.len() == text.len() && !canonical.is_sent_rewritten() {
        true => Ok(canonical.to_read(path).to_owned()),
        false => invalid_text(format!("no request has `{text}`"), format!("write `{}`", canonical.to_read(path))),
    }
}

fn canonicalize_path_pattern(pattern: &str) -> Result<String, TextFault> {
    if pattern.contains("%2A") {
        return invalid_text("a path has `*` as it is, never as `%2A`", "match it with \"~ regex\", as \\*");
    }
    // The first star may stand for the first slash, too.
    let absolute = if pattern.starts_with('*') { format!("/{pattern}") } else { pattern.to_owned() };
    let canonical = canonicalize_path(&absolute).map_err(|fault| TextFault {
        what: format!("no path is `{pattern}`"),
        help: if absolute == pattern { fault.help } else { fault.help.replacen("`/", "`", 1) },
    })?;
    Ok(canonical[absolute.len() - pattern.len()..].to_owned())
}

/// Canonicalizes a path with its query.
fn canonicalize_target(text: &str) -> Result<String, TextFault> {
    let Some((path, query)) = text.split_once('?') else { return canonicalize_path(text) };
    let path = canonicalize_path(path)?;
    check_query_bytes(query).map(|()| format!("{path}?{query}"))
}

/// Checks a whole query.
fn check_query(text: &str) -> Result<(), TextFault> {
    match text.starts_with('?') {
        true => invalid_text("a query begins after its `?`", "leave out the `?`"),
        false => check_query_bytes(text),
    }
}

/// Checks that a query has no character that requests have encoded only. The query may be a secret, so no message has
/// it.
fn check_query_bytes(query: &str) -> Result<(), TextFault> {
    let Some(wrong) = query.chars().find(|c| !c.is_ascii_graphic() || "\"<>#".contains(*c)) else { return Ok(()) };
    let mut text = String::new();
    wrong.to_string().bytes().for_each(|byte| push_percent_encoded(&mut text, byte));
    invalid_text(
        format!("no query has the character `{}` as it is", wrong.escape_debug()),
        format!("write it as {text}"),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limiting::source::{Facts, Repeated, SourceKind};

    fn source(text: &str) -> Source {
        Source::parse(text, SourceKind::ALL).unwrap().unwrap()
    }

    /// What requests cannot have is refused with the right spelling, and what is accepted is stored as requests have
    /// it.
    #[test]
    fn written_values_are_canonical_or_refused() {
        for (name, written, result) in [
            ("ip", "10.0.0.1", Ok("10.0.0.1")),
            ("ip", "::ffff:10.0.0.1", Ok("10.0.0.1")),
            ("ip", "2001:DB8:0::1", Ok("2001:db8::")),
            ("ip", "2001:db8::/64", Ok("2001:db8::")),
            ("ip/24/56", "10.0.0.77/24", Ok("10.0.0.0")),
            ("ip", "10.0.0.0/24", Err("they are /32")),
            ("ip", "localhost", Err("not an address")),
            ("host", "API.Example.com.", Ok("api.example.com")),
            ("host", "[2001:DB8::1]", Ok("[2001:db8::1]")),
            ("host", "api.example.com:8080", Err("write `api.example.com`")),
            ("host", "http://api.example.com", Err("not a host")),
            ("host", "api.example.com:", Err("write `api.example.com`")),
            ("host", "a..b", Err("not a host")),
            ("host", "::1", Ok("[::1]")),
            ("host", "", Err("not a host")),
            ("path", "/a/b", Ok("/a/b")),
            ("path", "/a/", Ok("/a/")),
            ("path", "/caf%C3%A9", Ok("/caf%C3%A9")),
            ("path", "/a//b", Ok("/a//b")),
            ("path", "/%61//b", Err("write `/a//b`")),
            ("path", "/a/../b/.", Err("write `/b/`")),
            ("path", "/%61%2f", Err("write `/a%2F`")),
            ("path", "/café", Err("write `/caf%C3%A9`")),
            ("path", "/a?b=c", Err("write `/a`")),
            ("path", "/docs[1]", Err("write `/docs%5B1%5D`")),
            ("path", "/{a}|^\"<>\\`", Err("write `/%7Ba%7D%7C%5E%22%3C%3E%5C%60`")),
            ("path", "/a%", Err("write `/a%25`")),
            ("path", "/a;v=1/b:c@d", Ok("/a;v=1/b:c@d")),
            ("path", "/a%3Bv%3d1/b%3Ac%40d", Err("write `/a;v=1/b:c@d`")),
            ("path", "a", Err("write `/a`")),
            ("path", "/a%3Bv", Ok("/a;v")),
            ("path", "*", Ok("*")),
            ("target", "/a?b=%22", Ok("/a?b=%22")),
            ("target", "/a%40?b=%40", Ok("/a@?b=%40")),
            ("target", "/a//b?x", Ok("/a//b?x")),
            ("target", "/x?q=<1>", Err("write it as %3C")),
            ("target", "/caf%c3%a9", Err("write `/caf%C3%A9`")),
            ("target", "/x?q=é", Err("write it as %C3%A9")),
            ("query_string", "", Ok("")),
            ("query_string", "q=1&r={a}?%zz", Ok("q=1&r={a}?%zz")),
            ("query_string", "?q=1", Err("leave out")),
            ("query_string", "q=\"1 2\"", Err("write it as %22")),
            ("country", "GB", Ok("GB")),
            ("country", "uk", Err("write `GB`")),
            ("country", "EU", Err("list the countries")),
            ("country", "de", Err("write `DE`")),
            ("country", "GER", Err("not the code")),
            ("method", "GET", Ok("GET")),
            ("method", "A B", Err("not a method")),
            ("method", "get", Err("write `GET`")),
            ("header:x-a", "a b", Ok("a b")),
            ("header:host", "A.example.:8080", Ok("a.example:8080")),
            ("header:host", "a b", Err("not a host")),
            ("header:upgrade", "WebSocket", Ok("websocket")),
            ("header:upgrade", "foo/2", Ok("foo/2")),
            ("header:connection", "Upgrade", Ok("upgrade")),
            ("header:connection", "keep-alive", Err("upgrade")),
            ("header:upgrade", "h2c", Err("not HTTP")),
            ("header:upgrade", "H2C", Err("not HTTP")),
            ("header:upgrade", "HTTP/2.0", Err("not HTTP")),
            ("header:upgrade", "TLS/1.3", Err("not HTTP")),
            ("header:upgrade", "foo,bar", Err("not HTTP")),
            ("header:upgrade", "h2cx", Ok("h2cx")),
            ("method", "CONNECT", Err("GET")),
            ("header:te", "Trailers", Ok("trailers")),
            ("header:te", "gzip", Err("trailers")),
            ("header:expect", "100-Continue", Ok("100-Continue")),
            ("header:content-length", "7", Ok("7")),
            ("header:content-length", "07", Err("write `7`")),
            ("header:x-a", " a", Err("remove the spaces")),
            ("header:x-a", "a\nb", Err("control")),
            ("header:authorization", "bEARER  sk-1", Ok("Bearer sk-1")),
            ("header:authorization", "Bearer sk-1", Ok("Bearer sk-1")),
            ("header:authorization", "sk-1", Ok("sk-1")),
            ("header:x-a", "bearer  sk-1", Ok("bearer  sk-1")),
            ("credential", "bearer  sk-1", Ok("sk-1")),
            ("credential:x-api-key", "sk-1", Ok("sk-1")),
            ("credential", "Bearer a b", Err("not one credential")),
            ("credential", "Bearer", Err("not one credential")),
            ("cookie:s", "a b", Ok("a+b")),
            ("cookie:s", "\"abc\"", Ok("abc")),
            ("cookie:s", "a\0", Err("zero byte")),
            ("json:/user", "a\0", Err("zero byte")),
            ("param:id", "", Err("no segment")),
            ("param:id", "..", Err("no segment")),
            ("ip", "64:ff9b::1.2.3.4", Err("write `1.2.3.4`")),
            ("ip", "64:ff9b::/64", Ok("64:ff9b::")),
            ("query:q", " A ", Ok(" A ")),
        ] {
            let source = source(name);
            let found = source.parse_written_text(written).map_err(|fault| fault.to_string());
            match (&found, result) {
                (Ok(found), Ok(canonical)) => assert_eq!(found, canonical, "{source} {written}"),
                (Err(found), Err(words)) => assert!(found.contains(words), "{source} {written}: {found}"),
                _ => panic!("{source} {written}: {found:?}"),
            }
        }
    }

    #[test]
    fn repeated_slashes_are_merged_in_paths_alone() {
        for (name, written, merged) in [
            ("path", "/a//b///", Some("/a/b/")),
            ("path", "/a/b", None),
            ("target", "/a//b?x=//", Some("/a/b?x=//")),
            ("target", "/a?x=//", None),
            ("header:x-a", "//", None),
        ] {
            assert_eq!(source(name).merge_written(written).as_deref(), merged, "{name} {written}");
        }
    }

    #[test]
    fn wildcards_that_match_nothing_are_refused() {
        for (name, written, result) in [
            ("path", "/a*", Ok("/a*")),
            ("path", "*.php", Ok("*.php")),
            ("path", "*/admin/*", Ok("*/admin/*")),
            ("path", "/%40a*", Ok("/@a*")),
            ("path", "/é*", Err("write `/%C3%A9*`")),
            ("path", "*é", Err("write `*%C3%A9`")),
            ("path", "/a b*", Err("write `/a%20b*`")),
            ("path", "/%61*", Err("write `/a*`")),
            ("path", "/a//*", Ok("/a//*")),
            ("path", "/a/*/../b", Err("write `/a/b`")),
            ("path", "/a?*", Err("write `/a`")),
            ("path", "a*", Err("write `/a*`")),
            ("path", "/%2A*", Err("regex")),
            ("path", "*%*", Ok("*%*")),
            ("path", "*%E4*", Ok("*%E4*")),
            ("header:upgrade", "WebSocket*", Err("websocket")),
            ("header:connection", "keep*", Err("upgrade")),
            ("host", "*.example.com", Ok("*.example.com")),
            ("host", "[2001:DB8:*", Ok("[2001:db8:*")),
            ("host", "API.*", Ok("api.*")),
            ("host", "*.example.com.", Err("write `*.example.com`")),
            ("host", "*.example.com:80", Err("write `*.example.com`")),
            ("host", "*.bücher.example", Err("xn--")),
            ("method", "p*", Err("write `P*`")),
            ("header:x-a", " a*", Err("remove the spaces")),
            ("header:x-a", "bearer  a*", Ok("bearer  a*")),
            ("header:authorization", "bearer  sk-*", Ok("Bearer sk-*")),
            ("header:authorization", "BEARER*", Ok("Bearer*")),
            ("header:authorization", "sk-*", Ok("sk-*")),
            ("cookie:s", "a *", Ok("a+*")),
            ("query:q", " A*", Ok(" A*")),
        ] {
            let found = source(name).parse_written_wildcard(written).map_err(|fault| fault.to_string());
            match (&found, result) {
                (Ok(found), Ok(canonical)) => assert_eq!(found, canonical, "{name} {written}"),
                (Err(found), Err(words)) => assert!(found.contains(words), "{name} {written}: {found}"),
                _ => panic!("{name} {written}: {found:?}"),
            }
        }
    }

    proptest! {
        /// Every value that a request can have can be written, and stays the same.
        #[test]
        fn every_value_of_a_request_can_be_written(
            path in "/[/.%a-cA-C0-9@:; ~{}-]{0,12}",
            query in "[a-c=&%0-9{}|@/-]{0,8}",
            authorization in "[bB]earer {0,3}[a-z ,=]{0,6}",
        ) {
            let path = canonical::repair_path(&path).to_read(&path).to_owned();
            let mut headers = http::HeaderMap::new();
            headers.insert(AUTHORIZATION, authorization.trim().parse().unwrap());
            let facts = Facts { path: &path, query: Some(&query), ..Facts::of(&headers) };
            for name in ["path", "target", "query_string", "header:authorization"] {
                let source = source(name);
                let value = facts.text(&source, Repeated::Refuse).unwrap().unwrap().into_owned();
                let written = source.parse_written(value.clone()).map(|value| source.value_text(value).into_owned());
                prop_assert_eq!(written, Ok(value), "{}", name);
            }
        }
    }
}
