//! Handles bound to one route: what the request path increments. Made when a config is loaded,
//! removed with their series when the route or limit goes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use http::{Method, StatusCode};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::config::Config;
use crate::limit::rule::{Limit, Mode, OnError};
use crate::limit::store::settings::StoreKind;
use crate::limit::{Checked, Outcome, Standing};
use crate::metrics::Metrics;
use crate::route::Route;

/// The `limit` label of rejections that no limit made.
pub const NO_LIMIT: &str = "_none";

/// Handles of one route. They outlive a reload that keeps the route.
pub struct RouteMetrics {
    route: String,
    requests_vec: IntCounterVec,
    duration_vec: HistogramVec,
    in_flight_vec: IntGaugeVec,
    decisions_vec: IntCounterVec,
    rejections_vec: IntCounterVec,
    /// By method; a table of status codes exists once the method was seen.
    requests: [OnceLock<Box<CodeTable>>; METHODS.len()],
    pub duration: Histogram,
    pub in_flight: IntGauge,
    limits: Mutex<HashMap<String, Arc<LimitMetrics>>>,
    unlimited: Arc<LimitMetrics>,
}

type CodeTable = [OnceLock<IntCounter>; CODES];
const CODES: usize = 500;

/// Label values of `method`; every other method counts as the last.
const METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "OTHER"];

/// Handles of one limit on one route.
pub struct LimitMetrics {
    route: String,
    limit: String,
    decisions_vec: IntCounterVec,
    rejections_vec: IntCounterVec,
    decisions: [OnceLock<IntCounter>; DECISIONS.len()],
    rejections: [OnceLock<IntCounter>; Reason::ALL.len()],
}

/// Label values of `decision`.
const DECISIONS: [&str; 9] =
    ["allow", "deny", "shadow_deny", "delayed", "bypass", "error_open", "error_closed", "local_allow", "local_deny"];

/// Why a routed request was refused; the `reason` label of `rejections_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A limit is exhausted.
    Exhausted,
    /// The cost is above all the limit can ever hold.
    NeverFits,
    /// A part of the limit's key is missing.
    MissingKey,
    /// The key's override is a rate of 0.
    Blocked,
    /// The store is away and the limit is `on_error = "closed"`.
    StoreDown,
    /// The client's address is on the route's `deny` list.
    Denied,
    /// The route serves `max_in_flight` requests already.
    MaxInFlight,
}

impl Reason {
    const ALL: [Reason; 7] = [
        Reason::Exhausted,
        Reason::NeverFits,
        Reason::MissingKey,
        Reason::Blocked,
        Reason::StoreDown,
        Reason::Denied,
        Reason::MaxInFlight,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Reason::Exhausted => "exhausted",
            Reason::NeverFits => "never_fits",
            Reason::MissingKey => "missing_key",
            Reason::Blocked => "blocked",
            Reason::StoreDown => "store_down",
            Reason::Denied => "denied",
            Reason::MaxInFlight => "max_in_flight",
        }
    }
}

impl RouteMetrics {
    pub fn new(route: &str, metrics: &Metrics) -> RouteMetrics {
        RouteMetrics {
            route: route.to_owned(),
            requests_vec: metrics.requests.clone(),
            duration_vec: metrics.duration.clone(),
            in_flight_vec: metrics.in_flight.clone(),
            decisions_vec: metrics.decisions.clone(),
            rejections_vec: metrics.rejections.clone(),
            requests: Default::default(),
            duration: metrics.duration.with_label_values(&[route]),
            in_flight: metrics.in_flight.with_label_values(&[route]),
            limits: Mutex::default(),
            unlimited: Arc::new(LimitMetrics::new(route, NO_LIMIT, &metrics.decisions, &metrics.rejections)),
        }
    }

    /// Counts an answered request.
    pub fn count(&self, method: &Method, status: StatusCode) {
        let method = METHODS.iter().position(|name| *name == method.as_str()).unwrap_or(METHODS.len() - 1);
        let table = self.requests[method].get_or_init(|| Box::new([const { OnceLock::new() }; CODES]));
        let slot = usize::from(status.as_u16().saturating_sub(100)).min(CODES - 1);
        let make = || self.requests_vec.with_label_values(&[&self.route, METHODS[method], status.as_str()]);
        table[slot].get_or_init(make).inc();
    }

    /// Counts a refusal that no limit made.
    pub fn reject(&self, reason: Reason) {
        self.unlimited.reject(reason);
    }

    /// The handles of the route's limit `name`.
    pub fn limit(&self, name: &str) -> Arc<LimitMetrics> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(LimitMetrics::new(&self.route, name, &self.decisions_vec, &self.rejections_vec));
        limits.entry(name.to_owned()).or_insert_with(make).clone()
    }

    /// Creates the series that `route` can produce, so that rates are computed from 0 on.
    pub fn prepare(&self, route: &Route, config: &Config) {
        let make_request = |code| drop(self.requests_vec.with_label_values(&[self.route.as_str(), "GET", code]));
        make_request("200");
        if !route.limits.is_empty() {
            make_request(route.refuse.status.as_str());
        }
        if !route.deny.is_empty() {
            self.unlimited.rejection(Reason::Denied);
        }
        if route.max_in_flight.is_some() {
            self.unlimited.rejection(Reason::MaxInFlight);
        }
        for limit in &route.limits {
            self.limit(&limit.name).prepare(limit, route, config);
        }
    }

    pub fn retire_limits(&self, kept: &HashSet<&str>) {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.retain(|name, handles| kept.contains(name.as_str()) || handles.retire());
    }

    pub fn retire(&self) {
        self.retire_limits(&HashSet::new());
        self.unlimited.retire();
        let _ = self.duration_vec.remove_label_values(&[&self.route]);
        let _ = self.in_flight_vec.remove_label_values(&[&self.route]);
        for method in METHODS {
            for code in 100..600 {
                let _ = self.requests_vec.remove_label_values(&[self.route.as_str(), method, &code.to_string()]);
            }
        }
    }
}

impl LimitMetrics {
    fn new(route: &str, limit: &str, decisions: &IntCounterVec, rejections: &IntCounterVec) -> LimitMetrics {
        LimitMetrics {
            route: route.to_owned(),
            limit: limit.to_owned(),
            decisions_vec: decisions.clone(),
            rejections_vec: rejections.clone(),
            decisions: Default::default(),
            rejections: Default::default(),
        }
    }

    /// Counts the limit's part in a decision. One that hands over denies, though nobody is refused
    /// for it; one whose turn has not come, or that has no end for this key, is bypassed.
    pub fn decide(&self, mode: Mode, checked: &Checked) {
        let outcome = &checked.outcome;
        let decision = match (outcome, outcome.admitted()) {
            (Outcome::Unlimited, _) => "bypass",
            _ if checked.standing == Standing::NotYet => "bypass",
            (Outcome::Local(_), true) => "local_allow",
            (Outcome::Local(_), false) => "local_deny",
            (Outcome::Open, _) => "error_open",
            (Outcome::Closed, _) => "error_closed",
            (Outcome::Store(answer), true) if answer.retry_ms > 0 && mode == Mode::Enforce => "delayed",
            (_, true) => "allow",
            (_, false) if mode == Mode::Shadow => "shadow_deny",
            (_, false) => "deny",
        };
        self.decision(decision).inc();
    }

    /// Counts a request that the route's `allow` list let past the limit.
    pub fn bypass(&self) {
        self.decision("bypass").inc();
    }

    /// Counts a refused request against the limit that refused it.
    pub fn reject(&self, reason: Reason) {
        self.rejection(reason).inc();
    }

    fn decision(&self, decision: &'static str) -> &IntCounter {
        let slot = DECISIONS.iter().position(|name| *name == decision).unwrap_or(0);
        self.decisions[slot]
            .get_or_init(|| self.decisions_vec.with_label_values(&[self.route.as_str(), &self.limit, decision]))
    }

    fn rejection(&self, reason: Reason) -> &IntCounter {
        self.rejections[reason as usize]
            .get_or_init(|| self.rejections_vec.with_label_values(&[self.route.as_str(), &self.limit, reason.label()]))
    }

    fn prepare(&self, limit: &Limit, route: &Route, config: &Config) {
        let (mut decisions, mut reasons) = (vec!["allow"], Vec::new());
        match limit.mode {
            Mode::Enforce => {
                decisions.push("deny");
                if limit.rule.delays() {
                    decisions.push("delayed");
                }
                reasons.push(Reason::Exhausted);
            }
            Mode::Shadow => decisions.push("shadow_deny"),
        }
        if !route.allow.is_empty() || limit.after.is_some() {
            decisions.push("bypass");
        }
        match (&config.store.kind, limit.on_error) {
            (StoreKind::Memory, _) => {}
            (_, OnError::Open) => decisions.push("error_open"),
            (_, OnError::Local) => decisions.extend(["local_allow", "local_deny"]),
            (_, OnError::Closed) => {
                decisions.push("error_closed");
                reasons.push(Reason::StoreDown);
            }
        }
        for decision in decisions {
            self.decision(decision);
        }
        for reason in reasons {
            self.rejection(reason);
        }
    }

    /// Removes the limit's series; false, for `retain`.
    fn retire(&self) -> bool {
        for decision in DECISIONS {
            let _ = self.decisions_vec.remove_label_values(&[self.route.as_str(), &self.limit, decision]);
        }
        for reason in Reason::ALL {
            let _ = self.rejections_vec.remove_label_values(&[self.route.as_str(), &self.limit, reason.label()]);
        }
        false
    }
}
