//! Deadlines: those of a client connection, and those of each of its requests. The worker looks at all
//! of them ten times a second, so neither starts a timer of its own. Made by the workers, moved on by
//! the I/O, the bodies and the forwarder.

mod connection;
mod pace;
mod request;
mod state;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

pub use connection::{ConnectionDeadline, Phase};
pub use pace::Pace;
pub use request::RequestDeadline;
pub use state::Awaited;

/// Milliseconds since the worker started, as of its last look at the deadlines.
pub type Ticks = Rc<Cell<u64>>;

/// How often deadlines are looked at: a timeout may strike this much late.
pub const TICK: Duration = Duration::from_millis(100);

/// What is waited for, and for how long.
struct Deadline<W> {
    ticks: Ticks,
    awaited: Cell<W>,
    due_ms: Cell<u64>,
    expired: Cell<bool>,
}

impl<W: Copy> Deadline<W> {
    fn none(ticks: Ticks, awaited: W) -> Deadline<W> {
        Deadline { ticks, awaited: Cell::new(awaited), due_ms: Cell::new(u64::MAX), expired: Cell::new(false) }
    }

    /// Waits for `awaited`, for `limit` at most. Also called to extend a wait on progress.
    fn arm(&self, awaited: W, limit: Duration) {
        self.awaited.set(awaited);
        self.due_ms.set(self.in_ms(limit + TICK));
        self.expired.set(false);
    }

    /// Waits for the same anew, if `awaited` is what it waits for.
    fn extend(&self, awaited: W, limit: Duration)
    where
        W: PartialEq,
    {
        if self.awaited.get() == awaited && self.due_ms.get() != u64::MAX {
            self.arm(awaited, limit);
        }
    }

    /// A part of the wait that does not count.
    fn postpone(&self, time: Duration) {
        self.due_ms.set(self.due_ms.get().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    }

    /// `awaited` did not come in time.
    fn miss(&self, awaited: W) {
        self.awaited.set(awaited);
        self.expired.set(true);
    }

    /// Waits for `awaited` as long as it takes.
    fn disarm(&self, awaited: W) {
        self.awaited.set(awaited);
        self.due_ms.set(u64::MAX);
        self.expired.set(false);
    }

    fn now_ms(&self) -> u64 {
        self.ticks.get()
    }

    fn in_ms(&self, time: Duration) -> u64 {
        self.ticks.get().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    /// What did not come in time.
    fn expired(&self) -> Option<W> {
        self.expired.get().then(|| self.awaited.get())
    }

    /// True once, when the deadline has passed.
    fn look(&self) -> bool {
        self.now_ms() >= self.due_ms.get() && !self.expired.replace(true)
    }
}
