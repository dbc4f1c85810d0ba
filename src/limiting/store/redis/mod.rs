//! Limit state in Redis, shared by all gateways: on a single server, a master behind Sentinel, or a Cluster. Each
//! worker has one handle. Input are the checks of requests, output are decisions.
//!
//! Decisions are batched. While a call is under way, new decisions wait in a queue; the next call carries all of them
//! to the Lua script. An idle connection adds no wait, and a distant server gets several calls at once. A decision
//! waits for its turn in the queue while the server replies, and then for the reply for at most the deadline. If the
//! server is late, a decision waits in the queue for at most the deadline, too. It never waits for a connection
//! attempt.
//!
//! - `connection`: connects to servers, finds the master, keeps connections alive, breaks the circuit.
//! - `codec`: encodes decisions as a call of the script, and decodes replies and errors; `msgpack` has its integers.
//! - `pipeline`: queues decisions, sends calls, and delivers their results.
//! - `slot`: computes the hash slot of a key and parses the replies of nodes; pure functions.
//! - `cluster`: finds the node of a slot, and decides over several slots.
//! - `denials`: refusals that a worker remembers, so that exhausted keys cost Redis nothing.
//! - `eviction`: warns about a server that may evict keys in use.
//! - `hashes`: reads the hashes with live overrides; `override_changes`: which of them changed.
//! - `scan`: visits all state keys, to find the key that a hash stands for.
//! - `heartbeat`: reports this gateway to Redis and learns how many there are.
//! - `gateway_texts`: what each gateway tells the others.

pub mod cluster;
pub mod codec;
pub mod connection;
pub mod denials;
pub mod eviction;
pub mod gateway_texts;
mod hashes;
mod heartbeat;
pub(crate) mod msgpack;
pub(super) mod override_changes;
pub mod pipeline;
mod scan;
pub mod slot;
pub mod usage_days;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ::redis::{Cmd, RedisResult, Value};
use prometheus::IntCounter;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, Decision, ErrorKind, Op, SharedChecks};
use crate::limiting::gateways::Gateways;
use crate::limiting::hot_keys::HotKeys;
use crate::limiting::ledger::LedgerDay;
use crate::limiting::ledger::pending::UsageBatch;
use crate::limiting::overrides::{HashChange, HashResult};
use crate::limiting::store::address::{Address, Deployment};
use crate::limiting::store::once::{MarkUse, SharedUsedMarks, SingleUseMark};
use crate::limiting::store::redis::cluster::Cluster;
use crate::limiting::store::redis::connection::await_reply::await_reply;
use crate::limiting::store::redis::connection::dial::Dialer;
use crate::limiting::store::redis::connection::health::ServerHealth;
use crate::limiting::store::redis::connection::link;
use crate::limiting::store::redis::connection::sentinel::{ConnectionTarget, Sentinels};
use crate::limiting::store::redis::denials::{DenialCache, Invalidations};
use crate::limiting::store::redis::pipeline::lane;
use crate::limiting::store::redis::pipeline::lane::{Lane, LaneContext};
use crate::limiting::store::redis::pipeline::waiting::{LaneError, SendMode};
use crate::limiting::store::redis::usage_days::UsagePage;
use crate::limiting::store::redis_tls::RedisTls;
use crate::limiting::store::settings::StoreSettings;
use crate::limiting::store::{AnswerState, outcome_per_check};
use crate::limiting::supervise::restart_on_panic;
use crate::telemetry::metrics::{Counter, Metrics};

/// Longest wait for the first attempt to connect.
const FIRST_CONNECT: Duration = link::CONNECT_TIMEOUT;
/// Shortest time that Redis keeps a mark, in case the clocks differ.
const MARK_MIN_MS: i64 = 1000;

/// State that all Redis handles of a process share.
#[derive(Clone, Default)]
pub struct SharedRedisState {
    invalidations: Invalidations,
    marks: SharedUsedMarks,
    gateways: Arc<Gateways>,
    /// Hot keys by the URL of their store. A store that is no longer used has none.
    hot_keys: Arc<Mutex<HashMap<String, Weak<HotKeys>>>>,
}

impl SharedRedisState {
    pub fn new(gateways: Arc<Gateways>) -> SharedRedisState {
        SharedRedisState { gateways, ..SharedRedisState::default() }
    }

    /// Returns the hot keys of the store at `url`, which all of its handles share.
    fn hot_keys_of(&self, url: &str, metrics: &Metrics) -> Arc<HotKeys> {
        let mut tables = self.hot_keys.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|_, hot_keys| hot_keys.strong_count() > 0);
        if let Some(hot_keys) = tables.get(url).and_then(Weak::upgrade) {
            return hot_keys;
        }
        let hot_keys = Arc::new(HotKeys::new(metrics.limits.clone(), metrics.store.hot_keys.clone()));
        tables.insert(url.to_owned(), Arc::downgrade(&hot_keys));
        hot_keys
    }
}

/// Handle of one worker on Redis; lives in the runtime of the worker.
pub struct RedisStore {
    servers: Rc<RedisServers>,
    tls: Arc<Mutex<RedisTls>>,
    prefix: String,
    deadline: Duration,
    /// Refusals that are remembered. Not used with a cluster: a decision over several slots may charge one slot for a
    /// moment and refund it when another refuses.
    denials: Option<RefCell<DenialCache>>,
    denials_used: Counter,
    invalidations: Invalidations,
    /// Marks that this process has used.
    marks: SharedUsedMarks,
    hot_keys: Arc<HotKeys>,
    /// Number of gateways that share this Redis, as this process knows it.
    pub gateways: Arc<Gateways>,
    errors: Vec<IntCounter>,
    /// The heartbeat task, which ends with the handle.
    _report: JoinSet<()>,
}

enum RedisServers {
    /// One server for all decisions: at a fixed address, or the master of the sentinels.
    Single(Lane),
    Cluster(Cluster),
    /// The URL is invalid.
    InvalidUrl(#[expect(dead_code, reason = "its view is what the metrics show")] ServerHealth),
}

impl RedisStore {
    /// Creates a handle, which connects in the background. The URL may contain a password and is not logged. All
    /// handles of a process share `all`.
    pub fn connect(settings: &StoreSettings, url: &str, metrics: &Metrics, all: &SharedRedisState) -> RedisStore {
        let tls = Arc::new(Mutex::new(settings.tls.clone()));
        let servers = match Address::parse(url) {
            Ok(address) => open_servers(address, settings, &tls, metrics),
            Err(mistake) => {
                let health = ServerHealth::new(metrics);
                health.set_down(ErrorKind::Disconnected, mistake.what);
                RedisServers::InvalidUrl(health)
            }
        };
        let denials = match &servers {
            RedisServers::Cluster(_) => None,
            RedisServers::Single(_) | RedisServers::InvalidUrl(_) => {
                Some(RefCell::new(DenialCache::new(all.invalidations.clone())))
            }
        };
        let (servers, mut report) = (Rc::new(servers), JoinSet::new());
        let (asked, key) = (servers.clone(), gateways_key(&settings.prefix));
        let claim = Rc::new(all.gateways.create_claim());
        let watch = (servers.clone(), key.clone(), claim.clone(), metrics.store.may_evict.clone());
        report.spawn_local(restart_on_panic(metrics.store.task_restarts.clone(), move || {
            let (asked, key, claim, may_evict) = watch.clone();
            async move { eviction::watch_policy(async |cmd| asked.send(&key, cmd).await, &claim, &may_evict).await }
        }));
        report.spawn_local(restart_on_panic(metrics.store.task_restarts.clone(), move || {
            let (asked, key, claim) = (asked.clone(), key.clone(), claim.clone());
            async move { heartbeat::run_reports(async |cmd| asked.send(&key, cmd).await, &key, &claim).await }
        }));
        RedisStore {
            servers,
            tls,
            prefix: settings.prefix.clone(),
            deadline: settings.deadline,
            denials,
            denials_used: metrics.denial_cache_counter(),
            invalidations: all.invalidations.clone(),
            marks: all.marks.clone(),
            hot_keys: all.hot_keys_of(url, metrics),
            gateways: all.gateways.clone(),
            errors: lane::error_counters(metrics),
            _report: report,
        }
    }

    /// Waits until the first attempts to connect have ended, at most for `FIRST_CONNECT`.
    pub async fn wait_first_attempt(&self) {
        let first_attempt = async {
            match &*self.servers {
                RedisServers::Single(lane) => lane.wait_first_attempt().await,
                RedisServers::Cluster(cluster) => cluster.wait_first_attempt().await,
                RedisServers::InvalidUrl(_) => {}
            }
        };
        // After that, connecting continues while requests are served.
        let _ = timeout(FIRST_CONNECT, first_attempt).await;
    }

    /// Sends a command that is not a decision to the server of `key`. Fails at once without a connection. There is no
    /// deadline; the caller sets one.
    pub async fn send(&self, key: &str, cmd: &Cmd) -> RedisResult<Value> {
        self.servers.send(key, cmd).await
    }

    /// Applies a new config: new connections use `tls`.
    pub fn apply_tls(&self, tls: &RedisTls) {
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls.clone();
        if let Some(denials) = &self.denials {
            denials.borrow_mut().clear();
        }
    }

    /// The hot keys of this store, which all of its handles in this process share.
    pub fn hot_keys(&self) -> &HotKeys {
        &self.hot_keys
    }

    /// Returns the answers that the servers would give, if a refusal is remembered for each of the checks.
    pub fn known_refusals(&self, checks: &[Check]) -> Option<Vec<Answer>> {
        let answers = self.denials.as_ref()?.borrow_mut().known_refusals(checks, Instant::now)?;
        self.denials_used.inc();
        Some(answers)
    }

    /// Runs `op` on all `checks` together. Calls are not repeated, because a charge may have happened despite an error.
    pub async fn run(&self, op: Op, checks: &SharedChecks) -> Result<Decision, ErrorKind> {
        let since = Instant::now();
        let denials = self.denials.as_ref().map(|denials| (denials, denials.borrow().sent_at(since)));
        let outcome = match &*self.servers {
            RedisServers::Single(lane) => {
                let reply = match lane.queue(op, checks, SendMode::Shared, since.into()) {
                    Ok(pending) => pending.await,
                    Err(fault) => Err(fault),
                };
                reply.map_err(|fault| match fault {
                    LaneError::Failed(kind) => kind,
                    LaneError::Redirected(_) => ErrorKind::Reply,
                })
            }
            // Boxed, so that the future of a request is not larger for it.
            RedisServers::Cluster(cluster) => Box::pin(cluster.run(op, checks)).await,
            RedisServers::InvalidUrl(_) => Err(ErrorKind::Disconnected),
        };
        match (&outcome, denials) {
            (Err(kind), _) => self.count_error(*kind),
            (Ok(decision), Some((denials, asked))) if op == Op::Take && !decision.admitted => {
                denials.borrow_mut().remember_refusals(checks, decision, asked);
            }
            _ => {}
        }
        if matches!(op, Op::Adjust | Op::Reset) && checks.iter().any(denials::has_memorable) {
            self.invalidations.invalidate_all();
        }
        outcome
    }

    /// Removes this gateway from the count in Redis; called when the process stops.
    pub async fn report_stop(&self) {
        let key = gateways_key(&self.prefix);
        heartbeat::report_stop(async |cmd| self.send(&key, cmd).await, &key, &self.gateways).await;
    }

    /// Corrects charges by their receipts, with an outcome for each of `checks`. A failure counts as one error in the
    /// metrics.
    pub async fn adjust_each(&self, checks: &SharedChecks) -> Vec<Result<Answer, ErrorKind>> {
        let RedisServers::Cluster(cluster) = &*self.servers else {
            return outcome_per_check(self.run(Op::Adjust, checks).await, checks.len());
        };
        let outcomes = cluster.apply_changes(Op::Adjust, checks).await;
        if let Some(kind) = outcomes.iter().find_map(|outcome| outcome.as_ref().err()) {
            self.count_error(*kind);
        }
        outcomes
    }

    /// Reads the clock of the server in ms. With a cluster, always reads the clock of the same slot's server.
    pub async fn read_clock(&self) -> Result<i64, ErrorKind> {
        let key = format!("{}:{{clock}}:clock", self.prefix);
        let time = self.send_with_deadline(&key, &::redis::cmd("TIME")).await?;
        codec::decode_time(time).ok_or(ErrorKind::Reply)
    }

    /// Uses a mark below `prefix`, for all gateways. This process remembers it too, as a server may lose it.
    pub async fn use_mark(&self, mark: SingleUseMark, prefix: &str, now_ms: i64) -> Result<MarkUse, ErrorKind> {
        let here = self.marks.use_mark(mark, now_ms);
        if here != MarkUse::First {
            return Ok(here);
        }
        let key = format!("{prefix}:{{receipt={:032x}}}:receipt", mark.id);
        let mut set = ::redis::cmd("SET");
        set.arg(&key).arg(1).arg("NX").arg("PX").arg((mark.expires_ms - now_ms).max(MARK_MIN_MS));
        match self.send_with_deadline(&key, &set).await {
            Ok(Value::Nil) => Ok(MarkUse::Again),
            Ok(_) => Ok(MarkUse::First),
            Err(kind) => {
                if !kind.is_unsure() {
                    self.marks.release_mark(mark);
                }
                Err(kind)
            }
        }
    }

    /// Claims the answer under `key`, or returns what another gateway has made of it.
    pub async fn claim_answer(&self, key: &str, ttl: Duration) -> Result<AnswerState, ErrorKind> {
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let mut claim = ::redis::cmd("SET");
        claim.arg(key).arg("").arg("NX").arg("PX").arg(ttl_ms);
        if self.send_with_deadline(key, &claim).await? != Value::Nil {
            return Ok(AnswerState::Claimed);
        }
        let value = self.send_with_deadline(key, ::redis::cmd("GET").arg(key)).await?;
        let value: Option<String> = ::redis::from_redis_value(value).map_err(|_| ErrorKind::Reply)?;
        Ok(value.filter(|text| !text.is_empty()).map_or(AnswerState::Pending, AnswerState::Published))
    }

    /// Publishes the answer under `key`.
    pub async fn publish_answer(&self, key: &str, text: &str, ttl: Duration) {
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let mut publish = ::redis::cmd("SET");
        publish.arg(key).arg(text).arg("PX").arg(ttl_ms);
        // A failure is counted; another gateway then decides by itself.
        let _ = self.send_with_deadline(key, &publish).await;
    }

    /// Reads the hashes under `keys`.
    pub async fn read_hashes(&self, keys: &[String]) -> Vec<HashResult> {
        hashes::read_hashes(self, keys).await
    }

    /// Makes a change of the hash under `key`. Returns whether the entry existed.
    pub async fn change_hash(&self, key: &str, change: &HashChange<'_>) -> Result<bool, String> {
        hashes::change_hash(self, key, change).await
    }

    /// Saves usage of a day, at most once for each batch; see [`usage_days::save_batch`].
    pub async fn save_usage(
        &self,
        prefix: &str,
        gateway: &str,
        batch: (&LedgerDay, &UsageBatch),
    ) -> Result<(), String> {
        usage_days::save_batch(self, prefix, gateway, batch).await
    }

    /// Reads a page of the usage of a day.
    pub async fn read_usage(&self, prefix: &str, day: &LedgerDay, cursor: &str) -> Result<UsagePage, String> {
        usage_days::read_page(self, prefix, day, cursor).await
    }

    /// Asks the server that has `key` whether it evicts keys.
    pub async fn read_eviction_policy(&self, key: &str) -> Result<Option<String>, String> {
        eviction::read_policy(async |cmd| self.send(key, cmd).await).await
    }

    /// Returns the error with which the server that has `key` denies what a decision needs; `None` if it denies nothing,
    /// or if there is no connection.
    pub async fn find_denial(&self, key: &str) -> Option<String> {
        const SCRIPT: &str = "redis.call('MGET', KEYS[1]) redis.call('SET', KEYS[1], '', 'PX', 1)";
        let mut call = redis::cmd("EVAL");
        call.arg(SCRIPT).arg(1).arg(key);
        for command in [redis::cmd("TIME"), call] {
            match self.send(key, &command).await {
                Err(error) if error.code().is_some() => return Some(codec::error_text(&error)),
                _ => {}
            }
        }
        None
    }

    /// Calls `visit` with the state keys below `prefix` that contain the name `part`.
    pub async fn visit_keys(&self, prefix: &str, part: &str, visit: &mut impl FnMut(&str)) -> Result<(), ErrorKind> {
        scan::visit_keys(self, prefix, part, visit).await.inspect_err(|kind| self.count_error(*kind))
    }

    /// Sends a command with the deadline of a decision.
    async fn send_with_deadline(&self, key: &str, cmd: &Cmd) -> Result<Value, ErrorKind> {
        let outcome = match await_reply(self.deadline, self.send(key, cmd)).await {
            Some(reply) => reply.value.map_err(|error| codec::sent_error_kind(&error)),
            None => Err(ErrorKind::Timeout),
        };
        outcome.inspect_err(|kind| self.count_error(*kind))
    }

    /// Counts an error in the metrics.
    pub fn count_error(&self, kind: ErrorKind) {
        self.errors[kind as usize].inc();
    }
}

impl RedisServers {
    async fn send(&self, key: &str, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            RedisServers::Single(lane) => lane.send(cmd, false).await,
            RedisServers::Cluster(cluster) => cluster.nodes.send(slot::key_slot(key), cmd).await,
            RedisServers::InvalidUrl(_) => Err(codec::not_connected()),
        }
    }
}

fn gateways_key(prefix: &str) -> String {
    format!("{prefix}:gateways")
}

fn open_servers(
    address: Address,
    settings: &StoreSettings,
    tls: &Arc<Mutex<RedisTls>>,
    metrics: &Metrics,
) -> RedisServers {
    let tls = address.tls.then(|| tls.clone());
    let dialer = Dialer { login: settings.login.add_to(address.login), tls };
    let context = LaneContext {
        dialer: dialer.clone(),
        deadline: settings.deadline,
        metrics: metrics.clone(),
        prefix: settings.prefix.clone(),
    };
    match address.form {
        Deployment::Node(addr) => RedisServers::Single(Lane::open(ConnectionTarget::Fixed(addr), false, &context)),
        Deployment::Sentinel { sentinels, login, master } => {
            let sentinels = Sentinels::new(sentinels, Dialer { login, ..dialer }, master);
            RedisServers::Single(Lane::open(ConnectionTarget::Master(sentinels), false, &context))
        }
        Deployment::Cluster(seeds) => RedisServers::Cluster(Cluster::open(seeds, context)),
    }
}
