//! The state of one server that all workers share: whether it is usable, and why not. Every request reads it without a
//! lock; only changes are written. Survives reloads in `snapshot::fleet`. Time is an argument.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::labels::labels;
use crate::upstream::claim::ConnectionClaim;
use crate::upstream::eject::{Blame, EjectReason, EjectRule, Ejector};
use crate::upstream::fair_shares::FULL_RAMP;
use crate::upstream::health::{CheckFault, CheckHistory, HealthRule};

/// How long a server that accepted no connection is left out while others are usable.
const AVOID_MS: u64 = 2_000;
/// The ramp of a server that has just joined, in thousandths of its weight.
const RAMP_START: u32 = FULL_RAMP / 20;

/// The shared state of one server. The alignment keeps it apart from the cache lines of other servers.
#[derive(Default)]
#[repr(align(128))]
pub struct ServerState {
    /// 0: not ejected.
    ejected_until_ms: AtomicU64,
    /// Health checks have failed.
    down: AtomicBool,
    /// The last attempt to connect failed.
    refuses: AtomicBool,
    /// After a failed attempt to connect, when the server is usable again.
    avoid_until_ms: AtomicU64,
    /// When a connection to it was last established. 0: never.
    connected_ms: AtomicU64,
    /// Since when it has been down or refusing connections.
    lost_ms: AtomicU64,
    /// There were errors since the last success.
    failing: AtomicBool,
    /// When the server joined or returned. 0: it was there at the start.
    begun_ms: AtomicU64,
    /// Requests in flight of all workers, if the upstream counts them.
    pub(super) in_flight: AtomicU32,
    /// Connections of all workers, if they are limited.
    pub(super) connections: AtomicU32,
    pub claim: ConnectionClaim,
    history: Mutex<ServerHistory>,
}

/// Recent behaviour of a server, behind a lock.
#[derive(Default)]
struct ServerHistory {
    ejector: Ejector,
    checks: CheckHistory,
    served: SuccessfulClients,
    reason: Option<EjectReason>,
    /// Why the last attempt to connect failed.
    refusal: Option<&'static str>,
    /// Length of the last ejection, in milliseconds.
    for_ms: u64,
}

labels! {
    /// The state of a server as operators see it.
    Health:
    Up = "up",
    /// Health checks failed.
    Down = "down",
    /// The last attempt to connect failed.
    Refusing = "refusing",
    Ejected = "ejected",
}

/// The state of a server and the reason for it.
pub struct HealthReport {
    pub health: Health,
    pub reason: Option<&'static str>,
    pub ejection: Option<Ejection>,
    /// Since when the server has been unusable.
    pub since_ms: Option<u64>,
}

/// A current ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    pub until_ms: u64,
    pub for_ms: u64,
}

/// The last two clients with a successful request, and when. That is enough to know whether a client other than a given
/// one had success.
#[derive(Clone, Copy, Debug, Default)]
pub struct SuccessfulClients([Option<(u64, u64)>; 2]);

impl SuccessfulClients {
    /// Records a success of `client`.
    pub fn record_success(&mut self, client: u64, now_ms: u64) {
        let [last, before] = &mut self.0;
        match last {
            Some((known, at_ms)) if *known == client => *at_ms = now_ms,
            _ => {
                std::mem::swap(last, before);
                *last = Some((client, now_ms));
            }
        }
    }

    fn has_other_than(&self, client: u64, since_ms: u64) -> bool {
        self.0.iter().flatten().any(|(known, at_ms)| *known != client && *at_ms >= since_ms)
    }

    /// Adds the clients of another record.
    fn merge(&mut self, other: &SuccessfulClients) {
        for (client, at_ms) in other.0.into_iter().flatten().rev() {
            self.record_success(client, at_ms);
        }
    }
}

/// Successes that one worker has counted and not reported yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct SuccessTally {
    pub count: u64,
    pub clients: SuccessfulClients,
}

impl ServerState {
    /// Returns the state of a server that joins while others are in use, so that it starts slowly.
    pub fn new_joining(now_ms: u64) -> ServerState {
        ServerState { begun_ms: AtomicU64::new(now_ms.max(1)), ..ServerState::default() }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the part of the weight that counts, in thousandths. It grows to the whole within `slow_start_ms`.
    pub fn ramp(&self, slow_start_ms: u64, now_ms: u64) -> u32 {
        let begun_ms = self.begun_ms.load(Ordering::Relaxed);
        let served_ms = now_ms.saturating_sub(begun_ms);
        if begun_ms == 0 || served_ms >= slow_start_ms {
            return FULL_RAMP;
        }
        let part = served_ms * u64::from(FULL_RAMP) / slow_start_ms;
        u32::try_from(part).unwrap_or(FULL_RAMP).max(RAMP_START)
    }

    /// Returns whether the server may get requests: it is healthy, not ejected, and accepts connections.
    pub fn is_usable(&self, now_ms: u64) -> bool {
        !self.down.load(Ordering::Relaxed)
            && now_ms >= self.avoid_until_ms.load(Ordering::Relaxed)
            && !self.is_ejected(now_ms)
    }

    /// Returns whether the server is ejected now.
    pub fn is_ejected(&self, now_ms: u64) -> bool {
        now_ms < self.ejected_until_ms.load(Ordering::Relaxed)
    }

    /// Returns whether there were errors since the last success.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Records that the server accepted a connection.
    pub fn record_connected(&self, now_ms: u64) {
        self.connected_ms.store(now_ms.max(1), Ordering::Relaxed);
        if self.refuses.load(Ordering::Relaxed) {
            self.refuses.store(false, Ordering::Relaxed);
            self.begun_ms.store(now_ms.max(1), Ordering::Relaxed);
            self.avoid_until_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether a connection was established at `since_ms` or later.
    pub fn has_connected_since(&self, since_ms: u64) -> bool {
        self.connected_ms.load(Ordering::Relaxed) >= since_ms.max(1)
    }

    /// Records that the server accepted no connection, for `reason`.
    pub fn record_refused(&self, now_ms: u64, reason: &'static str) {
        self.lock().refusal = Some(reason);
        if !self.refuses.swap(true, Ordering::Relaxed) && !self.down.load(Ordering::Relaxed) {
            self.lost_ms.store(now_ms, Ordering::Relaxed);
        }
        self.avoid_until_ms.store(now_ms + AVOID_MS, Ordering::Relaxed);
    }

    /// Records a success after errors.
    pub fn record_recovery(&self) {
        self.failing.store(false, Ordering::Relaxed);
        self.lock().ejector.clear_run();
    }

    /// Adds the successes of one worker.
    pub fn add_successes(&self, rule: &EjectRule, now_ms: u64, tally: &SuccessTally) {
        let mut history = self.lock();
        history.ejector.record_successes(rule, now_ms, tally.count);
        history.served.merge(&tally.clients);
    }

    /// Takes back the success of a request that met an error after all. `failed` is called next.
    pub fn revoke_success(&self) {
        self.lock().ejector.revoke_success();
    }

    /// Records that a request met an error. Returns whether the server should be ejected.
    pub fn record_error(&self, rule: &EjectRule, now_ms: u64, blame: Blame) -> bool {
        // Errors during an ejection do not extend it: those requests were under way, or had no other server.
        if self.is_ejected(now_ms) {
            return false;
        }
        self.failing.store(true, Ordering::Relaxed);
        let history = &mut *self.lock();
        let (served, since_ms) = (history.served, now_ms.saturating_sub(rule.every_ms));
        let reason =
            history.ejector.record_error(rule, now_ms, blame, |client| served.has_other_than(client, since_ms));
        history.reason = reason.or(history.reason);
        reason.is_some()
    }

    /// Ejects the server.
    pub fn eject(&self, rule: &EjectRule, now_ms: u64) {
        let mut history = self.lock();
        let until_ms = history.ejector.start_ejection(rule, now_ms);
        history.for_ms = until_ms - now_ms;
        self.ejected_until_ms.store(until_ms, Ordering::Relaxed);
        self.begun_ms.store(until_ms, Ordering::Relaxed);
    }

    /// Records the result of a health check.
    pub fn record_check(&self, rule: &HealthRule, result: Result<(), CheckFault>, now_ms: u64) {
        if !matches!(result, Err(CheckFault::Connection | CheckFault::Timeout)) {
            self.record_connected(now_ms);
        }
        let mut history = self.lock();
        history.checks.record_check(rule, result);
        let down = history.checks.failure().is_some();
        match (self.down.swap(down, Ordering::Relaxed), down) {
            (true, false) => self.begun_ms.store(now_ms.max(1), Ordering::Relaxed),
            (false, true) if !self.refuses.load(Ordering::Relaxed) => self.lost_ms.store(now_ms, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Forgets the results of health checks, because they are no longer configured.
    pub fn clear_checks(&self) {
        self.lock().checks = CheckHistory::default();
        self.down.store(false, Ordering::Relaxed);
    }

    /// Ends an ejection, because ejection is no longer configured.
    pub fn clear_ejection(&self) {
        self.ejected_until_ms.store(0, Ordering::Relaxed);
        self.record_recovery();
    }

    /// Returns the state of the server as operators see it.
    pub fn report_health(&self, now_ms: u64) -> HealthReport {
        let lost_ms = Some(self.lost_ms.load(Ordering::Relaxed));
        if self.down.load(Ordering::Relaxed) {
            let reason = self.lock().checks.failure().map(CheckFault::label);
            return HealthReport { health: Health::Down, reason, ejection: None, since_ms: lost_ms };
        }
        let until_ms = self.ejected_until_ms.load(Ordering::Relaxed);
        if now_ms < until_ms {
            let history = self.lock();
            let reason = history.reason.map(EjectReason::label);
            let ejection = Some(Ejection { until_ms, for_ms: history.for_ms });
            let since_ms = Some(until_ms.saturating_sub(history.for_ms));
            return HealthReport { health: Health::Ejected, reason, ejection, since_ms };
        }
        match self.refuses.load(Ordering::Relaxed) {
            true => {
                let reason = self.lock().refusal;
                HealthReport { health: Health::Refusing, reason, ejection: None, since_ms: lost_ms }
            }
            false => HealthReport { health: Health::Up, reason: None, ejection: None, since_ms: None },
        }
    }

    fn lock(&self) -> MutexGuard<'_, ServerHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::health::CheckKind;

    #[test]
    fn a_server_is_unusable_since_its_first_failure() {
        let state = ServerState::default();
        let since = |now_ms| state.report_health(now_ms).since_ms;
        assert_eq!(since(900), None);
        state.record_refused(1_000, "refused");
        state.record_refused(5_000, "refused");
        assert_eq!(since(9_000), Some(1_000));
        state.record_connected(10_000);
        assert_eq!(since(11_000), None);
        state.record_refused(12_000, "refused");
        assert_eq!(since(13_000), Some(12_000));
    }

    #[test]
    fn a_check_shows_that_connections_are_accepted_if_it_got_one() {
        let rule = HealthRule {
            kind: CheckKind::Tcp,
            path: "/".to_owned(),
            every_ms: 100,
            timeout_ms: 50,
            unhealthy_after: 9,
            healthy_after: 1,
            status: Vec::new(),
            body: None,
            host: None,
            headers: Vec::new(),
        };
        for (result, accepted) in [
            (Err(CheckFault::Connection), false),
            (Err(CheckFault::Timeout), false),
            (Err(CheckFault::Broken), true),
            (Err(CheckFault::Status), true),
            (Ok(()), true),
        ] {
            let state = ServerState::default();
            state.record_refused(1_000, "refused");
            state.record_check(&rule, result, 1_100);
            assert_eq!(state.is_usable(1_200), accepted, "{result:?}");
            assert_eq!(
                state.report_health(1_200).health,
                if accepted { Health::Up } else { Health::Refusing },
                "{result:?}"
            );
            assert_eq!(state.ramp(10_000, 1_200) < FULL_RAMP, accepted, "{result:?}: it starts slowly");
        }
    }
}
