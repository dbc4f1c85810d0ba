//! The deadline of one request, from its head to the end of its answer and its body. Other requests of
//! its connection have their own.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::connection::ConnectionDeadline;
use super::state::{Awaited, RequestState, register, wake};

/// A request's hold on its deadline. Cheap to clone.
#[derive(Clone)]
pub struct RequestDeadline {
    connection: Rc<ConnectionDeadline>,
    state: Rc<RequestState>,
}

impl ConnectionDeadline {
    /// A request begins, without a body if it is `whole`.
    pub fn begin(self: &Rc<Self>, whole: bool) -> RequestDeadline {
        RequestDeadline { connection: self.clone(), state: self.take_on(whole) }
    }
}

/// A request waits for its turn.
pub struct HeldBack<'a>(&'a RequestState);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.held_back.set(false);
    }
}

impl RequestDeadline {
    /// Waits for `awaited`, for `limit` at most. Also called to extend a wait on progress.
    pub fn arm(&self, awaited: Awaited, limit: Duration) {
        if !self.state.is_over() {
            self.state.deadline.arm(awaited, limit);
        }
    }

    /// How fast the client has to take the answer: whoever takes nothing for `patience`, or less than `rate` bytes
    /// a second on average, is too slow.
    pub fn follow_pace(&self, patience: Duration, rate: u64) {
        match self.connection.keepalive() {
            Some(_) => self.state.pace.follow(patience, rate),
            None => self.connection.follow_pace(patience, rate),
        }
    }

    /// Where others are answered beside it: the client has been given so many bytes of the answer, and has room
    /// for more once [`asks`](Self::asks) is called.
    pub fn gave(&self, bytes: usize) {
        let (now_ms, pace) = (self.now_ms(), &self.state.pace);
        self.state.given.set(bytes as u64);
        pace.wait(now_ms);
        self.arm(if pace.is_below_average() { Awaited::Reader } else { Awaited::Stream }, pace.left(now_ms));
    }

    /// It has room.
    pub fn asks(&self) {
        let pace = &self.state.pace;
        if pace.waits() {
            pace.moved(self.now_ms(), self.state.given.get());
            self.arm(Awaited::Stream, pace.patience());
        }
    }

    pub fn disarm(&self) {
        self.state.deadline.disarm(Awaited::Gateway);
    }

    /// The gateway has ended the connection.
    pub fn is_cut(&self) -> bool {
        self.connection.is_cut()
    }

    /// The gateway has ended the connection for what its client sent, of this request or beside it.
    pub fn has_failed(&self) -> bool {
        self.connection.has_failed()
    }

    /// Its body has been read to the end.
    pub fn read_whole(&self) {
        self.state.read_whole();
    }

    /// The request has become a tunnel, and with it a connection that carries one at a time.
    pub fn switched(&self) {
        self.connection.switched();
    }

    /// Milliseconds on the worker's coarse clock.
    pub fn now_ms(&self) -> u64 {
        self.state.deadline.now_ms()
    }

    /// The request is over, and a connection without another may be idle for `keepalive`.
    pub fn end(&self, keepalive: Duration) {
        if self.state.end() {
            self.connection.ended(keepalive);
        }
    }

    /// The client has left before its answer. A connection that carries one request at a time ends with
    /// it.
    pub fn leave(&self) {
        if let Some(keepalive) = self.connection.keepalive() {
            self.end(keepalive);
        }
    }

    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// What did not come in time, and nothing has answered for.
    pub fn expired(&self) -> Option<Awaited> {
        self.state.deadline.expired()
    }

    /// The task that looks after this request alone, to be woken when its deadline passes and at its end.
    pub fn keep(&self, waker: &Waker) {
        register(&self.state.keeper, waker);
    }

    /// Its tasks have ended: the room of one that has stays taken while somebody could wake it.
    pub fn forget(&self) {
        self.state.keeper.take();
        self.state.reader.take();
    }

    /// Ends the request wherever it is, unanswered; others of its connection go on.
    pub fn cut(&self) {
        self.state.cut.set(true);
        wake(&self.state.reader);
    }

    /// Where requests are cut alone: whether this one is, and else whom to wake then.
    pub fn poll_cut(&self, reader: &Waker) -> bool {
        register(&self.state.reader, reader);
        self.state.cut.get()
    }

    /// Whether it waits for more of its body, after all of it that was there.
    pub fn starve(&self, waits: bool) {
        let changed = !self.state.is_over() && self.state.starved.replace(waits) != waits;
        if changed && waits && self.connection.is_half_closed() {
            // There is no more: the connection is to look again.
            self.connection.wake();
        }
    }

    /// It waits for its turn, for as long as it has this. Turns are scarce: meanwhile a client that has shut down
    /// its side is taken for gone at once.
    pub fn hold_back(&self) -> HeldBack<'_> {
        self.state.held_back.set(true);
        self.connection.give_up_half_closed();
        HeldBack(&self.state)
    }

    /// Runs `future` until it ends or the deadline in force passes.
    ///
    /// # Errors
    /// What did not come in time.
    pub async fn within<F: Future>(&self, future: F) -> Result<F::Output, Awaited> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Some(awaited) = self.state.deadline.expired() {
                self.disarm();
                return Poll::Ready(Err(awaited));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Phase, Ticks};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn connection() -> (Ticks, Rc<ConnectionDeadline>) {
        let ticks = Ticks::default();
        (ticks.clone(), Rc::new(ConnectionDeadline::new(ticks)))
    }

    fn pass(ticks: &Ticks, connection: &ConnectionDeadline, ms: u64) {
        ticks.set(ticks.get() + ms);
        connection.look();
    }

    #[test]
    fn requests_of_a_connection_have_deadlines_of_their_own() {
        let (ticks, connection) = connection();
        let (one, other) = (connection.begin(true), connection.begin(true));
        one.arm(Awaited::Response, SECOND);
        other.arm(Awaited::Upload, SECOND * 3);
        pass(&ticks, &connection, 2000);
        assert_eq!(connection.expired_request(), Some(Awaited::Response));
        one.end(SECOND);
        assert_eq!((connection.expired_request(), connection.phase()), (None, Phase::Requests));
        pass(&ticks, &connection, 2000);
        assert_eq!(connection.expired_request(), Some(Awaited::Upload));
        other.end(SECOND);
        assert_eq!((connection.expired_request(), connection.phase()), (None, Phase::Idle));
        pass(&ticks, &connection, 2000);
        assert_eq!(connection.expired(), Some(Phase::Idle));
    }

    #[test]
    fn what_is_over_sets_no_deadline_and_its_room_is_used_again() {
        let (ticks, connection) = connection();
        let (first, held) = (connection.begin(true), connection.begin(true));
        drop(first);
        connection.end_requests();
        let next = connection.begin(true);
        assert!(!Rc::ptr_eq(&held.state, &next.state));
        held.arm(Awaited::Upload, Duration::ZERO);
        held.end(Duration::ZERO);
        pass(&ticks, &connection, 1000);
        assert_eq!((connection.expired_request(), connection.phase()), (None, Phase::Requests));
        next.end(SECOND);
        drop((next, held));
        drop((connection.begin(true), connection.begin(true)));
        connection.end_requests();
    }

    #[test]
    fn who_has_an_answer_to_take_or_a_body_to_send_makes_no_room() {
        let (ticks, one) = connection();
        let request = one.begin(false);
        request.end(SECOND * 60);
        pass(&ticks, &one, 1000);
        one.flushed(false);
        request.read_whole();
        assert!(!one.is_idle() && !one.may_rest() && !one.make_room(), "its answer is not taken");
        one.flushed(true);
        let request = one.begin(false);
        request.end(SECOND * 60);
        assert!(!one.make_room(), "it has just been used");
        pass(&ticks, &one, 1000);
        assert!(!one.is_idle() && !one.may_rest() && !one.make_room(), "its body is not read");
        request.read_whole();
        assert!(one.is_idle() && one.may_rest() && one.make_room());
        assert!(!one.make_room(), "it ends already");

        let (ticks, many) = connection();
        many.multiplex(SECOND * 60);
        many.begin(false).end(SECOND * 60);
        pass(&ticks, &many, 1000);
        assert!(many.make_room(), "what a stream left unread is in nobody's way");
    }

    #[test]
    fn a_client_that_shut_down_its_side_is_waited_for_while_nothing_is_missing() {
        let (ticks, connection) = connection();
        assert!(!connection.half_closed(SECOND), "its head is not whole");
        let request = connection.begin(true);
        request.starve(true);
        assert!(!connection.half_closed(SECOND), "its body is not whole");
        request.starve(false);
        assert!(connection.half_closed(SECOND));
        pass(&ticks, &connection, 999);
        assert!(!connection.is_gone());
        pass(&ticks, &connection, 1);
        assert!(connection.is_gone());
    }
}
