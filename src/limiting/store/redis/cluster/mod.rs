//! Redis Cluster. The state keys of a request usually share a hash slot; then the decision is one call to the node of
//! the slot. Otherwise the decision is made slot by slot, with refunds if a later slot refuses.
//!
//! - `nodes`: sends to the node of a slot, follows redirections, and keeps the slot map up to date. It knows which
//!   limits refused recently, so that their slots are called first.
//! - `slot_map`: which node has which slots, with a lane to each node.
//! - `spread`: decides over several slots.

pub(crate) mod nodes;
pub(crate) mod slot_map;
pub(crate) mod spread;

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::limiting::answer::Answer;
use crate::limiting::decision::{Decision, ErrorKind, Op, SharedChecks};
use crate::limiting::store::address::ServerAddr;
use crate::limiting::store::redis::cluster::nodes::Nodes;
use crate::limiting::store::redis::cluster::slot_map::ClusterNode;
use crate::limiting::store::redis::connection::await_reply::await_reply;
use crate::limiting::store::redis::pipeline::lane::LaneContext;
use crate::limiting::store::redis::pipeline::waiting::LaneError;
use crate::limiting::store::redis::slot::key_slot;
use crate::limiting::store::redis::slot::slot_of;
use crate::limiting::supervise::restart_on_panic;

/// Handle of one worker on a cluster.
pub struct Cluster {
    pub nodes: Rc<Nodes>,
    /// The task that keeps the slot map up to date; ends with the handle.
    _keeper: JoinSet<()>,
}

impl Cluster {
    /// Creates a handle, which finds the nodes of the cluster in the background, starting from `seeds`.
    pub fn open(seeds: Vec<ServerAddr>, context: LaneContext) -> Cluster {
        let nodes = Rc::new(Nodes::new(seeds, context));
        let restarts = nodes.context.metrics.store.task_restarts.clone();
        let (kept, mut keeper) = (nodes.clone(), JoinSet::new());
        keeper.spawn_local(restart_on_panic(restarts, move || kept.clone().keep_map_updated()));
        Cluster { nodes, _keeper: keeper }
    }

    /// Waits until the slot map is known and every master has been tried once, or all seeds have failed.
    pub async fn wait_first_attempt(&self) {
        self.nodes.health.wait_first_attempt().await;
        let nodes: Vec<Rc<ClusterNode>> = self.nodes.map.borrow().nodes.values().cloned().collect();
        join_all(nodes.iter().map(|node| node.lane.wait_first_attempt())).await;
    }

    /// Runs `op` on all `checks` together.
    pub async fn run(&self, op: Op, checks: &SharedChecks) -> Result<Decision, ErrorKind> {
        if matches!(op, Op::Adjust | Op::Reset) {
            let answers =
                self.apply_changes(op, checks).await.into_iter().collect::<Result<Vec<Answer>, ErrorKind>>()?;
            return Ok(Decision { admitted: true, answers });
        }
        if let Some(kind) = self.nodes.health.down_reason() {
            return Err(kind);
        }
        let deadline = self.nodes.context.deadline;
        let until = Instant::now() + deadline;
        let first = slot_of(checks);
        if checks.iter().all(|check| key_slot(&check.key) == first) {
            match self.nodes.run(op, checks, until).await {
                Ok(decision) => return Ok(decision),
                Err(LaneError::Failed(kind)) => return Err(kind),
                Err(LaneError::Redirected(_)) => {}
            }
        }
        // The task continues if the client disconnects, so that no slot remains charged alone.
        let task = spread::decide_over_slots(self.nodes.clone(), op, checks.clone(), until);
        await_reply(deadline, task).await.map_or(Err(ErrorKind::Timeout), |decided| decided.value)
    }

    /// Runs a correction or reset. The changes are independent: each slot gets its own call, all calls are sent at
    /// once, and a failure does not affect the others.
    pub async fn apply_changes(&self, op: Op, checks: &SharedChecks) -> Vec<Result<Answer, ErrorKind>> {
        if let Some(kind) = self.nodes.health.down_reason() {
            return vec![Err(kind); checks.len()];
        }
        let until = Instant::now() + self.nodes.context.deadline;
        let mut parts = BTreeMap::<usize, Vec<usize>>::new();
        for (i, check) in checks.iter().enumerate() {
            parts.entry(key_slot(&check.key)).or_default().push(i);
        }
        let changes =
            parts.into_values().map(async |part| (self.apply_slot_changes(op, checks, &part, until).await, part));
        let mut outcomes = vec![Err(ErrorKind::Reply); checks.len()];
        for (outcome, part) in join_all(changes).await {
            for (place, i) in part.into_iter().enumerate() {
                outcomes[i] = match &outcome {
                    Ok(answers) => answers.get(place).copied().ok_or(ErrorKind::Reply),
                    Err(kind) => Err(*kind),
                };
            }
        }
        outcomes
    }

    /// Changes the checks with the indexes `part`, which share a slot.
    async fn apply_slot_changes(
        &self,
        op: Op,
        checks: &SharedChecks,
        part: &[usize],
        until: Instant,
    ) -> Result<Vec<Answer>, ErrorKind> {
        let outcome = self.nodes.run(op, &Rc::new(part.iter().map(|i| checks[*i].clone()).collect()), until).await;
        if let (Err(LaneError::Redirected(_)), true) = (&outcome, part.len() > 1) {
            // The slot is migrating, and its keys are on two nodes: send one call per key.
            let mut answers = Vec::with_capacity(part.len());
            for i in part {
                let alone = self.nodes.run(op, &Rc::new(vec![checks[*i].clone()]), until).await;
                answers.extend(alone.map_err(LaneError::error_kind)?.answers);
            }
            return Ok(answers);
        }
        Ok(outcome.map_err(LaneError::error_kind)?.answers)
    }
}
