//! One decision on its way to a server: how it is sent there, who waits for it, and why there is no answer. Queued
//! by `lane`, answered by `pump`.

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::wire::Redirect;
use crate::limit::decision::{Decision, ErrorKind, Op, Shares};

/// Why a server gave no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum LaneFault {
    Failed(ErrorKind),
    Elsewhere(Redirect),
}

impl LaneFault {
    /// For a decision that is asked nowhere else.
    pub fn kind(self) -> ErrorKind {
        match self {
            LaneFault::Failed(kind) => kind,
            LaneFault::Elsewhere(_) => ErrorKind::Timeout,
        }
    }
}

/// How a decision is sent to a node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With others of its slot.
    Shared,
    /// In a call of its own: of a slot on its way some keys are here and some there.
    Alone,
    /// Likewise, to the node that the slot is on its way to.
    Asking,
}

/// One decision on its way.
pub struct Waiting {
    pub op: Op,
    pub checks: Shares,
    pub way: Way,
    pub since: Instant,
    pub reply: oneshot::Sender<Result<Decision, LaneFault>>,
}

impl Waiting {
    /// The decision's owner gets the only handle on its checks back with the answer.
    pub fn answer(self, answer: Result<Decision, LaneFault>) {
        drop(self.checks);
        // An error means that the client has left; its charge stands.
        let _ = self.reply.send(answer);
    }

    pub fn work(&self) -> i64 {
        let correction = self.op == Op::Adjust;
        self.checks.iter().map(|check| check.rule.work(check.limit.cost.most(), correction)).sum()
    }
}
