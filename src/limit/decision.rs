//! What is asked of a store, and the form of its answers: the checks of one request, decided
//! together.

use std::rc::Rc;
use std::sync::Arc;

use super::algo::Rule;
use super::answer::Answer;
use super::limits::{Limit, Mode};
use crate::labels::labels;

/// One limit asked for one key.
#[derive(Clone, Debug)]
pub struct Check {
    pub limit: Arc<Limit>,
    /// The limit's own rule, or what this key has instead.
    pub rule: Arc<Rule>,
    pub key: String,
    /// Units asked for; for [`Op::Adjust`] units more, or given back if negative.
    pub cost: i64,
    pub role: Role,
    /// The values of the key as overrides name them, where the end of the request may correct the
    /// charge: by the numbers that the key has then.
    pub whose: Option<Box<str>>,
    /// A number that no other decision has, or for [`Op::Adjust`] the receipt of the charge.
    pub tag: i64,
}

/// The checks of one decision, shared by those who wait and those who ask.
pub type Shares = Rc<Vec<Check>>;

/// What is done with the checks of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Decide, and charge all or none.
    Take = 1,
    /// Answer as [`Op::Take`] would; change nothing.
    Peek = 2,
    /// Take more or give back by receipt, whatever the limit says. An answer is `admitted` where
    /// there was something to change.
    Adjust = 3,
    /// Forget the keys.
    Reset = 4,
}

/// A check's place among the checks of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Decides and is charged, but never refuses.
    pub shadow: bool,
    /// Its refusal hands over to the check that is `after` it.
    pub base: bool,
    /// Index of the check that must be exhausted before this one is asked.
    pub after: Option<usize>,
}

impl Check {
    pub fn new(limit: &Arc<Limit>, key: String, cost: i64) -> Check {
        let role = Role { shadow: limit.mode == Mode::Shadow, ..Role::default() };
        // Below 2^53 with room for what an algorithm adds to it.
        let tag = if limit.rule.tagged() { rand::random_range(0..1 << 52) } else { 0 };
        Check { limit: limit.clone(), rule: limit.rule.clone(), key, cost, role, whose: None, tag }
    }
}

impl Role {
    /// As the script reads it.
    pub fn code(self) -> i64 {
        let after = self.after.map_or(0, |index| i64::try_from(index).unwrap_or(0) + 1);
        i64::from(self.shadow) + 2 * i64::from(self.base) + 4 * after
    }
}

/// The answers to the checks of one request, same order.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// False when an enforced limit refuses; then nothing was charged but shadow limits.
    pub admitted: bool,
    pub answers: Vec<Answer>,
}

impl Decision {
    /// Whether the check of that role and answer is in force, and not one whose base has room still.
    pub fn in_turn(&self, role: Role) -> bool {
        role.after.is_none_or(|base| self.answers.get(base).is_none_or(|base| !base.admitted))
    }

    /// Whether [`Op::Take`] charged it.
    pub fn charged(&self, role: Role, answer: Answer) -> bool {
        answer.admitted && self.in_turn(role) && (self.admitted || role.shadow)
    }
}

/// The store could not be asked, or its answer did not come in time. The checks come back so
/// that the caller can decide without it.
#[derive(Debug)]
pub struct StoreError {
    pub kind: ErrorKind,
    pub checks: Vec<Check>,
}

labels! {
    /// Why a store gave no answer; the `kind` label of `store_errors_total`.
    ErrorKind:
    /// No answer within the deadline; whether the charge happened is unknown.
    Timeout = "timeout",
    /// It waited as long as the deadline for a call to leave; nothing was charged.
    QueueTimeout = "queue_timeout",
    /// No connection, and none is waited for; nothing was charged.
    Disconnected = "disconnected",
    /// The connection broke while it was under way; whether the charge happened is unknown.
    Lost = "disconnected",
    /// The breaker is open: the store failed lately and is not asked.
    BreakerOpen = "breaker_open",
    /// More decisions wait than `redis::queue::QUEUE_MAX`.
    Overloaded = "overloaded",
    /// Redis is loading its data set (`LOADING`).
    Loading = "loading",
    /// A script blocks Redis (`BUSY`).
    Busy = "busy",
    /// Redis is a replica (`READONLY`) or has no master (`MASTERDOWN`, `CLUSTERDOWN`).
    Readonly = "readonly",
    /// Redis is out of memory (`OOM`).
    OutOfMemory = "oom",
    /// Wrong or missing credentials (`NOAUTH`, `WRONGPASS`, `NOPERM`).
    Denied = "denied",
    /// Any other error reply, or a reply of the wrong form.
    Reply = "reply",
    /// The task that carried it failed; whether the charge happened is unknown.
    Internal = "internal",
}

impl ErrorKind {
    /// Whether the operation may have happened all the same.
    pub fn is_unsure(self) -> bool {
        matches!(self, ErrorKind::Timeout | ErrorKind::Lost | ErrorKind::Reply | ErrorKind::Internal)
    }
}
