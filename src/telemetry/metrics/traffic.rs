//! Sums of the series of all routes: what the gateway does as a whole. Read by the live stream of the admin listener.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::telemetry::metrics::counts::{BUCKETS, Code, Histogram};
use crate::telemetry::metrics::labels::Decision;
use crate::telemetry::metrics::routes::branches::BranchRecord;
use crate::telemetry::metrics::routes::{LimitRecord, RouteRecord, Routes};

/// Counts since the start, of all routes that exist now. They are the counts that `/metrics` shows.
#[derive(Clone, Default)]
pub struct Traffic {
    pub requests: u64,
    /// Responses with a status from 400 to 499, without 429.
    pub client_errors: u64,
    /// Responses with the status 429.
    pub too_many: u64,
    /// Responses with a status of 500 or above.
    pub failed: u64,
    /// Requests that a limit, authentication, an address list or a cap refused.
    pub refused: u64,
    pub in_flight: i64,
    /// Requests by duration, as a cumulative histogram. The last count includes all of them.
    durations: [u64; BUCKETS.len() + 1],
    pub limits: BTreeMap<String, LimitTraffic>,
    /// Counts of the upstreams of a split, by name. Only routes have them: a sum of routes has none.
    pub branches: BTreeMap<String, Traffic>,
}

/// Counts of one limit on all its routes.
#[derive(Clone, Copy, Default)]
pub struct LimitTraffic {
    /// Requests that the limit decided about.
    pub decided: u64,
    pub refused: u64,
    /// Requests that a limit in shadow mode would have refused.
    pub would_refuse: u64,
    /// Requests about which the store did not decide.
    pub without_store: u64,
}

impl Routes {
    /// Adds up the counts of all routes.
    pub fn sum_traffic(&self) -> Traffic {
        let mut all = Traffic::default();
        self.visit_routes(|record| all.add_route(record));
        all
    }

    /// Returns the counts of each route.
    pub fn list_traffic(&self) -> BTreeMap<String, Traffic> {
        let mut routes = BTreeMap::new();
        self.visit_named_routes(|name, record| {
            let mut traffic = Traffic::default();
            traffic.add_route(record);
            traffic.branches =
                record.branches.list().iter().map(|branch| (branch.upstream.clone(), branch.into())).collect();
            routes.insert(name.to_owned(), traffic);
        });
        routes
    }
}

impl From<&Arc<BranchRecord>> for Traffic {
    fn from(branch: &Arc<BranchRecord>) -> Traffic {
        let mut traffic = Traffic::default();
        traffic.add_responses(branch.count_responses());
        traffic.add_durations(&branch.sum_durations());
        traffic
    }
}

impl Traffic {
    /// Adds the counts of `other`, except those of branches.
    pub fn add(&mut self, other: &Traffic) {
        self.requests += other.requests;
        self.client_errors += other.client_errors;
        self.too_many += other.too_many;
        self.failed += other.failed;
        self.refused += other.refused;
        self.in_flight += other.in_flight;
        self.durations.iter_mut().zip(&other.durations).for_each(|(sum, count)| *sum += count);
        for (name, limit) in &other.limits {
            self.limits.entry(name.clone()).or_default().add(limit);
        }
    }

    fn add_route(&mut self, record: &RouteRecord) {
        self.add_responses(record.count_requests());
        self.add_durations(&record.sum_durations());
        self.in_flight += record.count_in_flight();
        self.refused += sum_counts(&record.count_refusals());
        for limit in record.limits() {
            self.refused += self.limits.entry(limit.name.clone()).or_default().add_limit(&limit);
        }
    }

    fn add_responses(&mut self, counts: BTreeMap<Code, u64>) {
        for (code, count) in counts {
            self.requests += count;
            match code.status() {
                429 => self.too_many += count,
                400..=499 => self.client_errors += count,
                500.. => self.failed += count,
                _ => {}
            }
        }
    }

    fn add_durations(&mut self, durations: &Histogram) {
        let counts = durations.cumulative.into_iter().chain([durations.count]);
        self.durations.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }

    /// Returns the limits with their counts `before` and now: those that refused most since then first, then those that
    /// decided most.
    pub fn rank_limits(&self, before: &Traffic) -> Vec<(&str, LimitTraffic, LimitTraffic)> {
        let since = |name: &String| before.limits.get(name).copied().unwrap_or_default();
        let mut limits: Vec<_> = self.limits.iter().map(|(name, now)| (name.as_str(), since(name), *now)).collect();
        limits.sort_by_key(|(_, before, now)| {
            let grown = |read: fn(&LimitTraffic) -> u64| Reverse(read(now).saturating_sub(read(before)));
            (grown(|limit| limit.refused), grown(|limit| limit.would_refuse), grown(|limit| limit.decided))
        });
        limits
    }

    /// Estimates the duration in milliseconds that a `share` of the requests since `before` did not exceed. Within a
    /// bucket of the histogram, durations count as evenly spread. `None` without requests.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    pub fn duration_quantile(&self, before: &Traffic, share: f64) -> Option<f64> {
        let counts: Vec<u64> =
            self.durations.iter().zip(&before.durations).map(|(now, then)| now.saturating_sub(*then)).collect();
        let all = counts.last().copied().filter(|all| *all > 0)?;
        let rank = (all as f64 * share).ceil().max(1.0) as u64;
        let place = counts.iter().position(|count| *count >= rank)?;
        let Some(upper) = BUCKETS.get(place) else { return BUCKETS.last().map(|last| last * 1000.0) };
        let (lower, below) = match place.checked_sub(1) {
            Some(previous) => (BUCKETS[previous], counts[previous]),
            None => (0.0, 0),
        };
        let within = (rank - below) as f64 / counts[place].saturating_sub(below).max(1) as f64;
        Some((lower + (upper - lower) * within) * 1000.0)
    }
}

impl LimitTraffic {
    fn add(&mut self, other: &LimitTraffic) {
        self.decided += other.decided;
        self.refused += other.refused;
        self.would_refuse += other.would_refuse;
        self.without_store += other.without_store;
    }

    /// Adds the counts of a limit on one route; returns how many requests it refused there.
    fn add_limit(&mut self, limit: &LimitRecord) -> u64 {
        for (index, count) in limit.count_decisions() {
            let decision = Decision::ALL[index];
            if decision != Decision::Bypass {
                self.decided += count;
            }
            match decision {
                Decision::ShadowDeny => self.would_refuse += count,
                Decision::ErrorOpen | Decision::ErrorClosed | Decision::LocalAllow | Decision::LocalDeny => {
                    self.without_store += count;
                }
                _ => {}
            }
        }
        let refusals = sum_counts(&limit.count_rejections());
        self.refused += refusals;
        refusals
    }
}

fn sum_counts(series: &[(usize, u64)]) -> u64 {
    series.iter().map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_the_bucket_of_their_request() {
        let (before, mut now) = (Traffic::default(), Traffic::default());
        assert_eq!(now.duration_quantile(&before, 0.5), None);
        // 90 requests of up to 1 ms, 9 of up to 5 ms, 1 of more than 30 s.
        now.durations = [99; BUCKETS.len() + 1];
        (now.durations[0], now.durations[1], now.durations[2]) = (90, 90, 99);
        now.durations[BUCKETS.len()] = 100;
        let found = |share| now.duration_quantile(&before, share).unwrap();
        assert!((found(0.5) - 50.0 / 90.0).abs() < 1e-9, "{}", found(0.5));
        assert!((found(0.99) - 5.0).abs() < 1e-9, "{}", found(0.99));
        assert!((found(1.0) - 30_000.0).abs() < 1e-9, "{}", found(1.0));
        assert_eq!(now.duration_quantile(&now, 0.5), None, "nothing since then");
    }
}
