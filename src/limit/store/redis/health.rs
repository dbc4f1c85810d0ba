//! Whether the store can be asked, as this worker sees it: the connection and the breaker, and
//! what metrics show of both. Shared by `lane.rs`, `pump.rs` and
//! `nodes.rs`, which ask, and `link.rs`, which connects.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::breaker::{Breaker, BreakerPhase, CallPermit};
use crate::limit::decision::ErrorKind;
use crate::metrics::{Metrics, StoreView};

pub struct Health {
    /// Why there is no connection; `None` while there is one.
    down: Cell<Option<ErrorKind>>,
    /// An attempt to connect has ended.
    attempted: Cell<bool>,
    news: Notify,
    /// The breaker has opened.
    opened: Notify,
    breaker: RefCell<Breaker>,
    view: StoreView,
}

impl Health {
    pub fn new(metrics: &Metrics) -> Health {
        Health {
            down: Cell::new(Some(ErrorKind::Disconnected)),
            attempted: Cell::new(false),
            news: Notify::new(),
            opened: Notify::new(),
            breaker: RefCell::default(),
            view: metrics.store_health.join(),
        }
    }

    pub fn down(&self) -> Option<ErrorKind> {
        self.down.get()
    }

    pub fn set_up(&self) {
        self.down.set(None);
        self.tell("");
    }

    pub fn set_down(&self, kind: ErrorKind, why: &str) {
        // Whatever became of the connection, what is asked from now on does not leave.
        self.down.set(Some(if kind.is_unsure() { ErrorKind::Disconnected } else { kind }));
        self.tell(why);
    }

    /// Waits for the end of the first attempt to connect.
    pub async fn first_attempt(&self) {
        while !self.attempted.get() {
            self.news.notified().await;
        }
    }

    /// Why a decision is not even queued.
    pub fn refusal(&self) -> Option<ErrorKind> {
        self.down.get().or_else(|| self.breaker.borrow().refuses().then_some(ErrorKind::BreakerOpen))
    }

    /// Waits until the breaker is open and a probe is due.
    pub async fn probe_due(&self) {
        loop {
            let due = self.breaker.borrow().probe_at();
            match due {
                Some(due) if due <= Instant::now() => return,
                Some(due) => sleep_until(due.into()).await,
                None => self.opened.notified().await,
            }
        }
    }

    /// Asks to make a call.
    pub fn begin(&self) -> Option<Attempt<'_>> {
        let permit = self.breaker.borrow().begin()?;
        Some(Attempt { health: self, permit: Some(permit) })
    }

    /// The same for a probe of an open breaker.
    pub fn begin_probe(&self) -> Option<Attempt<'_>> {
        let permit = self.breaker.borrow_mut().begin_probe(Instant::now())?;
        self.show("");
        Some(Attempt { health: self, permit: Some(permit) })
    }

    fn succeeded(&self, permit: CallPermit) {
        let before = self.breaker.borrow().phase();
        self.breaker.borrow_mut().succeeded(permit);
        if before != self.breaker.borrow().phase() {
            self.show("");
        }
    }

    fn failed(&self, permit: CallPermit, why: &str) -> bool {
        let opened = self.breaker.borrow_mut().failed(Instant::now(), permit);
        if opened {
            self.opened.notify_one();
            self.show(why);
        }
        opened
    }

    fn tell(&self, why: &str) {
        self.attempted.set(true);
        self.news.notify_waiters();
        self.show(why);
    }

    fn show(&self, why: &str) {
        let phase = self.breaker.borrow().phase();
        self.view.set(self.down.get().is_none() && phase == BreakerPhase::Closed, phase as i64, why);
    }
}

/// A call under way. One that is given up without a word has failed, so that a probe never stays
/// under way for good.
pub struct Attempt<'a> {
    health: &'a Health,
    permit: Option<CallPermit>,
}

impl Attempt<'_> {
    pub fn succeeded(mut self) {
        if let Some(permit) = self.permit.take() {
            self.health.succeeded(permit);
        }
    }

    /// True if this failure opened the breaker.
    pub fn failed(mut self, why: &str) -> bool {
        self.permit.take().is_some_and(|permit| self.health.failed(permit, why))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.health.failed(permit, "the call was given up");
        }
    }
}
