//! What requests count on: the records of one route and of its limits, which of their series exist
//! before anything is counted, and the parts of them that one worker writes. Records are bound when a
//! config is loaded, parts with a worker's first request of the route.

use std::sync::Arc;

use http::{Method, StatusCode};

use crate::config::Config;
use crate::limit::integers::NotInteger;
use crate::limit::key::{Cost, Missing};
use crate::limit::limits::{Limit, Mode, OnError};
use crate::limit::source::Repeated;
use crate::limit::{Checked, Outcome, Standing};
use crate::metrics::{Code, Decision, LimitCounts, LimitRecord, Reason, RouteCounts, RouteRecord, Shard};
use crate::route::Route;

/// The records of one route: what a snapshot holds of its metrics.
pub struct RouteRecords {
    route: Arc<RouteRecord>,
    /// Of the route's limits, same index.
    limits: Vec<Arc<LimitRecord>>,
    capped: bool,
}

/// What one worker counts on for one route.
pub struct RouteHandles {
    counts: Arc<Shard<RouteCounts>>,
    /// Of the route's limits, same index.
    pub limits: Vec<LimitHandles>,
    /// Where requests in flight are counted over all workers.
    capped: Option<Arc<RouteRecord>>,
}

/// What one worker counts on for one limit on one route.
pub struct LimitHandles(Arc<Shard<LimitCounts>>);

impl RouteRecords {
    /// Of `route`; the series that it can produce exist from now on.
    pub fn new(record: Arc<RouteRecord>, route: &Route, config: &Config) -> RouteRecords {
        prepare(&record, route);
        let limits = route.limits.iter().map(|limit| {
            let record = record.limit(&limit.name);
            prepare_limit(&record, limit, route, config);
            record
        });
        RouteRecords { limits: limits.collect(), capped: route.max_in_flight.is_some(), route: record }
    }

    /// Of requests that no route takes.
    pub fn unmatched(record: Arc<RouteRecord>) -> RouteRecords {
        RouteRecords { route: record, limits: Vec::new(), capped: false }
    }

    pub fn of_worker(&self, worker: usize) -> RouteHandles {
        RouteHandles {
            counts: self.route.shards.of(worker),
            limits: self.limits.iter().map(|limit| LimitHandles(limit.shards.of(worker))).collect(),
            capped: self.capped.then(|| self.route.clone()),
        }
    }
}

impl RouteHandles {
    /// Counts a request in. False when the route, which serves `max` at once, is full; it is in all the same.
    pub fn enter(&self, max: Option<usize>) -> bool {
        match (&self.capped, max) {
            (Some(record), Some(max)) => record.enter_capped(max),
            _ => {
                self.counts.in_flight.inc();
                true
            }
        }
    }

    /// Counts a request out that came in here.
    pub fn leave(&self) {
        match &self.capped {
            Some(record) => record.leave_capped(),
            None => self.counts.in_flight.dec(),
        }
    }

    /// Counts an answer.
    pub fn answer(&self, method: &Method, status: StatusCode) {
        self.counts.requests.inc(Code::new(method, status));
    }

    /// Counts the time that a request took in all.
    pub fn observe(&self, seconds: f64) {
        self.counts.duration.observe(seconds);
    }

    /// Counts a refusal that no limit made.
    pub fn reject(&self, reason: Reason) {
        self.counts.rejections.inc(reason as usize);
    }
}

/// Creates the series that `limit` can produce on `route`.
fn prepare_limit(record: &LimitRecord, limit: &Limit, route: &Route, config: &Config) {
    let want = |decision: Decision| record.decisions.want(decision as usize);
    want(Decision::Allow);
    // Live overrides are read from a shared store, and any limit may get one.
    let has_overrides = config.store.is_shared() || limit.overrides.any();
    match limit.mode {
        Mode::Enforce => {
            want(Decision::Deny);
            if limit.rule.delays() {
                want(Decision::Delayed);
                record.rejections.want(Reason::MaxDelayed as usize);
            }
            record.rejections.want(Reason::Exhausted as usize);
            if limit.repeated == Repeated::Refuse && limit.reads_repeatable() {
                record.rejections.want(Reason::RepeatedKey as usize);
            }
            if limit.not_integer == NotInteger::Refuse && limit.integers().next().is_some() {
                record.rejections.want(Reason::NotInteger as usize);
            }
            if limit.key.reads_body() {
                record.rejections.want(Reason::UnreadableKey as usize);
            }
            if limit.missing == Missing::Refuse {
                record.rejections.want(Reason::MissingKey as usize);
            }
            // A rate of 0 blocks a key: a live override, or one in the file.
            if config.store.is_shared() || has_overrides {
                record.rejections.want(Reason::Blocked as usize);
            }
            if has_overrides || limit.cost != Cost::Fixed(1) {
                record.rejections.want(Reason::NeverFits as usize);
            }
        }
        Mode::Shadow => want(Decision::ShadowDeny),
    }
    if !route.allow.is_empty() || limit.after.is_some() || has_overrides {
        want(Decision::Bypass);
    }
    match (config.store.is_shared(), limit.on_error) {
        (false, _) => {}
        (_, OnError::Open) => want(Decision::ErrorOpen),
        (_, OnError::Local) => {
            want(Decision::LocalAllow);
            want(Decision::LocalDeny);
        }
        (_, OnError::Closed) => {
            want(Decision::ErrorClosed);
            record.rejections.want(Reason::StoreDown as usize);
        }
    }
}

/// What a limit did to a request. One that hands over denies, though nobody is refused for it; one whose turn
/// has not come, or that has no end for this key, is bypassed.
pub fn decision(mode: Mode, checked: &Checked) -> Decision {
    let outcome = &checked.outcome;
    match (outcome, outcome.admitted()) {
        (Outcome::Unlimited, _) => Decision::Bypass,
        _ if checked.standing == Standing::NotYet => Decision::Bypass,
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

impl LimitHandles {
    /// Counts the limit's part in a decision.
    pub fn decide(&self, mode: Mode, checked: &Checked) {
        self.0.decisions.inc(decision(mode, checked) as usize);
    }

    /// Counts a request that the route's `allow` list let past the limit.
    pub fn bypass(&self) {
        self.0.decisions.inc(Decision::Bypass as usize);
    }

    /// Counts a refused request against the limit that refused it.
    pub fn reject(&self, reason: Reason) {
        self.0.rejections.inc(reason as usize);
    }
}

/// Creates the series that `route` can produce, those of its limits aside.
fn prepare(record: &RouteRecord, route: &Route) {
    record.want(Code::new(&Method::GET, StatusCode::OK));
    for limit in &route.limits {
        record.want(Code::new(&Method::GET, limit.refuse(&route.refuse).status));
    }
    if !route.deny.is_empty() {
        record.rejections.want(Reason::Denied as usize);
    }
    if route.max_in_flight.is_some() {
        record.rejections.want(Reason::MaxInFlight as usize);
    }
}
