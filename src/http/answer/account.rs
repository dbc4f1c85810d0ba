//! The account of one request: counted once when its answer is known, ended when it is dropped, with
//! the answer's body or, where there was no answer, with the request. Opened and fed by `gateway`.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::{Method, Response, StatusCode};
use jiff::Timestamp;

use crate::http::answer::access_log::{AccessLog, LogEntry, LogRecord};
use crate::http::answer::body::Body;
use crate::http::answer::problem::{self, Refusal, UpstreamFailure};
use crate::http::deadline::{Awaited, RequestDeadline};
use crate::http::downstream::upload::UploadProgress;
use crate::limit::Verdict;
use crate::limit::held::{Held, HeldLeases};
use crate::metrics::{Cutoff, Metrics};
use crate::route::Route;
use crate::snapshot::{Reason, RouteHandles, Snapshot, UNMATCHED};

pub struct Account {
    deadline: RequestDeadline,
    /// The route's, or those of unmatched requests.
    handles: Rc<RouteHandles>,
    /// Counted among the route's requests in flight.
    entered: bool,
    method: Method,
    started: Instant,
    /// Its duration has been counted: a tunnel is no answer that took long.
    switched: bool,
    /// The request is being answered, or has been.
    answer: Option<Answering>,
    /// What its limits want once its outcome is known.
    held: Option<Box<Held>>,
    /// Its slots, from when it is forwarded.
    leases: Option<Rc<HeldLeases>>,
    log: Option<Box<LogEntry>>,
}

/// The answer on its way to the client.
struct Answering {
    /// The longest pause.
    stream: Duration,
    /// What the connection may be idle for afterwards.
    keepalive: Duration,
    /// The request's own body, which may outlast the answer.
    upload: Option<Rc<UploadProgress>>,
}

impl Account {
    pub fn open(
        unmatched: &Rc<RouteHandles>,
        deadline: RequestDeadline,
        method: &Method,
        started: Instant,
    ) -> Box<Account> {
        Box::new(Account {
            deadline,
            handles: unmatched.clone(),
            entered: false,
            method: method.clone(),
            started,
            switched: false,
            answer: None,
            held: None,
            leases: None,
            log: None,
        })
    }

    pub fn deadline(&self) -> &RequestDeadline {
        &self.deadline
    }

    /// The request goes into the access log.
    pub fn log(&mut self, log: &AccessLog, client: IpAddr, host: &str, path: &str) {
        let record = LogRecord {
            time: Timestamp::now(),
            client,
            method: self.method.clone(),
            host: host.to_owned(),
            path: path.to_owned(),
            route: UNMATCHED.to_owned(),
            refused_by: None,
        };
        self.log = Some(Box::new(LogEntry::new(log, record, client_closed())));
    }

    /// The request belongs to a route. False when that route is full.
    pub fn enter(&mut self, handles: Rc<RouteHandles>, max_in_flight: Option<usize>) -> bool {
        self.handles = handles;
        self.entered = true;
        self.handles.enter(max_in_flight)
    }

    /// The route's `allow` list spared the request its limits.
    pub fn bypassed(&self) {
        self.handles.limits.iter().for_each(|limit| limit.bypass());
    }

    pub fn decided(&mut self, route: &Route, verdict: &Verdict) {
        let handles = &self.handles;
        for checked in &verdict.checks {
            handles.limits[checked.limit].decide(route.limits[checked.limit].mode, checked);
        }
        if let Some(checked) = verdict.strictest(&route.limits) {
            handles.limits[checked.limit].reject(problem::reason(checked.outcome));
            if let Some(entry) = &mut self.log {
                entry.record.refused_by = Some(route.limits[checked.limit].name.clone());
            }
        }
    }

    pub fn hold(&mut self, held: Option<Box<Held>>) {
        self.held = held;
    }

    /// Its turn has come, if it had to wait for one.
    pub fn go_on(&mut self) {
        if let Some(held) = &mut self.held {
            held.go_on();
        }
    }

    /// The request is forwarded: its slots are shared with the exchange.
    pub fn share_leases(&mut self) -> Option<Rc<HeldLeases>> {
        self.leases = self.held.as_mut().and_then(|held| held.leases());
        self.leases.clone()
    }

    /// The head of the answer, before it is edited, settles what the limits charged.
    pub fn answered(&mut self, response: &Response<Body>, refusal: Option<&Refusal>) {
        if let Some(held) = &mut self.held {
            let connect_error = matches!(refusal, Some(Refusal::Upstream(UpstreamFailure::Connect(_))));
            held.answered(response.status(), response.headers(), connect_error);
        }
    }

    pub fn refused(&self, refusal: &Refusal, metrics: &Metrics) {
        match refusal {
            Refusal::Gate(reject) => metrics.http_rejected(*reject).inc(),
            Refusal::Misdirected => metrics.http_rejected(Cutoff::Misdirected).inc(),
            Refusal::Denied => self.handles.reject(Reason::Denied),
            Refusal::MaxInFlight => self.handles.reject(Reason::MaxInFlight),
            Refusal::MaxTunnels => metrics.http_rejected(Cutoff::MaxTunnels).inc(),
            Refusal::TooLarge | Refusal::Upstream(UpstreamFailure::TooLarge) => {
                metrics.http_rejected(Cutoff::BodyTooLarge).inc()
            }
            Refusal::Upstream(UpstreamFailure::UploadTimeout) => metrics.http_rejected(Cutoff::BodyTimeout).inc(),
            Refusal::NoRoute | Refusal::Limited | Refusal::Upstream(_) => {}
        }
    }

    /// Counts the answer; the request ends with its body, or with its tunnel.
    /// `upload`: the request's, which may outlast its answer.
    pub fn close(
        mut self: Box<Self>,
        response: &Response<Body>,
        route: Option<&Route>,
        snapshot: &Snapshot,
        upload: Option<Rc<UploadProgress>>,
    ) -> Box<Self> {
        self.handles.answer(&self.method, response.status());
        if let Some(entry) = &mut self.log {
            entry.status = response.status();
            if let Some(route) = route {
                entry.record.route.clone_from(&route.name);
            }
        }
        let keepalive = snapshot.config.server.keepalive_timeout;
        let stream = route.map_or(keepalive, |route| route.timeouts.stream);
        self.deadline.arm(Awaited::Stream, stream);
        self.answer = Some(Answering { stream, keepalive, upload });
        self
    }

    /// The answer switches protocols: the request goes on for as long as something moves within `limit`.
    pub fn switched(&mut self, limit: Duration) {
        self.switched = true;
        self.handles.observe(self.started.elapsed().as_secs_f64());
        self.deadline.switched();
        self.deadline.arm(Awaited::Tunnel, limit);
    }

    /// A tunnel has carried so many bytes more to the client, or others to the server.
    pub fn carried(&mut self, bytes: u64, limit: Duration) {
        self.deadline.arm(Awaited::Tunnel, limit);
        if let Some(entry) = &mut self.log {
            entry.add(bytes);
        }
    }

    /// So many bytes more of the answer are on their way.
    pub fn sent(&mut self, bytes: usize) {
        if let Some(answer) = &self.answer {
            self.deadline.arm(Awaited::Stream, answer.stream);
        }
        if let Some(entry) = &mut self.log {
            entry.add(bytes as u64);
        }
    }
}

/// The end of the request: its answer has been sent as far as it goes, or the client left before.
impl Drop for Account {
    fn drop(&mut self) {
        match &self.answer {
            Some(_) if self.switched => {}
            Some(_) => self.handles.observe(self.started.elapsed().as_secs_f64()),
            None => self.handles.answer(&self.method, client_closed()),
        }
        if self.entered {
            self.handles.leave();
        }
        if let Some(entry) = &self.log {
            entry.write(self.started);
        }
        match &self.answer {
            Some(Answering { upload: Some(upload), keepalive, .. }) => upload.answered(*keepalive),
            Some(Answering { upload: None, keepalive, .. }) => self.deadline.end(*keepalive),
            None => self.deadline.leave(),
        }
    }
}

/// nginx's number for a client that went away before its answer.
fn client_closed() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}
