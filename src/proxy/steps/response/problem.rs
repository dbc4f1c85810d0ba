//! Problem documents (RFC 9457), and the facts of limit refusals that every format shows.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::limiting::answer::NEVER;
use crate::limiting::key::KeyPart;
use crate::limiting::limit::Limit;
use crate::limiting::limit::refuse::Refuse;
use crate::limiting::source::{Source, UnreadableBody};
use crate::limiting::{Outcome, STORE_RETRY_MS, Verdict};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::refusal::refusal_reason;
use crate::proxy::render::ratelimit::ceil_seconds;
use crate::proxy::words::reason::Setting;
use crate::route::Route;
use crate::snapshot::Reason;

/// Problem types registered for rate limits (draft-ietf-httpapi-ratelimit-headers-11).
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Returns a problem document of type `about:blank`: only status, detail and hint.
pub fn problem_document(status: StatusCode, detail: &str, hint: Option<Setting>) -> String {
    build_problem("about:blank", status, detail, hint).to_string()
}

/// Returns the problem document for a request that is refused because capacity is reduced for a while.
pub fn capacity_problem(status: StatusCode, detail: &str, retry_ms: i64, hint: Option<Setting>) -> String {
    let mut problem = build_problem(REDUCED_CAPACITY, status, detail, hint);
    problem["retry-after-ms"] = retry_ms.into();
    problem.to_string()
}

fn build_problem(kind: &str, status: StatusCode, detail: &str, hint: Option<Setting>) -> Value {
    let mut problem = json!({
        "type": kind,
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
    });
    if let Some(setting) = hint {
        problem["setting"] = setting.label().into();
    }
    problem
}

pub const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Returns the value of `Retry-After` in seconds, rounded up and at least 1. Returns `None` if waiting cannot help.
///
/// The value is exact except for concurrency limits, full delay queues and store outages, where it is an estimate.
pub fn retry_after_s(outcome: Outcome) -> Option<i64> {
    match outcome {
        Outcome::Closed => Some(ceil_seconds(STORE_RETRY_MS)),
        // A slot in the delay queue becomes free soon, but another request may take it.
        Outcome::QueueFull => Some(1),
        _ => match outcome.answer()?.retry_ms {
            NEVER => None,
            wait_ms => Some(ceil_seconds(wait_ms)),
        },
    }
}

/// Appends the value of the placeholder `{retry_after}`: seconds, or `-` if waiting cannot help.
pub fn write_wait(text: &mut String, wait_s: Option<i64>) {
    match wait_s {
        Some(wait_s) => text.push_str(itoa::Buffer::new().format(wait_s)),
        None => text.push('-'),
    }
}

/// Returns the status of a limit's refusal.
pub fn limit_refusal_status(refuse: &Refuse, outcome: Outcome) -> StatusCode {
    match outcome {
        Outcome::Closed => StatusCode::SERVICE_UNAVAILABLE,
        Outcome::MissingKey { .. } => StatusCode::FORBIDDEN,
        Outcome::RepeatedKey | Outcome::NotInteger | Outcome::UnreadableKey(UnreadableBody::Malformed) => {
            StatusCode::BAD_REQUEST
        }
        Outcome::UnreadableKey(UnreadableBody::TooLong) => StatusCode::PAYLOAD_TOO_LARGE,
        Outcome::UnreadableKey(UnreadableBody::Type) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        _ => refuse.status,
    }
}

/// Returns the problem document for a limit's refusal.
pub fn limit_problem(
    status: StatusCode,
    route: &Route,
    verdict: &Verdict,
    (limit, outcome): (&Limit, Outcome),
    (hint, request_id): (Option<Setting>, Option<&str>),
) -> String {
    let kind = match outcome {
        Outcome::Closed => REDUCED_CAPACITY,
        Outcome::MissingKey { .. } | Outcome::RepeatedKey | Outcome::NotInteger | Outcome::UnreadableKey(_) => {
            "about:blank"
        }
        _ => QUOTA_EXCEEDED,
    };
    // Written by hand, because refusals must be cheap. Neither limit names nor fixed texts need escaping.
    let mut problem = String::with_capacity(320);
    problem.push('{');
    match request_id {
        // Trusted peers choose ids.
        Some(id) if id.contains(['"', '\\']) => write_member(&mut problem, "request_id", &Value::from(id).to_string()),
        Some(id) => write_string_member(&mut problem, "request_id", id),
        None => {}
    }
    // `Retry-After` has whole seconds only, but many limits admit the next request much sooner.
    if let Some(answer) = outcome.answer().filter(|answer| answer.retry_ms != NEVER) {
        write_member(&mut problem, "retry-after-ms", itoa::Buffer::new().format(answer.retry_ms));
    }
    write_member(&mut problem, "status", status.as_str());
    if let Some(setting) = hint {
        write_string_member(&mut problem, "setting", setting.label());
    }
    match refusal_title(outcome, limit) {
        Cow::Borrowed(text) => write_string_member(&mut problem, "title", text),
        Cow::Owned(text) => write_member(&mut problem, "title", &Value::String(text).to_string()),
    }
    write_string_member(&mut problem, "type", kind);
    write_member(&mut problem, "violated-policies", "[");
    for (place, limit) in verdict.refusing_limits(&route.limits).enumerate() {
        problem.push_str(if place == 0 { "\"" } else { ",\"" });
        problem.push_str(&limit.name);
        problem.push('"');
    }
    problem.push_str("]}");
    problem
}

/// Writes a member of a JSON object: its name, and its value or the start of its value.
fn write_member(object: &mut String, name: &str, value: &str) {
    object.push_str(if object.len() == 1 { "\"" } else { ",\"" });
    object.push_str(name);
    object.push_str("\":");
    object.push_str(value);
}

/// Writes a member whose string value needs no escaping.
fn write_string_member(object: &mut String, name: &str, value: &str) {
    write_member(object, name, "\"");
    object.push_str(value);
    object.push('"');
}

/// Returns the sentence that explains why `limit` refuses.
pub fn refusal_title(outcome: Outcome, limit: &Limit) -> Cow<'static, str> {
    let title = match (outcome, refusal_reason(outcome)) {
        (Outcome::MissingKey { part }, _) => {
            let part = limit.key.0.get(part).map_or_else(String::new, KeyPart::display_name);
            return format!("the request lacks {part}, the key of its limit").into();
        }
        (Outcome::NotInteger, _) => {
            let names: Vec<String> = limit.integer_sources().map(Source::display_name).collect();
            return format!("{} must be an integer (digits only)", names.join(" and ")).into();
        }
        (Outcome::UnreadableKey(UnreadableBody::TooLong), _) => {
            "the request body is too long to compute a limit key (max_key_body)"
        }
        (Outcome::UnreadableKey(UnreadableBody::Type), _) => {
            "the limit key is in the request body, but its type, charset or encoding is not supported"
        }
        (Outcome::UnreadableKey(UnreadableBody::Malformed), _) => "the request body does not match its content type",
        (_, Reason::StoreDown) => "the limit store is unavailable, and this route refuses requests without it",
        (_, Reason::RepeatedKey) => "the request repeats the key of its limit, or servers could read it differently",
        (_, Reason::NeverFits) => "the request costs more than its whole quota",
        (_, Reason::Blocked) => "the quota of this client is 0",
        (_, Reason::MaxDelayed) => "too many requests are already waiting",
        _ => "request quota exceeded",
    };
    title.into()
}

/// Forbids caches to store a verdict on one request, unless the response says how to store it: they must not give it to
/// others, nor keep it once a limit admits again.
pub fn forbid_caching<B>(response: &mut Response<B>) {
    response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Builds a response whose body is complete.
pub fn fixed_response(status: StatusCode, body: impl Into<Bytes>, content_type: HeaderValue) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = status;
    // These responses have no content (RFC 9110, sections 15.3.5 and 15.4.5).
    if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        response.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    response
}
