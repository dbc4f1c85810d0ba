//! Availability of a Redis server, as one worker sees it: the state of the connection and of the circuit breaker.
//! Updates the metrics and logs when either changes.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::sleep_until;

use crate::limiting::decision::ErrorKind;
use crate::limiting::store::redis::connection::breaker::{Breaker, BreakerPhase, CallPermit};
use crate::telemetry::metrics::{Metrics, StoreView};

/// Health of one server.
pub struct ServerHealth {
    /// Why there is no connection; `None` while there is one.
    down: Cell<Option<ErrorKind>>,
    /// True after the first attempt to connect.
    attempted: Cell<bool>,
    /// Notified after each attempt to connect.
    attempt_ended: Notify,
    /// Notified when the breaker opens.
    opened: Notify,
    breaker: RefCell<Breaker>,
    view: StoreView,
}

impl ServerHealth {
    pub fn new(metrics: &Metrics) -> ServerHealth {
        ServerHealth {
            down: Cell::new(Some(ErrorKind::Disconnected)),
            attempted: Cell::new(false),
            attempt_ended: Notify::new(),
            opened: Notify::new(),
            breaker: RefCell::default(),
            view: metrics.store.health.add_view(),
        }
    }

    /// Returns why there is no connection; `None` while there is one.
    pub fn down_reason(&self) -> Option<ErrorKind> {
        self.down.get()
    }

    /// Records that a connection is available.
    pub fn set_up(&self) {
        self.down.set(None);
        self.notify_attempt("");
    }

    /// Records that there is no connection. `why` goes to the log.
    pub fn set_down(&self, kind: ErrorKind, why: &str) {
        // Decisions from now on are not sent, so their errors are not unsure.
        self.down.set(Some(if kind.is_unsure() { ErrorKind::Disconnected } else { kind }));
        self.notify_attempt(why);
    }

    /// Waits for the end of the first attempt to connect.
    pub async fn wait_first_attempt(&self) {
        while !self.attempted.get() {
            self.attempt_ended.notified().await;
        }
    }

    /// Returns why decisions are not even queued; `None` if they are.
    pub fn refusal_reason(&self) -> Option<ErrorKind> {
        self.down.get().or_else(|| self.breaker.borrow().is_open().then_some(ErrorKind::BreakerOpen))
    }

    /// Waits until the breaker is open and a probe is due.
    pub async fn wait_probe_due(&self) {
        loop {
            let due = self.breaker.borrow().probe_at();
            match due {
                Some(due) if due <= Instant::now() => return,
                Some(due) => sleep_until(due.into()).await,
                None => self.opened.notified().await,
            }
        }
    }

    /// Starts a call, if the breaker is closed.
    pub fn begin_call(&self) -> Option<CallAttempt<'_>> {
        let permit = self.breaker.borrow().begin_call()?;
        Some(CallAttempt { health: self, permit: Some(permit) })
    }

    /// Starts a probe, if the breaker is open and one is due.
    pub fn begin_probe(&self) -> Option<CallAttempt<'_>> {
        let permit = self.breaker.borrow_mut().begin_probe(Instant::now())?;
        self.update_metrics("");
        Some(CallAttempt { health: self, permit: Some(permit) })
    }

    fn record_success(&self, permit: CallPermit) {
        let before = self.breaker.borrow().phase();
        self.breaker.borrow_mut().record_success(permit);
        if before != self.breaker.borrow().phase() {
            self.update_metrics("");
        }
    }

    fn record_failure(&self, permit: CallPermit, why: &str) -> bool {
        let opened = self.breaker.borrow_mut().record_failure(Instant::now(), permit);
        if opened {
            self.opened.notify_one();
            self.update_metrics(why);
        }
        opened
    }

    fn notify_attempt(&self, why: &str) {
        self.attempted.set(true);
        self.attempt_ended.notify_waiters();
        self.update_metrics(why);
    }

    fn update_metrics(&self, why: &str) {
        let phase = self.breaker.borrow().phase();
        self.view.report(self.down.get().is_none() && phase == BreakerPhase::Closed, phase as i64, why);
    }
}

/// A call under way. If it is dropped without a result, it counts as failed, so that a probe always ends.
pub struct CallAttempt<'a> {
    health: &'a ServerHealth,
    permit: Option<CallPermit>,
}

impl CallAttempt<'_> {
    pub fn record_success(mut self) {
        if let Some(permit) = self.permit.take() {
            self.health.record_success(permit);
        }
    }

    /// Records a failure. Returns true if it opened the breaker.
    pub fn record_failure(mut self, why: &str) -> bool {
        self.permit.take().is_some_and(|permit| self.health.record_failure(permit, why))
    }
}

impl Drop for CallAttempt<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.health.record_failure(permit, "the call was abandoned");
        }
    }
}
