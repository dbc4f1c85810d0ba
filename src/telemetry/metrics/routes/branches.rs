//! Metrics of the branches of a `split`: responses and durations of each of its upstreams. Only routes with a split have
//! them. The record of the route keeps and exports them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;

use crate::telemetry::metrics::counts::{Code, Codes, Durations, Histogram};
use crate::telemetry::metrics::shards::Shards;

/// Statuses whose series exist before the first response: `rate()` misses the first event of a series that begins with
/// it, and a branch without errors has an error rate of 0 instead of none.
const FIRST_STATUSES: [StatusCode; 5] = [
    StatusCode::OK,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// Counts of one worker for a branch.
#[derive(Default)]
pub struct BranchCounts {
    pub statuses: Codes,
    pub duration: Durations,
}

/// Counts of a branch. They survive a reload that keeps the upstream in the split of the route.
pub struct BranchRecord {
    pub upstream: String,
    pub shards: Shards<BranchCounts>,
}

/// The branches of a route.
#[derive(Default)]
pub struct BranchRecords(Mutex<Vec<Arc<BranchRecord>>>);

impl BranchRecord {
    /// Returns the series of responses, by status.
    pub fn count_responses(&self) -> BTreeMap<Code, u64> {
        let mut counts: BTreeMap<Code, u64> = FIRST_STATUSES.map(|status| (Code::from(status), 0)).into();
        for (code, count) in self.shards.iter().flat_map(|part| part.statuses.iter_counts()) {
            *counts.entry(code).or_default() += count;
        }
        counts
    }

    pub fn sum_durations(&self) -> Histogram {
        Histogram::sum(self.shards.iter().map(|part| &part.duration))
    }
}

impl BranchRecords {
    /// Returns the record of the branch with this upstream, creating it if it is new.
    pub fn get_or_create(&self, upstream: &str) -> Arc<BranchRecord> {
        let mut branches = self.lock();
        if let Some(branch) = branches.iter().find(|branch| branch.upstream == upstream) {
            return branch.clone();
        }
        let branch = Arc::new(BranchRecord { upstream: upstream.to_owned(), shards: Shards::default() });
        branches.push(branch.clone());
        branch
    }

    /// Returns all branches.
    pub fn list(&self) -> Vec<Arc<BranchRecord>> {
        self.lock().clone()
    }

    /// Removes the branches whose upstreams are not among `kept`, with all their series.
    pub fn retain(&self, kept: &[&str]) {
        self.lock().retain(|branch| kept.contains(&branch.upstream.as_str()));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<BranchRecord>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
