//! Metrics of one route and its limits, as requests count them. Records are bound when a config is loaded, and their
//! series exist from then on. Each worker counts on its own shard, which it gets with its first request of the route.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, StatusCode};

use crate::auth::AuthMethod;
use crate::config::Config;
use crate::ends::End;
use crate::limiting::algorithm::fair::FairFacts;
use crate::limiting::answer::BanAnswer;
use crate::limiting::integers::NotInteger;
use crate::limiting::key::Missing;
use crate::limiting::limit::cost::Cost;
use crate::limiting::limit::over::Over;
use crate::limiting::limit::{Limit, Mode, OnError};
use crate::limiting::source::Repeated;
use crate::limiting::{ChainState, ComparedCandidate, LimitResult, Outcome};
use crate::overload::OverloadCondition;
use crate::route::Route;
use crate::telemetry::metrics::{
    BranchCounts, BranchRecord, CandidateEffect, Code, Count, Decision, FairGauges, ForwardAuthOutcome, HeadroomCounts,
    LimitCounts, LimitGauges, LimitRecord, LimitRegistry, Metrics, MirrorOutcome, OverheadCounts, RouteCounts,
    RouteRecord, Shard,
};

/// The metrics of one route in a snapshot.
pub struct RouteMetrics {
    route: Arc<RouteRecord>,
    /// Metrics of the limits, indexed like the limits of the route.
    limits: Vec<LimitMetrics>,
    /// Metrics of the branches, indexed like those of the route's `split`.
    branches: Vec<Arc<BranchRecord>>,
    /// The route has `max_in_flight`.
    capped: bool,
}

/// The metrics of one limit on one route.
struct LimitMetrics {
    record: Arc<LimitRecord>,
    /// Metrics of the limit over all routes.
    gauges: Arc<LimitGauges>,
    /// Number of bans, if the limit has `ban`.
    bans: Option<Arc<AtomicU64>>,
    fair: Option<Arc<FairGauges>>,
    quota: i64,
}

/// One worker's counters for one route.
pub struct RouteCounters {
    counts: Arc<Shard<RouteCounts>>,
    /// Counters of the limits, indexed like the limits of the route.
    pub limits: Vec<LimitCounters>,
    /// Counters of the branches, indexed like those of the route's `split`.
    branches: Vec<Arc<Shard<BranchCounts>>>,
    /// Counts requests in flight over all workers, if the route has `max_in_flight`.
    capped: Option<Arc<RouteRecord>>,
    /// Times that requests of all routes spend in the gateway.
    overhead: Arc<Shard<OverheadCounts>>,
}

/// One worker's counters for one limit on one route.
pub struct LimitCounters {
    counts: Arc<Shard<LimitCounts>>,
    /// Decisions of the limit on all routes, by what they left.
    headroom: Arc<Shard<HeadroomCounts>>,
    /// Number of bans, if the limit has `ban`. They are rare, so it is not sharded.
    bans: Option<Arc<AtomicU64>>,
    /// Counters of tenants, if they share the budgets of the limit.
    fair: Option<Arc<FairGauges>>,
    /// Units of a key without override.
    quota: i64,
}

impl RouteMetrics {
    /// Binds the metrics of `route`, and creates the series that it can produce.
    pub fn new(record: Arc<RouteRecord>, route: &Route, config: &Config, limits: &LimitRegistry) -> RouteMetrics {
        create_route_series(&record, route, config);
        let limits = route.limits.iter().map(|limit| {
            let record = record.get_or_create_limit(&limit.name);
            create_limit_series(&record, limit, route, config);
            let gauges = limits.get_or_create(&limit.name);
            let fair = limit.fair.is_some().then(|| gauges.fair().clone());
            let bans = limit.ban.is_some().then(|| gauges.bans().clone());
            LimitMetrics { record, gauges, bans, fair, quota: limit.rule.policy().quota }
        });
        let branches = branch_names(route, config).map(|upstream| record.branches.get_or_create(upstream)).collect();
        RouteMetrics { limits: limits.collect(), branches, capped: route.max_in_flight.is_some(), route: record }
    }

    /// Binds the metrics of requests that no route matches.
    pub fn unmatched(record: Arc<RouteRecord>) -> RouteMetrics {
        RouteMetrics { route: record, limits: Vec::new(), branches: Vec::new(), capped: false }
    }

    /// Returns the counters of one worker.
    pub fn for_worker(&self, metrics: &Metrics) -> RouteCounters {
        let worker = metrics.worker();
        RouteCounters {
            counts: self.route.shards.shard_for(worker),
            limits: self.limits.iter().map(|limit| limit.for_worker(worker)).collect(),
            branches: self.branches.iter().map(|branch| branch.shards.shard_for(worker)).collect(),
            overhead: metrics.overhead_counts(),
            capped: self.capped.then(|| self.route.clone()),
        }
    }
}

impl LimitMetrics {
    fn for_worker(&self, worker: usize) -> LimitCounters {
        LimitCounters {
            counts: self.record.shards.shard_for(worker),
            headroom: self.gauges.headroom.shard_for(worker),
            bans: self.bans.clone(),
            fair: self.fair.clone(),
            quota: self.quota,
        }
    }
}

impl RouteCounters {
    /// Counts a request in flight, without a place if the route has `max_in_flight`.
    pub fn enter(&self) {
        self.in_flight().inc();
    }

    /// Counts the end of a request that `enter` counted, and that has no place.
    pub fn leave(&self) {
        self.in_flight().dec();
    }

    fn in_flight(&self) -> &Count {
        if self.capped.is_some() { &self.counts.without_place } else { &self.counts.in_flight }
    }

    /// Returns whether all `max` places of the route are taken.
    pub fn is_full(&self, max: usize) -> bool {
        self.capped.as_ref().is_some_and(|record| record.is_full(max))
    }

    /// Takes one of the `max` places of the route for a request that `enter` counted. Returns false if there is none.
    pub fn take_place(&self, max: usize) -> bool {
        let Some(record) = &self.capped else { return true };
        let has_place = record.take_place(max);
        if has_place {
            self.counts.without_place.dec();
        }
        has_place
    }

    /// Returns the place that `take_place` took. The request is still in flight.
    pub fn return_place(&self) {
        if let Some(record) = &self.capped {
            self.counts.without_place.inc();
            record.return_place();
        }
    }

    /// Counts a response.
    pub fn count_response(&self, method: &Method, status: StatusCode) {
        self.counts.requests.inc(Code::new(method, status));
    }

    /// Counts the response to a request for which the split of the route chose the branch at `place`.
    pub fn count_branch_response(&self, place: usize, status: StatusCode) {
        self.branches[place].statuses.inc(Code::from(status));
    }

    /// Counts the duration of a request for which the split of the route chose the branch at `place`.
    pub fn observe_branch_duration(&self, place: usize, seconds: f64) {
        self.branches[place].duration.observe(seconds);
    }

    /// Counts a request to the auth server.
    pub fn count_forward_auth(&self, outcome: ForwardAuthOutcome) {
        self.counts.forward_auth.inc(outcome as usize);
    }

    /// Counts a copy of a request, or a request that was not copied.
    pub fn count_mirror(&self, outcome: MirrorOutcome) {
        self.counts.mirrors.inc(outcome as usize);
    }

    /// Counts the duration of a request.
    pub fn observe_duration(&self, seconds: f64) {
        self.counts.duration.observe(seconds);
    }

    /// Records the trace of a request whose duration was counted.
    pub fn record_exemplar(&self, seconds: f64, trace_id: u128) {
        self.counts.record_exemplar(seconds, trace_id);
    }

    /// Counts the time that a request spent in the gateway.
    pub fn observe_overhead(&self, time: Duration) {
        self.overhead.observe(time);
    }

    /// Counts the comparisons of candidates with their incumbents for a request.
    pub fn count_comparisons(&self, comparisons: &[ComparedCandidate]) {
        for ComparedCandidate { candidate, effect } in comparisons {
            self.limits[*candidate].counts.effects.inc(*effect as usize);
        }
    }

    /// Counts a refusal that no limit made.
    pub fn count_rejection(&self, end: End) {
        self.counts.rejections.inc(end.rejection_index());
    }
}

/// Returns the names of the upstreams of the route's `split`, in its order; none without a split.
pub fn branch_names<'c>(route: &'c Route, config: &'c Config) -> impl Iterator<Item = &'c str> {
    let branches = route.split.iter().flat_map(|split| &split.branches);
    branches.map(|branch| config.upstreams[branch.upstream].name.as_str())
}

/// Creates the series that `limit` can produce on `route`.
fn create_limit_series(record: &LimitRecord, limit: &Limit, route: &Route, config: &Config) {
    let want = |decision: Decision| record.decisions.export_series(decision as usize);
    want(Decision::Allow);
    // Live overrides are read from a shared store, and any limit may get one.
    let has_overrides = config.store.is_shared() || limit.overrides.has_any();
    match limit.mode {
        Mode::Enforce => {
            match &limit.over {
                Over::Refuse | Over::Delay => want(Decision::Deny),
                Over::Annotate => want(Decision::Annotate),
                Over::Divert(_) => want(Decision::Divert),
            }
            if limit.rule.has_queue() {
                want(Decision::Delayed);
                record.rejections.export_series(End::MaxDelayed.rejection_index());
            }
            if !limit.forwards_excess() {
                record.rejections.export_series(End::Exhausted.rejection_index());
            }
            if limit.ban.is_some() && !limit.forwards_excess() {
                record.rejections.export_series(End::Banned.rejection_index());
            }
            if limit.repeated == Repeated::Refuse && limit.reads_repeatable() {
                record.rejections.export_series(End::RepeatedKey.rejection_index());
            }
            if limit.not_integer == NotInteger::Refuse
                && (limit.integer_sources().next().is_some() || limit.cost.counted_source().is_some())
            {
                record.rejections.export_series(End::NotInteger.rejection_index());
            }
            if limit.reads_calls() {
                record.rejections.export_series(End::McpHeaders.rejection_index());
            }
            if limit.has_key_in_body() || limit.cost.counted_source().is_some() || limit.reads_calls() {
                record.rejections.export_series(End::BodyKeyMalformed.rejection_index());
            }
            if limit.missing == Missing::Refuse {
                record.rejections.export_series(End::MissingKey.rejection_index());
            }
            // A rate of 0 blocks a key: a live override, or one in the file.
            if has_overrides && !limit.forwards_excess() {
                record.rejections.export_series(End::Blocked.rejection_index());
            }
            if (has_overrides || limit.cost != Cost::Fixed(1)) && !limit.forwards_excess() {
                record.rejections.export_series(End::NeverFits.rejection_index());
            }
        }
        Mode::Shadow => want(Decision::ShadowDeny),
    }
    if limit.candidate_of.is_some() && !limit.is_wider_tier() {
        CandidateEffect::ALL.iter().for_each(|effect| record.effects.export_series(*effect as usize));
    }
    if !route.allow.is_empty() || limit.after.is_some() || has_overrides {
        want(Decision::Bypass);
    }
    match (config.store.is_shared(), limit.on_error) {
        (false, _) => {}
        (_, OnError::Open) => want(Decision::ErrorOpen),
        (_, OnError::Local) => {
            want(Decision::LocalAllow);
            if !limit.forwards_excess() {
                want(Decision::LocalDeny);
            }
        }
        (_, OnError::Closed) if limit.forwards_excess() => {}
        (_, OnError::Closed) => {
            want(Decision::ErrorClosed);
            record.rejections.export_series(End::StoreDown.rejection_index());
        }
    }
}

/// Returns the `decision` label for the part that a limit had in a decision.
///
/// A limit that passes a request on to the next one (`after`) counts as a denial, although nobody is refused. A limit
/// counts as bypassed if a limit before it is still in effect, or if an override makes it unlimited for this key.
pub fn decision_label(limit: &Limit, checked: &LimitResult) -> Decision {
    let (outcome, mode) = (&checked.outcome, limit.mode);
    match (outcome, outcome.is_admitted()) {
        (Outcome::Unlimited, _) => Decision::Bypass,
        _ if checked.chain_state == ChainState::NotYet => Decision::Bypass,
        _ if outcome.is_forwarded_by(limit) => match &limit.over {
            Over::Divert(_) => Decision::Divert,
            Over::Refuse | Over::Delay | Over::Annotate => Decision::Annotate,
        },
        (Outcome::Local(_), true) => Decision::LocalAllow,
        (Outcome::Local(_), false) => Decision::LocalDeny,
        (Outcome::Open, _) => Decision::ErrorOpen,
        (Outcome::Closed, _) => Decision::ErrorClosed,
        (Outcome::Store(answer), true) if answer.retry_ms > 0 && mode == Mode::Enforce => Decision::Delayed,
        (_, true) => Decision::Allow,
        (_, false) if mode == Mode::Shadow => Decision::ShadowDeny,
        (_, false) => Decision::Deny,
    }
}

impl LimitCounters {
    /// Counts a decision of the limit about a request that `refusing` limits refused, this one or others.
    pub fn count_decision(&self, limit: &Limit, checked: &LimitResult, refusing: usize) {
        self.counts.decisions.inc(decision_label(limit, checked) as usize);
        let Some(answer) = checked.outcome.answer() else { return };
        if checked.chain_state == ChainState::NotYet {
            return;
        }
        let is_enforced = limit.mode == Mode::Enforce;
        if let Some(fair) = &self.fair {
            let FairFacts { active, is_refused_within_share } = FairFacts::of(answer);
            fair.count_decision(active, is_refused_within_share);
        }
        if let (Some(bans), BanAnswer::Begun) = (&self.bans, answer.ban) {
            bans.fetch_add(1, Ordering::Relaxed);
        }
        if !answer.admitted {
            let own = usize::from(checked.outcome.is_refused_by(limit));
            return self.headroom.count_refusal(is_enforced && refusing > own);
        }
        // Only shadow limits charge requests that others refuse.
        if is_enforced && refusing > 0 {
            return;
        }
        let quota = checked.override_rule.as_ref().map_or(self.quota, |rule| rule.policy().quota);
        self.headroom.count_admission(answer.remaining, quota);
    }

    /// Counts a request that the route's `allow` list exempted from the limit.
    pub fn count_bypass(&self) {
        self.counts.decisions.inc(Decision::Bypass as usize);
    }

    /// Counts a refused request against the limit that refused it.
    pub fn count_rejection(&self, end: End) {
        self.counts.rejections.inc(end.rejection_index());
    }
}

/// Returns the end of a request that the process rule refuses.
pub fn overload_end(condition: OverloadCondition) -> End {
    match condition {
        OverloadCondition::Qps => End::OverloadQps,
        OverloadCondition::InFlight => End::OverloadInFlight,
        OverloadCondition::Latency => End::OverloadLatency,
        OverloadCondition::Load => End::OverloadLoad,
        OverloadCondition::Cpu => End::OverloadCpu,
    }
}

/// Creates the series that `route` can produce, except those of its limits.
fn create_route_series(record: &RouteRecord, route: &Route, config: &Config) {
    record.export_code(Code::new(&Method::GET, StatusCode::OK));
    for limit in &route.limits {
        record.export_code(Code::new(&Method::GET, limit.refusal_response(&route.refuse).status));
    }
    if !route.deny.is_empty() {
        record.rejections.export_series(End::Denied.rejection_index());
    }
    if let Some(auth) = &route.auth {
        match &auth.method {
            AuthMethod::Basic(_) => record.rejections.export_series(End::PasswordQueueFull.rejection_index()),
            AuthMethod::Jwt(token) if token.verifier.remote_keys().is_some() => {
                record.rejections.export_series(End::TokenKeys.rejection_index());
            }
            AuthMethod::Jwt(_) => {}
            AuthMethod::Forward(rule) => {
                let error =
                    if rule.is_open_on_error { ForwardAuthOutcome::ErrorOpen } else { ForwardAuthOutcome::ErrorClosed };
                for outcome in [ForwardAuthOutcome::Admitted, ForwardAuthOutcome::Refused, error] {
                    record.forward_auth.export_series(outcome as usize);
                }
                record.rejections.export_series(End::AuthServer.rejection_index());
            }
        }
        if !matches!(auth.method, AuthMethod::Forward(_)) {
            record.export_code(Code::new(&Method::GET, StatusCode::UNAUTHORIZED));
            record.rejections.export_series(End::CredentialsMissing.rejection_index());
        }
    }
    if route.mirror.is_some() {
        MirrorOutcome::ALL.iter().for_each(|outcome| record.mirrors.export_series(*outcome as usize));
    }
    if route.max_in_flight.is_some() {
        record.rejections.export_series(End::MaxInFlight.rejection_index());
    }
    if route.breaker.is_some() {
        record.rejections.export_series(End::RouteBreaker.rejection_index());
    }
    let mut upstreams = route.upstreams().filter_map(|index| config.upstreams.get(index));
    if upstreams.any(|upstream| upstream.breaker.is_some()) {
        record.rejections.export_series(End::UpstreamBreaker.rejection_index());
    }
    if let Some(rule) = &config.server.overload {
        for condition in rule.conditions() {
            record.rejections.export_series(overload_end(condition).rejection_index());
        }
    }
}
