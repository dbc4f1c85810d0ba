//! Reports of a replay: `text` and `json` summaries, a `plot` of admitted and refused requests over time (with
//! axis marks from `ticks`), and `verdicts`, one JSON line per request that was refused, delayed or not
//! evaluated.
//!
//! Input: a `ReplayOutcome`. To add a report format, add a file here and an option in `cli::replay`.

pub(crate) mod json;
pub(crate) mod plot;
pub(crate) mod text;
pub(crate) mod ticks;
pub(crate) mod verdicts;

use jiff::Timestamp;

/// Formats a share with one decimal, rounded.
pub fn format_percent(part: u64, whole: u64) -> String {
    let thousandths = (u128::from(part) * 2000).checked_div(u128::from(whole)).map_or(0, |twice| twice.div_ceil(2));
    format!("{}.{}", thousandths / 10, thousandths % 10)
}

pub fn format_time_of(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| format!("{ms} ms"), |time| time.to_string())
}
