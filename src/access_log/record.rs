//! What is known of a request for its line, gathered while it is under way. Made by `http::answer::account`,
//! and by the connections for what never became a request.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

use crate::labels::labels;
use crate::metrics::Decision;

/// A line in the making. Texts are as the client sent them, any bytes that are no UTF-8 replaced; none may be
/// written without being escaped.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// Of the first line of the head.
    pub time: Timestamp,
    pub request_id: Option<String>,
    pub trace_id: Option<String>,
    pub client: IpAddr,
    /// Empty when the head could not be read, like host and path.
    pub method: String,
    pub host: String,
    /// Canonical, unless the request was refused as unclear.
    pub path: String,
    /// Masked.
    pub query: Option<String>,
    pub protocol: Option<&'static str>,
    /// The version of TLS.
    pub tls: Option<&'static str>,
    pub tls_cipher: Option<&'static str>,
    /// The host that the client asked for in the handshake.
    pub tls_name: Option<String>,
    /// Of the client's certificate.
    pub tls_subject: Option<String>,
    /// `_none` without one.
    pub route: String,
    pub status: u16,
    /// Why it is not a plain answer: what refused it, failed or ended it.
    pub reason: Option<&'static str>,
    /// The name of the setting that governs that.
    pub setting: Option<&'static str>,
    /// That is the doing of a server, this one or the one behind it.
    pub by_server: bool,
    /// The limit that decided, and what it did.
    pub limit: Option<String>,
    pub decision: Option<Decision>,
    /// The limit that refused the request.
    pub refused_by: Option<String>,
    pub upstream: Option<String>,
    pub attempts: Option<Rc<Attempts>>,
    pub duration: Duration,
    /// Of the bodies of the answer and of the request.
    pub bytes: u64,
    pub bytes_in: u64,
    pub user_agent: Option<String>,
    /// Its query masked.
    pub referer: Option<String>,
}

/// The servers that a request was sent to. Shared with the exchange, which may end with its client.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    server: RefCell<String>,
    tries: Cell<u32>,
    asked: Cell<Option<Instant>>,
    took: Cell<Option<Duration>>,
    /// Of a request with a span, which has one for each time that it was sent.
    sent: Option<RefCell<Vec<SentRequest>>>,
}

/// A request that was sent to a server, perhaps not for the last time.
#[derive(Clone, Debug)]
pub struct SentRequest {
    /// Its span's.
    pub id: u64,
    /// `host:port`, or the path of a socket.
    pub server: String,
    pub at: SystemTime,
    /// How long until the head of its answer, or until none would come; `None`: its client did not wait for that.
    pub ended: Option<(Duration, SentEnd)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentEnd {
    /// With this status.
    Answered(u16),
    Failed(SendFault),
}

labels! {
    /// Why a request that was sent has no answer.
    SendFault:
    /// The connection ended, or what came was no HTTP.
    Broken = "broken",
    Timeout = "timeout",
    /// Its client did not send it to the end.
    Upload = "upload",
}

/// Of one request; what is sent more often is told as the last of them.
const SENT_MAX: usize = 16;

impl Attempts {
    pub fn new(traced: bool) -> Attempts {
        Attempts { sent: traced.then(RefCell::default), ..Attempts::default() }
    }

    /// The request leaves for `server`, at `authority` in the config. The id of a span for that.
    pub fn asks(&self, server: &str, authority: &str) -> Option<u64> {
        let mut last = self.server.borrow_mut();
        last.clear();
        last.push_str(server);
        self.tries.set(self.tries.get() + 1);
        self.asked.set(Some(Instant::now()));
        self.took.set(None);
        let mut sent = self.sent.as_ref()?.borrow_mut();
        if sent.len() == SENT_MAX {
            return None;
        }
        let (id, server) = (rand::random::<u64>().max(1), authority.to_owned());
        sent.push(SentRequest { id, server, at: SystemTime::now(), ended: None });
        Some(id)
    }

    /// The head of a response has come, or none will.
    pub fn ended(&self, end: SentEnd) {
        let took = self.asked.get().map(|asked| asked.elapsed());
        self.took.set(took.filter(|_| matches!(end, SentEnd::Answered(_))));
        if let Some(sent) = &self.sent
            && let Some(last) = sent.borrow_mut().last_mut()
        {
            last.ended = took.map(|took| (took, end));
        }
    }

    /// Each time that it was sent, where it has a span.
    pub fn sent(&self) -> Vec<SentRequest> {
        self.sent.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// The last one asked.
    pub fn server(&self) -> Option<String> {
        Some(self.server.borrow().clone()).filter(|server| !server.is_empty())
    }

    pub fn tries(&self) -> u32 {
        self.tries.get()
    }

    /// Time from the last attempt's start to the head of its response; `None` if none came.
    pub fn took(&self) -> Option<Duration> {
        self.took.get()
    }
}

impl Default for LogRecord {
    fn default() -> LogRecord {
        LogRecord {
            time: Timestamp::UNIX_EPOCH,
            request_id: None,
            trace_id: None,
            client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
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
            refused_by: None,
            upstream: None,
            attempts: None,
            duration: Duration::ZERO,
            bytes: 0,
            bytes_in: 0,
            user_agent: None,
            referer: None,
        }
    }
}
