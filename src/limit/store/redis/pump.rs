//! The task between a server's queue and its connection: lets calls leave, several at once, and
//! hands each decision its answer. Run by `lane.rs`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use prometheus::Histogram;
use redis::{Cmd, RedisResult, Value};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::health::Health;
use super::link::{RedisConnection, RedisLink};
use super::queue::{Next, Queue};
use super::slot::slot_of;
use super::waiting::{LaneFault, Waiting, Way};
use super::wire::{self, Call};
use crate::limit::algo::Rule;
use crate::limit::algo::fixed_window::FixedWindow;
use crate::limit::decision::{Check, Decision, ErrorKind, Op, Role};
use crate::metrics::Metrics;

/// Pause before another look for a connection that a probe can use.
const WITHOUT_CONNECTION: Duration = Duration::from_millis(50);
/// More probes than all gateways make in a second, so that none of them is refused.
const PROBES_MAX: i64 = 1_000_000;

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
    /// A check of the last call that failed; a probe is made after it.
    failed: RefCell<Option<Check>>,
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
            failed: RefCell::default(),
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
        let outcomes = match self.exchange(&groups, started, false).await {
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

    /// On a cluster one call for each hash slot, all sent at once. `probing`: it is a probe of an open breaker.
    async fn exchange(
        &self,
        groups: &[Vec<Waiting>],
        started: Instant,
        probing: bool,
    ) -> Result<Vec<Outcome>, ErrorKind> {
        let Some(connection) = self.link.connection().await else {
            return Err(self.health.down().unwrap_or(ErrorKind::Disconnected));
        };
        let attempt = if probing { self.health.begin_probe() } else { self.health.begin() };
        let attempt = attempt.ok_or(ErrorKind::BreakerOpen)?;
        let until = started + self.deadline;
        let outcomes = join_all(groups.iter().map(|group| self.decide(&connection, group, until))).await;
        self.duration.observe(started.elapsed().as_secs_f64());
        let failure = outcomes.iter().zip(groups).find_map(|(outcome, group)| match outcome {
            Err((LaneFault::Failed(kind), why)) if !self.lives(*kind) => Some((*kind, why, group)),
            _ => None,
        });
        match failure {
            None => attempt.succeeded(),
            Some((kind, why, group)) => {
                if let Some(check) = group.iter().find_map(|waiting| waiting.checks.first()).filter(|_| !probing) {
                    *self.failed.borrow_mut() = Some(check.clone());
                }
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

    /// Makes a decision that is no request's, to learn whether the server decides again. False without a connection.
    async fn probe(&self) -> bool {
        let Some(check) = self.failed.borrow().as_ref().map(probe_of) else { return false };
        let (started, (reply, _)) = (Instant::now(), oneshot::channel());
        let checks = Rc::new(vec![check]);
        let probe = Waiting { op: Op::Take, checks, way: Way::Shared, since: started, reply };
        self.exchange(&[vec![probe]], started, true).await.is_ok()
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

/// Probes the server whenever its breaker is open, so that it closes without requests too, and none of them waits
/// for a server that is still away. Never returns.
pub async fn run_probes(caller: Rc<Caller>) {
    loop {
        caller.health.probe_due().await;
        if !caller.probe().await {
            sleep(WITHOUT_CONNECTION).await;
        }
    }
}

/// A decision like that of `check`, which has failed: it runs the script and writes, to a key of the same hash slot
/// that nobody else uses. TIME or PING would succeed while every write fails.
fn probe_of(check: &Check) -> Check {
    let rule = Arc::new(Rule::FixedWindow(FixedWindow { limit: PROBES_MAX, window_ms: 1000, clock: false }));
    Check { rule, key: format!("{}:probe", check.key), cost: 1, role: Role::default(), ..check.clone() }
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
