//! The lane to one Redis server: the queue of decisions, the connection, and the tasks that serve both. A cluster has a
//! lane for each node.

use std::rc::Rc;
use std::time::Duration;

use prometheus::IntCounter;
use redis::{Cmd, RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::limiting::decision::{ErrorKind, Op, SharedChecks};
use crate::limiting::store::redis::codec;
use crate::limiting::store::redis::connection::dial::Dialer;
use crate::limiting::store::redis::connection::health::ServerHealth;
use crate::limiting::store::redis::connection::link::RedisLink;
use crate::limiting::store::redis::connection::sentinel::ConnectionTarget;
use crate::limiting::store::redis::pipeline::pump;
use crate::limiting::store::redis::pipeline::pump::Caller;
use crate::limiting::store::redis::pipeline::queue::DecisionQueue;
pub use crate::limiting::store::redis::pipeline::queue::QUEUE_MAX;
use crate::limiting::store::redis::pipeline::waiting::{LaneError, PendingDecision, QueuedDecision, SendMode};
use crate::limiting::supervise::restart_on_panic;
use crate::telemetry::metrics::Metrics;

/// Lane of one worker to one server.
pub struct Lane {
    queue: Rc<DecisionQueue>,
    health: Rc<ServerHealth>,
    link: Rc<RedisLink>,
    /// The tasks of the lane, which end with it.
    _tasks: JoinSet<()>,
}

/// Settings that all lanes of a handle share.
#[derive(Clone)]
pub struct LaneContext {
    pub dialer: Dialer,
    pub deadline: Duration,
    pub metrics: Metrics,
    /// Prefix of the keys, which the login may use.
    pub prefix: String,
}

impl Lane {
    /// Opens a lane, which connects in the background. `clustered` says that the server is a node of a cluster.
    pub fn open(target: ConnectionTarget, clustered: bool, context: &LaneContext) -> Lane {
        let metrics = &context.metrics;
        let health = Rc::new(ServerHealth::new(metrics));
        let queue = Rc::new(DecisionQueue::new(context.deadline));
        let single_test = (!clustered).then(|| codec::single_test_command(&context.prefix));
        let link = Rc::new(RedisLink::new(target, context.dialer.clone(), single_test, health.clone()));
        let caller = Rc::new(Caller::new(link.clone(), health.clone(), clustered, context.deadline, metrics));
        let restarts = || metrics.store.task_restarts.clone();
        let mut tasks = JoinSet::new();
        let (waits, keeper, prober) = (queue.clone(), link.clone(), caller.clone());
        tasks.spawn_local(restart_on_panic(restarts(), move || pump::run_pump(waits.clone(), caller.clone())));
        tasks.spawn_local(restart_on_panic(restarts(), move || keeper.clone().run_connection()));
        tasks.spawn_local(restart_on_panic(restarts(), move || pump::run_probes(prober.clone())));
        Lane { queue, health, link, _tasks: tasks }
    }

    /// Waits for the end of the first attempt to connect.
    pub async fn wait_first_attempt(&self) {
        self.health.wait_first_attempt().await;
    }

    /// Returns whether there is no connection.
    pub fn is_down(&self) -> bool {
        self.health.down_reason().is_some()
    }

    /// Queues a decision at the time `since`.
    ///
    /// # Errors
    /// The server is unavailable, or the queue is full.
    pub fn queue(
        &self,
        op: Op,
        checks: &SharedChecks,
        mode: SendMode,
        since: Instant,
    ) -> Result<PendingDecision, LaneError> {
        if let Some(kind) = self.health.refusal_reason() {
            return Err(LaneError::Failed(kind));
        }
        let (waiting, result) = QueuedDecision::new(op, checks.clone(), mode, since);
        self.queue.push(waiting).map_err(LaneError::Failed)?;
        Ok(result)
    }

    /// Sends a command that is not a decision, without the queue. There is no deadline; the caller sets one.
    pub async fn send(&self, cmd: &Cmd, asking: bool) -> RedisResult<Value> {
        let Some(connection) = self.link.connection() else { return Err(codec::not_connected()) };
        let outcome = match asking {
            true => connection.send_asking(cmd).await,
            false => connection.send(cmd).await,
        };
        if let Err(error) = &outcome
            && codec::error_kind(error) == ErrorKind::Disconnected
        {
            self.link.drop_connection(&connection, ErrorKind::Disconnected, &error.to_string());
        }
        outcome
    }
}

/// Returns the error counters, indexed like [`ErrorKind::ALL`].
pub fn error_counters(metrics: &Metrics) -> Vec<IntCounter> {
    ErrorKind::ALL.iter().map(|kind| metrics.store_error_counter(kind.label())).collect()
}
