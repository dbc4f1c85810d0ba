//! When a server that fails is passed over for a while. Pure: the time and what happened are arguments.
//! Called by `state`.

use std::net::IpAddr;

use crate::labels::labels;
use crate::upstream::Fraction;

/// Of the requests within `every_ms`, fewer than so many tell no rate.
const RATE_REQUESTS_MIN: u64 = 20;
/// The longest ejection, in times of `for_ms`.
const TIMES_MAX: u64 = 10;

/// `eject` of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EjectRule {
    pub consecutive_errors: u32,
    /// Errors among the requests within `every_ms`.
    pub error_rate: Fraction,
    pub every_ms: u64,
    /// The first ejection; each further one soon after is longer by as much.
    pub for_ms: u64,
    /// Of the servers, those that may be ejected at once: at least one where there are several.
    pub max: Fraction,
}

impl EjectRule {
    /// How many of `servers` may be ejected at once.
    pub fn ceiling(&self, servers: usize) -> usize {
        if servers < 2 { 0 } else { self.max.of(servers).max(1) }
    }
}

labels! {
    /// What tells that a server fails.
    EjectReason:
    Consecutive = "consecutive_errors",
    Rate = "error_rate",
}

/// Whose request met an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blame {
    /// No request: the server refused a connection.
    #[default]
    Server,
    /// That of a client, which may be what is wrong.
    Client(u64),
}

impl Blame {
    pub fn of(client: IpAddr) -> Blame {
        Blame::Client(match client {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            // Providers delegate a /56 to one household, which can use all addresses in it.
            IpAddr::V6(ip) => (ip.to_bits() >> 72) as u64,
        })
    }
}

/// Who met the errors of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Met {
    #[default]
    Nobody,
    One(u64),
    Many,
}

impl Met {
    fn and(self, blame: Blame) -> Met {
        match (self, blame) {
            (Met::Nobody, Blame::Client(client)) => Met::One(client),
            (Met::One(before), Blame::Client(client)) if before == client => self,
            _ => Met::Many,
        }
    }

    fn or(self, other: Met) -> Met {
        match (self, other) {
            (Met::Nobody, met) | (met, Met::Nobody) => met,
            (Met::One(one), Met::One(other)) if one == other => self,
            _ => Met::Many,
        }
    }

    /// One client's errors tell nothing of a server that serves another well.
    fn convicts(self, serves_others_than: impl Fn(u64) -> bool) -> bool {
        match self {
            Met::Nobody => false,
            Met::One(client) => !serves_others_than(client),
            Met::Many => true,
        }
    }
}

/// Requests within one half of `every_ms`.
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    requests: u64,
    errors: u64,
    met: Met,
}

/// What is known of one server.
#[derive(Debug, Default)]
pub struct Ejector {
    run: u32,
    run_met: Met,
    /// This half and the one before.
    halves: [Half; 2],
    half_since_ms: u64,
    /// Ejections one soon after the other.
    times: u64,
    ended_ms: u64,
}

impl Ejector {
    /// So many requests were served well.
    pub fn served(&mut self, rule: &EjectRule, now_ms: u64, count: u64) {
        self.turn(rule, now_ms);
        self.halves[0].requests += count;
    }

    /// A request that counted as served meets an error after all.
    pub fn unserved(&mut self) {
        self.halves[0].requests = self.halves[0].requests.saturating_sub(1);
    }

    /// A request was served well after errors.
    pub fn recovered(&mut self) {
        (self.run, self.run_met) = (0, Met::Nobody);
    }

    /// A request met an error. Says what it makes certain, if anything.
    pub fn failed(
        &mut self,
        rule: &EjectRule,
        now_ms: u64,
        blame: Blame,
        serves_others_than: impl Fn(u64) -> bool,
    ) -> Option<EjectReason> {
        self.turn(rule, now_ms);
        self.run = self.run.saturating_add(1);
        self.run_met = self.run_met.and(blame);
        let half = &mut self.halves[0];
        (half.requests, half.errors, half.met) = (half.requests + 1, half.errors + 1, half.met.and(blame));
        if self.run >= rule.consecutive_errors && self.run_met.convicts(&serves_others_than) {
            return Some(EjectReason::Consecutive);
        }
        let [now, before] = self.halves;
        let (requests, errors) = (now.requests + before.requests, now.errors + before.errors);
        let many = requests >= RATE_REQUESTS_MIN && rule.error_rate.is_reached(errors, requests);
        (many && now.met.or(before.met).convicts(serves_others_than)).then_some(EjectReason::Rate)
    }

    /// The server is ejected now. Returns until when.
    pub fn eject(&mut self, rule: &EjectRule, now_ms: u64) -> u64 {
        let forgiven = now_ms.saturating_sub(self.ended_ms) / rule.for_ms.max(1);
        self.times = (self.times.saturating_sub(forgiven) + 1).min(TIMES_MAX);
        self.ended_ms = now_ms + rule.for_ms * self.times;
        self.halves = <[Half; 2]>::default();
        self.recovered();
        self.ended_ms
    }

    fn turn(&mut self, rule: &EjectRule, now_ms: u64) {
        let half_ms = (rule.every_ms / 2).max(1);
        let passed = now_ms.saturating_sub(self.half_since_ms) / half_ms;
        if passed > 0 {
            let before = if passed == 1 { self.halves[0] } else { Half::default() };
            self.halves = [Half::default(), before];
            self.half_since_ms = now_ms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: EjectRule = EjectRule {
        consecutive_errors: 5,
        error_rate: Fraction::HALF,
        every_ms: 10_000,
        for_ms: 30_000,
        max: Fraction::HALF,
    };

    fn fail(ejector: &mut Ejector, now_ms: u64, clients: &[u64], serves_others: bool) -> Option<EjectReason> {
        let mut reason = None;
        for client in clients {
            reason = reason.or(ejector.failed(&RULE, now_ms, Blame::Client(*client), |_| serves_others));
        }
        reason
    }

    #[test]
    fn one_household_is_one_client() {
        let of = |address: &str| Blame::of(address.parse().unwrap());
        assert_eq!(of("2001:db8:0:1200::1"), of("2001:db8:0:12ff::2"));
        assert_ne!(of("2001:db8:0:1200::1"), of("2001:db8:0:1300::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn errors_one_after_the_other_eject_and_a_good_answer_starts_anew() {
        let mut ejector = Ejector::default();
        assert_eq!(fail(&mut ejector, 0, &[1, 2, 3, 4], true), None);
        ejector.recovered();
        assert_eq!(fail(&mut ejector, 0, &[1, 2, 3, 4], true), None);
        assert_eq!(fail(&mut ejector, 0, &[5], true), Some(EjectReason::Consecutive));
    }

    #[test]
    fn one_client_is_no_proof_against_a_server_that_serves_others() {
        let mut ejector = Ejector::default();
        assert_eq!(fail(&mut ejector, 0, &[7; 100], true), None);
        assert_eq!(fail(&mut ejector, 0, &[7], false), Some(EjectReason::Consecutive));
        let mut ejector = Ejector::default();
        assert_eq!(fail(&mut ejector, 0, &[7; 100], true), None);
        assert_eq!(fail(&mut ejector, 0, &[8], true), Some(EjectReason::Consecutive));
        let mut ejector = Ejector::default();
        assert_eq!(fail(&mut ejector, 0, &[7; 4], true), None);
        assert_eq!(ejector.failed(&RULE, 0, Blame::Server, |_| true), Some(EjectReason::Consecutive));
    }

    #[test]
    fn a_rate_needs_requests_enough_within_its_time() {
        let mut ejector = Ejector::default();
        for round in 0..9 {
            assert_eq!(fail(&mut ejector, 0, &[round], true), None, "{round}");
            ejector.served(&RULE, 0, 1);
            ejector.recovered();
        }
        ejector.served(&RULE, 4_000, 1);
        assert_eq!(fail(&mut ejector, 4_000, &[1], true), Some(EjectReason::Rate), "10 of 20");
        let mut ejector = Ejector::default();
        fail(&mut ejector, 0, &[1, 2, 3], true);
        ejector.recovered();
        ejector.served(&RULE, 0, 30);
        assert_eq!(fail(&mut ejector, 0, &[4], true), None, "4 of 34");
        ejector.recovered();
        assert_eq!(fail(&mut ejector, 20_000, &[4], true), None, "the others were long ago");
    }

    #[test]
    fn each_ejection_soon_after_another_is_longer_up_to_a_bound() {
        let mut ejector = Ejector::default();
        let mut now = 0;
        for times in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10] {
            let until = ejector.eject(&RULE, now);
            assert_eq!(until - now, 30_000 * times);
            now = until + 1000;
        }
        let rested = now + 9 * 30_000;
        assert_eq!(ejector.eject(&RULE, rested) - rested, 60_000, "what was served well in between counts");
    }

    #[test]
    fn some_servers_stay() {
        let ceiling = |max, servers| EjectRule { max: Fraction::parse(max).unwrap(), ..RULE }.ceiling(servers);
        assert_eq!([1, 2, 3, 4, 10].map(|servers| ceiling(0.5, servers)), [0, 1, 1, 2, 5]);
        assert_eq!([1, 2, 10].map(|servers| ceiling(0.01, servers)), [0, 1, 1]);
        assert_eq!([2, 3].map(|servers| ceiling(1.0, servers)), [2, 3]);
    }
}
