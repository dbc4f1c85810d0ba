//! Leases of hot keys (`lease` of a limit). A key with many decisions per second debits units in Redis in advance, in
//! one ordinary charge. The workers of this gateway then spend these units without a call to Redis.
//!
//! **Exactness.** Every unit is debited before it is spent, and spent at most once: a [`slot`](LeaseSlot) is one atomic
//! word. Units that remain when their lease ends are never spent. Together, the gateways therefore never admit more
//! than the limit:
//!
//! - Windows: a lease ends before the window that it was debited in, by the clock of this gateway, which starts before
//!   the call. What is left goes back to the window by its receipt. Redis ignores a refund once its window has ended.
//! - Buckets: a lease ends before its bucket could have refilled so far that the bucket and the unspent units together
//!   exceed the burst. Let `used` be what the bucket counts as in use, and take the oldest lease that has not ended, of
//!   any gateway. Later leases only move tokens from the bucket to themselves. So the unspent units of all leases are
//!   at most `n` + (`used` - `n` of that lease), as long as `used` has not decayed below its `n`: the time that
//!   [`LeaseBasis::usable`](crate::limiting::algorithm::LeaseBasis::usable) computes. What is left is not returned: it
//!   could raise the bucket above what the leases of other gateways assumed. It refills within the horizon.
//!
//! **Bounds.** A key has unspent units of at most `rate * horizon` and of half of what the limit had left, divided by
//! the number of gateways. A crash loses them. At most [`KEYS_MAX`] keys have leases at a time.
//!
//! - `slot`: the unspent units of one lease, lock-free.
//! - `terms`: how large a lease is.
//! - `rate_sketch`: which keys have many decisions per second, in fixed memory.
//! - `hot_key`: the leases of one key.
//! - `table`: the hot keys of a store.
//!
//! `charges::lease_grants` asks the store for leases and returns what is left; `limiter::leased_checks` decides
//! requests.

mod hot_key;
mod rate_sketch;
pub mod slot;
mod table;
pub mod terms;

pub use crate::limiting::hot_keys::hot_key::{GrantedLease, HotKey, LeaseGrant, SpentUnits, UnitLease};
pub use crate::limiting::hot_keys::slot::LeaseSlot;
pub use crate::limiting::hot_keys::table::{HotKeys, KEYS_MAX};
