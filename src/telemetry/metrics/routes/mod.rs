//! Metrics of routes and of limits on routes: what each worker counts, the records that add the workers up, and the
//! families with a `route` label. `snapshot::PersistentState` keeps the records over reloads and binds requests to
//! them; the registry scrapes them.
//!
//! To add a family, add a field that workers count in, and a row of `FAMILIES`. `branches` has the counts of the
//! upstreams of a split.

pub mod branches;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::proto::MetricType::{COUNTER, GAUGE, HISTOGRAM};

use crate::ends::{End, REJECTION_LABELS};
use crate::telemetry::exemplars::Exemplars;
use crate::telemetry::metrics::counts::{
    BUCKETS, BucketExemplars, Code, Codes, Durations, ExportedSeries, Histogram, LabelCounts, find_bucket,
};
use crate::telemetry::metrics::exposition::openmetrics::FamilyExemplars;
use crate::telemetry::metrics::labels::{CandidateEffect, Decision, ForwardAuthOutcome, MirrorOutcome};
use crate::telemetry::metrics::record_families::{FamilyRow, RecordCollector};
use crate::telemetry::metrics::routes::branches::BranchRecords;
use crate::telemetry::metrics::shards::{Count, Shards};

const DURATION_FAMILY: &str = "sluicegate_request_duration_seconds";

/// Value of the `limit` label for rejections that no limit caused.
const NO_LIMIT: &str = "_none";

/// The families with the label `route`.
const FAMILIES: [FamilyRow<RouteRecord>; 10] = [
    FamilyRow {
        name: "requests_total",
        help: "Requests with a response.",
        kind: COUNTER,
        labels: &["method", "code"],
        collect: |route, series| {
            for (code, count) in route.count_requests() {
                series.add_counter(count, &[code.method(), &code.status().to_string()]);
            }
        },
    },
    FamilyRow {
        name: "request_duration_seconds",
        help: "Time from the request head to the end of the response.",
        kind: HISTOGRAM,
        labels: &[],
        collect: |route, series| series.add_histogram(&route.sum_durations(), &[]),
    },
    FamilyRow {
        name: "split_requests_total",
        help: "Requests of routes with a split, by the upstream that the split chose.",
        kind: COUNTER,
        labels: &["upstream", "code"],
        collect: |route, series| {
            for branch in route.branches.list() {
                for (code, count) in branch.count_responses() {
                    series.add_counter(count, &[&branch.upstream, &code.status().to_string()]);
                }
            }
        },
    },
    FamilyRow {
        name: "split_request_duration_seconds",
        help: "Time from the request head to the end of the response, by the upstream that the split chose.",
        kind: HISTOGRAM,
        labels: &["upstream"],
        collect: |route, series| {
            for branch in route.branches.list() {
                series.add_histogram(&branch.sum_durations(), &[&branch.upstream]);
            }
        },
    },
    FamilyRow {
        name: "requests_in_flight",
        help: "Requests in progress.",
        kind: GAUGE,
        labels: &[],
        collect: |route, series| series.add_gauge(route.count_in_flight()),
    },
    FamilyRow {
        name: "limit_decisions_total",
        help: "Decisions by limit and result.",
        kind: COUNTER,
        labels: &["limit", "decision"],
        collect: |route, series| {
            for limit in route.limits() {
                for (index, count) in limit.count_decisions() {
                    series.add_counter(count, &[&limit.name, Decision::LABELS[index]]);
                }
            }
        },
    },
    FamilyRow {
        name: "candidate_decisions_total",
        help: "Requests by whether a candidate would decide them like its incumbent.",
        kind: COUNTER,
        labels: &["limit", "effect"],
        collect: |route, series| {
            for limit in route.limits() {
                for (index, count) in limit.count_effects() {
                    series.add_counter(count, &[&limit.name, CandidateEffect::LABELS[index]]);
                }
            }
        },
    },
    FamilyRow {
        name: "rejections_total",
        help: "Requests refused by a limit, an address list or a cap.",
        kind: COUNTER,
        labels: &["limit", "reason"],
        collect: |route, series| {
            let reasons = End::rejection_labels();
            for (index, count) in route.count_refusals() {
                series.add_counter(count, &[NO_LIMIT, reasons[index]]);
            }
            for limit in route.limits() {
                for (index, count) in limit.count_rejections() {
                    series.add_counter(count, &[&limit.name, reasons[index]]);
                }
            }
        },
    },
    FamilyRow {
        name: "forward_auth_total",
        help: "Requests to the auth server of the route.",
        kind: COUNTER,
        labels: &["outcome"],
        collect: |route, series| {
            for (index, count) in route.count_forward_auth() {
                series.add_counter(count, &[ForwardAuthOutcome::LABELS[index]]);
            }
        },
    },
    FamilyRow {
        name: "mirror_total",
        help: "Copies of requests for another upstream, and requests that were not copied.",
        kind: COUNTER,
        labels: &["outcome"],
        collect: |route, series| {
            for (index, count) in route.count_mirrors() {
                series.add_counter(count, &[MirrorOutcome::LABELS[index]]);
            }
        },
    },
];

/// Counts of one worker for a route. The fields that every request writes come first, in two cache lines.
#[derive(Default)]
#[repr(C, align(64))]
pub struct RouteCounts {
    pub requests: Codes,
    pub in_flight: Count,
    pub duration: Durations,
    /// Refusals that no limit caused.
    pub rejections: LabelCounts<REJECTION_LABELS>,
    /// Requests in progress without a place, while the route has `max_in_flight`. They wait for their client, an auth
    /// server or their turn.
    pub without_place: Count,
    /// Requests to the auth server.
    pub forward_auth: LabelCounts<{ ForwardAuthOutcome::ALL.len() }>,
    /// Copies of requests.
    pub mirrors: LabelCounts<{ MirrorOutcome::ALL.len() }>,
    /// Traces of sampled requests.
    pub exemplars: Exemplars<{ BUCKETS.len() + 1 }>,
}

impl RouteCounts {
    /// Records the trace of a request whose duration was counted.
    pub fn record_exemplar(&self, seconds: f64, trace_id: u128) {
        self.exemplars.record(find_bucket(seconds).unwrap_or(BUCKETS.len()), seconds, trace_id);
    }
}

/// Counts of one worker for a limit on a route.
#[derive(Default)]
pub struct LimitCounts {
    pub decisions: LabelCounts<{ Decision::ALL.len() }>,
    pub rejections: LabelCounts<REJECTION_LABELS>,
    /// Comparisons of a candidate with its incumbent.
    pub effects: LabelCounts<{ CandidateEffect::ALL.len() }>,
}

/// Counts of a route. They survive a reload that keeps the route.
#[derive(Default)]
pub struct RouteRecord {
    pub shards: Shards<RouteCounts>,
    pub rejections: ExportedSeries,
    pub forward_auth: ExportedSeries,
    pub mirrors: ExportedSeries,
    /// Metrics of the upstreams of a split.
    pub branches: BranchRecords,
    /// Requests that have one of the places of `max_in_flight`; exact over all workers.
    placed: AtomicI64,
    codes: Mutex<Vec<Code>>,
    limits: Mutex<Vec<Arc<LimitRecord>>>,
}

/// Counts of a limit on a route.
pub struct LimitRecord {
    pub name: String,
    pub shards: Shards<LimitCounts>,
    pub decisions: ExportedSeries,
    pub rejections: ExportedSeries,
    pub effects: ExportedSeries,
}

impl RouteRecord {
    /// Returns the record of the route's limit `name`, creating it if it is new.
    pub fn get_or_create_limit(&self, name: &str) -> Arc<LimitRecord> {
        let mut limits = lock(&self.limits);
        if let Some(limit) = limits.iter().find(|limit| limit.name == name) {
            return limit.clone();
        }
        let limit = Arc::new(LimitRecord {
            name: name.to_owned(),
            shards: Shards::default(),
            decisions: ExportedSeries::default(),
            rejections: ExportedSeries::default(),
            effects: ExportedSeries::default(),
        });
        limits.push(limit.clone());
        limit
    }

    pub fn limits(&self) -> Vec<Arc<LimitRecord>> {
        lock(&self.limits).clone()
    }

    /// Removes the limits for which `kept` returns false.
    pub fn retain_limits(&self, kept: impl Fn(&str) -> bool) {
        lock(&self.limits).retain(|limit| kept(&limit.name));
    }

    /// Hides the comparisons of the limits for which `is_candidate` returns false.
    pub fn hide_effects(&self, is_candidate: impl Fn(&str) -> bool) {
        lock(&self.limits).iter().filter(|limit| !is_candidate(&limit.name)).for_each(|limit| limit.effects.hide());
    }

    /// Exports the series of this method and status from now on.
    pub fn export_code(&self, code: Code) {
        let mut codes = lock(&self.codes);
        if !codes.contains(&code) {
            codes.push(code);
        }
    }

    /// Returns the existing series of responses, by method and status.
    pub fn count_requests(&self) -> BTreeMap<Code, u64> {
        let mut counts: BTreeMap<Code, u64> = lock(&self.codes).iter().map(|code| (*code, 0)).collect();
        for (code, count) in self.shards.iter().map(|part| &part.requests).flat_map(Codes::iter_counts) {
            *counts.entry(code).or_default() += count;
        }
        counts
    }

    pub fn sum_durations(&self) -> Histogram {
        Histogram::sum(self.shards.iter().map(|part| &part.duration))
    }

    pub fn latest_exemplars(&self) -> BucketExemplars {
        Exemplars::latest(self.shards.iter().map(|part| &part.exemplars))
    }

    /// Returns the series of refusals that no limit caused.
    pub fn count_refusals(&self) -> Vec<(usize, u64)> {
        self.rejections.list_series(self.shards.iter().map(|part| &part.rejections))
    }

    /// Returns the series of requests to the auth server.
    pub fn count_forward_auth(&self) -> Vec<(usize, u64)> {
        self.forward_auth.list_series(self.shards.iter().map(|part| &part.forward_auth))
    }

    /// Returns the series of copies of requests.
    fn count_mirrors(&self) -> Vec<(usize, u64)> {
        self.mirrors.list_series(self.shards.iter().map(|part| &part.mirrors))
    }

    /// Returns the number of requests in progress.
    pub fn count_in_flight(&self) -> i64 {
        self.count_placed().wrapping_add(self.sum_shards(|part| &part.without_place))
    }

    /// Returns the number of requests that have a place. Those that began before the route had `max_in_flight` have
    /// one.
    fn count_placed(&self) -> i64 {
        self.placed.load(Ordering::Relaxed).wrapping_add(self.sum_shards(|part| &part.in_flight))
    }

    fn sum_shards(&self, count: impl Fn(&RouteCounts) -> &Count) -> i64 {
        self.shards.iter().map(|part| count(part).get()).fold(0, u64::wrapping_add).cast_signed()
    }

    /// Returns whether all of `max` places are taken.
    pub fn is_full(&self, max: usize) -> bool {
        usize::try_from(self.count_placed()).is_ok_and(|count| count >= max)
    }

    /// Takes one of `max` places. Returns false if the route is full.
    pub fn take_place(&self, max: usize) -> bool {
        // Incrementing before comparing keeps the cap exact: two concurrent requests may both be refused, but never
        // both pass.
        self.placed.fetch_add(1, Ordering::Relaxed);
        let has_place = usize::try_from(self.count_placed()).is_ok_and(|count| count <= max);
        if !has_place {
            self.return_place();
        }
        has_place
    }

    pub fn return_place(&self) {
        self.placed.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LimitRecord {
    pub fn count_decisions(&self) -> Vec<(usize, u64)> {
        self.decisions.list_series(self.shards.iter().map(|part| &part.decisions))
    }

    /// Returns the comparisons with the incumbent while the limit is a candidate.
    fn count_effects(&self) -> Vec<(usize, u64)> {
        if self.effects.is_hidden() {
            return Vec::new();
        }
        self.effects.list_series(self.shards.iter().map(|part| &part.effects))
    }

    pub fn count_rejections(&self) -> Vec<(usize, u64)> {
        self.rejections.list_series(self.shards.iter().map(|part| &part.rejections))
    }
}

/// The records of all routes, by name.
#[derive(Default)]
pub struct Routes(Mutex<BTreeMap<String, Arc<RouteRecord>>>);

impl Routes {
    /// Returns the record of the route `name`, creating it if it is new.
    pub fn get_or_create_route(&self, name: &str) -> Arc<RouteRecord> {
        let mut records = self.lock();
        if let Some(record) = records.get(name) {
            return record.clone();
        }
        records.entry(name.to_owned()).or_default().clone()
    }

    /// Removes the routes for which `kept` returns false, with all their series.
    pub fn retain_routes(&self, mut kept: impl FnMut(&str, &RouteRecord) -> bool) {
        self.lock().retain(|name, record| kept(name, record));
    }

    /// Calls `visit` with the record of every route.
    pub fn visit_routes(&self, visit: impl FnMut(&RouteRecord)) {
        self.lock().values().map(Arc::as_ref).for_each(visit);
    }

    /// Calls `visit` with the name and the record of each route.
    pub fn visit_named_routes(&self, mut visit: impl FnMut(&str, &RouteRecord)) {
        self.lock().iter().for_each(|(name, record)| visit(name, record));
    }

    /// Returns the traces of sampled requests, for the histogram of durations.
    pub fn latest_exemplars(&self) -> FamilyExemplars {
        let exemplars = |(name, record): (&String, &Arc<RouteRecord>)| (name.clone(), record.latest_exemplars());
        FamilyExemplars { family: DURATION_FAMILY, by_label: self.lock().iter().map(exemplars).collect() }
    }

    /// Returns a collector of the families of all routes. Requests never wait for it; only config loads do.
    pub fn collector(self: Arc<Routes>) -> prometheus::Result<RecordCollector<RouteRecord>> {
        RecordCollector::new("route", &FAMILIES, move |visit| {
            self.lock().iter().for_each(|(name, record)| visit(name, record));
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<RouteRecord>>> {
        lock(&self.0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};

    use super::*;

    #[test]
    fn what_a_request_writes_is_two_lines() {
        assert!(std::mem::offset_of!(RouteCounts, duration) <= 64);
    }

    #[test]
    fn workers_are_added_up_and_wanted_series_are_shown() {
        let record = RouteRecord::default();
        let [ok, made] = [StatusCode::OK, StatusCode::CREATED].map(|status| Code::new(&Method::GET, status));
        record.export_code(ok);
        record.export_code(ok);
        record.rejections.export_series(1);
        for worker in 0..3 {
            record.shards.shard_for(worker).requests.inc(made);
            record.shards.shard_for(worker).rejections.inc(3);
        }
        assert_eq!(record.count_requests().into_iter().collect::<Vec<_>>(), [(ok, 0), (made, 3)]);
        assert_eq!(record.count_refusals(), [(1, 0), (3, 3)]);
    }

    #[test]
    fn a_cap_counts_earlier_requests() {
        let record = RouteRecord::default();
        record.shards.shard_for(1).in_flight.inc();
        assert!(!record.is_full(2));
        assert!(record.take_place(2));
        assert!(record.is_full(2));
        assert!(!record.take_place(2));
        record.shards.shard_for(1).in_flight.dec();
        assert_eq!(record.count_in_flight(), 1);
        assert!(record.take_place(2));
        record.return_place();
        // A request that waits is in progress, and has no place.
        record.shards.shard_for(1).without_place.inc();
        assert_eq!(record.count_in_flight(), 2);
        assert!(record.take_place(2));
    }
}
