//! A decision that waits for its server: how to send it, where to deliver the result, and why there may be none.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use crate::limiting::decision::{Check, Decision, ErrorKind, Op, SharedChecks};
use crate::limiting::store::redis::codec::ClusterRedirect;

/// Why a server made no decision.
#[derive(Clone, Debug, PartialEq)]
pub enum LaneError {
    Failed(ErrorKind),
    /// Another node of the cluster has the slot.
    Redirected(ClusterRedirect),
}

impl LaneError {
    /// Returns the error of a decision that is not sent to another node.
    pub fn error_kind(self) -> ErrorKind {
        match self {
            LaneError::Failed(kind) => kind,
            LaneError::Redirected(_) => ErrorKind::Timeout,
        }
    }
}

/// The result of a decision, on its way from the pump to the request. Both run in one thread, so it needs no atomics.
#[derive(Default)]
struct Reply {
    result: Cell<Option<Result<Decision, LaneError>>>,
    /// The task that waits for the result.
    waiter: Cell<Option<Waker>>,
}

/// The end of a reply that delivers the result. Dropped without one, it delivers an error.
pub struct ReplySender(Rc<Reply>);

impl ReplySender {
    /// Returns whether nobody waits for the result any more.
    pub fn is_closed(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        if let Some(waiter) = self.0.waiter.take() {
            waiter.wake();
        }
    }
}

/// The result of a decision, once there is one. It is an error if the task that makes the calls has panicked.
pub struct PendingDecision(Rc<Reply>);

impl Future for PendingDecision {
    type Output = Result<Decision, LaneError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Decision, LaneError>> {
        let reply = &self.0;
        if let Some(result) = reply.result.take() {
            return Poll::Ready(result);
        }
        let is_sender_gone = Rc::strong_count(reply) == 1;
        if is_sender_gone {
            return Poll::Ready(Err(LaneError::Failed(ErrorKind::Internal)));
        }
        let waker = reply.waiter.take().filter(|waker| waker.will_wake(cx.waker()));
        reply.waiter.set(Some(waker.unwrap_or_else(|| cx.waker().clone())));
        Poll::Pending
    }
}

/// How a decision is sent to a node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// The decision shares a call with other decisions of its slot.
    Shared,
    /// The decision has a call of its own, because the slot is migrating and its keys are on two nodes.
    Alone,
    /// The decision has a call of its own after ASKING, to the node that the slot is migrating to.
    Asking,
}

/// A decision that waits for its result.
pub struct QueuedDecision {
    pub op: Op,
    pub checks: SharedChecks,
    pub mode: SendMode,
    pub since: Instant,
    /// Work of the decision, in units of [`Rule::work`](crate::limiting::algorithm::Rule::work).
    pub work: i64,
    pub reply: ReplySender,
}

impl QueuedDecision {
    /// Creates a decision that waits since `since`. The second value receives its result.
    pub fn new(op: Op, checks: SharedChecks, mode: SendMode, since: Instant) -> (QueuedDecision, PendingDecision) {
        let correction = op == Op::Adjust;
        let ban_work = |check: &Check| check.ban.as_ref().map_or(0, |ban| ban.rule.work(1, correction));
        let work = |check: &Check| check.rule.work(check.limit.max_cost, correction) + ban_work(check);
        let work = checks.iter().map(work).sum();
        let reply = Rc::<Reply>::default();
        let result = PendingDecision(reply.clone());
        (QueuedDecision { op, checks, mode, since, work, reply: ReplySender(reply) }, result)
    }

    /// Returns the work of all decisions of `batch`.
    pub fn total_work(batch: &[QueuedDecision]) -> i64 {
        batch.iter().fold(0, |total, waiting| total.saturating_add(waiting.work))
    }

    /// Delivers the result. The checks are dropped first, so that the receiver has the only reference to them.
    pub fn deliver(self, answer: Result<Decision, LaneError>) {
        drop(self.checks);
        // If the client has disconnected, nobody reads the result. Its charge remains.
        self.reply.0.result.set(Some(answer));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn queued() -> (QueuedDecision, PendingDecision) {
        QueuedDecision::new(Op::Take, Rc::default(), SendMode::Shared, Instant::now())
    }

    #[test]
    fn the_request_that_waits_is_woken_once_with_the_result_or_the_loss_of_the_pump() {
        let decision = Decision { admitted: true, answers: Vec::new() };
        for (answer, result) in
            [(Some(Ok(decision.clone())), Ok(decision)), (None, Err(LaneError::Failed(ErrorKind::Internal)))]
        {
            let (waiting, mut pending) = queued();
            let (first, last) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
            for wakes in [&first, &last] {
                let waker = Waker::from(wakes.clone());
                assert!(Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
            }
            match answer {
                Some(answer) => waiting.deliver(answer),
                None => drop(waiting),
            }
            // The task may have moved the future, so only the last waker counts.
            let counts = [&first, &last].map(|wakes| wakes.0.load(Ordering::Relaxed));
            assert_eq!(counts, [0, 1]);
            let mut context = Context::from_waker(Waker::noop());
            assert_eq!(Pin::new(&mut pending).poll(&mut context), Poll::Ready(result));
        }
    }

    #[test]
    fn a_request_that_leaves_closes_its_reply() {
        let (waiting, pending) = queued();
        assert!(!waiting.reply.is_closed());
        drop(pending);
        assert!(waiting.reply.is_closed());
        waiting.deliver(Err(LaneError::Failed(ErrorKind::Timeout)));
    }
}
