//! What a request says under a name: query parameters and cookies, read as the servers behind
//! read them, so that another spelling of the same thing is not another thing. Called by `key`,
//! `when` and costs.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::COOKIE;
use percent_encoding::percent_decode;

/// The first parameter called `name`, decoded: `%41` is `A` and `+` a space, in names too. One
/// without `=` has an empty value.
pub fn query<'q>(query: Option<&'q str>, name: &str) -> Option<Cow<'q, [u8]>> {
    query?.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (!pair.is_empty() && *decoded(key) == *name.as_bytes()).then(|| decoded(value))
    })
}

/// The first cookie called `name`, without spaces and one pair of quotes around its value.
pub fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h [u8]> {
    headers.get_all(COOKIE).iter().flat_map(|field| field.as_bytes().split(|byte| *byte == b';')).find_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (key, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
        let plain = match value {
            [b'"', inner @ .., b'"'] => inner,
            plain => plain,
        };
        (key == name.as_bytes()).then_some(plain)
    })
}

/// Undoes the encoding of forms. A `%` that encodes nothing stands for itself.
fn decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text.as_bytes());
    }
    let plussed: Vec<u8> = text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    Cow::Owned(percent_decode(&plussed).collect())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn param(text: &str, name: &str) -> Option<String> {
        query(Some(text), name).map(|value| String::from_utf8(value.into_owned()).unwrap())
    }

    #[test]
    fn the_first_parameter_counts_however_it_is_spelt() {
        for (text, value) in [
            ("act=1", Some("1")),
            ("x=1&act=2&act=3", Some("2")),
            ("%61c%74=2", Some("2")),
            ("act", Some("")),
            ("act=", Some("")),
            ("act=a+b%20c%2B", Some("a b c+")),
            ("act=1=2", Some("1=2")),
            ("act=%zz%4", Some("%zz%4")),
            ("xact=1&actx=1&a=ct", None),
            ("", None),
        ] {
            assert_eq!(param(text, "act").as_deref(), value, "{text}");
        }
        assert_eq!(param("&&=1", ""), Some("1".to_owned()));
        assert_eq!(query(None, "act"), None);
    }

    #[test]
    fn the_first_cookie_counts() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; sid=\"x y\";b"));
        headers.append(COOKIE, HeaderValue::from_static("sid=2; c = 3 "));
        let get = |name| cookie(&headers, name).map(|value| str::from_utf8(value).unwrap());
        assert_eq!((get("a"), get("sid"), get("c")), (Some("1"), Some("x y"), Some("3")));
        assert_eq!((get("b"), get("d")), (None, None));
    }
}
