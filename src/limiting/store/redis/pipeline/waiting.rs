//! A decision that waits for its server: how to send it, where to deliver the result, and why there may be none.

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::limiting::decision::{Decision, ErrorKind, Op, SharedChecks};
use crate::limiting::store::redis::pipeline::codec::ClusterRedirect;

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

/// Receives the result of a decision. It fails if the task that makes the calls has panicked.
pub type PendingDecision = oneshot::Receiver<Result<Decision, LaneError>>;

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
    pub reply: oneshot::Sender<Result<Decision, LaneError>>,
}

impl QueuedDecision {
    /// Creates a decision that waits since `since`. The second value receives its result.
    pub fn new(op: Op, checks: SharedChecks, mode: SendMode, since: Instant) -> (QueuedDecision, PendingDecision) {
        let correction = op == Op::Adjust;
        let work = checks.iter().map(|check| check.rule.work(check.limit.max_cost, correction)).sum();
        let (reply, result) = oneshot::channel();
        (QueuedDecision { op, checks, mode, since, work, reply }, result)
    }

    /// Delivers the result. The checks are dropped first, so that the receiver has the only reference to them.
    pub fn deliver(self, answer: Result<Decision, LaneError>) {
        drop(self.checks);
        // Sending fails if the client has left. Its charge remains.
        let _ = self.reply.send(answer);
    }
}
