//! The servers of one upstream as one worker asks them: which is next, and what became of requests there, counted. Made
//! with each view; `acquire`, `turn` and `retry` are what a request does with them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::asked::{AskedServer, ConnectionNeed};
use super::connect::ConnectFault;
use super::course::Course;
use super::lineup::{Lineup, LineupAt};
use super::pool::Pools;
use crate::http::complaints::{Complaints, UpstreamComplaints, UpstreamTrouble};
use crate::limit::key::Key;
use crate::metrics::{Counter, Metrics, RetryReason, UpstreamOutcome};
use crate::upstream::balance::Candidates;
use crate::upstream::budget::{RetryBudget, RetryRule};
use crate::upstream::caps::UpstreamLoad;
use crate::upstream::eject::Blame;
use crate::upstream::introduction::ProxyVersion;
use crate::upstream::roster::UpstreamState;

/// Long enough for all workers to have closed what is idle.
const SHORTAGE: Duration = Duration::from_millis(250);

pub struct Servers {
    pub(super) upstream: Arc<UpstreamState>,
    pub(super) pools: Pools,
    lineup: RefCell<Rc<Lineup>>,
    pub outcomes: OutcomeCounters,
    pub complaints: Rc<UpstreamComplaints>,
    /// Idle connections kept per server and worker.
    pub(super) max_idle: usize,
    pub(super) worker: usize,
    random: Cell<u64>,
    pub(super) retry: RetryRule,
    pub(super) budget: RefCell<RetryBudget>,
}

/// Counters of one upstream, by what became of a request sent to it.
pub struct OutcomeCounters {
    /// By `UpstreamOutcome`.
    requests: Vec<Counter>,
    /// By `RetryReason`.
    retries: Vec<Counter>,
    /// Requests that would have been sent once more.
    pub(super) over_budget: Counter,
}

impl Servers {
    pub fn new(upstream: &Arc<UpstreamState>, pools: &Pools, metrics: &Metrics, complaints: &Complaints) -> Servers {
        Servers {
            outcomes: OutcomeCounters::new(&upstream.settings.name, metrics),
            complaints: Rc::new(complaints.of(&upstream.settings.name)),
            max_idle: upstream.settings.max_idle.unwrap_or(usize::MAX),
            random: Cell::new(rand::random::<u64>() | 1),
            retry: upstream.settings.retry.unwrap_or(RetryRule::DEFAULT),
            budget: RefCell::default(),
            lineup: RefCell::new(Rc::new(Lineup::new(upstream, pools, metrics.worker()))),
            worker: metrics.worker(),
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

    /// Begins to send a request of `client` on a connection that starts with `introduction`. `hash` is that of its
    /// `hash_on` key.
    pub fn begin(&self, introduction: Option<Rc<[u8]>>, hash: Option<u64>, client: Blame) -> Course {
        self.budget.borrow_mut().sent(self.pools.now_ms());
        Course { need: ConnectionNeed { introduction, since_ms: None, client }, hash, ..Course::default() }
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

    /// The server for the next attempt: where none is usable, any, for a wrong suspicion must not stop
    /// service.
    pub(super) fn pick(&self, course: &Course) -> Result<Rc<AskedServer>, ConnectFault> {
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
