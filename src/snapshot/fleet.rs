//! The state of all upstream servers, shared by all workers and kept over reloads: an ejected server stays ejected
//! after a reload. Also exports this state as metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::route::Route;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::metrics::exposition::series;
use crate::upstream::Upstream;
use crate::upstream::breaker::{BreakerKind, CircuitBreaker};
use crate::upstream::hostname::{HostnameState, LookupOutcome, NamedAddress};
use crate::upstream::roster::UpstreamState;
use crate::upstream::state::{Health, ServerState};

/// The state of all upstreams and of their hostnames. A clone shares the state.
#[derive(Clone)]
pub struct Fleet {
    started: Instant,
    upstreams: Arc<Mutex<BTreeMap<String, Arc<UpstreamState>>>>,
    /// Breakers of routes, by the name of the route.
    route_breakers: Arc<Mutex<BTreeMap<String, Arc<CircuitBreaker>>>>,
    /// DNS state of hostnames, for the active servers and for those of a config that is about to be active.
    names: Arc<Mutex<BTreeMap<String, Arc<HostnameState>>>>,
}

impl Fleet {
    /// Creates an empty fleet and registers its metrics.
    ///
    /// # Errors
    /// The metrics are registered already.
    pub fn new(metrics: &Metrics) -> prometheus::Result<Fleet> {
        let fleet = Fleet {
            started: Instant::now(),
            upstreams: Arc::default(),
            route_breakers: Arc::default(),
            names: Arc::default(),
        };
        metrics.export(FleetMetrics::new(fleet.clone())?)?;
        Ok(fleet)
    }

    /// Returns the milliseconds since the start. All threads use this clock.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the active upstreams, sorted by name.
    pub fn upstreams(&self) -> Vec<Arc<UpstreamState>> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the state of a new config's upstreams. Servers that are active now keep their state.
    pub fn build_states(&self, upstreams: &[Arc<Upstream>]) -> Vec<Arc<UpstreamState>> {
        let current = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.now_ms();
        let enlist = |settings: &Arc<Upstream>| {
            let before = current.get(&settings.name).map(Arc::as_ref);
            Arc::new(UpstreamState::new(settings.clone(), before, |name| self.get_or_create_hostname(name), now_ms))
        };
        upstreams.iter().map(enlist).collect()
    }

    /// Returns the breakers of a new config's routes, indexed like `routes`; empty if no route has one. Those that are
    /// in effect now keep their state.
    pub fn build_route_breakers(&self, routes: &[Route]) -> Vec<Option<Arc<CircuitBreaker>>> {
        if routes.iter().all(|route| route.breaker.is_none()) {
            return Vec::new();
        }
        let current = self.route_breakers.lock().unwrap_or_else(PoisonError::into_inner);
        let breaker = |route: &Route| {
            let rule = route.breaker.as_deref()?;
            let new = || Arc::new(CircuitBreaker::new(BreakerKind::Route, &route.name, *rule));
            Some(current.get(&route.name).map_or_else(new, Arc::clone))
        };
        routes.iter().map(breaker).collect()
    }

    /// Replaces the breakers of active routes, and applies their rules.
    pub fn activate_route_breakers(&self, routes: &[Route], breakers: &[Option<Arc<CircuitBreaker>>]) {
        let mut by_name = BTreeMap::new();
        for (route, breaker) in routes.iter().zip(breakers) {
            if let (Some(breaker), Some(rule)) = (breaker, &route.breaker) {
                breaker.apply_rule(**rule, self.now_ms());
                by_name.insert(route.name.clone(), breaker.clone());
            }
        }
        *self.route_breakers.lock().unwrap_or_else(PoisonError::into_inner) = by_name;
    }

    /// Returns all active breakers: those of upstreams, then those of routes, sorted by name.
    pub fn breakers(&self) -> Vec<Arc<CircuitBreaker>> {
        let mut breakers: Vec<Arc<CircuitBreaker>> =
            self.upstreams().iter().filter_map(|upstream| upstream.breaker().cloned()).collect();
        breakers.extend(self.route_breakers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned());
        breakers
    }

    /// Replaces the active upstreams, and drops the DNS state of hostnames that they do not have.
    pub fn activate(&self, upstreams: &[Arc<UpstreamState>]) {
        upstreams.iter().for_each(|upstream| upstream.apply_breaker_rule(self.now_ms()));
        upstreams.iter().for_each(|upstream| upstream.apply_adaptive_rule());
        let by_name = upstreams.iter().map(|upstream| (upstream.settings.name.clone(), upstream.clone()));
        *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = by_name.collect();
        let names =
            upstreams.iter().flat_map(|upstream| upstream.names()).map(|name| (name.name.clone(), name.clone()));
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names.collect();
    }

    /// Returns the DNS state of a hostname, new or existing. It is kept until a config without that name is active.
    pub fn get_or_create_hostname(&self, name: &str) -> Arc<HostnameState> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.entry(name.to_owned()).or_insert_with(|| Arc::new(HostnameState::new(name))).clone()
    }

    /// Records a successful lookup. Returns true if the addresses have changed.
    pub fn record_lookup(&self, name: &Arc<HostnameState>, addresses: &[NamedAddress]) -> bool {
        let has_changed = name.store_addresses(addresses);
        if has_changed {
            let uses_name = |upstream: &&Arc<UpstreamState>| upstream.names().iter().any(|its| Arc::ptr_eq(its, name));
            self.upstreams().iter().filter(uses_name).for_each(|upstream| upstream.rebuild_roster(self.now_ms()));
        }
        has_changed
    }

    fn hostnames(&self) -> Vec<Arc<HostnameState>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

/// Exports the state of the servers as metrics.
struct FleetMetrics {
    fleet: Fleet,
    families: Vec<Desc>,
}

/// Name, kind, help and labels of each metric family, in the order in which `collect` fills them.
const FAMILIES: [(&str, proto::MetricType, &str, &[&str]); 8] = [
    ("upstream_up", GAUGE, "1 while the server is healthy, 0 while it gets no requests.", &["server", "upstream"]),
    ("upstream_addresses", GAUGE, "Current addresses of a server configured by hostname.", &["server", "upstream"]),
    ("upstream_ejected", GAUGE, "Servers that are ejected because requests to them failed.", &["upstream"]),
    (
        "upstream_fail_open",
        GAUGE,
        "1 while all servers are down and requests are sent anyway (fail open).",
        &["upstream"],
    ),
    (
        "upstream_in_flight",
        GAUGE,
        "Requests in flight at a server, if its upstream has limits of requests or connections.",
        &["server", "upstream"],
    ),
    ("upstream_connections", GAUGE, "Connections to a server that has `max_connections`.", &["server", "upstream"]),
    ("upstream_waiting", GAUGE, "Requests in the queue for a server with a free slot.", &["upstream"]),
    ("dns_lookups_total", COUNTER, "DNS lookups of server hostnames.", &["name", "result"]),
];
const GAUGE: proto::MetricType = proto::MetricType::GAUGE;
const COUNTER: proto::MetricType = proto::MetricType::COUNTER;

impl FleetMetrics {
    fn new(fleet: Fleet) -> prometheus::Result<FleetMetrics> {
        let family = |(name, _, help, labels): (&str, proto::MetricType, &str, &[&str])| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(format!("sluicegate_{name}"), help.to_owned(), labels, HashMap::new())
        };
        Ok(FleetMetrics { fleet, families: FAMILIES.into_iter().map(family).collect::<prometheus::Result<_>>()? })
    }
}

impl Collector for FleetMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let [
            mut up,
            mut addresses,
            mut ejected,
            mut fail_open,
            mut in_flight,
            mut connections,
            mut waiting,
            mut lookups,
        ] = [const { Vec::new() }; 8];
        let now_ms = self.fleet.now_ms();
        for upstream in self.fleet.upstreams() {
            let name = upstream.settings.name.as_str();
            let roster = upstream.roster();
            let health = |state: &ServerState| state.report_health(now_ms).health;
            for server in &upstream.settings.servers {
                let members = || roster.iter().filter(|member| member.endpoint.origin == server.origin);
                let origin = server.origin.to_string();
                let labels = [("server", origin.as_str()), ("upstream", name)];
                let is_up = members().any(|member| health(&member.state) == Health::Up);
                up.push(series::gauge_metric(i64::from(is_up), &labels));
                if let Some(rule) = upstream.settings.caps.as_ref().map(|rule| server.caps.override_rule(rule)) {
                    let sum = |of: fn(&ServerState) -> u32| members().map(|member| i64::from(of(&member.state))).sum();
                    in_flight.push(series::gauge_metric(sum(ServerState::in_flight), &labels));
                    if rule.caps_connections() {
                        connections.push(series::gauge_metric(sum(ServerState::connections), &labels));
                    }
                }
                if server.origin.hostname().is_some() {
                    addresses.push(series::gauge_metric(i64::try_from(members().count()).unwrap_or(i64::MAX), &labels));
                }
            }
            if upstream.settings.caps.is_some() {
                let count = i64::try_from(upstream.load().queue.len()).unwrap_or(i64::MAX);
                waiting.push(series::gauge_metric(count, &[("upstream", name)]));
            }
            let count = |wanted| roster.iter().filter(|member| health(&member.state) == wanted).count();
            let none_up = count(Health::Up) == 0;
            let count = i64::try_from(count(Health::Ejected)).unwrap_or(i64::MAX);
            ejected.push(series::gauge_metric(count, &[("upstream", name)]));
            fail_open.push(series::gauge_metric(i64::from(none_up), &[("upstream", name)]));
        }
        for name in self.fleet.hostnames() {
            let result = |outcome: &LookupOutcome| {
                series::counter_metric(name.lookups(*outcome), &[("name", &name.name), ("result", outcome.label())])
            };
            lookups.extend(LookupOutcome::ALL.iter().map(result));
        }
        let metrics = [up, addresses, ejected, fail_open, in_flight, connections, waiting, lookups];
        let families = self.families.iter().zip(FAMILIES).zip(metrics);
        families.map(|((desc, (_, kind, ..)), metrics)| series::build_family(desc, kind, metrics)).collect()
    }
}
