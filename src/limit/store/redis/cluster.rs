//! Redis Cluster: a decision goes to the node of its slot; one over several slots is made by
//! `spread.rs`. A task keeps the map of the slots.

use std::rc::Rc;

use futures_util::future::join_all;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::address::Addr;
use super::lane::{Context, Fault, Shares};
use super::map::Node;
use super::nodes::Nodes;
use super::slot::{self, slot_of};
use super::spread;
use crate::limit::decision::{Decision, ErrorKind, Op};

pub struct Cluster {
    pub nodes: Rc<Nodes>,
    keeper: AbortHandle,
}

impl Cluster {
    pub fn open(seeds: Vec<Addr>, context: Context) -> Cluster {
        let nodes = Rc::new(Nodes::new(seeds, context));
        let keeper = tokio::task::spawn_local(nodes.clone().keep()).abort_handle();
        Cluster { nodes, keeper }
    }

    /// Waits until the map and every master, or all seeds in vain, have been tried once.
    pub async fn settled(&self) {
        self.nodes.health.settled().await;
        let nodes: Vec<Rc<Node>> = self.nodes.map.borrow().nodes.values().cloned().collect();
        join_all(nodes.iter().map(|node| node.lane.settled())).await;
    }

    pub async fn ask(&self, op: Op, checks: &Shares) -> Result<Decision, ErrorKind> {
        if let Some(kind) = self.nodes.health.down() {
            return Err(kind);
        }
        let first = slot_of(checks);
        let until = Instant::now() + self.nodes.context.deadline;
        if checks.iter().all(|check| slot::slot(&check.key) == first) {
            match self.nodes.ask(op, checks, until).await {
                Ok(decision) => return Ok(decision),
                Err(Fault::Failed(kind)) => return Err(kind),
                Err(Fault::Elsewhere(_)) => {}
            }
        }
        // It goes on without the client: what was charged in one slot must not stay alone.
        let task = spread::run(self.nodes.clone(), op, checks.clone(), until);
        let decided = timeout_at(until, task).await;
        decided.unwrap_or(Err(ErrorKind::Timeout))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}
