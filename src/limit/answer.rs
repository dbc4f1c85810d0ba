//! The words that every algorithm and every store answers in.

/// The answer of one limit about one request. Times are milliseconds from the store's now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub admitted: bool,
    /// What the key could still take at once, in cost units.
    pub remaining: i64,
    /// Refused: the exact wait, or [`NEVER`] when the cost can never fit. Admitted: how long the
    /// request must be held back before it goes on, 0 unless the algorithm shapes.
    pub retry_ms: i64,
    /// Until the whole quota is free again if nothing else arrives.
    pub reset_ms: i64,
    /// Names the charge to whoever gives it back: a window, a slot, a lease.
    pub receipt: i64,
}

/// `retry_ms` of a request whose cost is above all the limit can ever hold.
pub const NEVER: i64 = -1;

/// What a policy is to a client: `quota` units per `window_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub quota: i64,
    pub window_ms: i64,
}
