//! State of one request as its connection sees it: what it waits for, how much of its body has been read, and which
//! tasks to wake. `ConnectionState` owns it, `RequestDeadline` changes it.

use std::cell::{Cell, RefCell};
use std::task::Waker;
use std::time::Duration;

use crate::ends::End;
use crate::proxy::connection::min_rate::MinRate;
use crate::proxy::connection::timeouts::{TICK, Ticks, Timer, due_in};

/// The event that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestWait {
    /// The gateway itself: limits, the queue for a server, a connect. Each has a timeout of its own.
    Gateway,
    /// More of the request body, from the client.
    Upload,
    /// The head of the response, from the upstream server.
    Response,
    /// More of the response body, or a client that reads it.
    Stream,
    /// A client that has read the response below the minimum rate before.
    Reader,
    /// Bytes of either side of a tunnel.
    Tunnel,
}

impl RequestWait {
    /// Returns the reason that is counted when this wait exceeds its limit and ends the connection or stream. `None`:
    /// the request is answered with an error instead.
    pub fn end(self) -> Option<End> {
        match self {
            RequestWait::Upload => Some(End::BodyTimeout),
            RequestWait::Stream => Some(End::StreamTimeout),
            RequestWait::Reader => Some(End::SlowReader),
            RequestWait::Tunnel => Some(End::TunnelTimeout),
            RequestWait::Gateway | RequestWait::Response => None,
        }
    }
}

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestProgress {
    Active,
    /// A `delay` limit or the queue of an upstream holds it back.
    HeldBack,
    /// The response and the request body have ended. The state is free for another request.
    Over,
}

/// How much of a request body has been read from the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyProgress {
    /// The whole body was read, or there is none.
    Whole,
    Partial,
    /// All that has arrived, and the request needs more.
    Starved,
}

/// State of one request as its connection sees it.
pub(super) struct RequestState {
    ticks: Ticks,
    awaited: Cell<RequestWait>,
    /// Bounds the wait for `awaited`.
    timer: Timer,
    progress: Cell<RequestProgress>,
    body: Cell<BodyProgress>,
    /// The gateway resets this stream and leaves the connection's other streams alone.
    is_cut: Cell<bool>,
    /// HTTP/2 and HTTP/3 only: how fast the client takes the response on this stream.
    pub(super) pace: MinRate,
    /// HTTP/2 and HTTP/3 only: bytes of the response that the library has got and not written.
    pub(super) unsent: Cell<u64>,
    /// HTTP/2 and HTTP/3 only: the tasks that run the request and read its body. Over HTTP/1.1 both are the connection's task.
    pub(super) task: RefCell<Option<Waker>>,
    pub(super) body_reader: RefCell<Option<Waker>>,
}

impl RequestState {
    /// Makes a state that is free for a request.
    pub(super) fn new(ticks: Ticks) -> RequestState {
        RequestState {
            ticks,
            awaited: Cell::new(RequestWait::Gateway),
            timer: Timer::off(),
            progress: Cell::new(RequestProgress::Over),
            body: Cell::new(BodyProgress::Whole),
            is_cut: Cell::new(false),
            pace: MinRate::unlimited(),
            unsent: Cell::new(0),
            task: RefCell::default(),
            body_reader: RefCell::default(),
        }
    }

    /// Begins a request. `is_whole`: it has no body.
    pub(super) fn begin(&self, is_whole: bool) {
        self.body.set(if is_whole { BodyProgress::Whole } else { BodyProgress::Partial });
        self.progress.set(RequestProgress::Active);
        self.is_cut.set(false);
        self.pace.reset();
        self.unsent.set(0);
        self.disarm();
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.ticks.get()
    }

    /// Waits for `awaited`, for `limit` at most. Called again on progress.
    pub(super) fn arm(&self, awaited: RequestWait, limit: Duration) {
        self.awaited.set(awaited);
        self.timer.arm(due_in(&self.ticks, limit + TICK));
    }

    /// Returns whether the request waits for its response body, or for a client that reads it.
    pub(super) fn awaits_stream(&self) -> bool {
        matches!(self.awaited.get(), RequestWait::Stream | RequestWait::Reader)
    }

    /// Restarts the timer if the request waits for `awaited`.
    pub(super) fn extend(&self, awaited: RequestWait, limit: Duration) {
        if self.awaited.get() == awaited && self.timer.is_armed() {
            self.arm(awaited, limit);
        }
    }

    /// Stops the timer: the gateway itself works on the request.
    pub(super) fn disarm(&self) {
        self.awaited.set(RequestWait::Gateway);
        self.timer.disarm();
    }

    /// Returns what the request waited for when its timer expired.
    pub(super) fn expired(&self) -> Option<RequestWait> {
        self.timer.has_expired().then(|| self.awaited.get())
    }

    /// Ends the request because its client reads too slowly, if it is being answered. `awaited` is the reason.
    pub(super) fn expire_slow_reader(&self, awaited: RequestWait) {
        if self.awaits_stream() {
            self.awaited.set(awaited);
            self.timer.expire();
            wake(&self.task);
        }
    }

    /// Returns true once, when the timer has expired, and wakes the request's task.
    pub(super) fn check_timer(&self) -> bool {
        let is_late = self.timer.check(self.now_ms());
        if is_late {
            wake(&self.task);
        }
        is_late
    }

    /// Ends the request. Returns false if it was over before.
    pub(super) fn end(&self) -> bool {
        self.disarm();
        let ends = self.progress.replace(RequestProgress::Over) != RequestProgress::Over;
        if ends {
            wake(&self.task);
            wake(&self.body_reader);
        }
        ends
    }

    pub(super) fn is_over(&self) -> bool {
        self.progress.get() == RequestProgress::Over
    }

    /// Marks the request as held back.
    pub(super) fn hold_back(&self) {
        if !self.is_over() {
            self.progress.set(RequestProgress::HeldBack);
        }
    }

    /// Ends [`hold_back`](Self::hold_back).
    pub(super) fn release(&self) {
        if self.progress.get() == RequestProgress::HeldBack {
            self.progress.set(RequestProgress::Active);
        }
    }

    /// Resets this stream; see [`is_cut`](Self::is_cut).
    pub(super) fn cut(&self) {
        self.is_cut.set(true);
        wake(&self.body_reader);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// Records that the request body has been read to its end.
    pub(super) fn read_whole(&self) {
        self.body.set(BodyProgress::Whole);
    }

    pub(super) fn is_whole(&self) -> bool {
        self.body.get() == BodyProgress::Whole
    }

    /// Records whether the request waits for more of its body. Returns true if that has just begun.
    pub(super) fn set_starved(&self, is_starved: bool) -> bool {
        let before = self.body.get();
        match is_starved {
            _ if self.is_over() => return false,
            true => self.body.set(BodyProgress::Starved),
            false if before == BodyProgress::Starved => self.body.set(BodyProgress::Partial),
            false => {}
        }
        is_starved && before != BodyProgress::Starved
    }

    /// Returns whether the client waits for the response. The client of a tunnel does not.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_over() && self.awaited.get() != RequestWait::Tunnel
    }

    /// Returns whether the request is pointless once its client has shut down its side: the rest of its body will not
    /// come, or it holds a scarce place in a queue.
    pub(super) fn needs_client(&self) -> bool {
        match self.progress.get() {
            RequestProgress::Over => false,
            RequestProgress::HeldBack => true,
            RequestProgress::Active => self.body.get() == BodyProgress::Starved,
        }
    }
}

/// Stores `waker` unless the task is registered already.
pub(super) fn register(registered: &RefCell<Option<Waker>>, waker: &Waker) {
    let mut registered = registered.borrow_mut();
    if !registered.as_ref().is_some_and(|registered| registered.will_wake(waker)) {
        *registered = Some(waker.clone());
    }
}

/// Wakes the registered task, if there is one.
pub(super) fn wake(registered: &RefCell<Option<Waker>>) {
    if let Some(waker) = &*registered.borrow() {
        waker.wake_by_ref();
    }
}
