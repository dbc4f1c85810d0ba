//! Redis Cluster: a lane to each master, the map of slots, and the task that keeps the map. A
//! decision goes to the node of its slot; one over several slots is made by `spread.rs`.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use rand::seq::IndexedRandom;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::address::Addr;
use super::dial::send;
use super::health::Health;
use super::lane::{Context, Fault, Lane, Way};
use super::sentinel::Target;
use super::slot::{self, Range, SLOTS, slot_of};
use super::wire::Redirect;
use super::{Shares, spread, wire};
use crate::limit::decision::{Decision, ErrorKind, Op};

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

pub struct Cluster {
    pub nodes: Rc<Nodes>,
    keeper: AbortHandle,
}

/// What the handle and its keeper share.
pub struct Nodes {
    pub context: Context,
    pub likely: spread::Likely,
    seeds: Vec<Addr>,
    map: RefCell<Map>,
    /// Somebody was sent elsewhere or got no answer.
    doubt: Notify,
    health: Health,
}

#[derive(Default)]
struct Map {
    /// The owner of each slot; empty until the map is known.
    slots: Vec<Option<Rc<Node>>>,
    nodes: HashMap<Addr, Rc<Node>>,
    /// Masters and replicas: whom to ask for the map.
    known: Vec<Addr>,
}

struct Node {
    addr: Addr,
    lane: Lane,
}

impl Cluster {
    pub fn open(seeds: Vec<Addr>, context: Context) -> Cluster {
        let nodes = Rc::new(Nodes {
            health: Health::new(&context.metrics),
            context,
            likely: spread::Likely::default(),
            seeds,
            map: RefCell::default(),
            doubt: Notify::new(),
        });
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

impl Nodes {
    /// Asks the node that has the slot of `checks`, which all have the same. `Elsewhere` means that
    /// their keys are on their way at this moment, some here and some there.
    pub async fn ask(&self, op: Op, checks: &Shares, until: Instant) -> Result<Decision, Fault> {
        let (slot, several) = (slot_of(checks), checks.len() > 1);
        let ask = async |node: &Node, way| self.ask_node(node, op, checks, way).await;
        let node = self.owner(slot)?;
        match ask(&node, Way::Shared).await {
            Err(Fault::Elsewhere(redirect)) => timeout_at(until, self.follow(slot, several, node, redirect, ask))
                .await
                .unwrap_or(Err(Fault::Failed(ErrorKind::Timeout))),
            outcome => outcome,
        }
    }

    /// Sends a command about one key, of `slot`, to the node that has it.
    pub async fn send(&self, slot: usize, cmd: &Cmd) -> RedisResult<Value> {
        let send = async |node: &Node, way| self.send_node(node, cmd, way).await;
        let outcome = match self.owner(slot) {
            Ok(node) => match send(&node, Way::Shared).await {
                Err(Fault::Elsewhere(redirect)) => self.follow(slot, false, node, redirect, send).await,
                outcome => outcome,
            },
            Err(fault) => Err(fault),
        };
        outcome.unwrap_or_else(|_| Err(wire::not_connected()))
    }

    /// An error that is no redirection is the answer.
    async fn send_node(&self, node: &Node, cmd: &Cmd, way: Way) -> Result<RedisResult<Value>, Fault> {
        let outcome = node.lane.send(cmd, way == Way::Asking).await;
        let Err(error) = &outcome else { return Ok(outcome) };
        let redirect = wire::redirect(error);
        if matches!(redirect, Some(Redirect::Moved(_))) || wire::error_kind(error) == ErrorKind::Disconnected {
            self.doubt.notify_one();
        }
        redirect.map_or(Ok(outcome), |redirect| Err(Fault::Elsewhere(redirect)))
    }

    async fn ask_node(&self, node: &Node, op: Op, checks: &Shares, way: Way) -> Result<Decision, Fault> {
        let outcome = node.lane.ask(op, checks, way).await;
        let doubtful = matches!(
            outcome,
            Err(Fault::Failed(ErrorKind::Disconnected | ErrorKind::Readonly | ErrorKind::Timeout)
                | Fault::Elsewhere(Redirect::Moved(_)))
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
        mut node: Rc<Node>,
        mut redirect: Redirect,
        ask: impl AsyncFn(&Node, Way) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
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
                    return Err(Fault::Elsewhere(Redirect::TryAgain));
                }
                Redirect::TryAgain => {
                    sleep(TRY_AGAIN).await;
                    (self.owner(slot)?, Way::Alone)
                }
            };
            match ask(&node, way).await {
                Err(Fault::Elsewhere(next)) => redirect = next,
                outcome => return outcome,
            }
        }
        Err(Fault::Failed(ErrorKind::Reply))
    }

    fn owner(&self, slot: usize) -> Result<Rc<Node>, Fault> {
        let map = self.map.borrow();
        map.slots.get(slot).cloned().flatten().ok_or(Fault::Failed(ErrorKind::Readonly))
    }

    fn redirected(&self, name: &str, by: &Node) -> Result<Rc<Node>, Fault> {
        let addr = slot::redirected(name, &by.addr).ok_or(Fault::Failed(ErrorKind::Reply))?;
        let mut map = self.map.borrow_mut();
        if map.nodes.len() >= NODES_MAX && !map.nodes.contains_key(&addr) {
            return Err(Fault::Failed(ErrorKind::Reply));
        }
        Ok(map.node(addr, &self.context))
    }

    fn learn(&self, slot: usize, owner: &Rc<Node>) {
        if let Some(entry) = self.map.borrow_mut().slots.get_mut(slot) {
            *entry = Some(owner.clone());
        }
    }

    /// Keeps the map, asking one node after another.
    async fn keep(self: Rc<Self>) {
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

impl Map {
    fn node(&mut self, addr: Addr, context: &Context) -> Rc<Node> {
        let open = || {
            let lane = Lane::open(Target::Fixed(addr.clone()), true, context);
            Rc::new(Node { addr: addr.clone(), lane })
        };
        self.nodes.entry(addr.clone()).or_insert_with(open).clone()
    }

    fn replace(&mut self, ranges: Vec<Range>, context: &Context) {
        self.slots = vec![None; SLOTS];
        let (mut owners, mut known) = (HashSet::new(), HashSet::new());
        for range in ranges {
            let node = self.node(range.master.clone(), context);
            self.slots[range.first..=range.last].fill(Some(node));
            known.insert(range.master.clone());
            known.extend(range.replicas);
            owners.insert(range.master);
        }
        // A node without slots may be about to get its first: its lane stays while it works.
        self.nodes.retain(|addr, node| owners.contains(addr) || !node.lane.is_down());
        self.known = known.into_iter().collect();
    }

    fn is_well(&self) -> bool {
        self.slots.iter().all(Option::is_some) && self.nodes.values().all(|node| !node.lane.is_down())
    }
}
