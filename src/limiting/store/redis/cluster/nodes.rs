//! The nodes of a Redis Cluster: sends decisions to the node of a slot, follows redirections, and keeps the slot map up
//! to date.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use rand::seq::IndexedRandom;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::limiting::decision::{Check, Decision, ErrorKind, Op, SharedChecks};
use crate::limiting::store::address::ServerAddr;
use crate::limiting::store::redis::cluster::slot_map::{ClusterNode, SlotMap};
use crate::limiting::store::redis::codec;
use crate::limiting::store::redis::codec::ClusterRedirect;
use crate::limiting::store::redis::connection::dial::send_command;
use crate::limiting::store::redis::connection::health::ServerHealth;
use crate::limiting::store::redis::pipeline::lane::LaneContext;
use crate::limiting::store::redis::pipeline::waiting::{LaneError, SendMode};
use crate::limiting::store::redis::slot::{parse_ranges, parse_redirect_node, slot_of};

/// Time between two updates of the slot map while no problem is known.
const REFRESH: Duration = Duration::from_secs(2);
/// First pause between two updates while there is a problem; short, so that a failover is noticed soon.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// Longest pause between two updates while there is a problem.
const RETRY_MAX: Duration = Duration::from_millis(400);
/// Longest time for one node to return the slot map, including the connection.
const MAP_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before a decision on keys that are migrating is sent again.
const MIGRATION_PAUSE: Duration = Duration::from_millis(2);
/// Maximum number of redirections that are followed for one decision. A redirection means that nothing has been
/// charged.
const HOPS_MAX: usize = 16;
/// Maximum number of lanes, even if redirections name more nodes.
const NODES_MAX: usize = 1000;

/// The known nodes of a cluster.
pub struct Nodes {
    pub context: LaneContext,
    pub recent_refusals: RecentRefusals,
    seeds: Vec<ServerAddr>,
    pub map: RefCell<SlotMap>,
    /// Notified when a redirection or an error suggests that the slot map is outdated.
    map_outdated: Notify,
    pub health: ServerHealth,
}

impl Nodes {
    pub fn new(seeds: Vec<ServerAddr>, context: LaneContext) -> Nodes {
        Nodes {
            health: ServerHealth::new(&context.metrics),
            context,
            recent_refusals: RecentRefusals::default(),
            seeds,
            map: RefCell::default(),
            map_outdated: Notify::new(),
        }
    }

    /// Sends `checks`, which share a slot, to the node of that slot. `Elsewhere` means that the slot is migrating and
    /// its keys are on two nodes.
    pub async fn run(&self, op: Op, checks: &SharedChecks, until: Instant) -> Result<Decision, LaneError> {
        let (slot, several) = (slot_of(checks), checks.len() > 1);
        let ask = async |node: &ClusterNode, way| self.run_on_node(node, op, checks, way).await;
        let node = self.owner_of(slot)?;
        match ask(&node, SendMode::Shared).await {
            Err(LaneError::Redirected(redirect)) => {
                timeout_at(until, self.follow_redirects(slot, several, node, redirect, ask))
                    .await
                    .unwrap_or(Err(LaneError::Failed(ErrorKind::Timeout)))
            }
            outcome => outcome,
        }
    }

    /// Sends a command for one key to the node of its `slot`.
    pub async fn send(&self, slot: usize, cmd: &Cmd) -> RedisResult<Value> {
        let send = async |node: &ClusterNode, way| self.send_node(node, cmd, way).await;
        let outcome = match self.owner_of(slot) {
            Ok(node) => match send(&node, SendMode::Shared).await {
                Err(LaneError::Redirected(redirect)) => self.follow_redirects(slot, false, node, redirect, send).await,
                outcome => outcome,
            },
            Err(fault) => Err(fault),
        };
        outcome.unwrap_or_else(|_| Err(codec::not_connected()))
    }

    /// Sends a command to one node. Only redirections are returned as an outer error.
    async fn send_node(&self, node: &ClusterNode, cmd: &Cmd, way: SendMode) -> Result<RedisResult<Value>, LaneError> {
        let outcome = node.lane.send(cmd, way == SendMode::Asking).await;
        let Err(error) = &outcome else { return Ok(outcome) };
        let redirect = codec::redirect_of(error);
        if matches!(redirect, Some(ClusterRedirect::Moved(_))) || codec::error_kind(error) == ErrorKind::Disconnected {
            self.map_outdated.notify_one();
        }
        redirect.map_or(Ok(outcome), |redirect| Err(LaneError::Redirected(redirect)))
    }

    async fn run_on_node(
        &self,
        node: &ClusterNode,
        op: Op,
        checks: &SharedChecks,
        way: SendMode,
    ) -> Result<Decision, LaneError> {
        let outcome = match node.lane.queue(op, checks, way, Instant::now()) {
            Ok(pending) => pending.await,
            Err(fault) => Err(fault),
        };
        let doubtful = matches!(
            outcome,
            Err(LaneError::Failed(
                ErrorKind::Disconnected | ErrorKind::Lost | ErrorKind::Readonly | ErrorKind::Timeout
            ) | LaneError::Redirected(ClusterRedirect::Moved(_)))
        );
        if doubtful {
            self.map_outdated.notify_one();
        }
        outcome
    }

    /// Sends again to the node of each redirection. `several` says that there are several keys, which may be on two
    /// nodes while the slot migrates.
    async fn follow_redirects<T>(
        &self,
        slot: usize,
        several: bool,
        mut node: Rc<ClusterNode>,
        mut redirect: ClusterRedirect,
        ask: impl AsyncFn(&ClusterNode, SendMode) -> Result<T, LaneError>,
    ) -> Result<T, LaneError> {
        let mut way = SendMode::Shared;
        for _ in 0..HOPS_MAX {
            (node, way) = match &redirect {
                ClusterRedirect::Moved(name) => {
                    let owner = self.redirected_node(name, &node)?;
                    self.set_owner(slot, &owner);
                    (owner, SendMode::Shared)
                }
                ClusterRedirect::Ask(name) => (self.redirected_node(name, &node)?, SendMode::Asking),
                ClusterRedirect::TryAgain if way != SendMode::Shared && several => {
                    return Err(LaneError::Redirected(ClusterRedirect::TryAgain));
                }
                ClusterRedirect::TryAgain => {
                    sleep(MIGRATION_PAUSE).await;
                    (self.owner_of(slot)?, SendMode::Alone)
                }
            };
            match ask(&node, way).await {
                Err(LaneError::Redirected(next)) => redirect = next,
                outcome => return outcome,
            }
        }
        Err(LaneError::Failed(ErrorKind::Reply))
    }

    fn owner_of(&self, slot: usize) -> Result<Rc<ClusterNode>, LaneError> {
        let map = self.map.borrow();
        map.slots.get(slot).cloned().flatten().ok_or(LaneError::Failed(ErrorKind::Readonly))
    }

    fn redirected_node(&self, name: &str, by: &ClusterNode) -> Result<Rc<ClusterNode>, LaneError> {
        let addr = parse_redirect_node(name, &by.addr).ok_or(LaneError::Failed(ErrorKind::Reply))?;
        let mut map = self.map.borrow_mut();
        if map.nodes.len() >= NODES_MAX && !map.nodes.contains_key(&addr) {
            return Err(LaneError::Failed(ErrorKind::Reply));
        }
        Ok(map.node(addr, &self.context))
    }

    fn set_owner(&self, slot: usize, owner: &Rc<ClusterNode>) {
        if let Some(entry) = self.map.borrow_mut().slots.get_mut(slot) {
            *entry = Some(owner.clone());
        }
    }

    /// Keeps the slot map up to date. Never returns.
    pub async fn keep_map_updated(self: Rc<Self>) {
        let (mut map_source, mut pause) = (None, RETRY_MIN);
        // Each seed is tried once before the cluster counts as unavailable.
        let mut seeds = self.seeds.iter();
        loop {
            let next = seeds.next();
            let outcome = timeout(MAP_TIMEOUT, self.refresh_map(&mut map_source, next)).await;
            match outcome.unwrap_or_else(|_| Err(codec::not_connected())) {
                Ok(()) => self.health.set_up(),
                Err(error) => {
                    map_source = None;
                    let kind = codec::error_kind(&error);
                    // A known map remains in use, and its lanes report their own errors.
                    let unknown = self.map.borrow().slots.is_empty() && seeds.len() == 0;
                    if unknown || kind == ErrorKind::Denied {
                        self.health.set_down(kind, &error.to_string());
                    }
                }
            }
            if map_source.is_some() && self.map.borrow().is_healthy() {
                pause = RETRY_MIN;
                if timeout(REFRESH, self.map_outdated.notified()).await.is_err() {
                    continue;
                }
            } else {
                // The next update comes from another node, as this one may be cut off from the rest.
                map_source = None;
            }
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn refresh_map(
        &self,
        map_source: &mut Option<(ServerAddr, MultiplexedConnection)>,
        next: Option<&ServerAddr>,
    ) -> RedisResult<()> {
        let (addr, mut pipe) = match map_source.take() {
            Some(map_source) => map_source,
            None => {
                let addr = next.cloned().unwrap_or_else(|| self.any_node());
                let pipe = self.context.dialer.dial(&addr).await?;
                (addr, pipe)
            }
        };
        let reply = send_command(&mut pipe, redis::cmd("CLUSTER").arg("SLOTS")).await?;
        let ranges = parse_ranges(&reply, &addr).filter(|ranges| !ranges.is_empty());
        let Some(ranges) = ranges else { return Err(unmapped(&reply)) };
        self.map.borrow_mut().replace_ranges(ranges, &self.context);
        *map_source = Some((addr, pipe));
        Ok(())
    }

    fn any_node(&self) -> ServerAddr {
        let map = self.map.borrow();
        // This includes the seeds, because all known nodes may have been replaced.
        let all: Vec<&ServerAddr> = map.known.iter().chain(&self.seeds).collect();
        all.choose(&mut rand::rng()).map_or_else(|| self.seeds[0].clone(), |addr| (*addr).clone())
    }
}

fn unmapped(reply: &Value) -> RedisError {
    let why = match reply {
        Value::Array(_) => "no node of the cluster has any slots",
        _ => "malformed reply to CLUSTER SLOTS",
    };
    RedisError::from((redis::ErrorKind::Client, why))
}

/// Maximum number of limits whose refusals are remembered.
const LIMITS_MAX: usize = 10_000;

/// Order of the recent refusals.
#[derive(Default)]
pub struct RecentRefusals {
    /// Number of refusals so far.
    clock: Cell<u64>,
    /// Number of the last refusal, by the id of the limit.
    last: RefCell<HashMap<u64, u64>>,
}

impl RecentRefusals {
    /// Returns how recently the limit refused: the larger, the more recent; 0 for never.
    pub fn last_refusal(&self, check: &Check) -> u64 {
        self.last.borrow().get(&check.limit.id).copied().unwrap_or(0)
    }

    /// Records a refusal.
    pub fn record_refusal(&self, check: &Check) {
        self.clock.set(self.clock.get() + 1);
        let mut last = self.last.borrow_mut();
        if last.len() >= LIMITS_MAX {
            last.clear();
        }
        last.insert(check.limit.id, self.clock.get());
    }
}
