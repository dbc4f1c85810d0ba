//! Snapshots: the active config, immutable and numbered, together with the metrics of its routes and the state of its
//! upstreams. A request uses one snapshot from start to end. A reload replaces the snapshot atomically.
//!
//! Input: a compiled config. Output: what the workers read, through [`CurrentSnapshot`].
//!
//! - `persistent_state`: metrics and server state that survive reloads
//! - `breakers`: metrics of circuit breakers
//! - `counters`: metrics of routes and limits, per worker
//! - `fleet`: state of all upstream servers, and its metrics
//! - `adaptive`: metrics of adaptive limits and queues
//!
//! To add a metric of a route or limit: add it to the records in `telemetry::metrics`, create its series in `counters`,
//! and count it there through a method of the counters.

mod adaptive;
mod breakers;
mod counters;
mod fleet;
mod persistent_state;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use crate::config::Config;
pub use crate::snapshot::adaptive::AdaptiveMetrics;
pub use crate::snapshot::breakers::BreakerMetrics;
pub use crate::snapshot::counters::{RouteCounters, RouteMetrics, decision_label, overload_end};
pub use crate::snapshot::fleet::Fleet;
pub use crate::snapshot::persistent_state::{PersistentState, UNMATCHED, export_policies};
use crate::upstream::breaker::CircuitBreaker;
use crate::upstream::roster::UpstreamState;

/// An active config with its metrics and upstream state.
pub struct Snapshot {
    /// 1 for the first config, one more with each applied reload.
    pub generation: u64,
    pub loaded_at: SystemTime,
    pub config: Config,
    /// Metrics of all routes, indexed like [`Config::route_at`].
    pub records: Vec<RouteMetrics>,
    /// Metrics of requests that no route matches.
    pub unmatched: RouteMetrics,
    /// State of the upstreams, indexed like `config.upstreams`.
    pub upstreams: Vec<Arc<UpstreamState>>,
    /// Breakers of the routes, indexed like `config.routes`; empty if no route has one.
    pub route_breakers: Vec<Option<Arc<CircuitBreaker>>>,
}

/// The active snapshot. Workers read it, and the control thread replaces it.
pub type CurrentSnapshot = Arc<ArcSwap<Snapshot>>;

impl Snapshot {
    pub fn new(generation: u64, config: Config, state: &mut PersistentState) -> Snapshot {
        Snapshot {
            generation,
            loaded_at: SystemTime::now(),
            records: config
                .all_routes()
                .map(|route| RouteMetrics::new(state.route_record(route), route, &config, state.limit_registry()))
                .collect(),
            unmatched: RouteMetrics::unmatched(state.unmatched_record()),
            route_breakers: state.fleet.build_route_breakers(&config.routes),
            upstreams: state.fleet.build_states(&config.upstreams),
            config,
        }
    }
}
