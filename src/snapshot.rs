//! The config that is in force: immutable, numbered, with its metric handles bound. A request
//! pins one from start to end; a reload swaps the next one in.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use crate::config::Config;
use crate::metrics::{Metrics, RouteMetrics};

pub struct Snapshot {
    /// 1 for the config of the start, one more with each applied reload.
    pub generation: u64,
    pub loaded_at: SystemTime,
    pub config: Config,
    /// Handles of `config.routes`, same index.
    pub routes: Vec<Arc<RouteMetrics>>,
    /// Handles of requests that no route takes.
    pub unmatched: Arc<RouteMetrics>,
}

/// What workers read and the control thread swaps.
pub type Current = Arc<ArcSwap<Snapshot>>;

impl Snapshot {
    pub fn new(generation: u64, config: Config, metrics: &Metrics) -> Snapshot {
        Snapshot {
            generation,
            loaded_at: SystemTime::now(),
            routes: config.routes.iter().map(|route| metrics.route(route, &config)).collect(),
            unmatched: metrics.unmatched(),
            config,
        }
    }
}
