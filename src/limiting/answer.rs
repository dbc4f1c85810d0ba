//! The answer of a limit to a request, as algorithms and stores return it.

/// Answer of one limit to one request. Times are milliseconds from the current time of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub admitted: bool,
    /// Units that the key could still be charged at once.
    pub remaining: i64,
    /// If refused: the exact wait, or [`NEVER`] if the cost can never fit. If admitted: how long the request must wait
    /// in the queue; 0 for algorithms without a queue.
    pub retry_ms: i64,
    /// Time until the whole quota is available again if no other request arrives.
    pub reset_ms: i64,
    /// Identifies the charge for corrections: its time, its queue position or its lease.
    pub receipt: i64,
}

/// `retry_ms` of a request whose cost exceeds what the limit can ever admit.
pub const NEVER: i64 = -1;

/// Policy of a limit as clients see it: `quota` units per `window_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub quota: i64,
    pub window_ms: i64,
}
