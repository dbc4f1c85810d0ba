//! One request to an upstream: pick a server, send the request, wait for the head of the answer. Called
//! by `gateway` once the request may pass.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::{Response, StatusCode};
use tokio::task::spawn_local;

use crate::access_log::{Attempts, SendFault, SentEnd};
use crate::http::answer::body::Body;
use crate::http::complaints::UpstreamTrouble;
use crate::http::deadline::{Awaited, RequestDeadline};
use crate::http::downstream::upload::{Upload, UploadProgress, UploadState};
use crate::http::upstream::asked::StreamedResponse;
use crate::http::upstream::connect::ConnectFault;
use crate::http::upstream::course::{Acquired, Course, Overflow, Unserved};
use crate::http::upstream::early::EarlyHints;
use crate::http::upstream::exchange::{self, Exchange};
use crate::http::upstream::failure::UpstreamFailure;
use crate::http::upstream::linger::Linger;
use crate::http::upstream::outgoing::Outgoing;
use crate::http::upstream::sender::Sender;
use crate::http::upstream::servers::{OutcomeCounters, Servers};
use crate::http::upstream::trouble::Trouble;
use crate::metrics::{RetryReason, UpstreamOutcome};
use crate::route::Timeouts;

/// The longest first pause before a request is sent to another server, and the longest of all.
const BACKOFF_MS: u64 = 10;
const BACKOFF_MAX_MS: u64 = 100;

/// How many times `response_timeout` interim responses may extend the wait for the final one.
const EXTENSIONS: u32 = 10;

/// An answer to pass on.
pub struct Forwarded {
    pub response: Response<Body>,
    /// The request's body, where the server has answered without asking for it: nothing of it has been read.
    pub unasked: Option<Upload>,
}

/// Sends `outgoing` to a server of `servers`.
///
/// A request is sent again when no server can have acted on it: after a failed connect, or when a kept
/// connection turns out closed before anything was written. Without a body and with an idempotent method,
/// acting twice is the same as once: then also when a kept connection closed before any response came, and,
/// as `retry` says, to a server that has not failed it, before anything of an answer has gone to the client.
pub async fn forward(
    servers: &Servers,
    deadline: &RequestDeadline,
    timeouts: &Timeouts,
    outgoing: &mut Outgoing,
    attempts: Option<&Attempts>,
    hints: Option<EarlyHints<'_>>,
) -> Result<Forwarded, UpstreamFailure> {
    let progress = outgoing.upload.as_ref().map(Upload::share_progress);
    let response_limit = outgoing.client_limit.unwrap_or(timeouts.response);
    let repeatable = progress.is_none() && outgoing.method.is_idempotent();
    let mut course = servers.begin(outgoing.introduction.take(), outgoing.hash, outgoing.blame);
    // In a box: few requests are sent again, and all would keep room for it.
    let mut sender: Option<Box<Sender>> = None;
    let mut refused = false;
    loop {
        let acquired = servers.acquire(&mut course, timeouts.connect, deadline).await;
        let Acquired { server, connection: lease } = match acquired {
            Ok(acquired) => acquired,
            Err(Unserved::Overflow(overflow)) => {
                servers.outcomes.count(match overflow {
                    Overflow::QueueFull => UpstreamOutcome::QueueFull,
                    Overflow::QueueTimeout => UpstreamOutcome::QueueTimeout,
                });
                let upstream = servers.complaints.upstream();
                servers.complaints.tell(UpstreamTrouble::Overflow, upstream, &overflow.label());
                return Err(UpstreamFailure::Overflow(overflow));
            }
            Err(Unserved::Connect(fault)) => {
                let outcome = match fault {
                    // The gateway could not send a request to anybody.
                    fault if fault.is_shortage() => None,
                    ConnectFault::Tls => Some(UpstreamOutcome::TlsError),
                    _ => Some(UpstreamOutcome::ConnectError),
                };
                outcome.into_iter().for_each(|outcome| servers.outcomes.count(outcome));
                return Err(UpstreamFailure::Connect(fault));
            }
        };
        let span = attempts.and_then(|attempts| attempts.asks(lease.server().label(), lease.server().authority()));
        let host = &lease.server().host;
        let next = match sender.take() {
            None => {
                let head = outgoing.head.take_for(host, span);
                let mut first = Sender::new(head, outgoing.upload.take(), outgoing.trailers.take());
                if outgoing.expects {
                    first.hold();
                }
                first
            }
            Some(mut again) => {
                if let Some(head) = outgoing.head.take_again_for(host, span) {
                    again.set_head(head);
                }
                *again
            }
        };
        if progress.is_none() {
            deadline.arm(Awaited::Response, response_limit);
        }
        let reused = lease.is_reused();
        let complaints = servers.complaints.clone();
        let exchange = Exchange::new(lease, next, outgoing.method.clone(), outgoing.offer.clone(), complaints);
        let mut asked = ServerAttempt::new(exchange, &servers.outcomes, &outgoing.linger, timeouts);
        let outcome = deadline.within(poll_fn(|cx| {
            let polled = asked.exchange.borrow_mut().poll_head(cx);
            let interims = asked.exchange.borrow_mut().take_interims();
            if !interims.is_empty() && polled.is_pending() && outgoing.client_limit.is_none() {
                asked.extend(deadline, timeouts.response);
            }
            if let Some(hints) = &hints {
                interims.into_iter().for_each(|head| hints.pass(head));
            }
            polled
        }));
        let outcome = outcome.await;
        outgoing.has_left |= asked.exchange.borrow().has_left();
        if let Some(attempts) = attempts {
            attempts.ended(sent_end(&outcome));
        }
        let may_again = |course: &mut Course, reason| repeatable && servers.may_again(course, &server, reason);
        let (trouble, timed_out) = match outcome {
            Ok(Ok(response)) => {
                asked.count(UpstreamOutcome::Ok);
                let Some(reason) = RetryReason::of_status(response.status()) else {
                    server.served(outgoing.blame);
                    answering(progress.as_deref());
                    return Ok(asked.answered(response, StreamedResponse::new(server, outgoing.blame)));
                };
                server.failed(outgoing.blame);
                if !may_again(&mut course, reason) {
                    answering(progress.as_deref());
                    return Ok(asked.answered(response, StreamedResponse::new(server, outgoing.blame)));
                }
                // Its connection serves others if the answer is all there.
                asked.exchange.borrow_mut().take_whole();
                deadline.disarm();
                sender = asked.again(true).map(Box::new);
                back_off(&course).await;
                continue;
            }
            // The client's slowness says nothing of the upstream.
            Err(Awaited::Upload) if progress.as_ref().is_some_and(|progress| progress.is_call()) => {
                return Err(asked.upload_failed(UpstreamFailure::CallTimeout));
            }
            Err(Awaited::Upload) => return Err(asked.upload_failed(UpstreamFailure::UploadTimeout)),
            // Nor does a deadline that the client chose. The exchange lingers as it does for a client that leaves.
            Err(_) if outgoing.client_limit.is_some() => {
                asked.count(UpstreamOutcome::ClientTimeout);
                return Err(UpstreamFailure::ClientDeadline);
            }
            Ok(Err(trouble)) => (trouble, false),
            Err(_) => (Trouble::Closed, true),
        };
        deadline.disarm();
        match (&trouble, progress.as_ref().map(|progress| progress.state())) {
            (Trouble::Upload, Some(UploadState::TooLarge)) => {
                return Err(asked.upload_failed(UpstreamFailure::TooLarge));
            }
            // Counted as one that left when the attempt is dropped.
            (Trouble::Upload, Some(UploadState::Left)) => return Err(UpstreamFailure::ClientLeft),
            (Trouble::Upload, _) => return Err(asked.upload_failed(UpstreamFailure::UploadBroken)),
            _ => {}
        }
        let stale = match &trouble {
            Trouble::Closed if reused && !timed_out && !course.is_renewed() => Some(RetryReason::StaleConnection),
            Trouble::Refused if !std::mem::replace(&mut refused, true) => Some(RetryReason::Refused),
            _ => None,
        };
        if let Some(reason) = stale {
            sender = asked.again(outgoing.method.is_idempotent()).map(Box::new);
            if sender.is_none() {
                servers.outcomes.count(UpstreamOutcome::Broken);
                servers.complaints.tell(UpstreamTrouble::Broken, server.label(), &trouble);
                return Err(UpstreamFailure::Broken);
            }
            if reason == RetryReason::StaleConnection {
                course.renew();
            }
            servers.outcomes.count_retry(reason);
            continue;
        }
        server.failed(outgoing.blame);
        let (outcome, kind, reason, failure) = match timed_out {
            true => {
                (UpstreamOutcome::Timeout, UpstreamTrouble::Timeout, RetryReason::Timeout, UpstreamFailure::Timeout)
            }
            false => (UpstreamOutcome::Broken, UpstreamTrouble::Broken, RetryReason::Reset, UpstreamFailure::Broken),
        };
        asked.count(outcome);
        let late = format_args!("no answer within {:?}", timeouts.response);
        let what: &dyn std::fmt::Display = if timed_out { &late } else { &trouble };
        servers.complaints.tell(kind, server.label(), what);
        if timed_out {
            asked.exchange.borrow().doubt();
        }
        // What has begun to answer has acted.
        if !matches!(trouble, Trouble::Closed | Trouble::Refused) || !may_again(&mut course, reason) {
            asked.end();
            return Err(failure);
        }
        sender = asked.again(true).map(Box::new);
        back_off(&course).await;
    }
}

/// What its span says of a request that was sent.
fn sent_end(outcome: &Result<Result<Response<()>, Trouble>, Awaited>) -> SentEnd {
    match outcome {
        Ok(Ok(response)) => SentEnd::Answered(response.status().as_u16()),
        Ok(Err(Trouble::Upload)) | Err(Awaited::Upload) => SentEnd::Failed(SendFault::Upload),
        Ok(Err(_)) => SentEnd::Failed(SendFault::Broken),
        Err(_) => SentEnd::Failed(SendFault::Timeout),
    }
}

fn answering(progress: Option<&UploadProgress>) {
    if let Some(progress) = progress {
        progress.answering();
    }
}

/// Waits a little, by chance, so that what failed many at once does not get them all back at once.
async fn back_off(course: &Course) {
    let longest = (BACKOFF_MS << course.failures().min(8)).min(BACKOFF_MAX_MS);
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..=longest))).await;
}

/// A request under way to the head of its answer. When it is dropped the client has left, or did not
/// send its request to the end.
struct ServerAttempt<'a> {
    exchange: Rc<RefCell<Exchange>>,
    /// Counters of outcomes; `None` once the outcome of this attempt has been counted.
    outcomes: Option<&'a OutcomeCounters>,
    /// With the time at which the answer has to begin.
    linger: Option<(Linger, Instant)>,
    /// When the first interim response extended that time.
    extended: Option<Instant>,
}

impl<'a> ServerAttempt<'a> {
    fn new(
        exchange: Exchange,
        outcomes: &'a OutcomeCounters,
        linger: &Option<Linger>,
        timeouts: &Timeouts,
    ) -> ServerAttempt<'a> {
        ServerAttempt {
            exchange: Rc::new(RefCell::new(exchange)),
            outcomes: Some(outcomes),
            linger: linger.clone().map(|linger| (linger, Instant::now() + timeouts.response)),
            extended: None,
        }
    }

    /// Waits for the response for another `limit` after an interim response, which is a sign of life. So that no
    /// server holds a request forever, all of them together extend the wait to `EXTENSIONS` times `limit` at most. A
    /// request that is not sent to its end still waits for its client.
    fn extend(&mut self, deadline: &RequestDeadline, limit: Duration) {
        if !self.exchange.borrow().is_sent() {
            return;
        }
        let now = Instant::now();
        let passed = now.saturating_duration_since(*self.extended.get_or_insert(now));
        let left = limit.saturating_mul(EXTENSIONS).saturating_sub(passed).min(limit);
        deadline.arm(Awaited::Response, left);
        if let Some((_, due)) = &mut self.linger {
            *due = now + left;
        }
    }

    fn count(&mut self, outcome: UpstreamOutcome) {
        self.outcomes.take().into_iter().for_each(|outcomes| outcomes.count(outcome));
    }

    /// Counts a request that its client did not complete, if a server has got something of it.
    fn upload_failed(mut self, failure: UpstreamFailure) -> UpstreamFailure {
        if self.exchange.borrow().has_left() {
            self.count(UpstreamOutcome::UploadFailed);
        }
        failure
    }

    fn answered(mut self, response: Response<()>, streamed: StreamedResponse) -> Forwarded {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.linger = None;
            let connection = self.exchange.borrow_mut().take_switched();
            return Forwarded { response: response.map(|()| Body::switched(connection)), unasked: None };
        }
        let unasked = self.exchange.borrow_mut().take_unasked();
        let whole = self.exchange.borrow_mut().take_whole();
        let linger = self.linger.take().map(|(linger, _)| linger);
        if unasked.is_none() && !self.exchange.borrow().is_sent() {
            spawn_local(exchange::carry_on(self.exchange.clone()));
        }
        let response = response.map(|()| match whole {
            Some(bytes) => Body::full(bytes),
            None => Body::upstream(self.exchange.clone(), streamed, linger),
        });
        Forwarded { response, unasked }
    }

    /// The upstream is to blame: the client gets to its answer.
    fn end(mut self) {
        self.linger = None;
        if let Some(upload) = self.exchange.borrow_mut().give_up() {
            spawn_local(upload.discard());
        }
    }

    /// To be sent once more, if that is safe.
    fn again(mut self, idempotent: bool) -> Option<Sender> {
        (self.linger, self.outcomes) = (None, None);
        let again = self.exchange.borrow_mut().again(idempotent);
        if again.is_none() {
            self.end();
        }
        again
    }
}

impl Drop for ServerAttempt<'_> {
    fn drop(&mut self) {
        if self.exchange.borrow().has_left() {
            self.count(UpstreamOutcome::ClientLeft);
        }
        if let Some((linger, due)) = self.linger.take() {
            let left = due.saturating_duration_since(Instant::now());
            let stream = linger.stream;
            linger.go_on(exchange::discard(self.exchange.clone(), left, stream));
        }
    }
}
