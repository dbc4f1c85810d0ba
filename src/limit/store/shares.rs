//! How many of the keys in memory are each limit's, so that no limit's keys push out another's. Set
//! by the control thread with each config, asked by `memory` for limits it has not met.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::IntCounter;

use super::partition::{ByHash, KeyCount};
use crate::limit::limits::Limit;

/// By the id of the limit.
pub struct Shares {
    current: Table,
    /// Of limits that the last change took out of the config: another one may bring them back.
    leaving: Table,
    /// Of any other limit: all that there is until somebody says which limits there are, then the least,
    /// for requests that still hold a config of long ago.
    other: Arc<Share>,
    divided: bool,
}

type Table = HashMap<u64, Arc<Share>, ByHash>;

/// One limit's.
pub struct Share {
    pub max_keys: usize,
    /// Keys in use that had to go.
    pub evicted: Option<IntCounter>,
    census: Census,
}

/// The keys that there are, in all shards together.
#[derive(Default)]
struct Census {
    len: AtomicUsize,
    spent: AtomicUsize,
}

/// The least a limit gets.
pub const SHARE_MIN: usize = 64;

impl Share {
    fn new(max_keys: usize, evicted: Option<IntCounter>) -> Arc<Share> {
        Arc::new(Share { max_keys, evicted, census: Census::default() })
    }

    /// Counts what has become of one shard's keys.
    pub fn count(&self, before: KeyCount, after: KeyCount) {
        // Adding wraps, so a difference below nothing is taken off.
        if after.len != before.len {
            self.census.len.fetch_add(after.len.wrapping_sub(before.len), Ordering::Relaxed);
        }
        if after.spent != before.spent {
            self.census.spent.fetch_add(after.spent.wrapping_sub(before.spent), Ordering::Relaxed);
        }
    }

    /// Counts a key that comes; says how many there were before.
    pub fn admit(&self) -> usize {
        self.census.len.fetch_add(1, Ordering::Relaxed)
    }

    /// What is held by all shards together; off by as much as other workers change at this moment.
    pub fn key_count(&self) -> KeyCount {
        KeyCount { len: self.census.len.load(Ordering::Relaxed), spent: self.census.spent.load(Ordering::Relaxed) }
    }
}

impl Shares {
    /// All that there is, for each limit: nobody has said which limits there are.
    pub fn undivided(max_keys: usize) -> Shares {
        Shares {
            current: Table::default(),
            leaving: Table::default(),
            other: Share::new(max_keys, None),
            divided: false,
        }
    }

    /// Those of a new config; `counter` makes the counter of a limit by its name.
    pub fn next(&self, max_keys: usize, limits: &[Arc<Limit>], counter: impl Fn(&str) -> Option<IntCounter>) -> Shares {
        let shares = divided(max_keys, limits);
        let current: Table = limits
            .iter()
            .zip(shares)
            .map(|(limit, max_keys)| (limit.id, Share::new(max_keys, counter(&limit.name))))
            .collect();
        let gone = self.current.iter().filter(|(id, _)| !current.contains_key(id));
        let leaving = gone.map(|(id, share)| (*id, share.clone())).collect();
        Shares { current, leaving, other: Share::new(SHARE_MIN, None), divided: true }
    }

    /// The share of a limit.
    pub fn of(&self, id: u64) -> &Arc<Share> {
        self.current.get(&id).or_else(|| self.leaving.get(&id)).unwrap_or(&self.other)
    }

    /// Whether the keys of a limit are kept.
    pub fn keeps(&self, id: u64) -> bool {
        !self.divided || self.current.contains_key(&id) || self.leaving.contains_key(&id)
    }
}

/// Each limit's keys: its own `max_keys`, and equal parts of the rest for those without.
pub fn divided(max_keys: usize, limits: &[Arc<Limit>]) -> Vec<usize> {
    let own: usize = limits.iter().filter_map(|limit| limit.max_keys).sum();
    let others = limits.iter().filter(|limit| limit.max_keys.is_none()).count();
    let part = (max_keys.saturating_sub(own) / others.max(1)).max(SHARE_MIN);
    limits.iter().map(|limit| limit.max_keys.unwrap_or(part)).collect()
}
