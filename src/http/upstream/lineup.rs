//! A roster as one worker asks it, and what the balancer sees of it for one request. Kept by `servers`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::asked::AskedServer;
use super::course::Course;
use super::pool::{PoolCap, Pools};
use crate::upstream::balance::{Balancer, Candidates};
use crate::upstream::caps::{CapRule, UpstreamLoad};
use crate::upstream::roster::{Member, UpstreamState};

/// A roster as this worker asks it.
pub(super) struct Lineup {
    pub(super) version: u64,
    /// Those of a weight.
    pub(super) servers: Vec<Rc<AskedServer>>,
    pub(super) balancer: Balancer,
}

impl Lineup {
    pub(super) fn new(upstream: &Arc<UpstreamState>, pools: &Pools, worker: usize) -> Lineup {
        let version = upstream.version();
        let roster = upstream.roster();
        let with_weight = || roster.iter().filter(|member| member.weight > 0);
        let cap = |member: &Member| {
            let (state, load) = (member.state.clone(), upstream.load().clone());
            let rule = member.caps.filter(CapRule::caps_connections);
            rule.map(|rule| PoolCap { upstream: upstream.settings.name.clone(), rule, state, load, worker })
        };
        let asked = |member: &Member| {
            Rc::new(AskedServer {
                upstream: upstream.clone(),
                state: member.state.clone(),
                caps: member.caps,
                pool: pools.of(&member.endpoint, cap(member)),
                pools: pools.clone(),
                untold: RefCell::default(),
            })
        };
        let names = with_weight().map(|member| (member.share, member.endpoint.label()));
        Lineup {
            version,
            servers: with_weight().map(asked).collect(),
            balancer: Balancer::new(upstream.settings.balance, upstream.settings.spread_above, names),
        }
    }
}

/// What the balancer sees for one request.
#[derive(Clone, Copy)]
pub(super) struct LineupAt<'l> {
    pub(super) servers: &'l [Rc<AskedServer>],
    pub(super) course: &'l Course,
    pub(super) now_ms: u64,
    pub(super) slow_start_ms: u64,
    /// Of those that are usable alone.
    pub(super) usable: bool,
    /// Of those that have room alone.
    pub(super) room: Option<&'l UpstreamLoad>,
}

impl Candidates for LineupAt<'_> {
    fn may(&self, server: usize) -> bool {
        let server = &self.servers[server];
        (!self.usable || server.state.is_usable(self.now_ms))
            && !self.course.has_tried(server)
            && self.room.is_none_or(|load| server.has_room(load, &self.course.need))
    }

    fn load(&self, server: usize) -> u32 {
        self.servers[server].load()
    }

    fn ramp(&self, server: usize) -> u32 {
        self.servers[server].state.ramp(self.slow_start_ms, self.now_ms)
    }
}
