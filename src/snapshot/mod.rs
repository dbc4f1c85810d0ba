//! The config that is in force: immutable, numbered, with its metric records bound. A request
//! pins one from start to end; a reload swaps the next one in.

mod book;
mod handles;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use crate::config::Config;
pub use book::{Book, UNMATCHED};
pub use handles::{RouteHandles, RouteRecords};

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
            config,
        }
    }
}
