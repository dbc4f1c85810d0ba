//! When a failing server is ejected, that is, left out for a while. Pure: time and events are arguments. Called by
//! `state`.

use std::net::IpAddr;

use crate::labels::labels;
use crate::upstream::Fraction;

/// Fewest requests within `every_ms` from which an error rate is computed.
const RATE_REQUESTS_MIN: u64 = 20;
/// Longest ejection, in multiples of `for_ms`.
const TIMES_MAX: u64 = 10;

/// `eject` of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EjectRule {
    /// Errors in a row that eject a server.
    pub consecutive_errors: u32,
    /// Fraction of errors among the requests within `every_ms` that ejects a server.
    pub error_rate: Fraction,
    pub every_ms: u64,
    /// Length of the first ejection. Each further one that follows soon is longer by as much.
    pub for_ms: u64,
    /// Fraction of the servers that may be ejected at once: at least one if there are several.
    pub max: Fraction,
}

impl EjectRule {
    /// Returns how many of `servers` may be ejected at once.
    pub fn max_ejected(&self, servers: usize) -> usize {
        if servers < 2 { 0 } else { self.max.of_count(servers).max(1) }
    }
}

labels! {
    /// Why a server was ejected.
    EjectReason:
    Consecutive = "consecutive_errors",
    Rate = "error_rate",
}

/// The client whose request met an error. One client alone cannot have a server ejected that serves others well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blame {
    /// Not a request, but a refused connection: the error is the server's own.
    #[default]
    Server,
    /// The request of this client, which may have caused the error.
    Client(u64),
}

impl Blame {
    /// Returns the client at this address, as a number.
    pub fn from_ip(client: IpAddr) -> Blame {
        Blame::Client(match client {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            // Providers delegate a /56 to one household, which can use all addresses in it.
            IpAddr::V6(ip) => (ip.to_bits() >> 72) as u64,
        })
    }
}

/// The clients that met the errors of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AffectedClients {
    #[default]
    Nobody,
    One(u64),
    Many,
}

impl AffectedClients {
    fn with_client(self, blame: Blame) -> AffectedClients {
        match (self, blame) {
            (AffectedClients::Nobody, Blame::Client(client)) => AffectedClients::One(client),
            (AffectedClients::One(before), Blame::Client(client)) if before == client => self,
            _ => AffectedClients::Many,
        }
    }

    fn merge(self, other: AffectedClients) -> AffectedClients {
        match (self, other) {
            (AffectedClients::Nobody, met) | (met, AffectedClients::Nobody) => met,
            (AffectedClients::One(one), AffectedClients::One(other)) if one == other => self,
            _ => AffectedClients::Many,
        }
    }

    /// Returns whether the errors are enough to blame the server. They are not if one client met all of them and the
    /// server serves others well.
    fn blames_server(self, serves_others_than: impl Fn(u64) -> bool) -> bool {
        match self {
            AffectedClients::Nobody => false,
            AffectedClients::One(client) => !serves_others_than(client),
            AffectedClients::Many => true,
        }
    }
}

/// Requests within one half of `every_ms`.
#[derive(Clone, Copy, Debug, Default)]
struct HalfWindow {
    requests: u64,
    errors: u64,
    met: AffectedClients,
}

/// Recent errors of one server.
#[derive(Debug, Default)]
pub struct Ejector {
    /// Errors since the last success.
    run: u32,
    run_met: AffectedClients,
    /// The current half of `every_ms`, and the one before.
    halves: [HalfWindow; 2],
    half_since_ms: u64,
    /// Ejections that followed each other soon.
    times: u64,
    /// When the last ejection ends.
    ended_ms: u64,
}

impl Ejector {
    /// Records `count` successful requests.
    pub fn record_successes(&mut self, rule: &EjectRule, now_ms: u64, count: u64) {
        self.advance_window(rule, now_ms);
        self.halves[0].requests += count;
    }

    /// Takes back the success of a request that met an error after all.
    pub fn revoke_success(&mut self) {
        self.halves[0].requests = self.halves[0].requests.saturating_sub(1);
    }

    /// Records a success after errors.
    pub fn clear_run(&mut self) {
        (self.run, self.run_met) = (0, AffectedClients::Nobody);
    }

    /// Records an error. Returns the reason if the server should be ejected now.
    pub fn record_error(
        &mut self,
        rule: &EjectRule,
        now_ms: u64,
        blame: Blame,
        serves_others_than: impl Fn(u64) -> bool,
    ) -> Option<EjectReason> {
        self.advance_window(rule, now_ms);
        self.run = self.run.saturating_add(1);
        self.run_met = self.run_met.with_client(blame);
        let half = &mut self.halves[0];
        (half.requests, half.errors, half.met) = (half.requests + 1, half.errors + 1, half.met.with_client(blame));
        if self.run >= rule.consecutive_errors && self.run_met.blames_server(&serves_others_than) {
            return Some(EjectReason::Consecutive);
        }
        let [now, before] = self.halves;
        let (requests, errors) = (now.requests + before.requests, now.errors + before.errors);
        let many = requests >= RATE_REQUESTS_MIN && rule.error_rate.is_reached(errors, requests);
        (many && now.met.merge(before.met).blames_server(serves_others_than)).then_some(EjectReason::Rate)
    }

    /// Records that the server is ejected now. Returns until when.
    pub fn start_ejection(&mut self, rule: &EjectRule, now_ms: u64) -> u64 {
        let forgiven = now_ms.saturating_sub(self.ended_ms) / rule.for_ms.max(1);
        self.times = (self.times.saturating_sub(forgiven) + 1).min(TIMES_MAX);
        self.ended_ms = now_ms + rule.for_ms * self.times;
        self.halves = <[HalfWindow; 2]>::default();
        self.clear_run();
        self.ended_ms
    }

    /// Starts a new half of `every_ms` when the current one is over.
    fn advance_window(&mut self, rule: &EjectRule, now_ms: u64) {
        let half_ms = (rule.every_ms / 2).max(1);
        let halvings = now_ms.saturating_sub(self.half_since_ms) / half_ms;
        if halvings > 0 {
            let before = if halvings == 1 { self.halves[0] } else { HalfWindow::default() };
            self.halves = [HalfWindow::default(), before];
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
            reason = reason.or(ejector.record_error(&RULE, now_ms, Blame::Client(*client), |_| serves_others));
        }
        reason
    }

    #[test]
    fn one_household_is_one_client() {
        let of = |address: &str| Blame::from_ip(address.parse().unwrap());
        assert_eq!(of("2001:db8:0:1200::1"), of("2001:db8:0:12ff::2"));
        assert_ne!(of("2001:db8:0:1200::1"), of("2001:db8:0:1300::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn consecutive_errors_eject_and_a_success_resets_the_count() {
        let mut ejector = Ejector::default();
        assert_eq!(fail(&mut ejector, 0, &[1, 2, 3, 4], true), None);
        ejector.clear_run();
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
        assert_eq!(ejector.record_error(&RULE, 0, Blame::Server, |_| true), Some(EjectReason::Consecutive));
    }

    #[test]
    fn a_rate_needs_requests_enough_within_its_time() {
        let mut ejector = Ejector::default();
        for round in 0..9 {
            assert_eq!(fail(&mut ejector, 0, &[round], true), None, "{round}");
            ejector.record_successes(&RULE, 0, 1);
            ejector.clear_run();
        }
        ejector.record_successes(&RULE, 4_000, 1);
        assert_eq!(fail(&mut ejector, 4_000, &[1], true), Some(EjectReason::Rate), "10 of 20");
        let mut ejector = Ejector::default();
        fail(&mut ejector, 0, &[1, 2, 3], true);
        ejector.clear_run();
        ejector.record_successes(&RULE, 0, 30);
        assert_eq!(fail(&mut ejector, 0, &[4], true), None, "4 of 34");
        ejector.clear_run();
        assert_eq!(fail(&mut ejector, 20_000, &[4], true), None, "the others were long ago");
    }

    #[test]
    fn each_ejection_soon_after_another_is_longer_up_to_a_bound() {
        let mut ejector = Ejector::default();
        let mut now = 0;
        for times in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10] {
            let until = ejector.start_ejection(&RULE, now);
            assert_eq!(until - now, 30_000 * times);
            now = until + 1000;
        }
        let rested = now + 9 * 30_000;
        assert_eq!(ejector.start_ejection(&RULE, rested) - rested, 60_000, "what was served well in between counts");
    }

    #[test]
    fn some_servers_stay() {
        let ceiling = |max, servers| EjectRule { max: Fraction::parse(max).unwrap(), ..RULE }.max_ejected(servers);
        assert_eq!([1, 2, 3, 4, 10].map(|servers| ceiling(0.5, servers)), [0, 1, 1, 2, 5]);
        assert_eq!([1, 2, 10].map(|servers| ceiling(0.01, servers)), [0, 1, 1]);
        assert_eq!([2, 3].map(|servers| ceiling(1.0, servers)), [2, 3]);
    }
}
