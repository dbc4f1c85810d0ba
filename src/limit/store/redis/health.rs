//! Whether the store can be asked, as this worker sees it: the connection and the breaker, and
//! what metrics show of both. Shared by `lane.rs`, `pump.rs` and
//! `nodes.rs`, which ask, and `link.rs`, which connects.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use tokio::sync::Notify;

use super::breaker::{Breaker, BreakerPhase, CallPermit};
use crate::limit::decision::ErrorKind;
use crate::metrics::{Metrics, StoreView};

pub struct Health {
    /// Why there is no connection; `None` while there is one.
    down: Cell<Option<ErrorKind>>,
    /// An attempt to connect has ended.
    attempted: Cell<bool>,
    news: Notify,
    breaker: RefCell<Breaker>,
    view: StoreView,
}

impl Health {
    pub fn new(metrics: &Metrics) -> Health {
        Health {
            down: Cell::new(Some(ErrorKind::Disconnected)),
            attempted: Cell::new(false),
            news: Notify::new(),
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

    /// Why a decision that comes `now` is not even queued.
    pub fn refusal(&self, now: Instant) -> Option<ErrorKind> {
        self.down.get().or_else(|| self.breaker.borrow().refuses(now).then_some(ErrorKind::BreakerOpen))
    }

    /// Asks to make a call.
    pub fn begin(&self) -> Option<Attempt<'_>> {
        let mut breaker = self.breaker.borrow_mut();
        let before = breaker.phase();
        let ticket = breaker.begin(Instant::now());
        let changed = breaker.phase() != before;
        drop(breaker);
        if changed {
            self.show("");
        }
        Some(Attempt { health: self, ticket: Some(ticket?) })
    }

    fn succeeded(&self, ticket: CallPermit) {
        let before = self.breaker.borrow().phase();
        self.breaker.borrow_mut().succeeded(ticket);
        if before != self.breaker.borrow().phase() {
            self.show("");
        }
    }

    fn failed(&self, ticket: CallPermit, why: &str) -> bool {
        let opened = self.breaker.borrow_mut().failed(Instant::now(), ticket);
        if opened {
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
    ticket: Option<CallPermit>,
}

impl Attempt<'_> {
    pub fn succeeded(mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.health.succeeded(ticket);
        }
    }

    /// True if this failure opened the breaker.
    pub fn failed(mut self, why: &str) -> bool {
        self.ticket.take().is_some_and(|ticket| self.health.failed(ticket, why))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.health.failed(ticket, "the call was given up");
        }
    }
}
