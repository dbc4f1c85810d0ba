//! One upstream in one worker: everything needed to send a request to it. Made with each view of the config; passed to
//! `select::acquire` and `forward`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::ends::{End, RetryReason, UpstreamFailureKind, UpstreamOutcome};
use crate::limiting::key::Key;
use crate::proxy::outbound::pools::Pools;
use crate::proxy::outbound::retry_policy::RetryPolicy;
use crate::proxy::outbound::select::endpoint::ConnectionNeed;
use crate::proxy::outbound::select::retry_state::RetryState;
use crate::proxy::outbound::select::selector::Selector;
use crate::proxy::words::failure_log::{FailureLog, UpstreamFailureLog};
use crate::proxy::words::refusal::Refusal;
use crate::telemetry::metrics::{Counter, Metrics};
use crate::upstream::eject::Blame;
use crate::upstream::priority::Priority;
use crate::upstream::proxy_header::ProxyVersion;
use crate::upstream::roster::UpstreamState;

/// Pause during a shortage of file descriptors: long enough for all workers to close their idle connections.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(250);

/// One upstream in one worker.
pub struct WorkerUpstream {
    pub upstream: Arc<UpstreamState>,
    pub pools: Pools,
    pub selector: Selector,
    pub retry: RetryPolicy,
    pub outcomes: OutcomeCounters,
    pub failure_log: Rc<UpstreamFailureLog>,
    /// Idle connections kept per server in this worker.
    pub max_idle: usize,
    pub worker: usize,
}

impl WorkerUpstream {
    pub fn new(
        upstream: &Arc<UpstreamState>,
        pools: &Pools,
        metrics: &Metrics,
        failure_log: &FailureLog,
    ) -> WorkerUpstream {
        WorkerUpstream {
            outcomes: OutcomeCounters::new(&upstream.settings.name, metrics),
            failure_log: Rc::new(failure_log.for_upstream(&upstream.settings.name)),
            max_idle: upstream.settings.max_idle.unwrap_or(usize::MAX),
            retry: RetryPolicy::new(upstream.settings.retry),
            selector: Selector::new(upstream, pools, metrics.worker()),
            worker: metrics.worker(),
            pools: pools.clone(),
            upstream: upstream.clone(),
        }
    }

    /// Returns the key whose hash selects the server, for upstreams with `hash_on`.
    pub fn hash_on(&self) -> Option<&Key> {
        self.upstream.settings.hash_on.as_ref()
    }

    /// Returns the version of the PROXY header that new connections begin with, if the servers expect one.
    pub fn proxy_protocol(&self) -> Option<ProxyVersion> {
        self.upstream.settings.proxy_protocol
    }

    /// Begins to send a request of `client`. Its connection starts with the PROXY header `proxy_header`, if there is
    /// one. `hash` is the hash of its `hash_on` key.
    pub fn begin_request(
        &self,
        proxy_header: Option<Rc<[u8]>>,
        hash: Option<u64>,
        client: Blame,
        priority: Priority,
    ) -> RetryState {
        self.retry.count_request(self.pools.now_ms());
        RetryState {
            need: ConnectionNeed { proxy_header, since_ms: None, client },
            hash,
            priority,
            ..RetryState::default()
        }
    }

    /// Drops servers that were removed from the upstream, and their connections.
    pub fn drop_removed_servers(&self) {
        drop(self.selector.endpoints());
    }

    /// Counts and logs an error that ended a request before any server got it. Failed connections were logged when
    /// they failed.
    pub fn record_unsent(&self, error: Refusal) {
        if let Some(outcome) = error.end.row().outcome {
            self.outcomes.count_outcome(outcome);
        }
        if !error.end.is_connect_error() {
            self.log_error(error, self.failure_log.upstream());
        }
    }

    /// Logs an error of `server`, sampled.
    pub fn log_error(&self, error: Refusal, server: &str) {
        if let Some(kind) = error.end.row().log_kind {
            self.failure_log.log_failure(kind, server, &error);
        }
    }

    /// If no server could be selected because no hostname of the upstream has an address, logs that and requests
    /// another lookup.
    pub fn record_no_server(&self, fault: End) {
        if fault != End::ConnectUnknownName {
            return;
        }
        self.upstream.request_lookups();
        let server = self.upstream.settings.servers.first().map_or("", |server| &server.origin.authority);
        self.failure_log.log_failure(UpstreamFailureKind::Connect, server, &"unknown_name: it has no address");
    }

    /// Frees file descriptors after a connection could not be opened for lack of them: closes idle connections of this
    /// worker the first time, and waits for the other workers to do so the second time. Returns whether another attempt
    /// is worthwhile. `shortages` counts the calls for one request.
    pub async fn free_descriptors(&self, shortages: &mut u32) -> bool {
        *shortages += 1;
        match *shortages {
            1 => self.pools.close_idle(),
            2 => tokio::time::sleep(SHORTAGE_PAUSE).await,
            _ => return false,
        }
        true
    }
}

/// Counters of one upstream.
pub struct OutcomeCounters {
    /// Indexed by `UpstreamOutcome`.
    requests: Vec<Counter>,
    /// Indexed by `RetryReason`.
    retries: Vec<Counter>,
    /// Retries that the budget did not permit.
    over_budget: Counter,
}

impl OutcomeCounters {
    fn new(upstream: &str, metrics: &Metrics) -> OutcomeCounters {
        let requests = UpstreamOutcome::ALL.iter().map(|outcome| metrics.upstream_request_counter(upstream, *outcome));
        let retries = RetryReason::ALL.iter().map(|reason| metrics.upstream_retry_counter(upstream, *reason));
        let over_budget = metrics.over_budget_counter(upstream);
        OutcomeCounters { requests: requests.collect(), retries: retries.collect(), over_budget }
    }

    pub fn count_outcome(&self, outcome: UpstreamOutcome) {
        self.requests[outcome as usize].inc();
    }

    pub fn count_retry(&self, reason: RetryReason) {
        self.retries[reason as usize].inc();
    }

    pub fn count_over_budget(&self) {
        self.over_budget.inc();
    }
}
