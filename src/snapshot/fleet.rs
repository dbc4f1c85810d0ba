//! What all workers know of the servers of all upstreams, kept over reloads by upstream and server: a server
//! that stays is still ejected after a reload. Owned by the control thread, shown as metrics.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::metrics::{Metrics, shown};
use crate::upstream::Upstream;
use crate::upstream::names::{KnownName, LookupOutcome};
use crate::upstream::roster::UpstreamState;
use crate::upstream::state::{Health, ServerState};

#[derive(Clone)]
pub struct Fleet {
    started: Instant,
    upstreams: Arc<Mutex<BTreeMap<String, Arc<UpstreamState>>>>,
    /// The names of their servers, and of those of a config that is about to be in force.
    names: Arc<Mutex<BTreeMap<String, Arc<KnownName>>>>,
}

impl Fleet {
    /// Shown by `metrics` from now on.
    ///
    /// # Errors
    /// When it is there already.
    pub fn new(metrics: &Metrics) -> prometheus::Result<Fleet> {
        let fleet = Fleet { started: Instant::now(), upstreams: Arc::default(), names: Arc::default() };
        metrics.show(FleetMetrics::new(fleet.clone())?)?;
        Ok(fleet)
    }

    /// Milliseconds since the start, the same for all threads.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Those in force, by name.
    pub fn upstreams(&self) -> Vec<Arc<UpstreamState>> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The upstreams of a config, with what is known of those of their servers that are in force now.
    pub fn enlist(&self, upstreams: &[Arc<Upstream>]) -> Vec<Arc<UpstreamState>> {
        let known = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.now_ms();
        let enlist = |settings: &Arc<Upstream>| {
            let before = known.get(&settings.name).map(Arc::as_ref);
            Arc::new(UpstreamState::new(settings.clone(), before, |name| self.name(name), now_ms))
        };
        upstreams.iter().map(enlist).collect()
    }

    /// These are in force now, and no others.
    pub fn put_in_force(&self, upstreams: &[Arc<UpstreamState>]) {
        let named = upstreams.iter().map(|upstream| (upstream.settings.name.clone(), upstream.clone()));
        *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = named.collect();
        let names =
            upstreams.iter().flat_map(|upstream| upstream.names()).map(|name| (name.name.clone(), name.clone()));
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names.collect();
    }

    /// What is known of a name from now on, until a config without it is in force.
    pub fn name(&self, name: &str) -> Arc<KnownName> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.entry(name.to_owned()).or_insert_with(|| Arc::new(KnownName::new(name))).clone()
    }

    /// A name was found. True when its addresses are others than before.
    pub fn found(&self, name: &Arc<KnownName>, addresses: &[IpAddr]) -> bool {
        let changed = name.found(addresses);
        if changed {
            let is_its = |upstream: &&Arc<UpstreamState>| upstream.names().iter().any(|its| Arc::ptr_eq(its, name));
            self.upstreams().iter().filter(is_its).for_each(|upstream| upstream.renew(self.now_ms()));
        }
        changed
    }

    fn names(&self) -> Vec<Arc<KnownName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

/// Shows the servers as metric families.
struct FleetMetrics {
    fleet: Fleet,
    families: Vec<Desc>,
}

/// Name, kind, help and labels of each family, in the order in which they are filled.
const FAMILIES: [(&str, proto::MetricType, &str, &[&str]); 8] = [
    ("upstream_up", GAUGE, "1 while the server is healthy, 0 while it is passed over.", &["server", "upstream"]),
    ("upstream_addresses", GAUGE, "Addresses of a server that is written with a name.", &["server", "upstream"]),
    ("upstream_ejected", GAUGE, "Servers that are passed over because requests failed there.", &["upstream"]),
    ("upstream_fail_open", GAUGE, "1 while no server is up, so that all are asked.", &["upstream"]),
    ("upstream_in_flight", GAUGE, "Requests at a server, where they are capped.", &["server", "upstream"]),
    ("upstream_connections", GAUGE, "Connections to a server, where they are capped.", &["server", "upstream"]),
    ("upstream_waiting", GAUGE, "Requests that wait for a server with room, where that is capped.", &["upstream"]),
    ("dns_lookups_total", COUNTER, "Lookups of the names of servers.", &["name", "result"]),
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
            let health = |state: &ServerState| state.told(now_ms).health;
            for server in &upstream.settings.servers {
                let its = || roster.iter().filter(|member| member.endpoint.origin == server.origin);
                let origin = server.origin.to_string();
                let labels = [("server", origin.as_str()), ("upstream", name)];
                let is_up = its().any(|member| health(&member.state) == Health::Up);
                up.push(shown::gauge(i64::from(is_up), &labels));
                if let Some(rule) = upstream.settings.caps.as_ref().map(|rule| server.caps.within(rule)) {
                    let sum = |of: fn(&ServerState) -> u32| its().map(|member| i64::from(of(&member.state))).sum();
                    in_flight.push(shown::gauge(sum(ServerState::in_flight), &labels));
                    if rule.caps_connections() {
                        connections.push(shown::gauge(sum(ServerState::connections), &labels));
                    }
                }
                if server.origin.host_name().is_some() {
                    addresses.push(shown::gauge(i64::try_from(its().count()).unwrap_or(i64::MAX), &labels));
                }
            }
            if upstream.settings.caps.is_some() {
                let count = i64::try_from(upstream.load().line.len()).unwrap_or(i64::MAX);
                waiting.push(shown::gauge(count, &[("upstream", name)]));
            }
            let are = |which| roster.iter().filter(|member| health(&member.state) == which).count();
            let none_up = are(Health::Up) == 0;
            let count = i64::try_from(are(Health::Ejected)).unwrap_or(i64::MAX);
            ejected.push(shown::gauge(count, &[("upstream", name)]));
            fail_open.push(shown::gauge(i64::from(none_up), &[("upstream", name)]));
        }
        for name in self.fleet.names() {
            let result = |outcome: &LookupOutcome| {
                shown::counter(name.lookups(*outcome), &[("name", &name.name), ("result", outcome.label())])
            };
            lookups.extend(LookupOutcome::ALL.iter().map(result));
        }
        let metrics = [up, addresses, ejected, fail_open, in_flight, connections, waiting, lookups];
        let families = self.families.iter().zip(FAMILIES).zip(metrics);
        families.map(|((desc, (_, kind, ..)), metrics)| shown::family(desc, kind, metrics)).collect()
    }
}
