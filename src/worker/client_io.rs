//! A client's stream as a parser has it: what is written keeps the deadline of the connection informed; what
//! is read passes the protocol's own reader, `watched` or `followed`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::Stream;
use crate::http::context::Client;

pub struct ClientIo<R> {
    pub stream: Stream,
    /// Read before: by nobody who parses, or by a parser that has gone.
    pub unread: Bytes,
    pub client: Rc<Client>,
    pub reader: R,
}

/// How a protocol reads.
pub trait ReadAs: Sized + Unpin {
    fn poll_read(io: &mut ClientIo<Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;
}

impl<R> ClientIo<R> {
    /// Follows how fast the client takes what is written. Of one that is too slow nothing is kept for later, not in
    /// the kernel either.
    fn watch(&self, written: &Poll<io::Result<usize>>) {
        let deadline = self.client.deadline();
        match written {
            Poll::Ready(Ok(bytes)) => deadline.took(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending if deadline.is_slow() => self.stream.forget_unsent(),
            Poll::Pending => deadline.stalled(),
        }
    }

    /// Moves what was read before into `buf`; false when there is nothing.
    pub fn take_unread(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let length = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..length]);
        self.unread.advance(length);
        length > 0
    }
}

impl<R: ReadAs> AsyncRead for ClientIo<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        R::poll_read(&mut self, cx, buf)
    }
}

impl<R: ReadAs> AsyncWrite for ClientIo<R> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.client.deadline().flushed(false);
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.client.deadline().flushed(false);
        let ClientIo { stream, client, .. } = &mut *self;
        let written = stream.poll_write_gathered(cx, bufs, &client.local.gathered);
        self.watch(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked for only once all has been written; of that TLS may still hold some.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.client.deadline().flushed(flushed.is_ready());
        if flushed.is_pending() {
            self.watch(&Poll::Pending);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
