//! Problem documents (RFC 9457), and the facts of limit refusals that every format shows.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::ends::End;
use crate::limiting::answer::NEVER;
use crate::limiting::key::KeyPart;
use crate::limiting::limit::Limit;
use crate::limiting::limit::refuse::{Refuse, RefusePlaceholder};
use crate::limiting::source::Source;
use crate::limiting::{LimitResult, Outcome, STORE_RETRY_MS, Verdict};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::render::ratelimit::ceil_seconds;
use crate::route::Route;

/// Problem types registered for rate limits (draft-ietf-httpapi-ratelimit-headers-11).
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Returns a problem document of type `about:blank`: only status, detail and hint.
pub fn problem_document(status: StatusCode, detail: &str, hint: Option<&'static str>) -> String {
    build_problem("about:blank", status, detail, hint).to_string()
}

/// Returns the problem document for a request that is refused because capacity is reduced for a while.
pub fn capacity_problem(status: StatusCode, detail: &str, retry_ms: i64, hint: Option<&'static str>) -> String {
    let mut problem = build_problem(REDUCED_CAPACITY, status, detail, hint);
    problem["retry-after-ms"] = retry_ms.into();
    problem.to_string()
}

fn build_problem(kind: &str, status: StatusCode, detail: &str, hint: Option<&'static str>) -> Value {
    let mut problem = json!({
        "type": kind,
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
    });
    if let Some(setting) = hint {
        problem["setting"] = setting.into();
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
    let end = outcome.end();
    if end.is_configurable() { refuse.status } else { end.status() }
}

/// Returns the problem document for a limit's refusal.
pub fn limit_problem(
    status: StatusCode,
    route: &Route,
    verdict: &Verdict,
    (limit, outcome): (&Limit, Outcome),
    (hint, request_id): (Option<&'static str>, Option<&str>),
) -> String {
    let kind = match outcome.end() {
        End::StoreDown => REDUCED_CAPACITY,
        end if end.is_configurable() => QUOTA_EXCEEDED,
        _ => "about:blank",
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
        write_string_member(&mut problem, "setting", setting);
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
    match outcome {
        Outcome::MissingKey { part } => {
            let part = limit.key.0.get(part).map_or_else(String::new, KeyPart::display_name);
            format!("the request lacks {part}, the key of its limit").into()
        }
        Outcome::NotInteger => {
            let names: Vec<String> = limit.integer_sources().map(Source::display_name).collect();
            let integers =
                (!names.is_empty()).then(|| format!("{} must be an integer (digits only)", names.join(" and ")));
            let array = limit.cost.counted_source().map(|source| format!("{} must be an array", source.display_name()));
            integers.into_iter().chain(array).collect::<Vec<_>>().join(", and ").into()
        }
        _ => outcome.end().row().text.into(),
    }
}

/// Adds the `headers` of `refuse`, if the limit refuses in a way that `refuse` is for. They replace what is there.
pub fn add_refuse_headers(headers: &mut HeaderMap, route: &Route, checked: &LimitResult) {
    let limit = &route.limits[checked.limit];
    if !checked.outcome.end().is_configurable() {
        return;
    }
    for (name, template) in &limit.refusal_response(&route.refuse).headers {
        let text = template.render(|placeholder, text| write_fact(*placeholder, text, route, limit, checked.outcome));
        // Names of routes may contain characters that no header has.
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    }
}

/// Appends what a placeholder of `refuse` stands for.
pub fn write_fact(placeholder: RefusePlaceholder, text: &mut String, route: &Route, limit: &Limit, outcome: Outcome) {
    match placeholder {
        RefusePlaceholder::RetryAfter => write_wait(text, retry_after_s(outcome)),
        RefusePlaceholder::Limit => text.push_str(&limit.name),
        RefusePlaceholder::Route => text.push_str(&route.name),
    }
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
