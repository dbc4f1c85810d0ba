//! The access log entry of a request, and its span. The entry is opened with the request head and filled in by the
//! account of the request, which writes it at the end. Malformed heads, which never become requests, are logged here
//! too.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use http::header::{HOST, REFERER, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use jiff::Timestamp;

use crate::config::ServerSettings;
use crate::ends::End;
use crate::geo::GeoDatabase;
use crate::limiting::Verdict;
use crate::proxy::connection::upload::UploadProgress;
use crate::proxy::context::{ClientConnection, WorkerState};
use crate::proxy::words::shown_keys::{ShownKeys, WantedKeys, describe_decisions, find_deciding_check, list_affected};
use crate::proxy::words::trace;
use crate::route::Route;
use crate::snapshot::{UNMATCHED, decision_label};
use crate::telemetry::access_log::{AccessLogSettings, Attempts, LogRecord};
use crate::telemetry::metrics::Decision;
use crate::telemetry::spans::OpenSpan;
use crate::telemetry::tap::TapDecision;

/// Masks queries in spans and taps if no access log is configured.
static DEFAULT_SETTINGS: LazyLock<AccessLogSettings> = LazyLock::new(AccessLogSettings::default);

/// The access log entry and the span of a request that has not ended.
pub struct LogEntry {
    /// Gives access to the writers of log and spans. The reference count stays within one worker.
    worker: Rc<WorkerState>,
    log: Option<Arc<AccessLogSettings>>,
    span: Option<OpenSpan>,
    /// Path pattern of the route, for the span.
    template: Option<String>,
    record: LogRecord,
    /// Decisions of all limits so far, if an operator taps requests.
    decisions: Option<Vec<TapDecision>>,
    /// Progress of the request body, once it is being read.
    upload: Option<Rc<UploadProgress>>,
}

impl LogEntry {
    /// Opens an entry for a request as it arrived. `ip`: the client's address.
    pub fn open(
        client: &ClientConnection,
        server: &ServerSettings,
        ip: IpAddr,
        parts: &Parts,
        span: Option<OpenSpan>,
    ) -> Box<LogEntry> {
        let mask = &server.access_log.as_deref().unwrap_or(&DEFAULT_SETTINGS).mask;
        let Parts { method, uri, headers, version, .. } = parts;
        let authority = uri.authority().map(|authority| authority.as_str().to_owned());
        let peer = client.tls.as_ref();
        let record = LogRecord {
            client: ip,
            method: method.as_str().to_owned(),
            host: authority.or_else(|| header_text(headers, &HOST)).unwrap_or_default(),
            path: uri.path().to_owned(),
            query: uri.query().map(|query| mask.mask_query(query).into_owned()),
            protocol: Some(protocol_name(*version)),
            tls: client.tls_version(),
            tls_cipher: peer.and_then(|peer| peer.cipher),
            tls_name: peer.and_then(|peer| peer.server_name.clone()),
            tls_subject: peer.and_then(|peer| Some(peer.certificate.as_ref()?.subject.clone())),
            ..new_record()
        };
        let mut entry = Box::new(LogEntry {
            worker: client.worker.clone(),
            log: server.access_log.clone(),
            span,
            template: None,
            record,
            decisions: None,
            upload: None,
        });
        entry.record_headers(headers);
        entry
    }

    /// Records the headers that the log shows.
    pub fn record_headers(&mut self, headers: &HeaderMap) {
        let mask = &self.log.as_deref().unwrap_or(&DEFAULT_SETTINGS).mask;
        self.record.referer = header_text(headers, &REFERER).map(|referer| mask.mask_reference(&referer).into_owned());
        self.record.user_agent = header_text(headers, &USER_AGENT);
        self.record.trace_id = match &self.span {
            Some(span) => Some(span.trace_id()),
            None => trace::trace_id(headers).map(str::to_owned),
        };
    }

    /// Has the request appear in the taps of operators when it ends.
    pub fn record_for_taps(&mut self) {
        self.decisions = Some(Vec::new());
    }

    /// Records the matching route, even if the request is refused later.
    pub fn record_route(&mut self, route: &Route) {
        self.record.route.clone_from(&route.name);
        self.template = self.span.is_some().then(|| route.matcher.path.to_string());
    }

    /// Records the canonical host and path.
    pub fn record_target(&mut self, host: &str, path: &str) {
        host.clone_into(&mut self.record.host);
        path.clone_into(&mut self.record.path);
    }

    /// Records the country of the client if the log shows it.
    pub fn record_country(&mut self, geo: &GeoDatabase) {
        if self.log.as_ref().is_some_and(|log| log.shows_country()) {
            self.record.country = Some(geo.find_country(self.record.client).to_owned());
        }
    }

    /// Records the values of the facts that the settings of the log list, in their order.
    pub fn record_facts(&mut self, values: impl Iterator<Item = Option<String>>) {
        self.record.facts = values.collect();
    }

    /// Records the identity that was verified.
    pub fn record_user(&mut self, user: &str) {
        self.record.user = Some(user.to_owned());
    }

    /// Records how long the auth server took.
    pub fn record_auth_time(&mut self, time: Duration) {
        self.record.auth_time = Some(time);
    }

    /// Records the request id.
    pub fn record_request_id(&mut self, id: &HeaderValue) {
        self.record.request_id = Some(String::from_utf8_lossy(id.as_bytes()).into_owned());
    }

    /// Returns whether the log line or the span shows the request id.
    pub fn has_request_id(&self) -> bool {
        self.span.is_some() || self.log.as_ref().is_some_and(|log| log.format.shows_request_id())
    }

    /// Writes `traceparent` with the request's span as parent. Returns false if there is no span.
    pub fn set_trace_parent(&self, headers: &mut HeaderMap) -> bool {
        self.span.as_ref().map(|span| trace::set_parent(headers, span)).is_some()
    }

    /// Returns the `traceparent` for the upstream if there is a span. Each attempt replaces the span id in it by its
    /// own.
    pub fn traceparent(&self) -> Option<String> {
        self.span.as_ref().map(OpenSpan::traceparent)
    }

    /// Returns the id of the trace, if the request has a span.
    pub fn sampled_trace(&self) -> Option<u128> {
        self.span.as_ref().map(OpenSpan::trace)
    }

    /// Records the trace id that the headers have.
    pub fn record_trace_id(&mut self, headers: &HeaderMap) {
        self.record.trace_id = trace::trace_id(headers).map(str::to_owned);
    }

    /// Records the decision of the most significant limit, and the keys that the entry shows.
    pub fn record_decision(&mut self, route: &Route, verdict: &Verdict, shown: ShownKeys) {
        if self.decisions.is_some() {
            self.decisions = Some(describe_decisions(route, verdict, shown.each));
        }
        self.record.keys = shown.all;
        self.record.candidates = list_affected(route, verdict);
        let Some(check) = find_deciding_check(route, verdict) else { return };
        let limit = &route.limits[check.limit];
        self.record.limit = Some(limit.name.clone());
        self.record.decision = Some(decision_label(limit, check));
        self.record.key = shown.deciding;
        self.record.refused_by = verdict.longest_refusal(&route.limits).map(|_| limit.name.clone());
    }

    /// Returns which keys the entry, its span and taps contain.
    pub fn wanted_keys(&self) -> WantedKeys {
        let (one, all) = self.log.as_ref().map_or((false, false), |log| (log.shows_key(), log.shows_all_keys()));
        let each = self.decisions.is_some();
        WantedKeys { deciding: one || each || self.span.is_some(), all, each }
    }

    /// Records that the route's `allow` list exempted the request from its limits.
    pub fn record_bypass(&mut self) {
        self.record.decision = Some(Decision::Bypass);
    }

    /// Records the request body, whose bytes are counted at the end.
    pub fn record_upload(&mut self, upload: &Rc<UploadProgress>) {
        self.upload = Some(upload.clone());
    }

    /// Returns true if the request body had invalid framing.
    pub fn is_body_malformed(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.is_malformed())
    }

    /// Records the upstream that the request is sent to. Returns the list in which the exchange records its attempts.
    pub fn record_upstream(&mut self, upstream: &str) -> Rc<Attempts> {
        self.record.upstream = Some(upstream.to_owned());
        self.record.attempts.get_or_insert_with(|| Rc::new(Attempts::new(self.span.is_some()))).clone()
    }

    /// Records why the request was refused or not completed.
    pub fn record_end(&mut self, end: End) {
        (self.record.reason, self.record.setting) = (Some(end.label()), end.row().setting);
        self.record.by_server = end.is_server_fault();
    }

    /// Records the status of the response.
    pub fn record_status(&mut self, status: StatusCode) {
        self.record.status = status.as_u16();
    }

    /// Counts bytes of the response body.
    pub fn add_sent_bytes(&mut self, bytes: u64) {
        self.record.bytes += bytes;
    }

    /// Records how many bytes the response body had so far before it was compressed.
    pub fn record_uncompressed(&mut self, bytes: u64) {
        self.record.bytes_uncompressed = Some(bytes);
    }

    /// Writes the entry, offers it to taps, and ends the span.
    pub fn write(&mut self, started: Instant) {
        self.record.duration = started.elapsed();
        self.record.bytes_in = self.upload.as_ref().map_or(0, |upload| upload.received_bytes());
        if let Some(settings) = self.log.take() {
            self.worker.process.access_log.queue_line(settings, &self.record);
        }
        if let Some(decisions) = self.decisions.take() {
            self.worker.process.taps.publish(&self.record, &decisions);
        }
        if let Some(span) = self.span.take() {
            span.finish(&self.worker.process.spans, &self.record, self.template.as_deref());
        }
    }
}

/// Logs an HTTP/1.1 head that the parser rejected. `bytes`: the part that has arrived.
pub fn log_rejected_head(client: &ClientConnection, bytes: &[u8], status: StatusCode, end: End) {
    write_rejected(client, status, end, |record, settings| {
        if let Some((method, target)) = parse_request_line(bytes) {
            record.method = method.to_owned();
            record.host = find_host(bytes).unwrap_or_default();
            set_target(record, &target, settings);
        }
    });
}

/// Returns the `Host` of a head that cannot be parsed, as the client wrote it.
fn find_host(head: &[u8]) -> Option<String> {
    let mut lines = head.split(|byte| *byte == b'\n').skip(1);
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(HOST.as_str().len() + 1)?;
        name.eq_ignore_ascii_case(b"host:").then(|| value.trim_ascii())
    })?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Logs a malformed HTTP/2 or HTTP/3 head. `pseudo_headers`: its `:method`, `:authority` and `:path`, empty if absent.
pub fn log_malformed_stream_head(
    client: &ClientConnection,
    version: Version,
    pseudo_headers: (&[u8], &[u8], &[u8]),
    status: StatusCode,
    end: End,
) {
    let (method, authority, path) = pseudo_headers;
    write_rejected(client, status, end, |record, settings| {
        record.method = String::from_utf8_lossy(method).into_owned();
        record.host = String::from_utf8_lossy(authority).into_owned();
        record.protocol = Some(protocol_name(version));
        set_target(record, &String::from_utf8_lossy(path), settings);
    });
}

fn write_rejected(
    client: &ClientConnection,
    status: StatusCode,
    end: End,
    describe: impl FnOnce(&mut LogRecord, &AccessLogSettings),
) {
    let (view, taps) = (client.worker.view(), &client.worker.process.taps);
    let log = view.snapshot.config.server.access_log.as_ref();
    let is_tapped = taps.is_active();
    if log.is_none() && !is_tapped {
        return;
    }
    let mut record = LogRecord {
        client: client.peer.to_canonical(),
        tls: client.tls_version(),
        status: status.as_u16(),
        reason: Some(end.label()),
        setting: end.row().setting,
        ..new_record()
    };
    describe(&mut record, log.map_or(&*DEFAULT_SETTINGS, |log| log));
    if let Some(settings) = log {
        client.worker.process.access_log.queue_line(settings.clone(), &record);
    }
    if is_tapped {
        taps.publish(&record, &[]);
    }
}

fn set_target(record: &mut LogRecord, target: &str, settings: &AccessLogSettings) {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    record.path = path.to_owned();
    record.query = query.map(|query| settings.mask.mask_query(query).into_owned());
}

/// Returns method and target if the first line starts like a request line.
fn parse_request_line(bytes: &[u8]) -> Option<(&str, String)> {
    let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).find(|line| !line.is_empty())?;
    let mut words = line.split(|byte| *byte == b' ');
    let method = words.next().filter(|word| !word.is_empty() && word.iter().all(u8::is_ascii_uppercase))?;
    let target = words.next()?;
    Some((str::from_utf8(method).ok()?, String::from_utf8_lossy(target).into_owned()))
}

fn new_record() -> LogRecord {
    LogRecord { time: Timestamp::now(), route: UNMATCHED.to_owned(), ..LogRecord::default() }
}

fn header_text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Returns the name of the protocol in logs and headers.
pub fn protocol_name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        Version::HTTP_3 => "HTTP/3.0",
        _ => "HTTP/1.1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_request_lines_are_parsed_as_far_as_possible() {
        for (bytes, read) in [
            (&b"GET /a?b HTTP/1.1\r\nno colon"[..], Some(("GET", "/a?b"))),
            (b"\r\nGET /a\xff\x01", Some(("GET", "/a\u{fffd}\u{1}"))),
            (b"GET", None),
            (b"\x16\x03\x01 /", None),
            (b" / HTTP/1.1", None),
            (b"", None),
        ] {
            let found = parse_request_line(bytes);
            assert_eq!(found.as_ref().map(|(method, target)| (*method, target.as_str())), read, "{bytes:?}");
        }
    }
}
