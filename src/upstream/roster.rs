//! The servers of one upstream with what all workers know of each: one for each address, where a server is
//! written with a name. Kept by the snapshot, read by the workers' `servers`, changed by the control thread.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::caps::{CapRule, UpstreamLoad};
use super::eject::{Blame, EjectRule};
use super::endpoint::{Endpoint, Whereabouts};
use super::names::{ADDRESSES_MAX, KnownName};
use super::state::ServerState;
use super::{Origin, Upstream};

/// An upstream in force.
pub struct UpstreamState {
    pub settings: Arc<Upstream>,
    /// Those of its servers.
    names: Vec<Arc<KnownName>>,
    members: Mutex<Members>,
    load: Arc<UpstreamLoad>,
    /// Counts the rosters, so that a worker sees by one number that there is another.
    version: AtomicU64,
}

struct Members {
    roster: Roster,
    /// Addresses that went lately, oldest first: one that comes back is known.
    gone: VecDeque<(Endpoint, Arc<ServerState>)>,
}

/// Who can be asked, in config order; of a name in ascending order.
pub type Roster = Arc<Vec<Member>>;

#[derive(Clone)]
pub struct Member {
    pub endpoint: Endpoint,
    /// As the config says.
    pub weight: u32,
    /// What of that is this address's, in units that are the same for all members.
    pub share: u32,
    /// What it is given at once, where that is capped.
    pub caps: Option<CapRule>,
    /// The one it was found by.
    name: Option<Arc<KnownName>>,
    pub state: Arc<ServerState>,
}

/// The share of a weight of 1, which all numbers of addresses up to 16 divide.
const WHOLE_SHARE: u32 = 720_720;

impl UpstreamState {
    /// With what is known of its servers from `before`, and `names` for those that are written with one.
    pub fn new(
        settings: Arc<Upstream>,
        before: Option<&UpstreamState>,
        name: impl FnMut(&str) -> Arc<KnownName>,
        now_ms: u64,
    ) -> UpstreamState {
        let mut hosts: Vec<&str> = settings.servers.iter().filter_map(|server| server.origin.host_name()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let names: Vec<Arc<KnownName>> = hosts.into_iter().map(name).collect();
        let (roster, gone) = match before {
            Some(before) => {
                let members = before.lock();
                (members.roster.clone(), members.gone.clone())
            }
            None => Default::default(),
        };
        let mut members = Members { roster, gone };
        members.replace(&settings, &names, before.is_some().then_some(now_ms));
        let load = match before {
            Some(before) if before.settings == settings => before.load.clone(),
            Some(before) => Arc::new(before.load.renewed()),
            None => Arc::default(),
        };
        UpstreamState { settings, names, members: Mutex::new(members), load, version: AtomicU64::new(1) }
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn roster(&self) -> Roster {
        self.lock().roster.clone()
    }

    /// The names that its servers are written with.
    pub fn names(&self) -> &[Arc<KnownName>] {
        &self.names
    }

    /// The addresses of a name have changed.
    pub fn renew(&self, now_ms: u64) {
        let mut members = self.lock();
        // Where all are new, none has to catch up with others.
        let since = (!members.roster.is_empty()).then_some(now_ms);
        members.replace(&self.settings, &self.names, since);
        self.version.fetch_add(1, Ordering::Release);
        drop(members);
        self.load.line.stir();
    }

    /// What all workers have of it, where that is capped.
    pub fn load(&self) -> &Arc<UpstreamLoad> {
        &self.load
    }

    /// A server accepted no connection. When none of its name's does, the name is looked up again.
    pub fn refused(&self, server: &Arc<ServerState>, now_ms: u64, reason: &'static str) {
        server.refused(now_ms, reason);
        let roster = self.roster();
        let member = roster.iter().find(|member| Arc::ptr_eq(&member.state, server));
        let Some(name) = member.and_then(|member| member.name.as_ref()) else { return };
        let mut of_name = roster.iter().filter(|member| member.name.as_ref().is_some_and(|its| Arc::ptr_eq(its, name)));
        if of_name.all(|member| !member.state.is_usable(now_ms)) {
            name.urge();
        }
    }

    /// There is no server to ask.
    pub fn missed(&self) {
        self.names.iter().for_each(|name| name.urge());
    }

    /// A request to a server met an error: where that is one too many, the server is passed over for a
    /// while, unless too many are already.
    pub fn failed(&self, server: &ServerState, now_ms: u64, blame: Blame) {
        let Some(rule) = &self.settings.eject else { return };
        if server.failed(rule, now_ms, blame) {
            self.eject(server, rule, now_ms);
        }
    }

    fn eject(&self, server: &ServerState, rule: &EjectRule, now_ms: u64) {
        // Held, so that two that fail at once are counted one after the other.
        let members = self.lock();
        let asked = || members.roster.iter().filter(|member| member.weight > 0);
        let ejected = asked().filter(|member| member.state.is_ejected(now_ms)).count();
        if ejected < rule.ceiling(asked().count()) && !server.is_ejected(now_ms) {
            server.eject(rule, now_ms);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// Builds the roster anew. Who is known stays as it was; who is not came at `since`, or with all others.
    fn replace(&mut self, settings: &Upstream, names: &[Arc<KnownName>], since: Option<u64>) {
        let now = self.roster.iter().map(|member| (&member.endpoint, &member.state));
        let lately = self.gone.iter().map(|(endpoint, state)| (endpoint, state));
        let known: HashMap<&Endpoint, &Arc<ServerState>> = lately.chain(now).collect();
        let state = |endpoint: &Endpoint| {
            let new = || since.map_or_else(Arc::default, |now_ms| Arc::new(ServerState::newcomer(now_ms)));
            let state = known.get(endpoint).map_or_else(new, |state| Arc::clone(state));
            if settings.eject.is_none() {
                state.pardon();
            }
            if settings.health.is_none() {
                state.unchecked();
            }
            state
        };
        let mut next = Vec::new();
        for server in &settings.servers {
            let (endpoints, name) = endpoints(&server.origin, names);
            let caps = settings.caps.as_ref().map(|rule| server.caps.within(rule));
            let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX).max(1);
            next.extend(endpoints.into_iter().map(|endpoint| Member {
                state: state(&endpoint),
                endpoint,
                weight: server.weight,
                share: server.weight * WHOLE_SHARE / count,
                caps,
                name: name.cloned(),
            }));
        }
        let stay: HashSet<&Endpoint> = next.iter().map(|member| &member.endpoint).collect();
        let is_next = |endpoint: &Endpoint| stay.contains(endpoint);
        self.gone.retain(|(endpoint, _)| !is_next(endpoint));
        for member in self.roster.iter().filter(|member| member.name.is_some() && !is_next(&member.endpoint)) {
            self.gone.push_back((member.endpoint.clone(), member.state.clone()));
        }
        let too_many = self.gone.len().saturating_sub(ADDRESSES_MAX);
        self.gone.drain(..too_many);
        self.roster = Arc::new(next);
    }
}

/// Where a server is, and by what name.
fn endpoints<'n>(origin: &Origin, names: &'n [Arc<KnownName>]) -> (Vec<Endpoint>, Option<&'n Arc<KnownName>>) {
    let Whereabouts::Name(host, port) = origin.whereabouts() else { return (vec![Endpoint::written(origin)], None) };
    let Some(name) = names.iter().find(|name| name.name == host) else { return (Vec::new(), None) };
    let found = |ip: &IpAddr| Endpoint::found(origin, *ip, port);
    (name.addresses().iter().map(found).collect(), Some(name))
}

#[cfg(test)]
mod tests {
    use super::super::caps::ServerCaps;
    use super::super::eject::EjectRule;
    use super::super::state::{Ejection, Health};
    use super::super::{Balance, Fraction, Scheme, Server};
    use super::*;

    const RULE: EjectRule = EjectRule {
        consecutive_errors: 2,
        error_rate: Fraction::HALF,
        every_ms: 10_000,
        for_ms: 30_000,
        max: Fraction::HALF,
    };

    const RULE_OF_ALL: CapRule = CapRule {
        in_flight: 9,
        connections: u32::MAX,
        total_in_flight: 20,
        total_connections: u32::MAX,
        waiting: 1,
        waiting_ms: 1,
    };
    const OWN: ServerCaps = ServerCaps { in_flight: None, connections: Some(3) };

    fn upstream(servers: usize) -> UpstreamState {
        with((1..=servers).map(|i| (format!("127.0.0.1:{i}"), 1)), None)
    }

    fn with(servers: impl Iterator<Item = (String, u32)>, name: Option<&Arc<KnownName>>) -> UpstreamState {
        let origin = |authority| Origin { scheme: Scheme::Http, authority };
        let servers =
            servers.map(|(authority, weight)| Server { origin: origin(authority), weight, caps: OWN }).collect();
        let settings =
            Upstream { eject: Some(RULE), caps: Some(RULE_OF_ALL), ..Upstream::new("app", servers, Balance::P2c) };
        UpstreamState::new(Arc::new(settings), None, |_| name.unwrap().clone(), 0)
    }

    fn ips(last: impl IntoIterator<Item = u8>) -> Vec<IpAddr> {
        last.into_iter().map(|last| IpAddr::from([10, 0, 0, last])).collect()
    }

    fn shown(upstream: &UpstreamState) -> Vec<(String, u32)> {
        upstream.roster().iter().map(|member| (member.endpoint.label(), member.share * 60 / WHOLE_SHARE)).collect()
    }

    #[test]
    fn the_addresses_of_a_name_share_its_weight() {
        let app = Arc::new(KnownName::new("app"));
        let servers = [("app:80", 3), ("127.0.0.1:81", 1), ("app:82", 0)];
        let upstream = with(servers.map(|(server, weight)| (server.to_owned(), weight)).into_iter(), Some(&app));
        assert_eq!(shown(&upstream), [("127.0.0.1:81".to_owned(), 60)]);
        app.found(&ips([1, 2]));
        upstream.renew(5);
        let expected = [("10.0.0.1:80", 90), ("10.0.0.2:80", 90), ("127.0.0.1:81", 60), ("10.0.0.1:82", 0)];
        assert_eq!(shown(&upstream)[..4], expected.map(|(label, share)| (label.to_owned(), share)));
        assert_eq!(upstream.version(), 2);
        // The caps are those of each.
        let each = CapRule { connections: 3, ..RULE_OF_ALL };
        assert!(upstream.roster().iter().all(|member| member.caps == Some(each)));
    }

    #[test]
    fn an_address_that_comes_back_is_known_and_those_that_never_do_are_forgotten() {
        let app = Arc::new(KnownName::new("app"));
        let upstream = with([("app:80".to_owned(), 1)].into_iter(), Some(&app));
        let renew = |addresses: &[IpAddr]| {
            app.found(addresses);
            upstream.renew(5);
            upstream.roster()[0].state.clone()
        };
        let first = renew(&ips([1, 2]));
        assert!(!Arc::ptr_eq(&first, &renew(&ips([3]))));
        assert!(Arc::ptr_eq(&first, &renew(&ips([1]))));
        for i in 1..=3 * u32::try_from(ADDRESSES_MAX).unwrap() {
            renew(&[IpAddr::from(std::net::Ipv4Addr::from(i))]);
        }
        assert_eq!(upstream.lock().gone.len(), ADDRESSES_MAX);
        assert!(!Arc::ptr_eq(&first, &renew(&ips([1]))));
    }

    #[test]
    fn a_name_is_urged_when_none_of_its_addresses_accepts() {
        let app = Arc::new(KnownName::new("app"));
        app.found(&ips([1, 2]));
        let servers = ["app:80", "127.0.0.1:81"].map(|server| (server.to_owned(), 1));
        let upstream = with(servers.into_iter(), Some(&app));
        let members = upstream.roster();
        for (refused, urged) in [(2, false), (0, false), (1, true)] {
            upstream.refused(&members[refused].state, 7, "refused");
            assert_eq!(app.is_urged(), urged);
        }
    }

    #[test]
    fn of_all_that_fail_some_stay_and_those_return_in_time() {
        let upstream = upstream(4);
        let members = upstream.roster();
        for _ in 0..3 {
            members.iter().for_each(|member| upstream.failed(&member.state, 5, Blame::Server));
        }
        let usable = |now_ms| members.iter().map(|member| member.state.is_usable(now_ms)).collect::<Vec<_>>();
        assert_eq!(usable(5), [false, false, true, true]);
        assert_eq!(usable(30_004), [false, false, true, true]);
        assert_eq!(usable(30_005), [true; 4]);
        let told = members[0].state.told(5);
        assert_eq!((told.health, told.reason), (Health::Ejected, Some("consecutive_errors")));
        assert_eq!(told.ejection, Some(Ejection { until_ms: 30_005, for_ms: 30_000 }));
    }

    #[test]
    fn what_fails_while_it_is_ejected_is_not_held_against_it() {
        let upstream = upstream(2);
        let members = upstream.roster();
        (0..50).for_each(|_| upstream.failed(&members[0].state, 0, Blame::Client(1)));
        assert!(!members[0].state.is_usable(29_999));
        upstream.failed(&members[0].state, 30_000, Blame::Client(1));
        assert!(members[0].state.is_usable(30_000));
    }
}
