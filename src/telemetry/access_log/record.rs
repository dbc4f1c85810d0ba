//! Data of one request for its log line, collected while the request is in progress. Created by
//! `proxy::account`, and by connections for input that never became a request.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

use crate::telemetry::metrics::Decision;

/// A log record. Texts are as the client sent them, with invalid UTF-8 replaced; they must be escaped before they are
/// written.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// When the first line of the head arrived.
    pub time: Timestamp,
    pub request_id: Option<String>,
    pub trace_id: Option<String>,
    pub client: IpAddr,
    /// Country of the client, if the log shows it.
    pub country: Option<String>,
    /// Identity that the `auth` of the route verified.
    pub user: Option<String>,
    /// Empty if the head could not be read, like host and path.
    pub method: String,
    pub host: String,
    /// Canonical path, unless the request was rejected as ambiguous.
    pub path: String,
    /// Query with secrets masked.
    pub query: Option<String>,
    pub protocol: Option<&'static str>,
    /// TLS version.
    pub tls: Option<&'static str>,
    pub tls_cipher: Option<&'static str>,
    /// Host name that the client sent in the TLS handshake (SNI).
    pub tls_name: Option<String>,
    /// Subject of the client's certificate.
    pub tls_subject: Option<String>,
    /// Name of the route; `_none` if no route matched.
    pub route: String,
    pub status: u16,
    /// Why the response is not a plain one: what refused, failed or ended the request.
    pub reason: Option<&'static str>,
    /// Name of the setting that governs `reason`.
    pub setting: Option<&'static str>,
    /// The reason is caused by a server: this gateway or an upstream.
    pub by_server: bool,
    /// The limit that decided, and its decision.
    pub limit: Option<String>,
    pub decision: Option<Decision>,
    /// The key that the limit used, with secrets as hashes.
    pub key: Option<String>,
    /// The keys of all limits of the route, if the log wants them.
    pub keys: Option<String>,
    /// The limit that refused the request.
    pub refused_by: Option<String>,
    /// The candidates that would have decided otherwise than their incumbents, `NAME=EFFECT,...`.
    pub candidates: Option<String>,
    pub upstream: Option<String>,
    pub attempts: Option<Rc<Attempts>>,
    /// Time that the auth server response_time until the head of its response.
    pub auth_time: Option<Duration>,
    pub duration: Duration,
    /// Body bytes: of the response here, of the request in the next field.
    pub bytes: u64,
    pub bytes_in: u64,
    /// Bytes of the response body before it was compressed. `None` if the gateway did not compress it.
    pub bytes_uncompressed: Option<u64>,
    pub user_agent: Option<String>,
    /// Referer with its query masked.
    pub referer: Option<String>,
    /// Values of `AccessLogSettings::facts`, in their order. Empty if no request was read.
    pub facts: Vec<Option<String>>,
}

/// Servers that the request was sent to. Shared with the exchange, which may outlive the request's client.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    server: RefCell<String>,
    tries: Cell<u32>,
    started: Cell<Option<Instant>>,
    response_time: Cell<Option<Duration>>,
    /// Set if the request has a span: one entry per time that the request was sent.
    sent: Option<RefCell<Vec<Attempt>>>,
}

/// One attempt: the request was sent to a server.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// ID of the attempt's span.
    pub id: u64,
    /// `host:port`, or the path of a socket.
    pub server: String,
    pub at: SystemTime,
    /// Time until the response head arrived or failed to; `None` if the client did not wait for either.
    pub ended: Option<(Duration, AttemptEnd)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// A response with this status.
    Response(u16),
    /// Why there is no response, in one word.
    Failed(&'static str),
}

/// Maximum number of recorded attempts per request; later ones replace the last entry.
const SENT_MAX: usize = 16;

impl Attempts {
    pub fn new(traced: bool) -> Attempts {
        Attempts { sent: traced.then(RefCell::default), ..Attempts::default() }
    }

    /// Records that the request is being sent to `server`, written as `authority` in the config. Returns the ID of a
    /// span for the attempt.
    pub fn start_attempt(&self, server: &str, authority: &str) -> Option<u64> {
        let mut last = self.server.borrow_mut();
        last.clear();
        last.push_str(server);
        self.tries.set(self.tries.get() + 1);
        self.started.set(Some(Instant::now()));
        self.response_time.set(None);
        let mut attempts = self.sent.as_ref()?.borrow_mut();
        if attempts.len() == SENT_MAX {
            return None;
        }
        let (id, server) = (rand::random::<u64>().max(1), authority.to_owned());
        attempts.push(Attempt { id, server, at: SystemTime::now(), ended: None });
        Some(id)
    }

    /// Records that the response head arrived, or why none will.
    pub fn end_attempt(&self, end: AttemptEnd) {
        let response_time = self.started.get().map(|started| started.elapsed());
        self.response_time.set(response_time.filter(|_| matches!(end, AttemptEnd::Response(_))));
        if let Some(sent) = &self.sent
            && let Some(last) = sent.borrow_mut().last_mut()
        {
            last.ended = response_time.map(|response_time| (response_time, end));
        }
    }

    /// Returns every attempt, if the request has a span.
    pub fn recorded_attempts(&self) -> Vec<Attempt> {
        self.sent.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// Returns the server of the last attempt.
    pub fn last_server(&self) -> Option<String> {
        Some(self.server.borrow().clone()).filter(|server| !server.is_empty())
    }

    pub fn count_attempts(&self) -> u32 {
        self.tries.get()
    }

    /// Returns the time from the start of the last attempt to its response head; `None` if none arrived.
    pub fn last_duration(&self) -> Option<Duration> {
        self.response_time.get()
    }
}

impl Default for LogRecord {
    fn default() -> LogRecord {
        LogRecord {
            time: Timestamp::UNIX_EPOCH,
            request_id: None,
            trace_id: None,
            client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            country: None,
            user: None,
            method: String::new(),
            host: String::new(),
            path: String::new(),
            query: None,
            protocol: None,
            tls: None,
            tls_cipher: None,
            tls_name: None,
            tls_subject: None,
            route: String::new(),
            status: 0,
            reason: None,
            setting: None,
            by_server: false,
            limit: None,
            decision: None,
            key: None,
            keys: None,
            refused_by: None,
            candidates: None,
            upstream: None,
            attempts: None,
            auth_time: None,
            duration: Duration::ZERO,
            bytes: 0,
            bytes_in: 0,
            bytes_uncompressed: None,
            user_agent: None,
            referer: None,
            facts: Vec::new(),
        }
    }
}
