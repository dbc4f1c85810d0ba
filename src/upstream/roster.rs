//! The servers of one upstream with what all workers know of each. Kept by the snapshot, read by the
//! workers' pools, changed by the control thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::eject::{Blame, EjectRule};
use super::state::ServerState;
use super::{Server, Upstream};

/// An upstream in force.
pub struct UpstreamState {
    pub settings: Arc<Upstream>,
    members: Mutex<Roster>,
    /// Counts the rosters, so that a worker sees by one number that there is another.
    version: AtomicU64,
}

/// Who can be asked, in config order.
pub type Roster = Arc<Vec<Member>>;

#[derive(Clone)]
pub struct Member {
    pub server: Server,
    pub state: Arc<ServerState>,
}

impl UpstreamState {
    pub fn new(settings: Arc<Upstream>, roster: Roster) -> UpstreamState {
        UpstreamState { settings, members: Mutex::new(roster), version: AtomicU64::new(1) }
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn roster(&self) -> Roster {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = || members.iter().filter(|member| member.server.weight > 0);
        let ejected = asked().filter(|member| member.state.is_ejected(now_ms)).count();
        if ejected < rule.ceiling(asked().count()) && !server.is_ejected(now_ms) {
            server.eject(rule, now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::eject::EjectRule;
    use super::super::state::{Ejection, Health};
    use super::super::{Balance, Fraction, Origin, Scheme};
    use super::*;

    const RULE: EjectRule = EjectRule {
        consecutive_errors: 2,
        error_rate: Fraction::HALF,
        every_ms: 10_000,
        for_ms: 30_000,
        max: Fraction::HALF,
    };

    fn upstream(servers: usize) -> UpstreamState {
        let origin = |i| Origin { scheme: Scheme::Http, authority: format!("127.0.0.1:{i}") };
        let servers: Vec<Server> = (1..=servers).map(|i| Server { origin: origin(i), weight: 1 }).collect();
        let settings = Upstream { eject: Some(RULE), ..Upstream::new("app", servers.clone(), Balance::P2c) };
        let member = |server| Member { server, state: Arc::default() };
        UpstreamState::new(Arc::new(settings), Arc::new(servers.into_iter().map(member).collect()))
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
