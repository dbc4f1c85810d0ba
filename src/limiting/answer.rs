//! The answer of a limit to a request, as algorithms and stores return it.

use serde::{Deserialize, Serialize};

/// Answer of one limit to one request. Times are milliseconds from the current time of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub admitted: bool,
    /// Units that the key could still be charged at once. Of a correction: how many units it charged or refunded.
    pub remaining: i64,
    /// If refused: the exact wait, or [`NEVER`] if the cost can never fit. If admitted: how long the request must wait
    /// in the queue; 0 for algorithms without a queue.
    pub retry_ms: i64,
    /// Time until the whole quota is available again if no other request arrives.
    pub reset_ms: i64,
    /// Identifies the charge for corrections: its time, its queue position or its lease.
    pub receipt: i64,
    /// The part that a ban has in the answer. If the key is banned, the other fields are those of the ban.
    pub ban: BanAnswer,
}

/// The part that a ban has in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BanAnswer {
    /// The key is not banned.
    #[default]
    None,
    /// The key is banned.
    InForce,
    /// This refusal began a ban.
    Begun,
}

impl BanAnswer {
    /// Returns what a copy of the answer says: the ban began with another request.
    pub fn repeated(self) -> BanAnswer {
        if self == BanAnswer::Begun { BanAnswer::InForce } else { self }
    }
}

impl Answer {
    /// Returns the answer of a limit whose key may be banned, given the answer to that.
    pub fn with_ban(self, ban: &Answer) -> Answer {
        if ban.admitted || ban.retry_ms == 0 {
            return self;
        }
        Answer {
            admitted: false,
            remaining: 0,
            retry_ms: if self.retry_ms == NEVER { NEVER } else { self.retry_ms.max(ban.retry_ms) },
            reset_ms: self.reset_ms.max(ban.retry_ms),
            receipt: self.receipt,
            ban: if ban.receipt < 0 { BanAnswer::Begun } else { BanAnswer::InForce },
        }
    }

    /// Returns whether the key is banned.
    pub fn is_banned(&self) -> bool {
        self.ban != BanAnswer::None
    }
}

/// `retry_ms` of a request whose cost exceeds what the limit can ever admit.
pub const NEVER: i64 = -1;

/// Policy of a limit as clients see it: `quota` units per `window_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub quota: i64,
    pub window_ms: i64,
}
