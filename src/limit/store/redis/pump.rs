//! The task between a server's queue and its connection: lets calls leave, several at once, and
//! hands each decision its answer. Run by `lane.rs`.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use prometheus::Histogram;
use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::health::Health;
use super::link::{RedisConnection, RedisLink};
use super::queue::{Next, Queue};
use super::slot::slot_of;
use super::waiting::{LaneFault, Waiting, Way};
use super::wire::{self, Call};
use crate::limit::decision::{Check, Decision, ErrorKind, Op};
use crate::metrics::Metrics;

/// Carries what waits in `queue` to the server, for ever.
pub async fn run(queue: Rc<Queue>, caller: Rc<Caller>) {
    let mut calls = FuturesUnordered::new();
    let mut left = Instant::now();
    let (mut alarm, mut armed) = (pin!(sleep_until(left)), false);
    poll_fn(|cx| {
        loop {
            while let Poll::Ready(Some(())) = calls.poll_next_unpin(cx) {}
            match queue.next(calls.len(), left, cx.waker()) {
                Next::Call(batch) => {
                    left = Instant::now();
                    calls.push(caller.clone().call(batch));
                }
                Next::Idle => return Poll::Pending,
                Next::At(then) => {
                    // An alarm that comes early is set again, which is rare while calls are short.
                    if !armed || alarm.deadline() > then {
                        alarm.as_mut().reset(then);
                        armed = true;
                    }
                    if alarm.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    armed = false;
                }
            }
        }
    })
    .await
}

/// Makes the calls to one server.
pub struct Caller {
    link: Rc<RedisLink>,
    health: Rc<Health>,
    clustered: bool,
    deadline: Duration,
    waited: Histogram,
    duration: Histogram,
    batch_size: Histogram,
}

/// What came of one script call, and why not, in words.
type Outcome = Result<Vec<Result<Decision, ErrorKind>>, (LaneFault, String)>;

impl Caller {
    pub fn new(
        link: Rc<RedisLink>,
        health: Rc<Health>,
        clustered: bool,
        deadline: Duration,
        metrics: &Metrics,
    ) -> Caller {
        Caller {
            link,
            health,
            clustered,
            deadline,
            waited: metrics.store_queue_duration.clone(),
            duration: metrics.store_duration.clone(),
            batch_size: metrics.store_batch_size.clone(),
        }
    }

    async fn call(self: Rc<Self>, batch: Vec<Waiting>) {
        let started = Instant::now();
        if let Some(oldest) = batch.first() {
            self.waited.observe(started.duration_since(oldest.since).as_secs_f64());
        }
        let groups = self.grouped(batch);
        let outcomes = match self.exchange(&groups, started).await {
            Ok(outcomes) => outcomes,
            Err(kind) => groups.iter().map(|_| Err((LaneFault::Failed(kind), String::new()))).collect(),
        };
        for (group, outcome) in groups.into_iter().zip(outcomes) {
            match outcome {
                Ok(decisions) => {
                    for (waiting, decision) in group.into_iter().zip(decisions) {
                        waiting.answer(decision.map_err(LaneFault::Failed));
                    }
                }
                Err((fault, _)) => group.into_iter().for_each(|waiting| waiting.answer(Err(fault.clone()))),
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

    /// On a cluster one call for each hash slot, all sent at once.
    async fn exchange(&self, groups: &[Vec<Waiting>], started: Instant) -> Result<Vec<Outcome>, ErrorKind> {
        let Some(connection) = self.link.connection().await else {
            return Err(self.health.down().unwrap_or(ErrorKind::Disconnected));
        };
        let attempt = self.health.begin().ok_or(ErrorKind::BreakerOpen)?;
        let until = started + self.deadline;
        let outcomes = join_all(groups.iter().map(|group| self.decide(&connection, group, until))).await;
        self.duration.observe(started.elapsed().as_secs_f64());
        let failure = outcomes.iter().find_map(|outcome| match outcome {
            Err((LaneFault::Failed(kind), why)) if !self.lives(*kind) => Some((*kind, why)),
            _ => None,
        });
        match failure {
            None => attempt.succeeded(),
            Some((kind, why)) => {
                let opened = attempt.failed(why);
                // A new connection finds a server that hangs no more, or the new master behind
                // the same name.
                let stale = opened && matches!(kind, ErrorKind::Timeout | ErrorKind::Readonly);
                if stale || kind == ErrorKind::Lost {
                    self.link.lost(&connection, ErrorKind::Disconnected, why);
                }
            }
        }
        Ok(outcomes)
    }

    /// A server that says at once that it is full, or a node that its cluster is down, is itself
    /// well, and costs nobody time.
    fn lives(&self, kind: ErrorKind) -> bool {
        kind == ErrorKind::OutOfMemory || self.clustered && kind == ErrorKind::Readonly
    }

    async fn decide(&self, connection: &RedisConnection, group: &[Waiting], until: Instant) -> Outcome {
        let decisions: Vec<(Op, &[Check])> =
            group.iter().map(|waiting| (waiting.op, waiting.checks.as_slice())).collect();
        let asking = group.iter().any(|waiting| waiting.way == Way::Asking);
        #[expect(clippy::cast_precision_loss, reason = "at most DECISIONS_MAX")]
        self.batch_size.observe(group.len() as f64);
        // The script decides by the server's clock; ours only tells which days there are.
        let call = Call::assuming(&decisions, 0, connection.clock_ms());
        match timeout_at(until, run_script(connection, &call, asking)).await {
            Ok(Ok(reply)) => wire::decode(reply, group.iter().map(|waiting| waiting.checks.len()))
                .ok_or((LaneFault::Failed(ErrorKind::Reply), "a reply of the wrong form".to_owned())),
            Ok(Err(error)) => {
                let elsewhere = wire::redirect(&error).filter(|_| self.clustered);
                let fault =
                    elsewhere.map_or_else(|| LaneFault::Failed(wire::sent_error_kind(&error)), LaneFault::Elsewhere);
                Err((fault, error.to_string()))
            }
            Err(_) => Err((LaneFault::Failed(ErrorKind::Timeout), "no answer within the deadline".to_owned())),
        }
    }
}

/// Only NOSCRIPT is asked again: after it nothing happened. Everything else may have.
async fn run_script(connection: &RedisConnection, call: &Call<'_>, asking: bool) -> RedisResult<Value> {
    let send = async |cmd: Cmd| match asking {
        true => connection.send_asking(&cmd).await,
        false => connection.send(&cmd).await,
    };
    match send(call.evalsha()).await {
        Err(error) if wire::is_noscript(&error) => send(call.eval()).await,
        outcome => outcome,
    }
}
