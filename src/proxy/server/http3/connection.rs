//! The loop of an HTTP/3 connection. It hands packets and timers to the QUIC library, acts on what the library reports,
//! and sends what the library wants to send. The connection ends with GOAWAY when it is idle or the worker drains, and at
//! once when its client violates the protocol or floods it.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, EndpointEvent, Event, StreamEvent, StreamId, Transmit, VarInt,
};
use tokio::time::Sleep;

use crate::ends::End;
use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::settings::ConnectionSettings;
use crate::proxy::context::worker_context::{OpenGauge, WorkerContext};
use crate::proxy::server::http3::budget::FloodBudget;
use crate::proxy::server::http3::error::{Code, EXCESSIVE_LOAD, Fatal, NO_ERROR, REQUEST_CANCELLED};
use crate::proxy::server::http3::handshake::{self, Handshake};
use crate::proxy::server::http3::shared::Http3Connection;
use crate::proxy::server::http3::varint;
use crate::proxy::server::quic::endpoint::{ConnectionQueue, QuicEndpoint};
use crate::proxy::server::quic::settings;
use crate::telemetry::metrics::Protocol;

/// Time that a client has to react to GOAWAY, after which further requests are rejected.
const LAST_CALL: Duration = Duration::from_millis(500);
/// The gateway sends a PING to a client that delays the end of its connection. If no ACK arrives within this time, the
/// client has vanished: by then the library has sent several.
const VANISHED_AFTER: Duration = Duration::from_secs(3);
const VANISHED_ROUND_TRIPS: u32 = 10;
/// GOAWAY with this number rejects no request yet.
const LARGEST_REQUEST: u64 = varint::MAX - 3;
/// Bytes per second that a client acknowledges at least, if `min_response_rate` is less.
const LEAST_RATE: u64 = 1024;
/// Time after which the next response tries to write although the last one found no space, because perhaps only the
/// window of its stream was full. A response that finds no space waits for the library, so the number of tries is
/// bounded.
const RETRY_WRITE: Duration = Duration::from_millis(50);
/// Packets that are sent before other tasks run.
const SENDS_MAX: usize = 16;

/// How far a connection has come on its way out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// At this time, the client was asked to open no more requests.
    Told(Instant),
    /// Further requests are rejected. The client knows this if `is_sent`, and may then get the close.
    Last {
        is_sent: bool,
    },
}

/// A question to the client whether it is still there.
struct Probe {
    asked: Instant,
    /// Acknowledgements until then.
    acks: u64,
}

/// The task of a connection.
struct Driver {
    shared: Rc<Http3Connection>,
    /// `None` once the handshake is over.
    handshake: Option<Box<Handshake>>,
    handle: ConnectionHandle,
    endpoint: Rc<QuicEndpoint>,
    worker: Rc<WorkerContext>,
    leaving: Leaving,
    /// The address that packets go to.
    remote: SocketAddr,
    timer: Pin<Box<Sleep>>,
    /// When something was last sent to keep the connection alive.
    pinged: Instant,
    /// The last question to a client that holds up the end of the connection.
    probe: Option<Probe>,
    /// Counts the open connection.
    open: Option<OpenGauge>,
    /// A packet for which the kernel has had no room.
    unsent: Option<(Transmit, Box<[u8]>)>,
}

/// Serves a connection that has been accepted, from its handshake to its end. The future is made at once, so that it has
/// no room for what it is made of.
pub fn serve_connection(
    (handle, quic, queue): (ConnectionHandle, Connection, Rc<ConnectionQueue>),
    handshake: Handshake,
    endpoint: Rc<QuicEndpoint>,
    worker: Rc<WorkerContext>,
) -> impl Future<Output = ()> {
    let settings = worker.state.view().connection_settings.clone();
    let state = handshake.ticket.connection().clone();
    state.enter_phase(Phase::Handshake, worker.state.view().snapshot.config.server.handshake_timeout);
    let budget = FloodBudget::new(state.now_ms());
    let remote = quic.remote_address();
    let shared = Rc::new_cyclic(|me| Http3Connection {
        me: me.clone(),
        quic: RefCell::new(quic),
        streams: RefCell::default(),
        budget: RefCell::new(budget),
        control: Cell::default(),
        control_unsent: RefCell::default(),
        client: OnceCell::new(),
        state: state.clone(),
        settings,
        queue,
        is_closed: Cell::new(false),
        fatal: Cell::new(None),
    });
    let mut driver = Driver {
        open: Some(worker.count_open(&handshake.listener.name, Protocol::Handshake)),
        shared,
        handshake: Some(Box::new(handshake)),
        handle,
        endpoint,
        worker,
        leaving: Leaving::No,
        remote,
        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        pinged: Instant::now(),
        probe: None,
        unsent: None,
    };
    async move { poll_fn(|cx| driver.poll(cx)).await }
}

impl Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.queue.register(cx.waker());
        self.shared.state.register_task(cx.waker());
        let now = Instant::now();
        if self.is_cut() {
            self.close(now, NO_ERROR);
            self.send(now, cx);
            return Poll::Ready(());
        }
        if self.timer.deadline().into_std() <= now {
            self.shared.quic.borrow_mut().handle_timeout(now);
        }
        loop {
            while let Some(event) = self.shared.queue.pop() {
                self.shared.quic.borrow_mut().handle_event(event);
            }
            if let Err(fatal) = self.advance(now) {
                self.end_by(now, fatal);
            }
            if !self.pass_endpoint_events() {
                break;
            }
        }
        self.send(now, cx);
        if self.leaving == (Leaving::Last { is_sent: false }) && self.unsent.is_none() {
            self.leaving = Leaving::Last { is_sent: true };
            cx.waker().wake_by_ref();
        }
        // Sending may also have produced events for the endpoint.
        while self.pass_endpoint_events() {
            while let Some(event) = self.shared.queue.pop() {
                self.shared.quic.borrow_mut().handle_event(event);
            }
        }
        if self.shared.quic.borrow().is_drained() {
            return Poll::Ready(());
        }
        if self.shared.streams.borrow().requests.is_empty() {
            self.shared.queue.release_room();
        }
        self.set_timer(now, cx);
        Poll::Pending
    }

    /// Returns whether the connection must not wait for anything more: the worker has run out of time to drain, or drains
    /// before the handshake is over.
    fn is_cut(&self) -> bool {
        let drains = self.worker.is_draining() || self.endpoint.is_stopping();
        self.shared.state.is_cut() || (drains && self.handshake.is_some())
    }

    /// Acts on what has happened.
    fn advance(&mut self, now: Instant) -> Result<(), Fatal> {
        self.shared.bound_unsent();
        while let Some(event) = { self.shared.quic.borrow_mut().poll() } {
            self.handle_event(event)?;
        }
        self.shared.begin_turn();
        if self.shared.is_closed() {
            return Ok(());
        }
        if let Some(fatal) = self.shared.fatal.take() {
            return Err(fatal);
        }
        let state = &self.shared.state;
        if state.expired_phase() == Some(Phase::Handshake) {
            if let Some(handshake) = self.handshake.take() {
                handshake.time_out(&self.worker);
            }
            return Err(Fatal::uncounted(NO_ERROR));
        }
        if self.handshake.is_some() {
            return Ok(());
        }
        let stats = self.shared.quic.borrow().stats();
        self.shared.budget.borrow_mut().count(&stats, state.now_ms()).map_err(Fatal::flood)?;
        let remote = self.shared.quic.borrow().remote_address();
        // A NAT may change the port at any time. Packets to another port of the client reach no other host.
        if std::mem::replace(&mut self.remote, remote).ip() != remote.ip() {
            self.shared.budget.borrow_mut().take_move(state.now_ms()).map_err(Fatal::flood)?;
        }
        if state.is_head_late() {
            return Err(Fatal { code: EXCESSIVE_LOAD, end: Phase::Head.end() });
        }
        self.reset_unread_responses();
        self.leave(now);
        Ok(())
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Fatal> {
        match event {
            Event::Connected => {
                if let Some(handshake) = self.handshake.take() {
                    let open = handshake::complete(&self.shared, *handshake, &self.worker)?;
                    self.open = Some(open);
                }
            }
            Event::ConnectionLost { reason } => self.lose(&reason),
            Event::Stream(_) if self.handshake.is_some() || self.shared.is_closed() => {}
            Event::Stream(StreamEvent::Opened { dir }) => self.shared.accept_streams(dir)?,
            Event::Stream(StreamEvent::Readable { id }) => self.shared.stream_readable(id)?,
            Event::Stream(StreamEvent::Writable { id }) if Some(id) == self.shared.control.get() => {
                self.shared.write_control(&[]);
            }
            Event::Stream(StreamEvent::Writable { id }) => self.shared.stream_writable(id),
            Event::Stream(StreamEvent::Stopped { id, .. }) => self.shared.stream_stopped(id)?,
            Event::Stream(StreamEvent::Finished { id }) => {
                self.shared.streams.borrow_mut().end_response(id);
            }
            Event::Stream(StreamEvent::Available { .. }) => {}
            Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
        }
        Ok(())
    }

    /// Ends the requests of a connection that has been lost.
    fn lose(&mut self, reason: &ConnectionError) {
        if let Some(handshake) = self.handshake.take() {
            handshake.fail(reason, &self.worker);
        } else if let (ConnectionError::TransportError(error), false) = (reason, self.shared.is_closed()) {
            tracing::debug!(%error, "ended a QUIC connection");
            self.shared.state.fail_protocol();
            self.worker.count_end(Some(End::H2Protocol));
        }
        self.shared.is_closed.set(true);
        self.shared.streams.borrow().wake_all();
    }

    /// Closes the connection of a client that has violated the protocol, or that is too slow.
    fn end_by(&mut self, now: Instant, fatal: Fatal) {
        if self.shared.is_closed() {
            return;
        }
        if fatal.end.is_some() {
            self.shared.state.fail_protocol();
        }
        if let (Some(client), Some(end)) = (self.shared.client.get(), fatal.end) {
            tracing::debug!(client = %client.peer, reason = end.label(), "ended an HTTP/3 connection");
        }
        self.worker.count_end(fatal.end);
        self.close(now, fatal.code);
    }

    fn close(&self, now: Instant, code: Code) {
        if !self.shared.is_closed.replace(true) {
            self.shared.quic.borrow_mut().close(now, VarInt::from_u32(code.0), Bytes::new());
        }
        self.shared.streams.borrow().wake_all();
    }

    /// Cuts off responses whose last bytes a client does not acknowledge, though it keeps the connection alive.
    fn reset_unread_responses(&self) {
        let patience = u64::try_from(self.unread_patience().as_millis()).unwrap_or(u64::MAX);
        let oldest = self.shared.now_ms().saturating_sub(patience);
        let late: Vec<StreamId> = {
            let streams = self.shared.streams.borrow();
            streams.finishing.iter().filter(|(_, since)| **since < oldest).map(|(id, _)| *id).collect()
        };
        for id in late {
            self.shared.reset(id, REQUEST_CANCELLED);
            self.worker.count_end(Some(End::StreamTimeout));
        }
    }

    /// Returns how long a client may take for the last bytes of a response: what waits is bounded, and so is its rate.
    fn unread_patience(&self) -> Duration {
        let ConnectionSettings { stream_timeout, min_response_rate, .. } = *self.shared.settings;
        stream_timeout + Duration::from_secs(settings::SEND_WINDOW / min_response_rate.max(LEAST_RATE))
    }

    /// Ends the connection in steps, if it is idle for too long or the worker wants that.
    fn leave(&mut self, now: Instant) {
        let shared = &self.shared;
        let is_idle_over = shared.state.expired_phase().is_some_and(Phase::is_idle);
        let drains = self.worker.is_draining() || self.endpoint.is_stopping();
        match self.leaving {
            Leaving::No if is_idle_over || drains => {
                shared.write_goaway(LARGEST_REQUEST);
                shared.state.begin_goaway(LAST_CALL);
                self.leaving = Leaving::Told(now);
            }
            Leaving::Told(since) if now >= since + LAST_CALL || self.worker.is_closing() => {
                let next_id = shared.streams.borrow().next_id;
                shared.streams.borrow_mut().rejected_from = Some(next_id);
                shared.write_goaway(next_id);
                self.leaving = Leaving::Last { is_sent: false };
            }
            _ => {}
        }
        let is_done = {
            let streams = shared.streams.borrow();
            streams.requests.is_empty() && streams.finishing.is_empty()
        };
        if self.leaving == (Leaving::Last { is_sent: true }) && (is_done || self.has_vanished(now)) {
            self.close(now, NO_ERROR);
        }
    }

    /// Returns whether the client has not answered the last question. Asks again when it has.
    fn has_vanished(&mut self, now: Instant) -> bool {
        let acks = self.shared.quic.borrow().stats().frame_rx.acks;
        match &self.probe {
            Some(probe) if now < probe.asked + self.probe_patience() => return false,
            Some(probe) if probe.acks == acks => return true,
            _ => {}
        }
        self.shared.quic.borrow_mut().ping();
        self.probe = Some(Probe { asked: now, acks });
        false
    }

    /// Returns how long the client may take for a sign of life.
    fn probe_patience(&self) -> Duration {
        VANISHED_AFTER.max(VANISHED_ROUND_TRIPS * self.shared.quic.borrow().rtt())
    }

    /// Passes what the library has for the endpoint. Returns whether the endpoint has something in turn.
    fn pass_endpoint_events(&self) -> bool {
        let mut has_answer = false;
        while let Some(event) = { self.shared.quic.borrow_mut().poll_endpoint_events() } {
            if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                self.shared.queue.push(answer);
                has_answer = true;
            }
        }
        has_answer
    }

    /// Sends all pending packets, as far as the kernel has space.
    fn send(&mut self, now: Instant, cx: &mut Context<'_>) {
        if let Some((transmit, packets)) = &self.unsent {
            if !self.endpoint.send(transmit, packets, cx.waker()) {
                return;
            }
            self.unsent = None;
        }
        let mut packets = self.endpoint.send_buffer.borrow_mut();
        for _ in 0..SENDS_MAX {
            packets.clear();
            let mut quic = self.shared.quic.borrow_mut();
            let max_segments = self.endpoint.socket.max_segments(quic.current_mtu());
            let next = quic.poll_transmit(now, max_segments, &mut packets);
            drop(quic);
            let Some(transmit) = next else { return };
            if !self.endpoint.send(&transmit, &packets, cx.waker()) {
                self.unsent = Some((transmit, packets.as_slice().into()));
                return;
            }
        }
        cx.waker().wake_by_ref();
    }

    fn set_timer(&mut self, now: Instant, cx: &mut Context<'_>) {
        let has_requests = !self.shared.streams.borrow().requests.is_empty();
        let mut due = self.shared.quic.borrow_mut().poll_timeout();
        let mut bound = |at: Instant| due = Some(due.map_or(at, |due| due.min(at)));
        if let Leaving::Told(since) = self.leaving {
            bound(since + LAST_CALL);
        }
        if let (Some(probe), false) = (&self.probe, self.shared.is_closed()) {
            bound(probe.asked + self.probe_patience());
        }
        if has_requests && !self.shared.is_closed() {
            let next = self.pinged + settings::ping_interval(&self.shared.settings);
            if next <= now {
                self.shared.quic.borrow_mut().ping();
                self.pinged = now;
                cx.waker().wake_by_ref();
            }
            bound(next);
            if self.shared.streams.borrow().turns.has_waiting() {
                bound(now + RETRY_WRITE);
            }
        }
        if !self.shared.streams.borrow().finishing.is_empty() {
            bound(now + self.unread_patience());
        }
        let Some(due) = due else { return };
        self.timer.as_mut().reset(due.into());
        if self.timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

/// Frees what the endpoint has of the connection, also if its task has panicked.
impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.is_closed.set(true);
        self.shared.streams.borrow().wake_all();
        self.pass_endpoint_events();
        if !self.shared.quic.borrow().is_drained() {
            let _ = self.endpoint.handle_event(self.handle, EndpointEvent::drained());
        }
        self.endpoint.remove(self.handle);
        self.shared.state.close();
    }
}
