//! Decides which limits can be evaluated for a logged request: a log contains only some of the values that limits
//! read. Called by `run`.

use std::sync::{Arc, LazyLock};

use crate::limiting::key::KeyPart;
use crate::limiting::key::SourceValues;
use crate::limiting::key::shown_key::ShownValue;
use crate::limiting::limit::Limit;
use crate::limiting::source::{Ambiguous, Facts, Prefixes, Repeated, Source, SourceOrigin, SourceValue};
use crate::replay::input::entry::{AccessLogFormat, ClientOrigin, ReplayEntry};

/// Text that our access log writes for a masked value.
const MASKED: &[u8] = b"***";

/// The value that a condition on the address of the client reads.
static CLIENT: LazyLock<Source> = LazyLock::new(|| Source::Ip(Prefixes::default()));

/// Values of one request that its log line contains.
pub struct LoggedFacts<'a> {
    pub facts: &'a Facts<'a>,
    pub entry: &'a ReplayEntry,
    pub no_host: bool,
}

/// Returns, for each of `limits`, the source that the log lacks; `None` if the limit can be evaluated or does not
/// apply in any case. In a chain of `after` limits, one that cannot be evaluated makes the others unknown as well,
/// because each may decide in another's place.
pub fn find_unknown_sources<'l>(limits: &'l [Arc<Limit>], logged: &LoggedFacts) -> Vec<Option<&'l Source>> {
    let mut unknown: Vec<Option<&Source>> = limits.iter().map(|limit| logged.find_unknown(limit)).collect();
    let base = |index: usize| {
        let name = limits[index].after.as_ref()?;
        limits[..index].iter().position(|limit| limit.name == *name)
    };
    // Limits that follow another come after it in the list.
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
    /// Returns whether the log does not show what ran concurrently, and the limit depends on that.
    pub fn is_blurred(&self, limit: &Limit) -> bool {
        limit.rule.lease_ms().is_some() && self.entry.is_blurred()
    }

    /// Returns the source that `limit` reads and the log lacks.
    fn find_unknown<'l>(&self, limit: &'l Limit) -> Option<&'l Source> {
        let by_when =
            limit.when.is_met_if_known(self.facts, limit.repeated, limit.not_integer, |source| self.is_known(source));
        if limit.when.reads_client() && !self.is_client_known() {
            return Some(&CLIENT);
        }
        // Without a host, requests share one budget, which is reported; `--host` sets one.
        let parts = limit.counted_key().0.iter().filter(|part| self.logged_value(part).is_none());
        let mut of_key =
            parts.flat_map(KeyPart::sources).filter(|source| **source != Source::Host && !self.is_known(source));
        match by_when {
            Ok(true) => of_key.next().or_else(|| limit.cost.required_body_source()),
            Ok(false) => None,
            Err(source) => Some(source),
        }
    }

    /// Returns the value of a part that only the keys in the log contain.
    pub fn logged_value(&self, part: &KeyPart) -> Option<&ShownValue> {
        if part.sources().iter().all(|source| *source == Source::Host || self.is_known(source)) {
            return None;
        }
        let name = part.state_name();
        self.entry.key_parts.iter().find(|logged| logged.name == name).map(|logged| &logged.value)
    }

    fn is_client_known(&self) -> bool {
        self.entry.client_origin != ClientOrigin::Unknown
    }

    fn is_known(&self, source: &Source) -> bool {
        match source {
            Source::Header(name) => self.entry.headers.has(name),
            Source::Host => !self.no_host,
            Source::Ip(_) | Source::Country => self.is_client_known(),
            Source::User => self.facts.user.is_some(),
            Source::Query(_) => {
                self.entry.format != AccessLogFormat::Json
                    || self.facts.text(source, Default::default()).ok().flatten().is_none_or(|value| *value != *MASKED)
            }
            source => matches!(source.kind().origin(), SourceOrigin::Request | SourceOrigin::Target),
        }
    }
}

impl SourceValues for LoggedFacts<'_> {
    fn value(&self, source: &Source, repeated: Repeated) -> Result<Option<SourceValue<'_>>, Ambiguous> {
        self.facts.value(source, repeated)
    }

    fn part_value<'v>(&'v self, part: &KeyPart, repeated: Repeated) -> Result<Option<SourceValue<'v>>, Ambiguous> {
        match self.logged_value(part) {
            Some(value) => Ok(value.to_source_value()),
            None => part.value(self.facts, repeated),
        }
    }
}

/// Returns whether every log has the values of the limit's key.
pub fn is_key_in_logs(limit: &Limit) -> bool {
    let mut sources = limit.counted_key().sources();
    sources.all(|source| matches!(source.kind().origin(), SourceOrigin::Request))
}
