//! Access control of the admin listener, and its audit log. Called by `pages` for every request.
//!
//! Input: the head of a request, its peer, and the tokens of the config. Output: the [`AdminCaller`], or a problem.
//! `guard` checks the head, `credentials` finds the owner of a token, `sessions` lends the role of a token to a
//! browser, `attempts` counts wrong tokens per peer, `audit` is the log of changes and refused requests, and
//! `line_limiter` bounds its lines.
//!
//! To add a reason to refuse a request, add it to [`AccessFault`] and describe it in `docs/reference/metrics.md`.

mod attempts;
pub mod audit;
pub mod credentials;
pub mod guard;
pub mod line_limiter;
pub mod sessions;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use http::request::Parts;

use crate::admin::access::attempts::AttemptTable;
use crate::admin::access::audit::{AuditEntry, AuditLog};
use crate::admin::access::credentials::find_caller;
use crate::admin::access::line_limiter::{LineKind, LineLimiter};
use crate::admin::access::sessions::Sessions;
use crate::admin::problem::{Problem, ProblemKind};
use crate::config::Admin;
use crate::config::admin_tokens::{AdminToken, Role, TokenDigest};
use crate::labels::labels;
use crate::net::client_network;
use crate::telemetry::metrics::AdminMetrics;
use crate::telemetry::sampled::LogSampler;

/// Levels of access by what a page reveals or changes, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Health only.
    Open,
    /// Counters, labelled with names from the config.
    Metrics,
    /// The config.
    Read,
    /// Usage of single keys.
    Keys,
    /// Decisions, resets and refunds.
    Limits,
    /// Changes of the config.
    Edit,
}

impl Access {
    /// Returns the role that the page needs.
    pub fn needed_role(self) -> Option<Role> {
        match self {
            Access::Open => None,
            Access::Metrics => Some(Role::Metrics),
            Access::Read => Some(Role::Read),
            Access::Keys => Some(Role::Keys),
            Access::Limits => Some(Role::Limits),
            Access::Edit => Some(Role::Edit),
        }
    }
}

labels! {
    /// Why access control refused a request.
    AccessFault:
    TokenMissing = "token_missing",
    TokenUnknown = "token_unknown",
    TokenExpired = "token_expired",
    SessionEnded = "session_ended",
    CodeUnknown = "code_unknown",
    RoleTooLow = "role_too_low",
    /// A browser sent the request for a page of another site.
    ForeignSite = "foreign_site",
    /// No token is configured, and the request is not from this machine or its host is not an address.
    NotLocal = "not_local",
    TooManyAttempts = "too_many_attempts",
}

/// A refused request.
#[derive(Debug)]
pub struct AccessRefusal {
    pub fault: AccessFault,
    /// The caller, if the token is known.
    pub caller: Option<Box<AdminCaller>>,
    pub problem: Box<Problem>,
}

/// The authenticated sender of a request: a token of the config, or a session that has the role of one.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminCaller {
    /// Name of the token; `None` if none is configured.
    pub name: Option<String>,
    pub role: Role,
    /// Digest of the token; `None` if none is configured.
    token: Option<TokenDigest>,
    /// The request has the token of a session.
    pub is_session: bool,
}

impl AdminCaller {
    /// The caller of a page that is open to everyone.
    pub const ANONYMOUS: AdminCaller = AdminCaller { name: None, role: Role::Metrics, token: None, is_session: false };

    /// Returns a text for the token; without one, for the peer.
    pub fn identify(&self, peer: Peer) -> String {
        self.name.as_ref().map_or_else(|| peer.counted().label(), |name| format!("token {name}"))
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    Tcp(IpAddr),
    /// A Unix socket, whose permissions decide who may connect.
    Unix,
}

impl Peer {
    /// Returns whether the peer is on this machine.
    pub fn is_local(self) -> bool {
        match self {
            Peer::Tcp(ip) => ip.is_loopback(),
            Peer::Unix => true,
        }
    }

    pub fn label(self) -> String {
        match self {
            Peer::Tcp(ip) => ip.to_string(),
            Peer::Unix => "unix".to_owned(),
        }
    }

    /// Returns the peer under which attempts are counted: for IPv6 its /64 network, in which one machine may have any
    /// address.
    fn counted(self) -> Peer {
        match self {
            Peer::Tcp(ip) => Peer::Tcp(client_network(ip)),
            Peer::Unix => Peer::Unix,
        }
    }
}

/// State of access control. It lasts as long as the process.
pub struct AccessState {
    attempts: RefCell<AttemptTable>,
    lines: RefCell<LineLimiter>,
    pub sessions: RefCell<Sessions>,
    pub audit: AuditLog,
    metrics: AdminMetrics,
    is_summary_due: Cell<bool>,
    wrong_tokens: LogSampler,
    expiring_tokens: LogSampler,
}

/// Interval between two log lines about a token that expires soon.
const EXPIRY_LOG_PERIOD_MS: u64 = 24 * 60 * 60 * 1000;

impl AccessState {
    /// Interval between two summaries.
    pub const SUMMARY_PERIOD: Duration = attempts::WINDOW;

    pub fn new(metrics: &AdminMetrics) -> AccessState {
        // The series exist from the start, so that alerts see the first increase.
        AccessFault::ALL.iter().for_each(|fault| metrics.refused_counter(*fault).inc_by(0));
        AccessState {
            attempts: RefCell::default(),
            lines: RefCell::default(),
            sessions: RefCell::default(),
            audit: AuditLog::new(metrics),
            metrics: metrics.clone(),
            is_summary_due: Cell::default(),
            wrong_tokens: LogSampler::default(),
            expiring_tokens: LogSampler::default(),
        }
    }

    /// Checks access to a page. Wrong tokens are counted per peer.
    pub fn authorize(
        &self,
        access: Access,
        head: &Parts,
        admin: &Admin,
        peer: Peer,
    ) -> Result<AdminCaller, AccessRefusal> {
        let find = || self.find_caller(head, admin);
        self.finish(guard::check_access(access, &head.headers, admin, peer.is_local(), find), admin, peer)
    }

    /// Checks a request that any token allows, from pages of this gateway only.
    pub fn authorize_any_token(&self, head: &Parts, admin: &Admin, peer: Peer) -> Result<AdminCaller, AccessRefusal> {
        let find = || self.find_caller(head, admin);
        self.finish(guard::check_any_token(&head.headers, admin, peer.is_local(), find), admin, peer)
    }

    fn find_caller(&self, head: &Parts, admin: &Admin) -> Result<Option<AdminCaller>, AccessRefusal> {
        find_caller(&head.headers, admin, &self.sessions.borrow(), SystemTime::now(), Instant::now())
    }

    fn finish(
        &self,
        checked: Result<AdminCaller, AccessRefusal>,
        admin: &Admin,
        peer: Peer,
    ) -> Result<AdminCaller, AccessRefusal> {
        if let Ok(caller) = &checked {
            self.log_expiry(caller, admin);
        }
        checked.map_err(|refusal| self.count_refusal(refusal, peer))
    }

    /// Counts a refused request. Beyond ten guesses of a peer in a minute, the refusal becomes a 429.
    pub fn count_refusal(&self, refusal: AccessRefusal, peer: Peer) -> AccessRefusal {
        let mut refusal = refusal;
        if matches!(refusal.fault, AccessFault::TokenUnknown | AccessFault::SessionEnded | AccessFault::CodeUnknown) {
            if let Some(left_out) = self.wrong_tokens.take_turn() {
                tracing::warn!(peer = peer.label(), left_out, "admin listener: a request has a wrong token");
            }
            if let Some(wait) = self.attempts.borrow_mut().count_wrong(peer.counted(), Instant::now()) {
                refusal = guard::refuse_attempts(wait);
            }
        }
        self.metrics.refused_counter(refusal.fault).inc();
        refusal
    }

    /// Records a request in the audit log. The number of lines per minute is bounded, except for changes of the config.
    /// Returns whether this is the first line omitted since the last summaries.
    pub fn record(&self, entry: &AuditEntry, kind: LineKind, peer: Peer, admin: &Admin) -> bool {
        if !self.lines.borrow_mut().take_line(kind, entry.token.as_deref(), peer.counted(), Instant::now()) {
            return !self.is_summary_due.replace(true);
        }
        self.audit.write(entry, kind, admin.audit.as_deref());
        false
    }

    /// Writes one line for each token or peer whose requests were left out of the audit log until now.
    pub fn write_summaries(&self, admin: &Admin, generation: u64) {
        self.is_summary_due.set(false);
        for summary in self.lines.borrow_mut().take_summaries() {
            self.audit.write(&AuditEntry::of_summary(&summary, generation), summary.kind, admin.audit.as_deref());
        }
    }

    /// Reports a token that is used and expires soon, once a day.
    fn log_expiry(&self, caller: &AdminCaller, admin: &Admin) {
        let own = |token: &&AdminToken| caller.token.is_some_and(|digest| digest == token.digest);
        let Some(token) = admin.tokens.iter().find(own).filter(|token| token.expires.is_some()) else { return };
        if token.expires_soon(SystemTime::now())
            && let Some(expires) = token.expires
            && self.expiring_tokens.take_turn_every(EXPIRY_LOG_PERIOD_MS).is_some()
        {
            let expires = crate::admin::lifecycle::format_rfc3339(expires);
            tracing::warn!(token = token.name, expires, "admin listener: a token in use expires soon; add another");
        }
    }
}

/// Returns a refusal with the kind of problem that belongs to `fault`.
pub fn refuse(fault: AccessFault, detail: impl Into<String>) -> AccessRefusal {
    let (status, kind) = match fault {
        AccessFault::TokenMissing => (StatusCode::UNAUTHORIZED, ProblemKind::TokenMissing),
        AccessFault::TokenUnknown => (StatusCode::UNAUTHORIZED, ProblemKind::TokenUnknown),
        AccessFault::TokenExpired => (StatusCode::UNAUTHORIZED, ProblemKind::TokenExpired),
        AccessFault::SessionEnded => (StatusCode::UNAUTHORIZED, ProblemKind::SessionEnded),
        AccessFault::CodeUnknown => (StatusCode::UNAUTHORIZED, ProblemKind::CodeUnknown),
        AccessFault::RoleTooLow => (StatusCode::FORBIDDEN, ProblemKind::RoleTooLow),
        AccessFault::ForeignSite => (StatusCode::FORBIDDEN, ProblemKind::ForeignSite),
        AccessFault::NotLocal => (StatusCode::FORBIDDEN, ProblemKind::NotLocal),
        AccessFault::TooManyAttempts => (StatusCode::TOO_MANY_REQUESTS, ProblemKind::TooManyAttempts),
    };
    AccessRefusal { fault, caller: None, problem: Box::new(Problem::new(status, detail).with_kind(kind)) }
}
