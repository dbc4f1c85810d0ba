//! What limits would have done: runs the requests of access logs through the routes and limits of
//! a config, on the logs' own time line. Called by `sluicegate replay`.
//!
//! The decisions are those of the live limiter and the memory store; only the clock differs. It
//! follows the logged times and never steps back: `order` sorts requests by their starts, `ends`
//! remembers what they give back once they end.

mod common;
mod counts;
mod ends;
mod entry;
mod json;
mod known;
mod line;
mod order;
mod outcome;
mod plot;
mod progress;
mod run;
mod series;
mod sketch;
mod source;
mod tally;
mod text;
mod ticks;
mod tightest;
mod units;
mod verdicts;

pub use entry::host;
pub use outcome::Options;
pub use run::run;
