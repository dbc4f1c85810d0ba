//! The state that a connection keeps of its streams.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::task::Waker;

use bytes::Bytes;
use quinn_proto::StreamId;

use crate::proxy::server::http3::budget::FloodBudget;
use crate::proxy::server::http3::error::Fatal;
use crate::proxy::server::http3::priority::EarlyUrgencies;
use crate::proxy::server::http3::request_reader::{RequestItem, RequestReader};
use crate::proxy::server::http3::unidirectional::{CriticalStreams, UniStream};
use crate::proxy::server::http3::write_turns::WriteTurns;

/// A request stream.
pub struct RequestStream {
    pub(super) reader: RequestReader,
    /// Bytes that the reader has not seen.
    pub(super) unread: Bytes,
    /// An item that was read in advance.
    pub(super) ahead: Option<RequestItem>,
    /// Set once the client has ended or reset the stream, so that no more data arrives.
    pub(super) end: Option<StreamEnd>,
    /// The client does not want the response any more.
    pub is_stopped: bool,
    /// The response has been sent, or is not to be sent.
    pub is_answered: bool,
    /// The task of the request has ended, and the stream is open only while its rest is discarded.
    pub(super) is_served: bool,
    /// The rest of the request is being discarded.
    pub(super) is_discarding: bool,
    /// Bytes of the stream that have been read.
    pub(super) received: u64,
    /// The client has broken the request off, which is counted.
    pub(super) is_reset: bool,
    /// The urgency of the response, once it is known.
    pub(super) urgency: Option<u8>,
    /// The response waits for its turn to write.
    pub(super) awaits_turn: bool,
    /// When the head began, on the worker's coarse clock.
    pub(super) begun_ms: u64,
    /// The tasks that read the body and write the response.
    pub(super) body_task: Option<Waker>,
    pub task: Option<Waker>,
}

/// How a client has ended its side of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
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
    pub requests: BTreeMap<StreamId, RequestStream>,
    pub(super) uni: HashMap<StreamId, UniStream>,
    pub(super) critical: CriticalStreams,
    /// Streams whose head is incomplete, the oldest first.
    pub(super) incomplete: VecDeque<StreamId>,
    pub(super) early_urgencies: EarlyUrgencies,
    /// Responses that wait for room in the windows of the connection.
    pub(super) turns: WriteTurns,
    /// Streams with a response that the client has not acknowledged completely, and since when.
    pub finishing: BTreeMap<StreamId, u64>,
    /// One past the number of the last request that was accepted.
    pub next_id: u64,
    /// Requests from this number on are rejected.
    pub rejected_from: Option<u64>,
}

impl Streams {
    /// Takes a request out. If it was its turn to write, the task of the connection begins the next one.
    pub fn remove_request(&mut self, id: StreamId) -> Option<RequestStream> {
        self.turns.end(id);
        remove(&mut self.requests, id)
    }

    /// Records that nothing of a response is left to acknowledge.
    pub fn end_response(&mut self, id: StreamId) {
        remove(&mut self.finishing, id);
    }

    /// Wakes all tasks of requests.
    pub fn wake_all(&self) {
        for stream in self.requests.values() {
            stream.wake();
        }
    }
}

/// Removes an entry. A map that is empty then keeps no room: most connections are idle.
fn remove<T>(map: &mut BTreeMap<StreamId, T>, id: StreamId) -> Option<T> {
    let removed = map.remove(&id);
    if map.is_empty() {
        *map = BTreeMap::new();
    }
    removed
}

impl RequestStream {
    pub fn new(max_section: usize, begun_ms: u64) -> RequestStream {
        RequestStream {
            reader: RequestReader::new(max_section),
            unread: Bytes::new(),
            ahead: None,
            end: None,
            is_stopped: false,
            is_answered: false,
            is_served: false,
            is_discarding: false,
            received: 0,
            is_reset: false,
            urgency: None,
            awaits_turn: false,
            begun_ms,
            body_task: None,
            task: None,
        }
    }

    /// Counts, at most once per request, that the client has reset a request before its response.
    pub fn count_reset(&mut self, budget: &RefCell<FloodBudget>) -> Result<(), Fatal> {
        if self.is_answered || std::mem::replace(&mut self.is_reset, true) {
            return Ok(());
        }
        budget.borrow_mut().take_reset().map_err(Fatal::flood)
    }

    pub fn wake(&self) {
        self.task.iter().chain(&self.body_task).for_each(Waker::wake_by_ref);
    }
}
