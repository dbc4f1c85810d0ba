//! How many of the keys in memory are each limit's, so that no limit's keys push out another's. Set
//! by the control thread with each config, asked by `memory` for limits it has not met.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus::IntCounter;

use super::partition::ByHash;
use crate::limit::limits::Limit;

/// By the id of the limit.
#[derive(Default)]
pub struct Shares {
    current: Table,
    /// Of limits that the last change took out of the config: another one may bring them back.
    leaving: Table,
    /// Of any other limit.
    other: Option<Arc<Share>>,
}

type Table = HashMap<u64, Arc<Share>, ByHash>;

/// One limit's.
pub struct Share {
    pub max_keys: usize,
    /// Keys in use that had to go.
    pub evicted: Option<IntCounter>,
}

/// The least a limit gets: a key in each shard.
pub const SHARE_MIN: usize = 64;

impl Shares {
    /// All that there is, for each limit: nobody has said which limits there are.
    pub fn undivided(max_keys: usize) -> Shares {
        Shares { other: Some(Arc::new(Share { max_keys, evicted: None })), ..Shares::default() }
    }

    /// Those of a new config; `counter` makes the counter of a limit by its name.
    pub fn next(&self, max_keys: usize, limits: &[Arc<Limit>], counter: impl Fn(&str) -> Option<IntCounter>) -> Shares {
        let shares = divided(max_keys, limits);
        let current: Table = limits
            .iter()
            .zip(shares)
            .map(|(limit, max_keys)| (limit.id, Arc::new(Share { max_keys, evicted: counter(&limit.name) })))
            .collect();
        let gone = self.current.iter().filter(|(id, _)| !current.contains_key(id));
        let leaving = gone.map(|(id, share)| (*id, share.clone())).collect();
        Shares { current, leaving, other: None }
    }

    /// The share of a limit; `None` if its keys are to be forgotten.
    pub fn find(&self, id: u64) -> Option<&Arc<Share>> {
        self.current.get(&id).or_else(|| self.leaving.get(&id)).or(self.other.as_ref())
    }

    /// For a request that still holds a config of long ago.
    pub fn least() -> Arc<Share> {
        Arc::new(Share { max_keys: SHARE_MIN, evicted: None })
    }
}

/// Each limit's keys: its own `max_keys`, and equal parts of the rest for those without.
pub fn divided(max_keys: usize, limits: &[Arc<Limit>]) -> Vec<usize> {
    let own: usize = limits.iter().filter_map(|limit| limit.max_keys).sum();
    let others = limits.iter().filter(|limit| limit.max_keys.is_none()).count();
    let part = (max_keys.saturating_sub(own) / others.max(1)).max(SHARE_MIN);
    limits.iter().map(|limit| limit.max_keys.unwrap_or(part)).collect()
}
