//! One request on its way to a server and back, up to the head of the response: acquire a connection, exchange, and
//! retry where that is safe. Called by `dispatch` once the limits have admitted the request.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::{Method, Response, StatusCode};
use tokio::task::spawn_local;

use crate::ends::{Blame, End, RetryReason, UpstreamOutcome};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::linger::Linger;
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::connection::upload::{Upload, UploadProgress};
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::outbound::exchange;
use crate::proxy::outbound::exchange::Exchange;
use crate::proxy::outbound::http1_exchange::Http1Exchange;
use crate::proxy::outbound::http2_exchange::Http2Exchange;
use crate::proxy::outbound::pool::ServerLease;
use crate::proxy::outbound::retry_policy::back_off;
use crate::proxy::outbound::select::endpoint::{StreamedResponse, WorkerEndpoint};
use crate::proxy::outbound::select::retry_state::{Acquired, RetryState};
use crate::proxy::outbound::select::worker_upstream::{OutcomeCounters, WorkerUpstream};
use crate::proxy::outbound::sender::RequestSender;
use crate::proxy::steps::outgoing_request::OutgoingRequest;
use crate::proxy::steps::response::early_hints::EarlyHints;
use crate::proxy::steps::select::acquire::acquire;
use crate::proxy::steps::select::retry::begin_retry;
use crate::proxy::words::failure_log::UpstreamFailureLog;
use crate::proxy::words::refusal::Refusal;
use crate::route::Timeouts;
use crate::telemetry::access_log::{AttemptEnd, Attempts};
use crate::upstream::adaptive::window::SampleKind;
use crate::upstream::eject::Blame as AddressBlame;

/// Interim responses extend the wait for the final response to this many times `response_timeout`.
const EXTENSIONS: u32 = 10;

/// A response to forward to the client.
pub struct ForwardedResponse {
    pub response: Response<ResponseBody>,
    /// The server that made the response.
    pub server: Rc<WorkerEndpoint>,
    /// The unread request body, if the server responded without requesting it (`Expect: 100-continue`).
    pub unrequested_body: Option<Upload>,
}

/// Sends `outgoing` to a server of `servers` and waits for the head of the response.
///
/// Every request is sent again if no server can have acted on it: after a failed connect, or if an idle connection
/// turns out to be closed before anything was written. An idempotent request without a body is also sent again in two
/// further cases, because servers may act on it twice: if an idle connection closes before any response, and, if
/// `retry` of the upstream permits, on another server.
///
/// # Errors
/// No server sent a response, or the client ended the exchange.
pub async fn forward_request(
    servers: &WorkerUpstream,
    deadline: &RequestDeadline,
    timeouts: &Timeouts,
    outgoing: &mut OutgoingRequest,
    attempts: Option<&Attempts>,
    hints: Option<EarlyHints<'_>>,
) -> Result<ForwardedResponse, Refusal> {
    let mut request = ForwardedRequest::new(servers, deadline, timeouts, outgoing);
    // Boxed: few requests are sent again, and all would reserve the space for it.
    let mut resent: Option<Box<RequestSender>> = None;
    loop {
        let Acquired { server, connection } = acquire(servers, &mut request.state, timeouts.connect, deadline)
            .await
            .inspect_err(|error| servers.record_unsent(*error))?;
        let mut attempt = request.start_attempt(connection, resent.take(), attempts);
        let result = request.wait_for_head(&mut attempt, hints.as_ref()).await;
        request.outgoing.has_sent_bytes |= attempt.has_sent_bytes();
        if let Some(attempts) = attempts {
            attempts.end_attempt(match &result {
                Ok(response) => AttemptEnd::Response(response.status().as_u16()),
                Err(error) => AttemptEnd::Failed(error.end.row().outcome.map_or("broken", UpstreamOutcome::span_error)),
            });
        }
        let next = match result {
            Ok(response) => request.handle_response(attempt, server, response),
            Err(error) => request.handle_error(attempt, &server, error),
        };
        match next {
            NextStep::Finish(result) => return result,
            NextStep::SendAgain(sender) => resent = Some(sender),
            NextStep::BackOff(sender) => {
                resent = Some(sender);
                back_off(request.state.failures()).await;
            }
        }
    }
}

/// The step after an attempt.
#[allow(clippy::large_enum_variant, reason = "most requests finish, and need no box for that")]
enum NextStep {
    Finish(Result<ForwardedResponse, Refusal>),
    /// Sends the request again at once.
    SendAgain(Box<RequestSender>),
    /// Sends the request again after a pause.
    BackOff(Box<RequestSender>),
}

/// A request on its way, over all of its attempts.
struct ForwardedRequest<'a> {
    servers: &'a WorkerUpstream,
    deadline: &'a RequestDeadline,
    timeouts: &'a Timeouts,
    outgoing: &'a mut OutgoingRequest,
    /// How far the client has sent the body, if there is one.
    progress: Option<Rc<UploadProgress>>,
    /// Servers may act on the request twice: the method is idempotent, and there is no body.
    is_repeatable: bool,
    /// A server has already reported that it did not process the request.
    was_refused: bool,
    state: RetryState,
}

impl<'a> ForwardedRequest<'a> {
    fn new(
        servers: &'a WorkerUpstream,
        deadline: &'a RequestDeadline,
        timeouts: &'a Timeouts,
        outgoing: &'a mut OutgoingRequest,
    ) -> ForwardedRequest<'a> {
        let progress = outgoing.upload.as_ref().map(Upload::share_progress);
        ForwardedRequest {
            state: servers.begin_request(
                outgoing.proxy_header.take(),
                outgoing.hash,
                outgoing.client,
                outgoing.priority,
            ),
            is_repeatable: progress.is_none() && outgoing.method.is_idempotent(),
            was_refused: false,
            servers,
            deadline,
            timeouts,
            outgoing,
            progress,
        }
    }

    /// Starts to send the request on `lease`. `resent` is the request as an earlier attempt returned it.
    fn start_attempt(
        &mut self,
        lease: ServerLease,
        resent: Option<Box<RequestSender>>,
        attempts: Option<&Attempts>,
    ) -> ServerAttempt<'a> {
        let outgoing = &mut *self.outgoing;
        let server = lease.server();
        let span = attempts.and_then(|attempts| attempts.start_attempt(server.label(), server.authority()));
        let sender = match resent {
            None => {
                let head = outgoing.head.take_bytes_for(&server.host, span);
                let mut first = RequestSender::new(head, outgoing.upload.take(), outgoing.trailers.take());
                if outgoing.expects_continue {
                    first.hold_body();
                }
                first
            }
            Some(mut again) => {
                if let Some(head) = outgoing.head.bytes_for_retry(&server.host, span) {
                    again.set_head(head);
                }
                *again
            }
        };
        if self.progress.is_none() {
            let limit = outgoing.client_limit.unwrap_or(self.timeouts.response);
            let left = outgoing.respond_by.map(|by| by.saturating_duration_since(Instant::now()));
            self.deadline.arm(RequestWait::Response, left.unwrap_or(limit).min(limit));
        }
        if let Some(clock) = &outgoing.clock {
            clock.start();
        }
        let is_reused = lease.is_reused();
        let exchange = start_exchange(lease, sender, &outgoing.method, &outgoing.offer, &self.servers.failure_log);
        ServerAttempt {
            exchange,
            is_reused,
            outcomes: Some(&self.servers.outcomes),
            linger: outgoing.linger.clone().map(|linger| (linger, Instant::now() + self.timeouts.response)),
            extended_since: None,
        }
    }

    /// Sends the request and waits for the head of the response. Interim responses go to the client on the way.
    async fn wait_for_head(
        &self,
        attempt: &mut ServerAttempt<'a>,
        hints: Option<&EarlyHints<'_>>,
    ) -> Result<Response<()>, Refusal> {
        let client_limit = self.outgoing.client_limit;
        let may_extend = client_limit.is_none() && self.outgoing.respond_by.is_none();
        let head = poll_fn(|cx| {
            let poll = attempt.exchange.borrow_mut().poll_head(cx);
            if let Some(place) = self.state.place().filter(|place| place.awaits_sending())
                && attempt.exchange.borrow().is_sent()
            {
                place.record_sent();
            }
            let interims = attempt.exchange.borrow_mut().take_interims();
            if !interims.is_empty() && poll.is_pending() && may_extend {
                attempt.extend_deadline(self.deadline, self.timeouts.response);
            }
            if let Some(hints) = hints {
                interims.into_iter().for_each(|head| hints.forward_interim(head));
            }
            poll
        });
        match self.deadline.run_within(head).await {
            Ok(result) => result,
            Err(RequestWait::Upload) if self.progress.as_ref().is_some_and(|progress| progress.is_grpc_call()) => {
                Err(End::CallTimeout.into())
            }
            Err(RequestWait::Upload) => Err(End::BodyTimeout.into()),
            Err(_) if client_limit.is_some() => Err(End::ClientTimeout.into()),
            Err(_) => Err(Refusal::within(End::UpstreamTimeout, self.timeouts.response)),
        }
    }

    /// Forwards the response, or retries the request because of the response's status.
    fn handle_response(
        &mut self,
        mut attempt: ServerAttempt<'a>,
        server: Rc<WorkerEndpoint>,
        response: Response<()>,
    ) -> NextStep {
        let blame = self.outgoing.client;
        attempt.count_outcome(UpstreamOutcome::Ok);
        let reason = RetryReason::from_status(response.status());
        match reason {
            None => server.record_success(blame),
            Some(_) => server.record_error(blame),
        }
        if reason.is_some_and(|reason| self.may_retry(&server, reason)) {
            // Reading the rest of a small response frees its connection for other requests.
            attempt.exchange.borrow_mut().take_complete_body();
            self.deadline.disarm();
            self.state.restart_place();
            return match attempt.take_request(true) {
                Some(sender) => NextStep::BackOff(sender),
                None => NextStep::Finish(Err(End::UpstreamClosed.into())),
            };
        }
        // A tunnel begins at the pace of what it carries, and a server that sheds load responds at once.
        let is_sample = reason.is_none() && self.outgoing.offer.is_none();
        self.state.end_place(is_sample.then_some(SampleKind::Response));
        if let Some(progress) = &self.progress {
            progress.response_started();
        }
        NextStep::Finish(Ok(attempt.into_forwarded(response, server, blame)))
    }

    /// Decides whether the request is sent again, and otherwise ends it with `error`.
    fn handle_error(
        &mut self,
        mut attempt: ServerAttempt<'a>,
        server: &Rc<WorkerEndpoint>,
        error: Refusal,
    ) -> NextStep {
        self.deadline.disarm();
        if error.end.row().blame == Blame::Client {
            attempt.count_client_error(error);
            // The exchange lingers as it does for a client that disconnects.
            return NextStep::Finish(Err(error));
        }
        if let Some(reason) = self.reason_to_send_again(&attempt, error) {
            return self.send_again(attempt, server, error, reason);
        }
        if error.end == End::UpstreamTunnel {
            // Nothing was sent. A client that offers a protocol says nothing about the health of the server.
            self.servers.log_error(error, server.label());
            self.state.end_place(None);
            attempt.end_failed();
            return NextStep::Finish(Err(error));
        }
        server.record_error(self.outgoing.client);
        error.end.row().outcome.into_iter().for_each(|outcome| attempt.count_outcome(outcome));
        self.servers.log_error(error, server.label());
        if error.end == End::UpstreamTimeout {
            attempt.exchange.borrow().mark_suspect();
        }
        if error.end.row().retry.is_some_and(|reason| self.may_retry(server, reason)) {
            self.state.restart_place();
            return match attempt.take_request(true) {
                Some(sender) => NextStep::BackOff(sender),
                None => NextStep::Finish(Err(error)),
            };
        }
        let is_timeout = error.end == End::UpstreamTimeout && self.outgoing.offer.is_none();
        self.state.end_place(is_timeout.then_some(SampleKind::Timeout));
        attempt.end_failed();
        NextStep::Finish(Err(error))
    }

    fn may_retry(&mut self, server: &Rc<WorkerEndpoint>, reason: RetryReason) -> bool {
        let has_time = self.outgoing.respond_by.is_none_or(|by| Instant::now() < by);
        self.is_repeatable && has_time && begin_retry(self.servers, &mut self.state, server, reason)
    }

    /// Returns the reason to send the request again regardless of the retry policy: the server has not seen the
    /// request, or it closed an idle connection just when the request was sent. Each happens once per request.
    fn reason_to_send_again(&mut self, attempt: &ServerAttempt<'a>, error: Refusal) -> Option<RetryReason> {
        match error.end {
            End::UpstreamClosed if attempt.is_reused && !self.state.requires_new_connection() => {
                Some(RetryReason::StaleConnection)
            }
            End::UpstreamRefused if !std::mem::replace(&mut self.was_refused, true) => Some(RetryReason::Refused),
            _ => None,
        }
    }

    /// Sends the request again if that is safe. The failure counts as an error of the server only if the request cannot
    /// be sent again.
    fn send_again(
        &mut self,
        attempt: ServerAttempt<'a>,
        server: &Rc<WorkerEndpoint>,
        error: Refusal,
        reason: RetryReason,
    ) -> NextStep {
        let Some(sender) = attempt.take_request(self.outgoing.method.is_idempotent()) else {
            error.end.row().outcome.into_iter().for_each(|outcome| self.servers.outcomes.count_outcome(outcome));
            self.servers.log_error(error, server.label());
            self.state.end_place(None);
            return NextStep::Finish(Err(error));
        };
        self.state.restart_place();
        if reason == RetryReason::StaleConnection {
            self.state.require_new_connection();
        }
        self.servers.outcomes.count_retry(reason);
        NextStep::SendAgain(sender)
    }
}

/// Starts an exchange on `lease`. The server may switch to the protocol of `offer`.
fn start_exchange(
    lease: ServerLease,
    sender: RequestSender,
    method: &Method,
    offer: &Option<UpgradeOffer>,
    failure_log: &Rc<UpstreamFailureLog>,
) -> Rc<RefCell<dyn Exchange>> {
    match lease {
        ServerLease::Connection(lease) => {
            let exchange = Http1Exchange::new(lease, sender, method.clone(), offer.clone(), failure_log.clone());
            Rc::new(RefCell::new(exchange))
        }
        ServerLease::Stream(stream) => {
            let exchange = Http2Exchange::new(stream, sender, offer.clone(), failure_log.clone());
            Rc::new(RefCell::new(exchange))
        }
    }
}

/// One attempt to send a request, until the head of the response. If it is dropped before that, the client has
/// disconnected or has not sent the whole request.
struct ServerAttempt<'a> {
    exchange: Rc<RefCell<dyn Exchange>>,
    /// True if the connection has served a request before, so that the server may be closing it.
    is_reused: bool,
    /// Counters of outcomes. `None` once the outcome of this attempt has been counted.
    outcomes: Option<&'a OutcomeCounters>,
    /// Continues the exchange if its client disconnects, and the time by which the response must then begin.
    linger: Option<(Linger, Instant)>,
    /// When the first interim response extended the wait.
    extended_since: Option<Instant>,
}

impl ServerAttempt<'_> {
    /// Returns whether at least one byte of the request was sent to the server.
    fn has_sent_bytes(&self) -> bool {
        self.exchange.borrow().has_sent_bytes()
    }

    /// Waits for the response for another `limit` after an interim response, which is a sign of life. All interim
    /// responses together extend the wait to at most `EXTENSIONS` times `limit`, so that no server holds a request
    /// forever. A request that is not sent completely still waits for its client.
    fn extend_deadline(&mut self, deadline: &RequestDeadline, limit: Duration) {
        if !self.exchange.borrow().is_sent() {
            return;
        }
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(*self.extended_since.get_or_insert(now));
        let left = limit.saturating_mul(EXTENSIONS).saturating_sub(elapsed).min(limit);
        deadline.arm(RequestWait::Response, left);
        if let Some((_, due)) = &mut self.linger {
            *due = now + left;
        }
    }

    /// Counts the outcome of this attempt, once.
    fn count_outcome(&mut self, outcome: UpstreamOutcome) {
        self.outcomes.take().into_iter().for_each(|outcomes| outcomes.count_outcome(outcome));
    }

    /// Counts a request that its client ended, if the server has received something of it. A deadline of the client
    /// counts in any case.
    fn count_client_error(&mut self, error: Refusal) {
        if self.has_sent_bytes() || error.end == End::ClientTimeout {
            error.end.row().outcome.into_iter().for_each(|outcome| self.count_outcome(outcome));
        }
    }

    /// Turns the attempt into the response for the client. Its body is read from the exchange.
    fn into_forwarded(
        mut self,
        response: Response<()>,
        server: Rc<WorkerEndpoint>,
        client: AddressBlame,
    ) -> ForwardedResponse {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.linger = None;
            let connection = self.exchange.borrow_mut().take_switched();
            return ForwardedResponse {
                response: response.map(|()| ResponseBody::switched(connection)),
                server,
                unrequested_body: None,
            };
        }
        let is_held = self.exchange.borrow().is_held();
        let unasked = if is_held { self.exchange.borrow_mut().abort_upload() } else { None };
        let whole = self.exchange.borrow_mut().take_complete_body();
        let linger = self.linger.take().map(|(linger, _)| linger);
        if unasked.is_none() && !self.exchange.borrow().is_sent() {
            spawn_local(exchange::send_rest(self.exchange.clone()));
        }
        let response = response.map(|()| match whole {
            Some(bytes) => ResponseBody::full(bytes),
            None => {
                let streamed = StreamedResponse::new(server.clone(), client);
                ResponseBody::upstream(self.exchange.clone(), streamed, linger)
            }
        });
        ForwardedResponse { response, server, unrequested_body: unasked }
    }

    /// Ends an attempt that failed on the server. The rest of the client's body is read and dropped, so that the client
    /// gets the error response.
    fn end_failed(mut self) {
        self.linger = None;
        if let Some(upload) = self.exchange.borrow_mut().abort_upload() {
            spawn_local(upload.discard());
        }
    }

    /// Returns the request if it is safe to send it again, and otherwise ends the attempt.
    fn take_request(mut self, idempotent: bool) -> Option<Box<RequestSender>> {
        (self.linger, self.outcomes) = (None, None);
        let request = self.exchange.borrow_mut().take_request(idempotent);
        if request.is_none() {
            self.end_failed();
        }
        request.map(Box::new)
    }
}

impl Drop for ServerAttempt<'_> {
    fn drop(&mut self) {
        if self.has_sent_bytes() {
            self.count_outcome(UpstreamOutcome::ClientLeft);
        }
        if let Some((linger, due)) = self.linger.take() {
            let left = due.saturating_duration_since(Instant::now());
            let stream = linger.stream;
            linger.continue_exchange(exchange::discard_response(self.exchange.clone(), left, stream));
        }
    }
}
