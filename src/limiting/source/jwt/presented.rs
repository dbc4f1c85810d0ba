//! Finds the token in the value of a header. A limit must find each token that some server behind the gateway accepts,
//! or its client would have another budget with another spelling.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::IgnoredAny;

use crate::limiting::source::Ambiguous;
use crate::limiting::source::canonical::canonicalize_credential;

/// Returns the token in the value of a header, in the spelling in which it was issued: after any scheme, or alone.
/// `None` if no server finds a token there.
///
/// # Errors
/// Some servers may find a token, and others do not or find another.
pub fn read_token(field: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Ambiguous> {
    match canonicalize_credential(field) {
        Ok(Some(credential)) if !credential.contains(&b' ') => Ok(Some(credential)),
        // Servers that split the value at spaces take one of the words.
        Ok(Some(_)) if has_token_inside(field) => Err(Ambiguous),
        // A part of the text may be removed to find the token, so nothing but its dots is sure to be there.
        Err(Ambiguous) if field.split(|byte| *byte == b'.').count() > 2 => Err(Ambiguous),
        Ok(_) | Err(Ambiguous) => Ok(None),
    }
}

/// Returns whether a part of the text starts like a JSON Web Token: with an object in base64url, and two dots.
fn has_token_inside(text: &[u8]) -> bool {
    let is_of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    text.split(|byte| !is_of_token(byte)).any(|part| {
        let mut pieces = part.split(|byte| *byte == b'.');
        let head = pieces.next().unwrap_or_default();
        // An object starts with `{`, perhaps after white space.
        pieces.count() >= 2 && URL_SAFE_NO_PAD.decode(head).is_ok_and(|head| is_object(&head))
    })
}

fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(json).is_ok()
}

/// Returns the value of a header without `Bearer `.
pub fn strip_bearer(field: &[u8]) -> &[u8] {
    match field {
        [scheme @ .., _] if scheme.len() >= 7 && scheme[..7].eq_ignore_ascii_case(b"bearer ") => {
            field[7..].trim_ascii()
        }
        token => token,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_in_each_spelling_that_some_server_accepts() {
        // `{"alg":"HS256"}` and `{"sub":"a"}`.
        const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.ab8";
        let read = |text: &str| {
            let found = read_token(text.as_bytes());
            found.map(|token| token.map(|token| String::from_utf8(token.into_owned()).unwrap()))
        };
        for before in ["", "Bearer ", "bearer\t", "Bearer \t  ", "JWT ", "Token ", "Any "] {
            for after in ["", "=", "==", " "] {
                let text = format!("{before}{TOKEN}{after}");
                assert_eq!(read(&text), Ok(Some(TOKEN.to_owned())), "{text:?}");
            }
        }
        assert_eq!(read(&TOKEN.replace("ab8", "a!b9")), Ok(Some(TOKEN.to_owned())));
        for text in [
            format!("Bearer {TOKEN} x"),
            format!("Bearer x {TOKEN}"),
            format!("Bearer \"{TOKEN}\""),
            format!("Bearer {TOKEN},x"),
            format!("Bearer {TOKEN};x"),
            format!("Bearer token={TOKEN}"),
            format!("Bearer {TOKEN}\u{a0}"),
            format!("Any {TOKEN} x"),
            format!("Any x={TOKEN}"),
            format!("Any a, {TOKEN}"),
            format!("sBearer {TOKEN}"),
            format!("Digest Bearer {TOKEN}"),
            TOKEN.replace("Gci", "GcBearer i"),
            TOKEN.replacen('.', ".Bearer ", 1),
        ] {
            assert_eq!(read(&text), Err(Ambiguous), "{text:?}");
        }
        for text in [
            "",
            "Bearer",
            "Basic dXNlcjpwYXNz",
            "Bearer a b",
            "Token token=\"a\"",
            "Digest username=\"a\", uri=\"/img.min.js\"",
            "AWS4-HMAC-SHA256 Credential=A/2026/s3, SignedHeaders=host;x-amz-date, Signature=a.b.c",
            "\u{e9}",
        ] {
            assert_eq!(read(text), Ok(None), "{text:?}");
        }
    }
}
