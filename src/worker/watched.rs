//! A client's stream as the parser sees it: whatever it reads and writes passes here. Made by
//! `h1`.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Bounds;
use super::stream::Stream;
use crate::http::context::Client;
use crate::http::deadline::Phase;

/// Notes the first byte of a request, which starts the deadline of its head, shows all bytes to the
/// inspector, and keeps the end of the stream back while a request is under way.
pub struct Watched {
    stream: Stream,
    /// Read before, by a parser that has gone.
    unread: Bytes,
    client: Rc<Client>,
    header_timeout: Duration,
    half_close_timeout: Duration,
}

impl Watched {
    /// `start` has been read of `stream`, by nobody who parses.
    pub fn new(stream: Stream, start: Bytes, client: Rc<Client>, bounds: &Bounds) -> Watched {
        let Bounds { header_timeout, half_close_timeout, .. } = *bounds;
        if let Some(inspector) = &client.inspector {
            inspector.borrow_mut().feed(&start);
        }
        Watched { stream, unread: start, client, header_timeout, half_close_timeout }
    }

    /// `unread` comes first.
    pub fn after(self, unread: &[u8]) -> Watched {
        // A copy of next to nothing: even an empty part would keep the whole buffer.
        Watched { unread: Bytes::copy_from_slice(unread), ..self }
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
            self.client.deadline().arm(Phase::Head, self.header_timeout);
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let length = self.unread.len().min(buf.remaining());
            buf.put_slice(&self.unread[..length]);
            self.unread.advance(length);
            self.begin_head();
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        let fresh = &buf.filled()[before..];
        let ended = fresh.is_empty() && buf.remaining() > 0 && matches!(result, Poll::Ready(Ok(())));
        if ended && self.client.deadline().half_closed(self.half_close_timeout) {
            // The server would drop the request. It asks again after the answer.
            return Poll::Pending;
        }
        if !fresh.is_empty() {
            self.begin_head();
        }
        if let Some(inspector) = &self.client.inspector {
            inspector.borrow_mut().feed(fresh);
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.client.deadline().flushed(false);
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.client.deadline().flushed(false);
        let Watched { stream, client, .. } = &mut *self;
        stream.poll_write_gathered(cx, bufs, &client.local.gathered)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked for only once all has been written.
        self.client.deadline().flushed(true);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
