//! Answers the gateway makes itself: a refusal as a problem document, or in the words of the config. Called by the tail
//! of `gateway`.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::http::answer::body::Body;
use crate::http::answer::cause::Setting;
use crate::http::answer::ratelimit::seconds;
use crate::http::answer::refusal::{Refusal, reason};
use crate::limit::answer::NEVER;
use crate::limit::key::KeyPart;
use crate::limit::limits::Limit;
use crate::limit::refuse::Refuse;
use crate::limit::source::{Source, UnreadableBody};
use crate::limit::{Checked, Outcome, STORE_RETRY_MS, Verdict};
use crate::route::Route;
use crate::snapshot::Reason;

/// Problem types registered for rate limits (draft-ietf-httpapi-ratelimit-headers-11).
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

impl Refusal {
    /// The answer; what it says of limits in header fields is added by `fields`.
    /// `hint`: the setting that governs it, if the client may know.
    pub fn response(&self, route: Option<&Route>, verdict: Option<&Verdict>, hint: Option<Setting>) -> Response<Body> {
        if let (Refusal::Limited, Some(route), Some(verdict)) = (self, route, verdict)
            && let Some(checked) = verdict.strictest(&route.limits)
        {
            return limited(route, verdict, checked, hint);
        }
        let status = self.status();
        fixed(status, about(status, self.detail(), hint), PROBLEM)
    }
}

/// A problem document that says no more than its status and why.
pub fn about(status: StatusCode, detail: &str, hint: Option<Setting>) -> String {
    let mut problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
    });
    if let Some(setting) = hint {
        problem["setting"] = setting.label().into();
    }
    problem.to_string()
}

pub const PROBLEM_TYPE: &str = "application/problem+json";
const PROBLEM: HeaderValue = HeaderValue::from_static(PROBLEM_TYPE);

/// Seconds to wait: at least 1, rounded up, so never early but where the wait is a guess (who ends when at a limit of
/// concurrency, when the store is back); `None` when waiting cannot help.
pub fn retry_after(outcome: Outcome) -> Option<i64> {
    match outcome {
        Outcome::Closed => Some(seconds(STORE_RETRY_MS)),
        // Somebody's turn comes sooner or later; nobody knows who takes the seat then.
        Outcome::NoSeat => Some(1),
        _ => match outcome.answer()?.retry_ms {
            NEVER => None,
            wait_ms => Some(seconds(wait_ms)),
        },
    }
}

fn limited(route: &Route, verdict: &Verdict, checked: &Checked, hint: Option<Setting>) -> Response<Body> {
    let (limit, outcome) = (&route.limits[checked.limit], checked.outcome);
    let refuse = limit.refuse(&route.refuse);
    let status = limited_status(refuse, outcome);
    let wait = retry_after(outcome);
    let mut response = match &refuse.body {
        Some(template)
            if matches!(outcome, Outcome::Store(_) | Outcome::Local(_) | Outcome::Blocked | Outcome::NoSeat) =>
        {
            let wait = wait.map_or_else(|| "-".to_owned(), |wait| wait.to_string());
            let text = template
                .replace("{retry_after}", &wait)
                .replace("{limit}", &limit.name)
                .replace("{route}", &route.name);
            fixed(status, text, refuse.content_type.clone())
        }
        _ => fixed(status, problem(status, route, verdict, (limit, outcome), hint), PROBLEM),
    };
    if let Some(wait) = wait {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait));
    }
    response
}

/// The status of a limit's refusal.
pub fn limited_status(refuse: &Refuse, outcome: Outcome) -> StatusCode {
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

fn problem(
    status: StatusCode,
    route: &Route,
    verdict: &Verdict,
    (limit, outcome): (&Limit, Outcome),
    hint: Option<Setting>,
) -> String {
    let kind = match outcome {
        Outcome::Closed => REDUCED_CAPACITY,
        Outcome::MissingKey { .. } | Outcome::RepeatedKey | Outcome::NotInteger | Outcome::UnreadableKey(_) => {
            "about:blank"
        }
        _ => QUOTA_EXCEEDED,
    };
    // By hand: a refusal is to cost as little as it can, and neither names nor fixed texts need an escape.
    let mut problem = String::with_capacity(256);
    problem.push('{');
    // Retry-After knows whole seconds only; many limits let the next request in much sooner.
    if let Some(answer) = outcome.answer().filter(|answer| answer.retry_ms != NEVER) {
        member(&mut problem, "retry-after-ms", itoa::Buffer::new().format(answer.retry_ms));
    }
    member(&mut problem, "status", status.as_str());
    if let Some(setting) = hint {
        string_member(&mut problem, "setting", setting.label());
    }
    match title(outcome, limit) {
        Cow::Borrowed(text) => string_member(&mut problem, "title", text),
        Cow::Owned(text) => member(&mut problem, "title", &Value::String(text).to_string()),
    }
    string_member(&mut problem, "type", kind);
    member(&mut problem, "violated-policies", "[");
    for (place, limit) in verdict.violated(&route.limits).enumerate() {
        problem.push_str(if place == 0 { "\"" } else { ",\"" });
        problem.push_str(&limit.name);
        problem.push('"');
    }
    problem.push_str("]}");
    problem
}

/// The name of a member of an object, and its value or the start of that.
fn member(object: &mut String, name: &str, value: &str) {
    object.push_str(if object.len() == 1 { "\"" } else { ",\"" });
    object.push_str(name);
    object.push_str("\":");
    object.push_str(value);
}

/// With a value that needs no escape.
fn string_member(object: &mut String, name: &str, value: &str) {
    member(object, name, "\"");
    object.push_str(value);
    object.push('"');
}

/// Why `limit` refuses, in words.
pub fn title(outcome: Outcome, limit: &Limit) -> Cow<'static, str> {
    let title = match (outcome, reason(outcome)) {
        (Outcome::MissingKey { part }, _) => {
            let part = limit.key.0.get(part).map_or_else(String::new, KeyPart::told);
            return format!("the request lacks {part}, which its limit is keyed by").into();
        }
        (Outcome::NotInteger, _) => {
            let names: Vec<String> = limit.integers().map(Source::told).collect();
            return format!("{} must be an integer, in digits alone", names.join(" and ")).into();
        }
        (Outcome::UnreadableKey(UnreadableBody::TooLong), _) => {
            "the request body is longer than its limit reads, see max_key_body"
        }
        (Outcome::UnreadableKey(UnreadableBody::Type), _) => {
            "the request body is of a type, charset or coding that its limit does not read"
        }
        (Outcome::UnreadableKey(UnreadableBody::Malformed), _) => "the request body is not what its content type says",
        (_, Reason::StoreDown) => "the limit store is away and this route closes without it",
        (_, Reason::RepeatedKey) => {
            "the request says more than once, or in a way that servers read differently, what its limit reads"
        }
        (_, Reason::NeverFits) => "the request costs more than its quota ever holds",
        (_, Reason::Blocked) => "the quota of this client is 0",
        (_, Reason::MaxDelayed) => "as many requests as may are waiting for their turn",
        _ => "request quota exceeded",
    };
    title.into()
}

/// An answer with a body known in full.
pub fn fixed(status: StatusCode, body: impl Into<Bytes>, content_type: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
