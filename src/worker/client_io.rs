//! A client's stream as a parser has it: what is written keeps the deadline of the connection informed; what
//! is read passes the protocol's own reader, `watched` or `followed`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

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

    /// True for bytes of the parser's own that are not to be written, and for all after them.
    fn withholds(_: &mut ClientIo<Self>, _: &[u8]) -> bool {
        false
    }

    /// Some were.
    fn has_withheld(&self) -> bool {
        false
    }
}

impl<R> ClientIo<R> {
    /// Follows how fast the client takes what is written: over TLS not what that took, but what has left since
    /// `before`. Of one that is too slow nothing is kept for later, not in the kernel either.
    fn watch(&self, before: Option<u64>, written: &Poll<io::Result<usize>>) {
        let deadline = self.client.deadline();
        let taken = match (self.stream.sent().zip(before), written) {
            (Some((now, before)), _) => now - before,
            (None, Poll::Ready(Ok(bytes))) => *bytes as u64,
            (None, _) => 0,
        };
        if taken > 0 {
            deadline.took(taken);
        }
        match written {
            Poll::Ready(_) => {}
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

impl<R: ReadAs> ClientIo<R> {
    /// Writes what goes before an answer that has not begun.
    fn poll_early(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut early = self.client.early.borrow_mut();
            if early.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let before = self.stream.sent();
            let written = Pin::new(&mut self.stream).poll_write(cx, &early);
            if let Poll::Ready(Ok(count)) = written {
                early.drain(..count);
                if early.is_empty() {
                    // A few hints are no reason to keep their room for the life of the connection.
                    *early = Vec::new();
                }
            }
            drop(early);
            self.watch(before, &written);
            if ready!(written)? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
    }
}

impl<R: ReadAs> AsyncRead for ClientIo<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        R::poll_read(&mut self, cx, buf)
    }
}

impl<R: ReadAs> AsyncWrite for ClientIo<R> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if R::withholds(&mut self, buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        self.client.deadline().flushed(false);
        ready!(self.poll_early(cx))?;
        let before = self.stream.sent();
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(before, &written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        if R::withholds(&mut self, first) {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        self.client.deadline().flushed(false);
        ready!(self.poll_early(cx))?;
        let ClientIo { stream, client, .. } = &mut *self;
        let before = stream.sent();
        let written = stream.poll_write_gathered(cx, bufs, &client.local.gathered);
        self.watch(before, &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_early(cx))?;
        // Asked for only once all has been written; of that TLS may still hold some.
        let before = self.stream.sent();
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        let is_ready = flushed.is_ready();
        self.watch(before, &if is_ready { Poll::Ready(Ok(0)) } else { Poll::Pending });
        self.client.deadline().flushed(is_ready);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reader.has_withheld() {
            // There is something else to be said.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
