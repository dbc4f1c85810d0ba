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

use super::dial::Dialer;
use super::health::Health;
use super::link::RedisLink;
use super::pump::{self, Caller};
pub use super::queue::QUEUE_MAX;
use super::queue::Queue;
use super::sentinel::Target;
use super::waiting::{LaneFault, Waiting, Way};
use super::wire;
use crate::limit::decision::{Decision, ErrorKind, Op, Shares};
use crate::limit::revive::revive;
use crate::metrics::Metrics;

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
}

impl Lane {
    /// Connects in the background.
    pub fn open(target: Target, clustered: bool, context: &LaneContext) -> Lane {
        let metrics = &context.metrics;
        let health = Rc::new(Health::new(metrics));
        let queue = Rc::new(Queue::new(context.deadline));
        let link = Rc::new(RedisLink::new(target, context.dialer.clone(), health.clone()));
        let caller = Rc::new(Caller::new(link.clone(), health.clone(), clustered, context.deadline, metrics));
        let restarts = || metrics.store_task_restarts.clone();
        let mut tasks = JoinSet::new();
        let (waits, keeper, prober) = (queue.clone(), link.clone(), caller.clone());
        tasks.spawn_local(revive(restarts(), move || pump::run(waits.clone(), caller.clone())));
        tasks.spawn_local(revive(restarts(), move || keeper.clone().keep()));
        tasks.spawn_local(revive(restarts(), move || pump::run_probes(prober.clone())));
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
        if let Some(kind) = self.health.refusal() {
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
