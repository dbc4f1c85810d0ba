//! The canonical form of values, for each source. Everything that is compared with the key of a request is stored in
//! this form: keys of state, overrides of the config and live ones, blocks, and keys in the admin API. So a value has
//! one budget, and one entry for it, however it is spelled.
//!
//! | source | canonical form |
//! |---|---|
//! | `ip` | the network of the prefix, as Rust formats addresses; IPv4 in IPv6 is IPv4 |
//! | `host` | lower case, without port and without a dot at the end |
//! | `path` | as the gateway forwards it: no `//`, no `.` and `..`, `%XX` only where needed and in upper case |
//! | `method` | upper case |
//! | `credential` | see [`canonicalize_credential`] |
//! | `header` | without spaces around it; `authorization` with a scheme like `Bearer`, and one space after it |
//! | `cookie` | decoded, with `+` for a space |
//! | `query`, `form`, `param`, `json` | decoded |
//! | others | as they are |

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD, URL_SAFE_NO_PAD};
use http::header::AUTHORIZATION;

use crate::canonical;
use crate::limiting::integers::ValueError;
use crate::limiting::source::{Prefixes, Source, SourceValue};

impl Source {
    /// Canonicalizes a value that was found in a request. Most are canonical already, as the gateway reads them so.
    ///
    /// Some servers read a `+` in a cookie as a space. So that this neither bypasses a limit nor refuses identifiers that
    /// contain a `+`, `+`, `%20` and `%2B` count as equal.
    pub fn canonicalize_value<'v>(&self, value: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
        match self {
            Source::Cookie(_) if value.contains(&b' ') => {
                value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect()
            }
            Source::Header(name) if *name == AUTHORIZATION => canonicalize_scheme(value),
            _ => value,
        }
    }

    /// Converts a value from an override or the admin API to the form that requests have.
    ///
    /// # Errors
    /// No request can have the value. The error says so, and how it is written correctly.
    pub fn parse_written(&self, value: Vec<u8>) -> Result<SourceValue<'static>, String> {
        let text = String::from_utf8_lossy(&value);
        let bytes: Vec<u8> = match self {
            Source::Ip(prefixes) => return Ok(SourceValue::Ip(prefixes.parse_written(&text)?)),
            Source::Host => canonicalize_host(&text)?.into_bytes(),
            Source::Path => check_spelling(&text, &canonicalize_path(&text)?)?,
            Source::Method => check_spelling(&text, &text.to_ascii_uppercase())?,
            Source::Header(_) => self.canonicalize_value(check_header(&value)?.into()).into_owned(),
            Source::Credential(_) => match canonicalize_credential(&value) {
                Ok(Some(credential)) => credential.into_owned(),
                Ok(None) | Err(Ambiguous) => return Err(format!("`{text}` is not one credential; {CREDENTIAL_HELP}")),
            },
            _ => return Ok(SourceValue::Bytes(Cow::Owned(self.canonicalize_value(value.into()).into_owned()))),
        };
        Ok(SourceValue::Bytes(bytes.into()))
    }
}

/// Base64url as lenient servers read it.
const LENIENT_BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// Servers may disagree about the value of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguous;

impl From<Ambiguous> for ValueError {
    fn from(_: Ambiguous) -> ValueError {
        ValueError::Ambiguous
    }
}

const CREDENTIAL_HELP: &str = "write the token alone, or the scheme and what follows it, like `Basic dXNlcjpwYXNz`";

/// Returns the written value if it is canonical.
fn check_spelling(written: &str, canonical: &str) -> Result<Vec<u8>, String> {
    match written == canonical && !written.is_empty() {
        true => Ok(written.as_bytes().to_vec()),
        false => Err(format!("no request has `{written}`; write `{canonical}`")),
    }
}

fn check_header(value: &[u8]) -> Result<Vec<u8>, String> {
    let trimmed = value.trim_ascii();
    if trimmed.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err("no header contains control characters; remove them".to_owned());
    }
    match trimmed.len() == value.len() {
        true => Ok(value.to_vec()),
        false => {
            Err(format!("no header value begins or ends with a space; write `{}`", String::from_utf8_lossy(trimmed)))
        }
    }
}

impl Prefixes {
    /// Parses an address, or a network of the size that counts.
    fn parse_written(self, text: &str) -> Result<IpAddr, String> {
        let Prefixes { v4, v6 } = self;
        let Some((address, size)) = text.split_once('/') else {
            return text.parse().map_err(|_| format!("`{text}` is not an address"));
        };
        let ip: Option<IpAddr> = address.parse().ok();
        let is_whole = |ip: &IpAddr| size == if ip.is_ipv4() { v4 } else { v6 }.to_string();
        ip.filter(is_whole)
            .ok_or_else(|| format!("`{text}` is no network of this key: they are /{v4} and for IPv6 /{v6}"))
    }
}

/// Canonicalizes a host name or an address, as the gateway reads them in requests.
fn canonicalize_host(text: &str) -> Result<String, String> {
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return Ok(format!("[{ip}]"));
    }
    let authority = canonical::parse_authority(text.as_bytes()).ok_or_else(|| {
        format!("`{text}` is not a host; write a name like `api.example.com`, without scheme and path")
    })?;
    let mut host = authority.rewritten.unwrap_or_else(|| text.to_owned());
    host.truncate(authority.host_len);
    let name = text.rsplit(']').next().unwrap_or_default();
    match name.contains(':') {
        true => Err(format!("the host of a request has no port here; write `{host}`")),
        false => Ok(host),
    }
}

/// Canonicalizes a path as the gateway does.
fn canonicalize_path(text: &str) -> Result<String, String> {
    let path = text.split(['?', '#']).next().unwrap_or_default();
    if !path.starts_with('/') {
        return Err(format!("`{text}` is not a path; write `/{}`", path.trim_start_matches('*')));
    }
    // A route with a lenient `strictness` accepts every fault.
    let accept = |_| Ok::<(), Infallible>(());
    match canonical::canonicalize_path(path, accept) {
        Ok(rewritten) => Ok(rewritten.unwrap_or_else(|| path.to_owned())),
        Err(never) => match never {},
    }
}

/// Canonicalizes the scheme of a whole `Authorization` header, which has no case, and the spaces after it.
fn canonicalize_scheme(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(end) = value.iter().position(is_space) else { return value };
    let mut canonical = value[..end].to_ascii_lowercase();
    canonical[..end.min(1)].make_ascii_uppercase();
    for word in value[end..].split(is_space).filter(|word| !word.is_empty()) {
        canonical.push(b' ');
        canonical.extend_from_slice(word);
    }
    if *canonical == *value { value } else { canonical.into() }
}

/// Canonicalizes the credential in a header such as `Authorization`; `None` if there is none.
///
/// - A scheme with one token after it is left out, except `Basic`: so a token is the same customer after `Bearer`, after
///   `Token`, alone, and in a header like `x-api-key`.
/// - Other credentials keep their scheme, in lower case, with one space between words.
/// - What servers may read in different ways is ambiguous: after `Bearer` or `Token` everything that is not one token, a
///   `Bearer` or `Token ` inside, which some servers search for or remove, bytes beyond ASCII, which some servers trim, and
///   base64 after `Basic` that is not the only spelling of its bytes.
pub fn canonicalize_credential(value: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Ambiguous> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let text = value.trim_ascii();
    if text.iter().any(|byte| !byte.is_ascii_graphic() && !is_space(byte)) {
        return Err(Ambiguous);
    }
    let (scheme, rest) = match text.iter().position(is_space) {
        Some(end) => (&text[..end], text[end..].trim_ascii_start()),
        None if text.is_empty() => return Ok(None),
        None if is_scheme(text, &["bearer", "token", "basic"]) => return Ok(None),
        None => (&b""[..], text),
    };
    let is_basic = is_scheme(scheme, &["basic"]);
    if !is_basic && has_hidden_scheme(scheme, rest) {
        return Err(Ambiguous);
    }
    if is_token(rest) && !is_basic && scheme.iter().all(is_token_character) {
        return Ok(Some(canonicalize_signature(rest)));
    }
    let words = || rest.split(is_space).filter(|word| !word.is_empty());
    if scheme.is_empty()
        || is_scheme(scheme, &["bearer", "token"])
        || !scheme.iter().all(is_token_character)
        || is_basic && STANDARD.decode(rest).is_err()
    {
        return Err(Ambiguous);
    }
    let mut canonical = scheme.to_ascii_lowercase();
    for word in words() {
        canonical.push(b' ');
        canonical.extend_from_slice(word);
    }
    Ok(Some(canonical.into()))
}

/// Schemes of applications that end with `Token`.
const TOKEN_SCHEMES: [&str; 7] =
    ["token", "apitoken", "api-token", "accesstoken", "access-token", "authtoken", "auth-token"];

/// Returns whether a server may find or remove a scheme at another place than the start, as in
/// `header.replace("Bearer ", "")`: to it, `sk-Bearer 1` is the token `sk-1`. `Token` is searched only where a space
/// follows, because many tokens contain the word.
fn has_hidden_scheme(scheme: &[u8], rest: &[u8]) -> bool {
    let has_bearer = |text: &[u8]| text.windows(6).any(|part| part.eq_ignore_ascii_case(b"bearer"));
    let ends_with_token = scheme.last_chunk::<5>().is_some_and(|end| end.eq_ignore_ascii_case(b"token"));
    has_bearer(rest)
        || has_bearer(scheme) && !is_scheme(scheme, &["bearer"])
        || ends_with_token && !is_scheme(scheme, &TOKEN_SCHEMES)
}

fn is_scheme(text: &[u8], schemes: &[&str]) -> bool {
    schemes.iter().any(|scheme| text.eq_ignore_ascii_case(scheme.as_bytes()))
}

/// Returns whether the byte may be part of the name of a scheme (`token` in RFC 9110).
fn is_token_character(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// Returns whether all servers read `text` as one token. Rails, for example, accepts lists separated by `,`, `;` or tabs,
/// quotes, and `token=` before the token. So `=` may only pad base64 at the end.
fn is_token(text: &[u8]) -> bool {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let token = &text[..text.len() - padding];
    !token.is_empty() && token.iter().all(|byte| byte.is_ascii_graphic() && !b",;\"'\\=".contains(byte))
}

/// Writes the signature of a JSON Web Token in its only correct spelling. Some servers accept others: with padding, with
/// other bits after the end, in the alphabet of base64, or with characters between that they skip.
fn canonicalize_signature(token: &[u8]) -> Cow<'_, [u8]> {
    let mut dots = token.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
    let (Some(_), Some(dot), None) = (dots.next(), dots.next(), dots.next()) else { return token.into() };
    let (signed, signature) = token.split_at(dot + 1);
    let character = |byte: &u8| match byte {
        b'+' => Some(b'-'),
        b'/' => Some(b'_'),
        byte if byte.is_ascii_alphanumeric() || b"-_".contains(byte) => Some(*byte),
        _ => None,
    };
    match LENIENT_BASE64URL.decode(signature.iter().filter_map(character).collect::<Vec<u8>>()) {
        Ok(bytes) if !bytes.is_empty() => [signed, URL_SAFE_NO_PAD.encode(bytes).as_bytes()].concat().into(),
        _ => token.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limiting::source::SourceKind;

    fn credential(value: &str) -> Result<Option<String>, Ambiguous> {
        canonicalize_credential(value.as_bytes())
            .map(|found| found.map(|bytes| String::from_utf8(bytes.into_owned()).unwrap()))
    }

    #[test]
    fn a_credential_has_one_form() {
        for written in [
            "Bearer sk-1",
            "bEaReR sk-1",
            "Bearer   sk-1",
            "bearer\t sk-1",
            "  sk-1 ",
            "sk-1",
            "BEARER sk-1 ",
            "Token sk-1",
            "token  sk-1",
            "JWT sk-1",
            "ApiToken sk-1",
        ] {
            assert_eq!(credential(written), Ok(Some("sk-1".to_owned())), "{written}");
        }
        for (written, canonical) in [
            ("Basic dXNlcjpwYXNz", "basic dXNlcjpwYXNz"),
            ("BASIC  dXNlcjpwYXNz", "basic dXNlcjpwYXNz"),
            ("Token 1|ab:c", "1|ab:c"),
            ("Bearer YQ==", "YQ=="),
            ("Bearer my-token-1", "my-token-1"),
            ("Basic QmVhcmVyOng=", "basic QmVhcmVyOng="),
            ("ApiKey id=1", "apikey id=1"),
            ("Bearer a.b.ab8", "a.b.ab8"),
            ("Bearer a.b.ab9", "a.b.ab8"),
            ("Bearer a.b.a!b9==", "a.b.ab8"),
            ("Bearer a.b.+/Z~", "a.b.-_Y"),
            ("Bearer a.b.c.ab9", "a.b.c.ab9"),
            ("Bearer a.b.", "a.b."),
            ("Digest  username=\"a\",   realm=\"b\"", "digest username=\"a\", realm=\"b\""),
        ] {
            assert_eq!(credential(written).as_ref().map(|found| found.as_deref()), Ok(Some(canonical)), "{written}");
        }
        for absent in ["", "  ", "Bearer", "basic ", "Token"] {
            assert_eq!(credential(absent), Ok(None), "{absent}");
        }
        for ambiguous in [
            "Bearer a b",
            "Bearer a,b",
            "Bearer a, Bearer b",
            "a,b",
            // Rails reads all of these as sk-1, and Laravel and others search for `Bearer`.
            "Bearer sk-1;x=1",
            "Bearer \"sk-1\"",
            "Bearer token=sk-1",
            "Token token=\"sk-1\"",
            "Token sk-1;",
            "Token sk-1, x",
            "token=sk-1",
            "\"sk-1\"",
            "Digest Bearer sk-1",
            "Digest x, xBearer sk-1",
            // Others remove `Bearer ` or `Token ` wherever it stands.
            "xBearer sk-1",
            "s\tBearer k-1",
            "sBEARER k-1",
            "sBearerk-1",
            "Token sBearerk-1",
            "Bearer sbearerk-1",
            "sToken k-1",
            "stoken  k-1",
            "sToken kToken -1",
            "Bearer =",
            "Bearer sk-1\u{a0}",
            "Bearer\u{85} sk-1",
            "Bear/er sk-1",
            "Basic dXNlcjpwYXNz=",
            "Basic dXNlcjpwYXN",
            "Basic dXNl cjpwYXNz",
            "Basic dXNlcjpwYXN6!",
            "Basic YR==",
        ] {
            assert_eq!(credential(ambiguous), Err(Ambiguous), "{ambiguous}");
        }
    }

    /// What requests cannot have is refused with the right spelling, and what is accepted is stored as requests have it.
    #[test]
    fn written_values_are_canonical_or_refused() {
        for (source, written, result) in [
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
            ("path", "/a//b", Err("write `/a/b`")),
            ("path", "/a/../b/.", Err("write `/b/`")),
            ("path", "/%61%2f", Err("write `/a%2F`")),
            ("path", "/café", Err("write `/caf%C3%A9`")),
            ("path", "/a?b=c", Err("write `/a`")),
            ("path", "/docs[1]", Err("write `/docs%5B1%5D`")),
            ("path", "/{a}|^\"<>\\`", Err("write `/%7Ba%7D%7C%5E%22%3C%3E%5C%60`")),
            ("path", "/a%", Err("write `/a%25`")),
            ("path", "/a;v=1/b:c@d", Ok("/a;v=1/b:c@d")),
            ("path", "a", Err("write `/a`")),
            ("method", "GET", Ok("GET")),
            ("method", "get", Err("write `GET`")),
            ("header:x-a", "a b", Ok("a b")),
            ("header:x-a", " a", Err("write `a`")),
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
            ("query:q", " A ", Ok(" A ")),
        ] {
            let source = Source::parse(source, SourceKind::ALL).unwrap().unwrap();
            let found = source
                .parse_written(written.as_bytes().to_vec())
                .map(|value| String::from_utf8(source.value_text(value).into_owned()).unwrap());
            match (&found, result) {
                (Ok(found), Ok(canonical)) => assert_eq!(found, canonical, "{source} {written}"),
                (Err(found), Err(words)) => assert!(found.contains(words), "{source} {written}: {found}"),
                _ => panic!("{source} {written}: {found:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn canonical_forms_are_stable(text in "[/.%a-fA-F0-9é ?~-]{0,12}", credential in "[bB]earer? {0,3}[a-z ,=]{0,6}") {
            if let Ok(path) = canonicalize_path(&text) {
                prop_assert_eq!(canonicalize_path(&path), Ok(path.clone()));
            }
            if let Ok(Some(once)) = canonicalize_credential(credential.as_bytes()) {
                prop_assert_eq!(canonicalize_credential(&once), Ok(Some(Cow::Borrowed(&*once))));
            }
        }
    }
}
