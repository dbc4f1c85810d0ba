//! The way to one Redis server: a queue, and a task that carries all decisions that wait to the
//! script. Called by `mod.rs` for a single server and by `cluster.rs` for each node.
//!
//! One call is in flight at a time; on a cluster one for each hash slot that waits, all sent at
//! once.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use prometheus::{Histogram, IntCounter};
use redis::{Cmd, RedisResult, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::dial::Dialer;
use super::health::Health;
use super::link::{Connection, Link};
use super::sentinel::Target;
use super::slot::slot_of;
use super::wire::{self, Call, Redirect};
use crate::limit::decision::{Check, Decision, ErrorKind, Op};
use crate::metrics::Metrics;

/// Decisions that may wait for the next call to one server; more are not queued.
pub const QUEUE_MAX: usize = 4096;

/// The checks of one decision, shared by those who wait and those who send.
pub type Shares = Rc<Vec<Check>>;

pub struct Lane {
    queue: mpsc::Sender<Waiting>,
    health: Rc<Health>,
    link: Rc<Link>,
}

/// What every lane of a handle needs.
#[derive(Clone)]
pub struct Context {
    pub dialer: Dialer,
    pub deadline: Duration,
    pub metrics: Metrics,
}

/// Why a server gave no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    Failed(ErrorKind),
    Elsewhere(Redirect),
}

impl Fault {
    /// For a decision that is asked nowhere else.
    pub fn kind(self) -> ErrorKind {
        match self {
            Fault::Failed(kind) => kind,
            Fault::Elsewhere(_) => ErrorKind::Timeout,
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

/// One decision on its way.
struct Waiting {
    op: Op,
    checks: Shares,
    way: Way,
    since: Instant,
    reply: oneshot::Sender<Result<Decision, Fault>>,
}

impl Lane {
    /// Connects in the background.
    pub fn open(target: Target, clustered: bool, context: &Context) -> Lane {
        let health = Rc::new(Health::new(&context.metrics));
        let (queue, inbox) = mpsc::channel(QUEUE_MAX);
        let (link, keeper) = Link::open(target, context.dialer.clone(), health.clone());
        let pump = Pump {
            link: link.clone(),
            health: health.clone(),
            clustered,
            deadline: context.deadline,
            duration: context.metrics.store_duration.clone(),
            batch_size: context.metrics.store_batch_size.clone(),
        };
        tokio::task::spawn_local(async move {
            pump.run(Inbox { queue: inbox, spare: None }).await;
            keeper.abort();
        });
        Lane { queue, health, link }
    }

    /// Waits for the end of the first attempt to connect.
    pub async fn settled(&self) {
        self.health.settled().await;
    }

    pub fn is_down(&self) -> bool {
        self.health.down().is_some()
    }

    pub async fn ask(&self, op: Op, checks: &Shares, way: Way) -> Result<Decision, Fault> {
        if let Some(kind) = self.health.refusal() {
            return Err(Fault::Failed(kind));
        }
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { op, checks: checks.clone(), way, since: Instant::now(), reply };
        self.queue.try_send(waiting).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => Fault::Failed(ErrorKind::Overloaded),
            mpsc::error::TrySendError::Closed(_) => Fault::Failed(ErrorKind::Disconnected),
        })?;
        answer.await.unwrap_or(Err(Fault::Failed(ErrorKind::Disconnected)))
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

impl Waiting {
    /// The decision's owner gets the only handle on its checks back with the answer.
    fn answer(self, answer: Result<Decision, Fault>) {
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
            waiting.answer(Err(Fault::Failed(kind)));
            next = None;
        }
    }
}

/// The task between queue and connection.
struct Pump {
    link: Rc<Link>,
    health: Rc<Health>,
    clustered: bool,
    deadline: Duration,
    duration: Histogram,
    batch_size: Histogram,
}

/// What came of one script call, and why not, in words.
type Outcome = Result<Vec<Decision>, (Fault, String)>;

impl Pump {
    async fn run(self, mut inbox: Inbox) {
        while let Some(batch) = inbox.batch().await {
            let Some(oldest) = batch.first() else { continue };
            let until = oldest.since + self.deadline;
            let groups = self.grouped(batch);
            let outcomes = match self.call(&groups, until).await {
                Ok(outcomes) => outcomes,
                Err(kind) => groups.iter().map(|_| Err((Fault::Failed(kind), String::new()))).collect(),
            };
            for (group, outcome) in groups.into_iter().zip(outcomes) {
                match outcome {
                    Ok(decisions) => {
                        for (waiting, decision) in group.into_iter().zip(decisions) {
                            waiting.answer(Ok(decision));
                        }
                    }
                    Err((fault, _)) => {
                        let timed_out = fault == Fault::Failed(ErrorKind::Timeout);
                        group.into_iter().for_each(|waiting| waiting.answer(Err(fault.clone())));
                        if timed_out {
                            inbox.fail_all(ErrorKind::Timeout);
                        }
                    }
                }
            }
        }
    }

    /// The decisions of one script call each. The keys of a call share a hash slot on a cluster.
    fn grouped(&self, batch: Vec<Waiting>) -> Vec<Vec<Waiting>> {
        if !self.clustered {
            return vec![batch];
        }
        let (mut places, mut groups) = (HashMap::new(), Vec::<Vec<Waiting>>::new());
        for waiting in batch {
            let alone = (waiting.way != Way::Shared).then_some(groups.len());
            let place = *places.entry((slot_of(&waiting.checks), alone)).or_insert(groups.len());
            match groups.get_mut(place) {
                Some(group) => group.push(waiting),
                None => groups.push(vec![waiting]),
            }
        }
        groups
    }

    async fn call(&self, groups: &[Vec<Waiting>], until: Instant) -> Result<Vec<Outcome>, ErrorKind> {
        let Some(connection) = self.link.connection().await else {
            return Err(self.health.down().unwrap_or(ErrorKind::Disconnected));
        };
        if !self.health.begin() {
            return Err(ErrorKind::BreakerOpen);
        }
        let started = Instant::now();
        let outcomes = join_all(groups.iter().map(|group| self.decide(&connection, group, until))).await;
        self.duration.observe(started.elapsed().as_secs_f64());
        let failure = outcomes.iter().find_map(|outcome| match outcome {
            Err((Fault::Failed(kind), why)) if !self.lives(*kind) => Some((*kind, why)),
            _ => None,
        });
        match failure {
            None => self.health.succeeded(),
            Some((kind, why)) => {
                let opened = self.health.failed(why);
                // A new connection finds a server that hangs no more, or the new master behind
                // the same name.
                let stale = opened && matches!(kind, ErrorKind::Timeout | ErrorKind::Readonly);
                if stale || kind == ErrorKind::Disconnected {
                    self.link.lost(&connection, ErrorKind::Disconnected, why);
                }
            }
        }
        Ok(outcomes)
    }

    /// A node that says at once that its cluster is down is itself well, and costs nobody time.
    fn lives(&self, kind: ErrorKind) -> bool {
        self.clustered && kind == ErrorKind::Readonly
    }

    async fn decide(&self, connection: &Connection, group: &[Waiting], until: Instant) -> Outcome {
        let decisions: Vec<(Op, &[Check])> =
            group.iter().map(|waiting| (waiting.op, waiting.checks.as_slice())).collect();
        let asking = group.iter().any(|waiting| waiting.way == Way::Asking);
        #[expect(clippy::cast_precision_loss, reason = "at most DECISIONS_MAX")]
        self.batch_size.observe(group.len() as f64);
        // The script decides by the server's clock; ours only tells which days there are.
        let call = Call::assuming(&decisions, 0, connection.clock_ms());
        match timeout_at(until, run_script(connection, &call, asking)).await {
            Ok(Ok(reply)) => wire::decode(reply, group.iter().map(|waiting| waiting.checks.len()))
                .ok_or((Fault::Failed(ErrorKind::Reply), "a reply of the wrong form".to_owned())),
            Ok(Err(error)) => {
                let elsewhere = wire::redirect(&error).filter(|_| self.clustered);
                let fault = elsewhere.map_or_else(|| Fault::Failed(wire::error_kind(&error)), Fault::Elsewhere);
                Err((fault, error.to_string()))
            }
            Err(_) => Err((Fault::Failed(ErrorKind::Timeout), "no answer within the deadline".to_owned())),
        }
    }
}

/// Only NOSCRIPT is asked again: after it nothing happened. Everything else may have.
async fn run_script(connection: &Connection, call: &Call<'_>, asking: bool) -> RedisResult<Value> {
    let send = async |cmd: Cmd| match asking {
        true => connection.send_asking(&cmd).await,
        false => connection.send(&cmd).await,
    };
    match send(call.evalsha()).await {
        Err(error) if wire::is_noscript(&error) => send(call.eval()).await,
        outcome => outcome,
    }
}

/// One counter per kind, in the order of [`ErrorKind::ALL`].
pub fn counters(metrics: &Metrics) -> Vec<IntCounter> {
    ErrorKind::ALL.iter().map(|kind| metrics.store_error(kind.label())).collect()
}
