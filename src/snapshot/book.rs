//! The metric handles of all routes, kept over reloads by name: a route that stays goes on
//! counting on the same series. Owned by the control thread.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::handles::RouteMetrics;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::route::Route;

/// The `route` label of requests that no route takes.
pub const UNMATCHED: &str = "_none";

pub struct Book {
    metrics: Metrics,
    routes: HashMap<String, Arc<RouteMetrics>>,
}

impl Book {
    pub fn new(metrics: &Metrics) -> Book {
        Book { metrics: metrics.clone(), routes: HashMap::new() }
    }

    /// The handles of `route`; the series of its limits exist from now on.
    pub fn route(&mut self, route: &Route, config: &Config) -> Arc<RouteMetrics> {
        let handles = self.named(&route.name);
        handles.prepare(route, config);
        handles
    }

    pub fn unmatched(&mut self) -> Arc<RouteMetrics> {
        self.named(UNMATCHED)
    }

    fn named(&mut self, name: &str) -> Arc<RouteMetrics> {
        let make = || Arc::new(RouteMetrics::new(name, &self.metrics));
        self.routes.entry(name.to_owned()).or_insert_with(make).clone()
    }

    /// Drops the series of routes and limits that `config`, now in force, does not have.
    pub fn retire(&mut self, config: &Config) {
        let mut kept: HashMap<&str, HashSet<&str>> = config
            .routes
            .iter()
            .map(|route| (route.name.as_str(), route.limits.iter().map(|limit| limit.name.as_str()).collect()))
            .collect();
        kept.insert(UNMATCHED, HashSet::new());
        self.routes.retain(|name, handles| match kept.get(name.as_str()) {
            Some(limits) => {
                handles.retire_limits(limits);
                true
            }
            None => {
                handles.retire();
                false
            }
        });
    }
}
