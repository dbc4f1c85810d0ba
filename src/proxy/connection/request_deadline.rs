//! A request's handle on its state and on its connection, from its head to the end of its response and its body.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::request_state::{RequestState, RequestWait, register};
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::connection::timeouts::Ticks;

/// Bounds what one request waits for. Each request of a connection has its own. Cheap to clone.
#[derive(Clone)]
pub struct RequestDeadline {
    connection: Rc<ConnectionState>,
    state: Rc<RequestState>,
}

impl ConnectionState {
    /// Begins a request. `is_whole`: it has no body.
    pub fn start_request(self: &Rc<Self>, is_whole: bool) -> RequestDeadline {
        RequestDeadline { connection: self.clone(), state: self.begin_request(is_whole) }
    }
}

/// Marks a request as held back until it is dropped.
pub struct HeldBack<'a>(&'a RequestState);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl RequestDeadline {
    /// Makes the deadline of an exchange without a client. No worker checks its timer: the caller bounds the exchange.
    pub fn without_client() -> RequestDeadline {
        let connection = Rc::new(ConnectionState::new(Ticks::default()));
        connection.enter_phase(Phase::Head, Duration::ZERO);
        connection.start_request(true)
    }

    /// Waits for `awaited`, for `limit` at most. Called again on progress. Does nothing once the request is over.
    pub fn arm(&self, awaited: RequestWait, limit: Duration) {
        if !self.state.is_over() {
            self.state.arm(awaited, limit);
        }
    }

    /// Stops the timer: the gateway itself works on the request.
    pub fn disarm(&self) {
        self.state.disarm();
    }

    /// Returns what the request waited for when its timer expired, if nothing has reacted to that yet.
    pub fn expired_wait(&self) -> Option<RequestWait> {
        self.state.expired()
    }

    /// Milliseconds on the worker's coarse clock.
    pub fn now_ms(&self) -> u64 {
        self.state.now_ms()
    }

    /// Runs `future` until it ends or the timer expires.
    ///
    /// # Errors
    /// What the request waited for when its timer expired.
    pub async fn run_within<F: Future>(&self, future: F) -> Result<F::Output, RequestWait> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Some(awaited) = self.state.expired() {
                self.disarm();
                return Poll::Ready(Err(awaited));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Sets the minimum rate for the response. A client that reads nothing for `patience`, or less than `rate` bytes
    /// a second on average, is too slow.
    pub fn set_min_rate(&self, patience: Duration, rate: u64) {
        match self.connection.is_multiplexed() {
            true => self.state.pace.set(patience, rate),
            false => self.connection.set_min_rate(patience, rate),
        }
    }

    /// Records (HTTP/2 and HTTP/3 only) that the library has got `bytes` of the response, and waits until the client takes them.
    pub fn send_piece(&self, bytes: usize) {
        self.state.unsent.set(self.state.unsent.get() + bytes as u64);
        self.wait_for_reader();
    }

    /// Records (HTTP/2 and HTTP/3 only) that the client's windows had room for `bytes` of what the library has got.
    pub fn record_written(&self, bytes: usize) {
        let (unsent, pace) = (&self.state.unsent, &self.state.pace);
        pace.credit_bytes(self.now_ms(), bytes as u64);
        unsent.set(unsent.get().saturating_sub(bytes as u64));
        match unsent.get() {
            // After the response, the request may wait for the rest of its body.
            _ if !self.state.awaits_stream() => {}
            0 => self.arm(RequestWait::Stream, pace.patience()),
            _ => self.wait_for_reader(),
        }
    }

    /// Waits (HTTP/2 and HTTP/3 only) until the client takes more of what the library has got.
    fn wait_for_reader(&self) {
        let (now_ms, pace) = (self.now_ms(), &self.state.pace);
        pace.begin_wait(now_ms);
        self.arm(
            if pace.is_below_average() { RequestWait::Reader } else { RequestWait::Stream },
            pace.time_left(now_ms),
        );
    }

    /// Records that the request body has been read to its end.
    pub fn mark_body_read(&self) {
        self.state.read_whole();
    }

    /// Records whether the request waits for more of its body, after all of it that has arrived.
    pub fn set_starved(&self, waits: bool) {
        if self.state.set_starved(waits) && self.connection.is_half_closed() {
            // The rest of the body will not come: the connection's task must check again whether it ends.
            self.connection.wake_task();
        }
    }

    /// Marks the request as held back until the guard is dropped. Places in queues are scarce: meanwhile, a client
    /// that shuts down its side ends its connection at once.
    pub fn hold_back(&self) -> HeldBack<'_> {
        self.state.hold_back();
        self.connection.end_half_closed();
        HeldBack(&self.state)
    }

    /// Returns whether the failure of the response may now be reported to the client, because everything before it has
    /// been written. Over HTTP/2, this is always so: the stream is reset.
    pub fn may_fail_response(&self) -> bool {
        self.connection.is_multiplexed() || self.connection.has_written_rest()
    }

    /// Records that the request has become a tunnel. An HTTP/1.1 connection carries nothing else from now on.
    pub fn mark_upgraded(&self) {
        self.connection.upgrade();
    }

    /// Ends the request. Once all requests of the connection are over, it may be idle for `keepalive`.
    pub fn end(&self, keepalive: Duration) {
        if self.state.end() {
            self.connection.request_ended(keepalive);
        }
    }

    /// Ends the request of a client that has disconnected before the end of its response. An HTTP/1.1 connection ends
    /// with its request.
    pub fn end_by_client(&self) {
        if let Some(keepalive) = self.connection.keepalive() {
            self.end(keepalive);
        }
    }

    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// Returns whether the gateway has cut the connection, because it ran out of time to drain.
    pub fn is_cut(&self) -> bool {
        self.connection.is_cut()
    }

    /// Returns whether the gateway ends the connection because its client has violated the protocol, in this request or
    /// beside it.
    pub fn has_failed(&self) -> bool {
        self.connection.has_failed()
    }

    /// Resets the stream (HTTP/2 and HTTP/3 only) without a response. Other streams of the connection continue.
    pub fn cut_stream(&self) {
        self.state.cut();
    }

    /// Returns whether the stream (HTTP/2 and HTTP/3 only) was [cut](Self::cut_stream). If not, `reader` is woken when it is.
    pub fn poll_stream_cut(&self, reader: &Waker) -> bool {
        register(&self.state.body_reader, reader);
        self.state.is_cut()
    }

    /// Registers the task (HTTP/2 and HTTP/3 only) that runs this request, to be woken when the timer expires and at the end.
    pub fn register_task(&self, waker: &Waker) {
        register(&self.state.task, waker);
    }

    /// Unregisters all tasks (HTTP/2 and HTTP/3 only) of the request. A waker keeps the memory of its task, even of one that has
    /// ended.
    pub fn unregister_tasks(&self) {
        self.state.task.take();
        self.state.body_reader.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn connection() -> (Ticks, Rc<ConnectionState>) {
        let ticks = Ticks::default();
        let connection = Rc::new(ConnectionState::new(ticks.clone()));
        connection.enter_phase(Phase::Head, SECOND);
        (ticks, connection)
    }

    fn pass(ticks: &Ticks, connection: &ConnectionState, ms: u64) {
        ticks.set(ticks.get() + ms);
        connection.check_timers();
    }

    #[test]
    fn each_request_of_a_connection_has_its_own_deadline() {
        let (ticks, connection) = connection();
        let (one, other) = (connection.start_request(true), connection.start_request(true));
        one.arm(RequestWait::Response, SECOND);
        other.arm(RequestWait::Upload, SECOND * 3);
        pass(&ticks, &connection, 2000);
        assert_eq!(connection.expired_request_wait(), Some(RequestWait::Response));
        one.end(SECOND);
        assert_eq!((connection.expired_request_wait(), connection.phase()), (None, Phase::Requests));
        pass(&ticks, &connection, 2000);
        assert_eq!(connection.expired_request_wait(), Some(RequestWait::Upload));
        other.end(SECOND);
        assert_eq!((connection.expired_request_wait(), connection.phase()), (None, Phase::Idle));
        pass(&ticks, &connection, 2000);
        assert!(connection.expired_phase().is_some_and(Phase::is_idle));
    }

    #[test]
    fn a_request_that_is_over_sets_no_deadline_and_its_state_is_reused() {
        let (ticks, connection) = connection();
        let (first, held) = (connection.start_request(true), connection.start_request(true));
        drop(first);
        connection.end_requests();
        let next = connection.start_request(true);
        assert!(!Rc::ptr_eq(&held.state, &next.state));
        held.arm(RequestWait::Upload, Duration::ZERO);
        held.end(Duration::ZERO);
        pass(&ticks, &connection, 1000);
        assert_eq!((connection.expired_request_wait(), connection.phase()), (None, Phase::Requests));
        next.end(SECOND);
        drop((next, held));
        drop((connection.start_request(true), connection.start_request(true)));
        connection.end_requests();
    }

    #[test]
    fn a_connection_with_a_response_to_read_or_a_body_to_send_does_not_rest() {
        let (ticks, one) = connection();
        let request = one.start_request(false);
        request.end(SECOND * 60);
        pass(&ticks, &one, 1000);
        one.set_flushed(false);
        request.mark_body_read();
        assert!(!one.is_idle() && !one.is_resting() && !one.close_if_resting(), "its answer is not taken");
        one.set_flushed(true);
        let request = one.start_request(false);
        request.end(SECOND * 60);
        assert!(!one.close_if_resting(), "it has just been used");
        pass(&ticks, &one, 1000);
        assert!(!one.is_idle() && !one.is_resting() && !one.close_if_resting(), "its body is not read");
        request.mark_body_read();
        assert!(one.is_idle() && one.is_resting() && one.close_if_resting());
        assert!(!one.close_if_resting(), "it ends already");

        let (ticks, many) = connection();
        many.set_multiplexed(SECOND * 60);
        many.start_request(false).end(SECOND * 60);
        pass(&ticks, &many, 1000);
        assert!(many.close_if_resting(), "what a stream left unread is in nobody's way");
    }

    #[test]
    fn a_half_closed_connection_continues_while_its_requests_need_nothing_of_the_client() {
        let (ticks, connection) = connection();
        assert!(!connection.half_close(SECOND), "its head is not whole");
        let request = connection.start_request(false);
        request.set_starved(true);
        assert!(!connection.half_close(SECOND), "its body is not whole");
        request.set_starved(false);
        assert!(connection.half_close(SECOND));
        pass(&ticks, &connection, 999);
        assert!(!connection.is_half_close_over());
        pass(&ticks, &connection, 1);
        assert!(connection.is_half_close_over());
    }

    #[test]
    fn a_tunnel_has_no_waiting_client_and_a_closed_connection_stays_closed() {
        let (ticks, connection) = connection();
        let request = connection.start_request(true);
        assert!(connection.has_waiting_client());
        assert!(connection.half_close(SECOND));
        request.mark_upgraded();
        assert!(connection.is_upgraded() && !connection.has_waiting_client() && !connection.awaits_head());
        pass(&ticks, &connection, 2000);
        assert!(!connection.is_half_close_over(), "a tunnel may be half-open");
        connection.close();
        request.end(SECOND);
        pass(&ticks, &connection, 5000);
        assert_eq!(
            (connection.phase(), connection.expired_phase(), connection.is_resting()),
            (Phase::Closed, None, false)
        );
    }

    #[test]
    fn a_slow_reader_ends_the_connection_unless_it_is_cut_first() {
        for is_cut in [false, true] {
            let (ticks, connection) = connection();
            let request = connection.start_request(true);
            connection.set_min_rate(SECOND, 0);
            request.arm(RequestWait::Stream, SECOND * 60);
            connection.set_flushed(false);
            connection.begin_stall();
            if is_cut {
                connection.cut_off();
            }
            pass(&ticks, &connection, 1000);
            assert_eq!((connection.is_slow(), connection.is_cut()), (!is_cut, is_cut));
            assert_eq!(request.expired_wait().is_some(), !is_cut);
            assert_eq!(connection.slow_reader_end(), None, "the request is counted");
        }
    }
}
