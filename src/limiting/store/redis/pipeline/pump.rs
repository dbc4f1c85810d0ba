//! The pump: the task between the queue and the connection of a server. It sends calls, several at once if the server
//! is distant, and delivers the result of each decision.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use prometheus::Histogram;
use redis::{Cmd, RedisResult, Value};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::algorithm::fixed_window::FixedWindow;
use crate::limiting::decision::{Check, Decision, ErrorKind, Op, Role};
use crate::limiting::store::redis::codec;
use crate::limiting::store::redis::codec::ScriptCall;
use crate::limiting::store::redis::connection::await_reply::await_reply;
use crate::limiting::store::redis::connection::health::ServerHealth;
use crate::limiting::store::redis::connection::link::{RedisConnection, RedisLink};
use crate::limiting::store::redis::pipeline::queue::{CallEnd, DecisionQueue, NextAction, ReplyPace};
use crate::limiting::store::redis::pipeline::waiting::{LaneError, QueuedDecision, SendMode};
use crate::limiting::store::redis::slot::slot_of;
use crate::telemetry::metrics::Metrics;

/// Pause before the next probe if there is no connection.
const WITHOUT_CONNECTION: Duration = Duration::from_millis(50);
/// Limit of the probe's rule: more probes than all gateways make in a second, so that none is refused.
const PROBES_MAX: i64 = 1_000_000;

/// Sends the decisions in `queue` to the server. Never returns.
pub async fn run_pump(queue: Rc<DecisionQueue>, caller: Rc<Caller>) {
    // An earlier run of this task may have panicked, with its calls.
    queue.forget_calls();
    let mut calls = FuturesUnordered::new();
    let mut left = Instant::now();
    let (mut alarm, mut armed) = (pin!(sleep_until(left)), false);
    // After a yield, the pump runs again when the worker has polled its sockets and served what had arrived.
    let mut gathering = pin!(yield_now());
    poll_fn(|cx| {
        loop {
            while let Poll::Ready(Some(end)) = calls.poll_next_unpin(cx) {
                queue.record_end(end);
            }
            match queue.next_action(calls.len(), left, cx.waker()) {
                NextAction::Gather => {
                    gathering.set(yield_now());
                    if gathering.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
                NextAction::Call(batch) => {
                    left = Instant::now();
                    calls.push(caller.clone().call_batch(batch));
                }
                NextAction::Idle => return Poll::Pending,
                NextAction::At(then) => {
                    // The alarm is only reset if it would ring too late. If it rings too early, the loop sets it again,
                    // which is rare while calls are short.
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

/// Makes calls to one server.
pub struct Caller {
    link: Rc<RedisLink>,
    health: Rc<ServerHealth>,
    clustered: bool,
    deadline: Duration,
    /// A check of the last failed call, which the probe imitates.
    failed: RefCell<Option<Check>>,
    waited: Histogram,
    duration: Histogram,
    batch_size: Histogram,
}

/// Result of one script call: its decisions, or the error and its text.
type CallOutcome = Result<Vec<Result<Decision, ErrorKind>>, (LaneError, String)>;

/// A reply that takes longer than this part of the deadline is slow.
const SLOW_FROM: f64 = 0.75;

impl Caller {
    pub fn new(
        link: Rc<RedisLink>,
        health: Rc<ServerHealth>,
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
            waited: metrics.store.queue_duration.clone(),
            duration: metrics.store.duration.clone(),
            batch_size: metrics.store.batch_size.clone(),
        }
    }

    async fn call_batch(self: Rc<Self>, batch: Vec<QueuedDecision>) -> CallEnd {
        let (started, work) = (Instant::now(), QueuedDecision::total_work(&batch));
        if let Some(oldest) = batch.first() {
            self.waited.observe(started.duration_since(oldest.since).as_secs_f64());
        }
        let groups = self.group_by_slot(batch);
        let (outcomes, pace) = match self.send_groups(&groups, started, false).await {
            Ok((outcomes, pace)) => (outcomes, Some(pace)),
            Err(kind) => (groups.iter().map(|_| Err((LaneError::Failed(kind), String::new()))).collect(), None),
        };
        for (group, outcome) in groups.into_iter().zip(outcomes) {
            match outcome {
                Ok(decisions) => {
                    for (waiting, decision) in group.into_iter().zip(decisions) {
                        waiting.deliver(decision.map_err(LaneError::Failed));
                    }
                }
                Err((fault, _)) => group.into_iter().for_each(|waiting| waiting.deliver(Err(fault.clone()))),
            }
        }
        CallEnd { started, work, pace }
    }

    /// Divides a batch into script calls. On a cluster, the keys of a call share a hash slot.
    fn group_by_slot(&self, batch: Vec<QueuedDecision>) -> Vec<Vec<QueuedDecision>> {
        if !self.clustered {
            return vec![batch];
        }
        let (mut places, mut groups) = (HashMap::new(), Vec::<Vec<QueuedDecision>>::new());
        for waiting in batch {
            let alone = (waiting.mode != SendMode::Shared).then_some(groups.len());
            let place = *places.entry((slot_of(&waiting.checks), alone)).or_insert(groups.len());
            match groups.get_mut(place) {
                Some(group) => group.push(waiting),
                None => groups.push(vec![waiting]),
            }
        }
        groups
    }

    /// Sends all calls at once and waits for their results. `probing` says that this is a probe of an open breaker.
    /// Returns the pace of the slowest reply, too.
    async fn send_groups(
        &self,
        groups: &[Vec<QueuedDecision>],
        started: Instant,
        probing: bool,
    ) -> Result<(Vec<CallOutcome>, ReplyPace), ErrorKind> {
        let Some(connection) = self.link.connection() else {
            return Err(self.health.down_reason().unwrap_or(ErrorKind::Disconnected));
        };
        let attempt = if probing { self.health.begin_probe() } else { self.health.begin_call() };
        let attempt = attempt.ok_or(ErrorKind::BreakerOpen)?;
        let replies = join_all(groups.iter().map(|group| self.send_group(&connection, group))).await;
        let (outcomes, paces): (Vec<CallOutcome>, Vec<ReplyPace>) = replies.into_iter().unzip();
        self.duration.observe(started.elapsed().as_secs_f64());
        let failure = outcomes.iter().zip(groups).find_map(|(outcome, group)| match outcome {
            Err((LaneError::Failed(kind), why)) if !self.is_healthy(*kind) => Some((*kind, why, group)),
            _ => None,
        });
        match failure {
            None => attempt.record_success(),
            Some((kind, why, group)) => {
                if let Some(check) = group.iter().find_map(|waiting| waiting.checks.first()).filter(|_| !probing) {
                    *self.failed.borrow_mut() = Some(check.clone());
                }
                let opened = attempt.record_failure(why);
                // A new connection may reach a server that has recovered, or a new master with the same name.
                let stale = opened && matches!(kind, ErrorKind::Timeout | ErrorKind::Readonly);
                if stale || kind == ErrorKind::Lost {
                    self.link.drop_connection(&connection, ErrorKind::Disconnected, why);
                }
            }
        }
        Ok((outcomes, paces.into_iter().max().unwrap_or(ReplyPace::InTime)))
    }

    /// Makes a test decision, to find out whether the server works again. Returns false if it could not be sent.
    async fn send_probe(&self) -> bool {
        let Some(check) = self.failed.borrow().as_ref().map(probe_check) else { return false };
        let start = Instant::now();
        let (probe, _) = QueuedDecision::new(Op::Take, Rc::new(vec![check]), SendMode::Shared, start);
        self.send_groups(&[vec![probe]], start, true).await.is_ok()
    }

    /// Returns whether a server with this error is healthy. One that is full, or a node whose cluster is down, responds
    /// at once, so the breaker need not open.
    fn is_healthy(&self, kind: ErrorKind) -> bool {
        kind == ErrorKind::OutOfMemory || self.clustered && kind == ErrorKind::Readonly
    }

    async fn send_group(&self, connection: &RedisConnection, group: &[QueuedDecision]) -> (CallOutcome, ReplyPace) {
        let decisions: Vec<(Op, &[Check])> =
            group.iter().map(|waiting| (waiting.op, waiting.checks.as_slice())).collect();
        let asking = group.iter().any(|waiting| waiting.mode == SendMode::Asking);
        #[expect(clippy::cast_precision_loss, reason = "at most DECISIONS_MAX")]
        self.batch_size.observe(group.len() as f64);
        // The script decides by the clock of the server; this time only selects the calendar windows to send.
        let call = ScriptCall::with_time(&decisions, 0, connection.clock_ms());
        let Some(reply) = await_reply(self.deadline, run_script(connection, &call, asking)).await else {
            let fault = LaneError::Failed(ErrorKind::Timeout);
            let deadline_ms = i64::try_from(self.deadline.as_millis()).unwrap_or(i64::MAX);
            let what = format!("no reply within {}, the `deadline` of [store]", format_duration(deadline_ms));
            return (Err((fault, what)), ReplyPace::Late);
        };
        let is_slow = reply.waited >= self.deadline.mul_f64(SLOW_FROM);
        let outcome = match reply.value {
            Ok(reply) => codec::decode_reply(reply, decisions.iter().copied())
                .ok_or((LaneError::Failed(ErrorKind::Reply), "malformed reply".to_owned())),
            Err(error) => {
                let elsewhere = codec::redirect_of(&error).filter(|_| self.clustered);
                let fault =
                    elsewhere.map_or_else(|| LaneError::Failed(codec::sent_error_kind(&error)), LaneError::Redirected);
                Err((fault, codec::describe_error(&error, self.clustered)))
            }
        };
        (outcome, if is_slow { ReplyPace::Slow } else { ReplyPace::InTime })
    }
}

/// Probes the server while its breaker is open. So the breaker closes without requests, and no request waits for a
/// server that is still unavailable. Never returns.
pub async fn run_probes(caller: Rc<Caller>) {
    loop {
        caller.health.wait_probe_due().await;
        if !caller.send_probe().await {
            sleep(WITHOUT_CONNECTION).await;
        }
    }
}

/// Creates the check of a probe. Like the failed `check`, it runs the script and writes, to an unused key of the same
/// hash slot. TIME or PING would succeed even while every write fails.
fn probe_check(check: &Check) -> Check {
    let rule = Arc::new(Rule::FixedWindow(FixedWindow { limit: PROBES_MAX, window_ms: 1000, clock: false }));
    Check { rule, key: format!("{}:probe", check.key), cost: 1, role: Role::default(), ban: None, ..check.clone() }
}

/// Runs the script. Only after NOSCRIPT is the call repeated, as it certainly had no effect.
async fn run_script(connection: &RedisConnection, call: &ScriptCall<'_>, asking: bool) -> RedisResult<Value> {
    let send = async |cmd: Cmd| match asking {
        true => connection.send_asking(&cmd).await,
        false => connection.send(&cmd).await,
    };
    match send(call.evalsha_command()).await {
        Err(error) if codec::is_noscript(&error) => send(call.eval_command()).await,
        outcome => outcome,
    }
}
