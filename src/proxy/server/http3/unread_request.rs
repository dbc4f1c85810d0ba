//! The rest of a request that nobody reads any more, because its response does not need it. Browsers lose the response if
//! the gateway asks them to send no more of a body while they send it. So the stream stays open while the rest is
//! discarded, within the bounds of `connection::body::discard`, and ends after that.

use std::rc::Rc;
use std::task::{Context, Poll};

use quinn_proto::StreamId;
use tokio::task::spawn_local;

use crate::proxy::connection::body::discard::{discard_rest, discard_stream};
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::server::http3::error::NO_ERROR;
use crate::proxy::server::http3::request_streams::StreamItem;
use crate::proxy::server::http3::shared::Http3Connection;

/// A request that still arrives, though nobody reads it any more.
struct UnreadRequest {
    connection: Rc<Http3Connection>,
    id: StreamId,
    /// Bytes of the stream that have been read, as far as they are counted.
    counted: u64,
}

impl Http3Connection {
    /// Discards what still comes of a request. `deadline`: its response has not ended.
    pub fn discard_request(&self, id: StreamId, deadline: Option<RequestDeadline>) {
        let Some((client, mut rest)) = self.client.get().zip(self.begin_rest(id)) else { return };
        let (places, ip) = (client.worker.discards.clone(), client.peer);
        let next = move |cx: &mut Context<'_>| rest.poll_next(cx);
        match deadline {
            Some(deadline) => drop(spawn_local(discard_stream(next, deadline, places, ip))),
            None => drop(spawn_local(discard_rest(next, places, ip))),
        }
    }

    /// Returns `None` if nothing more comes, or if the client does not want the response.
    fn begin_rest(&self, id: StreamId) -> Option<UnreadRequest> {
        let connection = self.me.upgrade().filter(|_| !self.is_closed())?;
        let mut streams = self.streams.borrow_mut();
        let stream = streams.requests.get_mut(&id).filter(|stream| stream.end.is_none() && !stream.is_stopped)?;
        stream.is_discarding = true;
        Some(UnreadRequest { connection, id, counted: stream.received })
    }

    /// Leaves the end of an answered request to the task that discards its rest. Returns false if there is no such task.
    pub fn end_with_rest(&self, id: StreamId) -> bool {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.requests.get_mut(&id).filter(|stream| stream.is_discarding) else { return false };
        (stream.is_answered, stream.is_served, stream.task) = (true, true, None);
        true
    }
}

impl UnreadRequest {
    /// Reads on. Returns the number of bytes that have come. `None`: no more is wanted.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        let item = self.connection.poll_item(self.id, cx);
        let received = {
            let streams = self.connection.streams.borrow();
            streams.requests.get(&self.id).filter(|stream| !stream.is_stopped).map(|stream| stream.received)
        };
        let Some(received) = received else { return Poll::Ready(None) };
        // The payload of a frame that is skipped counts as well.
        let count = usize::try_from(received - std::mem::replace(&mut self.counted, received)).unwrap_or(usize::MAX);
        match item {
            Poll::Ready(Ok(StreamItem::Finished | StreamItem::Reset)) => Poll::Ready(None),
            Poll::Ready(Err(fatal)) => {
                self.connection.fail(fatal);
                Poll::Ready(None)
            }
            Poll::Pending if count == 0 => Poll::Pending,
            _ => Poll::Ready(Some(count)),
        }
    }
}

impl Drop for UnreadRequest {
    fn drop(&mut self) {
        let is_served = self.connection.streams.borrow_mut().requests.get_mut(&self.id).is_some_and(|stream| {
            (stream.is_discarding, stream.body_task) = (false, None);
            stream.is_served
        });
        if is_served {
            self.connection.end_stream(self.id, NO_ERROR);
        }
    }
}
