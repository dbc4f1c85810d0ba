//! The account of one request. It counts the request in the metrics, feeds its access log entry, settles what the
//! limits charged, and holds its deadline.
//!
//! The account is opened with the request and counts the response once. It ends when it is dropped: with the response
//! body, with the tunnel, or with a request that got no response because the client left.

pub(crate) mod body;
pub(crate) mod linger;
pub(crate) mod log_entry;
pub(crate) mod request_context;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, Response, StatusCode};

use crate::ends::{Counted, End, Refund};
use crate::limiting::Verdict;
use crate::limiting::charges::guard::{ChargeGuard, LeaseGuard};
use crate::limiting::limit::charge_rules::{RequestEnd, ResponseTail};
use crate::overload::process_load::OverloadPermit;
use crate::proxy::account::log_entry::LogEntry;
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::connection::upload::{UploadProgress, UploadState};
use crate::proxy::words::shown_keys::{ShownKeys, WantedKeys};
use crate::route::Route;
use crate::snapshot::{RouteCounters, Snapshot};
use crate::telemetry::metrics::{ForwardAuthOutcome, Metrics};

pub struct RequestAccount {
    deadline: RequestDeadline,
    /// Metrics of the route, or of unmatched requests.
    handles: Rc<RouteCounters>,
    /// The request is counted among the route's requests in flight.
    entered: bool,
    method: Method,
    started: Instant,
    /// How long the request waited for others so far: the store, a server, a delay.
    waited: Cell<Duration>,
    /// The connection has become a tunnel, so the duration has already been observed: the lifetime of a tunnel is not a
    /// response time.
    switched: bool,
    /// Set once the response is known.
    response: Option<SentResponse>,
    /// Charges of the limits that may still change, until the outcome of the request is known.
    held: Option<Box<ChargeGuard>>,
    /// The request's concurrency slots, shared with the exchange once the request is forwarded.
    leases: Option<Rc<LeaseGuard>>,
    /// The request is counted by the process rule, if there is one.
    overload: Option<OverloadPermit>,
    /// A server got at least one byte and may act on it.
    reached_server: bool,
    log: Option<Box<LogEntry>>,
}

/// A response on its way to the client.
struct SentResponse {
    /// The longest pause allowed (`stream_timeout`).
    stream: Duration,
    /// How long the connection may be idle after the response.
    keepalive: Duration,
    /// Progress of the request body, which may outlast the response.
    upload: Option<Rc<UploadProgress>>,
    end: ResponseEnd,
}

/// How the response body has ended so far.
enum ResponseEnd {
    /// The body has not reached its end. If nothing else follows, the connection ended first.
    Cut,
    Whole,
    /// The source of the body failed: the upstream server or, for an echo, the client.
    Broken(End),
}

impl RequestAccount {
    pub fn open(
        unmatched: &Rc<RouteCounters>,
        deadline: RequestDeadline,
        method: &Method,
        started: Instant,
    ) -> Box<RequestAccount> {
        Box::new(RequestAccount {
            deadline,
            handles: unmatched.clone(),
            entered: false,
            method: method.clone(),
            started,
            waited: Cell::default(),
            switched: false,
            response: None,
            held: None,
            leases: None,
            overload: None,
            reached_server: false,
            log: None,
        })
    }

    pub fn deadline(&self) -> &RequestDeadline {
        &self.deadline
    }

    /// Returns when the head of the request had arrived.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Sets the access log entry of the request.
    pub fn set_log_entry(&mut self, entry: Box<LogEntry>) {
        self.log = Some(entry);
    }

    /// Returns which keys the log entry contains; see [`LogEntry::wanted_keys`].
    pub fn wanted_keys(&self) -> WantedKeys {
        self.log.as_ref().map_or_else(WantedKeys::default, |entry| entry.wanted_keys())
    }

    /// Returns the access log entry, if the request is logged.
    pub fn log_entry(&mut self) -> Option<&mut LogEntry> {
        self.log.as_deref_mut()
    }

    /// Returns whether the log line or the span of the request shows its id.
    pub fn logs_request_id(&self) -> bool {
        self.log.as_ref().is_some_and(|entry| entry.has_request_id())
    }

    /// Counts the request on `route`. Returns false if the route is at `max_in_flight`.
    pub fn enter_route(&mut self, route: &Route, handles: Rc<RouteCounters>) -> bool {
        if let Some(entry) = &mut self.log {
            entry.record_route(route);
        }
        self.handles = handles;
        self.entered = true;
        self.handles.enter(route.max_in_flight)
    }

    /// Counts a question about a request on `route`, which does not serve the request.
    pub fn count_on_route(&mut self, route: &Route, handles: Rc<RouteCounters>) {
        if let Some(entry) = &mut self.log {
            entry.record_route(route);
        }
        self.handles = handles;
    }

    /// Leaves what the limits charged as it is, because the gateway does not learn how the request ends.
    pub fn keep_charges(&mut self) {
        if let Some(held) = self.held.take() {
            held.keep_charges();
        }
    }

    /// Keeps the request counted by the process rule until it ends.
    pub fn hold_overload_permit(&mut self, permit: OverloadPermit) {
        self.overload = Some(permit);
    }

    /// Returns the permit of the process rule.
    pub fn overload_permit(&mut self) -> Option<&mut OverloadPermit> {
        self.overload.as_mut()
    }

    /// Records that the route's `allow` list exempted the request from the limits at `indexes`, which are not empty.
    pub fn record_bypass(&mut self, indexes: Range<usize>) {
        self.handles.limits[indexes].iter().for_each(|limit| limit.count_bypass());
        if let Some(entry) = &mut self.log {
            entry.record_bypass();
        }
    }

    /// Counts a decision of limits of the route.
    pub fn count_decision(&self, route: &Route, verdict: &Verdict) {
        let handles = &self.handles;
        let refusing = if verdict.refused { verdict.refusing_limits(&route.limits).count().max(1) } else { 0 };
        for checked in &verdict.checks {
            handles.limits[checked.limit].count_decision(&route.limits[checked.limit], checked, refusing);
        }
        handles.count_comparisons(&verdict.comparisons);
        if let Some(checked) = verdict.longest_refusal(&route.limits) {
            handles.limits[checked.limit].count_rejection(checked.outcome.end());
        }
    }

    /// Logs the decisions of all limits of the route so far.
    pub fn record_decision(&mut self, route: &Route, verdict: &Verdict, shown: ShownKeys) {
        if let Some(entry) = &mut self.log {
            entry.record_decision(route, verdict, shown);
        }
    }

    /// Keeps what limits charged, besides what is kept already, until the outcome of the request is known.
    pub fn hold_charges(&mut self, charged: Option<Box<ChargeGuard>>) {
        match (&mut self.held, charged) {
            (Some(held), Some(mut charged)) => held.absorb(&mut charged),
            (held @ None, charged) => *held = charged,
            (Some(_), None) => {}
        }
    }

    /// Records that the request waited for others since `begun`.
    pub fn add_wait(&self, begun: Instant) {
        self.waited.set(self.waited.get() + begun.elapsed());
    }

    /// Counts a request to the auth server.
    pub fn count_forward_auth(&self, outcome: ForwardAuthOutcome) {
        self.handles.count_forward_auth(outcome);
    }

    /// Records that a delayed request continues: its charge is no longer refunded if the client leaves.
    pub fn end_delay(&mut self) {
        if let Some(held) = &mut self.held {
            held.end_wait();
        }
    }

    /// Shares the concurrency slots with the exchange. They are released when both have ended.
    pub fn share_leases(&mut self) -> Option<Rc<LeaseGuard>> {
        self.leases = self.held.as_mut().and_then(|held| held.take_leases());
        self.leases.clone()
    }

    /// Returns the concurrency slots of a request that was forwarded.
    pub fn shared_leases(&self) -> Option<Rc<LeaseGuard>> {
        self.leases.clone()
    }

    /// Records that at least one byte of the request was sent to a server.
    pub fn record_server_reached(&mut self) {
        self.reached_server = true;
    }

    /// Settles what the limits charged by the head of the response, as the server sent it. Limits that need the body
    /// or the trailers settle later. `ends_by_close`: only the end of the server's connection ends the body.
    pub fn settle_by_response<B>(&mut self, response: &Response<B>, ends_by_close: bool) {
        let Some(held) = &mut self.held else { return };
        let (status, head, none) = (response.status(), response.headers(), HeaderMap::new());
        // A tunnel follows such a head, and no trailers.
        let is_switch = status == StatusCode::SWITCHING_PROTOCOLS;
        if held.reads_usage() {
            let is_empty = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
            held.start_scan(status, head, !is_switch && !is_empty && self.method != Method::HEAD, ends_by_close);
        }
        let tail = if is_switch { ResponseTail::Whole(&none) } else { ResponseTail::Awaited };
        held.settle_outcome(RequestEnd::Response { status, head, tail });
    }

    /// Settles what the limits charged by the gateway's own response to a refusal. `status` is the status of the
    /// refusal, not the 200 of a gRPC response.
    ///
    /// A server that got a part of the request may have acted on it. If the client then ends the exchange, the request
    /// counts as aborted, regardless of the status.
    pub fn settle_by_refusal(&mut self, status: StatusCode, head: &HeaderMap, end: End) {
        let Some(held) = &mut self.held else { return };
        let none = HeaderMap::new();
        held.settle_outcome(match end.row().refund {
            Refund::Abort if self.reached_server => RequestEnd::Aborted,
            Refund::Overload if !self.reached_server => RequestEnd::Overloaded { status, head },
            Refund::Unsent if !self.reached_server => RequestEnd::ConnectError { status, head },
            _ => RequestEnd::Response { status, head, tail: ResponseTail::Whole(&none) },
        });
    }

    /// Returns whether a limit settles by the body of the response.
    pub fn reads_usage(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.reads_usage())
    }

    /// Returns whether the gateway must request the usage of the stream from the server.
    pub fn requests_usage(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.requests_usage())
    }

    /// Reads a copy of the next piece of the response body as the server sent it, for limits that settle by it.
    pub fn scan_body(&mut self, bytes: &[u8]) {
        if let Some(held) = &mut self.held {
            held.scan_body(bytes);
        }
    }

    /// Settles the charges by a response body that has arrived completely.
    pub fn settle_by_full_body(&mut self, bytes: &[u8]) {
        if let Some(held) = self.held.as_mut().filter(|held| held.reads_usage() && held.is_awaiting_end()) {
            held.scan_body(bytes);
            held.settle_end(Some(ResponseTail::Whole(&HeaderMap::new())));
        }
    }

    /// Settles the charges that wait for the trailers of the response, as the server sent them.
    pub fn settle_by_trailers(&mut self, trailers: &HeaderMap) {
        let Some(held) = self.held.as_mut().filter(|held| held.is_awaiting_end()) else { return };
        let upload = self.response.as_ref().and_then(|answer| answer.upload.as_ref());
        let is_broken = upload.is_some_and(|upload| upload.state().is_client_fault());
        held.settle_end((!is_broken).then_some(ResponseTail::Whole(trailers)));
    }

    /// Takes out the charges that still wait for the end of the response, with the longest time to wait. Called if the
    /// response body has ended before its stream.
    pub fn take_waiting_charges(&mut self) -> Option<(Box<ChargeGuard>, Duration)> {
        let stream = self.response.as_ref()?.stream;
        self.take_pending_charges().map(|held| (held, stream))
    }

    /// Takes out the charges that still wait for the end of the server's response, because the client gets another one.
    pub fn take_pending_charges(&mut self) -> Option<Box<ChargeGuard>> {
        self.held.take_if(|held| held.is_awaiting_end())
    }

    /// Logs and counts a refusal. The decision has counted those of limits.
    pub fn record_refusal(&mut self, end: End, metrics: &Metrics) {
        if let Some(entry) = &mut self.log {
            entry.record_end(end);
        }
        match end.row().counted {
            Counted::Http => metrics.rejected_counter(end).inc(),
            Counted::Route => self.handles.count_rejection(end),
            Counted::Limit | Counted::No => {}
        }
    }

    /// Counts the response and arms the deadline for its body. `upload`: the request body, which may outlast the
    /// response.
    pub fn record_response<B>(
        mut self: Box<Self>,
        response: &Response<B>,
        route: Option<&Route>,
        snapshot: &Snapshot,
        upload: Option<Rc<UploadProgress>>,
    ) -> Box<Self> {
        self.handles.count_response(&self.method, response.status());
        self.handles.observe_overhead(self.started.elapsed().saturating_sub(self.waited.get()));
        if let Some(entry) = &mut self.log {
            entry.record_status(response.status());
        }
        let keepalive = snapshot.config.server.keepalive_timeout;
        let (stream, rate) = match route {
            Some(route) => (route.timeouts.stream, route.timeouts.min_response_rate),
            None => (keepalive, 0),
        };
        self.deadline.arm(RequestWait::Stream, stream);
        self.deadline.set_min_rate(stream, rate);
        // A response to HEAD has no body to read.
        let end = if self.method == Method::HEAD { ResponseEnd::Whole } else { ResponseEnd::Cut };
        self.response = Some(SentResponse { stream, keepalive, upload, end });
        self
    }

    /// Counts the duration of the request so far, with its trace if it has a span.
    fn observe_duration(&self) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.handles.observe_duration(seconds);
        if let Some(trace_id) = self.log.as_ref().and_then(|entry| entry.sampled_trace()) {
            self.handles.record_exemplar(seconds, trace_id);
        }
    }

    /// Records that the connection becomes a tunnel, which may be silent for at most `limit`.
    pub fn start_tunnel(&mut self, limit: Duration) {
        self.switched = true;
        // A tunnel is no request in flight.
        self.overload = None;
        self.observe_duration();
        self.deadline.mark_upgraded();
        self.deadline.arm(RequestWait::Tunnel, limit);
    }

    /// Records that a tunnel moved data, `bytes` of them to the client, and arms its next deadline.
    pub fn record_tunnel_bytes(&mut self, bytes: u64, awaited: RequestWait, limit: Duration) {
        self.deadline.arm(awaited, limit);
        if let Some(entry) = &mut self.log {
            entry.add_sent_bytes(bytes);
        }
    }

    /// Records that `bytes` of the response body were passed to the connection.
    pub fn record_sent(&mut self, bytes: usize) {
        if let Some(answer) = &self.response {
            self.deadline.arm(RequestWait::Stream, answer.stream);
        }
        if let Some(entry) = &mut self.log {
            entry.add_sent_bytes(bytes as u64);
        }
    }

    /// Records that the whole response body was passed to the connection.
    pub fn record_complete(&mut self) {
        if let Some(answer) = &mut self.response {
            answer.end = ResponseEnd::Whole;
        }
    }

    /// Records that the response body ended before it was complete.
    pub fn record_broken(&mut self, end: End) {
        if let Some(answer) = &mut self.response {
            answer.end = ResponseEnd::Broken(end);
        }
    }

    /// Records that the deadline expired while the gateway waited for the server, not for the client.
    pub fn record_stall(&mut self) {
        if let (Some(answer), Some(RequestWait::Stream)) = (&mut self.response, self.deadline.expired_wait()) {
            answer.end = ResponseEnd::Broken(End::ResponseStalled);
        }
    }

    /// Settles the charges that wait for the end of the response.
    ///
    /// Without trailers, the response was complete, or the server cut it off, or the client aborted it. A client aborts
    /// a response by disconnecting or by breaking off its own body. It also does so by pausing its body until the
    /// server has been silent for too long.
    fn settle_at_end(&mut self) {
        let Some(held) = self.held.as_mut().filter(|held| held.is_awaiting_end()) else { return };
        let none = HeaderMap::new();
        held.settle_end(match &self.response {
            Some(SentResponse { end: ResponseEnd::Whole, .. }) => Some(ResponseTail::Whole(&none)),
            Some(SentResponse { end: ResponseEnd::Broken(end), upload, .. }) if end.is_server_fault() => {
                let state = upload.as_ref().map_or(UploadState::Done, |upload| upload.state());
                let is_stall = *end == End::ResponseStalled;
                let is_by_client = state.is_client_fault() || (is_stall && state != UploadState::Done);
                (!is_by_client).then_some(ResponseTail::Cut)
            }
            _ => None,
        });
    }

    /// Returns why the request ended before its response did.
    fn find_cut(&self) -> Option<End> {
        match &self.response {
            Some(SentResponse { end: ResponseEnd::Whole, .. }) => return None,
            Some(SentResponse { end: ResponseEnd::Broken(end), .. }) => return Some(*end),
            Some(SentResponse { end: ResponseEnd::Cut, .. }) | None => {}
        }
        if self.deadline.is_cut() {
            return Some(End::Shutdown);
        }
        if self.deadline.has_failed() {
            return Some(End::H2ConnectionError);
        }
        let late = self.deadline.expired_wait().and_then(RequestWait::end);
        // A tunnel ends whenever one of its sides closes it.
        if self.switched && late.is_none() {
            return None;
        }
        Some(late.unwrap_or(End::ClientLeft))
    }
}

/// Ends the request: its response was sent as far as possible, or the client left before there was one.
impl Drop for RequestAccount {
    fn drop(&mut self) {
        self.settle_at_end();
        match &self.response {
            Some(_) if self.switched => {}
            Some(_) => self.observe_duration(),
            None => self.handles.count_response(&self.method, End::ClientLeft.status()),
        }
        if self.entered {
            self.handles.leave();
        }
        if let Some(mut entry) = self.log.take() {
            if self.response.is_none() {
                entry.record_status(End::ClientLeft.status());
            }
            if let Some(end) = self.find_cut() {
                // The gateway reset the stream of a malformed body. The client did not leave.
                entry.record_end(if entry.is_body_malformed() { End::BodyMalformed } else { end });
            }
            entry.write(self.started);
        }
        match &self.response {
            Some(SentResponse { upload: Some(upload), keepalive, .. }) => upload.response_sent(*keepalive),
            Some(SentResponse { upload: None, keepalive, .. }) => self.deadline.end(*keepalive),
            None => self.deadline.end_by_client(),
        }
    }
}
