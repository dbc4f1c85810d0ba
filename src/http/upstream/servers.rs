//! The servers of one upstream as one worker asks them: which is next, and what became of it, told to all
//! workers. Made with each view, used by `forward`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::connect::{ConnectError, ConnectFault};
use super::pool::{PooledConnection, Pools, ServerPool};
use crate::http::complaints::{UpstreamComplaints, UpstreamTrouble};
use crate::http::context::Common;
use crate::metrics::{Counter, Metrics, RetryReason, UpstreamOutcome};
use crate::upstream::balance::{Balancer, Candidates};
use crate::upstream::eject::Blame;
use crate::upstream::roster::{Member, UpstreamState};
use crate::upstream::state::{ServedTally, ServerState};

/// Servers asked for a connection before a request fails.
const ATTEMPTS: usize = 3;

pub struct Servers {
    upstream: Arc<UpstreamState>,
    pools: Pools,
    lineup: RefCell<Rc<Lineup>>,
    pub outcomes: OutcomeCounters,
    pub complaints: Rc<UpstreamComplaints>,
    /// Idle connections kept per server and worker.
    max_idle: usize,
    random: Cell<u64>,
}

/// A roster as this worker asks it.
struct Lineup {
    version: u64,
    servers: Vec<Rc<AskedServer>>,
    balancer: Balancer,
}

/// One worker's side of one server.
pub struct AskedServer {
    upstream: Arc<UpstreamState>,
    state: Arc<ServerState>,
    pool: Rc<ServerPool>,
    pools: Pools,
    untold: RefCell<Untold>,
}

/// Good answers that the other workers do not know of.
#[derive(Default)]
struct Untold {
    tally: ServedTally,
    told_ms: u64,
}

/// Counters of one upstream, by what became of a request sent to it.
pub struct OutcomeCounters {
    /// By `UpstreamOutcome`.
    requests: Vec<Counter>,
    /// By `RetryReason`.
    retries: Vec<Counter>,
}

/// A connection for a request, and whose it is.
pub struct Acquired {
    pub server: Rc<AskedServer>,
    pub connection: PooledConnection,
}

impl Servers {
    pub fn new(upstream: &Arc<UpstreamState>, pools: &Pools, common: &Common) -> Servers {
        Servers {
            outcomes: OutcomeCounters::new(&upstream.settings.name, &common.metrics),
            complaints: Rc::new(common.complaints.of(&upstream.settings.name)),
            max_idle: upstream.settings.max_idle.unwrap_or(usize::MAX),
            random: Cell::new(rand::random::<u64>() | 1),
            lineup: RefCell::new(Rc::new(Lineup::new(upstream, pools))),
            pools: pools.clone(),
            upstream: upstream.clone(),
        }
    }

    /// A connection: an idle one unless `fresh`, else a new one, at the servers' turns.
    ///
    /// # Errors
    /// When no server accepted one.
    pub async fn acquire(&self, connect: Duration, fresh: bool) -> Result<Acquired, ConnectFault> {
        let server = self.pick()?;
        let idle = if fresh { None } else { server.pool.idle(self.max_idle) };
        match idle {
            Some(connection) => Ok(Acquired { server, connection }),
            // Rare, and larger than all the rest that a request keeps.
            None => Box::pin(self.connect(server, connect, fresh)).await,
        }
    }

    /// Connects to `server`, or to others when it does not accept.
    async fn connect(
        &self,
        mut server: Rc<AskedServer>,
        limit: Duration,
        fresh: bool,
    ) -> Result<Acquired, ConnectFault> {
        let several = self.lineup().servers.len() > 1;
        let mut attempt = 1;
        loop {
            match server.connect(limit, self.max_idle).await {
                Ok(connection) => return Ok(Acquired { server, connection }),
                Err(error) => {
                    let kind = match error.fault {
                        ConnectFault::Tls => UpstreamTrouble::Tls,
                        _ => UpstreamTrouble::Connect,
                    };
                    self.complaints.tell(kind, server.pool.authority(), &error);
                    if !several || attempt == ATTEMPTS {
                        return Err(error.fault);
                    }
                    self.outcomes.count_retry(RetryReason::ConnectError);
                }
            }
            attempt += 1;
            server = self.pick()?;
            if let (false, Some(connection)) = (fresh, server.pool.idle(self.max_idle)) {
                return Ok(Acquired { server, connection });
            }
        }
    }

    /// The server for the next attempt: where none is usable, any, for a wrong suspicion must not stop
    /// service.
    fn pick(&self) -> Result<Rc<AskedServer>, ConnectFault> {
        let lineup = self.lineup();
        if let [only] = lineup.servers.as_slice() {
            return Ok(only.clone());
        }
        let now_ms = self.pools.now_ms();
        let usable = LineupAt { servers: &lineup.servers, usable_at_ms: Some(now_ms) };
        let all = LineupAt { usable_at_ms: None, ..usable };
        let pick = |candidates| lineup.balancer.pick(|| self.next_random(), candidates);
        let index = pick(&usable).or_else(|| pick(&all)).ok_or(ConnectFault::Refused)?;
        Ok(lineup.servers[index].clone())
    }

    /// The roster in force.
    fn lineup(&self) -> Rc<Lineup> {
        let mut lineup = self.lineup.borrow_mut();
        if lineup.version != self.upstream.version() {
            *lineup = Rc::new(Lineup::new(&self.upstream, &self.pools));
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
    fn new(upstream: &Arc<UpstreamState>, pools: &Pools) -> Lineup {
        let version = upstream.version();
        let roster = upstream.roster();
        let asked = |member: &Member| {
            Rc::new(AskedServer {
                upstream: upstream.clone(),
                state: member.state.clone(),
                pool: pools.of(&member.server.origin),
                pools: pools.clone(),
                untold: RefCell::default(),
            })
        };
        Lineup {
            version,
            servers: roster.iter().map(asked).collect(),
            balancer: Balancer::new(upstream.settings.balance, roster.iter().map(|member| &member.server)),
        }
    }
}

/// What the balancer sees. `usable_at_ms`: of those that are usable then alone.
struct LineupAt<'l> {
    servers: &'l [Rc<AskedServer>],
    usable_at_ms: Option<u64>,
}

impl Candidates for LineupAt<'_> {
    fn may(&self, server: usize) -> bool {
        self.usable_at_ms.is_none_or(|now_ms| self.servers[server].state.is_usable(now_ms))
    }

    fn load(&self, server: usize) -> u32 {
        self.servers[server].pool.load()
    }
}

impl AskedServer {
    async fn connect(&self, limit: Duration, max_idle: usize) -> Result<PooledConnection, ConnectError> {
        let connected = self.pool.connect(limit, max_idle).await;
        match &connected {
            Ok(_) => self.state.connected(),
            Err(_) => {
                self.state.refused(self.pools.now_ms());
                self.failed(Blame::Server);
            }
        }
        connected
    }

    /// It gave an answer that is none of its failures.
    pub fn served(&self, to: Blame) {
        let (Some(_), Blame::Client(client)) = (&self.upstream.settings.eject, to) else { return };
        let now_ms = self.pools.now_ms();
        let mut untold = self.untold.borrow_mut();
        untold.tally.count += 1;
        untold.tally.clients.served(client, now_ms);
        if self.state.is_failing() {
            self.state.recovered();
        }
        if untold.told_ms != now_ms {
            self.tell(&mut untold);
        }
    }

    /// A request met an error there.
    pub fn failed(&self, blame: Blame) {
        self.tell(&mut self.untold.borrow_mut());
        self.upstream.failed(&self.state, self.pools.now_ms(), blame);
    }

    fn tell(&self, untold: &mut Untold) {
        let Some(rule) = &self.upstream.settings.eject else { return };
        untold.told_ms = self.pools.now_ms();
        self.state.served(rule, untold.told_ms, &untold.tally);
        untold.tally.count = 0;
    }
}

impl OutcomeCounters {
    fn new(upstream: &str, metrics: &Metrics) -> OutcomeCounters {
        let requests = UpstreamOutcome::ALL.iter().map(|outcome| metrics.upstream_requests(upstream, *outcome));
        let retries = RetryReason::ALL.iter().map(|reason| metrics.upstream_retries(upstream, *reason));
        OutcomeCounters { requests: requests.collect(), retries: retries.collect() }
    }

    pub fn count(&self, outcome: UpstreamOutcome) {
        self.requests[outcome as usize].inc();
    }

    pub fn count_retry(&self, reason: RetryReason) {
        self.retries[reason as usize].inc();
    }
}
