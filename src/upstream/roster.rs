//! The servers of one upstream with their shared state: one member per address if a server has a hostname. Kept by the
//! snapshot, read by each worker's `select::selector`, changed by the control thread.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::upstream::breaker::{BreakerKind, CircuitBreaker};
use crate::upstream::caps::{CapRule, UpstreamLoad};
use crate::upstream::eject::{Blame, EjectRule};
use crate::upstream::endpoint::{Endpoint, ServerLocation};
use crate::upstream::hostname::{ADDRESSES_MAX, HostnameState, NamedAddress};
use crate::upstream::state::ServerState;
use crate::upstream::{Origin, Upstream};

/// An active upstream.
pub struct UpstreamState {
    pub settings: Arc<Upstream>,
    /// The hostnames of its servers.
    names: Vec<Arc<HostnameState>>,
    members: Mutex<Members>,
    load: Arc<UpstreamLoad>,
    /// The circuit breaker, if the upstream has one.
    breaker: Option<Arc<CircuitBreaker>>,
    /// Number of the current roster. A worker compares it to notice a change.
    version: AtomicU64,
}

struct Members {
    roster: Roster,
    /// Addresses that were removed recently, oldest first. The state of one that returns is restored.
    removed: VecDeque<(Endpoint, Arc<ServerState>)>,
}

/// The members in config order; the addresses of one hostname in ascending order.
pub type Roster = Arc<Vec<Member>>;

/// One address of a server.
#[derive(Clone)]
pub struct Member {
    pub endpoint: Endpoint,
    /// The weight of its server in the config.
    pub weight: u32,
    /// The part of the weight that this address has. The unit is the same for all members.
    pub share: u32,
    /// Limits of requests and connections, if there are any.
    pub caps: Option<CapRule>,
    /// The hostname that has this address, if it comes from DNS.
    name: Option<Arc<HostnameState>>,
    pub state: Arc<ServerState>,
}

impl Member {
    /// Returns the part of its server's weight that this address has: less than all if DNS gives it a weight.
    pub fn weight_part(&self) -> f64 {
        f64::from(self.share) / f64::from(WHOLE_SHARE)
    }
}

/// The share of weight 1. All numbers of addresses up to 16 divide it.
const WHOLE_SHARE: u32 = 720_720;

impl UpstreamState {
    /// Returns the state of an upstream. Its servers keep their state of `before`. `name` returns the DNS state of a
    /// hostname.
    pub fn new(
        settings: Arc<Upstream>,
        before: Option<&UpstreamState>,
        name: impl FnMut(&str) -> Arc<HostnameState>,
        now_ms: u64,
    ) -> UpstreamState {
        let mut hosts: Vec<&str> = settings.servers.iter().filter_map(|server| server.origin.hostname()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let names: Vec<Arc<HostnameState>> = hosts.into_iter().map(name).collect();
        let (roster, removed) = match before {
            Some(before) => {
                let members = before.lock();
                (members.roster.clone(), members.removed.clone())
            }
            None => Default::default(),
        };
        let mut members = Members { roster, removed };
        members.rebuild(&settings, &names, before.is_some().then_some(now_ms));
        let load = match before {
            Some(before) if before.settings == settings => before.load.clone(),
            Some(before) => Arc::new(before.load.with_new_queue(settings.adaptive)),
            None => Arc::new(UpstreamLoad::new(settings.adaptive)),
        };
        let breaker = settings.breaker.map(|rule| {
            let kept = before.and_then(|before| before.breaker.clone());
            kept.unwrap_or_else(|| Arc::new(CircuitBreaker::new(BreakerKind::Upstream, &settings.name, rule)))
        });
        UpstreamState { settings, names, members: Mutex::new(members), load, breaker, version: AtomicU64::new(1) }
    }

    /// Returns the number of the current roster.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the current roster.
    pub fn roster(&self) -> Roster {
        self.lock().roster.clone()
    }

    /// Returns the hostnames of its servers.
    pub fn names(&self) -> &[Arc<HostnameState>] {
        &self.names
    }

    /// Rebuilds the roster after the addresses of a hostname have changed.
    pub fn rebuild_roster(&self, now_ms: u64) {
        let mut members = self.lock();
        // If all servers are new, none of them starts slowly.
        let since = (!members.roster.is_empty()).then_some(now_ms);
        members.rebuild(&self.settings, &self.names, since);
        self.version.fetch_add(1, Ordering::Release);
        drop(members);
        self.load.queue.notify_first();
    }

    /// Returns the load over all workers, for upstreams with limits.
    pub fn load(&self) -> &Arc<UpstreamLoad> {
        &self.load
    }

    /// Returns the circuit breaker, if the upstream has one.
    pub fn breaker(&self) -> Option<&Arc<CircuitBreaker>> {
        self.breaker.as_ref()
    }

    /// Applies the rule of the circuit breaker. Called when the config is active, because the breaker is shared with
    /// the config before.
    pub fn apply_breaker_rule(&self, now_ms: u64) {
        if let (Some(breaker), Some(rule)) = (&self.breaker, self.settings.breaker) {
            breaker.apply_rule(rule, now_ms);
        }
    }

    /// Applies the settings of the adaptive limit. Called when the config is active, because the limit is shared with
    /// the config before.
    pub fn apply_adaptive_rule(&self) {
        if let (Some(adaptive), Some(rule)) = (&self.load.adaptive, self.settings.adaptive) {
            adaptive.apply_rule(rule);
        }
    }

    /// Records that a server accepted no connection. If no address of its hostname is usable, requests a DNS lookup.
    pub fn record_refused(&self, server: &Arc<ServerState>, now_ms: u64, reason: &'static str) {
        server.record_refused(now_ms, reason);
        let roster = self.roster();
        let member = roster.iter().find(|member| Arc::ptr_eq(&member.state, server));
        let Some(name) = member.and_then(|member| member.name.as_ref()) else { return };
        let mut of_name = roster.iter().filter(|member| member.name.as_ref().is_some_and(|its| Arc::ptr_eq(its, name)));
        if of_name.all(|member| !member.state.is_usable(now_ms)) {
            name.request_lookup();
        }
    }

    /// Requests a DNS lookup of all hostnames, because there is no server to send a request to.
    pub fn request_lookups(&self) {
        self.names.iter().for_each(|name| name.request_lookup());
    }

    /// Records that a request to a server met an error. Ejects the server if that is one error too many, unless too
    /// many servers are ejected already.
    pub fn record_error(&self, server: &ServerState, now_ms: u64, blame: Blame) {
        let Some(rule) = &self.settings.eject else { return };
        if server.record_error(rule, now_ms, blame) {
            self.eject_server(server, rule, now_ms);
        }
    }

    fn eject_server(&self, server: &ServerState, rule: &EjectRule, now_ms: u64) {
        // The lock is held so that two servers that fail at once are counted one after the other.
        let members = self.lock();
        let candidates = || members.roster.iter().filter(|member| member.weight > 0);
        let ejected_count = candidates().filter(|member| member.state.is_ejected(now_ms)).count();
        if ejected_count < rule.max_ejected(candidates().count()) && !server.is_ejected(now_ms) {
            server.eject(rule, now_ms);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// Rebuilds the roster. Known servers keep their state. New ones have joined at `since` and start slowly; `None`
    /// means that all servers start together.
    fn rebuild(&mut self, settings: &Upstream, names: &[Arc<HostnameState>], since: Option<u64>) {
        let now = self.roster.iter().map(|member| (&member.endpoint, &member.state));
        let recently = self.removed.iter().map(|(endpoint, state)| (endpoint, state));
        let states: HashMap<&Endpoint, &Arc<ServerState>> = recently.chain(now).collect();
        let state = |endpoint: &Endpoint| {
            let new = || since.map_or_else(Arc::default, |now_ms| Arc::new(ServerState::new_joining(now_ms)));
            let state = states.get(endpoint).map_or_else(new, |state| Arc::clone(state));
            if settings.eject.is_none() {
                state.clear_ejection();
            }
            if settings.health.is_none() {
                state.clear_checks();
            }
            state
        };
        let mut next = Vec::new();
        for server in &settings.servers {
            let (endpoints, name) = find_endpoints(&server.origin, names);
            let caps = settings.caps.as_ref().map(|rule| server.caps.override_rule(rule));
            let total = endpoints.iter().map(|(_, weight)| u64::from(*weight)).sum::<u64>().max(1);
            let whole = u64::from(server.weight) * u64::from(WHOLE_SHARE);
            next.extend(endpoints.into_iter().map(|(endpoint, weight)| Member {
                state: state(&endpoint),
                endpoint,
                weight: server.weight,
                share: u32::try_from((whole * u64::from(weight)).div_ceil(total)).unwrap_or(u32::MAX),
                caps,
                name: name.cloned(),
            }));
        }
        let stay: HashSet<&Endpoint> = next.iter().map(|member| &member.endpoint).collect();
        let is_next = |endpoint: &Endpoint| stay.contains(endpoint);
        self.removed.retain(|(endpoint, _)| !is_next(endpoint));
        for member in self.roster.iter().filter(|member| member.name.is_some() && !is_next(&member.endpoint)) {
            self.removed.push_back((member.endpoint.clone(), member.state.clone()));
        }
        let too_many = self.removed.len().saturating_sub(ADDRESSES_MAX);
        self.removed.drain(..too_many);
        self.roster = Arc::new(next);
    }
}

/// Returns the endpoints of a server with their relative weights, and its name if it has one.
fn find_endpoints<'n>(
    origin: &Origin,
    names: &'n [Arc<HostnameState>],
) -> (Vec<(Endpoint, u32)>, Option<&'n Arc<HostnameState>>) {
    let ServerLocation::Name(host, port) = origin.location() else {
        return (vec![(Endpoint::from_config(origin), 1)], None);
    };
    let Some(name) = names.iter().find(|name| name.name == host) else { return (Vec::new(), None) };
    let with_weight = |address: &NamedAddress| (Endpoint::from_dns(origin, address, port), address.weight);
    (name.addresses().iter().map(with_weight).collect(), Some(name))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::upstream::caps::ServerCaps;
    use crate::upstream::eject::EjectRule;
    use crate::upstream::state::{Ejection, Health};
    use crate::upstream::{Balance, Fraction, HeadBounds, Scheme, Server};

    const RULE: EjectRule = EjectRule {
        consecutive_errors: 2,
        error_rate: Fraction::HALF,
        every_ms: 10_000,
        for_ms: 30_000,
        max: Fraction::HALF,
    };

    const UPSTREAM_RULE: CapRule = CapRule {
        in_flight: 9,
        connections: u32::MAX,
        total_in_flight: 20,
        total_connections: u32::MAX,
        waiting: 1,
        waiting_ms: 1,
        newest_first: None,
    };
    const SERVER_CAPS: ServerCaps = ServerCaps { in_flight: None, connections: Some(3) };

    fn upstream(servers: usize) -> UpstreamState {
        with((1..=servers).map(|i| (format!("127.0.0.1:{i}"), 1)), None)
    }

    fn with(servers: impl Iterator<Item = (String, u32)>, name: Option<&Arc<HostnameState>>) -> UpstreamState {
        let origin =
            |authority| Origin { scheme: Scheme::Http, authority, is_service: false, head_bounds: HeadBounds::DEFAULT };
        let servers = servers
            .map(|(authority, weight)| Server { origin: origin(authority), weight, caps: SERVER_CAPS })
            .collect();
        let settings =
            Upstream { eject: Some(RULE), caps: Some(UPSTREAM_RULE), ..Upstream::new("app", servers, Balance::P2c) };
        UpstreamState::new(Arc::new(settings), None, |_| name.unwrap().clone(), 0)
    }

    fn ips(last: impl IntoIterator<Item = u8>) -> Vec<NamedAddress> {
        last.into_iter().map(|last| IpAddr::from([10, 0, 0, last]).into()).collect()
    }

    fn shown(upstream: &UpstreamState) -> Vec<(String, u32)> {
        upstream.roster().iter().map(|member| (member.endpoint.label(), member.share * 60 / WHOLE_SHARE)).collect()
    }

    #[test]
    fn the_addresses_of_a_name_share_its_weight() {
        let app = Arc::new(HostnameState::new("app"));
        let servers = [("app:80", 3), ("127.0.0.1:81", 1), ("app:82", 0)];
        let upstream = with(servers.map(|(server, weight)| (server.to_owned(), weight)).into_iter(), Some(&app));
        assert_eq!(shown(&upstream), [("127.0.0.1:81".to_owned(), 60)]);
        app.store_addresses(&ips([1, 2]));
        upstream.rebuild_roster(5);
        let expected = [("10.0.0.1:80", 90), ("10.0.0.2:80", 90), ("127.0.0.1:81", 60), ("10.0.0.1:82", 0)];
        assert_eq!(shown(&upstream)[..4], expected.map(|(label, share)| (label.to_owned(), share)));
        assert_eq!(upstream.version(), 2);
        // Each server has its own limits.
        let each = CapRule { connections: 3, ..UPSTREAM_RULE };
        assert!(upstream.roster().iter().all(|member| member.caps == Some(each)));
    }

    #[test]
    fn a_returning_address_keeps_its_state_and_others_are_forgotten() {
        let app = Arc::new(HostnameState::new("app"));
        let upstream = with([("app:80".to_owned(), 1)].into_iter(), Some(&app));
        let renew = |addresses: &[NamedAddress]| {
            app.store_addresses(addresses);
            upstream.rebuild_roster(5);
            upstream.roster()[0].state.clone()
        };
        let first = renew(&ips([1, 2]));
        assert!(!Arc::ptr_eq(&first, &renew(&ips([3]))));
        assert!(Arc::ptr_eq(&first, &renew(&ips([1]))));
        for i in 1..=3 * u32::try_from(ADDRESSES_MAX).unwrap() {
            renew(&[IpAddr::from(std::net::Ipv4Addr::from(i)).into()]);
        }
        assert_eq!(upstream.lock().removed.len(), ADDRESSES_MAX);
        assert!(!Arc::ptr_eq(&first, &renew(&ips([1]))));
    }

    #[test]
    fn a_lookup_is_requested_when_none_of_its_addresses_accepts() {
        let app = Arc::new(HostnameState::new("app"));
        app.store_addresses(&ips([1, 2]));
        let servers = ["app:80", "127.0.0.1:81"].map(|server| (server.to_owned(), 1));
        let upstream = with(servers.into_iter(), Some(&app));
        let members = upstream.roster();
        for (refused, requested) in [(2, false), (0, false), (1, true)] {
            upstream.record_refused(&members[refused].state, 7, "refused");
            assert_eq!(app.is_lookup_requested(), requested);
        }
    }

    #[test]
    fn the_fraction_of_ejected_servers_is_bounded_and_they_return() {
        let upstream = upstream(4);
        let members = upstream.roster();
        for _ in 0..3 {
            members.iter().for_each(|member| upstream.record_error(&member.state, 5, Blame::Server));
        }
        let usable = |now_ms| members.iter().map(|member| member.state.is_usable(now_ms)).collect::<Vec<_>>();
        assert_eq!(usable(5), [false, false, true, true]);
        assert_eq!(usable(30_004), [false, false, true, true]);
        assert_eq!(usable(30_005), [true; 4]);
        let report = members[0].state.report_health(5);
        assert_eq!((report.health, report.reason), (Health::Ejected, Some("consecutive_errors")));
        assert_eq!(report.ejection, Some(Ejection { until_ms: 30_005, for_ms: 30_000 }));
    }

    #[test]
    fn what_fails_while_it_is_ejected_is_not_held_against_it() {
        let upstream = upstream(2);
        let members = upstream.roster();
        (0..50).for_each(|_| upstream.record_error(&members[0].state, 0, Blame::Client(1)));
        assert!(!members[0].state.is_usable(29_999));
        upstream.record_error(&members[0].state, 30_000, Blame::Client(1));
        assert!(members[0].state.is_usable(30_000));
    }
}
