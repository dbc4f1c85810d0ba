//! Headers that HTTP/2 transmits differently from HTTP/1.1: checks them and brings them into the form of HTTP/1.1,
//! which the rest of the code reads.

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::ends::End;

/// The header in which `head_check` reports that it has encoded bytes of a path that are not UTF-8. Its value is the
/// label of that fault. No client can send it: the check refuses the name, which is not a token, but the library
/// accepts it.
pub const RAW_BYTES: HeaderName = HeaderName::from_static("\"raw-bytes");

/// Removes [`RAW_BYTES`]. Returns the fault that it states.
pub fn take_raw_bytes(headers: &mut HeaderMap) -> Option<End> {
    let label = headers.remove(RAW_BYTES)?;
    End::ALL.iter().copied().find(|reject| label == reject.label())
}

/// Checks the number of headers, counting each part of a split cookie, and joins those parts (RFC 9113, section 8.2.3).
pub fn normalize_headers(headers: &mut HeaderMap, max_headers: usize) -> Result<(), End> {
    if headers.len() > max_headers {
        return Err(End::MaxHeaders);
    }
    if has_padded_value(headers) {
        return Err(End::FieldPadding);
    }
    let mut crumbs = headers.get_all(COOKIE).iter();
    if let (Some(first), Some(second)) = (crumbs.next(), crumbs.next()) {
        let mut cookie = first.as_bytes().to_vec();
        for crumb in std::iter::once(second).chain(crumbs) {
            cookie.extend_from_slice(b"; ");
            cookie.extend_from_slice(crumb.as_bytes());
        }
        let cookie = HeaderValue::try_from(cookie).map_err(|_| End::MaxHeaders)?;
        headers.insert(COOKIE, cookie);
    }
    Ok(())
}

/// Returns true if a value begins or ends with a space or tab, which makes a message malformed (RFC 9113, section
/// 8.2.1). An HTTP/1.1 server would not see that space, so one value could have many forms in limit keys.
pub fn has_padded_value(fields: &HeaderMap) -> bool {
    let is_padding = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    fields.values().map(HeaderValue::as_bytes).any(|value| is_padding(value.first()) || is_padding(value.last()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_space_around_them_are_refused() {
        for (value, padded) in [("", false), ("a b", false), (" ", true), (" a", true), ("a\t", true), ("\ta", true)] {
            let mut headers = HeaderMap::new();
            headers.append("x", HeaderValue::from_static("1"));
            headers.append("x", HeaderValue::from_static(value));
            assert_eq!(
                normalize_headers(&mut headers, 2),
                if padded { Err(End::FieldPadding) } else { Ok(()) },
                "{value:?}"
            );
        }
    }

    #[test]
    fn crumbs_are_counted_and_then_joined() {
        let mut headers = HeaderMap::new();
        for crumb in ["a=1", "b=2; c=3", "d="] {
            headers.append(COOKIE, HeaderValue::from_static(crumb));
        }
        headers.append("x-other", HeaderValue::from_static("1"));
        assert_eq!(normalize_headers(&mut headers.clone(), 3), Err(End::MaxHeaders));
        assert_eq!(normalize_headers(&mut headers, 4), Ok(()));
        assert_eq!(headers.get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3; d="]);
        assert_eq!(headers.len(), 2);
    }
}
