//! Values in the body of a request: form fields and JSON values. A body that servers could interpret differently is
//! refused, because otherwise it would bypass the limit. `proxy` reads the bytes.

use std::fmt;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde::Deserialize;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};

use crate::limiting::unreadable_body::UnreadableBody;

/// The body of a request, if its limits read it.
#[derive(Clone, Copy, Debug, Default)]
pub enum BodyFacts<'a> {
    /// There is no body, or no limit reads it.
    #[default]
    None,
    Form(&'a str),
    /// A complete and valid document.
    Json(&'a [u8]),
    UnreadableBody(UnreadableBody),
}

/// Format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    Form,
    Json,
}

impl BodyKind {
    /// Determines the format from the content type.
    ///
    /// # Errors
    /// The content type is another or ambiguous, or the body is encoded.
    pub fn from_headers(headers: &HeaderMap) -> Result<BodyKind, UnreadableBody> {
        let mut types = headers.get_all(CONTENT_TYPE).iter();
        let (Some(line), None) = (types.next(), types.next()) else { return Err(UnreadableBody::Type) };
        let text = line.to_str().map_err(|_| UnreadableBody::Type)?.to_ascii_lowercase();
        let mut parts = text.split(';');
        let kind = match parts.next().unwrap_or_default().trim() {
            "application/x-www-form-urlencoded" => BodyKind::Form,
            "application/json" => BodyKind::Json,
            other if other.ends_with("+json") && !is_ambiguous_json_type(other) => BodyKind::Json,
            _ => return Err(UnreadableBody::Type),
        };
        let foreign = |part: &str| {
            let (name, charset) = part.split_once('=').unwrap_or((part, ""));
            name.trim().starts_with("charset")
                && !matches!(charset.trim().trim_matches('"'), "utf-8" | "utf8" | "us-ascii")
        };
        match parts.any(foreign) || has_content_coding(headers) {
            true => Err(UnreadableBody::Type),
            false => Ok(kind),
        }
    }

    /// Checks a body of this format.
    pub fn check_body(self, bytes: &[u8]) -> BodyFacts<'_> {
        let read = match self {
            BodyKind::Form => str::from_utf8(bytes).ok().filter(|text| !looks_like_json(text)).map(BodyFacts::Form),
            // Parsing into `IgnoredAny` would not validate the values that it skips, and a `Value` takes many times the
            // memory of the body.
            BodyKind::Json => serde_json::from_slice::<ValidJson>(bytes).ok().map(|_| BodyFacts::Json(bytes)),
        };
        read.unwrap_or(BodyFacts::UnreadableBody(UnreadableBody::Malformed))
    }
}

/// A valid JSON document, of which nothing is kept.
struct ValidJson;

impl<'de> Deserialize<'de> for ValidJson {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<ValidJson, D::Error> {
        reader.deserialize_any(ValidJson)
    }
}

impl<'de> Visitor<'de> for ValidJson {
    type Value = ValidJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_unit<E: Error>(self) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ValidJson, A::Error> {
        while items.next_element::<ValidJson>()?.is_some() {}
        Ok(ValidJson)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<ValidJson, A::Error> {
        while members.next_entry::<ValidJson, ValidJson>()?.is_some() {}
        Ok(ValidJson)
    }
}

/// Returns whether servers may find two media types in the text, or treat it as a form.
fn is_ambiguous_json_type(media_type: &str) -> bool {
    media_type.contains([',', ' ', '\t']) || ["urlencoded", "multipart"].iter().any(|form| media_type.contains(form))
}

/// Returns whether a form starts like a JSON object or array. Servers that parse JSON regardless of the content type
/// find other names in it. Browsers escape these characters.
fn looks_like_json(form: &str) -> bool {
    form.trim_start_matches(|sign: char| sign == '\u{feff}' || sign.is_ascii_whitespace()).starts_with(['{', '['])
}

/// Returns whether the body is encoded, for example compressed.
pub fn has_content_coding(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn ambiguous_documents_are_rejected() {
        let deep = format!("{}{}", "[".repeat(4000), "]".repeat(4000));
        for document in [
            "",
            " ",
            "{",
            "{\"user\":\"a\"} x",
            "{\"user\":\"a\"}{\"user\":\"b\"}",
            "{'user':'a'}",
            "{user:\"a\"}",
            "{\"user\":\"a\",}",
            "{\"user\":NaN}",
            "{\"user\":1e999}",
            "{\"user\":01}",
            "\u{feff}{\"user\":\"a\"}",
            "{\"user\":\"a\"/*x*/}",
            "{\"user\":\"\\ud800\"}",
            "{\"user\":\"a\nb\"}",
            deep.as_str(),
        ] {
            let read = BodyKind::Json.check_body(document.as_bytes());
            assert!(matches!(read, BodyFacts::UnreadableBody(UnreadableBody::Malformed)), "{document}");
        }
        for bytes in [b"{\"user\":\"\xff\"}".as_slice(), b"{\0\"\0u\0\"\0"] {
            assert!(matches!(BodyKind::Json.check_body(bytes), BodyFacts::UnreadableBody(_)));
        }
        assert!(matches!(
            BodyKind::Form.check_body(b"user=\xff"),
            BodyFacts::UnreadableBody(UnreadableBody::Malformed)
        ));
        assert!(matches!(BodyKind::Form.check_body(b"user=a"), BodyFacts::Form("user=a")));
    }

    #[test]
    fn the_content_type_selects_the_parser() {
        const FORM: &str = "application/x-www-form-urlencoded";
        let kind = |fields: &[(HeaderName, &str)]| {
            let fields = fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
            BodyKind::from_headers(&fields.fold(HeaderMap::new(), |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            }))
        };
        for (text, expected) in [
            (FORM, Ok(BodyKind::Form)),
            ("Application/X-WWW-Form-Urlencoded ; Charset=\"UTF-8\"", Ok(BodyKind::Form)),
            ("application/json", Ok(BodyKind::Json)),
            ("application/vnd.api+json;x=1", Ok(BodyKind::Json)),
            ("application/json;charset=us-ascii", Ok(BodyKind::Json)),
            ("application/json;charset=utf-16", Err(UnreadableBody::Type)),
            ("application/x-www-form-urlencoded; charset=ibm037", Err(UnreadableBody::Type)),
            ("application/json; charset*=utf-8''utf-8; charset=utf-7", Err(UnreadableBody::Type)),
            ("application/json, text/plain", Err(UnreadableBody::Type)),
            ("text/plain, application/vnd.api+json", Err(UnreadableBody::Type)),
            ("multipart/form-data; boundary=x", Err(UnreadableBody::Type)),
            ("text/plain", Err(UnreadableBody::Type)),
            ("", Err(UnreadableBody::Type)),
        ] {
            assert_eq!(kind(&[(CONTENT_TYPE, text)]), expected, "{text}");
        }
        assert_eq!(kind(&[]), Err(UnreadableBody::Type));
        assert_eq!(kind(&[(CONTENT_TYPE, FORM), (CONTENT_TYPE, FORM)]), Err(UnreadableBody::Type));
        assert_eq!(kind(&[(CONTENT_TYPE, FORM), (CONTENT_ENCODING, "Identity")]), Ok(BodyKind::Form));
        assert_eq!(kind(&[(CONTENT_TYPE, FORM), (CONTENT_ENCODING, "gzip")]), Err(UnreadableBody::Type));
    }
}
