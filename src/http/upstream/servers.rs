//! The servers of one upstream as one worker asks them: which is next, and what became of it, told to all
//! workers. Made with each view, used by `forward`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::asked::AskedServer;
use super::connect::ConnectFault;
use super::pool::{PoolCap, Pools, ServerLease};
use super::turn::{Overflow, Turn};
use crate::http::complaints::{UpstreamComplaints, UpstreamTrouble};
use crate::http::context::Common;
use crate::http::deadline::RequestDeadline;
use crate::limit::key::Key;
use crate::metrics::{Counter, Metrics, RetryReason, UpstreamOutcome};
use crate::upstream::balance::{Balancer, Candidates};
use crate::upstream::budget::{RetryBudget, RetryRule};
use crate::upstream::caps::{CapRule, InFlight, UpstreamLoad};
use crate::upstream::introduction::ProxyVersion;
use crate::upstream::roster::{Member, UpstreamState};

/// Servers asked for a connection before a request fails, however seldom it may be sent.
const CONNECT_TRIES: usize = 3;

/// Long enough for all workers to have closed what is idle.
const SHORTAGE: Duration = Duration::from_millis(250);

pub struct Servers {
    pub(super) upstream: Arc<UpstreamState>,
    pools: Pools,
    lineup: RefCell<Rc<Lineup>>,
    pub outcomes: OutcomeCounters,
    pub complaints: Rc<UpstreamComplaints>,
    /// Idle connections kept per server and worker.
    pub(super) max_idle: usize,
    pub(super) worker: usize,
    random: Cell<u64>,
    retry: RetryRule,
    budget: RefCell<RetryBudget>,
}

/// One request's way from server to server.
#[derive(Default)]
pub struct Course {
    /// Those that failed it.
    tried: Vec<Rc<AskedServer>>,
    /// What its connections begin with.
    pub(super) introduction: Option<Rc<[u8]>>,
    hash: Option<u64>,
    /// When it last asked for a connection.
    asked_ms: u64,
    /// Connections that there were before are not asked.
    pub(super) since_ms: Option<u64>,
    /// For a server with room, if it has waited.
    pub(super) waits_until: Option<Instant>,
    /// At the server that it is sent to once more.
    pub(super) turn: Option<Turn>,
}

/// Why a request has no server.
pub enum Unserved {
    /// None accepted a connection: the last one for this.
    Connect(ConnectFault),
    /// None had room.
    Overflow(Overflow),
}

impl From<ConnectFault> for Unserved {
    fn from(fault: ConnectFault) -> Unserved {
        Unserved::Connect(fault)
    }
}

/// A roster as this worker asks it.
pub(super) struct Lineup {
    version: u64,
    /// Those of a weight.
    pub(super) servers: Vec<Rc<AskedServer>>,
    balancer: Balancer,
}

/// Counters of one upstream, by what became of a request sent to it.
pub struct OutcomeCounters {
    /// By `UpstreamOutcome`.
    requests: Vec<Counter>,
    /// By `RetryReason`.
    retries: Vec<Counter>,
    /// Requests that would have been sent once more.
    over_budget: Counter,
}

/// A connection for a request, and whose it is.
pub struct Acquired {
    pub server: Rc<AskedServer>,
    pub connection: ServerLease,
}

impl Servers {
    pub fn new(upstream: &Arc<UpstreamState>, pools: &Pools, common: &Common) -> Servers {
        Servers {
            outcomes: OutcomeCounters::new(&upstream.settings.name, &common.metrics),
            complaints: Rc::new(common.complaints.of(&upstream.settings.name)),
            max_idle: upstream.settings.max_idle.unwrap_or(usize::MAX),
            random: Cell::new(rand::random::<u64>() | 1),
            retry: upstream.settings.retry.unwrap_or(RetryRule::DEFAULT),
            budget: RefCell::default(),
            lineup: RefCell::new(Rc::new(Lineup::new(upstream, pools, common.metrics.worker()))),
            worker: common.metrics.worker(),
            pools: pools.clone(),
            upstream: upstream.clone(),
        }
    }

    /// What requests are told apart by, where that says which server they get.
    pub fn hash_on(&self) -> Option<&Key> {
        self.upstream.settings.hash_on.as_ref()
    }

    /// What a connection for a client begins with, where the servers are told.
    pub fn proxy_protocol(&self) -> Option<ProxyVersion> {
        self.upstream.settings.proxy_protocol
    }

    /// A request is to be sent, on a connection that begins with `introduction`. `hash`: of what it is told apart
    /// by.
    pub fn begin(&self, introduction: Option<Rc<[u8]>>, hash: Option<u64>) -> Course {
        self.budget.borrow_mut().sent(self.pools.now_ms());
        Course { introduction, hash, ..Course::default() }
    }

    /// A connection: one that there is, unless the course is renewed, else a new one, at the servers' turns, to
    /// one that has not failed the request.
    ///
    /// # Errors
    /// When no server accepted one, or none had room.
    pub async fn acquire(
        &self,
        course: &mut Course,
        connect: Duration,
        deadline: &RequestDeadline,
    ) -> Result<Acquired, Unserved> {
        course.asked_ms = self.pools.now_ms();
        if let Some(rule) = &self.upstream.settings.caps {
            return Box::pin(self.acquire_capped(rule, course, connect, deadline)).await;
        }
        let server = self.pick(course)?;
        let mut acquired = match server.ready(course, self.max_idle) {
            Some(connection) => Acquired { server, connection },
            // Rare, and larger than all the rest that a request keeps.
            None => Box::pin(self.connect(server, course, connect)).await?,
        };
        if self.upstream.settings.counts_all() {
            acquired.connection.count(InFlight::of(&acquired.server.state));
        }
        Ok(acquired)
    }

    /// Connects to `server`, or to others when it does not accept.
    async fn connect(
        &self,
        mut server: Rc<AskedServer>,
        course: &mut Course,
        limit: Duration,
    ) -> Result<Acquired, ConnectFault> {
        let mut shortages = 0;
        loop {
            let _counted = self.upstream.settings.counts_all().then(|| InFlight::of(&server.state));
            let error = match server.connect(course, limit, self.max_idle).await {
                Ok(connection) => return Ok(Acquired { server, connection }),
                Err(error) => error,
            };
            if error.fault == ConnectFault::Descriptors {
                match self.frees_descriptors(&mut shortages).await {
                    true => continue,
                    false => return Err(error.fault),
                }
            }
            self.complain(&server, &error);
            if !self.may_again(course, &server, RetryReason::ConnectError) {
                return Err(error.fault);
            }
            server = self.pick(course)?;
            if let Some(connection) = server.ready(course, self.max_idle) {
                return Ok(Acquired { server, connection });
            }
        }
    }

    /// There was no descriptor for a connection, of which `shortages` counts how often: true when there may be
    /// one now. Connections that nobody uses have some: first this worker's, then those of the others.
    pub(super) async fn frees_descriptors(&self, shortages: &mut u32) -> bool {
        *shortages += 1;
        match *shortages {
            1 => self.pools.close_idle(),
            2 => tokio::time::sleep(SHORTAGE).await,
            _ => return false,
        }
        true
    }

    /// Whether a request that `server` failed for `reason` may go to another, which is counted. Nothing is
    /// sent to those that are passed over: they failed others. Where servers are capped one of them must have
    /// room now: who cannot go where others can is not to stand before them.
    pub fn may_again(&self, course: &mut Course, server: &Rc<AskedServer>, reason: RetryReason) -> bool {
        let (on, attempts) = (&self.retry.on, self.retry.attempts);
        let now_ms = self.pools.now_ms();
        let (is_on, attempts) = match reason {
            RetryReason::ConnectError => (on.connect, attempts.max(CONNECT_TRIES)),
            RetryReason::Reset => (on.reset, attempts),
            RetryReason::Timeout => (on.timeout, attempts),
            RetryReason::Status502 => (on.statuses[0], attempts),
            RetryReason::Status503 => (on.statuses[1], attempts),
            RetryReason::Status504 => (on.statuses[2], attempts),
            RetryReason::StaleConnection | RetryReason::Refused => (false, attempts),
        };
        course.tried.push(server.clone());
        if !is_on || course.tried.len() >= attempts {
            return false;
        }
        let lineup = self.lineup();
        let sent = reason != RetryReason::ConnectError;
        let takes = |other: &Rc<AskedServer>| !course.has_tried(other) && (!sent || other.state.is_usable(now_ms));
        if !lineup.servers.iter().any(takes) {
            return false;
        }
        if self.upstream.settings.caps.is_some() {
            course.turn = self.turn_now(course).ok().flatten();
            if course.turn.is_none() {
                return false;
            }
        }
        let may = self.budget.borrow_mut().again(self.retry.budget, now_ms);
        if may {
            self.outcomes.count_retry(reason);
        } else {
            self.outcomes.over_budget.inc();
            course.turn = None;
        }
        may
    }

    /// The server for the next attempt: where none is usable, any, for a wrong suspicion must not stop
    /// service.
    fn pick(&self, course: &Course) -> Result<Rc<AskedServer>, ConnectFault> {
        let lineup = self.lineup();
        if let ([only], true) = (lineup.servers.as_slice(), course.tried.is_empty()) {
            return Ok(only.clone());
        }
        if lineup.servers.is_empty() {
            return Err(self.missed());
        }
        let [usable, all] = self.candidates(&lineup, course);
        let pick = |candidates| lineup.balancer.pick(|| self.next_random(), course.hash, candidates);
        let index = pick(&usable).or_else(|| pick(&all)).ok_or(ConnectFault::Refused)?;
        Ok(lineup.servers[index].clone())
    }

    /// The same of those with room, if there is one now.
    pub(super) fn pick_free(
        &self,
        load: &UpstreamLoad,
        course: &Course,
    ) -> Result<Option<Rc<AskedServer>>, ConnectFault> {
        let lineup = self.lineup();
        if lineup.servers.is_empty() {
            return Err(self.missed());
        }
        let servers = || 0..lineup.servers.len();
        // Those that are usable and full are waited for.
        let mut groups = self.candidates(&lineup, course).into_iter();
        let group = groups.find(|group| servers().any(|server| group.may(server))).ok_or(ConnectFault::Refused)?;
        let free = LineupAt { room: Some(load), ..group };
        let index = lineup.balancer.pick(|| self.next_random(), course.hash, &free);
        Ok(index.map(|index| lineup.servers[index].clone()))
    }

    /// No name has an address.
    fn missed(&self) -> ConnectFault {
        self.upstream.missed();
        let server = self.upstream.settings.servers.first().map_or("", |server| &server.origin.authority);
        self.complaints.tell(UpstreamTrouble::Connect, server, &"unknown_name: it has no address");
        ConnectFault::UnknownName
    }

    /// Those that are usable, and all.
    fn candidates<'l>(&self, lineup: &'l Lineup, course: &'l Course) -> [LineupAt<'l>; 2] {
        let slow_start_ms = self.upstream.settings.slow_start_ms;
        let now_ms = self.pools.now_ms();
        let usable = LineupAt { servers: &lineup.servers, course, now_ms, slow_start_ms, usable: true, room: None };
        [usable, LineupAt { usable: false, ..usable }]
    }

    /// Lets go of servers that are gone, and of their connections.
    pub fn follow(&self) {
        drop(self.lineup());
    }

    /// The roster in force.
    pub(super) fn lineup(&self) -> Rc<Lineup> {
        let mut lineup = self.lineup.borrow_mut();
        if lineup.version != self.upstream.version() {
            *lineup = Rc::new(Lineup::new(&self.upstream, &self.pools, self.worker));
        }
        lineup.clone()
    }

    /// xorshift64*: spread, not secrecy.
    fn next_random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

impl Lineup {
    fn new(upstream: &Arc<UpstreamState>, pools: &Pools, worker: usize) -> Lineup {
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
            balancer: Balancer::new(upstream.settings.balance, names),
        }
    }
}

/// What the balancer sees for one request.
#[derive(Clone, Copy)]
struct LineupAt<'l> {
    servers: &'l [Rc<AskedServer>],
    course: &'l Course,
    now_ms: u64,
    slow_start_ms: u64,
    /// Of those that are usable alone.
    usable: bool,
    /// Of those that have room alone.
    room: Option<&'l UpstreamLoad>,
}

impl Candidates for LineupAt<'_> {
    fn may(&self, server: usize) -> bool {
        let server = &self.servers[server];
        (!self.usable || server.state.is_usable(self.now_ms))
            && !self.course.has_tried(server)
            && self.room.is_none_or(|load| server.has_room(load, self.course))
    }

    fn load(&self, server: usize) -> u32 {
        self.servers[server].load()
    }

    fn ramp(&self, server: usize) -> u32 {
        self.servers[server].state.ramp(self.slow_start_ms, self.now_ms)
    }
}

impl Course {
    /// Servers that failed the request.
    pub fn failures(&self) -> usize {
        self.tried.len()
    }

    /// What was kept when it last asked for a connection is not asked any more: servers may have closed it.
    pub fn renew(&mut self) {
        self.since_ms = Some(self.asked_ms);
    }

    pub fn is_renewed(&self) -> bool {
        self.since_ms.is_some()
    }

    fn has_tried(&self, server: &AskedServer) -> bool {
        self.tried.iter().any(|tried| Arc::ptr_eq(&tried.state, &server.state))
    }
}

impl OutcomeCounters {
    fn new(upstream: &str, metrics: &Metrics) -> OutcomeCounters {
        let requests = UpstreamOutcome::ALL.iter().map(|outcome| metrics.upstream_requests(upstream, *outcome));
        let retries = RetryReason::ALL.iter().map(|reason| metrics.upstream_retries(upstream, *reason));
        let over_budget = metrics.upstream_retries_over_budget(upstream);
        OutcomeCounters { requests: requests.collect(), retries: retries.collect(), over_budget }
    }

    pub fn count(&self, outcome: UpstreamOutcome) {
        self.requests[outcome as usize].inc();
    }

    pub fn count_retry(&self, reason: RetryReason) {
        self.retries[reason as usize].inc();
    }
}
