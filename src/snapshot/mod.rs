//! The config that is in force: immutable, numbered, with its metric handles bound. A request
//! pins one from start to end; a reload swaps the next one in.

mod book;
mod handles;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use crate::config::Config;
use crate::limit::limits::Limit;
use crate::route::Route;
pub use book::{Book, UNMATCHED};
pub use handles::LimitHandles;

pub use crate::metrics::Reason;
use crate::metrics::RouteRecord;

pub struct Snapshot {
    /// 1 for the config of the start, one more with each applied reload.
    pub generation: u64,
    pub loaded_at: SystemTime,
    pub config: Config,
    /// Handles of `config.routes`, same index.
    pub routes: Vec<Arc<RouteHandles>>,
    /// Handles of requests that no route takes.
    pub unmatched: Arc<RouteHandles>,
}

/// The metric handles of one route.
pub struct RouteHandles {
    pub route: Arc<RouteRecord>,
    /// Of the route's limits, same index.
    pub limits: Vec<LimitHandles>,
}

/// What workers read and the control thread swaps.
pub type Current = Arc<ArcSwap<Snapshot>>;

impl Snapshot {
    pub fn new(generation: u64, config: Config, book: &mut Book) -> Snapshot {
        Snapshot {
            generation,
            loaded_at: SystemTime::now(),
            routes: config.routes.iter().map(|route| Arc::new(RouteHandles::of(route, &config, book))).collect(),
            unmatched: Arc::new(RouteHandles { route: book.unmatched(), limits: Vec::new() }),
            config,
        }
    }
}

impl RouteHandles {
    fn of(route: &Route, config: &Config, book: &mut Book) -> RouteHandles {
        let record = book.route(route);
        let of = |limit: &Arc<Limit>| LimitHandles::new(record.limit(&limit.name), limit, route, config);
        RouteHandles { limits: route.limits.iter().map(of).collect(), route: record }
    }
}
