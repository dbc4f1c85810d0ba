//! The way to one Redis server: a queue, and a task that carries what waits to the script, several
//! calls at once when the server is far. Called by `mod.rs` for a single server and by
//! `cluster.rs` for each node.

use std::rc::Rc;
use std::time::Duration;

use prometheus::IntCounter;
use redis::{Cmd, RedisResult, Value};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::denials::Recalls;
use super::dial::Dialer;
use super::health::Health;
use super::link::RedisLink;
use super::pump::{self, Caller};
use super::queue::{Queue, Waiting};
use super::revive::revive;
use super::sentinel::Target;
use super::wire::{self, Redirect};
use crate::limit::decision::{Decision, ErrorKind, Op, Shares};
use crate::metrics::Metrics;

/// Decisions that may wait for a call to one server; more are not queued.
pub const QUEUE_MAX: usize = 4096;

pub struct Lane {
    queue: Rc<Queue>,
    health: Rc<Health>,
    link: Rc<RedisLink>,
    /// End with the lane.
    _tasks: JoinSet<()>,
}

/// What every lane of a handle needs.
#[derive(Clone)]
pub struct LaneContext {
    pub dialer: Dialer,
    pub deadline: Duration,
    pub metrics: Metrics,
    pub recalls: Recalls,
}

/// Why a server gave no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum LaneFault {
    Failed(ErrorKind),
    Elsewhere(Redirect),
}

impl LaneFault {
    /// For a decision that is asked nowhere else.
    pub fn kind(self) -> ErrorKind {
        match self {
            LaneFault::Failed(kind) => kind,
            LaneFault::Elsewhere(_) => ErrorKind::Timeout,
        }
    }
}

/// How a decision is sent to a node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With others of its slot.
    Shared,
    /// In a call of its own: of a slot on its way some keys are here and some there.
    Alone,
    /// Likewise, to the node that the slot is on its way to.
    Asking,
}

impl Lane {
    /// Connects in the background.
    pub fn open(target: Target, clustered: bool, context: &LaneContext) -> Lane {
        let metrics = &context.metrics;
        let health = Rc::new(Health::new(metrics));
        let queue = Rc::new(Queue::new(context.deadline));
        let link = Rc::new(RedisLink::new(target, context.dialer.clone(), health.clone()));
        let caller = Rc::new(Caller::new(link.clone(), health.clone(), clustered, context));
        let restarts = || metrics.store_task_restarts.clone();
        let mut tasks = JoinSet::new();
        let (waits, keeper) = (queue.clone(), link.clone());
        tasks.spawn_local(revive(restarts(), move || pump::run(waits.clone(), caller.clone())));
        tasks.spawn_local(revive(restarts(), move || keeper.clone().keep()));
        Lane { queue, health, link, _tasks: tasks }
    }

    /// Waits for the end of the first attempt to connect.
    pub async fn first_attempt(&self) {
        self.health.first_attempt().await;
    }

    pub fn is_down(&self) -> bool {
        self.health.down().is_some()
    }

    pub async fn ask(&self, op: Op, checks: &Shares, way: Way) -> Result<Decision, LaneFault> {
        let since = Instant::now();
        if let Some(kind) = self.health.refusal(since.into_std()) {
            return Err(LaneFault::Failed(kind));
        }
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { op, checks: checks.clone(), way, since, reply };
        if !self.queue.push(waiting) {
            return Err(LaneFault::Failed(ErrorKind::Overloaded));
        }
        answer.await.unwrap_or(Err(LaneFault::Failed(ErrorKind::Internal)))
    }

    /// Sends a command that is no decision, beside the queue. It has no deadline but the caller's.
    pub async fn send(&self, cmd: &Cmd, asking: bool) -> RedisResult<Value> {
        let Some(connection) = self.link.connection().await else { return Err(wire::not_connected()) };
        let outcome = match asking {
            true => connection.send_asking(cmd).await,
            false => connection.send(cmd).await,
        };
        if let Err(error) = &outcome
            && wire::error_kind(error) == ErrorKind::Disconnected
        {
            self.link.lost(&connection, ErrorKind::Disconnected, &error.to_string());
        }
        outcome
    }
}

/// One counter per kind, in the order of [`ErrorKind::ALL`].
pub fn counters(metrics: &Metrics) -> Vec<IntCounter> {
    ErrorKind::ALL.iter().map(|kind| metrics.store_error(kind.label())).collect()
}
