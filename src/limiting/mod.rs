//! Rate and concurrency limits. The input is a request and the limits of its route; the output is a [`Verdict`] with
//! the answer of each limit. [`Limiter::decide`] is the entry point: it decides all limits of a request in one
//! call to the store, and charges either all of them or none.
//!
//! A decision takes these steps:
//!
//! - `limit`: what a limit is: does it apply to the request (`when`), what does a refusal look like (`refuse`), what
//!   else can happen over it (`over`), and how does the outcome of a request change its charge (`charge_rules`)?
//! - `source`, `key`: which budget does the request use? The values of its key name it (`state_key`), and logs and
//!   spans show it with hashes instead of secrets (`shown_key`). A body may be one that they cannot use
//!   (`unreadable_body`).
//! - `overrides`: which rule does this key have?
//! - `fair_share`: which tenant of the budget is it?
//! - `chain`: which limits come after another one?
//! - `decision`: the checks and answers that limits and stores exchange.
//! - `store`: keeps the state of each key, in memory (`partition`) or in Redis.
//! - `algorithm`: the arithmetic of a decision; pure functions with a Lua twin each.
//! - `hot_keys`: keys with many decisions, and the units that are debited for them in advance.
//! - `verdict`: the result.
//! - `charges`: refunds and leases, once the request has been admitted, and for how long requests held them
//!   (`hold_times`).
//! - `receipts`: proofs of charges, for corrections by somebody else.
//! - `settlement`: the estimate of a cost that only the response reports, the usage that its body reports, and what it
//!   costs.
//! - `limiter`: does all of this for a request.
//! - `usage`: which keys were refused or admitted recently.
//! - `gateways`: this gateway's share of a limit while the store is unavailable.
//!
//! A new algorithm goes to `algorithm`, a new source of key values to `source`, a new store to `store`.

pub mod algorithm;
pub mod answer;
mod chain;
pub mod charges;
pub mod clock;
pub mod decision;
pub mod fair_share;
pub mod gateways;
pub(crate) mod hold_times;
pub mod hot_keys;
pub mod integers;
pub mod key;
pub mod ledger;
pub mod limit;
mod limiter;
pub mod overrides;
pub(crate) mod partition;
pub(crate) mod receipts;
pub mod settlement;
pub mod source;
pub mod store;
pub(crate) mod supervise;
pub mod unreadable_body;
pub mod usage;
mod verdict;

pub use crate::limiting::chain::{ChainState, Evaluation};
pub use crate::limiting::limiter::{Limiter, STORE_RETRY_MS};
pub use crate::limiting::verdict::{ComparedCandidate, LimitResult, Outcome, RefusedKey, Verdict};
