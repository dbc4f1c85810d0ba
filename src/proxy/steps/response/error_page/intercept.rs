//! Replaces error responses of upstream servers by error pages (`intercept`).

use http::header::{
    ACCEPT_RANGES, AGE, CACHE_CONTROL, ETAG, EXPIRES, HeaderName, LAST_MODIFIED, LINK, PRAGMA, REFRESH, TRAILER, VARY,
};
use http::{HeaderMap, HeaderValue, Response};

use crate::grpc;
use crate::limiting::charges::guard::ChargeGuard;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::steps::response::error_page::{ErrorFacts, build_response};
use crate::proxy::steps::response::problem;
use crate::route::error_pages::{ErrorPages, PageFormat};

/// Headers that describe the body which is replaced, beside all that begin with `content-`.
const OF_BODY: [HeaderName; 12] = [
    ACCEPT_RANGES,
    AGE,
    CACHE_CONTROL,
    ETAG,
    EXPIRES,
    LAST_MODIFIED,
    LINK,
    PRAGMA,
    REFRESH,
    TRAILER,
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// Returns whether a response of an upstream server is replaced.
pub fn is_replaced(pages: &ErrorPages, response: &Response<ResponseBody>) -> bool {
    pages.replaces(response.status()) && !grpc::is_grpc(response.headers())
}

/// Replaces the body of a response, and the headers that describe it. The status and all other headers stay, such as
/// `Set-Cookie`, `WWW-Authenticate`, `Retry-After` and `Allow`. The rest of the server's body is read and discarded;
/// `charges` are settled by its trailers.
pub fn replace_response(
    response: &mut Response<ResponseBody>,
    charges: Option<Box<ChargeGuard>>,
    pages: &ErrorPages,
    format: PageFormat,
    request_id: Option<&str>,
) {
    let status = response.status();
    let detail = "the upstream server responded with an error";
    let facts = ErrorFacts { status, detail, request_id, retry_after: read_retry_after(response.headers()) };
    let page = build_response(&facts, format, Some(pages), || problem::problem_document(status, detail, None));
    remove_body_headers(response.headers_mut());
    let (page, page_body) = page.into_parts();
    for (name, value) in &page.headers {
        match *name {
            VARY => add_vary(response.headers_mut(), value),
            // The server's own value may be a date.
            http::header::RETRY_AFTER => {}
            _ => drop(response.headers_mut().insert(name, value.clone())),
        }
    }
    std::mem::replace(response.body_mut(), page_body).discard(charges);
}

fn remove_body_headers(headers: &mut HeaderMap) {
    let is_of_body = |name: &&HeaderName| name.as_str().starts_with("content-") || OF_BODY.contains(name);
    let names: Vec<HeaderName> = headers.keys().filter(is_of_body).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Adds to `Vary`, which the server may have set for other reasons.
fn add_vary(headers: &mut HeaderMap, value: &HeaderValue) {
    let has_it = |line: &HeaderValue| {
        line.as_bytes()
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .any(|name| name == b"*" || name.eq_ignore_ascii_case(value.as_bytes()))
    };
    if !headers.get_all(VARY).iter().any(has_it) {
        headers.append(VARY, value.clone());
    }
}

/// Returns the seconds of `Retry-After`. A date is not shown.
fn read_retry_after(headers: &HeaderMap) -> Option<i64> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?;
    text.parse::<u32>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit())).map(i64::from)
}
