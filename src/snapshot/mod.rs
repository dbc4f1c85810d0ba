//! The config that is in force: immutable, numbered, with its metric records bound. A request
//! pins one from start to end; a reload swaps the next one in.

mod book;
mod fleet;
mod handles;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use crate::config::Config;
use crate::upstream::roster::UpstreamState;
pub use book::{Book, UNMATCHED};
pub use fleet::Fleet;
pub use handles::{RouteHandles, RouteRecords, decision};

pub use crate::metrics::Reason;

pub struct Snapshot {
    /// 1 for the config of the start, one more with each applied reload.
    pub generation: u64,
    pub loaded_at: SystemTime,
    pub config: Config,
    /// Of `config.routes`, same index.
    pub records: Vec<RouteRecords>,
    /// Of requests that no route takes.
    pub unmatched: RouteRecords,
    /// Of `config.upstreams`, same index.
    pub upstreams: Vec<Arc<UpstreamState>>,
}

/// What workers read and the control thread swaps.
pub type Current = Arc<ArcSwap<Snapshot>>;

impl Snapshot {
    pub fn new(generation: u64, config: Config, book: &mut Book) -> Snapshot {
        Snapshot {
            generation,
            loaded_at: SystemTime::now(),
            records: config.routes.iter().map(|route| RouteRecords::new(book.route(route), route, &config)).collect(),
            unmatched: RouteRecords::unmatched(book.unmatched()),
            upstreams: book.fleet.enlist(&config.upstreams),
            config,
        }
    }
}
