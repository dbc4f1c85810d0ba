//! What a request over HTTP/2 brings otherwise than one over HTTP/1.1: brought into the form in which all
//! else reads it. Called first by `gateway`, in place of what the inspector finds.

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

use crate::http::downstream::reject::Reject;

/// Bounds the number of fields, each piece of a cookie being one, and joins those pieces (RFC 9113, 8.2.3).
pub fn unify(headers: &mut HeaderMap, max_headers: usize) -> Result<(), Reject> {
    if headers.len() > max_headers {
        return Err(Reject::MaxHeaders);
    }
    if has_padded(headers) {
        return Err(Reject::FieldPadding);
    }
    let mut crumbs = headers.get_all(COOKIE).iter();
    if let (Some(first), Some(second)) = (crumbs.next(), crumbs.next()) {
        let mut cookie = first.as_bytes().to_vec();
        for crumb in std::iter::once(second).chain(crumbs) {
            cookie.extend_from_slice(b"; ");
            cookie.extend_from_slice(crumb.as_bytes());
        }
        let cookie = HeaderValue::try_from(cookie).map_err(|_| Reject::MaxHeaders)?;
        headers.insert(COOKIE, cookie);
    }
    Ok(())
}

/// Whether a value begins or ends with a space or tab, which makes a message malformed (RFC 9113, 8.2.1): a
/// server over HTTP/1.1 would not see it, so that one value would have many forms here.
pub fn has_padded(fields: &HeaderMap) -> bool {
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
            assert_eq!(unify(&mut headers, 2), if padded { Err(Reject::FieldPadding) } else { Ok(()) }, "{value:?}");
        }
    }

    #[test]
    fn crumbs_are_counted_and_then_joined() {
        let mut headers = HeaderMap::new();
        for crumb in ["a=1", "b=2; c=3", "d="] {
            headers.append(COOKIE, HeaderValue::from_static(crumb));
        }
        headers.append("x-other", HeaderValue::from_static("1"));
        assert_eq!(unify(&mut headers.clone(), 3), Err(Reject::MaxHeaders));
        assert_eq!(unify(&mut headers, 4), Ok(()));
        assert_eq!(headers.get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3; d="]);
        assert_eq!(headers.len(), 2);
    }
}
