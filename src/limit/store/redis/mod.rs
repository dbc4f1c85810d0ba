//! Limit state in Redis, shared by all gateways, in whatever form Redis comes. One handle per
//! worker: [`Redis::ask`] queues, and tasks carry all decisions that wait to the script together.
//!
//! Decisions gather while a call is under way, and leave together in the next; an idle pipe adds no
//! wait, and a far server gets several calls at once. A decision waits for its call to leave no
//! longer than the deadline, and then for the answer no longer than that; none waits for a connect.

pub mod address;
mod breaker;
mod cluster;
pub mod denials;
mod dial;
mod gateways;
mod hashes;
mod health;
mod ints;
pub mod lane;
mod likely;
mod link;
mod map;
mod nodes;
mod pump;
mod queue;
mod sentinel;
pub mod slot;
mod spread;
pub mod tls;
mod waiting;
pub mod wire;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::redis::{Cmd, RedisResult, Value};
use prometheus::IntCounter;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::limit::answer::Answer;
use crate::limit::decision::{Check, Decision, ErrorKind, Op, Shares};
use crate::limit::overrides::Found;
use crate::limit::revive::revive;
use crate::limit::store::each;
use crate::limit::store::once::{Mark, SharedMarks, Use};
use crate::limit::store::settings::StoreSettings;
use crate::metrics::{Counter, Gateways, Metrics};
use address::{Address, Form};
use cluster::Cluster;
use denials::{Denials, Recalls};
use dial::Dialer;
use health::Health;
use lane::{Lane, LaneContext};
use sentinel::{Sentinels, Target};
use tls::Tls;
use waiting::{LaneFault, Way};

/// Longest wait for the first attempts to connect: as long as one may take.
const FIRST_CONNECT: Duration = link::CONNECT_TIMEOUT;
/// A mark is kept this long at least, whatever the clocks say.
const MARK_MIN_MS: i64 = 1000;

/// What all handles of a process share.
#[derive(Clone, Default)]
pub struct AllHandles {
    recalls: Recalls,
    marks: SharedMarks,
}

/// A worker's way to Redis; lives in the worker's runtime.
pub struct Redis {
    servers: Rc<RedisServers>,
    tls: Arc<Mutex<Tls>>,
    prefix: String,
    deadline: Duration,
    /// Refusals that need not be asked for again. None with a cluster: there a gateway whose routes nobody here
    /// knows may have charged for the moment what it gives back when another slot refuses.
    denials: Option<RefCell<Denials>>,
    denials_used: Counter,
    recalls: Recalls,
    /// Made through this handle.
    marks: SharedMarks,
    errors: Vec<IntCounter>,
    /// Ends with the handle.
    _report: JoinSet<()>,
}

enum RedisServers {
    /// One that takes all decisions: at an address, or the master of the sentinels.
    One(Lane),
    Cluster(Cluster),
    /// The URL is none.
    Nowhere(#[expect(dead_code, reason = "its view is what the metrics show")] Health),
}

impl Redis {
    /// Returns at once and connects in the background. The URL may hold a password and is not logged.
    /// `all` is that of all handles of the process.
    pub fn connect(settings: &StoreSettings, url: &str, metrics: &Metrics, all: &AllHandles) -> Redis {
        let tls = Arc::new(Mutex::new(settings.tls.clone()));
        let servers = match Address::parse(url) {
            Ok(address) => servers(address, settings, &tls, metrics),
            Err(mistake) => {
                let health = Health::new(metrics);
                health.set_down(ErrorKind::Disconnected, mistake.what);
                RedisServers::Nowhere(health)
            }
        };
        let denials = match &servers {
            RedisServers::Cluster(_) => None,
            RedisServers::One(_) | RedisServers::Nowhere(_) => Some(RefCell::new(Denials::new(all.recalls.clone()))),
        };
        let (servers, mut report) = (Rc::new(servers), JoinSet::new());
        let (asked, key) = (servers.clone(), gateways_key(&settings.prefix));
        let claim = Rc::new(metrics.gateways.claim());
        report.spawn_local(revive(metrics.store_task_restarts.clone(), move || {
            let (asked, key, claim) = (asked.clone(), key.clone(), claim.clone());
            async move { gateways::report(async |cmd| asked.send(&key, cmd).await, &key, &claim).await }
        }));
        Redis {
            servers,
            tls,
            prefix: settings.prefix.clone(),
            deadline: settings.deadline,
            denials,
            denials_used: metrics.store_denial_cache_hits(),
            recalls: all.recalls.clone(),
            marks: all.marks.clone(),
            errors: lane::counters(metrics),
            _report: report,
        }
    }

    /// Waits until it is known whether the servers can be reached, or for `FIRST_CONNECT`.
    pub async fn first_attempt(&self) {
        let first_attempt = async {
            match &*self.servers {
                RedisServers::One(lane) => lane.first_attempt().await,
                RedisServers::Cluster(cluster) => cluster.first_attempt().await,
                RedisServers::Nowhere(_) => {}
            }
        };
        // What is not known by then is learned while requests are served.
        let _ = timeout(FIRST_CONNECT, first_attempt).await;
    }

    /// Sends a command that is no decision to the server that has `key` now. Without a connection
    /// it fails at once; with one it has no deadline but the caller's.
    pub async fn send(&self, key: &str, cmd: &Cmd) -> RedisResult<Value> {
        self.servers.send(key, cmd).await
    }

    /// Another config is in force: `tls` is for connections made from now on.
    pub fn follow(&self, tls: &Tls) {
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls.clone();
        if let Some(denials) = &self.denials {
            denials.borrow_mut().clear();
        }
    }

    /// The answers that the servers would give, if every one of the checks is known to be refused.
    pub fn known_refusals(&self, checks: &[Check]) -> Option<Vec<Answer>> {
        let known = self.denials.as_ref()?.borrow_mut().known(checks, Instant::now)?;
        self.denials_used.inc();
        Some(known)
    }

    /// Runs `op` on all `checks` together. After an error that is unsure a charge may have happened, so nothing
    /// is asked twice.
    pub async fn ask(&self, op: Op, checks: &Shares) -> Result<Decision, ErrorKind> {
        let denials = self.denials.as_ref().map(|denials| (denials, denials.borrow().asked(Instant::now())));
        let outcome = self.ask_servers(op, checks).await;
        match (&outcome, denials) {
            (Err(kind), _) => self.count(*kind),
            (Ok(decision), Some((denials, asked))) if op == Op::Take && !decision.admitted => {
                denials.borrow_mut().learn_all(checks, decision, asked);
            }
            _ => {}
        }
        if matches!(op, Op::Adjust | Op::Reset) && checks.iter().any(denials::fit) {
            self.recalls.add();
        }
        outcome
    }

    /// This process stops: the other gateways count it no longer.
    pub async fn leave(&self, gateways: &Gateways) {
        let key = gateways_key(&self.prefix);
        gateways::leave(async |cmd| self.send(&key, cmd).await, &key, gateways).await;
    }

    /// Corrects charges by their receipts, with an outcome for each of `checks`. Each call that failed counts as
    /// one error.
    pub async fn adjust_each(&self, checks: &Shares) -> Vec<Result<Answer, ErrorKind>> {
        let RedisServers::Cluster(cluster) = &*self.servers else {
            return each(self.ask(Op::Adjust, checks).await, checks.len());
        };
        let outcomes = cluster.change(Op::Adjust, checks).await;
        if let Some(kind) = outcomes.iter().find_map(|outcome| outcome.as_ref().err()) {
            self.count(*kind);
        }
        outcomes
    }

    /// The clock of a server, of a cluster always that of the same slot, in ms.
    pub async fn now(&self) -> Result<i64, ErrorKind> {
        let key = format!("{}:{{clock}}:clock", self.prefix);
        let time = self.answer(&key, &::redis::cmd("TIME")).await?;
        let (seconds, micros): (i64, i64) = ::redis::from_redis_value(time).map_err(|_| ErrorKind::Reply)?;
        Ok(seconds.saturating_mul(1000).saturating_add(micros / 1000))
    }

    /// Makes the mark for all gateways to see, below `prefix`. Here it is remembered too: a server may forget.
    pub async fn once(&self, mark: Mark, prefix: &str, now_ms: i64) -> Result<Use, ErrorKind> {
        let here = self.marks.note(mark, now_ms);
        if here != Use::First {
            return Ok(here);
        }
        let key = format!("{prefix}:{{receipt={:032x}}}:receipt", mark.id);
        let mut set = ::redis::cmd("SET");
        set.arg(&key).arg(1).arg("NX").arg("PX").arg((mark.expires_ms - now_ms).max(MARK_MIN_MS));
        match self.answer(&key, &set).await {
            Ok(Value::Nil) => Ok(Use::Again),
            Ok(_) => Ok(Use::First),
            Err(kind) => {
                if !kind.is_unsure() {
                    self.marks.forget(mark);
                }
                Err(kind)
            }
        }
    }

    /// The hashes under `keys`.
    pub async fn hashes(&self, keys: &[String]) -> Vec<Found> {
        hashes::read(self, keys).await
    }

    /// What is no decision, but waits no longer than one.
    async fn answer(&self, key: &str, cmd: &Cmd) -> Result<Value, ErrorKind> {
        let outcome = match timeout(self.deadline, self.send(key, cmd)).await {
            Ok(outcome) => outcome.map_err(|error| wire::sent_error_kind(&error)),
            Err(_) => Err(ErrorKind::Timeout),
        };
        outcome.inspect_err(|kind| self.count(*kind))
    }

    /// Counts a decision that had no answer.
    pub fn count(&self, kind: ErrorKind) {
        self.errors[kind as usize].inc();
    }

    async fn ask_servers(&self, op: Op, checks: &Shares) -> Result<Decision, ErrorKind> {
        match &*self.servers {
            RedisServers::One(lane) => lane.ask(op, checks, Way::Shared).await.map_err(|fault| match fault {
                LaneFault::Failed(kind) => kind,
                LaneFault::Elsewhere(_) => ErrorKind::Reply,
            }),
            RedisServers::Cluster(cluster) => cluster.ask(op, checks).await,
            RedisServers::Nowhere(_) => Err(ErrorKind::Disconnected),
        }
    }
}

impl RedisServers {
    async fn send(&self, key: &str, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            RedisServers::One(lane) => lane.send(cmd, false).await,
            RedisServers::Cluster(cluster) => cluster.nodes.send(slot::slot(key), cmd).await,
            RedisServers::Nowhere(_) => Err(wire::not_connected()),
        }
    }
}

fn gateways_key(prefix: &str) -> String {
    format!("{prefix}:gateways")
}

fn servers(address: Address, settings: &StoreSettings, tls: &Arc<Mutex<Tls>>, metrics: &Metrics) -> RedisServers {
    let tls = address.tls.then(|| tls.clone());
    let dialer = Dialer { login: address.login, tls };
    let context = LaneContext { dialer: dialer.clone(), deadline: settings.deadline, metrics: metrics.clone() };
    match address.form {
        Form::Node(addr) => RedisServers::One(Lane::open(Target::Fixed(addr), false, &context)),
        Form::Sentinel { sentinels, login, master } => {
            let sentinels = Sentinels::new(sentinels, Dialer { login, ..dialer }, master);
            RedisServers::One(Lane::open(Target::Master(sentinels), false, &context))
        }
        Form::Cluster(seeds) => RedisServers::Cluster(Cluster::open(seeds, context)),
    }
}
