//! The canonical form of values, for each source. Everything that is compared with a value of a request is stored in
//! this form: keys of state, overrides of the config and live ones, blocks, conditions, and keys in the admin API
//! (`written`). So a value has one budget, and one entry for it, however it is spelled.
//!
//! | source | canonical form |
//! |---|---|
//! | `ip` | the network of the prefix, as Rust formats addresses; IPv4 in IPv6 is IPv4 |
//! | `host` | lower case, without port and without a dot at the end |
//! | `path`, `target` | as routes read it: no `//`, no `.` and `..`, `%XX` only where needed and in upper case |
//! | `method` | upper case |
//! | `country` | two letters in upper case; `XX` if it is unknown |
//! | `credential` | see [`canonicalize_credential`] |
//! | `header` | without spaces around it; `authorization` with a scheme like `Bearer`, and one space after it |
//! | `cookie` | decoded, with `+` for a space |
//! | `query`, `form`, `param`, `json` | decoded |
//! | others | as they are |

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD, URL_SAFE_NO_PAD};
use http::header::AUTHORIZATION;

use crate::limiting::integers::ValueError;
use crate::limiting::source::Source;

impl Source {
    /// Canonicalizes a value that was found in a request. Most are canonical already, as the gateway reads them so.
    ///
    /// Some servers read a `+` in a cookie as a space. So that this neither bypasses a limit nor refuses identifiers
    /// that contain a `+`, `+`, `%20` and `%2B` count as equal.
    pub fn canonicalize_value<'v>(&self, value: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
        match self {
            Source::Cookie(_) if value.contains(&b' ') => {
                value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect()
            }
            Source::Header(name) if *name == AUTHORIZATION => canonicalize_scheme(value),
            _ => value,
        }
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

/// Canonicalizes the scheme of a whole `Authorization` header, which has no case, and the spaces after it.
pub fn canonicalize_scheme(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
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

/// Returns a common scheme of `Authorization` as [`canonicalize_scheme`] writes it. `None` if the text is not a common
/// scheme.
pub fn title_scheme(text: &[u8]) -> Option<Vec<u8>> {
    is_scheme(text, &["bearer", "token", "basic", "digest", "negotiate", "apikey"]).then(|| {
        let mut scheme = text.to_ascii_lowercase();
        scheme[..1].make_ascii_uppercase();
        scheme
    })
}

/// Canonicalizes the credential in a header such as `Authorization`; `None` if there is none.
///
/// - A scheme with one token after it is left out, except `Basic`: so a token is the same customer after `Bearer`,
///   after `Token`, alone, and in a header like `x-api-key`.
/// - Other credentials keep their scheme, in lower case, with one space between words.
/// - What servers may read in different ways is ambiguous: after `Bearer` or `Token` everything that is not one token,
///   a `Bearer` or `Token ` inside, which some servers search for or remove, bytes beyond ASCII, which some servers
///   trim, and base64 after `Basic` that is not the only spelling of its bytes.
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

/// Returns whether all servers read `text` as one token. Rails, for example, accepts lists separated by `,`, `;` or
/// tabs, quotes, and `token=` before the token. So `=` may only pad base64 at the end.
fn is_token(text: &[u8]) -> bool {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let token = &text[..text.len() - padding];
    !token.is_empty() && token.iter().all(|byte| byte.is_ascii_graphic() && !b",;\"'\\=".contains(byte))
}

/// Writes the signature of a JSON Web Token in its only correct spelling. Some servers accept others: with padding,
/// with other bits after the end, in the alphabet of base64, or with characters between that they skip.
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

    proptest! {
        #[test]
        fn canonical_forms_are_stable(credential in "[bB]earer? {0,3}[a-z ,=]{0,6}") {
            if let Ok(Some(once)) = canonicalize_credential(credential.as_bytes()) {
                prop_assert_eq!(canonicalize_credential(&once), Ok(Some(Cow::Borrowed(&*once))));
            }
        }
    }
}
