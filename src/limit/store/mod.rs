//! Stores of limit state, behind one face. A store takes the checks of one request and answers them
//! together: all are charged or none. `memory` runs the native algorithms; `redis` runs their Lua twins;
//! `timeline` is the memory of a replay. Nothing outside of this folder asks which one it is.

pub mod memory;
pub mod once;
pub(crate) mod partition;
pub mod redis;
pub mod settings;
pub(crate) mod shares;
pub(crate) mod timeline;

use std::rc::Rc;
use std::sync::Arc;

use super::answer::Answer;
use super::decision::{Check, Decision, ErrorKind, Op, Shares};
use super::hold_times::HoldTimes;
use super::overrides::Found;
use crate::metrics::{Gateways, Metrics};
use once::{Mark, Use};
use settings::{StoreKind, StoreSettings};

/// A worker's handle on the configured store.
#[derive(Clone)]
pub enum Store {
    Memory(Arc<memory::Memory>),
    Redis(Rc<redis::Redis>),
    Timeline(Rc<timeline::Timeline>),
}

/// What the handles of one process share.
#[derive(Clone)]
pub struct Stores {
    /// The embedded store, and the stand-in for any other.
    pub memory: Arc<memory::Memory>,
    pub hold_times: Arc<HoldTimes>,
    metrics: Metrics,
    redis: redis::AllHandles,
}

impl Stores {
    pub fn new(memory: Arc<memory::Memory>, metrics: &Metrics) -> Stores {
        Stores { memory, hold_times: Arc::default(), metrics: metrics.clone(), redis: redis::AllHandles::default() }
    }

    /// A handle on the store that `settings` name; lives in the caller's runtime.
    pub fn open(&self, settings: &StoreSettings) -> Store {
        match &settings.kind {
            StoreKind::Memory => Store::Memory(self.memory.clone()),
            StoreKind::Redis(url) => {
                Store::Redis(Rc::new(redis::Redis::connect(settings, &url.0, &self.metrics, &self.redis)))
            }
        }
    }
}

impl Store {
    /// Waits, for a while at most, until it is known whether the store can be reached.
    pub async fn first_attempt(&self) {
        if let Store::Redis(redis) = self {
            redis.first_attempt().await;
        }
    }

    /// Another config is in force, which this handle serves on.
    pub fn follow(&self, settings: &StoreSettings) {
        if let Store::Redis(redis) = self {
            redis.follow(&settings.tls);
        }
    }

    /// This process stops: other gateways that use the store count it no longer.
    pub async fn leave(&self, gateways: &Gateways) {
        if let Store::Redis(redis) = self {
            redis.leave(gateways).await;
        }
    }

    /// The answers that the store would give, if every one of the checks is known to be refused.
    pub fn known_refusals(&self, checks: &[Check]) -> Option<Vec<Answer>> {
        match self {
            Store::Redis(redis) => redis.known_refusals(checks),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Runs `op` on all `checks` together, where nobody has to be waited for.
    pub fn run_at_once(&self, op: Op, checks: &[Check]) -> Option<Decision> {
        match self {
            Store::Memory(memory) => Some(memory.run_now(op, checks)),
            Store::Timeline(timeline) => Some(timeline.run(op, checks.to_vec())),
            Store::Redis(_) => None,
        }
    }

    /// Takes or peeks.
    ///
    /// # Errors
    /// The store could not be asked, or its answer did not come in time: see [`ErrorKind::is_unsure`].
    pub async fn decide(&self, op: Op, checks: &Shares) -> Result<Decision, ErrorKind> {
        self.run(op, checks).await
    }

    /// Corrects charges by their receipts, whatever the limits say.
    ///
    /// # Errors
    /// Likewise.
    pub async fn adjust(&self, checks: &Shares) -> Result<Decision, ErrorKind> {
        self.run(Op::Adjust, checks).await
    }

    /// The same, with an outcome for each of `checks`: the nodes of a cluster can fail apart.
    pub async fn adjust_each(&self, checks: &Shares) -> Vec<Result<Answer, ErrorKind>> {
        match self {
            Store::Redis(redis) => redis.adjust_each(checks).await,
            store => each(store.run(Op::Adjust, checks).await, checks.len()),
        }
    }

    /// Forgets the keys.
    ///
    /// # Errors
    /// Likewise.
    pub async fn reset(&self, checks: &Shares) -> Result<Decision, ErrorKind> {
        self.run(Op::Reset, checks).await
    }

    async fn run(&self, op: Op, checks: &Shares) -> Result<Decision, ErrorKind> {
        match self {
            Store::Redis(redis) => redis.ask(op, checks).await,
            store => store.run_at_once(op, checks).ok_or(ErrorKind::Internal),
        }
    }

    /// The time, in ms, by which charges come back, where nobody has to be asked for it.
    pub fn now_at_once(&self) -> Option<i64> {
        match self {
            Store::Memory(memory) => Some(memory.now_ms()),
            Store::Timeline(timeline) => Some(timeline.now_ms()),
            Store::Redis(_) => None,
        }
    }

    /// The time, in ms, by which charges come back: that of gateways may be another.
    ///
    /// # Errors
    /// The store could not be asked in time.
    pub async fn now(&self) -> Result<i64, ErrorKind> {
        match self {
            Store::Redis(redis) => redis.now().await,
            store => store.now_at_once().ok_or(ErrorKind::Internal),
        }
    }

    /// Makes a mark that can be made once, for all who use the store and this `prefix` of its keys; `now_ms`
    /// is by [`Store::now`].
    ///
    /// # Errors
    /// The store could not be asked in time; where the error is unsure, the mark may have been made.
    pub async fn once(&self, mark: Mark, prefix: &str, now_ms: i64) -> Result<Use, ErrorKind> {
        match self {
            Store::Memory(memory) => Ok(memory.once(mark, now_ms)),
            Store::Redis(redis) => redis.once(mark, prefix, now_ms).await,
            Store::Timeline(timeline) => Ok(timeline.once(mark, now_ms)),
        }
    }

    /// The hashes under `keys`, which operators edit; `None` where there is no place for any.
    pub async fn hashes(&self, keys: &[String]) -> Option<Vec<Found>> {
        match self {
            Store::Redis(redis) => Some(redis.hashes(keys).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Counts a decision that had no answer.
    pub fn count(&self, kind: ErrorKind) {
        if let Store::Redis(redis) = self {
            redis.count(kind);
        }
    }
}

/// The outcome of one call for each of its checks.
fn each(outcome: Result<Decision, ErrorKind>, checks: usize) -> Vec<Result<Answer, ErrorKind>> {
    match outcome {
        Ok(decision) => decision.answers.into_iter().map(Ok).collect(),
        Err(kind) => vec![Err(kind); checks],
    }
}
