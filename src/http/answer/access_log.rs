//! The line of the access log that a request is to have: opened with its head, told what becomes of it, handed
//! over at its end. Fed by `account`.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use http::header::{HOST, REFERER, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use jiff::Timestamp;

use crate::access_log::{AccessLogSettings, Attempts, LogRecord};
use crate::config::ServerSettings;
use crate::http::answer::cause::Cause;
use crate::http::context::{Client, Local};
use crate::http::downstream::upload::UploadProgress;
use crate::http::trace;
use crate::limit::Verdict;
use crate::metrics::Decision;
use crate::route::Route;
use crate::snapshot::{UNMATCHED, decision};
use crate::spans::OpenSpan;

/// Where there is no log, but spans.
static USUAL: LazyLock<AccessLogSettings> = LazyLock::new(AccessLogSettings::default);

/// A line in the making.
pub struct LogEntry {
    /// Where both go: nothing is counted that other workers count, too.
    local: Rc<Local>,
    log: Option<Arc<AccessLogSettings>>,
    span: Option<OpenSpan>,
    /// The path pattern of the route, for the span.
    template: Option<String>,
    record: LogRecord,
    /// The request's body, once somebody reads it.
    upload: Option<Rc<UploadProgress>>,
}

impl LogEntry {
    /// Of a request as it came.
    pub fn open(
        client: &Client,
        server: &ServerSettings,
        ip: IpAddr,
        parts: &Parts,
        span: Option<OpenSpan>,
    ) -> Box<LogEntry> {
        let mask = &server.access_log.as_deref().unwrap_or(&USUAL).mask;
        let Parts { method, uri, headers, version, .. } = parts;
        let asked = uri.authority().map(|authority| authority.as_str().to_owned());
        let peer = client.tls.as_ref();
        let record = LogRecord {
            client: ip,
            method: method.as_str().to_owned(),
            host: asked.or_else(|| text(headers, &HOST)).unwrap_or_default(),
            path: uri.path().to_owned(),
            query: uri.query().map(|query| mask.query(query).into_owned()),
            protocol: Some(protocol(*version)),
            tls: client.tls_version,
            tls_cipher: peer.and_then(|peer| peer.cipher),
            tls_name: peer.and_then(|peer| peer.server_name.clone()),
            tls_subject: peer.and_then(|peer| Some(peer.certificate.as_ref()?.subject.clone())),
            user_agent: text(headers, &USER_AGENT),
            referer: text(headers, &REFERER).map(|referer| mask.reference(&referer).into_owned()),
            trace_id: match &span {
                Some(span) => Some(span.trace_id()),
                None => trace::id(headers).map(str::to_owned),
            },
            ..unrouted()
        };
        Box::new(LogEntry {
            local: client.local.clone(),
            log: server.access_log.clone(),
            span,
            template: None,
            record,
            upload: None,
        })
    }

    /// The route that takes it, whatever becomes of it.
    pub fn routed(&mut self, route: &Route) {
        self.record.route.clone_from(&route.name);
        self.template = self.span.is_some().then(|| route.matcher.path.to_string());
    }

    /// Its canonical form.
    pub fn admitted(&mut self, host: &str, path: &str) {
        host.clone_into(&mut self.record.host);
        path.clone_into(&mut self.record.path);
    }

    pub fn named(&mut self, id: &HeaderValue) {
        self.record.request_id = Some(String::from_utf8_lossy(id.as_bytes()).into_owned());
    }

    /// Its span becomes the parent of what is asked for it; false when it has none.
    pub fn go_on(&self, headers: &mut HeaderMap) -> bool {
        self.span.as_ref().map(|span| trace::go_on(headers, span)).is_some()
    }

    /// What the upstream is told, where it has a span. Each server that is asked gets the id of a span of its own there.
    pub fn traceparent(&self) -> Option<String> {
        self.span.as_ref().map(OpenSpan::traceparent)
    }

    pub fn traced(&mut self, headers: &HeaderMap) {
        self.record.trace_id = trace::id(headers).map(str::to_owned);
    }

    /// What the limit that mattered most did.
    pub fn decided(&mut self, route: &Route, verdict: &Verdict) {
        let strictest = verdict.strictest(&route.limits);
        let decided = strictest.or_else(|| {
            verdict.checks.iter().max_by_key(|check| weight(decision(route.limits[check.limit].mode, check)))
        });
        let Some(check) = decided else { return };
        let limit = &route.limits[check.limit];
        self.record.limit = Some(limit.name.clone());
        self.record.decision = Some(decision(limit.mode, check));
        self.record.refused_by = strictest.map(|_| limit.name.clone());
    }

    /// The route's `allow` list spared it its limits.
    pub fn bypassed(&mut self) {
        self.record.decision = Some(Decision::Bypass);
    }

    pub fn uploads(&mut self, upload: &Rc<UploadProgress>) {
        self.upload = Some(upload.clone());
    }

    /// Whether what came in place of the request's body was none.
    pub fn is_body_malformed(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.is_malformed())
    }

    /// It goes to `upstream`: where the exchange says what it tried.
    pub fn asks(&mut self, upstream: &str) -> Rc<Attempts> {
        self.record.upstream = Some(upstream.to_owned());
        self.record.attempts.get_or_insert_with(|| Rc::new(Attempts::new(self.span.is_some()))).clone()
    }

    /// Why its answer is not that of the route's action.
    pub fn caused(&mut self, cause: Cause) {
        let Cause { reason, setting, by_server } = cause;
        (self.record.reason, self.record.setting) = (Some(reason), setting.map(|setting| setting.label()));
        self.record.by_server = by_server;
    }

    pub fn answered(&mut self, status: StatusCode) {
        self.record.status = status.as_u16();
    }

    /// Counts bytes of the answer's body.
    pub fn sent(&mut self, bytes: u64) {
        self.record.bytes += bytes;
    }

    /// Hands line and span over: the request has ended.
    pub fn write(&mut self, started: Instant) {
        self.record.duration = started.elapsed();
        self.record.bytes_in = self.upload.as_ref().map_or(0, |upload| upload.seen());
        if let Some(settings) = self.log.take() {
            self.local.common.access_log.write(settings, &self.record);
        }
        if let Some(span) = self.span.take() {
            span.end(&self.local.common.spans, &self.record, self.template.as_deref());
        }
    }
}

/// Hands over the line of a head that never became a request; `bytes` are what there is of it.
pub fn unread(client: &Client, bytes: &[u8], status: StatusCode, cause: Cause) {
    write_unread(client, status, cause, |record, settings| {
        if let Some((method, target)) = request_line(bytes) {
            record.method = method.to_owned();
            set_target(record, &target, settings);
        }
    });
}

/// Hands over the line of a malformed head of HTTP/2, with the values of `:method`, `:authority` and `:path` that it
/// has.
pub fn malformed(client: &Client, asked: (&[u8], &[u8], &[u8]), status: StatusCode, cause: Cause) {
    let (method, authority, path) = asked;
    write_unread(client, status, cause, |record, settings| {
        record.method = String::from_utf8_lossy(method).into_owned();
        record.host = String::from_utf8_lossy(authority).into_owned();
        record.protocol = Some(protocol(Version::HTTP_2));
        set_target(record, &String::from_utf8_lossy(path), settings);
    });
}

fn write_unread(
    client: &Client,
    status: StatusCode,
    cause: Cause,
    describe: impl FnOnce(&mut LogRecord, &AccessLogSettings),
) {
    let view = client.local.view();
    let Some(settings) = &view.snapshot.config.server.access_log else { return };
    let mut record = LogRecord {
        client: client.peer.to_canonical(),
        tls: client.tls_version,
        status: status.as_u16(),
        reason: Some(cause.reason),
        setting: cause.setting.map(|setting| setting.label()),
        ..unrouted()
    };
    describe(&mut record, settings);
    client.local.common.access_log.write(settings.clone(), &record);
}

fn set_target(record: &mut LogRecord, target: &str, settings: &AccessLogSettings) {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    record.path = path.to_owned();
    record.query = query.map(|query| settings.mask.query(query).into_owned());
}

/// Method and target, where the first line begins like that of a request.
fn request_line(bytes: &[u8]) -> Option<(&str, String)> {
    let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).find(|line| !line.is_empty())?;
    let mut words = line.split(|byte| *byte == b' ');
    let method = words.next().filter(|word| !word.is_empty() && word.iter().all(u8::is_ascii_uppercase))?;
    let target = words.next()?;
    Some((str::from_utf8(method).ok()?, String::from_utf8_lossy(target).into_owned()))
}

fn unrouted() -> LogRecord {
    LogRecord { time: Timestamp::now(), route: UNMATCHED.to_owned(), ..LogRecord::default() }
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// Of several limits, whose part tells most.
fn weight(decision: Decision) -> u8 {
    match decision {
        Decision::Deny | Decision::LocalDeny | Decision::ErrorClosed => 6,
        Decision::Delayed => 5,
        Decision::ShadowDeny => 4,
        Decision::ErrorOpen => 3,
        Decision::LocalAllow => 2,
        Decision::Allow => 1,
        Decision::Bypass => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_like_a_request_is_read_as_far_as_it_goes() {
        for (bytes, read) in [
            (&b"GET /a?b HTTP/1.1\r\nno colon"[..], Some(("GET", "/a?b"))),
            (b"\r\nGET /a\xff\x01", Some(("GET", "/a\u{fffd}\u{1}"))),
            (b"GET", None),
            (b"\x16\x03\x01 /", None),
            (b" / HTTP/1.1", None),
            (b"", None),
        ] {
            let found = request_line(bytes);
            assert_eq!(found.as_ref().map(|(method, target)| (*method, target.as_str())), read, "{bytes:?}");
        }
    }
}
