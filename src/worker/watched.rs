//! A client's stream as the parser sees it: whatever it reads and writes passes here. Made by
//! `h1`.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client_io::{ClientIo, ReadAs};
use super::connection::Bounds;
use super::stream::Stream;
use crate::http::context::Client;
use crate::http::deadline::Phase;

/// Notes the first byte of a request, which starts the deadline of its head, shows all bytes to the
/// inspector, and keeps the end of the stream back while a request is under way.
pub struct AsWatched {
    header_timeout: Duration,
    half_close_timeout: Duration,
}

pub type Watched = ClientIo<AsWatched>;

impl Watched {
    /// `start` has been read of `stream`, by nobody who parses.
    pub fn new(stream: Stream, start: Bytes, client: Rc<Client>, bounds: &Bounds) -> Watched {
        let Bounds { header_timeout, half_close_timeout, .. } = *bounds;
        if let Some(inspector) = &client.inspector {
            inspector.borrow_mut().feed(&start);
        }
        ClientIo { stream, unread: start, client, reader: AsWatched { header_timeout, half_close_timeout } }
    }

    /// `unread` comes first.
    pub fn after(self, unread: &[u8]) -> Watched {
        // A copy of next to nothing: even an empty part would keep the whole buffer.
        ClientIo { unread: Bytes::copy_from_slice(unread), ..self }
    }

    /// The stream, with what was read of it and not used: `read` by a parser, and before.
    pub fn into_stream(self, read: &[u8]) -> (Stream, Vec<u8>) {
        (self.stream, [read, &self.unread].concat())
    }

    /// Ready once there is something to read, be it the end or an error.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unread.is_empty() { self.stream.poll_readable(cx).map(drop) } else { Poll::Ready(()) }
    }

    /// Says farewell to the client, as far as the socket takes it at once.
    pub async fn close(mut self) {
        poll_fn(|cx| {
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// The first byte of a request starts the deadline of its head.
    fn begin_head(&self) {
        if self.client.deadline().phase() == Phase::Idle {
            self.client.deadline().arm(Phase::Head, self.reader.header_timeout);
        }
    }
}

impl ReadAs for AsWatched {
    fn poll_read(io: &mut Watched, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if io.take_unread(buf) {
            io.begin_head();
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut io.stream).poll_read(cx, buf);
        let fresh = &buf.filled()[before..];
        let ended = fresh.is_empty() && buf.remaining() > 0 && matches!(result, Poll::Ready(Ok(())));
        if ended && io.client.deadline().half_closed(io.reader.half_close_timeout) {
            // The server would drop the request. It asks again after the answer.
            return Poll::Pending;
        }
        if !fresh.is_empty() {
            io.begin_head();
        }
        if let Some(inspector) = &io.client.inspector {
            inspector.borrow_mut().feed(fresh);
        }
        result
    }
}
