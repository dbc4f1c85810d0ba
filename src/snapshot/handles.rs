//! What requests count on: the records of one route and of its limits, and which of their series
//! exist before anything is counted. Made when a config is loaded.

use std::sync::Arc;

use http::{Method, StatusCode};

use crate::config::Config;
use crate::limit::limits::{Limit, Mode, OnError};
use crate::limit::source::Repeated;
use crate::limit::{Checked, Outcome, Standing};
use crate::metrics::{Decision, LimitRecord, Reason, RouteRecord};
use crate::route::Route;

/// The counts of one limit on one route.
pub struct LimitHandles(Arc<LimitRecord>);

impl LimitHandles {
    /// Of `limit` on `route`; the series that it can produce exist from now on.
    pub fn new(record: Arc<LimitRecord>, limit: &Limit, route: &Route, config: &Config) -> LimitHandles {
        let want = |decision: Decision| record.decisions.want(decision as usize);
        want(Decision::Allow);
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
            }
            Mode::Shadow => want(Decision::ShadowDeny),
        }
        if !route.allow.is_empty() || limit.after.is_some() {
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
        LimitHandles(record)
    }

    /// Counts the limit's part in a decision. One that hands over denies, though nobody is refused
    /// for it; one whose turn has not come, or that has no end for this key, is bypassed.
    pub fn decide(&self, mode: Mode, checked: &Checked) {
        let outcome = &checked.outcome;
        let decision = match (outcome, outcome.admitted()) {
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
        };
        self.0.decisions.inc(decision as usize);
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
pub fn prepare(record: &RouteRecord, route: &Route) {
    record.requests.want(&Method::GET, StatusCode::OK);
    if !route.limits.is_empty() {
        record.requests.want(&Method::GET, route.refuse.status);
    }
    if !route.deny.is_empty() {
        record.rejections.want(Reason::Denied as usize);
    }
    if route.max_in_flight.is_some() {
        record.rejections.want(Reason::MaxInFlight as usize);
    }
}
