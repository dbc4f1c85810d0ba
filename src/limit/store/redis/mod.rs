//! Limit state in Redis, shared by all gateways. One handle per worker: [`Redis::run`] queues,
//! and one task carries all decisions that wait to the script in one call at a time.
//!
//! While a call is in flight later decisions gather, and leave together in the next; an idle pipe
//! adds no wait. No decision waits longer than the deadline in all, none waits for a connect.

mod breaker;
mod health;
mod link;
pub mod wire;

use std::rc::Rc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::{Check, Decision, ErrorKind, Op, StoreError};
use crate::config::StoreSettings;
use crate::metrics::Metrics;
use health::Health;
use link::{Connection, Link};
use wire::Call;

/// Decisions that may wait for the next call; more are not queued.
pub const QUEUE_MAX: usize = 4096;

/// A worker's way to Redis; lives in the worker's runtime.
pub struct Redis {
    queue: mpsc::Sender<Waiting>,
    health: Rc<Health>,
    errors: Vec<IntCounter>,
}

/// One decision on its way.
struct Waiting {
    op: Op,
    checks: Rc<Vec<Check>>,
    since: Instant,
    reply: oneshot::Sender<Result<Decision, ErrorKind>>,
}

impl Redis {
    /// Returns at once and connects in the background. The URL may hold a password and is not logged.
    pub fn connect(settings: &StoreSettings, url: &str, metrics: &Metrics) -> Redis {
        let health = Rc::new(Health::new(metrics));
        let (queue, inbox) = mpsc::channel(QUEUE_MAX);
        match Link::open(url, health.clone()) {
            Ok((link, keeper)) => {
                let inbox = Inbox { queue: inbox, spare: None };
                let pump = Pump {
                    link,
                    health: health.clone(),
                    deadline: settings.deadline,
                    duration: metrics.store_duration.clone(),
                    batch_size: metrics.store_batch_size.clone(),
                };
                tokio::task::spawn_local(async move {
                    pump.run(inbox).await;
                    keeper.abort();
                });
            }
            Err(error) => health.set_down(ErrorKind::Disconnected, error.category()),
        }
        let errors = ErrorKind::ALL.iter().map(|kind| metrics.store_error(*kind)).collect();
        Redis { queue, health, errors }
    }

    /// Runs `op` on all `checks` together. After [`ErrorKind::Timeout`] and
    /// [`ErrorKind::Disconnected`] a charge may have happened, so nothing is asked twice.
    pub async fn run(&self, op: Op, checks: Vec<Check>) -> Result<Decision, StoreError> {
        let checks = Rc::new(checks);
        match self.ask(op, &checks).await {
            Ok(decision) => Ok(decision),
            Err(kind) => {
                self.errors[kind as usize].inc();
                Err(StoreError { kind, checks: Rc::unwrap_or_clone(checks) })
            }
        }
    }

    async fn ask(&self, op: Op, checks: &Rc<Vec<Check>>) -> Result<Decision, ErrorKind> {
        if let Some(kind) = self.health.refusal() {
            return Err(kind);
        }
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { op, checks: checks.clone(), since: Instant::now(), reply };
        self.queue.try_send(waiting).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => ErrorKind::Overloaded,
            mpsc::error::TrySendError::Closed(_) => ErrorKind::Disconnected,
        })?;
        answer.await.unwrap_or(Err(ErrorKind::Disconnected))
    }
}

impl Waiting {
    /// The decision's owner gets the only handle on its checks back with the answer.
    fn answer(self, answer: Result<Decision, ErrorKind>) {
        drop(self.checks);
        // An error means that the client has left; its charge stands.
        let _ = self.reply.send(answer);
    }
}

/// What waits, oldest first.
struct Inbox {
    queue: mpsc::Receiver<Waiting>,
    /// Taken from the queue, but too much for the call at hand.
    spare: Option<Waiting>,
}

impl Inbox {
    /// Waits for the next decision, and takes what waits with it, up to the size of one call.
    /// `None` once the handle is gone.
    async fn batch(&mut self) -> Option<Vec<Waiting>> {
        let mut next = match self.spare.take() {
            Some(waiting) => Some(waiting),
            None => Some(self.queue.recv().await?),
        };
        let (mut batch, mut keys) = (Vec::new(), 0);
        while let Some(waiting) = next {
            // A client that has left is not charged.
            if !waiting.reply.is_closed() {
                keys += waiting.checks.len();
                if batch.len() == wire::DECISIONS_MAX || (keys > wire::KEYS_MAX && !batch.is_empty()) {
                    self.spare = Some(waiting);
                    break;
                }
                batch.push(waiting);
            }
            next = self.queue.try_recv().ok();
        }
        Some(batch)
    }

    fn fail_all(&mut self, kind: ErrorKind) {
        let mut next = self.spare.take();
        while let Some(waiting) = next.or_else(|| self.queue.try_recv().ok()) {
            waiting.answer(Err(kind));
            next = None;
        }
    }
}

/// The task between queue and connection.
struct Pump {
    link: Rc<Link>,
    health: Rc<Health>,
    deadline: Duration,
    duration: Histogram,
    batch_size: Histogram,
}

impl Pump {
    async fn run(self, mut inbox: Inbox) {
        while let Some(batch) = inbox.batch().await {
            let Some(oldest) = batch.first() else { continue };
            let until = oldest.since + self.deadline;
            match self.call(&batch, until).await {
                Ok(decisions) => {
                    for (waiting, decision) in batch.into_iter().zip(decisions) {
                        waiting.answer(Ok(decision));
                    }
                }
                Err(kind) => {
                    batch.into_iter().for_each(|waiting| waiting.answer(Err(kind)));
                    if kind == ErrorKind::Timeout {
                        inbox.fail_all(kind);
                    }
                }
            }
        }
    }

    async fn call(&self, batch: &[Waiting], until: Instant) -> Result<Vec<Decision>, ErrorKind> {
        let Some(mut connection) = self.link.connection().await else {
            return Err(self.health.down().unwrap_or(ErrorKind::Disconnected));
        };
        if !self.health.begin() {
            return Err(ErrorKind::BreakerOpen);
        }
        let decisions: Vec<(Op, &[Check])> =
            batch.iter().map(|waiting| (waiting.op, waiting.checks.as_slice())).collect();
        let started = Instant::now();
        let outcome = match timeout_at(until, run_script(&mut connection, &Call::new(&decisions, 0))).await {
            Ok(Ok(reply)) => wire::decode(reply, batch.iter().map(|waiting| waiting.checks.len()))
                .ok_or((ErrorKind::Reply, "a reply of the wrong form".to_owned())),
            Ok(Err(error)) => Err((wire::error_kind(&error), error.to_string())),
            Err(_) => Err((ErrorKind::Timeout, "no answer within the deadline".to_owned())),
        };
        self.duration.observe(started.elapsed().as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "at most DECISIONS_MAX")]
        self.batch_size.observe(batch.len() as f64);
        match outcome {
            Ok(decisions) => {
                self.health.succeeded();
                Ok(decisions)
            }
            Err((kind, why)) => {
                let opened = self.health.failed(&why);
                // A new connection finds a server that hangs no more, or the new master behind
                // the same name.
                let stale = opened && matches!(kind, ErrorKind::Timeout | ErrorKind::Readonly);
                if stale || kind == ErrorKind::Disconnected {
                    self.link.lost(&connection, ErrorKind::Disconnected, &why);
                }
                Err(kind)
            }
        }
    }
}

/// Only NOSCRIPT is asked again: after it nothing happened. Everything else may have.
async fn run_script(connection: &mut Connection, call: &Call<'_>) -> redis::RedisResult<redis::Value> {
    match connection.send(&call.evalsha()).await {
        Err(error) if wire::is_noscript(&error) => connection.send(&call.eval()).await,
        outcome => outcome,
    }
}
