//! Reads the credentials of the `Basic` scheme (RFC 7617) from the headers of a request.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::auth::password_hash::PASSWORD_MAX;
use crate::auth::{USER_MAX, is_valid_user};
use crate::ends::End;

/// User and password that a client sent. `Debug` is not implemented, because a log must not contain the password.
#[derive(PartialEq)]
pub struct Credentials {
    pub user: String,
    /// Usually UTF-8, but some clients send Latin-1.
    pub password: Vec<u8>,
}

/// Some clients omit the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Longest token in Base64 with padding.
const TOKEN_MAX: usize = (USER_MAX + 1 + PASSWORD_MAX).div_ceil(3) * 4;

impl Credentials {
    /// Reads the credentials. Another scheme counts as none.
    ///
    /// # Errors
    /// There are no credentials; or they are malformed or too long, or servers could read them in different ways.
    pub fn from_headers(headers: &HeaderMap) -> Result<Credentials, End> {
        let mut lines = headers.get_all(AUTHORIZATION).iter();
        let line = lines.next().ok_or(End::CredentialsMissing)?;
        if lines.next().is_some() {
            return Err(End::CredentialsInvalid);
        }
        let (scheme, token) = line.as_bytes().split_at_checked(6).ok_or(End::CredentialsMissing)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return Err(End::CredentialsMissing);
        }
        Credentials::from_token(token.trim_ascii()).ok_or(End::CredentialsInvalid)
    }

    fn from_token(token: &[u8]) -> Option<Credentials> {
        if token.len() > TOKEN_MAX {
            return None;
        }
        let pair = BASE64.decode(token).ok()?;
        let colon = pair.iter().position(|byte| *byte == b':')?;
        let (user, password) = (str::from_utf8(&pair[..colon]).ok()?, &pair[colon + 1..]);
        // Programs in C would read the password only up to a zero byte.
        let is_plain = password.len() <= PASSWORD_MAX && !password.iter().any(u8::is_ascii_control);
        (is_valid_user(user) && is_plain).then(|| Credentials { user: user.to_owned(), password: password.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(lines: &[&str]) -> Result<(String, Vec<u8>), End> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(AUTHORIZATION, HeaderValue::from_str(line).unwrap());
        }
        Credentials::from_headers(&headers).map(|Credentials { user, password }| (user, password))
    }

    fn basic(pair: &[u8]) -> Result<(String, Vec<u8>), End> {
        read(&[&format!("Basic {}", BASE64.encode(pair))])
    }

    #[test]
    fn a_pair_is_split_at_its_first_colon() {
        let pair = |user: &str, password: &[u8]| Ok((user.to_owned(), password.to_vec()));
        assert_eq!(read(&["Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="]), pair("Aladdin", b"open sesame"));
        assert_eq!(read(&["bASIC   QWxhZGRpbjpvcGVuIHNlc2FtZQ "]), pair("Aladdin", b"open sesame"));
        assert_eq!(basic(b"a:b:c"), pair("a", b"b:c"));
        assert_eq!(basic(b"a:"), pair("a", b""));
        assert_eq!(basic("jos\u{e9}:\u{1f511}".as_bytes()), pair("jos\u{e9}", "\u{1f511}".as_bytes()));
        assert_eq!(basic(b"a:\xe9"), pair("a", b"\xe9"));
        assert_eq!(basic(&[b"a:".as_slice(), &[b'x'; PASSWORD_MAX]].concat()), pair("a", &[b'x'; PASSWORD_MAX]));
    }

    #[test]
    fn ambiguous_requests_are_refused() {
        for pair in [b"a".as_slice(), b"", b":b", b" a:b", b"a :b", b"a\n:b", b"a:b\0c", b"a:b\r", b"\xe9:b"] {
            assert_eq!(basic(pair), Err(End::CredentialsInvalid), "{pair:?}");
        }
        assert_eq!(basic(&[b"a:".as_slice(), &[b'x'; PASSWORD_MAX + 1]].concat()), Err(End::CredentialsInvalid));
        assert_eq!(basic(&[&[b'x'; USER_MAX + 1], b":".as_slice()].concat()), Err(End::CredentialsInvalid));
        for line in ["Basic ", "Basic !", "Basic YTpi YTpi", "Basic YTpi, Basic YTpj", "Basic YTpiA"] {
            assert_eq!(read(&[line]), Err(End::CredentialsInvalid), "{line}");
        }
        assert_eq!(read(&["Basic YTpi", "Basic YTpi"]), Err(End::CredentialsInvalid));
        assert_eq!(read(&["Basic YTpi", "Bearer x"]), Err(End::CredentialsInvalid));
        assert_eq!([read(&[]), read(&["Bearer x"]), read(&["Basic"])], [const { Err(End::CredentialsMissing) }; 3]);
    }
}
