//! One span: starts with a request whose trace is sampled and ends in the format of the OpenTelemetry library, with
//! the attributes of its conventions for HTTP servers. Texts are cut to a bounded length.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::telemetry::access_log::{Attempt, AttemptEnd, LogRecord};
use crate::telemetry::spans::{SpanSettings, Spans};

/// A sampled request in progress. It is exported once the request has ended.
pub struct OpenSpan {
    settings: Arc<SpanSettings>,
    trace: u128,
    span: u64,
    /// Span ID that the peer sent; the parent of this span.
    parent: Option<u64>,
}

/// Maximum length of an attribute in bytes. About ten attributes are as long as peers make them, so a span holds at
/// most 12 KiB and the queue 48 MiB.
const TEXT_MAX: usize = 1024;
/// Methods that the conventions list. Others are exported as `_OTHER`, so that clients cannot invent span names.
const METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"];

impl OpenSpan {
    /// Starts a trace.
    fn start_trace(settings: &Arc<SpanSettings>) -> OpenSpan {
        let (trace, span) = (rand::random::<u128>().max(1), rand::random::<u64>().max(1));
        OpenSpan { settings: settings.clone(), trace, span, parent: None }
    }

    /// Continues the trace of the peer.
    pub fn continue_trace(settings: &Arc<SpanSettings>, trace: u128, parent: u64) -> OpenSpan {
        OpenSpan { trace, parent: Some(parent), ..OpenSpan::start_trace(settings) }
    }

    /// Starts a trace for a random sample of requests.
    pub fn sample_trace(settings: &Arc<SpanSettings>) -> Option<OpenSpan> {
        (rand::random_range(0..1000) < settings.per_mille).then(|| OpenSpan::start_trace(settings))
    }

    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// Returns the trace id as a number.
    pub fn trace(&self) -> u128 {
        self.trace
    }

    /// Returns the `traceparent` header for upstream servers, whose spans become children of this one.
    pub fn traceparent(&self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace, self.span)
    }

    /// Ends the span with its request. `template` is the path pattern of the route.
    pub fn finish(self, spans: &Spans, record: &LogRecord, template: Option<&str>) {
        let context = |span, remote| {
            let flags = TraceFlags::SAMPLED;
            SpanContext::new(TraceId::from(self.trace), SpanId::from(span), flags, remote, TraceState::default())
        };
        let start = SystemTime::from(record.time);
        let end_time = start + record.duration;
        let error = |is_error| if is_error { Status::error("") } else { Status::Unset };
        let attempts = record.attempts.as_ref().map(|attempts| attempts.recorded_attempts()).unwrap_or_default();
        let last = attempts.len().saturating_sub(1);
        for (i, request) in attempts.into_iter().enumerate() {
            // The last attempt lasts until the end of its response.
            let after = request.ended.filter(|(_, end)| i < last || !matches!(end, AttemptEnd::Response(_)));
            let error_type = attempt_error(record, &request, i == last);
            let span = SpanData {
                span_context: context(request.id, false),
                parent_span_id: SpanId::from(self.span),
                parent_span_is_remote: false,
                span_kind: SpanKind::Client,
                name: span_name(record, None),
                start_time: request.at,
                end_time: after.map_or(end_time, |(took, _)| request.at + took).max(request.at),
                status: error(error_type.is_some()),
                attributes: attempt_attributes(record, &request, i, error_type),
                dropped_attributes_count: 0,
                events: SpanEvents::default(),
                links: SpanLinks::default(),
                instrumentation_scope: instrumentation_scope(),
            };
            spans.queue_span(self.settings.clone(), span);
        }
        let span = SpanData {
            span_context: context(self.span, false),
            parent_span_id: self.parent.map_or(SpanId::INVALID, SpanId::from),
            parent_span_is_remote: self.parent.is_some(),
            span_kind: SpanKind::Server,
            name: span_name(record, template),
            start_time: start,
            end_time,
            attributes: server_attributes(record, template),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: error(is_error(record)),
            instrumentation_scope: instrumentation_scope(),
        };
        spans.queue_span(self.settings, span);
    }
}

fn instrumentation_scope() -> InstrumentationScope {
    InstrumentationScope::builder(env!("CARGO_PKG_NAME")).build()
}

/// Returns why an attempt failed. To the client of a server, a 4xx response is an error as well.
fn attempt_error(record: &LogRecord, request: &Attempt, last: bool) -> Option<Cow<'static, str>> {
    match request.ended? {
        (_, AttemptEnd::Failed(fault)) => Some(fault.into()),
        (_, AttemptEnd::Response(status)) if status >= 400 => Some(status.to_string().into()),
        _ => record.reason.filter(|_| last && record.by_server).map(Cow::from),
    }
}

fn attempt_attributes(
    record: &LogRecord,
    request: &Attempt,
    resend: usize,
    error_type: Option<Cow<'static, str>>,
) -> Vec<KeyValue> {
    let mut all = Vec::with_capacity(8);
    method_attributes(record, |name, value| all.push(KeyValue::new(name, truncate_text(value).to_owned())));
    match request.server.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some((host, port)) => {
            all.push(KeyValue::new("server.address", host.trim_matches(['[', ']']).to_owned()));
            all.push(KeyValue::new("server.port", i64::from(port)));
        }
        None => all.push(KeyValue::new("server.address", request.server.clone())),
    }
    if let Some((_, AttemptEnd::Response(status))) = request.ended {
        all.push(KeyValue::new("http.response.status_code", i64::from(status)));
    }
    if let Some(count) = i64::try_from(resend).ok().filter(|count| *count > 0) {
        all.push(KeyValue::new("http.request.resend_count", count));
    }
    all.extend(error_type.map(|error_type| KeyValue::new("error.type", error_type.into_owned())));
    all.extend(record.upstream.clone().map(|upstream| KeyValue::new("sluicegate.upstream", upstream)));
    all
}

fn method_attributes(record: &LogRecord, mut add: impl FnMut(&'static str, &str)) {
    if is_known_method(&record.method) {
        add("http.request.method", &record.method);
    } else {
        add("http.request.method", "_OTHER");
        add("http.request.method_original", &record.method);
    }
}

fn is_known_method(method: &str) -> bool {
    METHODS.contains(&method)
}

fn span_name(record: &LogRecord, template: Option<&str>) -> Cow<'static, str> {
    let method = if is_known_method(&record.method) { &*record.method } else { "HTTP" };
    match template {
        Some(template) => format!("{method} {}", truncate_text(template)).into(),
        None => method.to_owned().into(),
    }
}

/// Returns whether the gateway or an upstream failed; client mistakes are not errors. A refused gRPC request always has
/// status 200.
fn is_error(record: &LogRecord) -> bool {
    record.status >= 500 || record.by_server
}

fn server_attributes(record: &LogRecord, template: Option<&str>) -> Vec<KeyValue> {
    let mut all = Vec::with_capacity(24);
    let mut text = |name: &'static str, value: &str| {
        if !value.is_empty() {
            all.push(KeyValue::new(name, truncate_text(value).to_owned()));
        }
    };
    method_attributes(record, &mut text);
    text("url.scheme", if record.tls.is_some() { "https" } else { "http" });
    text("url.path", &record.path);
    text("url.query", record.query.as_deref().unwrap_or_default());
    text("server.address", &record.host);
    text("client.address", &record.client.to_string());
    text("user.name", record.user.as_deref().unwrap_or_default());
    text("user_agent.original", record.user_agent.as_deref().unwrap_or_default());
    text("http.route", template.unwrap_or_default());
    if let Some(version) = record.protocol.and_then(|protocol| protocol.strip_prefix("HTTP/")) {
        text("network.protocol.name", "http");
        text(
            "network.protocol.version",
            version.strip_suffix(".0").filter(|major| matches!(*major, "2" | "3")).unwrap_or(version),
        );
    }
    if let Some(version) = record.tls {
        text("tls.protocol.name", "tls");
        text("tls.protocol.version", version.strip_prefix("TLSv").unwrap_or(version));
    }
    text("tls.cipher", record.tls_cipher.unwrap_or_default());
    text("tls.client.server_name", record.tls_name.as_deref().unwrap_or_default());
    text("tls.client.subject", record.tls_subject.as_deref().unwrap_or_default());
    if is_error(record) {
        text("error.type", record.reason.unwrap_or_else(|| error_type(record.status)));
    }
    text("sluicegate.route", &record.route);
    text("sluicegate.request_id", record.request_id.as_deref().unwrap_or_default());
    text("sluicegate.reason", record.reason.unwrap_or_default());
    text("sluicegate.setting", record.setting.unwrap_or_default());
    text("sluicegate.limit", record.limit.as_deref().unwrap_or_default());
    text("sluicegate.decision", record.decision.map(|decision| decision.label()).unwrap_or_default());
    text("sluicegate.key", record.key.as_deref().unwrap_or_default());
    text("sluicegate.upstream", record.upstream.as_deref().unwrap_or_default());
    if let Some(attempts) = &record.attempts {
        text("sluicegate.server", attempts.last_server().as_deref().unwrap_or_default());
        all.push(KeyValue::new("sluicegate.tries", i64::from(attempts.count_attempts())));
        if let Some(took) = attempts.last_duration() {
            all.push(KeyValue::new("sluicegate.upstream_ms", Value::F64(took.as_secs_f64() * 1000.0)));
        }
    }
    if let Some(took) = record.auth_time {
        all.push(KeyValue::new("sluicegate.auth_ms", Value::F64(took.as_secs_f64() * 1000.0)));
    }
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    all.push(KeyValue::new("http.response.status_code", i64::from(record.status)));
    all.push(KeyValue::new("http.request.body.size", number(record.bytes_in)));
    all.push(KeyValue::new("http.response.body.size", number(record.bytes)));
    all
}

/// Returns the error type of a response that the gateway did not cause.
fn error_type(status: u16) -> &'static str {
    match status {
        500 => "500",
        501 => "501",
        502 => "502",
        503 => "503",
        504 => "504",
        _ => "_OTHER",
    }
}

/// Cuts a text to [`TEXT_MAX`] bytes at a character boundary.
fn truncate_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(truncate_text(&"a".repeat(5000)).len(), TEXT_MAX);
        assert_eq!(truncate_text(&"\u{20ac}".repeat(5000)).len(), TEXT_MAX / 3 * 3);
        assert_eq!(truncate_text("short"), "short");
    }

    #[test]
    fn names_come_from_the_config_and_the_conventions_alone() {
        let record = |method: &str| LogRecord { method: method.to_owned(), ..LogRecord::default() };
        assert_eq!(span_name(&record("GET"), Some("/a/{id}")), "GET /a/{id}");
        assert_eq!(span_name(&record("BREW"), Some("/a")), "HTTP /a");
        assert_eq!(span_name(&record(""), None), "HTTP");
        let found = server_attributes(&record("BREW"), None);
        let has = |key: &'static str, value: &'static str| found.contains(&KeyValue::new(key, value));
        assert!(has("http.request.method", "_OTHER") && has("http.request.method_original", "BREW"));
    }

    #[test]
    fn errors_are_the_servers() {
        let record = |status, reason, by_server| LogRecord { status, reason, by_server, ..LogRecord::default() };
        for (status, reason, by_server, error) in [
            (200, None, false, None),
            (404, Some("no_route"), false, None),
            (499, Some("client_left"), false, None),
            (200, Some("exhausted"), false, None),
            (101, Some("tunnel_timeout"), false, None),
            (200, Some("slow_reader"), false, None),
            (200, Some("upstream_cut_off"), true, Some("upstream_cut_off")),
            (200, Some("upstream_connect"), true, Some("upstream_connect")),
            (503, Some("exhausted"), false, Some("exhausted")),
            (500, None, false, Some("500")),
            (599, None, false, Some("_OTHER")),
        ] {
            let record = record(status, reason, by_server);
            assert_eq!(is_error(&record), error.is_some(), "{status} {reason:?}");
            let found = server_attributes(&record, None).into_iter().find(|pair| pair.key.as_str() == "error.type");
            assert_eq!(found.map(|pair| pair.value), error.map(Value::from), "{status} {reason:?}");
        }
    }

    #[test]
    fn one_in_n_requests_is_sampled() {
        let settings = |per_mille| {
            let to = String::new();
            Arc::new(SpanSettings { to, per_mille, service: String::new(), headers: Vec::new() })
        };
        let sampled = |per_mille| {
            let settings = settings(per_mille);
            (0..10_000).filter(|_| OpenSpan::sample_trace(&settings).is_some()).count()
        };
        assert_eq!((sampled(1000), sampled(0)), (10_000, 0));
        assert!((500..1500).contains(&sampled(100)));
    }
}
