//! A connection as its task and those of its requests share it: reading and writing of its streams. Bytes stay in the QUIC
//! library until somebody wants them, so that its windows bound what a client can make the gateway keep.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{Connection, FinishError, ReadError, SendStream, StreamId, VarInt, WriteError};

use crate::ends::End;
use crate::proxy::connection::settings::ConnectionSettings;
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::context::ClientConnection;
use crate::proxy::server::http3::budget::FloodBudget;
use crate::proxy::server::http3::error::{Code, Fatal, NO_ERROR, REQUEST_CANCELLED};
use crate::proxy::server::http3::frame;
use crate::proxy::server::http3::request_reader::RequestItem;
use crate::proxy::server::http3::request_streams::{RequestStream, StreamEnd, StreamItem, Streams};
use crate::proxy::server::http3::varint;
use crate::proxy::server::quic::endpoint::ConnectionQueue;
use crate::proxy::server::quic::settings;

/// Bytes that are taken from the library at once.
const READ_MAX: usize = 64 * 1024;

/// A connection, as its task and those of its requests share it.
pub struct Http3Connection {
    pub(super) me: Weak<Http3Connection>,
    pub(super) quic: RefCell<Connection>,
    pub(super) streams: RefCell<Streams>,
    pub(super) budget: RefCell<FloodBudget>,
    /// The control stream of the gateway.
    pub(super) control: Cell<Option<StreamId>>,
    /// Bytes for the control stream that the client's window has no room for.
    pub(super) control_unsent: RefCell<Bytes>,
    /// Set once the handshake has succeeded.
    pub(super) client: OnceCell<Rc<ClientConnection>>,
    pub(super) state: Rc<ConnectionState>,
    pub(super) settings: Rc<ConnectionSettings>,
    pub(super) queue: Rc<ConnectionQueue>,
    pub(super) is_closed: Cell<bool>,
    /// A violation that the task of a request has found.
    pub(super) fatal: Cell<Option<Fatal>>,
}

impl Http3Connection {
    pub(super) fn wake(&self) {
        self.queue.wake();
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.state.now_ms()
    }

    pub(super) fn state(&self) -> &Rc<ConnectionState> {
        &self.state
    }

    /// Returns the most bytes of a head or of trailers.
    pub fn max_header_bytes(&self) -> usize {
        self.settings.max_header_bytes
    }

    /// Returns whether nothing more is read or written.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Ends the connection, when its task runs next.
    pub fn fail(&self, fatal: Fatal) {
        self.fatal.set(Some(fatal));
        self.wake();
    }

    /// Counts a malformed message.
    pub fn count_malformed(&self, rule: End) {
        if let Some(client) = self.client.get() {
            client.worker.process.metrics.rejected_counter(rule).inc();
        }
    }

    /// Sets the timer for the oldest incomplete head, which began at `begun_ms`. `None`: no head is incomplete.
    fn set_head_timer(&self, begun_ms: Option<u64>) {
        self.state.end_head();
        if let Some(begun_ms) = begun_ms {
            let passed = Duration::from_millis(self.now_ms().saturating_sub(begun_ms));
            self.state.begin_head(self.settings.header_timeout.saturating_sub(passed));
        }
    }

    /// Has the library send a stream before those of a lower priority.
    pub(super) fn set_send_priority(&self, id: StreamId, priority: i32) {
        // One that has ended has nothing to send.
        let _ = self.quic.borrow_mut().send_stream(id).set_priority(priority);
    }

    /// Bounds what waits to be sent by what the path takes.
    pub(super) fn bound_unsent(&self) {
        let mut quic = self.quic.borrow_mut();
        let congestion_window = quic.congestion_state().window();
        quic.set_send_window(settings::send_window(congestion_window));
    }

    /// Writes to the control stream, or keeps what there is no room for.
    pub(super) fn write_control(&self, bytes: &[u8]) {
        let mut unsent = self.control_unsent.borrow_mut();
        *unsent = [&unsent[..], bytes].concat().into();
        if let (Some(control), false) = (self.control.get(), unsent.is_empty()) {
            let _ = self.quic.borrow_mut().send_stream(control).write_chunks(std::slice::from_mut(&mut unsent));
        }
    }

    /// Tells the client that requests from the number `first` on are not served.
    pub(super) fn write_goaway(&self, first: u64) {
        let (mut id, mut goaway) = (Vec::new(), Vec::new());
        varint::write(first, &mut id);
        frame::write_head(frame::GOAWAY, id.len(), &mut goaway);
        goaway.extend_from_slice(&id);
        self.write_control(&goaway);
    }

    /// Records that the head of a request is complete.
    pub(super) fn end_head(&self, id: StreamId) {
        self.streams.borrow_mut().incomplete.retain(|other| *other != id);
        self.update_head_timer();
    }

    /// Sets the timer for the oldest head that is incomplete.
    pub(super) fn update_head_timer(&self) {
        let streams = self.streams.borrow();
        let oldest = streams.incomplete.front().and_then(|id| streams.requests.get(id));
        self.set_head_timer(oldest.map(|stream| stream.begun_ms));
    }

    /// Takes the next item of a request stream.
    ///
    /// # Errors
    /// The client has violated the protocol, so that the connection must end.
    pub fn read_item(&self, id: StreamId) -> Result<StreamItem, Fatal> {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.requests.get_mut(&id) else { return Ok(StreamItem::Reset) };
        if let Some(item) = stream.ahead.take() {
            return Ok(StreamItem::Item(item));
        }
        loop {
            if let Some(item) = stream.reader.next(&mut stream.unread)? {
                if item == RequestItem::Nothing {
                    self.budget.borrow_mut().take_idle(1).map_err(Fatal::flood)?;
                }
                return Ok(StreamItem::Item(item));
            }
            match stream.end {
                Some(StreamEnd::Finished) => {
                    stream.reader.check_end()?;
                    return Ok(StreamItem::Finished);
                }
                Some(StreamEnd::Reset) => return Ok(StreamItem::Reset),
                None => {}
            }
            match self.read_bytes(id) {
                Ok(Some(bytes)) => {
                    stream.received += bytes.len() as u64;
                    stream.unread = bytes;
                }
                Ok(None) => stream.end = Some(StreamEnd::Finished),
                Err(ReadError::Reset(_)) => {
                    stream.end = Some(StreamEnd::Reset);
                    stream.count_reset(&self.budget)?;
                }
                Err(ReadError::Blocked) => return Ok(StreamItem::Blocked),
            }
        }
    }

    /// Takes bytes of a stream from the library. `None` at its end.
    pub(super) fn read_bytes(&self, id: StreamId) -> Result<Option<Bytes>, ReadError> {
        let mut quic = self.quic.borrow_mut();
        let mut stream = quic.recv_stream(id);
        // Nobody reads a stream that is closed; only one that was reset may seem to be.
        let Ok(mut chunks) = stream.read(true) else { return Err(ReadError::Reset(VarInt::from_u32(NO_ERROR.0))) };
        let next = chunks.next(READ_MAX);
        if chunks.finalize().should_transmit() {
            self.wake();
        }
        next.map(|chunk| chunk.map(|chunk| chunk.bytes))
    }

    /// Takes the next item of a request stream for the task that reads its body.
    pub fn poll_item(&self, id: StreamId, cx: &mut Context<'_>) -> Poll<Result<StreamItem, Fatal>> {
        if self.is_closed() {
            return Poll::Ready(Ok(StreamItem::Reset));
        }
        match self.read_item(id) {
            Ok(StreamItem::Blocked) => {
                if let Some(stream) = self.streams.borrow_mut().requests.get_mut(&id) {
                    stream.body_task = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    /// Writes as much of `chunks` as the client's windows and the gateway's bound have room for, and returns how much. The
    /// task of the request is woken when there is room.
    ///
    /// # Errors
    /// The client does not want the response.
    pub fn poll_write(&self, id: StreamId, chunks: &mut [Bytes]) -> Poll<Result<usize, WriteError>> {
        self.poll_write_with(id, |mut stream| stream.write_chunks(chunks).map(|written| written.bytes))
    }

    /// Writes as much of `bytes` as fits, like [`poll_write`](Self::poll_write).
    pub fn poll_write_slice(&self, id: StreamId, bytes: &[u8]) -> Poll<Result<usize, WriteError>> {
        self.poll_write_with(id, |mut stream| stream.write(bytes))
    }

    fn poll_write_with(
        &self,
        id: StreamId,
        write: impl FnOnce(SendStream<'_>) -> Result<usize, WriteError>,
    ) -> Poll<Result<usize, WriteError>> {
        if self.is_closed() {
            return Poll::Ready(Err(WriteError::ClosedStream));
        }
        let result = write(self.quic.borrow_mut().send_stream(id));
        match result {
            Ok(_) => {
                self.streams.borrow_mut().turns.record_written(id);
                self.wake();
            }
            Err(WriteError::Blocked) => {
                self.streams.borrow_mut().turns.record_blocked(id);
                return Poll::Pending;
            }
            Err(_) => {}
        }
        Poll::Ready(result)
    }

    /// Ends the response. If the client has stopped it, it is reset, because only then does the library free the
    /// stream.
    pub fn finish(&self, id: StreamId) {
        let finished = self.quic.borrow_mut().send_stream(id).finish();
        match finished {
            Ok(()) => drop(self.streams.borrow_mut().finishing.insert(id, self.now_ms())),
            Err(FinishError::Stopped(_)) => return self.reset(id, REQUEST_CANCELLED),
            Err(FinishError::ClosedStream) => {}
        }
        self.wake();
    }

    /// Cuts the response off.
    pub fn reset(&self, id: StreamId, code: Code) {
        let _ = self.quic.borrow_mut().send_stream(id).reset(VarInt::from_u32(code.0));
        // The library does not report that a response which is reset was acknowledged.
        self.streams.borrow_mut().end_response(id);
        self.wake();
    }

    /// Asks the client to send no more of its request.
    pub fn stop(&self, id: StreamId, code: Code) {
        let _ = self.quic.borrow_mut().recv_stream(id).stop(VarInt::from_u32(code.0));
        self.wake();
    }

    /// Forgets a request, and asks the client to send no more of it.
    pub fn end_stream(&self, id: StreamId, code: Code) {
        let stream = self.forget(id);
        if stream.is_some_and(|stream| stream.end.is_none()) {
            self.stop(id, code);
        }
        self.wake();
    }

    pub(super) fn forget(&self, id: StreamId) -> Option<RequestStream> {
        let stream = self.streams.borrow_mut().remove_request(id);
        self.end_head(id);
        stream
    }
}
