//! Families with a `route` label: the records of all routes by name, and how they are exported.
//! `snapshot::PersistentState` keeps them over reloads; the registry scrapes them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::ends::End;
use crate::telemetry::metrics::counts::{BUCKETS, Histogram};
use crate::telemetry::metrics::exposition::openmetrics::FamilyExemplars;
use crate::telemetry::metrics::exposition::series;
use crate::telemetry::metrics::exposition::series::{build_family, counter_metric, gauge_metric};
use crate::telemetry::metrics::labels::{CandidateEffect, Decision, ForwardAuthOutcome};
use crate::telemetry::metrics::record::RouteRecord;

const DURATION_FAMILY: &str = "sluicegate_request_duration_seconds";

/// Value of the `limit` label for rejections that no limit caused.
const NO_LIMIT: &str = "_none";

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

    /// Returns the traces of sampled requests, for the histogram of durations.
    pub fn latest_exemplars(&self) -> FamilyExemplars {
        let exemplars = |(name, record): (&String, &Arc<RouteRecord>)| (name.clone(), record.latest_exemplars());
        FamilyExemplars { family: DURATION_FAMILY, by_label: self.lock().iter().map(exemplars).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<RouteRecord>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exports the records as metric families.
pub struct RouteCollector {
    routes: Arc<Routes>,
    families: Vec<Desc>,
}

/// Name, help and labels of each family, in the order in which [`RouteCollector::collect`] fills them.
const FAMILIES: [(&str, &str, &[&str]); 7] = [
    ("requests_total", "Requests with a response.", &["route", "method", "code"]),
    ("request_duration_seconds", "Time from the request head to the end of the response.", &["route"]),
    ("requests_in_flight", "Requests in progress.", &["route"]),
    ("limit_decisions_total", "Decisions by limit and result.", &["route", "limit", "decision"]),
    (
        "candidate_decisions_total",
        "Requests by whether a candidate would decide them like its incumbent.",
        &["route", "limit", "effect"],
    ),
    ("rejections_total", "Requests refused by a limit, an address list or a cap.", &["route", "limit", "reason"]),
    ("forward_auth_total", "Requests to the auth server of the route.", &["route", "outcome"]),
];

impl RouteCollector {
    pub fn new(routes: Arc<Routes>) -> prometheus::Result<RouteCollector> {
        let family = |(name, help, labels): (&str, &str, &[&str])| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(format!("sluicegate_{name}"), help.to_owned(), labels, HashMap::new())
        };
        Ok(RouteCollector { routes, families: FAMILIES.into_iter().map(family).collect::<prometheus::Result<_>>()? })
    }
}

impl Collector for RouteCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let [mut requests, mut durations, mut in_flight, mut decisions, mut effects, mut rejections, mut forward_auth] =
            [const { Vec::new() }; 7];
        let reasons = End::rejection_labels();
        // Requests never take this lock; only config loads and scrapes do.
        for (name, record) in self.routes.lock().iter() {
            for (code, count) in record.count_requests() {
                let (method, status) = (code.method(), code.status().to_string());
                requests.push(counter_metric(count, &[("code", &status), ("method", method), ("route", name)]));
            }
            durations.push(histogram(record, name));
            in_flight.push(gauge_metric(record.count_in_flight(), &[("route", name)]));
            for (index, count) in record.count_refusals() {
                let reason = reasons[index];
                rejections.push(counter_metric(count, &[("limit", NO_LIMIT), ("reason", reason), ("route", name)]));
            }
            for (index, count) in record.count_forward_auth() {
                let outcome = ForwardAuthOutcome::ALL[index].label();
                forward_auth.push(counter_metric(count, &[("outcome", outcome), ("route", name)]));
            }
            for limit in record.limits() {
                for (index, count) in limit.count_decisions() {
                    let decision = Decision::ALL[index].label();
                    let labels = [("decision", decision), ("limit", &limit.name), ("route", name)];
                    decisions.push(counter_metric(count, &labels));
                }
                for (index, count) in limit.count_effects() {
                    let effect = CandidateEffect::ALL[index].label();
                    effects.push(counter_metric(count, &[("effect", effect), ("limit", &limit.name), ("route", name)]));
                }
                for (index, count) in limit.count_rejections() {
                    let labels = [("limit", &*limit.name), ("reason", reasons[index]), ("route", name)];
                    rejections.push(counter_metric(count, &labels));
                }
            }
        }
        use proto::MetricType::{COUNTER, GAUGE, HISTOGRAM};
        let kinds = [COUNTER, HISTOGRAM, GAUGE, COUNTER, COUNTER, COUNTER, COUNTER];
        let metrics = [requests, durations, in_flight, decisions, effects, rejections, forward_auth];
        self.families
            .iter()
            .zip(kinds)
            .zip(metrics)
            .map(|((desc, kind), metrics)| build_family(desc, kind, metrics))
            .collect()
    }
}

fn histogram(record: &RouteRecord, route: &str) -> proto::Metric {
    let Histogram { cumulative, count, sum_seconds } = record.sum_durations();
    series::histogram_metric(&BUCKETS, &cumulative, count, sum_seconds, &[("route", route)])
}
