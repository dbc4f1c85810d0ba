//! A worker's view of one snapshot: the snapshot itself and what this thread keeps for it. A
//! request holds the view from start to end, which pins the snapshot without touching a counter
//! that other cores touch.

use std::sync::Arc;

use crate::http::pool::{Pools, Servers};
use crate::limit::Limiter;
use crate::limit::store::Store;
use crate::limit::store::memory::Memory;
use crate::metrics::Metrics;
use crate::snapshot::Snapshot;

pub struct View {
    pub snapshot: Arc<Snapshot>,
    pub limiter: Limiter,
    /// Of `config.upstreams`, same index.
    pub upstreams: Vec<Servers>,
}

impl View {
    /// The view of `snapshot`; the store link and the pools of unchanged servers are taken over
    /// from `previous`.
    pub fn new(
        snapshot: Arc<Snapshot>,
        previous: Option<&View>,
        pools: &Pools,
        memory: &Arc<Memory>,
        metrics: &Metrics,
    ) -> View {
        let settings = &snapshot.config.store;
        let kept = previous.filter(|view| view.snapshot.config.store.same_but_tls(settings));
        let store =
            kept.map_or_else(|| Store::open(settings, memory, metrics), |view| view.limiter.desk().store.clone());
        if let Store::Redis(redis) = &store {
            redis.set_tls(&settings.tls);
        }
        View {
            limiter: Limiter::new(store, kept.map(|view| &view.limiter), memory, &settings.prefix, metrics),
            upstreams: snapshot.config.upstreams.iter().map(|upstream| pools.servers(upstream, metrics)).collect(),
            snapshot,
        }
    }
}
