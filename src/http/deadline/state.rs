//! How a request under way stands: what it waits for, and whom to wake. Kept by `connection`, moved on by `request`.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use super::{Deadline, Pace, Ticks};
use crate::metrics::Cutoff;

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// This gateway itself: bounded elsewhere.
    Gateway,
    /// More of the request body.
    Upload,
    /// The upstream's response head.
    Response,
    /// More of the response body, or room to write it.
    Stream,
    /// Room to write it, of a client that has been slow before.
    Reader,
    /// Anything, of either side of a tunnel.
    Tunnel,
}

impl Awaited {
    /// The reason under which a connection is counted that ends by a deadline of its request.
    pub fn timeout(self) -> Option<Cutoff> {
        match self {
            Awaited::Upload => Some(Cutoff::BodyTimeout),
            Awaited::Stream => Some(Cutoff::StreamTimeout),
            Awaited::Reader => Some(Cutoff::SlowReader),
            Awaited::Tunnel => Some(Cutoff::TunnelTimeout),
            Awaited::Gateway | Awaited::Response => None,
        }
    }
}

/// What its connection sees of a request.
pub(super) struct RequestState {
    pub(super) deadline: Deadline<Awaited>,
    /// It waits for more of its body.
    pub(super) starved: Cell<bool>,
    /// It has not been let on yet.
    pub(super) held_back: Cell<bool>,
    /// Its body has been read to the end, or it had none.
    whole: Cell<bool>,
    /// Nothing of it is waited for any more.
    over: Cell<bool>,
    /// It has been ended by its deadline, alone.
    pub(super) cut: Cell<bool>,
    /// Its client's, in what it has been given of the answer, where others are answered beside it.
    pub(super) pace: Pace,
    pub(super) given: Cell<u64>,
    /// Of the task that looks after it, and of the one that reads its body; none where both are the
    /// connection's.
    pub(super) keeper: RefCell<Option<Waker>>,
    pub(super) reader: RefCell<Option<Waker>>,
}

impl RequestState {
    pub(super) fn new(ticks: Ticks) -> RequestState {
        RequestState {
            deadline: Deadline::none(ticks, Awaited::Gateway),
            starved: Cell::new(false),
            held_back: Cell::new(false),
            whole: Cell::new(true),
            over: Cell::new(true),
            cut: Cell::new(false),
            pace: Pace::none(),
            given: Cell::new(0),
            keeper: RefCell::default(),
            reader: RefCell::default(),
        }
    }

    pub(super) fn begin(&self, whole: bool) {
        self.whole.set(whole);
        self.starved.set(false);
        self.held_back.set(false);
        self.over.set(false);
        self.cut.set(false);
        self.pace.reset();
        self.deadline.disarm(Awaited::Gateway);
    }

    /// Its client is too slow, if it is being answered.
    pub(super) fn miss(&self, awaited: Awaited) {
        if matches!(self.deadline.awaited.get(), Awaited::Stream | Awaited::Reader) {
            self.deadline.miss(awaited);
            wake(&self.keeper);
        }
    }

    /// False when it was over before.
    pub(super) fn end(&self) -> bool {
        self.deadline.disarm(Awaited::Gateway);
        let ends = !self.over.replace(true);
        if ends {
            wake(&self.keeper);
        }
        ends
    }

    /// True once, when its deadline has passed.
    pub(super) fn look(&self) -> bool {
        let late = self.deadline.look();
        if late {
            wake(&self.keeper);
        }
        late
    }

    pub(super) fn read_whole(&self) {
        self.whole.set(true);
    }

    pub(super) fn is_whole(&self) -> bool {
        self.whole.get()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Its client waits for an answer.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_over() && self.deadline.awaited.get() != Awaited::Tunnel
    }

    /// Without its client it cannot go on, or should not.
    pub(super) fn needs_client(&self) -> bool {
        !self.is_over() && (self.starved.get() || self.held_back.get())
    }
}

pub(super) fn register(held: &RefCell<Option<Waker>>, waker: &Waker) {
    let mut held = held.borrow_mut();
    if !held.as_ref().is_some_and(|held| held.will_wake(waker)) {
        *held = Some(waker.clone());
    }
}

pub(super) fn wake(held: &RefCell<Option<Waker>>) {
    if let Some(waker) = &*held.borrow() {
        waker.wake_by_ref();
    }
}
