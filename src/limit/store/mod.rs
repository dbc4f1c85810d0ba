//! Stores of limit state. A store takes the checks of one request and answers them together: all
//! are charged or none. `memory` runs the native algorithms; `redis` runs their Lua twins.

pub mod memory;
pub(crate) mod partition;
pub mod redis;
pub mod settings;
pub(crate) mod shares;
pub(crate) mod timeline;

use std::rc::Rc;
use std::sync::Arc;

use super::decision::{Check, Decision, Op, StoreError};
use super::denials;
use crate::metrics::Metrics;
use settings::{StoreKind, StoreSettings};

/// A worker's handle on the configured store.
#[derive(Clone)]
pub enum Store {
    Memory(Arc<memory::Memory>),
    Redis(Rc<redis::Redis>),
    Timeline(Rc<timeline::Timeline>),
}

impl Store {
    /// The store that `settings` name; lives in the caller's runtime.
    pub fn open(settings: &StoreSettings, memory: &Arc<memory::Memory>, metrics: &Metrics) -> Store {
        match &settings.kind {
            StoreKind::Memory => Store::Memory(memory.clone()),
            StoreKind::Redis(url) => Store::Redis(Rc::new(redis::Redis::connect(settings, &url.0, metrics))),
        }
    }

    /// Waits, for a while at most, until it is known whether the store can be reached.
    pub async fn settled(&self) {
        if let Store::Redis(redis) = self {
            redis.settled().await;
        }
    }

    pub async fn run(&self, op: Op, checks: Vec<Check>) -> Result<Decision, StoreError> {
        match self {
            Store::Memory(memory) => Ok(memory.run_now(op, &checks)),
            Store::Redis(redis) if matches!(op, Op::Adjust | Op::Reset) => {
                let remembered = checks.iter().any(denials::fit);
                let outcome = redis.run(op, checks).await;
                if remembered {
                    denials::given_back();
                }
                outcome
            }
            Store::Redis(redis) => redis.run(op, checks).await,
            Store::Timeline(timeline) => Ok(timeline.run(op, checks)),
        }
    }
}
