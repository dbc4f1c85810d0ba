//! Error responses in the format that the client prefers: a page for browsers, a problem document for API clients, or
//! plain text.
//!
//! Input: an error of the gateway, or an error response of an upstream server that the route intercepts. Output: the
//! response, from a file of `error_pages` or built in. `accept` chooses the format, `escape` makes values safe in it,
//! `builtin` has the default page and text, `intercept` replaces responses of upstream servers. gRPC clients and limits
//! with a `refuse` body do not get here.

mod builtin;
pub(crate) mod intercept;

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::proxy::account::body::ResponseBody;
use crate::proxy::render::escape;
use crate::proxy::steps::response::problem;
use crate::route::error_pages::{ErrorPage, ErrorPages, PageFormat, PagePlaceholder};

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The longest request id that a page shows. Trusted peers choose ids, and a page may contain one several times.
const ID_MAX: usize = 256;

/// The facts about one error.
#[derive(Clone, Copy, Debug)]
pub struct ErrorFacts<'f> {
    pub status: StatusCode,
    /// One sentence: what is wrong and, if there is a remedy, what to do.
    pub detail: &'f str,
    /// The request id, if the access log, a span or the list of refusals has it.
    pub request_id: Option<&'f str>,
    /// The value of `Retry-After` in seconds.
    pub retry_after: Option<i64>,
}

/// Returns the request id that a page may show: one that is short and has visible ASCII only.
pub fn showable_id(id: &HeaderValue) -> Option<&str> {
    // A header may also contain tabs, which JSON does not.
    id.to_str().ok().filter(|id| (1..=ID_MAX).contains(&id.len()) && !id.contains('\t'))
}

/// Builds the response to an error. `problem`: the problem document for clients that prefer JSON.
pub fn build_response(
    facts: &ErrorFacts,
    format: PageFormat,
    pages: Option<&ErrorPages>,
    problem: impl FnOnce() -> String,
) -> Response<ResponseBody> {
    let (headers, body) = build_page(facts, format, pages, problem);
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = facts.status;
    *response.headers_mut() = headers;
    response
}

/// Builds the headers and the body of the response to an error.
pub fn build_page(
    facts: &ErrorFacts,
    format: PageFormat,
    pages: Option<&ErrorPages>,
    problem: impl FnOnce() -> String,
) -> (HeaderMap, String) {
    let (body, content_type, is_builtin) = render(facts, format, pages, problem);
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    if let Some(wait_s) = facts.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(wait_s));
    }
    if format != PageFormat::Json {
        protect(&mut headers, format == PageFormat::Html && is_builtin);
    }
    (headers, body)
}

/// Adds the headers that keep a browser from reading a page as something else.
fn protect(headers: &mut HeaderMap, has_policy: bool) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if has_policy {
        headers.insert(CONTENT_SECURITY_POLICY, builtin::POLICY.clone());
    }
}

/// Returns the body, its type, and whether it is built in.
fn render(
    facts: &ErrorFacts,
    format: PageFormat,
    pages: Option<&ErrorPages>,
    problem: impl FnOnce() -> String,
) -> (String, HeaderValue, bool) {
    if let Some(page) = pages.and_then(|pages| pages.find(facts.status, format)) {
        let content_type = match format {
            PageFormat::Html => HTML,
            PageFormat::Json => JSON,
            PageFormat::Text => TEXT,
        };
        return (render_page(page, facts), content_type, false);
    }
    match format {
        PageFormat::Json => (problem(), problem::PROBLEM, true),
        PageFormat::Html => (builtin::render_html(facts), HTML, true),
        PageFormat::Text => (builtin::render_text(facts), TEXT, true),
    }
}

/// Returns the text of a file with its placeholders replaced. An unknown value is `-`.
fn render_page(page: &ErrorPage, facts: &ErrorFacts) -> String {
    page.text.render(|placeholder, out| match placeholder {
        PagePlaceholder::Status => out.push_str(facts.status.as_str()),
        PagePlaceholder::RetryAfter => problem::write_wait(out, facts.retry_after),
        PagePlaceholder::Reason => escape::push_escaped(out, reason(facts.status), page.format),
        PagePlaceholder::Detail => escape::push_escaped(out, facts.detail, page.format),
        PagePlaceholder::RequestId => escape::push_escaped(out, facts.request_id.unwrap_or("-"), page.format),
    })
}

fn reason(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Error")
}
