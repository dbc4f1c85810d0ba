//! Circuit breakers: while an upstream fails, or answers too slowly, its requests are refused at once. An upstream may
//! have a breaker, and so may a route.
//!
//! Input: admissions of requests, and their outcomes. Output: whether further requests are admitted. All workers
//! share a breaker, and it outlives reloads: [`snapshot::Fleet`](crate::snapshot::Fleet) keeps it by name.
//!
//! - `mod.rs`: the shared breaker, and the permit that an admitted request holds
//! - `machine`: the state machine; `window`: the results that it counts; `clients`: what it knows of their clients

pub(crate) mod clients;
pub(crate) mod machine;
#[cfg(test)]
mod tests;
pub(crate) mod window;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::labels::labels;
use crate::upstream::breaker::machine::{Admission, BreakerMachine, BreakerReport, BreakerRule, Ticket};
use crate::upstream::breaker::window::CallReport;
use crate::upstream::eject::Blame;

labels! {
    /// Part of the config that a breaker protects; the `kind` label of its metrics.
    BreakerKind:
    Upstream = "upstream",
    Route = "route",
}

/// A breaker that all workers share.
pub struct CircuitBreaker {
    pub kind: BreakerKind,
    /// Name of the upstream or the route.
    pub name: String,
    /// Twice the epoch, and 1 if all requests are admitted. Read without the lock by each request.
    admits_all: AtomicU64,
    state: Mutex<LockedBreaker>,
    /// Requests that were refused.
    refused: AtomicU64,
}

struct LockedBreaker {
    rule: BreakerRule,
    machine: BreakerMachine,
}

/// The admission of a request. It reports the result once; dropped without one, it returns the place of a probe.
pub struct BreakerPermit {
    breaker: Arc<CircuitBreaker>,
    ticket: Ticket,
    slow: Option<Duration>,
    client: Blame,
    is_counted: bool,
}

/// A request that a breaker refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRefusal {
    pub kind: BreakerKind,
    /// When the breaker may admit requests again.
    pub wait_ms: u64,
}

impl CircuitBreaker {
    pub fn new(kind: BreakerKind, name: &str, rule: BreakerRule) -> CircuitBreaker {
        let state = LockedBreaker { rule, machine: BreakerMachine::default() };
        let admits_all = AtomicU64::new(encode_admission(&state.machine));
        CircuitBreaker { kind, name: name.to_owned(), admits_all, state: Mutex::new(state), refused: AtomicU64::new(0) }
    }

    /// Applies the rule of a config that is active from `now_ms` on. The phase stays; the results are forgotten if
    /// the rule has changed.
    pub fn apply_rule(&self, rule: BreakerRule, now_ms: u64) {
        let mut state = self.lock();
        if state.rule != rule {
            state.rule = rule;
            state.machine.apply_new_rule(&rule, now_ms);
        }
    }

    /// Refuses a request of `client` that [`admit`](Self::admit) would certainly refuse now. Takes no place of a probe.
    ///
    /// # Errors
    /// The breaker is open, or half-open and has its probes.
    pub fn check(&self, now_ms: impl FnOnce() -> u64, client: Blame) -> Result<(), BreakerRefusal> {
        if self.admits_all.load(Ordering::Relaxed) & 1 == 1 {
            return Ok(());
        }
        let LockedBreaker { rule, machine } = &mut *self.lock();
        match machine.find_wait(rule, now_ms(), client) {
            Some(wait_ms) => Err(self.refuse(wait_ms)),
            None => Ok(()),
        }
    }

    fn refuse(&self, wait_ms: u64) -> BreakerRefusal {
        self.refused.fetch_add(1, Ordering::Relaxed);
        BreakerRefusal { kind: self.kind, wait_ms }
    }

    /// Admits a request of `client`, or refuses it. `slow_ms` is the time after which it counts as slow, by the config
    /// that the request uses. `now_ms` is read only if the breaker does not admit everything.
    ///
    /// # Errors
    /// The breaker is open, half-open and has its probes, or the request is not in the share that a ramp admits.
    pub fn admit(
        self: &Arc<Self>,
        slow_ms: Option<u64>,
        now_ms: impl FnOnce() -> u64,
        client: Blame,
    ) -> Result<BreakerPermit, BreakerRefusal> {
        let slow = slow_ms.map(Duration::from_millis);
        let permit = |ticket| BreakerPermit { breaker: self.clone(), ticket, slow, client, is_counted: false };
        let admission = self.admits_all.load(Ordering::Relaxed);
        if admission & 1 == 1 {
            return Ok(permit(Ticket { epoch: admission >> 1, probe: None }));
        }
        let mut state = self.lock();
        let LockedBreaker { rule, machine } = &mut *state;
        let admitted = machine.admit(rule, now_ms(), client);
        self.publish(machine);
        match admitted {
            Admission::Admitted(ticket) => Ok(permit(ticket)),
            Admission::Refused { wait_ms } => Err(self.refuse(wait_ms)),
        }
    }

    /// Returns the state at `now_ms`.
    pub fn describe(&self, now_ms: u64) -> BreakerReport {
        let state = self.lock();
        state.machine.describe(&state.rule, now_ms)
    }

    /// Returns how many requests were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn report(&self, now_ms: u64, ticket: Ticket, report: &CallReport) {
        let mut state = self.lock();
        let LockedBreaker { rule, machine } = &mut *state;
        machine.report(rule, now_ms, ticket, report);
        self.publish(machine);
    }

    /// Publishes for requests without the lock whether all are admitted.
    fn publish(&self, machine: &BreakerMachine) {
        let admission = encode_admission(machine);
        if self.admits_all.load(Ordering::Relaxed) != admission {
            self.admits_all.store(admission, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, LockedBreaker> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn encode_admission(machine: &BreakerMachine) -> u64 {
    machine.epoch() << 1 | u64::from(machine.open_epoch().is_some())
}

impl BreakerPermit {
    pub fn kind(&self) -> BreakerKind {
        self.breaker.kind
    }

    /// Returns the time to the response head from which the request is slow.
    pub fn slow_after(&self) -> Option<Duration> {
        self.slow
    }

    /// Reports that the request has no response head although it is slow already. Its end may still be an error.
    pub fn report_slow(&mut self, now_ms: u64) {
        self.report(now_ms, true, false);
    }

    /// Reports the end of the request: its response head, or an error. `is_slow`: the head came too late.
    pub fn report_end(&mut self, now_ms: u64, is_slow: bool, is_error: bool) {
        if !self.is_counted || is_error {
            self.report(now_ms, is_slow && !self.is_counted, is_error);
        }
    }

    fn report(&mut self, now_ms: u64, is_slow: bool, is_error: bool) {
        let is_first = !std::mem::replace(&mut self.is_counted, true);
        let report = CallReport { is_first, is_slow, is_error, client: self.client };
        self.breaker.report(now_ms, self.ticket, &report);
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if self.ticket.probe.is_some() && !self.is_counted {
            self.breaker.lock().machine.return_ticket(self.ticket);
        }
    }
}
