//! Which limits can be evaluated for a logged request: a log holds only some of what limits read. Called by `run`.

use std::sync::Arc;

use http::header::{REFERER, USER_AGENT};

use super::entry::{AccessLogFormat, ReplayEntry};
use crate::limit::limits::Limit;
use crate::limit::source::{Facts, Source, SourceOrigin};

/// What an access log of ours has in place of a value that it masks.
const MASKED: &[u8] = b"***";

/// What a line of a log says of one request.
pub struct LoggedFacts<'a> {
    pub facts: &'a Facts<'a>,
    pub entry: &'a ReplayEntry,
    pub no_host: bool,
}

/// For each of `limits`, what it reads that the log does not hold; `None` where it can be evaluated, or does not
/// apply whatever that is. Of limits that come one `after` another, one that cannot be evaluated takes the others
/// with it: each decides in the other's place.
pub fn unknown_sources<'l>(limits: &'l [Arc<Limit>], logged: &LoggedFacts) -> Vec<Option<&'l Source>> {
    let mut unknown: Vec<Option<&Source>> = limits.iter().map(|limit| logged.unknown(limit)).collect();
    let base = |index: usize| {
        let name = limits[index].after.as_ref()?;
        limits[..index].iter().position(|limit| limit.name == *name)
    };
    // Those that come after stand behind their base.
    for index in (0..limits.len()).rev() {
        if let Some(base) = base(index) {
            unknown[base] = unknown[base].or(unknown[index]);
        }
    }
    for index in 0..limits.len() {
        if let Some(base) = base(index) {
            unknown[index] = unknown[index].or(unknown[base]);
        }
    }
    unknown
}

impl LoggedFacts<'_> {
    /// What `limit` reads of this request that the log does not hold.
    fn unknown<'l>(&self, limit: &'l Limit) -> Option<&'l Source> {
        let by_when = limit.when.unknown(self.facts, limit.repeated, limit.not_integer, |source| self.is_known(source));
        // Without a host, requests share one budget, which is reported; `--host` gives them one.
        let mut of_key = limit.key.sources().filter(|source| **source != Source::Host && !self.is_known(source));
        match by_when {
            Ok(true) => of_key.next(),
            Ok(false) => None,
            Err(source) => Some(source),
        }
    }

    fn is_known(&self, source: &Source) -> bool {
        match source {
            Source::Header(name) => (*name == USER_AGENT || *name == REFERER) && self.entry.format.holds_agents(),
            Source::Host => !self.no_host,
            Source::Query(_) => {
                self.entry.format != AccessLogFormat::Json
                    || self.facts.text(source, Default::default()).ok().flatten().is_none_or(|value| *value != *MASKED)
            }
            source => matches!(source.kind().origin(), SourceOrigin::Request | SourceOrigin::Target),
        }
    }
}
