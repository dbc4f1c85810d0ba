//! One server in one worker: its connections, and the results of requests there, which are reported to all workers.
//! Kept by `selector`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use crate::ends::End;
use crate::grpc::GrpcCode;
use crate::proxy::outbound::dial::ConnectError;
use crate::proxy::outbound::pool::{ServerLease, ServerPool};
use crate::proxy::outbound::pools::Pools;
use crate::upstream::breaker::BreakerPermit;
use crate::upstream::caps::{CapRule, InFlight, UpstreamLoad};
use crate::upstream::eject::Blame;
use crate::upstream::roster::UpstreamState;
use crate::upstream::state::{ServerState, SuccessTally};

/// One server in one worker.
pub struct WorkerEndpoint {
    pub upstream: Arc<UpstreamState>,
    /// The state that all workers share.
    pub state: Arc<ServerState>,
    /// Limits of concurrent requests and connections, if the upstream has any.
    pub caps: Option<CapRule>,
    pub pool: Rc<ServerPool>,
    pub pools: Pools,
    pub unreported: RefCell<UnreportedSuccesses>,
}

/// A response whose body is being streamed. If the body breaks off, that is an error of its server.
pub struct StreamedResponse {
    server: Rc<WorkerEndpoint>,
    client: Blame,
    begun_ms: u64,
    /// Circuit breakers that counted the head as a success, or as slow.
    pub breakers: Vec<BreakerPermit>,
}

/// A response that breaks off within this many milliseconds after its head was not delayed by its client.
const PROMPT_MS: u64 = 1_000;

/// The requirements of a request for its connection.
#[derive(Default)]
pub struct ConnectionNeed {
    /// The PROXY header that the connection begins with.
    pub proxy_header: Option<Rc<[u8]>>,
    /// The connection was opened at this time or later, on the worker's clock.
    pub since_ms: Option<u64>,
    /// The client of the request.
    pub client: Blame,
}

/// Successful requests that were not reported to the other workers yet.
#[derive(Default)]
pub struct UnreportedSuccesses {
    tally: SuccessTally,
    /// When the last report was made.
    reported_ms: u64,
}

impl WorkerEndpoint {
    /// Returns the name of the server in logs.
    pub fn label(&self) -> &str {
        self.pool.label()
    }

    /// Returns the requests in flight: of all workers if the upstream counts them, otherwise of this worker.
    pub fn in_flight(&self) -> u32 {
        if self.upstream.settings.counts_all_workers() { self.state.in_flight() } else { self.pool.in_flight() }
    }

    /// Closes one of this worker's unused connections. Returns false if there is none.
    pub fn close_unused(&self) -> bool {
        self.pool.close_unused(false)
    }

    /// Takes a slot for a request. Returns `None` at the limit of concurrent requests.
    pub fn take_slot(&self, load: &Arc<UpstreamLoad>) -> Option<InFlight> {
        match &self.caps {
            Some(rule) => rule.take_request_slot(&self.state, load),
            None => Some(InFlight::count_unlimited(&self.state)),
        }
    }

    /// Returns whether the server can take a request now, and there is a connection for it or one may be opened.
    pub fn is_below_limits(&self, load: &UpstreamLoad, need: &ConnectionNeed) -> bool {
        let Some(rule) = &self.caps else { return true };
        let has_ready = || match &need.proxy_header {
            None => self.pool.has_ready(),
            Some(proxy_header) => self.pool.client_pool(proxy_header).has_ready(),
        };
        rule.has_request_slot(&self.state, load)
            && (!rule.caps_connections() || rule.has_connection_slot(&self.state, load) || has_ready())
    }

    /// Returns whether only the limit of connections keeps the server from taking a request. False while a connection
    /// is being opened, because that one will have capacity.
    pub fn lacks_connection(&self, load: &UpstreamLoad) -> bool {
        self.caps.as_ref().is_some_and(|rule| {
            rule.caps_connections()
                && rule.has_request_slot(&self.state, load)
                && !rule.has_connection_slot(&self.state, load)
                && !self.pool.is_dialing()
        })
    }

    /// Returns an open connection that fits `need`.
    pub fn take_ready(&self, need: &ConnectionNeed, max_idle: usize) -> Option<ServerLease> {
        match &need.proxy_header {
            None => self.pool.take_ready(max_idle, need.since_ms),
            Some(proxy_header) => self.pool.client_pool(proxy_header).take_ready(max_idle, need.since_ms),
        }
    }

    /// Opens a connection within `limit`, and records whether the server accepted it.
    pub async fn connect(
        &self,
        need: &ConnectionNeed,
        limit: Duration,
        max_idle: usize,
    ) -> Result<ServerLease, ConnectError> {
        let begun_ms = self.pools.now_ms();
        let result = match &need.proxy_header {
            None => self.pool.connect(limit, max_idle, need.since_ms).await,
            Some(proxy_header) => self.pool.client_pool(proxy_header).connect(limit, max_idle, need.since_ms).await,
        };
        match &result {
            Ok(_) => self.state.record_connected(self.pools.now_ms()),
            Err(error) => self.connect_failed(error.end, begun_ms, need.client),
        }
        result
    }

    /// Records a connection that failed and was begun at `begun_ms` for a request of `client`.
    ///
    /// Only the server can refuse a connection. A connection may also time out because clients keep the server's queue
    /// full. So a timeout counts against the client, and the server stays in use if it accepted another connection
    /// meanwhile.
    fn connect_failed(&self, end: End, begun_ms: u64, client: Blame) {
        if !end.row().is_upstream_failure {
            return;
        }
        let late = end == End::ConnectTimedOut;
        if !late || !self.state.has_connected_since(begun_ms) {
            self.upstream.record_refused(&self.state, self.pools.now_ms(), end.row().log_text());
        }
        self.record_error(if late { client } else { Blame::Server });
    }

    /// Records a response that is not an error of the server.
    pub fn record_success(&self, client: Blame) {
        let (Some(_), Blame::Client(client)) = (&self.upstream.settings.eject, client) else { return };
        let now_ms = self.pools.now_ms();
        let mut unreported = self.unreported.borrow_mut();
        unreported.tally.count += 1;
        unreported.tally.clients.record_success(client, now_ms);
        if self.state.is_failing() {
            self.state.record_recovery();
        }
        if unreported.reported_ms != now_ms {
            self.report_successes(&mut unreported);
        }
    }

    /// Records an error of the server. `blame`: the client whose request failed, or the server alone.
    pub fn record_error(&self, blame: Blame) {
        self.report_successes(&mut self.unreported.borrow_mut());
        self.upstream.record_error(&self.state, self.pools.now_ms(), blame);
    }

    /// Reports the successes of this worker to all workers.
    fn report_successes(&self, unreported: &mut UnreportedSuccesses) {
        let Some(rule) = &self.upstream.settings.eject else { return };
        unreported.reported_ms = self.pools.now_ms();
        self.state.add_successes(rule, unreported.reported_ms, &unreported.tally);
        unreported.tally.count = 0;
    }
}

impl StreamedResponse {
    /// Begins to stream a response of `server` to a request of `client`, whose head has arrived.
    pub fn new(server: Rc<WorkerEndpoint>, client: Blame) -> StreamedResponse {
        StreamedResponse { begun_ms: server.pools.now_ms(), server, client, breakers: Vec::new() }
    }

    /// Records that the body broke off. `waited`: the gateway was waiting for more of it. Otherwise the client may have
    /// read so slowly that the server gave up, which is not an error of the server.
    pub fn record_cut_off(&mut self, waited: bool) {
        let WorkerEndpoint { upstream, state, pools, unreported, .. } = &*self.server;
        if !waited && pools.now_ms() > self.begun_ms + PROMPT_MS {
            return;
        }
        report_late_error(&mut self.breakers, pools.now_ms());
        self.server.report_successes(&mut unreported.borrow_mut());
        // The head was counted as a success.
        state.revoke_success();
        upstream.record_error(state, pools.now_ms(), self.client);
    }

    /// Reports to circuit breakers if the trailers say that the server failed.
    pub fn record_trailers(&mut self, trailers: &HeaderMap) {
        if !self.breakers.is_empty() && GrpcCode::from_headers(trailers).is_some_and(GrpcCode::is_server_failure) {
            report_late_error(&mut self.breakers, self.server.pools.now_ms());
        }
    }
}

/// Reports to circuit breakers, once, that a response whose head they have counted is an error after all.
fn report_late_error(breakers: &mut Vec<BreakerPermit>, now_ms: u64) {
    breakers.drain(..).for_each(|mut permit| permit.report_end(now_ms, false, true));
}
