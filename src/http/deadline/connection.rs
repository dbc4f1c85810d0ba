//! When a client connection ends: by a deadline while no request is under way, by one of its requests
//! that did not answer for its own, when its client is gone, or when the worker cuts it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;

use super::state::{Awaited, RequestState};
use super::{Deadline, Pace, TICK, Ticks};
use crate::metrics::Cutoff;

/// A connection that waits for a further request this long lets go of what it reads and writes with:
/// long enough that one in steady use keeps it.
const REST: Duration = Duration::from_millis(500);

/// The HTTP/2 library keeps next to nothing for a connection that has not had more streams at once.
const FEW_STREAMS: usize = 8;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The end of the TLS handshake, which is counted by its result.
    Handshake,
    /// The first byte of a further request.
    Idle,
    /// The rest of a request head.
    Head,
    /// Its requests, each of which has a deadline of its own.
    Requests,
}

pub struct ConnectionDeadline {
    deadline: Deadline<Phase>,
    /// Of the requests under way, and of some that are over, whose room the next ones take.
    requests: RefCell<Vec<Rc<RequestState>>>,
    /// A deadline of a request has passed; it may have been answered for.
    late: Cell<bool>,
    /// When an idle connection has nothing better to do than to rest.
    rest_at_ms: Cell<u64>,
    tired: Cell<bool>,
    /// The socket has taken all that was written.
    flushed: Cell<bool>,
    /// The client's, in what its socket has not taken.
    pace: Pace,
    /// Bytes that the socket has taken since all was flushed or had to wait.
    taken: Cell<u64>,
    /// It has been too slow.
    slow: Cell<bool>,
    /// When a client that has shut down its side is taken for gone.
    gone_at_ms: Cell<u64>,
    gone: Cell<bool>,
    cut: Cell<bool>,
    /// The gateway ends it for what its client sent.
    failed: Cell<bool>,
    /// Only where it carries many requests at once: what it may be idle for once none is left.
    keepalive: Cell<Option<Duration>>,
    /// Only there: the most requests that it has had at once.
    most_requests: Cell<usize>,
    /// Only there: its client has been told to open no more streams.
    going_away: Cell<bool>,
    /// Only there: when a head that has begun has to be whole, whatever else is under way.
    head_due_ms: Cell<u64>,
    head_late: Cell<bool>,
    lingers: Cell<bool>,
    switched: Cell<bool>,
    /// For exchanges that linger; the connection itself may still be open.
    cut_off: Notify,
    waker: RefCell<Option<Waker>>,
}

impl Phase {
    /// The reason under which a connection is counted that ends by its deadline.
    pub fn timeout(self) -> Option<Cutoff> {
        match self {
            Phase::Head => Some(Cutoff::HeaderTimeout),
            Phase::Handshake | Phase::Idle | Phase::Requests => None,
        }
    }
}

impl ConnectionDeadline {
    pub fn new(ticks: Ticks) -> ConnectionDeadline {
        ConnectionDeadline {
            deadline: Deadline::none(ticks, Phase::Head),
            requests: RefCell::default(),
            late: Cell::new(false),
            rest_at_ms: Cell::new(u64::MAX),
            tired: Cell::new(false),
            flushed: Cell::new(true),
            pace: Pace::none(),
            taken: Cell::new(0),
            slow: Cell::new(false),
            gone_at_ms: Cell::new(u64::MAX),
            gone: Cell::new(false),
            cut: Cell::new(false),
            failed: Cell::new(false),
            keepalive: Cell::new(None),
            most_requests: Cell::new(0),
            going_away: Cell::new(false),
            head_due_ms: Cell::new(u64::MAX),
            head_late: Cell::new(false),
            lingers: Cell::new(false),
            switched: Cell::new(false),
            cut_off: Notify::new(),
            waker: RefCell::default(),
        }
    }

    /// The state of a request that begins, without a body if it is `whole`.
    pub(super) fn take_on(&self, whole: bool) -> Rc<RequestState> {
        self.gone_at_ms.set(u64::MAX);
        self.rest_at_ms.set(u64::MAX);
        self.tired.set(false);
        self.deadline.disarm(Phase::Requests);
        let mut requests = self.requests.borrow_mut();
        let free = requests.iter().find(|request| request.is_over() && Rc::strong_count(request) == 1);
        let state = match free {
            Some(free) => free.clone(),
            None => {
                let new = Rc::new(RequestState::new(self.deadline.ticks.clone()));
                requests.push(new.clone());
                self.most_requests.set(self.most_requests.get().max(requests.len()));
                new
            }
        };
        state.begin(whole);
        state
    }

    /// Whatever becomes of the bodies of earlier requests, they are over for the client: on a connection
    /// that carries one request at a time, a further one has come.
    pub fn end_requests(&self) {
        for request in &*self.requests.borrow() {
            request.end();
            request.read_whole();
        }
    }

    /// It carries many requests at once: one whose client gives it up is over by itself, and the
    /// connection may be idle for `keepalive` once all are.
    pub fn multiplex(&self, keepalive: Duration) {
        self.keepalive.set(Some(keepalive));
    }

    /// Whether it does.
    pub fn is_multiplexed(&self) -> bool {
        self.keepalive.get().is_some()
    }

    /// Milliseconds on the worker's coarse clock.
    pub fn now_ms(&self) -> u64 {
        self.deadline.now_ms()
    }

    pub(super) fn keepalive(&self) -> Option<Duration> {
        self.keepalive.get()
    }

    /// A head has begun beside other requests: it has to be whole within `limit`.
    pub fn head_begun(&self, limit: Duration) {
        if self.head_due_ms.get() == u64::MAX {
            self.head_due_ms.set(self.deadline.in_ms(limit + TICK));
        }
    }

    /// There is none, or it is whole.
    pub fn head_whole(&self) {
        self.head_due_ms.set(u64::MAX);
        self.head_late.set(false);
    }

    /// It is not whole in time, though the client has been told all it was to be told.
    pub fn is_head_late(&self) -> bool {
        self.head_late.get() && self.flushed.get()
    }

    /// A request is over; the connection may be idle for `keepalive` once all are.
    pub(super) fn ended(&self, keepalive: Duration) {
        if self.requests.borrow().iter().all(|request| request.is_over()) {
            self.arm(Phase::Idle, self.keepalive.get().map_or(keepalive, |own| own.min(keepalive)));
        }
    }

    /// The client has shut down its side. True when it has requests under way that may be whole, and
    /// whose answers it may be waiting for: for `limit`, then it is taken for gone.
    pub fn half_closed(&self, limit: Duration) -> bool {
        if limit.is_zero() || self.phase() != Phase::Requests || self.requests.borrow().iter().any(|r| r.needs_client())
        {
            return false;
        }
        if !self.is_half_closed() {
            self.gone_at_ms.set(self.deadline.in_ms(limit));
        }
        true
    }

    pub(super) fn is_half_closed(&self) -> bool {
        self.gone_at_ms.get() != u64::MAX
    }

    /// A client that has shut down its side is not waited for any longer.
    pub(super) fn give_up_half_closed(&self) {
        if self.is_half_closed() {
            self.gone.set(true);
            self.wake();
        }
    }

    /// Whatever it waits for would come too late.
    pub fn is_over(&self) -> bool {
        self.is_cut() || self.is_gone() || self.expired().is_some()
    }

    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Enters `phase`, which ends within `limit`.
    pub fn arm(&self, phase: Phase, limit: Duration) {
        self.deadline.arm(phase, limit);
        self.rest_at_ms.set(if phase == Phase::Idle { self.deadline.in_ms(REST) } else { u64::MAX });
        self.tired.set(false);
    }

    /// A further request is waited for, of which nothing has come: the client has all that it was to have.
    pub fn is_idle(&self) -> bool {
        self.phase() == Phase::Idle && self.flushed.get() && self.none_unread()
    }

    /// It ends only because it has been idle for too long.
    pub fn is_idle_over(&self) -> bool {
        self.expired() == Some(Phase::Idle) && self.is_idle() && !self.is_cut() && !self.is_gone()
    }

    /// The connection has been idle for a while, between two requests: what comes next is a head.
    pub fn may_rest(&self) -> bool {
        self.tired.get() && self.is_idle()
    }

    /// Ends it if it has been idle for a while; true if so.
    pub fn make_room(&self) -> bool {
        let may = self.may_rest() && self.expired().is_none();
        if may {
            self.close_idle();
        }
        may
    }

    /// The connection has been idle for long enough.
    pub fn close_idle(&self) {
        self.deadline.miss(Phase::Idle);
        self.wake();
    }

    /// The client has been told to open no more streams.
    pub fn goes_away(&self) {
        self.going_away.set(true);
    }

    /// How many streams an idle HTTP/2 connection has had at its busiest time, where these are more than a few and it may
    /// still be closed.
    pub fn idle_streams(&self) -> usize {
        let streams = self.most_requests.get();
        let is_idle = streams > FEW_STREAMS && self.is_multiplexed() && !self.going_away.get();
        if is_idle && self.may_rest() && self.expired().is_none() { streams } else { 0 }
    }

    /// Since when an idle connection is idle, in milliseconds on the worker's coarse clock, a constant more.
    pub fn idle_since_ms(&self) -> u64 {
        self.rest_at_ms.get()
    }

    /// What comes next, or has come, is a head: no request is under way, and none was left unread.
    pub fn awaits_head(&self) -> bool {
        self.phase() != Phase::Requests && self.none_unread()
    }

    /// Nothing of an earlier request stands before the next one. Where many are carried at once, what is left of one
    /// is in nobody's way.
    fn none_unread(&self) -> bool {
        self.keepalive.get().is_some() || self.requests.borrow().iter().all(|request| request.is_whole())
    }

    /// Whether the socket has taken all that was to be written to it.
    pub fn flushed(&self, flushed: bool) {
        self.flushed.set(flushed);
        if flushed {
            self.took(0);
            self.taken.set(0);
        }
    }

    pub fn is_flushed(&self) -> bool {
        self.flushed.get()
    }

    /// How fast the client has to take what is written from now on: whoever takes nothing for `patience`, or less
    /// than `rate` bytes a second on average, is too slow.
    pub fn follow_pace(&self, patience: Duration, rate: u64) {
        self.pace.follow(patience, rate);
    }

    /// The socket takes no more at the moment.
    pub fn stalled(&self) {
        self.pace.wait(self.deadline.now_ms());
    }

    /// The socket has taken so many bytes. Costs next to nothing where none had to wait.
    pub fn took(&self, bytes: u64) {
        let taken = self.taken.get() + bytes;
        if !self.pace.waits() {
            return self.taken.set(taken);
        }
        self.taken.set(0);
        self.pace.moved(self.deadline.now_ms(), taken);
        if self.keepalive.get().is_none() {
            let patience = self.pace.patience();
            self.requests.borrow().iter().for_each(|request| request.deadline.extend(Awaited::Stream, patience));
        }
    }

    /// The client is too slow, and what waits for it is for nobody.
    pub fn is_slow(&self) -> bool {
        self.slow.get()
    }

    /// Why the connection ends with a slow client, if no request of it tells.
    pub fn ends_slow(&self) -> Option<Cutoff> {
        let told = || self.requests.borrow().iter().any(|request| request.deadline.expired().is_some());
        if self.is_slow() && !told() { self.slowness().timeout() } else { None }
    }

    pub fn phase(&self) -> Phase {
        self.deadline.awaited.get()
    }

    /// What did not come in time: of the connection itself,
    pub fn expired(&self) -> Option<Phase> {
        self.deadline.expired()
    }

    /// and of a request that has not answered for it.
    pub fn expired_request(&self) -> Option<Awaited> {
        if !self.late.get() {
            return None;
        }
        let expired = self.requests.borrow().iter().find_map(|request| request.deadline.expired());
        self.late.set(expired.is_some());
        expired
    }

    /// The connection's task, to be woken when a deadline passes.
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

    /// The gateway ends the connection for what its client sent, and all requests on it, whoever made the mistake.
    pub fn fail(&self) {
        self.failed.set(true);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// The client has left, its exchange with the upstream goes on: waits until that is cut.
    pub async fn linger(&self) {
        self.lingers.set(true);
        while !self.is_cut() {
            self.cut_off.notified().await;
        }
    }

    /// Its client waits for an answer: it has not left, and what it asked for has not become a tunnel.
    pub fn is_awaited(&self) -> bool {
        match self.keepalive.get() {
            None => !self.lingers.get() && !self.switched.get() && self.phase() != Phase::Idle,
            Some(_) => self.requests.borrow().iter().any(|request| request.is_awaited()),
        }
    }

    /// It carries another protocol from now on, whose end nobody here sees coming.
    pub(super) fn switched(&self) {
        self.switched.set(true);
        // The tunnel passes on the end of one side, and goes on.
        self.gone_at_ms.set(u64::MAX);
    }

    pub fn has_switched(&self) -> bool {
        self.switched.get()
    }

    /// Called by the worker at each tick.
    pub fn look(&self) {
        let slow = self.look_at_pace();
        let left = self.deadline.now_ms() >= self.gone_at_ms.get() && !self.gone.replace(true);
        let late = self.requests.borrow().iter().filter(|request| request.look()).count() > 0;
        if late {
            self.late.set(true);
        }
        let rests = self.deadline.now_ms() >= self.rest_at_ms.get() && !self.tired.replace(true);
        let head = self.deadline.now_ms() >= self.head_due_ms.get() && !self.head_late.replace(true);
        if rests && self.keepalive.get().is_some() {
            // Many streams were here, and may never be again.
            self.requests.borrow_mut().retain(|request| !request.is_over() || Rc::strong_count(request) > 1);
            self.requests.borrow_mut().shrink_to_fit();
        }
        if self.deadline.look() || slow || left || late || rests || head {
            self.wake();
        }
    }

    fn slowness(&self) -> Awaited {
        if self.pace.is_below_average() { Awaited::Reader } else { Awaited::Stream }
    }

    /// True once, when the client is too slow; then its requests are over, too.
    fn look_at_pace(&self) -> bool {
        if !self.pace.waits() {
            return false;
        }
        if self.phase() == Phase::Idle {
            // It is not idle as long as it has something to take.
            self.deadline.postpone(TICK);
        }
        let slow = self.pace.left(self.deadline.now_ms()).is_zero() && !self.slow.replace(true);
        if slow {
            self.requests.borrow().iter().for_each(|request| request.miss(self.slowness()));
            self.late.set(true);
        }
        slow
    }
}
