//! Replays access logs: reports what the routes and limits of a config would have done to the logged requests. Called
//! by `sluicegate replay`.
//!
//! Input: logs (`input`) and a config. The live limiter and the memory store decide; only the clock differs: it follows
//! the logged times and never goes back. `run` is the loop, `door` says how a logged request takes the steps of
//! `proxy::steps::pipeline`, `in_progress` holds requests until they refund, `logged_facts` determines which limits can
//! be evaluated, `records` has what is recorded: `tally` and `counts` collect results in bounded memory, `series` those
//! over time, `tightest` finds the number that would have refused nobody. Output: an `outcome`, formatted by `report`;
//! `progress` shows how far the replay is.

mod counts;
mod door;
mod in_progress;
pub mod input;
mod logged_facts;
mod outcome;
mod progress;
mod records;
pub mod report;
mod run;
pub(crate) mod series;
mod tally;
mod tightest;

pub use crate::replay::input::entry::canonical_host;
pub use crate::replay::outcome::ReplayRequest;
pub use crate::replay::run::run_replay;
