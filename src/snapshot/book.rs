//! The records of all routes, kept over reloads by name: a route that stays goes on counting on
//! the same series. Owned by the control thread.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Snapshot;
use super::fleet::Fleet;
use crate::metrics::{Metrics, RouteRecord};
use crate::route::Route;

/// The `route` label of requests that no route takes.
pub const UNMATCHED: &str = "_none";

pub struct Book {
    metrics: Metrics,
    pub fleet: Fleet,
}

impl Book {
    pub fn new(metrics: &Metrics, fleet: &Fleet) -> Book {
        Book { metrics: metrics.clone(), fleet: fleet.clone() }
    }

    pub fn route(&mut self, route: &Route) -> Arc<RouteRecord> {
        self.metrics.routes.named(&route.name)
    }

    pub fn unmatched(&mut self) -> Arc<RouteRecord> {
        self.metrics.routes.named(UNMATCHED)
    }

    /// Drops the series of what `snapshot`, now in force, does not have.
    pub fn retire(&mut self, snapshot: &Snapshot) {
        self.fleet.put_in_force(&snapshot.upstreams);
        let config = &snapshot.config;
        let mut kept: HashMap<&str, HashSet<&str>> = config
            .routes
            .iter()
            .map(|route| (route.name.as_str(), route.limits.iter().map(|limit| limit.name.as_str()).collect()))
            .collect();
        kept.insert(UNMATCHED, HashSet::new());
        self.metrics.routes.retain(|name, record| match kept.get(name) {
            Some(limits) => {
                record.retain_limits(|limit| limits.contains(limit));
                true
            }
            None => false,
        });
    }
}
