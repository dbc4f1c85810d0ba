//! One server as one worker asks it: its connections, and what became of requests there, told to all workers. Kept
//! by `lineup`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::connect::{ConnectError, ConnectFault};
use super::pool::{Pools, ServerLease, ServerPool};
use crate::upstream::caps::{CapRule, InFlight, UpstreamLoad};
use crate::upstream::eject::Blame;
use crate::upstream::roster::UpstreamState;
use crate::upstream::state::{ServedTally, ServerState};

/// One worker's side of one server.
pub struct AskedServer {
    pub(super) upstream: Arc<UpstreamState>,
    pub(super) state: Arc<ServerState>,
    /// What it is given at once, where that is capped.
    pub(super) caps: Option<CapRule>,
    pub(super) pool: Rc<ServerPool>,
    pub(super) pools: Pools,
    pub(super) untold: RefCell<Untold>,
}

/// A response whose body is on its way, and whose break-off is an error of its server.
pub struct StreamedResponse {
    server: Rc<AskedServer>,
    client: Blame,
    begun_ms: u64,
}

/// A response that breaks off this soon was not held up by its client.
const PROMPT_MS: u64 = 1_000;

/// What a request needs of its connection.
#[derive(Default)]
pub(super) struct ConnectionNeed {
    /// What it begins with.
    pub(super) introduction: Option<Rc<[u8]>>,
    /// It was made then or later.
    pub(super) since_ms: Option<u64>,
    /// The client of the request.
    pub(super) client: Blame,
}

/// Good answers that the other workers do not know of.
#[derive(Default)]
pub(super) struct Untold {
    tally: ServedTally,
    told_ms: u64,
}

impl AskedServer {
    /// What the log calls it.
    pub fn label(&self) -> &str {
        self.pool.label()
    }

    /// Requests in flight: of all workers where that is counted.
    pub(super) fn load(&self) -> u32 {
        if self.upstream.settings.counts_all() { self.state.in_flight() } else { self.pool.load() }
    }

    /// Closes one of its connections that nobody uses.
    pub(super) fn give_way(&self) -> bool {
        self.pool.give_way(false)
    }

    /// A request's place there, if there is one.
    pub(super) fn enter(&self, load: &Arc<UpstreamLoad>) -> Option<InFlight> {
        match &self.caps {
            Some(rule) => rule.enter(&self.state, load),
            None => Some(InFlight::of(&self.state)),
        }
    }

    pub(super) fn has_room(&self, load: &UpstreamLoad, need: &ConnectionNeed) -> bool {
        let Some(rule) = &self.caps else { return true };
        let has_ready = || match &need.introduction {
            None => self.pool.has_ready(),
            Some(introduction) => self.pool.of_client(introduction).has_ready(),
        };
        rule.has_room(&self.state, load)
            && (!rule.caps_connections() || rule.may_connect(&self.state, load) || has_ready())
    }

    /// It has room for a request that waits, but none for its connection. What is being made has places for those.
    pub(super) fn lacks_connection(&self, load: &UpstreamLoad) -> bool {
        self.caps.as_ref().is_some_and(|rule| {
            rule.caps_connections()
                && rule.has_room(&self.state, load)
                && !rule.may_connect(&self.state, load)
                && !self.pool.dials()
        })
    }

    /// A connection that there is.
    pub(super) fn ready(&self, need: &ConnectionNeed, max_idle: usize) -> Option<ServerLease> {
        match &need.introduction {
            None => self.pool.ready(max_idle, need.since_ms),
            Some(introduction) => self.pool.of_client(introduction).ready(max_idle, need.since_ms),
        }
    }

    pub(super) async fn connect(
        &self,
        need: &ConnectionNeed,
        limit: Duration,
        max_idle: usize,
    ) -> Result<ServerLease, ConnectError> {
        let begun_ms = self.pools.now_ms();
        let connected = match &need.introduction {
            None => self.pool.connect(limit, max_idle, need.since_ms).await,
            Some(introduction) => self.pool.of_client(introduction).connect(limit, max_idle, need.since_ms).await,
        };
        match &connected {
            Ok(_) => self.state.connected(self.pools.now_ms()),
            Err(error) => self.connect_failed(error.fault, begun_ms, need.client),
        }
        connected
    }

    /// Records a connection that failed and was begun at `begun_ms` for a request of `client`.
    ///
    /// Only the server can refuse a connection. A connection that times out may be the work of clients who keep the
    /// server's queue full: it is their error, and the server stays in use if it accepted another one meanwhile.
    fn connect_failed(&self, fault: ConnectFault, begun_ms: u64, client: Blame) {
        if fault.is_of_gateway() {
            return;
        }
        let late = fault == ConnectFault::TimedOut;
        if !late || !self.state.has_connected_since(begun_ms) {
            self.upstream.refused(&self.state, self.pools.now_ms(), fault.label());
        }
        self.failed(if late { client } else { Blame::Server });
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

impl StreamedResponse {
    /// The head of a response of `server` to a request of `client` has arrived.
    pub fn new(server: Rc<AskedServer>, client: Blame) -> StreamedResponse {
        StreamedResponse { begun_ms: server.pools.now_ms(), server, client }
    }

    /// Records that the body broke off. `waited`: the gateway was waiting for more of it. Where it was not, the client
    /// may have read so slowly that the server gave up, which is no error of the server.
    pub fn broke_off(&self, waited: bool) {
        let AskedServer { upstream, state, pools, untold, .. } = &*self.server;
        if !waited && pools.now_ms() > self.begun_ms + PROMPT_MS {
            return;
        }
        self.server.tell(&mut untold.borrow_mut());
        // The head counted as served.
        state.unserved();
        upstream.failed(state, pools.now_ms(), self.client);
    }
}
