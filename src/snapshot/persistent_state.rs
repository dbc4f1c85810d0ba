//! State that survives reloads: metrics of routes by name, and the state of upstream servers. A route that stays
//! continues the same series. The control thread owns this.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::Config;
use crate::limiting::clock;
use crate::route::Route;
use crate::snapshot::Snapshot;
use crate::snapshot::counters::branch_names;
use crate::snapshot::fleet::Fleet;
use crate::telemetry::metrics::{LimitRegistry, Metrics, RouteRecord};

/// The `route` label of requests that no route matches.
pub const UNMATCHED: &str = "_none";

/// Metrics and server state that survive reloads.
pub struct PersistentState {
    metrics: Metrics,
    pub fleet: Fleet,
}

impl PersistentState {
    pub fn new(metrics: &Metrics, fleet: &Fleet) -> PersistentState {
        PersistentState { metrics: metrics.clone(), fleet: fleet.clone() }
    }

    /// Returns the metrics of a route, new or from before.
    pub fn route_record(&mut self, route: &Route) -> Arc<RouteRecord> {
        self.metrics.routes.get_or_create_route(&route.name)
    }

    /// Returns the metrics of requests that no route matches.
    pub fn unmatched_record(&mut self) -> Arc<RouteRecord> {
        self.metrics.routes.get_or_create_route(UNMATCHED)
    }

    /// Returns the metrics of limits over all routes.
    pub fn limit_registry(&self) -> &LimitRegistry {
        &self.metrics.limits
    }

    /// Drops the metrics and state of routes, limits and servers that `snapshot` does not have. Called when it is in
    /// force.
    pub fn drop_unused(&mut self, snapshot: &Snapshot) {
        self.fleet.activate(&snapshot.upstreams);
        self.fleet.activate_route_breakers(&snapshot.config.routes, &snapshot.route_breakers);
        let config = &snapshot.config;
        self.metrics.limits.retain(|name| config.limits.index_of(name).is_some());
        export_policies(&snapshot.config, &self.metrics.limits);
        // The limits of each route, and whether they are candidates; and the upstreams of its split.
        let mut routes: HashMap<&str, (HashMap<&str, bool>, Vec<&str>)> = config
            .all_routes()
            .map(|route| {
                let limits = route.limits.iter().map(|limit| (limit.name.as_str(), limit.candidate_of.is_some()));
                (route.name.as_str(), (limits.collect(), branch_names(route, config).collect()))
            })
            .collect();
        routes.insert(UNMATCHED, (HashMap::new(), Vec::new()));
        self.metrics.routes.retain_routes(|name, record| match routes.get(name) {
            Some((limits, branches)) => {
                record.retain_limits(|limit| limits.contains_key(limit));
                record.hide_effects(|limit| limits.get(limit) == Some(&true));
                record.branches.retain(branches);
                true
            }
            None => false,
        });
    }
}

/// Exports the size of each limit: its quota and its window now. Calendar windows have different lengths.
pub fn export_policies(config: &Config, limits: &LimitRegistry) {
    let now_ms = clock::now_ms();
    for limit in config.limits.iter() {
        let policy = limit.rule.policy_at(now_ms);
        let record = limits.get_or_create(&limit.name);
        record.set_policy(policy.quota, policy.window_ms);
        record.leases.is_configured.store(limit.store_ref.lease.is_some(), Ordering::Relaxed);
    }
}
