//! Redis Cluster: a decision goes to the node of its slot; one over several slots is made by
//! `spread.rs`. A task keeps the map of the slots.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::address::Addr;
use super::lane::LaneContext;
use super::map::ClusterNode;
use super::nodes::Nodes;
use super::slot::{self, slot_of};
use super::spread;
use super::waiting::LaneFault;
use crate::limit::answer::Answer;
use crate::limit::decision::{Decision, ErrorKind, Op, Shares};
use crate::limit::revive::revive;

pub struct Cluster {
    pub nodes: Rc<Nodes>,
    /// Ends with the handle.
    _keeper: JoinSet<()>,
}

impl Cluster {
    pub fn open(seeds: Vec<Addr>, context: LaneContext) -> Cluster {
        let nodes = Rc::new(Nodes::new(seeds, context));
        let restarts = nodes.context.metrics.store_task_restarts.clone();
        let (kept, mut keeper) = (nodes.clone(), JoinSet::new());
        keeper.spawn_local(revive(restarts, move || kept.clone().keep()));
        Cluster { nodes, _keeper: keeper }
    }

    /// Waits until the map and every master, or all seeds in vain, have been tried once.
    pub async fn first_attempt(&self) {
        self.nodes.health.first_attempt().await;
        let nodes: Vec<Rc<ClusterNode>> = self.nodes.map.borrow().nodes.values().cloned().collect();
        join_all(nodes.iter().map(|node| node.lane.first_attempt())).await;
    }

    pub async fn ask(&self, op: Op, checks: &Shares) -> Result<Decision, ErrorKind> {
        if matches!(op, Op::Adjust | Op::Reset) {
            let answers = self.change(op, checks).await.into_iter().collect::<Result<Vec<Answer>, ErrorKind>>()?;
            return Ok(Decision { admitted: true, answers });
        }
        if let Some(kind) = self.nodes.health.down() {
            return Err(kind);
        }
        let until = Instant::now() + self.nodes.context.deadline;
        let first = slot_of(checks);
        if checks.iter().all(|check| slot::slot(&check.key) == first) {
            match self.nodes.ask(op, checks, until).await {
                Ok(decision) => return Ok(decision),
                Err(LaneFault::Failed(kind)) => return Err(kind),
                Err(LaneFault::Elsewhere(_)) => {}
            }
        }
        // It goes on without the client: what was charged in one slot must not stay alone.
        let task = spread::run(self.nodes.clone(), op, checks.clone(), until);
        let decided = timeout_at(until, task).await;
        decided.unwrap_or(Err(ErrorKind::Timeout))
    }

    /// Changes do not depend on each other: each slot has its own call, all of them leave at once,
    /// and one that fails holds none of the others back.
    pub async fn change(&self, op: Op, checks: &Shares) -> Vec<Result<Answer, ErrorKind>> {
        if let Some(kind) = self.nodes.health.down() {
            return vec![Err(kind); checks.len()];
        }
        let until = Instant::now() + self.nodes.context.deadline;
        let mut parts = BTreeMap::<usize, Vec<usize>>::new();
        for (i, check) in checks.iter().enumerate() {
            parts.entry(slot::slot(&check.key)).or_default().push(i);
        }
        let changes = parts.into_values().map(async |part| (self.change_part(op, checks, &part, until).await, part));
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

    /// The checks `part`, of one slot.
    async fn change_part(
        &self,
        op: Op,
        checks: &Shares,
        part: &[usize],
        until: Instant,
    ) -> Result<Vec<Answer>, ErrorKind> {
        let outcome = self.nodes.ask(op, &Rc::new(part.iter().map(|i| checks[*i].clone()).collect()), until).await;
        if let (Err(LaneFault::Elsewhere(_)), true) = (&outcome, part.len() > 1) {
            // Keys that are on their way are asked for one by one.
            let mut answers = Vec::with_capacity(part.len());
            for i in part {
                let alone = self.nodes.ask(op, &Rc::new(vec![checks[*i].clone()]), until).await;
                answers.extend(alone.map_err(LaneFault::kind)?.answers);
            }
            return Ok(answers);
        }
        Ok(outcome.map_err(LaneFault::kind)?.answers)
    }
}
