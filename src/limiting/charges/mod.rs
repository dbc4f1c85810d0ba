//! Charges after the decision: what happens to the units that an admitted request was charged, once it ends.
//!
//! The limiter creates a guard with the charges that may still change, and the request keeps it. When the response is
//! known, or when the guard is dropped, the guard works out the corrections by the rules of the limit
//! (`limit::charge_rules`) and hands them
//! to the charge manager, which sends them to the store. While the request runs, the manager renews its leases.
//!
//! Example: a login limit charges each attempt and refunds successful ones (`charge_on = [401]`). The request is
//! charged 1 and gets a guard. The server responds 200, the rules say -1, and the manager sends the refund.
//!
//! - `guard`: the charges and leases of one running request; dropping it settles all of them.
//! - `manager`: one worker's corrections, renewals and refunds on their way to the store.
//! - `leases`: when each lease is due for renewal, and which leases share a call.
//! - `backlog`: corrections that the store has not accepted yet, sent again later.
//! - `lease_grants`: leases of hot keys on their way from and to the store.
//! - `queue_refunds`: queue positions of requests that left before their turn.
//! - `hold_times`: how long requests recently held slots, to estimate the wait for one.

pub(crate) mod backlog;
pub(crate) mod guard;
pub(crate) mod lease_grants;
pub(crate) mod leases;
pub(crate) mod manager;
pub(crate) mod queue_refunds;

/// The store that made a charge; corrections go to the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargedAt {
    /// The configured store.
    Store,
    /// The in-memory store decided, because the configured store was unavailable.
    Local,
}
