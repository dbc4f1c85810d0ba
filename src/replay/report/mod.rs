//! Reports of a replay: `text` and `json` summaries, a `plot` of admitted and refused requests over time (with
//! axis marks from `ticks`), and `verdicts`, one JSON line per request that was refused, delayed or not
//! evaluated. `units` formats shares and times.
//!
//! Input: a `ReplayOutcome`. To add a report format, add a file here and an option in `cli::replay`.

pub(crate) mod json;
pub(crate) mod plot;
pub(crate) mod text;
pub(crate) mod ticks;
pub(crate) mod units;
pub(crate) mod verdicts;
