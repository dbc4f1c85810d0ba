//! What all workers know of one server: whether it is to be asked. Read with every request without a lock;
//! written when something changes. Kept over reloads by `snapshot::fleet`; time is an argument.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::claim::ConnectionClaim;
use super::eject::{Blame, EjectReason, EjectRule, Ejector};
use super::fair_shares::RAMPED;
use super::health::{CheckFault, CheckRun, HealthRule};
use crate::labels::labels;

/// A server that accepted no connection is passed over this long while others are there.
const AVOID_MS: u64 = 2_000;
/// Of a weight, what counts at first while a server starts.
const RAMP_LEAST: u32 = RAMPED / 20;

/// On lines of memory of its own.
#[derive(Default)]
#[repr(align(128))]
pub struct ServerState {
    /// 0 = not ejected.
    ejected_until_ms: AtomicU64,
    /// Checks say so.
    down: AtomicBool,
    /// It accepted no connection when it was last asked for one,
    refuses: AtomicBool,
    /// and is asked again from then on.
    avoid_until_ms: AtomicU64,
    /// When a connection to it was last established; 0 = never.
    connected_ms: AtomicU64,
    /// There were errors since the last good answer.
    failing: AtomicBool,
    /// When it came, or came back, to serve; 0 = at the start.
    begun_ms: AtomicU64,
    /// Requests, where all workers count them here.
    pub(super) in_flight: AtomicU32,
    /// Likewise, where they are capped.
    pub(super) connections: AtomicU32,
    pub claim: ConnectionClaim,
    conduct: Mutex<Conduct>,
}

/// What it did lately.
#[derive(Default)]
struct Conduct {
    ejector: Ejector,
    checks: CheckRun,
    served: ServedClients,
    reason: Option<EjectReason>,
    /// Why its last connection failed.
    refusal: Option<&'static str>,
    /// The length of its last ejection.
    for_ms: u64,
}

labels! {
    /// How a server stands.
    Health:
    Up = "up",
    /// Checks failed.
    Down = "down",
    /// Its last connection failed.
    Refusing = "refusing",
    Ejected = "ejected",
}

/// A state, and why it is so.
pub struct HealthReport {
    pub health: Health,
    pub reason: Option<&'static str>,
    pub ejection: Option<Ejection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    pub until_ms: u64,
    pub for_ms: u64,
}

/// The last two clients that got a good answer, and when: enough to know that somebody other than a given
/// one did.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServedClients([Option<(u64, u64)>; 2]);

impl ServedClients {
    pub fn served(&mut self, client: u64, now_ms: u64) {
        let [last, before] = &mut self.0;
        match last {
            Some((known, at_ms)) if *known == client => *at_ms = now_ms,
            _ => {
                std::mem::swap(last, before);
                *last = Some((client, now_ms));
            }
        }
    }

    fn served_others_than(&self, client: u64, since_ms: u64) -> bool {
        self.0.iter().flatten().any(|(known, at_ms)| *known != client && *at_ms >= since_ms)
    }

    fn take(&mut self, other: &ServedClients) {
        for (client, at_ms) in other.0.into_iter().flatten().rev() {
            self.served(client, at_ms);
        }
    }
}

/// Good answers that one worker counted and did not tell yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServedTally {
    pub count: u64,
    pub clients: ServedClients,
}

impl ServerState {
    /// Of a server that came while others served.
    pub fn newcomer(now_ms: u64) -> ServerState {
        ServerState { begun_ms: AtomicU64::new(now_ms.max(1)), ..ServerState::default() }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// The part of its weight that counts: it grows to the whole within `slow_start_ms`.
    pub fn ramp(&self, slow_start_ms: u64, now_ms: u64) -> u32 {
        let begun_ms = self.begun_ms.load(Ordering::Relaxed);
        let served_ms = now_ms.saturating_sub(begun_ms);
        if begun_ms == 0 || served_ms >= slow_start_ms {
            return RAMPED;
        }
        let part = served_ms * u64::from(RAMPED) / slow_start_ms;
        u32::try_from(part).unwrap_or(RAMPED).max(RAMP_LEAST)
    }

    /// Requests may go there.
    pub fn is_usable(&self, now_ms: u64) -> bool {
        !self.down.load(Ordering::Relaxed)
            && now_ms >= self.avoid_until_ms.load(Ordering::Relaxed)
            && !self.is_ejected(now_ms)
    }

    pub fn is_ejected(&self, now_ms: u64) -> bool {
        now_ms < self.ejected_until_ms.load(Ordering::Relaxed)
    }

    /// There is something that a good answer takes back.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// It accepted a connection.
    pub fn connected(&self, now_ms: u64) {
        self.connected_ms.store(now_ms.max(1), Ordering::Relaxed);
        if self.refuses.load(Ordering::Relaxed) {
            self.refuses.store(false, Ordering::Relaxed);
            self.begun_ms.store(now_ms.max(1), Ordering::Relaxed);
            self.avoid_until_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a connection to it was established at `since_ms` or later.
    pub fn has_connected_since(&self, since_ms: u64) -> bool {
        self.connected_ms.load(Ordering::Relaxed) >= since_ms.max(1)
    }

    /// It accepted no connection, for `reason`.
    pub fn refused(&self, now_ms: u64, reason: &'static str) {
        self.lock().refusal = Some(reason);
        self.refuses.store(true, Ordering::Relaxed);
        self.avoid_until_ms.store(now_ms + AVOID_MS, Ordering::Relaxed);
    }

    /// A good answer after errors.
    pub fn recovered(&self) {
        self.failing.store(false, Ordering::Relaxed);
        self.lock().ejector.recovered();
    }

    pub fn served(&self, rule: &EjectRule, now_ms: u64, tally: &ServedTally) {
        let mut conduct = self.lock();
        conduct.ejector.served(rule, now_ms, tally.count);
        conduct.served.take(&tally.clients);
    }

    /// A request that counted as served meets an error after all, which `failed` is told next.
    pub fn unserved(&self) {
        self.lock().ejector.unserved();
    }

    /// A request met an error. True when the server should be ejected.
    pub fn failed(&self, rule: &EjectRule, now_ms: u64, blame: Blame) -> bool {
        // Requests that were under way, or had nowhere else to go, make it no longer.
        if self.is_ejected(now_ms) {
            return false;
        }
        self.failing.store(true, Ordering::Relaxed);
        let conduct = &mut *self.lock();
        let (served, since_ms) = (conduct.served, now_ms.saturating_sub(rule.every_ms));
        let reason = conduct.ejector.failed(rule, now_ms, blame, |client| served.served_others_than(client, since_ms));
        conduct.reason = reason.or(conduct.reason);
        reason.is_some()
    }

    pub fn eject(&self, rule: &EjectRule, now_ms: u64) {
        let mut conduct = self.lock();
        let until_ms = conduct.ejector.eject(rule, now_ms);
        conduct.for_ms = until_ms - now_ms;
        self.ejected_until_ms.store(until_ms, Ordering::Relaxed);
        self.begun_ms.store(until_ms, Ordering::Relaxed);
    }

    /// What became of a check.
    pub fn checked(&self, rule: &HealthRule, result: Result<(), CheckFault>, now_ms: u64) {
        if !matches!(result, Err(CheckFault::Connection | CheckFault::Timeout)) {
            self.connected(now_ms);
        }
        let mut conduct = self.lock();
        conduct.checks.checked(rule, result);
        let down = conduct.checks.down().is_some();
        if self.down.swap(down, Ordering::Relaxed) && !down {
            self.begun_ms.store(now_ms.max(1), Ordering::Relaxed);
        }
    }

    /// Nobody checks any more.
    pub fn unchecked(&self) {
        self.lock().checks = CheckRun::default();
        self.down.store(false, Ordering::Relaxed);
    }

    /// Nobody ejects any more.
    pub fn pardon(&self) {
        self.ejected_until_ms.store(0, Ordering::Relaxed);
        self.recovered();
    }

    pub fn told(&self, now_ms: u64) -> HealthReport {
        if self.down.load(Ordering::Relaxed) {
            let reason = self.lock().checks.down().map(CheckFault::label);
            return HealthReport { health: Health::Down, reason, ejection: None };
        }
        let until_ms = self.ejected_until_ms.load(Ordering::Relaxed);
        if now_ms < until_ms {
            let conduct = self.lock();
            let reason = conduct.reason.map(EjectReason::label);
            let ejection = Some(Ejection { until_ms, for_ms: conduct.for_ms });
            return HealthReport { health: Health::Ejected, reason, ejection };
        }
        let (health, reason) = match self.refuses.load(Ordering::Relaxed) {
            true => (Health::Refusing, self.lock().refusal),
            false => (Health::Up, None),
        };
        HealthReport { health, reason, ejection: None }
    }

    fn lock(&self) -> MutexGuard<'_, Conduct> {
        self.conduct.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::health::CheckKind;
    use super::*;

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
        };
        for (result, accepted) in [
            (Err(CheckFault::Connection), false),
            (Err(CheckFault::Timeout), false),
            (Err(CheckFault::Broken), true),
            (Err(CheckFault::Status), true),
            (Ok(()), true),
        ] {
            let state = ServerState::default();
            state.refused(1_000, "refused");
            state.checked(&rule, result, 1_100);
            assert_eq!(state.is_usable(1_200), accepted, "{result:?}");
            assert_eq!(state.told(1_200).health, if accepted { Health::Up } else { Health::Refusing }, "{result:?}");
            assert_eq!(state.ramp(10_000, 1_200) < RAMPED, accepted, "{result:?}: it starts slowly");
        }
    }
}
