//! The client's stream between the socket and a parser. Writes report their progress to the connection's state, which
//! applies the minimum rate. Reads pass through the filter of the protocol (`http1::io`, `http2::io`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::connection::stream::Stream;
use crate::proxy::context::ClientConnection;
use crate::proxy::words::spelling::ResponseSpelling;

/// The client's stream as a parser reads and writes it. `R` is the filter of the protocol.
pub struct ClientIo<R> {
    pub stream: Stream,
    /// Bytes that were read before the parser was made, by the detection of the protocol or by an earlier parser.
    pub unread: Bytes,
    pub client: Rc<ClientConnection>,
    pub filter: R,
}

/// The filter of a protocol between the socket and its parser.
pub trait ReadFilter: Sized + Unpin {
    /// Reads into `buf` what the parser may see.
    fn poll_read(io: &mut ClientIo<Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;

    /// Returns whether the bytes are an error response of the parser, which the gateway replaces by its own. If so,
    /// neither they nor any bytes after them are written.
    fn withhold_write(_: &mut ClientIo<Self>, _: &[u8]) -> bool {
        false
    }

    /// Returns whether bytes were withheld.
    fn has_withheld(&self) -> bool {
        false
    }
}

impl<R> ClientIo<R> {
    /// Reports a write to the connection's state. Over TLS, this counts the bytes sent since `sent_before`, not the
    /// bytes that TLS has accepted. If the client is too slow, the kernel buffers nothing for it.
    fn report_write(&self, sent_before: Option<u64>, written: &Poll<io::Result<usize>>) {
        let connection = self.client.connection();
        let count = match (self.stream.sent_bytes().zip(sent_before), written) {
            (Some((now, before)), _) => now - before,
            (None, Poll::Ready(Ok(bytes))) => *bytes as u64,
            (None, _) => 0,
        };
        if count > 0 {
            connection.add_written(count);
        }
        match written {
            Poll::Ready(_) => {}
            Poll::Pending if connection.is_slow() => self.stream.reset_on_close(),
            Poll::Pending => connection.begin_stall(),
        }
    }

    /// Moves bytes that were read before into `buf`. Returns false if there are none.
    pub fn read_unread(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let length = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..length]);
        self.unread.advance(length);
        length > 0
    }
}

impl<R: ReadFilter> ClientIo<R> {
    /// Writes interim responses (103 Early Hints) before a response that has not begun.
    fn poll_early(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut early = self.client.interim.borrow_mut();
            if early.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let sent_before = self.stream.sent_bytes();
            let poll = Pin::new(&mut self.stream).poll_write(cx, &early);
            if let Poll::Ready(Ok(count)) = poll {
                early.drain(..count);
                if early.is_empty() {
                    // Frees the buffer, which otherwise lives as long as the connection.
                    *early = Vec::new();
                }
            }
            drop(early);
            self.report_write(sent_before, &poll);
            if ready!(poll)? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
    }
}

impl<R> ClientIo<R> {
    /// Writes `bufs`, whose head gets the names of `spelling`.
    fn poll_write_head(
        &mut self,
        cx: &mut Context<'_>,
        mut spelling: Box<ResponseSpelling>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let at = bufs.iter().position(|buf| !buf.is_empty()).unwrap_or(0);
        let (first, others) = match bufs.get(at..).and_then(<[IoSlice]>::split_first) {
            Some((first, others)) => (&first[..], others),
            None => (&[][..], &[][..]),
        };
        let is_head = spelling.take_head(first);
        let rest = if is_head { &first[spelling.rest.len()..] } else { first };
        let slices: Vec<IoSlice> =
            [&spelling.rest[..], rest].map(IoSlice::new).into_iter().chain(others.iter().copied()).collect();
        let sent_before = self.stream.sent_bytes();
        let poll = self.stream.poll_write_gathered(cx, &slices, &self.client.worker.write_buffer);
        self.report_write(sent_before, &poll);
        if is_head {
            let byte_count = if let Poll::Ready(Ok(count)) = poll { count } else { 0 };
            spelling.rest.drain(..byte_count.min(spelling.rest.len()));
            if !spelling.rest.is_empty() {
                self.client.spelling.set(Some(spelling));
            }
        }
        poll
    }
}

impl<R: ReadFilter> AsyncRead for ClientIo<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        R::poll_read(&mut self, cx, buf)
    }
}

impl<R: ReadFilter> AsyncWrite for ClientIo<R> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if R::withhold_write(&mut self, buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        self.client.connection().set_flushed(false);
        ready!(self.poll_early(cx))?;
        if let Some(spelling) = self.client.spelling.take() {
            return self.poll_write_head(cx, spelling, &[IoSlice::new(buf)]);
        }
        let sent_before = self.stream.sent_bytes();
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.report_write(sent_before, &poll);
        poll
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        if R::withhold_write(&mut self, first) {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        self.client.connection().set_flushed(false);
        ready!(self.poll_early(cx))?;
        if let Some(spelling) = self.client.spelling.take() {
            return self.poll_write_head(cx, spelling, bufs);
        }
        let ClientIo { stream, client, .. } = &mut *self;
        let sent_before = stream.sent_bytes();
        let poll = stream.poll_write_gathered(cx, bufs, &client.worker.write_buffer);
        self.report_write(sent_before, &poll);
        poll
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_early(cx))?;
        // The parser flushes once all is written, but TLS may still hold some of it.
        let sent_before = self.stream.sent_bytes();
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        let is_ready = poll.is_ready();
        self.report_write(sent_before, &if is_ready { Poll::Ready(Ok(0)) } else { Poll::Pending });
        self.client.connection().set_flushed(is_ready);
        poll
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.filter.has_withheld() {
            // The gateway writes its own error response first.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
