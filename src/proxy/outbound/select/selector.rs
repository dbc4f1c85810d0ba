//! Selects the server of each attempt. There is one per upstream and worker, with the worker's state of each server.
//! Used by `acquire` (any usable server) and `reserve` (a server below its limits).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::ends::End;
use crate::proxy::outbound::pool::PoolCap;
use crate::proxy::outbound::pools::Pools;
use crate::proxy::outbound::select::endpoint::WorkerEndpoint;
use crate::proxy::outbound::select::retry_state::RetryState;
use crate::upstream::balance::{Balancer, Candidates};
use crate::upstream::caps::{CapRule, UpstreamLoad};
use crate::upstream::roster::{Member, UpstreamState};

/// Selects servers of one upstream in one worker.
pub struct Selector {
    upstream: Arc<UpstreamState>,
    pools: Pools,
    worker: usize,
    endpoints: RefCell<Rc<WorkerEndpoints>>,
    /// Spreads load; not for secrets.
    random: RefCell<SmallRng>,
}

impl Selector {
    pub fn new(upstream: &Arc<UpstreamState>, pools: &Pools, worker: usize) -> Selector {
        Selector {
            endpoints: RefCell::new(Rc::new(WorkerEndpoints::new(upstream, pools, worker))),
            upstream: upstream.clone(),
            pools: pools.clone(),
            worker,
            random: RefCell::new(SmallRng::from_rng(&mut rand::rng())),
        }
    }

    /// Returns the current servers. Rebuilds the list if the upstream has changed, and drops removed servers with
    /// their connections.
    pub fn endpoints(&self) -> Rc<WorkerEndpoints> {
        let mut endpoints = self.endpoints.borrow_mut();
        if endpoints.version != self.upstream.version() {
            *endpoints = Rc::new(WorkerEndpoints::new(&self.upstream, &self.pools, self.worker));
        }
        endpoints.clone()
    }

    /// Selects the server for the next attempt. If no server is usable, selects any (fail open): a wrong health check
    /// or ejection must not stop service.
    ///
    /// # Errors
    /// The request has failed on every server, or no hostname of the upstream has an address.
    pub fn select(&self, state: &RetryState) -> Result<Rc<WorkerEndpoint>, End> {
        let endpoints = self.endpoints();
        if let ([only], true) = (endpoints.servers.as_slice(), state.tried.is_empty()) {
            return Ok(only.clone());
        }
        if endpoints.servers.is_empty() {
            return Err(End::ConnectUnknownName);
        }
        let [usable, all] = self.candidates(&endpoints, state);
        let pick = |candidates| endpoints.balancer.select(|| self.next_random(), state.hash, candidates);
        let index = pick(&usable).or_else(|| pick(&all)).ok_or(End::ConnectRefused)?;
        Ok(endpoints.servers[index].clone())
    }

    /// Selects a server that is below its limits. Returns `None` if all of them are at their limits: the request then
    /// waits for a usable one rather than going to an unusable one.
    ///
    /// # Errors
    /// Like [`Selector::select`].
    pub fn select_below_limits(
        &self,
        load: &UpstreamLoad,
        state: &RetryState,
    ) -> Result<Option<Rc<WorkerEndpoint>>, End> {
        let endpoints = self.endpoints();
        if endpoints.servers.is_empty() {
            return Err(End::ConnectUnknownName);
        }
        let servers = || 0..endpoints.servers.len();
        let mut groups = self.candidates(&endpoints, state).into_iter();
        let group =
            groups.find(|group| servers().any(|server| group.is_permitted(server))).ok_or(End::ConnectRefused)?;
        let free = RequestCandidates { below_limits: Some(load), ..group };
        let index = endpoints.balancer.select(|| self.next_random(), state.hash, &free);
        Ok(index.map(|index| endpoints.servers[index].clone()))
    }

    /// Returns the usable servers, and all servers.
    fn candidates<'l>(&self, endpoints: &'l WorkerEndpoints, state: &'l RetryState) -> [RequestCandidates<'l>; 2] {
        let usable = RequestCandidates {
            servers: &endpoints.servers,
            state,
            now_ms: self.pools.now_ms(),
            slow_start_ms: self.upstream.settings.slow_start_ms,
            usable_only: true,
            below_limits: None,
        };
        [usable, RequestCandidates { usable_only: false, ..usable }]
    }

    fn next_random(&self) -> u64 {
        self.random.borrow_mut().random()
    }
}

/// The servers of one upstream in one worker, at one version of the upstream's list.
pub struct WorkerEndpoints {
    version: u64,
    /// The servers with a weight above 0.
    pub servers: Vec<Rc<WorkerEndpoint>>,
    balancer: Balancer,
}

impl WorkerEndpoints {
    fn new(upstream: &Arc<UpstreamState>, pools: &Pools, worker: usize) -> WorkerEndpoints {
        let version = upstream.version();
        let roster = upstream.roster();
        let with_weight = || roster.iter().filter(|member| member.weight > 0);
        let cap = |member: &Member| {
            let (state, load) = (member.state.clone(), upstream.load().clone());
            let rule = member.caps.filter(CapRule::caps_connections);
            rule.map(|rule| PoolCap { upstream: upstream.settings.name.clone(), rule, state, load, worker })
        };
        let endpoint = |member: &Member| {
            Rc::new(WorkerEndpoint {
                upstream: upstream.clone(),
                state: member.state.clone(),
                caps: member.caps,
                pool: pools.get_or_create(&member.endpoint, cap(member)),
                pools: pools.clone(),
                unreported: RefCell::default(),
            })
        };
        let names = with_weight().map(|member| (member.share, member.endpoint.label()));
        WorkerEndpoints {
            version,
            servers: with_weight().map(endpoint).collect(),
            balancer: Balancer::new(upstream.settings.balance, upstream.settings.spread_above, names),
        }
    }
}

/// The servers as the balancer sees them for one request.
#[derive(Clone, Copy)]
struct RequestCandidates<'l> {
    servers: &'l [Rc<WorkerEndpoint>],
    state: &'l RetryState,
    now_ms: u64,
    slow_start_ms: u64,
    /// Leaves out unhealthy and ejected servers.
    usable_only: bool,
    /// Leaves out servers at their limits, which depend on the load of the upstream.
    below_limits: Option<&'l UpstreamLoad>,
}

impl Candidates for RequestCandidates<'_> {
    fn is_permitted(&self, server: usize) -> bool {
        let server = &self.servers[server];
        (!self.usable_only || server.state.is_usable(self.now_ms))
            && !self.state.has_tried(server)
            && self.below_limits.is_none_or(|load| server.is_below_limits(load, &self.state.need))
    }

    fn in_flight(&self, server: usize) -> u32 {
        self.servers[server].in_flight()
    }

    fn ramp(&self, server: usize) -> u32 {
        self.servers[server].state.ramp(self.slow_start_ms, self.now_ms)
    }
}
