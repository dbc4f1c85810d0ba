//! What all workers know of the servers of all upstreams, kept over reloads by upstream and server: a server
//! that stays is still ejected after a reload. Owned by the control thread, shown as metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::metrics::{Metrics, shown};
use crate::upstream::roster::{Member, UpstreamState};
use crate::upstream::state::{Health, ServerState};
use crate::upstream::{Server, Upstream};

#[derive(Clone)]
pub struct Fleet {
    started: Instant,
    upstreams: Arc<Mutex<BTreeMap<String, Arc<UpstreamState>>>>,
}

impl Fleet {
    /// Shown by `metrics` from now on.
    ///
    /// # Errors
    /// When it is there already.
    pub fn new(metrics: &Metrics) -> prometheus::Result<Fleet> {
        let fleet = Fleet { started: Instant::now(), upstreams: Arc::default() };
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
        upstreams.iter().map(|settings| enlist(settings, known.get(&settings.name), now_ms)).collect()
    }

    /// These are in force now, and no others.
    pub fn put_in_force(&self, upstreams: &[Arc<UpstreamState>]) {
        let named = upstreams.iter().map(|upstream| (upstream.settings.name.clone(), upstream.clone()));
        *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = named.collect();
    }
}

fn enlist(settings: &Arc<Upstream>, before: Option<&Arc<UpstreamState>>, now_ms: u64) -> Arc<UpstreamState> {
    // Where all are new, none has to catch up with others.
    let new = || if before.is_some() { Arc::new(ServerState::newcomer(now_ms)) } else { Arc::default() };
    let known = before.map(|before| before.roster()).unwrap_or_default();
    let mut known: HashMap<_, &Member> = known.iter().map(|member| (&member.server.origin, member)).collect();
    let member = |server: &Server| {
        let state = known.remove(&server.origin).map_or_else(new, |member| member.state.clone());
        if settings.eject.is_none() {
            state.pardon();
        }
        if settings.health.is_none() {
            state.unchecked();
        }
        Member { server: server.clone(), state }
    };
    let roster: Vec<Member> = settings.servers.iter().map(member).collect();
    Arc::new(UpstreamState::new(settings.clone(), Arc::new(roster)))
}

/// Shows the servers as metric families.
struct FleetMetrics {
    fleet: Fleet,
    families: Vec<Desc>,
}

/// Name, help and labels of each family, in the order in which they are filled.
const FAMILIES: [(&str, &str, &[&str]); 3] = [
    ("upstream_up", "1 while requests go to the server, 0 while it is passed over.", &["server", "upstream"]),
    ("upstream_ejected", "Servers that are passed over because requests failed there.", &["upstream"]),
    ("upstream_fail_open", "1 while no server is up, so that all are asked.", &["upstream"]),
];

impl FleetMetrics {
    fn new(fleet: Fleet) -> prometheus::Result<FleetMetrics> {
        let family = |(name, help, labels): (&str, &str, &[&str])| {
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
        let [mut up, mut ejected, mut fail_open] = [const { Vec::new() }; 3];
        let now_ms = self.fleet.now_ms();
        for upstream in self.fleet.upstreams() {
            let name = upstream.settings.name.as_str();
            let roster = upstream.roster();
            let health = |state: &ServerState| state.told(now_ms).health;
            for member in roster.iter() {
                let server = member.server.origin.to_string();
                let labels = [("server", server.as_str()), ("upstream", name)];
                up.push(shown::gauge(i64::from(health(&member.state) == Health::Up), &labels));
            }
            let are = |which| roster.iter().filter(|member| health(&member.state) == which).count();
            let none_up = are(Health::Up) == 0;
            let count = i64::try_from(are(Health::Ejected)).unwrap_or(i64::MAX);
            ejected.push(shown::gauge(count, &[("upstream", name)]));
            fail_open.push(shown::gauge(i64::from(none_up), &[("upstream", name)]));
        }
        let metrics = [up, ejected, fail_open];
        let families = self.families.iter().zip(metrics);
        families.map(|(desc, metrics)| shown::family(desc, proto::MetricType::GAUGE, metrics)).collect()
    }
}
