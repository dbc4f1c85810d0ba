//! State of one client connection: its phase, the requests on it, and why the gateway ends it.
//!
//! Three conditions are tracked separately from the [`Phase`], because they may begin in one phase and end in another:
//! the client has shut down its side (half-close), it reads too slowly ([`Output`]), or an HTTP/2 connection goes away
//! ([`GoAway`]). The first two lead to a [`ConnectionEnd`]. The connection's task acts on these conditions when it is
//! woken.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;

use crate::ends::End;
use crate::proxy::connection::min_rate::Output;
use crate::proxy::connection::phase::{ConnectionEnd, GoAway, Phase};
use crate::proxy::connection::request_state::{RequestState, RequestWait, register, wake};
use crate::proxy::connection::timeouts::{TICK, Ticks, Timer, due_in};

/// Time after which an idle connection drops its parser and buffers. It is long enough that a connection in steady use
/// keeps them between two requests.
const REST_AFTER: Duration = Duration::from_millis(500);

/// The HTTP/2 library keeps almost no memory for a connection that never had more streams than this at once.
const FEW_STREAMS: usize = 8;

/// State of one client connection. Shared by the connection's task, its requests and the worker, which checks the
/// timers.
pub struct ConnectionState {
    ticks: Ticks,
    phase: Cell<Phase>,
    /// Bounds the phase; off in `Requests`, `Upgraded` and `Closed`.
    timer: Timer,
    /// Turns `Idle` into `Resting`.
    rest_timer: Timer,
    /// Armed while the client has shut down its side and waits for responses (HTTP/1.1 only).
    half_close_timer: Timer,
    /// Bounds a head that has begun while other requests are under way (HTTP/2 only).
    head_timer: Timer,
    end: Cell<Option<ConnectionEnd>>,
    pub(super) goaway: Cell<GoAway>,
    /// Bytes on their way to the client.
    output: Output,
    /// States of the requests under way, and free ones for the next requests.
    requests: RefCell<Vec<Rc<RequestState>>>,
    /// Set when the timer of a request expires. A hint only: the request may have reacted since.
    has_late_request: Cell<bool>,
    /// HTTP/2 only: the longest time for which the connection may be idle.
    keepalive: Cell<Option<Duration>>,
    /// The most requests that were under way at once.
    pub(super) most_requests: Cell<usize>,
    /// Wakes exchanges that linger, when the connection is cut. Made for the first of them.
    cut_notify: OnceCell<Box<Notify>>,
    /// Wakes the connection's task.
    task: RefCell<Option<Waker>>,
}

impl ConnectionState {
    pub fn new(ticks: Ticks) -> ConnectionState {
        ConnectionState {
            ticks,
            phase: Cell::new(Phase::Handshake),
            timer: Timer::off(),
            rest_timer: Timer::off(),
            half_close_timer: Timer::off(),
            head_timer: Timer::off(),
            end: Cell::new(None),
            goaway: Cell::new(GoAway::No),
            output: Output::default(),
            requests: RefCell::default(),
            has_late_request: Cell::new(false),
            keepalive: Cell::new(None),
            most_requests: Cell::new(0),
            cut_notify: OnceCell::new(),
            task: RefCell::default(),
        }
    }

    /// Milliseconds on the worker's coarse clock.
    pub fn now_ms(&self) -> u64 {
        self.ticks.get()
    }

    // Phases.

    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Enters `phase`, which ends within `limit`.
    pub fn enter_phase(&self, phase: Phase, limit: Duration) {
        self.enter(phase);
        self.timer.arm(due_in(&self.ticks, limit + TICK));
        if phase == Phase::Idle {
            self.rest_timer.arm(due_in(&self.ticks, REST_AFTER));
        }
    }

    /// Enters `phase` without a timer.
    fn enter(&self, phase: Phase) {
        debug_assert!(self.phase().may_become(phase), "{:?} -> {phase:?}", self.phase());
        self.phase.set(phase);
        self.timer.disarm();
        self.rest_timer.disarm();
    }

    /// Returns the phase if it has exceeded its limit.
    pub fn expired_phase(&self) -> Option<Phase> {
        self.timer.has_expired().then(|| self.phase())
    }

    /// Marks an HTTP/1.1 connection as a tunnel. An HTTP/2 connection stays as it is, because only one of its streams
    /// is a tunnel.
    pub(super) fn upgrade(&self) {
        if self.is_multiplexed() {
            return;
        }
        self.enter(Phase::Upgraded);
        // A tunnel forwards the end of one direction and continues in the other.
        self.half_close_timer.disarm();
    }

    pub fn is_upgraded(&self) -> bool {
        self.phase() == Phase::Upgraded
    }

    /// Records that the connection's task has ended.
    pub fn close(&self) {
        self.enter(Phase::Closed);
    }

    /// Returns whether the next bytes belong to a request head: no request is under way, and no body is left unread.
    pub fn awaits_head(&self) -> bool {
        !self.phase().has_requests() && self.has_no_unread_body()
    }

    /// Returns whether no unread body of an earlier request precedes the next head. Over HTTP/2, a body never does.
    pub fn has_no_unread_body(&self) -> bool {
        self.is_multiplexed() || self.requests.borrow().iter().all(|request| request.is_whole())
    }

    /// Returns whether a client waits for a response. A drain that runs out of time reports these connections as cut.
    pub fn has_waiting_client(&self) -> bool {
        match self.is_multiplexed() {
            true => self.requests.borrow().iter().any(|request| request.is_awaited()),
            false => !matches!(self.phase(), Phase::Idle | Phase::Resting | Phase::Upgraded | Phase::Closed),
        }
    }

    // Requests.

    /// Begins a request and returns its state. `is_whole`: it has no body.
    pub(super) fn begin_request(&self, is_whole: bool) -> Rc<RequestState> {
        self.enter(Phase::Requests);
        self.half_close_timer.disarm();
        self.output.await_response();
        let mut requests = self.requests.borrow_mut();
        let free = requests.iter().find(|request| request.is_over() && Rc::strong_count(request) == 1);
        let state = match free {
            Some(free) => free.clone(),
            None => {
                let new = Rc::new(RequestState::new(self.ticks.clone()));
                requests.push(new.clone());
                self.most_requests.set(self.most_requests.get().max(requests.len()));
                new
            }
        };
        state.begin(is_whole);
        state
    }

    /// Records that a request is over. After the last one the connection is idle, for `keepalive` at most.
    pub(super) fn request_ended(&self, keepalive: Duration) {
        if self.phase() == Phase::Requests && self.requests.borrow().iter().all(|request| request.is_over()) {
            self.enter_phase(Phase::Idle, self.keepalive.get().map_or(keepalive, |own| own.min(keepalive)));
        }
    }

    /// Ends all requests: an HTTP/1.1 connection carries one at a time, and the next one has begun. Exchanges may
    /// still hold the states of earlier ones.
    pub fn end_requests(&self) {
        for request in &*self.requests.borrow() {
            request.end();
            request.read_whole();
        }
    }

    /// Frees the states of past requests. Over HTTP/2, the connection may never have as many again.
    fn free_request_states(&self) {
        let mut requests = self.requests.borrow_mut();
        let is_needed = |request: &RequestState| !request.is_over() || !(self.is_multiplexed() || request.is_whole());
        requests.retain(|request| is_needed(request) || Rc::strong_count(request) > 1);
        requests.shrink_to_fit();
    }

    /// Returns what a request waited for when its timer expired, if it has not reacted to that.
    pub fn expired_request_wait(&self) -> Option<RequestWait> {
        if !self.has_late_request.get() {
            return None;
        }
        let wait = self.requests.borrow().iter().find_map(|request| request.expired());
        self.has_late_request.set(wait.is_some());
        wait
    }

    // HTTP/2.

    /// Marks the connection as HTTP/2, which carries many requests at once. It may be idle for `keepalive` at most.
    pub fn set_multiplexed(&self, keepalive: Duration) {
        self.keepalive.set(Some(keepalive));
    }

    /// Returns whether the connection carries many requests at once (HTTP/2).
    pub fn is_multiplexed(&self) -> bool {
        self.keepalive.get().is_some()
    }

    /// Returns the limit set by [`set_multiplexed`](Self::set_multiplexed).
    pub(super) fn keepalive(&self) -> Option<Duration> {
        self.keepalive.get()
    }

    /// Records that a head has begun while other requests are under way. It must be complete within `limit`.
    pub fn begin_head(&self, limit: Duration) {
        if !self.head_timer.is_armed() {
            self.head_timer.arm(due_in(&self.ticks, limit + TICK));
        }
    }

    /// Records that no head is incomplete.
    pub fn end_head(&self) {
        self.head_timer.disarm();
    }

    /// Returns whether a request head is late. A client that still has output to read is excused.
    pub fn is_head_late(&self) -> bool {
        self.head_timer.has_expired() && self.output.is_flushed()
    }

    /// Records that the gateway sent GOAWAY: the client must open no more streams. The connection may be idle for
    /// `keepalive` from now on.
    pub fn begin_goaway(&self, keepalive: Duration) {
        self.goaway.set(self.goaway.get().max(GoAway::Graceful));
        self.set_multiplexed(keepalive);
        if self.phase().is_idle() {
            self.enter_phase(Phase::Idle, keepalive);
        }
    }

    /// Records that the client has violated the protocol, so that all its requests end.
    pub fn fail_protocol(&self) {
        self.goaway.set(GoAway::Error);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.goaway.get() == GoAway::Error
    }

    // Idling.

    /// Returns whether the connection waits for the first byte of a further request, and the client has read all
    /// responses.
    pub fn is_idle(&self) -> bool {
        self.phase().is_idle() && self.output.is_flushed() && self.has_no_unread_body()
    }

    /// Returns whether the connection ends only because it has been idle for too long.
    pub fn is_idle_over(&self) -> bool {
        self.timer.has_expired() && self.is_idle() && !self.is_cut() && !self.is_half_close_over()
    }

    /// Returns whether the connection has been idle for so long that it drops its parser, or may be closed.
    pub fn is_resting(&self) -> bool {
        self.phase() == Phase::Resting && self.is_idle()
    }

    /// Closes the connection if it is [resting](Self::is_resting). Returns whether it does.
    pub fn close_if_resting(&self) -> bool {
        let closes = self.is_resting() && self.expired_phase().is_none();
        if closes {
            self.close_idle();
        }
        closes
    }

    /// Closes an idle connection as if its time were up.
    pub fn close_idle(&self) {
        self.timer.expire();
        self.wake_task();
    }

    /// Returns the most streams that a resting HTTP/2 connection has had at once. 0 if they were few, or the connection
    /// ends.
    pub fn idle_streams(&self) -> usize {
        let streams = self.most_requests.get();
        let counts = streams > FEW_STREAMS && self.is_multiplexed() && self.goaway.get() == GoAway::No;
        if counts && self.is_resting() && self.expired_phase().is_none() { streams } else { 0 }
    }

    /// Returns a sort key for resting connections: the one with the smallest value has been idle for the longest time.
    pub fn idle_since_ms(&self) -> u64 {
        self.rest_timer.due_ms()
    }

    // Half-close.

    /// Records that the client has shut down its side. Returns true if the end of its stream is withheld from the
    /// parser, which would drop what it has not written: while a request is under way that does not need the client,
    /// for at most `limit`, and then until the client has read the response, subject to the minimum rate.
    pub fn half_close(&self, limit: Duration) -> bool {
        let is_withheld = if self.phase().has_requests() {
            !limit.is_zero() && !self.requests.borrow().iter().any(|request| request.needs_client())
        } else {
            self.half_close_timer.disarm();
            !self.is_flushed()
        };
        if is_withheld && self.phase().has_requests() && !self.is_half_closed() {
            self.half_close_timer.arm(due_in(&self.ticks, limit));
        }
        self.output.withhold_end(is_withheld);
        is_withheld
    }

    pub(super) fn is_half_closed(&self) -> bool {
        self.half_close_timer.is_armed()
    }

    /// Ends the connection if its client has shut down its side.
    pub(super) fn end_half_closed(&self) {
        if self.is_half_closed() {
            self.set_end(ConnectionEnd::HalfClosed);
        }
    }

    // Slow readers.

    /// Returns whether the socket has accepted all that was written, as far as is known.
    pub fn is_flushed(&self) -> bool {
        self.output.is_flushed()
    }

    /// Returns whether the parser writes only to refuse bytes that are not a request: nothing else is due.
    pub fn owes_nothing(&self) -> bool {
        let is_idle = self.phase() == Phase::Idle && !self.output.owes_response();
        self.is_flushed() && (is_idle || self.phase() == Phase::Head)
    }

    /// Records whether the socket has accepted all that was written.
    pub fn set_flushed(&self, is_flushed: bool) {
        if is_flushed {
            self.add_written(0);
        }
        if self.output.set_flushed(is_flushed, self.phase().has_requests()) {
            self.wake_task();
        }
    }

    /// Returns whether all that precedes the failure of a response has been written (HTTP/1.1 only). If not, the
    /// connection's task is woken when it is.
    pub(super) fn has_written_rest(&self) -> bool {
        self.output.has_written_rest()
    }

    /// Sets the minimum rate for responses. A client that reads nothing for `patience`, or less than `rate` bytes a
    /// second on average, is too slow.
    pub fn set_min_rate(&self, patience: Duration, rate: u64) {
        self.output.min_rate.set(patience, rate);
    }

    /// Records that the socket accepts no more at the moment.
    pub fn begin_stall(&self) {
        self.output.min_rate.begin_wait(self.now_ms());
    }

    /// Records that the socket has accepted `bytes`. Cheap unless the socket was full before.
    pub fn add_written(&self, bytes: u64) {
        if self.output.add_written(bytes, &self.ticks) && !self.is_multiplexed() {
            let patience = self.output.min_rate.patience();
            self.requests.borrow().iter().for_each(|request| request.extend(RequestWait::Stream, patience));
        }
    }

    /// Returns whether the client reads too slowly. Output that it has not read is discarded.
    pub fn is_slow(&self) -> bool {
        self.end.get() == Some(ConnectionEnd::SlowReader)
    }

    /// Returns the reason that is counted when the connection ends with a slow reader. `None` if one of its requests is
    /// counted instead.
    pub fn slow_reader_end(&self) -> Option<End> {
        let is_counted = || self.requests.borrow().iter().any(|request| request.expired().is_some());
        if self.is_slow() && !is_counted() { self.slowness().end() } else { None }
    }

    /// Returns the reason to end a slow client: it reads nothing, or below the minimum rate.
    fn slowness(&self) -> RequestWait {
        if self.output.min_rate.is_below_average() { RequestWait::Reader } else { RequestWait::Stream }
    }

    /// Ends all requests of a client that reads too slowly. Returns true once, when that is detected.
    fn check_min_rate(&self) -> bool {
        let Output { min_rate: pace, .. } = &self.output;
        if !pace.is_waiting() {
            return false;
        }
        if self.phase().is_idle() {
            // A client that has something to read is not idle.
            self.timer.postpone(TICK);
        }
        let is_slow = pace.time_left(self.now_ms()).is_zero() && self.end.get().is_none();
        if is_slow {
            self.end.set(Some(ConnectionEnd::SlowReader));
            self.requests.borrow().iter().for_each(|request| request.expire_slow_reader(self.slowness()));
            self.has_late_request.set(true);
        }
        is_slow
    }

    // The end.

    fn set_end(&self, end: ConnectionEnd) {
        self.end.set(self.end.get().max(Some(end)));
        self.wake_task();
    }

    /// Ends the connection in any phase, without a response.
    pub fn cut_off(&self) {
        self.set_end(ConnectionEnd::Cut);
        if let Some(notify) = self.cut_notify.get() {
            notify.notify_waiters();
        }
    }

    /// Returns whether the worker has cut the connection.
    pub fn is_cut(&self) -> bool {
        self.end.get() == Some(ConnectionEnd::Cut)
    }

    /// Returns whether the client has shut down its side and its time to read the responses is up.
    pub fn is_half_close_over(&self) -> bool {
        self.end.get() == Some(ConnectionEnd::HalfClosed)
    }

    /// Returns whether the connection is ending, so that it must not wait for anything more.
    pub fn is_over(&self) -> bool {
        self.is_cut() || self.is_half_close_over() || self.expired_phase().is_some()
    }

    /// Waits until the connection is cut, for an exchange that continues without its client.
    pub async fn wait_for_cut(&self) {
        while !self.is_cut() {
            self.cut_notify.get_or_init(Box::default).notified().await;
        }
    }

    // Wake-ups.

    /// Registers the connection's task, to be woken when a timer expires.
    pub fn register_task(&self, waker: &Waker) {
        register(&self.task, waker);
    }

    /// Wakes the connection's task.
    pub fn wake_task(&self) {
        wake(&self.task);
    }

    /// Checks all timers, on each tick of the worker.
    pub fn check_timers(&self) {
        let now_ms = self.now_ms();
        let is_slow = self.check_min_rate();
        if self.half_close_timer.check(now_ms) {
            self.set_end(ConnectionEnd::HalfClosed);
        }
        let is_late = self.requests.borrow().iter().filter(|request| request.check_timer()).count() > 0;
        if is_late {
            self.has_late_request.set(true);
        }
        let rests = self.rest_timer.check(now_ms);
        if rests {
            self.phase.set(Phase::Resting);
        }
        if rests {
            self.free_request_states();
        }
        let is_head_late = self.head_timer.check(now_ms);
        if self.timer.check(now_ms) || is_slow || is_late || rests || is_head_late {
            self.wake_task();
        }
    }
}
