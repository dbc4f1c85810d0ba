//! Every answer the gateway makes itself: one refusal, one row. Called by the tail of `gateway`.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::http::answer::body::Body;
use crate::http::answer::cause::Setting;
use crate::http::answer::ratelimit::seconds;
use crate::http::downstream::reject::Reject;
use crate::http::upstream::connect::ConnectFault;
use crate::http::upstream::course::Overflow;
use crate::limit::answer::NEVER;
use crate::limit::key::KeyPart;
use crate::limit::limits::Limit;
use crate::limit::refuse::Refuse;
use crate::limit::source::UnreadableBody;
use crate::limit::{Checked, Outcome, STORE_RETRY_MS, Verdict};
use crate::route::Route;
use crate::snapshot::Reason;

/// Why a request is not forwarded, or its exchange failed.
#[derive(Debug)]
pub enum Refusal {
    /// Not a request that every server on the path would read alike.
    Gate(Reject),
    NoRoute,
    /// The certificate of the connection is not for this host.
    Misdirected,
    /// The client's address is on the route's `deny` list.
    Denied,
    /// The route serves `max_in_flight` requests already.
    MaxInFlight,
    /// There are `max_tunnels` connections that have switched protocols already.
    MaxTunnels,
    /// The announced body is larger than the route allows.
    TooLarge,
    /// A limit refuses; the verdict says which.
    Limited,
    Upstream(UpstreamFailure),
}

/// Why no response came from upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// No server accepted a connection: the last one for this.
    Connect(ConnectFault),
    /// No server had room.
    Overflow(Overflow),
    /// A server accepted the request and closed the connection or broke HTTP.
    Broken,
    /// No response head in time.
    Timeout,
    /// The client's body is larger than the route allows.
    TooLarge,
    /// The client's body did not come in time.
    UploadTimeout,
    /// The client's body is not what its framing says.
    UploadBroken,
    /// The client went away before the end of its body.
    ClientLeft,
}

/// Problem types registered for rate limits (draft-ietf-httpapi-ratelimit-headers-11).
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

impl Refusal {
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::Gate(reject) => reject.status(),
            Refusal::NoRoute => StatusCode::NOT_FOUND,
            Refusal::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Refusal::Denied => StatusCode::FORBIDDEN,
            Refusal::MaxInFlight | Refusal::MaxTunnels | Refusal::Upstream(UpstreamFailure::Overflow(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Refusal::TooLarge | Refusal::Upstream(UpstreamFailure::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Limited => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Upstream(UpstreamFailure::Connect(ConnectFault::Descriptors)) => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Upstream(UpstreamFailure::Timeout) => StatusCode::GATEWAY_TIMEOUT,
            Refusal::Upstream(UpstreamFailure::UploadTimeout) => StatusCode::REQUEST_TIMEOUT,
            Refusal::Upstream(UpstreamFailure::UploadBroken) => StatusCode::BAD_REQUEST,
            Refusal::Upstream(UpstreamFailure::ClientLeft) => client_closed(),
            Refusal::Upstream(UpstreamFailure::Connect(_) | UpstreamFailure::Broken) => StatusCode::BAD_GATEWAY,
        }
    }

    /// One sentence for the client: what is wrong and, where there is one, the remedy.
    pub fn detail(&self) -> &'static str {
        match self {
            Refusal::Gate(reject) => reject.explanation(),
            Refusal::NoRoute => "no route takes this host, path and method",
            Refusal::Misdirected => {
                "this connection was made for another host, and its certificate is not for this one; make a new connection"
            }
            Refusal::Denied => "your address may not use this route",
            Refusal::MaxInFlight => "this route serves as many requests at once as it may; try again shortly",
            Refusal::MaxTunnels => "as many connections as may have switched protocols; try again later",
            Refusal::TooLarge | Refusal::Upstream(UpstreamFailure::TooLarge) => {
                "the request body is larger than allowed here"
            }
            Refusal::Limited => "request quota exceeded",
            Refusal::Upstream(UpstreamFailure::Connect(fault)) => connect_detail(*fault),
            Refusal::Upstream(UpstreamFailure::Overflow(Overflow::QueueFull)) => {
                "the upstream servers have as many requests as they take, and as many as may are waiting; try again shortly"
            }
            Refusal::Upstream(UpstreamFailure::Overflow(Overflow::QueueTimeout)) => {
                "no upstream server had room for the request in time; try again shortly"
            }
            Refusal::Upstream(UpstreamFailure::Broken) => "the upstream server broke off",
            Refusal::Upstream(UpstreamFailure::Timeout) => "the upstream server did not answer in time",
            Refusal::Upstream(UpstreamFailure::UploadTimeout) => "the request body did not arrive in time",
            Refusal::Upstream(UpstreamFailure::UploadBroken) => "the request body is not what its framing says",
            Refusal::Upstream(UpstreamFailure::ClientLeft) => "the request body broke off",
        }
    }

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

fn connect_detail(fault: ConnectFault) -> &'static str {
    match fault {
        ConnectFault::Refused => "no upstream server accepts connections",
        ConnectFault::Unreachable => "no upstream server can be reached",
        ConnectFault::TimedOut => "no upstream server accepted a connection in time",
        ConnectFault::UnknownName => "the name of the upstream server has no address",
        ConnectFault::NoSocket => "the socket of the upstream server does not exist",
        ConnectFault::Permission => "the gateway may not connect to the upstream server",
        ConnectFault::Tls => "the TLS handshake with the upstream server failed",
        ConnectFault::Protocol => "the upstream server does not speak HTTP/2",
        ConnectFault::MaxConnections => "the upstream servers have as many connections as they take",
        ConnectFault::Descriptors => {
            "the gateway has no file descriptors left for a connection to the upstream server; try again shortly"
        }
        ConnectFault::Resources => "the gateway has no room for another upstream connection",
    }
}

/// The metric reason of a limit's refusal.
pub fn reason(outcome: Outcome) -> Reason {
    match outcome {
        Outcome::Closed => Reason::StoreDown,
        Outcome::MissingKey { .. } => Reason::MissingKey,
        Outcome::RepeatedKey => Reason::RepeatedKey,
        Outcome::UnreadableKey(_) => Reason::UnreadableKey,
        Outcome::Blocked => Reason::Blocked,
        Outcome::NoSeat => Reason::MaxDelayed,
        _ if outcome.answer().is_some_and(|answer| answer.retry_ms == NEVER) => Reason::NeverFits,
        _ => Reason::Exhausted,
    }
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

/// nginx's number for a client that went away before its answer.
pub fn client_closed() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
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
        Outcome::RepeatedKey | Outcome::UnreadableKey(UnreadableBody::Malformed) => StatusCode::BAD_REQUEST,
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
        Outcome::MissingKey { .. } | Outcome::RepeatedKey | Outcome::UnreadableKey(_) => "about:blank",
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
