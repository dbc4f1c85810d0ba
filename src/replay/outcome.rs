//! What a replay is asked, and what came of it.

use std::path::PathBuf;

use super::counts::Counts;
use super::plot;
use super::series::Series;
use super::source::LogSource;
use super::tally::Tally;

pub struct Options {
    /// Keys named for each limit.
    pub top: usize,
    /// Canonical host of the requests whose line names none.
    pub host: Option<String>,
    /// Where to write who was refused or delayed.
    pub verdicts: Option<PathBuf>,
    /// Tell on standard error how far it is.
    pub progress: bool,
}

/// What came of it.
pub struct ReplayOutcome {
    pub sources: Vec<LogSource>,
    pub counts: Counts,
    pub tallies: Vec<Tally>,
    pub series: Series,
    pub top: usize,
    /// Keys in use that the limits forgot, because there were more than the store holds.
    pub forgotten: u64,
}

impl ReplayOutcome {
    /// Why the replay says nothing of any request, if it is so.
    pub fn nothing_evaluated(&self) -> Option<String> {
        if self.counts.not_evaluated == 0 || self.counts.evaluated() > 0 {
            return None;
        }
        let mut sources: Vec<String> =
            self.tallies.iter().flat_map(|tally| &tally.gaps.unknown).map(|(source, _)| source.to_string()).collect();
        sources.sort_unstable();
        sources.dedup();
        Some(format!("no request could be evaluated: limits read {}, which is not in the log", sources.join(", ")))
    }

    pub fn svg(&self) -> String {
        let whole_seconds = if self.counts.fine { 0 } else { 1000 };
        plot::svg(&self.series.at_least(whole_seconds), self.counts.not_evaluated)
    }
}
