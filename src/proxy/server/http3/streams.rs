//! What happens on the streams of a connection: the client opens them, sends heads, breaks requests off, or sends on its
//! control streams.

use std::task::Waker;

use quinn_proto::{Dir, ReadError, Side, StreamId, VarInt};

use crate::ends::End;
use crate::proxy::server::http3::error::{
    CLOSED_CRITICAL_STREAM, Fatal, ID_ERROR, REQUEST_CANCELLED, REQUEST_INCOMPLETE, REQUEST_REJECTED,
    STREAM_CREATION_ERROR,
};
use crate::proxy::server::http3::priority::DEFAULT_URGENCY;
use crate::proxy::server::http3::request_reader::RequestItem;
use crate::proxy::server::http3::request_streams::{RequestStream, StreamItem, Streams};
use crate::proxy::server::http3::shared::Http3Connection;
use crate::proxy::server::http3::unidirectional::{UniResult, UniStream, UrgencyUpdate};

/// All incomplete heads of a connection take at most this multiple of `max_header_bytes`.
const HEADS_MAX: usize = 4;

impl Http3Connection {
    /// Accepts the streams that the client has opened.
    pub fn accept_streams(&self, dir: Dir) -> Result<(), Fatal> {
        loop {
            let Some(id) = self.quic.borrow_mut().streams().accept(dir) else { return Ok(()) };
            match dir {
                Dir::Uni => {
                    self.streams.borrow_mut().uni.insert(id, UniStream::default());
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
        let urgency = streams.early_urgencies.take(id);
        streams.requests.insert(id, RequestStream { urgency, ..RequestStream::new(max, now_ms) });
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

    /// Records that the client does not want a response any more.
    pub fn stream_stopped(&self, id: StreamId) -> Result<(), Fatal> {
        if Some(id) == self.control.get() {
            return Err(CLOSED_CRITICAL_STREAM.into());
        }
        let mut streams = self.streams.borrow_mut();
        streams.end_response(id);
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

    /// Sets the urgency of a response. A PRIORITY_UPDATE takes precedence over the header of the request.
    pub fn set_urgency(&self, id: StreamId, of_header: u8) {
        if let Some(stream) = self.streams.borrow_mut().requests.get_mut(&id) {
            stream.urgency.get_or_insert(of_header);
        }
    }

    /// Handles a PRIORITY_UPDATE of the request stream with this number. The request may have ended, or not have arrived.
    fn update_urgency(&self, UrgencyUpdate { number, urgency }: UrgencyUpdate) -> Result<(), Fatal> {
        let mut streams = self.streams.borrow_mut();
        let id = StreamId::new(Side::Client, Dir::Bi, number / 4);
        if number >= streams.next_id.saturating_add(4 * u64::from(self.settings.max_streams)) {
            return Err(ID_ERROR.into());
        }
        if let Some(stream) = streams.requests.get_mut(&id) {
            stream.urgency = Some(urgency);
        } else if number >= streams.next_id {
            streams.early_urgencies.set(id, urgency);
        }
        Ok(())
    }

    /// Has a response write when it is its turn, because the library has room for more of it.
    pub fn stream_writable(&self, id: StreamId) {
        let mut streams = self.streams.borrow_mut();
        let Streams { requests, turns, .. } = &mut *streams;
        if let Some(stream) = requests.get_mut(&id).filter(|stream| !stream.awaits_turn && !stream.is_served) {
            stream.awaits_turn = true;
            turns.push(id, stream.urgency.unwrap_or(DEFAULT_URGENCY));
        }
    }

    /// Wakes the task of the response whose turn it is to write.
    pub fn begin_turn(&self) {
        let mut streams = self.streams.borrow_mut();
        let Streams { requests, turns, .. } = &mut *streams;
        let next = turns.begin(|id| requests.get(&id).is_some_and(|stream| !stream.is_served));
        if let Some(stream) = next.and_then(|id| requests.get_mut(&id)) {
            stream.awaits_turn = false;
            stream.task.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Ends the turn of a response, if it has one: its task has written what it could.
    pub fn end_turn(&self, id: StreamId) {
        let is_next_free = {
            let mut streams = self.streams.borrow_mut();
            let is_next_free = streams.turns.end(id);
            if streams.requests.get(&id).is_none_or(|stream| stream.is_served) {
                streams.turns.forget(id);
            }
            is_next_free
        };
        if is_next_free {
            self.begin_turn();
        }
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
                        let updates = stream.take_urgency_updates();
                        drop(streams);
                        self.budget.borrow_mut().take_idle(idle_frames.into()).map_err(Fatal::flood)?;
                        updates.into_iter().try_for_each(|update| self.update_urgency(update))?;
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
