//! The deadline of one client connection. A connection is always in one phase with one deadline;
//! the worker looks at all of them ten times a second, so a request starts no timer of its own.
//! Made by `connection`, moved from phase to phase by the I/O, the bodies and the forwarder.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;

/// Milliseconds since the worker started, as of its last look at the deadlines.
pub type Ticks = Rc<Cell<u64>>;

/// How often deadlines are looked at: a timeout may strike this much late.
pub const TICK: Duration = Duration::from_millis(100);

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The first byte of a further request.
    Idle,
    /// The rest of a request head.
    Head,
    /// This gateway itself: bounded elsewhere.
    Busy,
    /// More of the request body.
    Upload,
    /// The upstream's response head.
    Response,
    /// More of the response body, or room to write it.
    Stream,
}

pub struct Slot {
    ticks: Ticks,
    phase: Cell<Phase>,
    due: Cell<u64>,
    expired: Cell<bool>,
    /// Requests begun so far.
    turn: Cell<u64>,
    /// The request under way waits for more of its body.
    starved: Cell<bool>,
    /// When a client that has shut down its side is taken for gone.
    gone_at: Cell<u64>,
    gone: Cell<bool>,
    /// The request under way has not been let on yet.
    held_back: Cell<bool>,
    cut: Cell<bool>,
    lingers: Cell<bool>,
    /// For exchanges that linger; the connection itself may still be open.
    cut_off: Notify,
    waker: RefCell<Option<Waker>>,
}

/// The deadline passed in this phase.
#[derive(Clone, Copy, Debug)]
pub struct Expired(pub Phase);

impl Slot {
    pub fn new(ticks: Ticks) -> Slot {
        let due = Cell::new(u64::MAX);
        Slot {
            ticks,
            phase: Cell::new(Phase::Busy),
            due,
            expired: Cell::new(false),
            turn: Cell::new(0),
            starved: Cell::new(false),
            gone_at: Cell::new(u64::MAX),
            gone: Cell::new(false),
            held_back: Cell::new(false),
            cut: Cell::new(false),
            lingers: Cell::new(false),
            cut_off: Notify::new(),
            waker: RefCell::default(),
        }
    }

    /// A request begins.
    pub fn begin(&self) {
        self.turn.set(self.turn.get() + 1);
        self.starved.set(false);
        self.held_back.set(false);
        self.gone_at.set(u64::MAX);
        self.disarm();
    }

    /// The number of the request under way, or of the last one.
    pub fn turn(&self) -> u64 {
        self.turn.get()
    }

    /// Whether request number `turn` waits for more of its body, after all of it that was there.
    pub fn starve(&self, turn: u64, waits: bool) {
        if self.turn() == turn && self.starved.replace(waits) != waits && waits && self.gone_at.get() != u64::MAX {
            // There is no more: the connection is to look again.
            self.wake();
        }
    }

    /// The client has shut down its side. True when it has a request under way that may be whole, and
    /// whose answer it may be waiting for: for `limit`, then it is taken for gone.
    pub fn half_closed(&self, limit: Duration) -> bool {
        if self.starved.get()
            || self.held_back.get()
            || limit.is_zero()
            || matches!(self.phase(), Phase::Idle | Phase::Head)
        {
            return false;
        }
        if self.gone_at.get() == u64::MAX {
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            self.gone_at.set(self.ticks.get().saturating_add(limit_ms));
        }
        true
    }

    /// The request waits for its turn, or waits no longer. Turns are scarce: meanwhile a client that has
    /// shut down its side is taken for gone at once.
    pub fn hold_back(&self, waits: bool) {
        self.held_back.set(waits);
        if waits && self.gone_at.get() != u64::MAX {
            self.gone.set(true);
            self.wake();
        }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Enters `phase`, which ends within `limit`. Also called to extend a phase on progress.
    pub fn arm(&self, phase: Phase, limit: Duration) {
        self.phase.set(phase);
        let limit_ms = u64::try_from((limit + TICK).as_millis()).unwrap_or(u64::MAX);
        self.due.set(self.ticks.get().saturating_add(limit_ms));
        self.expired.set(false);
    }

    pub fn disarm(&self) {
        self.phase.set(Phase::Busy);
        self.due.set(u64::MAX);
        self.expired.set(false);
    }

    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Milliseconds on the worker's coarse clock.
    pub fn now_ms(&self) -> u64 {
        self.ticks.get()
    }

    pub fn expired(&self) -> Option<Expired> {
        self.expired.get().then(|| Expired(self.phase.get()))
    }

    /// Runs `future` until it ends or the deadline in force passes.
    pub async fn within<F: Future>(&self, future: F) -> Result<F::Output, Expired> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Some(expired) = self.expired() {
                self.disarm();
                return Poll::Ready(Err(expired));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// The connection's task, to be woken when the deadline passes.
    pub fn register(&self, waker: &Waker) {
        let mut held = self.waker.borrow_mut();
        if !held.as_ref().is_some_and(|held| held.will_wake(waker)) {
            *held = Some(waker.clone());
        }
    }

    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Ends the connection wherever it is, unanswered.
    pub fn cut(&self) {
        self.cut.set(true);
        self.cut_off.notify_waiters();
        self.wake();
    }

    pub fn is_cut(&self) -> bool {
        self.cut.get()
    }

    /// The client has left, its exchange with the upstream goes on: waits until that is cut.
    pub async fn linger(&self) {
        self.lingers.set(true);
        while !self.is_cut() {
            self.cut_off.notified().await;
        }
    }

    pub fn lingers(&self) -> bool {
        self.lingers.get()
    }

    /// Called by the worker at each tick.
    pub fn look(&self) {
        if self.ticks.get() >= self.gone_at.get() && !self.gone.get() {
            self.gone.set(true);
            self.wake();
        }
        if self.ticks.get() >= self.due.get() && !self.expired.get() {
            self.expired.set(true);
            self.wake();
        }
    }
}
