//! The streams of an HTTP/3 connection. Bytes stay in the QUIC library until somebody wants them, so that its windows
//! bound what a client can make the gateway keep.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use quinn_proto::{Dir, ReadError, StreamId, VarInt, WriteError};

use crate::ends::End;
use crate::proxy::server::http3::budget::FrameBudget;
use crate::proxy::server::http3::connection::{Fatal, Http3Connection};
use crate::proxy::server::http3::error::{
    CLOSED_CRITICAL_STREAM, Code, NO_ERROR, REQUEST_CANCELLED, REQUEST_INCOMPLETE, REQUEST_REJECTED,
    STREAM_CREATION_ERROR,
};
use crate::proxy::server::http3::request_reader::{RequestItem, RequestReader};
use crate::proxy::server::http3::unidirectional::{CriticalStreams, UniResult, UniStream};

/// Bytes that are taken from the library at once.
const READ_MAX: usize = 64 * 1024;
/// Streams whose states an idle connection may keep room for.
const FEW_STREAMS: usize = 16;
/// Heads that may be incomplete at once take at most so many times `max_header_bytes`.
const HEADS_MAX: usize = 4;

/// A request stream.
pub struct RequestStream {
    reader: RequestReader,
    /// Bytes that the reader has not seen.
    unread: Bytes,
    /// An item that was read in advance.
    ahead: Option<RequestItem>,
    /// Nothing more comes from the client: it has ended the stream, or reset it.
    end: Option<StreamEnd>,
    /// The client does not want the response any more.
    pub is_stopped: bool,
    /// The response has been sent, or is not to be sent.
    pub is_answered: bool,
    /// The client has broken the request off, which is counted.
    is_reset: bool,
    /// When the head began, on the worker's coarse clock.
    begun_ms: u64,
    /// The tasks that read the body and write the response.
    body_task: Option<Waker>,
    pub task: Option<Waker>,
}

/// How a client has ended its side of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    Finished,
    Reset,
}

/// What a request stream brings.
pub enum StreamItem {
    Item(RequestItem),
    Finished,
    Reset,
    /// Nothing yet.
    Blocked,
}

/// The streams of one connection.
#[derive(Default)]
pub struct Streams {
    pub requests: HashMap<StreamId, RequestStream>,
    uni: HashMap<StreamId, UniStream>,
    critical: CriticalStreams,
    /// Streams whose head is incomplete, the oldest first.
    incomplete: VecDeque<StreamId>,
    /// Streams with a response that the client has not acknowledged completely, and since when.
    pub finishing: HashMap<StreamId, u64>,
    /// One past the number of the last request that was accepted.
    pub next_id: u64,
    /// Requests from this number on are rejected.
    pub rejected_from: Option<u64>,
}

impl Streams {
    /// Wakes all tasks of requests.
    pub fn wake_all(&self) {
        for stream in self.requests.values() {
            stream.wake();
        }
    }
}

impl RequestStream {
    fn new(max_section: usize, begun_ms: u64) -> RequestStream {
        RequestStream {
            reader: RequestReader::new(max_section),
            unread: Bytes::new(),
            ahead: None,
            end: None,
            is_stopped: false,
            is_answered: false,
            is_reset: false,
            begun_ms,
            body_task: None,
            task: None,
        }
    }

    /// Counts, once, that the client has broken off a request without an answer.
    fn count_reset(&mut self, budget: &RefCell<FrameBudget>) -> Result<(), Fatal> {
        if self.is_answered || std::mem::replace(&mut self.is_reset, true) {
            return Ok(());
        }
        budget.borrow_mut().take_reset().map_err(Fatal::flood)
    }

    fn wake(&self) {
        self.task.iter().chain(&self.body_task).for_each(Waker::wake_by_ref);
    }
}

impl Http3Connection {
    /// Accepts the streams that the client has opened.
    pub fn accept_streams(&self, dir: Dir) -> Result<(), Fatal> {
        loop {
            let Some(id) = self.quic.borrow_mut().streams().accept(dir) else { return Ok(()) };
            match dir {
                Dir::Uni => {
                    self.streams.borrow_mut().uni.insert(id, UniStream::new());
                    self.read_uni(id)?;
                }
                Dir::Bi => self.accept_request(id)?,
            }
        }
    }

    fn accept_request(&self, id: StreamId) -> Result<(), Fatal> {
        let number = u64::from(VarInt::from(id));
        let mut streams = self.streams.borrow_mut();
        if streams.rejected_from.is_some_and(|from| number >= from) {
            drop(streams);
            self.reset(id, REQUEST_REJECTED);
            self.stop(id, REQUEST_REJECTED);
            return Ok(());
        }
        streams.next_id = streams.next_id.max(number + 4);
        let (max, now_ms) = (self.max_header_bytes(), self.now_ms());
        streams.requests.insert(id, RequestStream::new(max, now_ms));
        streams.incomplete.push_back(id);
        drop(streams);
        self.update_head_timer();
        self.read_head(id)
    }

    /// Handles a stream on which something has come.
    pub fn stream_readable(&self, id: StreamId) -> Result<(), Fatal> {
        if id.dir() == Dir::Uni {
            return self.read_uni(id);
        }
        let streams = self.streams.borrow();
        let Some(stream) = streams.requests.get(&id) else { return Ok(()) };
        if stream.reader.awaits_head() {
            drop(streams);
            return self.read_head(id);
        }
        stream.wake();
        Ok(())
    }

    /// Reads a head as far as it has arrived, and begins the request once it is complete.
    fn read_head(&self, id: StreamId) -> Result<(), Fatal> {
        loop {
            let item = self.read_item(id)?;
            let head = match item {
                StreamItem::Item(RequestItem::Nothing) => continue,
                StreamItem::Item(RequestItem::Head(section)) => Some(section),
                StreamItem::Item(_) => None,
                StreamItem::Blocked => return self.check_kept_heads(),
                StreamItem::Finished => {
                    self.forget(id);
                    self.reset(id, REQUEST_INCOMPLETE);
                    return self.take_reset();
                }
                StreamItem::Reset => {
                    self.forget(id);
                    self.reset(id, REQUEST_CANCELLED);
                    return Ok(());
                }
            };
            self.end_head(id);
            return match head {
                Some(section) => {
                    let is_whole = self.is_whole(id)?;
                    self.begin_request(id, &section, is_whole)
                }
                None => {
                    self.refuse_large_head(id);
                    Ok(())
                }
            };
        }
    }

    /// Returns whether nothing follows the head, as far as is known.
    fn is_whole(&self, id: StreamId) -> Result<bool, Fatal> {
        loop {
            match self.read_item(id)? {
                StreamItem::Item(RequestItem::Nothing) => {}
                StreamItem::Item(item) => {
                    if let Some(stream) = self.streams.borrow_mut().requests.get_mut(&id) {
                        stream.ahead = Some(item);
                    }
                    return Ok(false);
                }
                StreamItem::Finished => return Ok(true),
                StreamItem::Blocked | StreamItem::Reset => return Ok(false),
            }
        }
    }

    /// Ends the connection of a client whose incomplete heads take too much memory.
    fn check_kept_heads(&self) -> Result<(), Fatal> {
        let streams = self.streams.borrow();
        let kept = |id| streams.requests.get(id).map_or(0, |stream: &RequestStream| stream.reader.kept_bytes());
        let all: usize = streams.incomplete.iter().map(kept).sum();
        if all > HEADS_MAX * self.max_header_bytes() { Err(Fatal::flood(End::H2Abuse)) } else { Ok(()) }
    }

    /// Records that the head of a request is complete.
    fn end_head(&self, id: StreamId) {
        self.streams.borrow_mut().incomplete.retain(|other| *other != id);
        self.update_head_timer();
    }

    /// Sets the timer for the oldest head that is incomplete.
    fn update_head_timer(&self) {
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
                Ok(Some(bytes)) => stream.unread = bytes,
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
    fn read_bytes(&self, id: StreamId) -> Result<Option<Bytes>, ReadError> {
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

    /// Writes as much of `bytes` as the client's windows and the gateway's bound have room for, and returns how much. The
    /// task of the request is woken when there is room.
    ///
    /// # Errors
    /// The client does not want the response.
    pub fn poll_write(&self, id: StreamId, bytes: &mut Bytes) -> Poll<Result<usize, WriteError>> {
        if self.is_closed() {
            return Poll::Ready(Err(WriteError::ClosedStream));
        }
        let written = self.quic.borrow_mut().send_stream(id).write_chunks(std::slice::from_mut(bytes));
        match written {
            Ok(written) => {
                self.wake();
                Poll::Ready(Ok(written.bytes))
            }
            Err(WriteError::Blocked) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Ends the response.
    pub fn finish(&self, id: StreamId) {
        let finished = self.quic.borrow_mut().send_stream(id).finish();
        if finished.is_ok() {
            self.streams.borrow_mut().finishing.insert(id, self.now_ms());
        }
        self.wake();
    }

    /// Cuts the response off.
    pub fn reset(&self, id: StreamId, code: Code) {
        let _ = self.quic.borrow_mut().send_stream(id).reset(VarInt::from_u32(code.0));
        self.wake();
    }

    /// Asks the client to send no more of its request.
    pub fn stop(&self, id: StreamId, code: Code) {
        let _ = self.quic.borrow_mut().recv_stream(id).stop(VarInt::from_u32(code.0));
        self.wake();
    }

    /// Records that the client does not want a response any more.
    pub fn stream_stopped(&self, id: StreamId) -> Result<(), Fatal> {
        if Some(id) == self.control.get() {
            return Err(CLOSED_CRITICAL_STREAM.into());
        }
        let mut streams = self.streams.borrow_mut();
        streams.finishing.remove(&id);
        let Some(stream) = streams.requests.get_mut(&id) else { return Ok(()) };
        stream.is_stopped = true;
        stream.wake();
        stream.count_reset(&self.budget)?;
        let awaits_head = stream.reader.awaits_head();
        drop(streams);
        if awaits_head {
            self.forget(id);
            self.stop(id, REQUEST_CANCELLED);
            self.reset(id, REQUEST_CANCELLED);
        }
        Ok(())
    }

    /// Wakes the task that writes a response.
    pub fn stream_writable(&self, id: StreamId) {
        if let Some(stream) = self.streams.borrow().requests.get(&id) {
            stream.task.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Forgets a request, and asks the client to send no more of it.
    pub fn end_stream(&self, id: StreamId, code: Code) {
        let stream = self.forget(id);
        if stream.is_some_and(|stream| stream.end.is_none()) {
            self.stop(id, code);
        }
        self.wake();
    }

    fn forget(&self, id: StreamId) -> Option<RequestStream> {
        let stream = {
            let requests = &mut self.streams.borrow_mut().requests;
            let stream = requests.remove(&id);
            if requests.is_empty() && requests.capacity() > FEW_STREAMS {
                *requests = HashMap::new();
            }
            stream
        };
        self.end_head(id);
        stream
    }

    fn take_reset(&self) -> Result<(), Fatal> {
        self.budget.borrow_mut().take_reset().map_err(Fatal::flood)
    }

    /// Reads a unidirectional stream as far as it has arrived.
    fn read_uni(&self, id: StreamId) -> Result<(), Fatal> {
        loop {
            let read = self.read_bytes(id);
            let mut streams = self.streams.borrow_mut();
            let Streams { uni, critical, .. } = &mut *streams;
            let Some(stream) = uni.get_mut(&id) else { return Ok(()) };
            match read {
                Ok(Some(bytes)) => match stream.read(bytes, critical)? {
                    UniResult::Read { idle_frames } => {
                        self.budget.borrow_mut().take_idle(idle_frames.into()).map_err(Fatal::flood)?;
                    }
                    UniResult::Ignored => {
                        uni.remove(&id);
                        drop(streams);
                        self.stop(id, STREAM_CREATION_ERROR);
                        return self.budget.borrow_mut().take_idle(1).map_err(Fatal::flood);
                    }
                },
                Err(ReadError::Blocked) => return Ok(()),
                Ok(None) | Err(ReadError::Reset(_)) if stream.is_critical() => {
                    return Err(CLOSED_CRITICAL_STREAM.into());
                }
                Ok(None) | Err(ReadError::Reset(_)) => {
                    uni.remove(&id);
                    return self.budget.borrow_mut().take_idle(1).map_err(Fatal::flood);
                }
            }
        }
    }
}
