//! Options and outcome of a replay.

use std::path::PathBuf;

use http::HeaderName;

use crate::replay::counts::Counts;
use crate::replay::input::source::LogSource;
use crate::replay::series::Series;
use crate::replay::tally::Tally;

pub struct ReplayRequest {
    /// Number of keys to list per limit.
    pub top: usize,
    /// Canonical host of requests whose line has none.
    pub host: Option<String>,
    /// File for requests that were refused, delayed or not evaluated.
    pub verdicts: Option<PathBuf>,
    /// Show progress on standard error.
    pub progress: bool,
}

/// The outcome.
pub struct ReplayOutcome {
    pub sources: Vec<LogSource>,
    pub counts: Counts,
    pub tallies: Vec<Tally>,
    pub series: Series,
    pub top: usize,
    /// Header in which trusted proxies name the client.
    pub naming_header: HeaderName,
    /// Keys in use that were evicted because there were more than the store holds.
    pub forgotten: u64,
}

impl ReplayOutcome {
    /// Returns why no request was evaluated, if so.
    pub fn why_nothing_evaluated(&self) -> Option<String> {
        if self.counts.is_empty() {
            return Some("the logs contain no requests".to_owned());
        }
        if self.counts.not_evaluated == 0 || self.counts.count_evaluated() > 0 {
            return None;
        }
        let mut sources: Vec<String> = self
            .tallies
            .iter()
            .flat_map(|tally| &tally.missing.unknown)
            .map(|(source, _)| source.to_string())
            .collect();
        sources.sort_unstable();
        sources.dedup();
        Some(format!("no request could be evaluated: limits read {}, which is not in the log", sources.join(", ")))
    }
}
