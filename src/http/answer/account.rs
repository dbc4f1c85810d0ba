//! The account of one request: counted once when its answer is known, ended when it is dropped, with
//! the answer's body or, where there was no answer, with the request. Opened and fed by `gateway`.

use std::rc::Rc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, Response, StatusCode};

use crate::http::answer::access_log::LogEntry;
use crate::http::answer::body::{Body, BodyError};
use crate::http::answer::cause::{Cause, EndReason};
use crate::http::answer::refusal::{self, Refusal};
use crate::http::deadline::{Awaited, RequestDeadline};
use crate::http::downstream::upload::{UploadProgress, UploadState};
use crate::http::upstream::connect::ConnectFault;
use crate::http::upstream::failure::UpstreamFailure;
use crate::limit::Verdict;
use crate::limit::afterwards::{End, ResponseTail};
use crate::limit::held::{Held, HeldLeases};
use crate::metrics::{Cutoff, Metrics};
use crate::route::Route;
use crate::snapshot::{Reason, RouteHandles, Snapshot};

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
    /// A server may act on it.
    reached_server: bool,
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
    end: AnswerEnd,
}

/// How far the body of the answer has come.
enum AnswerEnd {
    /// Not to its end: the connection ends before.
    Cut,
    Whole,
    /// Whoever it comes from has broken off.
    Broken(Cause),
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
            reached_server: false,
            log: None,
        })
    }

    pub fn deadline(&self) -> &RequestDeadline {
        &self.deadline
    }

    /// The request goes into the access log.
    pub fn log(&mut self, entry: Box<LogEntry>) {
        self.log = Some(entry);
    }

    /// Its line, if it is to have one.
    pub fn entry(&mut self) -> Option<&mut LogEntry> {
        self.log.as_deref_mut()
    }

    /// The request belongs to `route`. False when that route is full.
    pub fn enter(&mut self, route: &Route, handles: Rc<RouteHandles>) -> bool {
        if let Some(entry) = &mut self.log {
            entry.routed(route);
        }
        self.handles = handles;
        self.entered = true;
        self.handles.enter(route.max_in_flight)
    }

    /// The route's `allow` list spared the request its limits.
    pub fn bypassed(&mut self) {
        self.handles.limits.iter().for_each(|limit| limit.bypass());
        if let Some(entry) = self.log.as_mut().filter(|_| !self.handles.limits.is_empty()) {
            entry.bypassed();
        }
    }

    pub fn decided(&mut self, route: &Route, verdict: &Verdict) {
        let handles = &self.handles;
        for checked in &verdict.checks {
            handles.limits[checked.limit].decide(route.limits[checked.limit].mode, checked);
        }
        if let Some(checked) = verdict.strictest(&route.limits) {
            handles.limits[checked.limit].reject(refusal::reason(checked.outcome));
        }
        if let Some(entry) = &mut self.log {
            entry.decided(route, verdict);
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

    /// Those of a request that was forwarded.
    pub fn leases(&self) -> Option<Rc<HeldLeases>> {
        self.leases.clone()
    }

    /// At least one byte of the request has been given to a server.
    pub fn reached_server(&mut self) {
        self.reached_server = true;
    }

    /// The head of the response, before it is edited, settles what the limits charged, but where a limit needs
    /// the trailers.
    pub fn answered(&mut self, response: &Response<Body>) {
        let Some(held) = &mut self.held else { return };
        let (status, head, none) = (response.status(), response.headers(), HeaderMap::new());
        // What follows such a head is a tunnel.
        let is_switch = status == StatusCode::SWITCHING_PROTOCOLS;
        let tail = if is_switch { ResponseTail::Whole(&none) } else { ResponseTail::Awaited };
        held.settle(End::Answered { status, head, tail });
    }

    /// Our own response, with this head, settles what the limits charged. `status`: that of the refusal, as it is for
    /// clients that do not speak gRPC. A server that got some of the request may have acted on it, so a client that
    /// then ends the exchange has aborted it, whatever status we answer.
    pub fn refused_with(&mut self, status: StatusCode, head: &HeaderMap, refusal: &Refusal) {
        let Some(held) = &mut self.held else { return };
        let none = HeaderMap::new();
        held.settle(match refusal {
            Refusal::Upstream(failure) if self.reached_server && failure.is_by_client() => End::Aborted,
            Refusal::Upstream(UpstreamFailure::Connect(_) | UpstreamFailure::Overflow(_)) if !self.reached_server => {
                End::ConnectError { status, head }
            }
            _ => End::Answered { status, head, tail: ResponseTail::Whole(&none) },
        });
    }

    /// The trailers of the response, before they are edited.
    pub fn trailers(&mut self, trailers: &HeaderMap) {
        let Some(held) = self.held.as_mut().filter(|held| held.awaits_end()) else { return };
        let upload = self.answer.as_ref().and_then(|answer| answer.upload.as_ref());
        let is_broken = upload.is_some_and(|upload| upload.state().is_client_fault());
        held.finish((!is_broken).then_some(ResponseTail::Whole(trailers)));
    }

    /// Takes out the charges that wait for trailers, with the time that these may take, where the body has ended
    /// before its stream has.
    pub fn take_waiting_charges(&mut self) -> Option<(Box<Held>, Duration)> {
        let stream = self.answer.as_ref()?.stream;
        self.held.take_if(|held| held.awaits_end()).map(|held| (held, stream))
    }

    pub fn refused(&mut self, refusal: &Refusal, cause: Cause, metrics: &Metrics) {
        if let Some(entry) = &mut self.log {
            entry.caused(cause);
        }
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
            Refusal::Upstream(UpstreamFailure::CallTimeout) => metrics.http_rejected(Cutoff::StreamTimeout).inc(),
            Refusal::Upstream(UpstreamFailure::Connect(ConnectFault::Descriptors)) => {
                metrics.http_rejected(Cutoff::FileDescriptors).inc();
            }
            Refusal::Upstream(UpstreamFailure::Connect(ConnectFault::Resources)) => {
                metrics.http_rejected(Cutoff::Resources).inc();
            }
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
            entry.answered(response.status());
        }
        let keepalive = snapshot.config.server.keepalive_timeout;
        let (stream, rate) = match route {
            Some(route) => (route.timeouts.stream, route.timeouts.min_response_rate),
            None => (keepalive, 0),
        };
        self.deadline.arm(Awaited::Stream, stream);
        self.deadline.follow_pace(stream, rate);
        // Its body is not read.
        let end = if self.method == Method::HEAD { AnswerEnd::Whole } else { AnswerEnd::Cut };
        self.answer = Some(Answering { stream, keepalive, upload, end });
        self
    }

    /// The answer switches protocols: the request goes on for as long as something moves within `limit`.
    pub fn switched(&mut self, limit: Duration) {
        self.switched = true;
        self.handles.observe(self.started.elapsed().as_secs_f64());
        self.deadline.switched();
        self.deadline.arm(Awaited::Tunnel, limit);
    }

    /// A tunnel has carried so many bytes more to the client, or others to the server, and waits within `limit`.
    pub fn carried(&mut self, bytes: u64, awaited: Awaited, limit: Duration) {
        self.deadline.arm(awaited, limit);
        if let Some(entry) = &mut self.log {
            entry.sent(bytes);
        }
    }

    /// So many bytes more of the answer are on their way.
    pub fn sent(&mut self, bytes: usize) {
        if let Some(answer) = &self.answer {
            self.deadline.arm(Awaited::Stream, answer.stream);
        }
        if let Some(entry) = &mut self.log {
            entry.sent(bytes as u64);
        }
    }

    /// All of the answer is on its way.
    pub fn sent_whole(&mut self) {
        if let Some(answer) = &mut self.answer {
            answer.end = AnswerEnd::Whole;
        }
    }

    /// There is no more of the answer, which is not whole.
    pub fn broke_off(&mut self, error: &BodyError) {
        if let Some(answer) = &mut self.answer {
            answer.end = AnswerEnd::Broken(error.cause());
        }
    }

    /// Time is up, and it was more of the answer that was waited for: not the client.
    pub fn stalled(&mut self) {
        if let (Some(answer), Some(Awaited::Stream)) = (&mut self.answer, self.deadline.expired()) {
            answer.end = AnswerEnd::Broken(Cause { by_server: true, ..Cutoff::StreamTimeout.into() });
        }
    }

    /// Settles charges that wait for the end of the response. Without trailers it was whole, the server has broken it
    /// off, or the client has aborted it: by leaving, by breaking off its own body, or by silence in that body
    /// until the server had nothing to say in time.
    fn finish(&mut self) {
        let Some(held) = self.held.as_mut().filter(|held| held.awaits_end()) else { return };
        let none = HeaderMap::new();
        held.finish(match &self.answer {
            Some(Answering { end: AnswerEnd::Whole, .. }) => Some(ResponseTail::Whole(&none)),
            Some(Answering { end: AnswerEnd::Broken(cause), upload, .. }) if cause.by_server => {
                let state = upload.as_ref().map_or(UploadState::Done, |upload| upload.state());
                let is_stall = cause.reason == Cutoff::StreamTimeout.label();
                let is_by_client = state.is_client_fault() || (is_stall && state != UploadState::Done);
                (!is_by_client).then_some(ResponseTail::Cut)
            }
            _ => None,
        });
    }

    /// Why the request ended before its answer did.
    fn cut_by(&self) -> Option<Cause> {
        match &self.answer {
            Some(Answering { end: AnswerEnd::Whole, .. }) => return None,
            Some(Answering { end: AnswerEnd::Broken(cause), .. }) => return Some(*cause),
            Some(Answering { end: AnswerEnd::Cut, .. }) | None => {}
        }
        if self.deadline.is_cut() {
            return Some(EndReason::Shutdown.into());
        }
        if self.deadline.has_failed() {
            return Some(EndReason::H2ConnectionError.into());
        }
        let late = self.deadline.expired().and_then(Awaited::timeout);
        // A tunnel ends when its sides want it to.
        if self.switched && late.is_none() {
            return None;
        }
        Some(late.map_or(Cutoff::ClientLeft.into(), Cause::from))
    }
}

/// The end of the request: its answer has been sent as far as it goes, or the client left before.
impl Drop for Account {
    fn drop(&mut self) {
        self.finish();
        match &self.answer {
            Some(_) if self.switched => {}
            Some(_) => self.handles.observe(self.started.elapsed().as_secs_f64()),
            None => self.handles.answer(&self.method, refusal::client_closed()),
        }
        if self.entered {
            self.handles.leave();
        }
        if let Some(mut entry) = self.log.take() {
            if self.answer.is_none() {
                entry.answered(refusal::client_closed());
            }
            if let Some(cause) = self.cut_by() {
                // The stream of such a body was reset, and the client has not left.
                entry.caused(if entry.is_body_malformed() { EndReason::BodyMalformed.into() } else { cause });
            }
            entry.write(self.started);
        }
        match &self.answer {
            Some(Answering { upload: Some(upload), keepalive, .. }) => upload.answered(*keepalive),
            Some(Answering { upload: None, keepalive, .. }) => self.deadline.end(*keepalive),
            None => self.deadline.leave(),
        }
    }
}
