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

#[cfg(test)]
mod tests {
    use super::*;

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
