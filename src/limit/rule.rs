//! A limit as compiled: whose budget (`key`), how much (`rule`), and what else the config says of
//! it. Also the words every store answers in.

use std::sync::Arc;

use crate::limit::afterwards::Afterwards;
use crate::limit::algo::Rule;
use crate::limit::key::{Cost, Key, KeyPart};
use crate::limit::overrides::Overrides;
use crate::limit::when::When;

/// One `[limit.NAME]`.
#[derive(Debug)]
pub struct Limit {
    pub name: String,
    pub rule: Arc<Rule>,
    pub key: Key,
    pub missing: Missing,
    pub cost: Cost,
    pub mode: Mode,
    pub on_error: OnError,
    /// Which requests it applies to.
    pub when: When,
    pub overrides: Overrides,
    /// The limit that must be exhausted before this one is asked.
    pub after: Option<String>,
    /// What it wants once the outcome of the request is known.
    pub afterwards: Option<Afterwards>,
}

impl Limit {
    /// Whether it looks at a token.
    pub fn needs_claims(&self) -> bool {
        self.key.0.iter().any(|part| matches!(part, KeyPart::Claim(_))) || self.when.needs_claims()
    }
}

/// What happens when a part of the key is absent from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The limit does not apply.
    Skip,
    /// All such requests share one budget.
    Shared,
    /// The request is refused.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Enforce,
    /// Decide and count, never refuse.
    Shadow,
}

/// Verdict when the store cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    Open,
    Closed,
    /// The same rule on this gateway's own memory.
    Local,
}

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
