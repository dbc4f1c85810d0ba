//! Stores keep the state of limits. A store receives the checks of one request and decides them together: it charges
//! all of them or none. Code outside of this directory does not need to know which store is configured.
//!
//! - `memory`: state in this process, shared by all workers. Runs the Rust algorithms.
//! - `redis`: state in Redis, Sentinel or Cluster, shared by gateways. Runs the Lua twins.
//! - `timeline`: a memory store whose clock is set by the caller, for the replay of logs.
//! - `shares`: how many keys in memory each limit may have.
//! - `once`: marks that can be used only once, such as receipts.
//! - `settings`: the `[store]` section of the config, with the URL of Redis (`address`) and its TLS (`redis_tls`).
//!
//! To add a store, add a variant to [`Store`] and [`StoreKind`]; the compiler lists the methods that need a case.

pub mod address;
pub mod memory;
pub mod once;
pub mod probe;
pub mod redis;
pub mod redis_tls;
pub mod settings;
pub(crate) mod shares;
pub(crate) mod timeline;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::limiting::answer::Answer;
use crate::limiting::clock;
use crate::limiting::decision::{Check, Decision, ErrorKind, Op, SharedChecks};
use crate::limiting::gateways::Gateways;
use crate::limiting::hold_times::HoldTimes;
use crate::limiting::hot_keys::HotKeys;
use crate::limiting::ledger::LedgerDay;
use crate::limiting::ledger::pending::UsageBatch;
use crate::limiting::ledger::recorder::LedgerRecorders;
use crate::limiting::overrides::{HashChange, HashResult};
use crate::limiting::store::once::{MarkUse, SingleUseMark};
use crate::limiting::store::redis::gateway_texts::{self, GatewayText, PeerText};
use crate::limiting::store::redis::override_changes::{self, ChangeList, FieldValue};
use crate::limiting::store::redis::usage_days::UsagePage;
use crate::limiting::store::settings::{StoreKind, StoreSettings};
use crate::limiting::usage::recorder::UsageRecorders;
use crate::limiting::usage::refusals::RefusalRecorders;
use crate::telemetry::metrics::Metrics;

/// Handle of one worker on the configured store.
#[derive(Clone)]
pub enum Store {
    Memory(Arc<memory::MemoryStore>),
    Redis(Rc<redis::RedisStore>),
    Timeline(Rc<timeline::Timeline>),
}

/// State of the answer to a question that several gateways may get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerState {
    /// No gateway has answered: this gateway does, and the others wait for it.
    Claimed,
    /// Another gateway is about to answer.
    Pending,
    /// The answer of another gateway.
    Published(String),
}

/// State of the process that all its store handles and limiters share. Opens store handles.
#[derive(Clone)]
pub struct Stores {
    /// The in-memory store; also decides instead of Redis while that is unavailable.
    pub memory: Arc<memory::MemoryStore>,
    pub hold_times: Arc<HoldTimes>,
    pub gateways: Arc<Gateways>,
    pub metrics: Metrics,
    /// Recorders of recent decisions by key, one per thread.
    pub usage: UsageRecorders,
    /// Recorders of the usage that is kept by day, one per thread.
    pub ledger: LedgerRecorders,
    /// Recorders of refused requests, one per worker.
    pub refusals: RefusalRecorders,
    redis: redis::SharedRedisState,
}

impl Stores {
    pub fn new(memory: Arc<memory::MemoryStore>, metrics: &Metrics) -> Stores {
        let gateways = Arc::new(Gateways::new(metrics.gateways.clone()));
        Stores {
            memory,
            hold_times: Arc::default(),
            gateways: gateways.clone(),
            metrics: metrics.clone(),
            usage: UsageRecorders::default(),
            ledger: LedgerRecorders::default(),
            refusals: RefusalRecorders::default(),
            redis: redis::SharedRedisState::new(gateways),
        }
    }

    /// Opens a handle on the store that `settings` name. The handle lives in the caller's runtime.
    pub fn open(&self, settings: &StoreSettings) -> Store {
        match &settings.kind {
            StoreKind::Memory => Store::Memory(self.memory.clone()),
            StoreKind::Redis(url) => {
                Store::Redis(Rc::new(redis::RedisStore::connect(settings, &url.0, &self.metrics, &self.redis)))
            }
        }
    }
}

impl Store {
    /// Waits until the first attempt to connect has ended, for a limited time.
    pub async fn wait_first_attempt(&self) {
        if let Store::Redis(redis) = self {
            redis.wait_first_attempt().await;
        }
    }

    /// Applies the settings of a new config that keeps this handle.
    pub fn apply_settings(&self, settings: &StoreSettings) {
        if let Store::Redis(redis) = self {
            redis.apply_tls(&settings.tls);
        }
    }

    /// Removes this gateway from the count of those that share the store; called when the process stops.
    pub async fn report_stop(&self) {
        if let Store::Redis(redis) = self {
            redis.report_stop().await;
        }
    }

    /// Returns the hot keys of the store. `None` if it is in this process, where leases would save nothing.
    pub fn hot_keys(&self) -> Option<&HotKeys> {
        match self {
            Store::Redis(redis) => Some(redis.hot_keys()),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Ends the leases that this gateway has of the state `key`, because `op` changes the state. Call it before and
    /// after the operation: a lease that was requested in between may belong to the state before.
    pub fn end_leases(&self, op: Op, key: &str) {
        let Some(hot) = self.hot_keys().and_then(|hot_keys| hot_keys.find(key)) else { return };
        // What is refunded may be units that are leased and not spent yet, and a bucket refills what they keep in use.
        if matches!(op, Op::Reset | Op::Adjust) {
            hot.end_all();
        }
    }

    /// Returns the units that this gateway has debited in advance from the state `key`, and not spent.
    pub fn leased_units(&self, key: &str) -> Option<u64> {
        Some(self.hot_keys()?.find(key)?.unspent(clock::uptime_ms()))
    }

    /// Returns the answers that the store would give, if a refusal is remembered for each of the checks.
    pub fn known_refusals(&self, checks: &[Check]) -> Option<Vec<Answer>> {
        match self {
            Store::Redis(redis) => redis.known_refusals(checks),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Returns whether decisions need no other process, and so never wait.
    pub fn is_in_process(&self) -> bool {
        !matches!(self, Store::Redis(_))
    }

    /// Runs `op` on all `checks` together. Returns `None` if the store is not in this process, so that the caller has
    /// to wait for it.
    pub fn run_in_process(&self, op: Op, checks: &[Check]) -> Option<Decision> {
        match self {
            Store::Memory(memory) => Some(memory.run_now(op, checks)),
            Store::Timeline(timeline) => Some(timeline.run(op, checks.to_vec())),
            Store::Redis(_) => None,
        }
    }

    /// Decides by all `checks` together; `op` is take or peek.
    ///
    /// # Errors
    /// The store made no decision in time. The charge may have happened: see [`ErrorKind::is_unsure`].
    pub fn decide(&self, op: Op, checks: &SharedChecks) -> impl Future<Output = Result<Decision, ErrorKind>> {
        self.run(op, checks)
    }

    /// Corrects charges by their receipts, regardless of the limits.
    ///
    /// # Errors
    /// The store did not respond in time. The corrections may have happened.
    pub async fn adjust(&self, checks: &SharedChecks) -> Result<Decision, ErrorKind> {
        self.run(Op::Adjust, checks).await
    }

    /// Corrects charges with an outcome for each of `checks`, because the nodes of a cluster fail independently.
    pub async fn adjust_each(&self, checks: &SharedChecks) -> Vec<Result<Answer, ErrorKind>> {
        match self {
            Store::Redis(redis) => redis.adjust_each(checks).await,
            store => outcome_per_check(store.run(Op::Adjust, checks).await, checks.len()),
        }
    }

    /// Deletes the state of the keys.
    ///
    /// # Errors
    /// The store did not respond in time. The state may have been deleted.
    pub async fn reset(&self, checks: &SharedChecks) -> Result<Decision, ErrorKind> {
        self.run(Op::Reset, checks).await
    }

    async fn run(&self, op: Op, checks: &SharedChecks) -> Result<Decision, ErrorKind> {
        match self {
            Store::Redis(redis) => redis.run(op, checks).await,
            store => store.run_in_process(op, checks).ok_or(ErrorKind::Internal),
        }
    }

    /// Reads the clock of the store in ms. Returns `None` if the store is not in this process.
    pub fn now_in_process(&self) -> Option<i64> {
        match self {
            Store::Memory(memory) => Some(memory.now_ms()),
            Store::Timeline(timeline) => Some(timeline.now_ms()),
            Store::Redis(_) => None,
        }
    }

    /// Reads the clock of the store in ms. It decides when charges expire, and may differ from that of the gateway.
    ///
    /// # Errors
    /// The store did not respond in time.
    pub async fn read_clock(&self) -> Result<i64, ErrorKind> {
        match self {
            Store::Redis(redis) => redis.read_clock().await,
            store => store.now_in_process().ok_or(ErrorKind::Internal),
        }
    }

    /// Uses a mark, which is possible once for all gateways with this store and key `prefix`. `now_ms` is the time of
    /// [`Store::read_clock`].
    ///
    /// # Errors
    /// The store did not respond in time. If the error is unsure, the mark may have been used.
    pub async fn use_mark(&self, mark: SingleUseMark, prefix: &str, now_ms: i64) -> Result<MarkUse, ErrorKind> {
        match self {
            Store::Memory(memory) => Ok(memory.use_mark(mark, now_ms)),
            Store::Redis(redis) => redis.use_mark(mark, prefix, now_ms).await,
            Store::Timeline(timeline) => Ok(timeline.use_mark(mark, now_ms)),
        }
    }

    /// Claims the answer to a question for all gateways with this store, for `ttl`. `None` if no other gateway shares
    /// the store.
    ///
    /// # Errors
    /// The store did not respond in time. The answer may have been claimed.
    pub async fn claim_answer(&self, key: &str, ttl: Duration) -> Option<Result<AnswerState, ErrorKind>> {
        match self {
            Store::Redis(redis) => Some(redis.claim_answer(key, ttl).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Publishes the answer that this gateway has claimed, for `ttl`. An answer that gets lost is not replayed.
    pub async fn publish_answer(&self, key: &str, text: &str, ttl: Duration) {
        if let Store::Redis(redis) = self {
            redis.publish_answer(key, text, ttl).await;
        }
    }

    /// Reads the hashes with live overrides under `keys`. Returns `None` if the store has no such hashes.
    pub async fn read_hashes(&self, keys: &[String]) -> Option<Vec<HashResult>> {
        match self {
            Store::Redis(redis) => Some(redis.read_hashes(keys).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Makes a change of the hash under `key`, and returns whether the entry existed. Returns `None` if the store has
    /// no such hashes.
    pub async fn change_hash(&self, key: &str, change: &HashChange<'_>) -> Option<Result<bool, String>> {
        match self {
            Store::Redis(redis) => Some(redis.change_hash(key, change).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Tells the other gateways that a live override has changed. Returns `None` if the store is not shared.
    pub async fn announce_change(&self, key: &str, limit: &str, field: &str) -> Option<Result<(), String>> {
        match self {
            Store::Redis(redis) => Some(override_changes::announce_change(redis, key, limit, field).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Writes a text of the gateway called `name` for the others. Returns `None` if the store is not shared.
    pub async fn write_text(
        &self,
        (prefix, name): (&str, &str),
        kind: GatewayText,
        text: &str,
    ) -> Option<Result<(), String>> {
        match self {
            Store::Redis(redis) => Some(gateway_texts::write_text(redis, (prefix, name), kind, text).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Reads which live overrides have changed since the change `last`. Returns `None` if the store is not shared.
    pub async fn read_changes(&self, key: &str, last: Option<&str>) -> Option<Result<ChangeList, String>> {
        match self {
            Store::Redis(redis) => Some(override_changes::read_changes(redis, key, last).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Reads fields of the hash under `key`. Returns `None` if the store has no such hashes.
    pub async fn read_fields(&self, key: &str, fields: &[String]) -> Option<Result<Vec<FieldValue>, String>> {
        match self {
            Store::Redis(redis) => Some(override_changes::read_fields(redis, key, fields).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Reads a text of each gateway. Returns `None` if the store is not shared.
    pub async fn read_texts(&self, prefix: &str, kind: GatewayText) -> Option<Result<Vec<PeerText>, String>> {
        match self {
            Store::Redis(redis) => Some(gateway_texts::read_texts(redis, prefix, kind).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Saves usage of a day, at most once for each batch. Returns `None` if the store is not shared.
    pub async fn save_usage(
        &self,
        prefix: &str,
        gateway: &str,
        batch: (&LedgerDay, &UsageBatch),
    ) -> Option<Result<(), String>> {
        match self {
            Store::Redis(redis) => Some(redis.save_usage(prefix, gateway, batch).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Reads a page of the usage of a day. Returns `None` if the store is not shared.
    pub async fn read_usage(&self, prefix: &str, day: &LedgerDay, cursor: &str) -> Option<Result<UsagePage, String>> {
        match self {
            Store::Redis(redis) => Some(redis.read_usage(prefix, day, cursor).await),
            Store::Memory(_) | Store::Timeline(_) => None,
        }
    }

    /// Calls `visit` with the state keys of the limits with these `ids`, and with keys of other limits if the store
    /// cannot distinguish them. Each key that exists all the time is visited at least once. `prefix` is that of the
    /// config, and `part` the name of a part that the keys contain.
    ///
    /// # Errors
    /// The store did not respond, or has too many keys.
    pub async fn visit_keys(
        &self,
        ids: &[u64],
        prefix: &str,
        part: &str,
        visit: &mut impl FnMut(&str),
    ) -> Result<(), ErrorKind> {
        match self {
            Store::Redis(redis) => redis.visit_keys(prefix, part, visit).await,
            Store::Memory(memory) => {
                memory.visit_keys(ids, visit).await;
                Ok(())
            }
            Store::Timeline(_) => Ok(()),
        }
    }

    /// Counts an error in the metrics.
    pub fn count_error(&self, kind: ErrorKind) {
        if let Store::Redis(redis) = self {
            redis.count_error(kind);
        }
    }
}

/// Converts the outcome of one call to an outcome for each of its checks.
fn outcome_per_check(outcome: Result<Decision, ErrorKind>, checks: usize) -> Vec<Result<Answer, ErrorKind>> {
    match outcome {
        Ok(decision) => decision.answers.into_iter().map(Ok).collect(),
        Err(kind) => vec![Err(kind); checks],
    }
}
