//! The account of one request: counted once when its answer is known, closed when the answer has
//! been sent. Opened and fed by `gateway`; a request that is dropped midway is accounted here too.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::{Method, Response, StatusCode};
use jiff::Timestamp;

use crate::config::Server;
use crate::http::answer::access_log::{AccessLog, Entry, Record};
use crate::http::answer::body::{Body, Tail};
use crate::http::answer::problem::{self, Failure, Refusal};
use crate::http::deadline::Slot;
use crate::http::downstream::upload::Progress;
use crate::limit::Verdict;
use crate::limit::held::{Held, Leases};
use crate::metrics::Metrics;
use crate::route::Route;
use crate::snapshot::{Reason, RouteHandles, Snapshot, UNMATCHED};

pub struct Account {
    slot: Rc<Slot>,
    /// The route's, or those of unmatched requests.
    handles: Arc<RouteHandles>,
    method: Method,
    started: Instant,
    /// Counted among the route's requests in flight.
    entered: bool,
    closed: bool,
    /// What its limits want once its outcome is known.
    held: Option<Box<Held>>,
    /// Its slots, from when it is forwarded.
    leases: Option<Rc<Leases>>,
    log: Option<Box<Entry>>,
}

impl Account {
    pub fn open(snapshot: &Snapshot, slot: &Rc<Slot>, method: &Method, started: Instant) -> Account {
        Account {
            slot: slot.clone(),
            handles: snapshot.unmatched.clone(),
            method: method.clone(),
            started,
            entered: false,
            closed: false,
            held: None,
            leases: None,
            log: None,
        }
    }

    /// The request goes into the access log.
    pub fn log(&mut self, log: &AccessLog, client: IpAddr, host: &str, path: &str) {
        let record = Record {
            time: Timestamp::now(),
            client,
            method: self.method.clone(),
            host: host.to_owned(),
            path: path.to_owned(),
            route: UNMATCHED.to_owned(),
            refused_by: None,
        };
        self.log = Some(Box::new(Entry::new(log, record, client_closed())));
    }

    /// The request belongs to a route. False when that route is full.
    pub fn enter(&mut self, handles: &Arc<RouteHandles>, max_in_flight: Option<usize>) -> bool {
        self.handles = handles.clone();
        let in_flight = &handles.route.in_flight;
        in_flight.inc();
        self.entered = true;
        // Counting first keeps the cap exact: two that meet may both be refused, never both pass.
        max_in_flight.is_none_or(|max| usize::try_from(in_flight.get()).is_ok_and(|count| count <= max))
    }

    /// The route's `allow` list spared the request its limits.
    pub fn bypassed(&self) {
        self.handles.limits.iter().for_each(|limit| limit.bypass());
    }

    pub fn decided(&mut self, route: &Route, verdict: &Verdict) {
        for checked in &verdict.checks {
            self.handles.limits[checked.limit].decide(route.limits[checked.limit].mode, checked);
        }
        if let Some(checked) = verdict.strictest(&route.limits) {
            self.handles.limits[checked.limit].reject(problem::reason(checked.outcome));
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
    pub fn share_leases(&mut self) -> Option<Rc<Leases>> {
        self.leases = self.held.as_mut().and_then(|held| held.leases());
        self.leases.clone()
    }

    /// The head of the answer, before it is edited, settles what the limits charged.
    pub fn answered(&mut self, response: &Response<Body>, refusal: Option<&Refusal>) {
        if let Some(held) = &mut self.held {
            let connect_error = matches!(refusal, Some(Refusal::Upstream(Failure::Connect)));
            held.answered(response.status(), response.headers(), connect_error);
        }
    }

    pub fn refused(&self, refusal: &Refusal, metrics: &Metrics) {
        match refusal {
            Refusal::Gate(reject) => metrics.http_rejected(reject.reason()).inc(),
            Refusal::Denied => self.handles.route.rejections.inc(Reason::Denied as usize),
            Refusal::MaxInFlight => self.handles.route.rejections.inc(Reason::MaxInFlight as usize),
            Refusal::TooLarge | Refusal::Upstream(Failure::TooLarge) => metrics.http_rejected("body_too_large").inc(),
            Refusal::Upstream(Failure::UploadTimeout) => metrics.http_rejected("body_timeout").inc(),
            Refusal::NoRoute | Refusal::Limited | Refusal::Upstream(_) => {}
        }
    }

    /// Counts the answer and ties what remains to the end of its body.
    /// `upload`: the request's, which may outlast its answer.
    pub fn close(
        mut self,
        response: Response<Body>,
        route: Option<&Route>,
        server: &Server,
        upload: Option<Rc<Progress>>,
    ) -> Response<Body> {
        self.closed = true;
        self.handles.route.requests.inc(&self.method, response.status());
        if let Some(entry) = &mut self.log {
            entry.status = response.status();
            if let Some(route) = route {
                entry.record.route.clone_from(&route.name);
            }
        }
        let tail = Tail {
            slot: self.slot.clone(),
            handles: self.handles.clone(),
            entered: self.entered,
            started: self.started,
            stream: route.map_or(server.keepalive_timeout, |route| route.timeouts.stream),
            keepalive: server.keepalive_timeout,
            held: self.held.take(),
            leases: self.leases.take(),
            upload,
            log: self.log.take(),
        };
        response.map(|body| body.with_tail(tail))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        self.handles.route.requests.inc(&self.method, client_closed());
        if self.entered {
            self.handles.route.in_flight.dec();
        }
        if let Some(entry) = &self.log {
            entry.write(self.started);
        }
    }
}

/// nginx's number for a client that went away before its answer.
fn client_closed() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}
