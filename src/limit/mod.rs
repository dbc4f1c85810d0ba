//! Throttling: all limits of one request, decided together. [`Limiter::decide_asks`] is the door;
//! behind it `when` says whether a limit applies, `key` whose budget, `overrides` how much,
//! `algo` does the arithmetic, `store` keeps the state. What is still to do once an admitted
//! request ends is in `held`, which goes with the request.

pub mod afterwards;
pub mod algo;
pub mod answer;
mod backlog;
mod chain;
pub mod clock;
pub mod decision;
pub(crate) mod desk;
pub(crate) mod held;
pub(crate) mod hold_times;
pub mod integers;
pub(crate) mod jwt;
pub mod key;
mod limiter;
pub mod limits;
mod local;
pub(crate) mod names;
pub(crate) mod overrides;
pub mod refuse;
pub(crate) mod revive;
pub mod source;
mod standing;
pub mod store;
mod turns;
mod verdict;
pub(crate) mod when;

pub use chain::Ask;
pub use limiter::{Limiter, STORE_RETRY_MS};
pub use standing::Standing;
pub use verdict::{Checked, Outcome, Verdict};
