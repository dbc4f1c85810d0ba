//! The nodes of a Redis Cluster: asks the one that has a slot, follows redirections, and keeps the
//! map. Shared by the handle, `cluster.rs`, and decisions over several slots, `spread.rs`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use rand::seq::IndexedRandom;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::address::Addr;
use super::dial::send;
use super::health::Health;
use super::lane::LaneContext;
use super::likely::Likely;
use super::map::{ClusterNode, Map};
use super::slot::{self, slot_of};
use super::waiting::{LaneFault, Way};
use super::wire::{self, Redirect};
use crate::limit::decision::{Decision, ErrorKind, Op, Shares};

/// Between two looks at a map that nobody complained about.
const REFRESH: Duration = Duration::from_secs(2);
/// Between two looks while something is wrong, at first and after a while, so that a failover is
/// soon noticed.
const SOON_MIN: Duration = Duration::from_millis(50);
const SOON_MAX: Duration = Duration::from_millis(400);
/// For one node to say what the map is, connecting included.
const GUIDE_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before a decision is sent again whose keys are on their way.
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// Redirections followed for one decision; each is an explicit word that nothing has happened.
const HOPS_MAX: usize = 16;
/// Lanes kept, whatever redirections name.
const NODES_MAX: usize = 1000;

pub struct Nodes {
    pub context: LaneContext,
    pub likely: Likely,
    seeds: Vec<Addr>,
    pub map: RefCell<Map>,
    /// Somebody was sent elsewhere or got no answer.
    doubt: Notify,
    pub health: Health,
}

impl Nodes {
    pub fn new(seeds: Vec<Addr>, context: LaneContext) -> Nodes {
        Nodes {
            health: Health::new(&context.metrics),
            context,
            likely: Likely::default(),
            seeds,
            map: RefCell::default(),
            doubt: Notify::new(),
        }
    }

    /// Asks the node that has the slot of `checks`, which all have the same. `Elsewhere` means that
    /// their keys are on their way at this moment, some here and some there.
    pub async fn ask(&self, op: Op, checks: &Shares, until: Instant) -> Result<Decision, LaneFault> {
        let (slot, several) = (slot_of(checks), checks.len() > 1);
        let ask = async |node: &ClusterNode, way| self.ask_node(node, op, checks, way).await;
        let node = self.owner(slot)?;
        match ask(&node, Way::Shared).await {
            Err(LaneFault::Elsewhere(redirect)) => timeout_at(until, self.follow(slot, several, node, redirect, ask))
                .await
                .unwrap_or(Err(LaneFault::Failed(ErrorKind::Timeout))),
            outcome => outcome,
        }
    }

    /// Sends a command about one key, of `slot`, to the node that has it.
    pub async fn send(&self, slot: usize, cmd: &Cmd) -> RedisResult<Value> {
        let send = async |node: &ClusterNode, way| self.send_node(node, cmd, way).await;
        let outcome = match self.owner(slot) {
            Ok(node) => match send(&node, Way::Shared).await {
                Err(LaneFault::Elsewhere(redirect)) => self.follow(slot, false, node, redirect, send).await,
                outcome => outcome,
            },
            Err(fault) => Err(fault),
        };
        outcome.unwrap_or_else(|_| Err(wire::not_connected()))
    }

    /// An error that is no redirection is the answer.
    async fn send_node(&self, node: &ClusterNode, cmd: &Cmd, way: Way) -> Result<RedisResult<Value>, LaneFault> {
        let outcome = node.lane.send(cmd, way == Way::Asking).await;
        let Err(error) = &outcome else { return Ok(outcome) };
        let redirect = wire::redirect(error);
        if matches!(redirect, Some(Redirect::Moved(_))) || wire::error_kind(error) == ErrorKind::Disconnected {
            self.doubt.notify_one();
        }
        redirect.map_or(Ok(outcome), |redirect| Err(LaneFault::Elsewhere(redirect)))
    }

    async fn ask_node(&self, node: &ClusterNode, op: Op, checks: &Shares, way: Way) -> Result<Decision, LaneFault> {
        let outcome = node.lane.ask(op, checks, way).await;
        let doubtful = matches!(
            outcome,
            Err(LaneFault::Failed(
                ErrorKind::Disconnected | ErrorKind::Lost | ErrorKind::Readonly | ErrorKind::Timeout
            ) | LaneFault::Elsewhere(Redirect::Moved(_)))
        );
        if doubtful {
            self.doubt.notify_one();
        }
        outcome
    }

    /// Asks again as each redirection says; `several` keys may be apart while they are on their way.
    async fn follow<T>(
        &self,
        slot: usize,
        several: bool,
        mut node: Rc<ClusterNode>,
        mut redirect: Redirect,
        ask: impl AsyncFn(&ClusterNode, Way) -> Result<T, LaneFault>,
    ) -> Result<T, LaneFault> {
        let mut way = Way::Shared;
        for _ in 0..HOPS_MAX {
            (node, way) = match &redirect {
                Redirect::Moved(name) => {
                    let owner = self.redirected(name, &node)?;
                    self.learn(slot, &owner);
                    (owner, Way::Shared)
                }
                Redirect::Ask(name) => (self.redirected(name, &node)?, Way::Asking),
                Redirect::TryAgain if way != Way::Shared && several => {
                    return Err(LaneFault::Elsewhere(Redirect::TryAgain));
                }
                Redirect::TryAgain => {
                    sleep(TRY_AGAIN).await;
                    (self.owner(slot)?, Way::Alone)
                }
            };
            match ask(&node, way).await {
                Err(LaneFault::Elsewhere(next)) => redirect = next,
                outcome => return outcome,
            }
        }
        Err(LaneFault::Failed(ErrorKind::Reply))
    }

    fn owner(&self, slot: usize) -> Result<Rc<ClusterNode>, LaneFault> {
        let map = self.map.borrow();
        map.slots.get(slot).cloned().flatten().ok_or(LaneFault::Failed(ErrorKind::Readonly))
    }

    fn redirected(&self, name: &str, by: &ClusterNode) -> Result<Rc<ClusterNode>, LaneFault> {
        let addr = slot::redirected(name, &by.addr).ok_or(LaneFault::Failed(ErrorKind::Reply))?;
        let mut map = self.map.borrow_mut();
        if map.nodes.len() >= NODES_MAX && !map.nodes.contains_key(&addr) {
            return Err(LaneFault::Failed(ErrorKind::Reply));
        }
        Ok(map.node(addr, &self.context))
    }

    fn learn(&self, slot: usize, owner: &Rc<ClusterNode>) {
        if let Some(entry) = self.map.borrow_mut().slots.get_mut(slot) {
            *entry = Some(owner.clone());
        }
    }

    /// Keeps the map, asking one node after another.
    pub async fn keep(self: Rc<Self>) {
        let (mut guide, mut pause) = (None, SOON_MIN);
        // Each is asked once before the cluster counts as away.
        let mut untried = self.seeds.iter();
        loop {
            let next = untried.next();
            let outcome = timeout(GUIDE_TIMEOUT, self.refresh(&mut guide, next)).await;
            match outcome.unwrap_or_else(|_| Err(wire::not_connected())) {
                Ok(()) => self.health.set_up(),
                Err(error) => {
                    guide = None;
                    let kind = wire::error_kind(&error);
                    // A map at hand still serves: its lanes say what they can.
                    let unknown = self.map.borrow().slots.is_empty() && untried.len() == 0;
                    if unknown || kind == ErrorKind::Denied {
                        self.health.set_down(kind, &error.to_string());
                    }
                }
            }
            if guide.is_some() && self.map.borrow().is_well() {
                pause = SOON_MIN;
                if timeout(REFRESH, self.doubt.notified()).await.is_err() {
                    continue;
                }
            } else {
                // The next look is by other eyes: this node may be cut off from the rest.
                guide = None;
            }
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(SOON_MAX);
        }
    }

    async fn refresh(&self, guide: &mut Option<(Addr, MultiplexedConnection)>, next: Option<&Addr>) -> RedisResult<()> {
        let (addr, mut pipe) = match guide.take() {
            Some(guide) => guide,
            None => {
                let addr = next.cloned().unwrap_or_else(|| self.any_node());
                let pipe = self.context.dialer.dial(&addr).await?;
                (addr, pipe)
            }
        };
        let reply = send(&mut pipe, redis::cmd("CLUSTER").arg("SLOTS")).await?;
        let ranges = slot::ranges(&reply, &addr).filter(|ranges| !ranges.is_empty());
        let Some(ranges) = ranges else { return Err(unmapped(&reply)) };
        self.map.borrow_mut().replace(ranges, &self.context);
        *guide = Some((addr, pipe));
        Ok(())
    }

    fn any_node(&self) -> Addr {
        let map = self.map.borrow();
        // The seeds too: all nodes that were known may have been replaced.
        let all: Vec<&Addr> = map.known.iter().chain(&self.seeds).collect();
        all.choose(&mut rand::rng()).map_or_else(|| self.seeds[0].clone(), |addr| (*addr).clone())
    }
}

fn unmapped(reply: &Value) -> RedisError {
    let why = match reply {
        Value::Array(_) => "no node of the cluster has any slot",
        _ => "the reply to CLUSTER SLOTS has an unknown form",
    };
    RedisError::from((redis::ErrorKind::Client, why))
}
