//! The account of one request. It counts the request in the metrics, feeds its access log entry, settles what the
//! limits charged, and holds its deadline.
//!
//! The account is opened with the request and counts the response once. It ends once: with the response body, which
//! says how, or when it is dropped, with the tunnel or with a request that got no response because the client
//! disconnected.

pub(crate) mod body;
pub(crate) mod linger;
pub(crate) mod log_entry;
pub(crate) mod request_context;
mod settlement;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::{Method, Response, StatusCode};

use crate::ends::{Counted, End};
use crate::limiting::Verdict;
use crate::limiting::charges::guard::{ChargeGuard, LeaseGuard};
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
    counters: Rc<RouteCounters>,
    /// The branch that the split of the route has chosen.
    branch: Option<ChosenBranch>,
    /// The request is counted among the route's requests in flight.
    in_flight: Option<InFlightCount>,
    method: Method,
    started: Instant,
    /// How long the request waited for others so far: the store, a server, a delay.
    waited: Cell<Duration>,
    life: Life,
    /// Charges of the limits that may still change, until the outcome of the request is known.
    charges: Option<Box<ChargeGuard>>,
    /// Progress of the request body, if it was opened.
    upload: Option<Rc<UploadProgress>>,
    /// The request's concurrency slots, shared with the exchange once the request is forwarded.
    leases: Option<Rc<LeaseGuard>>,
    /// The request is counted by the process rule, if there is one.
    overload: Option<OverloadPermit>,
    log: Option<Box<LogEntry>>,
}

/// The life of a request. Each state follows the one before it, and `Ended` may follow all.
enum Life {
    /// There is no response yet. `reached_server` is true if a server got at least one byte and may act on it.
    Open {
        reached_server: bool,
    },
    /// The response is on its way.
    Answering(SentResponse),
    /// The connection has become a tunnel. The duration of the request was observed then: the lifetime of a tunnel is
    /// not a response time.
    Tunnel(SentResponse),
    Ended,
}

/// A response on its way to the client.
struct SentResponse {
    /// The longest pause allowed (`stream_timeout`).
    stream: Duration,
    /// How long the connection may be idle after the response.
    keepalive: Duration,
    /// Progress of the request body, which may outlast the response.
    upload: Option<Rc<UploadProgress>>,
}

/// How a response body has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// The whole body was passed to the connection.
    Whole,
    /// The source of the body failed: the upstream server or, for an echo, the client.
    Broken(End),
    /// Nobody waits for the rest: the client disconnected, or the gateway ended the connection.
    Abandoned,
}

/// The branch of a split that a request gets.
#[derive(Clone, Copy)]
struct ChosenBranch {
    /// Index into the branches of the split.
    place: usize,
    /// The status with which the gateway refused the request. That of a gRPC response is always 200.
    refused: Option<StatusCode>,
}

/// Counts a request among those of a route that are in flight.
struct InFlightCount {
    counters: Rc<RouteCounters>,
    /// The request has one of the places of `max_in_flight`. One that waits for its body or its turn has none.
    has_place: bool,
}

impl InFlightCount {
    fn return_place(&mut self) {
        if std::mem::replace(&mut self.has_place, false) {
            self.counters.return_place();
        }
    }
}

impl Drop for InFlightCount {
    fn drop(&mut self) {
        self.return_place();
        self.counters.leave();
    }
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
            counters: unmatched.clone(),
            branch: None,
            in_flight: None,
            method: method.clone(),
            started,
            waited: Cell::default(),
            life: Life::Open { reached_server: false },
            charges: None,
            upload: None,
            leases: None,
            overload: None,
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

    /// Counts the request on `route`, without a place among those in flight.
    pub fn enter_route(&mut self, route: &Route, counters: Rc<RouteCounters>) {
        self.count_on_route(route, counters);
        self.counters.enter();
        self.in_flight = Some(InFlightCount { counters: self.counters.clone(), has_place: false });
    }

    /// Returns whether the route is at `max_in_flight`.
    pub fn is_route_full(&self, route: &Route) -> bool {
        route.max_in_flight.is_some_and(|max| self.counters.is_full(max))
    }

    /// Takes a place among the requests in flight of the route. Returns false if the route is at `max_in_flight`.
    pub fn take_place(&mut self, route: &Route) -> bool {
        let (Some(max), Some(count)) = (route.max_in_flight, &mut self.in_flight) else { return true };
        count.has_place = count.has_place || count.counters.take_place(max);
        count.has_place
    }

    /// Returns the places among the requests in flight of the route and of the process.
    pub fn return_places(&mut self) {
        if let Some(count) = &mut self.in_flight {
            count.return_place();
        }
        if let Some(mut permit) = self.overload.take() {
            permit.return_place();
        }
    }

    /// Counts a question about a request on `route`, which does not serve the request.
    pub fn count_on_route(&mut self, route: &Route, counters: Rc<RouteCounters>) {
        if let Some(entry) = &mut self.log {
            entry.record_route(route);
        }
        self.counters = counters;
    }

    /// Keeps the request counted by the process rule until it ends.
    pub fn hold_overload_permit(&mut self, permit: OverloadPermit) {
        self.overload = Some(permit);
    }

    /// Counts the request on the branch at `place` of the route's split when its response begins and when it ends.
    pub fn record_branch(&mut self, place: usize) {
        self.branch = Some(ChosenBranch { place, refused: None });
    }

    /// Records the status of a refusal for the branch of the request, if a split has chosen one.
    pub fn record_branch_refusal(&mut self, status: StatusCode) {
        if let Some(branch) = &mut self.branch {
            branch.refused = Some(status);
        }
    }

    /// Returns the permit of the process rule.
    pub fn overload_permit(&mut self) -> Option<&mut OverloadPermit> {
        self.overload.as_mut()
    }

    /// Records that the route's `allow` list exempted the request from the limits at `indexes`, which are not empty.
    pub fn record_bypass(&mut self, indexes: Range<usize>) {
        self.counters.limits[indexes].iter().for_each(|limit| limit.count_bypass());
        if let Some(entry) = &mut self.log {
            entry.record_bypass();
        }
    }

    /// Counts a decision of limits of the route.
    pub fn count_decision(&self, route: &Route, verdict: &Verdict) {
        let counters = &self.counters;
        let refusing = if verdict.refused { verdict.refusing_limits(&route.limits).count().max(1) } else { 0 };
        for checked in &verdict.checks {
            counters.limits[checked.limit].count_decision(&route.limits[checked.limit], checked, refusing);
        }
        counters.count_comparisons(&verdict.comparisons);
        if let Some(checked) = verdict.longest_refusal(&route.limits) {
            counters.limits[checked.limit].count_rejection(checked.outcome.end());
        }
    }

    /// Logs the decisions of all limits of the route so far.
    pub fn record_decision(&mut self, route: &Route, verdict: &Verdict, shown: ShownKeys) {
        if let Some(entry) = &mut self.log {
            entry.record_decision(route, verdict, shown);
        }
    }

    /// Records that the request waited for others since `begun`.
    pub fn add_wait(&self, begun: Instant) {
        self.waited.set(self.waited.get() + begun.elapsed());
    }

    /// Returns the metrics of the route.
    pub fn share_counters(&self) -> Rc<RouteCounters> {
        self.counters.clone()
    }

    /// Counts a request to the auth server.
    pub fn count_forward_auth(&self, outcome: ForwardAuthOutcome) {
        self.counters.count_forward_auth(outcome);
    }

    /// Shares the concurrency slots with the exchange. They are released when both have ended.
    pub fn share_leases(&mut self) -> Option<Rc<LeaseGuard>> {
        self.leases = self.charges.as_mut().and_then(|charges| charges.take_leases());
        self.leases.clone()
    }

    /// Returns the concurrency slots of a request that was forwarded.
    pub fn shared_leases(&self) -> Option<Rc<LeaseGuard>> {
        self.leases.clone()
    }

    /// Records that at least one byte of the request was sent to a server.
    pub fn record_server_reached(&mut self) {
        if let Life::Open { reached_server } = &mut self.life {
            *reached_server = true;
        }
    }

    /// Logs and counts a refusal. The decision has counted those of limits.
    pub fn record_refusal(&mut self, end: End, metrics: &Metrics) {
        if let Some(entry) = &mut self.log {
            entry.record_end(end);
        }
        match end.row().counted {
            Counted::Http => metrics.rejected_counter(end).inc(),
            Counted::Route => self.counters.count_rejection(end),
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
        self.count_response(response.status());
        self.counters.observe_overhead(self.started.elapsed().saturating_sub(self.waited.get()));
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
        self.life = Life::Answering(SentResponse { stream, keepalive, upload });
        self
    }

    fn count_response(&self, status: StatusCode) {
        self.counters.count_response(&self.method, status);
        if let Some(ChosenBranch { place, refused }) = self.branch {
            self.counters.count_branch_response(place, refused.unwrap_or(status));
        }
    }

    /// Counts the duration of the request so far, with its trace if it has a span.
    fn observe_duration(&self) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.counters.observe_duration(seconds);
        if let Some(branch) = self.branch {
            self.counters.observe_branch_duration(branch.place, seconds);
        }
        if let Some(trace_id) = self.log.as_ref().and_then(|entry| entry.sampled_trace()) {
            self.counters.record_exemplar(seconds, trace_id);
        }
    }

    /// Records that the connection becomes a tunnel, which may be silent for at most `limit`.
    pub fn start_tunnel(&mut self, limit: Duration) {
        if let Life::Answering(response) = std::mem::replace(&mut self.life, Life::Ended) {
            self.life = Life::Tunnel(response);
        }
        // A tunnel is not a request in flight.
        self.overload = None;
        self.observe_duration();
        self.deadline.mark_upgraded();
        self.deadline.arm(RequestWait::Tunnel, limit);
    }

    /// Records that a tunnel moved data, `bytes` of them to the client, and `received` from it so far, and arms its
    /// next deadline.
    pub fn record_tunnel_bytes(&mut self, (bytes, received): (u64, u64), awaited: RequestWait, limit: Duration) {
        self.deadline.arm(awaited, limit);
        if let Some(charges) = &mut self.charges {
            charges.record_sent(bytes);
            charges.record_received(received);
        }
        if let Some(entry) = &mut self.log {
            entry.add_sent_bytes(bytes);
        }
    }

    /// Records that `bytes` of the response body were passed to the connection.
    pub fn record_sent(&mut self, bytes: usize) {
        if let Life::Answering(SentResponse { stream, .. }) = self.life {
            self.deadline.arm(RequestWait::Stream, stream);
        }
        if let Some(charges) = &mut self.charges {
            charges.record_sent(bytes as u64);
        }
        if let Some(entry) = &mut self.log {
            entry.add_sent_bytes(bytes as u64);
        }
    }

    /// Ends the request with the end of its response body.
    pub fn end(mut self: Box<Self>, end: ResponseEnd) {
        self.close(end);
    }

    /// Settles, counts and logs what is left, once.
    fn close(&mut self, end: ResponseEnd) {
        let life = std::mem::replace(&mut self.life, Life::Ended);
        let end = match (&life, end) {
            (Life::Ended, _) => return,
            // A response to HEAD has no body to read.
            (Life::Answering(_), ResponseEnd::Abandoned) if self.method == Method::HEAD => ResponseEnd::Whole,
            (_, end) => end,
        };
        self.count_upload();
        self.settle_at_end(&life, end);
        match &life {
            Life::Answering(_) => self.observe_duration(),
            Life::Open { .. } => self.count_response(End::ClientLeft.status()),
            Life::Tunnel(_) | Life::Ended => {}
        }
        self.in_flight = None;
        if let Some(mut entry) = self.log.take() {
            if let Life::Open { .. } = life {
                entry.record_status(End::ClientLeft.status());
            }
            if let Some(cut) = self.find_cut(&life, end) {
                // The gateway reset the stream of a malformed body. The client did not leave.
                entry.record_end(if entry.is_body_malformed() { End::BodyMalformed } else { cut });
            }
            entry.write(self.started);
        }
        match life {
            Life::Answering(response) | Life::Tunnel(response) => match response.upload {
                Some(upload) => upload.response_sent(response.keepalive),
                None => self.deadline.end(response.keepalive),
            },
            Life::Open { .. } | Life::Ended => self.deadline.end_by_client(),
        }
    }

    /// Returns why the request ended before its response did.
    fn find_cut(&self, life: &Life, end: ResponseEnd) -> Option<End> {
        match end {
            ResponseEnd::Whole => return None,
            ResponseEnd::Broken(end) => return Some(end),
            ResponseEnd::Abandoned => {}
        }
        if self.deadline.is_cut() {
            return Some(End::Shutdown);
        }
        if self.deadline.has_failed() {
            return Some(End::H2ConnectionError);
        }
        let late = self.deadline.expired_wait().and_then(RequestWait::end);
        match life {
            // A tunnel ends whenever one of its sides closes it.
            Life::Tunnel(_) => late,
            _ => Some(late.unwrap_or(End::ClientLeft)),
        }
    }
}

impl Life {
    /// Returns how the request body stands that a response may precede.
    fn upload_state(&self) -> UploadState {
        match self {
            Life::Answering(SentResponse { upload: Some(upload), .. }) => upload.state(),
            _ => UploadState::Done,
        }
    }
}

/// The request is abandoned if it has not ended: the client disconnected before there was a response, or a tunnel ends.
impl Drop for RequestAccount {
    fn drop(&mut self) {
        self.close(ResponseEnd::Abandoned);
    }
}
