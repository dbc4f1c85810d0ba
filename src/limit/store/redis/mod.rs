//! Limit state in Redis, shared by all gateways, in whatever form Redis comes. One handle per
//! worker: [`Redis::run`] queues, and tasks carry all decisions that wait to the script together.
//!
//! Decisions gather while a call is under way, and leave together in the next; an idle pipe adds no
//! wait, and a far server gets several calls at once. A decision waits for its call to leave no
//! longer than the deadline, and then for the answer no longer than that; none waits for a connect.

pub mod address;
mod breaker;
mod cluster;
mod dial;
mod gateways;
mod health;
mod ints;
pub mod lane;
mod likely;
mod link;
mod map;
mod nodes;
mod pump;
mod queue;
mod revive;
mod sentinel;
pub mod slot;
mod spread;
pub mod tls;
pub mod wire;

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::{Cmd, RedisResult, Value};
use prometheus::IntCounter;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::limit::decision::{Check, Decision, ErrorKind, Op, StoreError};
use crate::limit::store::settings::StoreSettings;
use crate::metrics::Metrics;
use address::{Address, Form};
use cluster::Cluster;
use dial::Dialer;
use health::Health;
use lane::{Context, Fault, Lane, Shares, Way};
use sentinel::{Sentinels, Target};
use tls::Tls;

/// Longest wait for the first attempts to connect: as long as one may take.
const FIRST_CONNECT: Duration = link::CONNECT_TIMEOUT;

/// A worker's way to Redis; lives in the worker's runtime.
pub struct Redis {
    servers: Rc<Servers>,
    tls: Arc<Mutex<Tls>>,
    errors: Vec<IntCounter>,
    /// Ends with the handle.
    _report: JoinSet<()>,
}

enum Servers {
    /// One that takes all decisions: at an address, or the master of the sentinels.
    One(Lane),
    Cluster(Cluster),
    /// The URL is none.
    Nowhere(#[expect(dead_code, reason = "its view is what the metrics show")] Health),
}

impl Redis {
    /// Returns at once and connects in the background. The URL may hold a password and is not logged.
    pub fn connect(settings: &StoreSettings, url: &str, metrics: &Metrics) -> Redis {
        let tls = Arc::new(Mutex::new(settings.tls.clone()));
        let servers = match Address::parse(url) {
            Ok(address) => servers(address, settings, &tls, metrics),
            Err(mistake) => {
                let health = Health::new(metrics);
                health.set_down(ErrorKind::Disconnected, mistake.what);
                Servers::Nowhere(health)
            }
        };
        let (servers, mut report) = (Rc::new(servers), JoinSet::new());
        let (asked, key) = (servers.clone(), format!("{}:gateways", settings.prefix));
        let claim = metrics.gateways.claim();
        report.spawn_local(async move { gateways::report(async |cmd| asked.send(&key, cmd).await, &key, claim).await });
        Redis { servers, tls, errors: lane::counters(metrics), _report: report }
    }

    /// Waits until it is known whether the servers can be reached, or for `FIRST_CONNECT`.
    pub async fn settled(&self) {
        let settled = async {
            match &*self.servers {
                Servers::One(lane) => lane.settled().await,
                Servers::Cluster(cluster) => cluster.settled().await,
                Servers::Nowhere(_) => {}
            }
        };
        // What is not known by then is learned while requests are served.
        let _ = timeout(FIRST_CONNECT, settled).await;
    }

    /// Sends a command that is no decision to the server that has `key` now. Without a connection
    /// it fails at once; with one it has no deadline but the caller's.
    pub async fn send(&self, key: &str, cmd: &Cmd) -> RedisResult<Value> {
        self.servers.send(key, cmd).await
    }

    /// For connections made from now on.
    pub fn set_tls(&self, tls: &Tls) {
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls.clone();
    }

    /// Runs `op` on all `checks` together. After [`ErrorKind::Timeout`] and
    /// [`ErrorKind::Disconnected`] a charge may have happened, so nothing is asked twice.
    pub async fn run(&self, op: Op, checks: Vec<Check>) -> Result<Decision, StoreError> {
        let checks = Rc::new(checks);
        let outcome = self.ask(op, &checks).await;
        outcome.map_err(|kind| StoreError { kind, checks: Rc::unwrap_or_clone(checks) })
    }

    /// The same for a caller who needs the checks afterwards.
    pub async fn ask(&self, op: Op, checks: &Shares) -> Result<Decision, ErrorKind> {
        let outcome = self.ask_servers(op, checks).await;
        if let Err(kind) = &outcome {
            self.count(*kind);
        }
        outcome
    }

    /// Whether limits of different keys may be apart, so that they are charged one after another.
    pub fn is_cluster(&self) -> bool {
        matches!(*self.servers, Servers::Cluster(_))
    }

    /// Counts a decision that had no answer.
    pub fn count(&self, kind: ErrorKind) {
        self.errors[kind as usize].inc();
    }

    async fn ask_servers(&self, op: Op, checks: &Shares) -> Result<Decision, ErrorKind> {
        match &*self.servers {
            Servers::One(lane) => lane.ask(op, checks, Way::Shared).await.map_err(|fault| match fault {
                Fault::Failed(kind) => kind,
                Fault::Elsewhere(_) => ErrorKind::Reply,
            }),
            Servers::Cluster(cluster) => cluster.ask(op, checks).await,
            Servers::Nowhere(_) => Err(ErrorKind::Disconnected),
        }
    }
}

impl Servers {
    async fn send(&self, key: &str, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Servers::One(lane) => lane.send(cmd, false).await,
            Servers::Cluster(cluster) => cluster.nodes.send(slot::slot(key), cmd).await,
            Servers::Nowhere(_) => Err(wire::not_connected()),
        }
    }
}

fn servers(address: Address, settings: &StoreSettings, tls: &Arc<Mutex<Tls>>, metrics: &Metrics) -> Servers {
    let tls = address.tls.then(|| tls.clone());
    let dialer = Dialer { login: address.login, tls };
    let context = Context { dialer: dialer.clone(), deadline: settings.deadline, metrics: metrics.clone() };
    match address.form {
        Form::Node(addr) => Servers::One(Lane::open(Target::Fixed(addr), false, &context)),
        Form::Sentinel { sentinels, login, master } => {
            let sentinels = Sentinels::new(sentinels, Dialer { login, ..dialer }, master);
            Servers::One(Lane::open(Target::Master(sentinels), false, &context))
        }
        Form::Cluster(seeds) => Servers::Cluster(Cluster::open(seeds, context)),
    }
}
