//! The interface between limits and stores: the checks of one request, which a store decides together, and the
//! decision that it returns.

use std::rc::Rc;
use std::sync::Arc;

use crate::labels::labels;
use crate::limiting::algorithm::Rule;
use crate::limiting::answer::Answer;
use crate::limiting::hot_keys::terms::LeaseTerms;

/// What a store needs to know of a limit. Each limit makes one, which all of its checks share.
#[derive(Debug, PartialEq, Eq)]
pub struct LimitRef {
    /// Hash of the name; the same in every config.
    pub id: u64,
    pub name: String,
    /// The largest cost that a request can have.
    pub max_cost: i64,
    /// Whether the outcome of a request may change or release its charge: a refund, a settled cost, a lease.
    pub refundable: bool,
    /// The option `lease`; `None` if hot keys have no leases.
    pub lease: Option<LeaseTerms>,
}

/// One check of a request: whether `key` may be charged `cost` under `rule`.
#[derive(Clone, Debug)]
pub struct Check {
    pub limit: Arc<LimitRef>,
    /// The limit's own rule, or the one that an override gives this key.
    pub rule: Arc<Rule>,
    /// The state key.
    pub key: String,
    /// Units to charge. For [`Op::Adjust`], units to add to an earlier charge, or to refund if negative.
    pub cost: i64,
    pub role: Role,
    /// The values of the key, by which overrides are found. Only set where the end of the request may change the
    /// charge: the change applies the override that is in force by then.
    pub override_values: Option<Box<str>>,
    /// A random number that identifies the decision, or the tenant; for [`Op::Adjust`] the receipt of the charge.
    pub tag: i64,
    /// The tenant as in a state key, if the limit has `fair`.
    pub tenant: Option<Box<str>>,
}

/// The checks of one decision, shared by the waiting request and the call that carries them.
pub type SharedChecks = Rc<Vec<Check>>;

/// Operation on the checks of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Decides, and charges either all checks or none.
    Take = 1,
    /// Answers like [`Op::Take`], but changes nothing.
    Peek = 2,
    /// Adds to earlier charges or refunds them, by receipt and regardless of the limit. An answer is `admitted` if
    /// there was a charge to change.
    Adjust = 3,
    /// Deletes the state of the keys.
    Reset = 4,
}

/// Role of a check among the checks of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// The limit is in shadow mode: it decides and is charged, but never refuses.
    pub shadow: bool,
    /// The limit forwards requests that exceed it (`over`): it never refuses, and is charged only with the others.
    pub forwards: bool,
    /// Another check comes `after` this one and decides in its place when it refuses.
    pub base: bool,
    /// Index of the check that must be exhausted before this one applies.
    pub after: Option<usize>,
}

impl Check {
    /// Reports whether the end of the request may change the charge.
    pub fn may_change(&self) -> bool {
        self.limit.refundable || self.rule.has_queue()
    }
}

impl Role {
    /// Reports whether a refusal of the check refuses the request.
    pub fn can_refuse(self) -> bool {
        !(self.shadow || self.base || self.forwards)
    }

    /// Encodes the role for the Lua script; `lua/gate.lua` lists the bits.
    pub fn encode(self) -> i64 {
        let after = self.after.map_or(0, |index| i64::try_from(index).unwrap_or(0) + 1);
        i64::from(self.shadow) + 2 * i64::from(self.base) + 4 * i64::from(self.forwards) + 8 * after
    }
}

/// Decision on the checks of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// False if an enforced limit refuses; then only shadow limits were charged.
    pub admitted: bool,
    /// One answer per check, in the same order.
    pub answers: Vec<Answer>,
}

impl Decision {
    /// Reports whether the check with that role applies. It does not while the limit before it has capacity.
    pub fn is_applicable(&self, role: Role) -> bool {
        role.after.is_none_or(|base| self.answers.get(base).is_none_or(|base| !base.admitted))
    }

    /// Reports whether [`Op::Take`] charged the check with that role and answer.
    pub fn has_charged(&self, role: Role, answer: Answer) -> bool {
        answer.admitted && self.is_applicable(role) && (self.admitted || role.shadow)
    }
}

/// The store made no decision in time. Returns the checks, so that the caller can decide without the store.
#[derive(Debug)]
pub struct StoreError {
    pub kind: ErrorKind,
    pub checks: Vec<Check>,
}

labels! {
    /// Why the store made no decision; the `kind` label of `store_errors_total`.
    ErrorKind:
    /// No reply within the deadline; the charge may have happened.
    Timeout = "timeout",
    /// The decision waited in the queue until the deadline; nothing was charged.
    QueueTimeout = "queue_timeout",
    /// No reply before the client of a rate limit request gives up; the charge may have happened.
    ClientDeadline = "client_deadline",
    /// There is no connection, and requests do not wait for one; nothing was charged.
    Disconnected = "disconnected",
    /// The connection broke during the call; the charge may have happened.
    Lost = "disconnected",
    /// The breaker is open: recent calls failed, so none is made.
    BreakerOpen = "breaker_open",
    /// The queue is full: see `QUEUE_MAX` in `redis/pipeline/queue.rs`.
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
    /// Any other error reply, or a malformed reply.
    Reply = "reply",
    /// The task that made the call panicked; the charge may have happened.
    Internal = "internal",
}

impl ErrorKind {
    /// Reports whether the operation may have happened despite the error.
    pub fn is_unsure(self) -> bool {
        matches!(
            self,
            ErrorKind::Timeout | ErrorKind::ClientDeadline | ErrorKind::Lost | ErrorKind::Reply | ErrorKind::Internal
        )
    }
}
