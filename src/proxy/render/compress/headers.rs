//! Which responses are compressed, judged by their heads, and how compression changes a head.

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::proxy::render::compress::negotiate::has_no_transform;
use crate::route::compress::{CompressSettings, CompressionAlgorithm};

/// Headers about the bytes of the uncompressed body: its length, its ranges and its digests (RFC 9530, RFC 3230,
/// RFC 1864).
const UNCOMPRESSED_ONLY: [HeaderName; 6] = [
    CONTENT_LENGTH,
    ACCEPT_RANGES,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
];

/// Returns whether the response is compressed for clients that accept it. `length`: of the body, if known.
pub fn is_compressible(
    status: StatusCode,
    headers: &HeaderMap,
    length: Option<u64>,
    settings: &CompressSettings,
) -> bool {
    let has_body = !status.is_informational()
        && !matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED
        );
    has_body
        && length.is_none_or(|length| length > 0 && length >= settings.min_size)
        && headers.get(CONTENT_TYPE).is_some_and(|found| settings.has_type(found.as_bytes()))
        && is_transformable(headers)
}

fn is_transformable(headers: &HeaderMap) -> bool {
    !headers.contains_key(CONTENT_ENCODING) && !headers.contains_key(CONTENT_RANGE) && !has_no_transform(headers)
}

/// Changes the head of a response whose body is compressed with `algorithm`.
pub fn mark_compressed(headers: &mut HeaderMap, algorithm: CompressionAlgorithm) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(algorithm.label()));
    remove_uncompressed_only(headers);
    weaken_etag(headers);
}

fn remove_uncompressed_only(headers: &mut HeaderMap) {
    for name in &UNCOMPRESSED_ONLY {
        headers.remove(name);
    }
}

/// Makes the ETag weak: the compressed and the uncompressed body share it, but not their bytes (RFC 9110, section
/// 8.8.1). A malformed ETag is removed.
fn weaken_etag(headers: &mut HeaderMap) {
    let Some(etag) = headers.get(ETAG).map(HeaderValue::as_bytes) else { return };
    let weak = match etag {
        [b'W', b'/', ..] => return,
        [b'"', .., b'"'] => HeaderValue::from_bytes(&[b"W/", etag].concat()).ok(),
        _ => None,
    };
    match weak {
        Some(weak) => drop(headers.insert(ETAG, weak)),
        None => drop(headers.remove(ETAG)),
    }
}

/// Changes the head of a 304 in the same way as the response that the client has stored. A 304 rarely has a
/// `Content-Type`, so `If-None-Match` tells whether the client's copy is a compressed one.
pub fn revalidate(headers: &mut HeaderMap, request: &HeaderMap, settings: &CompressSettings) {
    let is_other_type = headers.get(CONTENT_TYPE).is_some_and(|found| !settings.has_type(found.as_bytes()));
    if is_other_type || !is_transformable(headers) {
        return;
    }
    add_vary(headers);
    let Some(etag) = headers.get(ETAG).map(HeaderValue::as_bytes).filter(|etag| etag.starts_with(b"\"")) else {
        return;
    };
    let mut has_weak = false;
    for tag in request.get_all(IF_NONE_MATCH).iter().flat_map(|line| split_tags(line.as_bytes())) {
        if tag == etag {
            return;
        }
        has_weak |= tag.strip_prefix(b"W/") == Some(etag);
    }
    if has_weak {
        remove_uncompressed_only(headers);
        weaken_etag(headers);
    }
}

/// Splits a list of entity tags, which may contain commas.
fn split_tags(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    let tags = line.split(move |byte| {
        is_quoted ^= *byte == b'"';
        *byte == b',' && !is_quoted
    });
    tags.map(<[u8]>::trim_ascii)
}

/// Adds `Accept-Encoding` to `Vary`, in one line with what is there.
pub fn add_vary(headers: &mut HeaderMap) {
    let mut values = Vec::new();
    for line in headers.get_all(VARY) {
        for name in line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if name == b"*" || name.eq_ignore_ascii_case(ACCEPT_ENCODING.as_str().as_bytes()) {
                return;
            }
            if !name.is_empty() {
                values.extend_from_slice(name);
                values.extend_from_slice(b", ");
            }
        }
    }
    values.extend_from_slice(b"Accept-Encoding");
    if let Ok(values) = HeaderValue::from_bytes(&values) {
        headers.insert(VARY, values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        fields.iter().fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
            map
        })
    }

    #[test]
    fn vary_is_merged_into_one_line() {
        for (before, after) in [
            (&[][..], &["Accept-Encoding"][..]),
            (&["Origin"], &["Origin, Accept-Encoding"]),
            (&["Origin", " cookie,, X-A"], &["Origin, cookie, X-A, Accept-Encoding"]),
            (&["origin, ACCEPT-ENCODING"], &["origin, ACCEPT-ENCODING"]),
            (&["Origin", "accept-encoding"], &["Origin", "accept-encoding"]),
            (&["*"], &["*"]),
            (&["Origin, *"], &["Origin, *"]),
            (&[""], &["Accept-Encoding"]),
            (&["X-Accept-Encoding"], &["X-Accept-Encoding, Accept-Encoding"]),
        ] {
            let mut headers = map(&before.iter().map(|line| ("vary", *line)).collect::<Vec<_>>());
            add_vary(&mut headers);
            assert_eq!(headers.get_all(VARY).iter().collect::<Vec<_>>(), after, "{before:?}");
            let once = headers.clone();
            add_vary(&mut headers);
            assert_eq!(headers, once, "{before:?}");
        }
    }

    #[test]
    fn etags_become_weak() {
        for (before, after) in [
            ("\"a\"", Some("W/\"a\"")),
            ("\"\"", Some("W/\"\"")),
            ("W/\"a\"", Some("W/\"a\"")),
            ("a", None),
            ("\"", None),
            ("\"a", None),
            ("", None),
        ] {
            let mut headers = map(&[("etag", before)]);
            weaken_etag(&mut headers);
            assert_eq!(headers.get(ETAG).map(|etag| etag.to_str().unwrap()), after, "{before}");
        }
    }

    #[test]
    fn a_304_has_the_etag_that_the_client_has() {
        for (request, etag) in [
            ("W/\"a,b\"", "W/\"a,b\""),
            ("\"a,b\"", "\"a,b\""),
            ("W/\"a,b\", \"a,b\"", "\"a,b\""),
            ("\"x\", W/\"a,b\" , \"a\"", "W/\"a,b\""),
            ("*", "\"a,b\""),
            ("W/\"a\", W/\"b\"", "\"a,b\""),
        ] {
            let mut headers = map(&[("etag", "\"a,b\""), ("content-length", "9")]);
            revalidate(&mut headers, &map(&[("if-none-match", request)]), &CompressSettings::default());
            assert_eq!(headers[ETAG], etag, "{request}");
            assert_eq!(headers[VARY], "Accept-Encoding");
            assert_eq!(headers.contains_key(CONTENT_LENGTH), etag.starts_with('"'), "{request}");
        }
        for other in [("content-type", "image/png"), ("cache-control", "no-transform"), ("content-encoding", "br")] {
            let mut headers = map(&[("etag", "\"a\""), other]);
            revalidate(&mut headers, &map(&[("if-none-match", "W/\"a\"")]), &CompressSettings::default());
            assert_eq!(headers, map(&[("etag", "\"a\""), other]));
        }
    }

    #[test]
    fn only_whole_unencoded_bodies_of_listed_types_are_compressible() {
        let settings = CompressSettings::default();
        let is = |status: u16, fields: &[(&str, &str)], length| {
            is_compressible(StatusCode::from_u16(status).unwrap(), &map(fields), length, &settings)
        };
        let text = ("content-type", "text/html; charset=utf-8");
        for status in [200, 201, 203, 400, 404, 500, 502] {
            assert!(is(status, &[text], None), "{status}");
        }
        for status in [100, 101, 103, 204, 205, 206, 304] {
            assert!(!is(status, &[text], None), "{status}");
        }
        for (length, is_long_enough) in [(0, false), (1023, false), (1024, true), (u64::MAX, true)] {
            assert_eq!(is(200, &[text], Some(length)), is_long_enough, "{length}");
        }
        assert!(!is(200, &[], None) && !is(200, &[("content-type", "image/png")], None));
        for field in [
            ("content-encoding", "gzip"),
            ("content-encoding", "identity"),
            ("content-range", "bytes 0-1/2"),
            ("cache-control", "max-age=1 , No-Transform"),
        ] {
            assert!(!is(200, &[text, field], None), "{field:?}");
        }
        assert!(is(200, &[text, ("cache-control", "max-age=1, private")], None));
    }
}
