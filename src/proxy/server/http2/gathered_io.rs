//! Gathers the frames that the library writes during one poll of a connection. The library writes and flushes each DATA
//! frame by itself, although many are often ready: a system call and, over TLS, a record and a half for 16 KiB.
//!
//! `serve_connection` writes what was gathered after each poll of the library, so no byte waits for a later event. The
//! buffer belongs to the worker. A connection has one of its own only for what its socket did not accept.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::consume_budget;

use crate::proxy::connection::stream::{LARGE_WRITE, LargeWritePermit};
use crate::proxy::server::http2::io::Http2Io;

/// Bytes that a connection gathers for one write: two frames of the usual size. With a permit for large writes, it
/// gathers [`LARGE_WRITE`] bytes.
const USUAL_GATHER: usize = 32 * 1024 + 64;
/// Bytes for which a write counts once in the time slice of the connection's task.
const BUDGET_BYTES: usize = 16 * 1024;
/// A GOAWAY frame with ENHANCE_YOUR_CALM. It names the highest stream, so that it fits any connection.
const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11];

/// A stream whose writes are gathered.
pub trait GatheredStream: AsyncRead + AsyncWrite + Unpin {
    /// Returns the buffer of the worker, in which a connection gathers what it sends in one write.
    fn write_buffer(&self) -> &RefCell<Vec<u8>>;

    /// Returns a permit to gather [`LARGE_WRITE`] bytes, if one is free.
    fn acquire_large_write(&self) -> Option<LargeWritePermit>;

    /// Records that bytes wait to be written.
    fn mark_unflushed(&self);
}

impl GatheredStream for Http2Io {
    fn write_buffer(&self) -> &RefCell<Vec<u8>> {
        &self.client.worker.write_buffer
    }

    fn acquire_large_write(&self) -> Option<LargeWritePermit> {
        self.client.worker.large_writes.acquire()
    }

    fn mark_unflushed(&self) {
        self.client.connection().set_flushed(false);
    }
}

/// The stream of an HTTP/2 client as the library sees it, shared with the loop of the connection.
pub struct GatheredIo<S>(Rc<RefCell<Gathering<S>>>);

struct Gathering<S> {
    io: S,
    /// Gathered bytes. Between polls, the bytes that the socket did not accept.
    frames: Vec<u8>,
    /// The part of `frames` that is written.
    written: usize,
    /// The socket accepts no more at the moment.
    is_blocked: bool,
    /// The last write of the library was gathered in part, or not at all.
    is_write_partial: bool,
    /// Held while more than the usual number of bytes is gathered.
    permit: Option<LargeWritePermit>,
}

impl<S> Clone for GatheredIo<S> {
    fn clone(&self) -> GatheredIo<S> {
        GatheredIo(self.0.clone())
    }
}

impl<S: GatheredStream> GatheredIo<S> {
    pub fn new(io: S) -> GatheredIo<S> {
        GatheredIo(Rc::new(RefCell::new(Gathering {
            io,
            frames: Vec::new(),
            written: 0,
            is_blocked: false,
            is_write_partial: false,
            permit: None,
        })))
    }

    /// Writes what was gathered. Called after each poll of the library. Pending if the socket does not accept all of
    /// it: then the library must be polled again, which continues the write. With `is_flood`, GOAWAY follows, unless
    /// the library has written a part of a frame.
    pub fn poll_finish(&self, cx: &mut Context<'_>, is_flood: bool) -> Poll<io::Result<()>> {
        let mut gathering = self.0.borrow_mut();
        if is_flood && !gathering.is_write_partial {
            gathering.prepare_buffer();
            gathering.frames.extend_from_slice(&GOAWAY);
        }
        // After a write by the library, the buffer is empty and still to be returned.
        if gathering.frames.capacity() == 0 && !gathering.is_blocked {
            return Poll::Ready(Ok(()));
        }
        let finished = gathering.poll_flush_all(cx);
        gathering.return_buffer();
        finished
    }
}

impl<S: GatheredStream> Gathering<S> {
    /// Returns whether the socket must accept some bytes before more are gathered.
    fn is_full(&mut self) -> bool {
        if self.frames.len() >= USUAL_GATHER && self.permit.is_none() {
            self.permit = self.io.acquire_large_write();
        }
        self.frames.len() >= self.max()
    }

    /// Returns the most bytes that are gathered for one write.
    fn max(&self) -> usize {
        if self.permit.is_some() { LARGE_WRITE } else { USUAL_GATHER }
    }

    /// Adds a part of `bytes` and returns its length, 0 if there is no room.
    fn gather(&mut self, bytes: &[u8]) -> usize {
        self.prepare_buffer();
        let count = bytes.len().min(self.max().saturating_sub(self.frames.len()));
        self.frames.extend_from_slice(&bytes[..count]);
        count
    }

    /// Borrows the worker's buffer, unless there is one already.
    fn prepare_buffer(&mut self) {
        if self.frames.capacity() == 0 {
            self.frames = mem::take(&mut *self.io.write_buffer().borrow_mut());
            self.frames.clear();
            self.frames.reserve(USUAL_GATHER);
            self.io.mark_unflushed();
        }
    }

    /// Writes what was gathered to the socket.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.frames.len() {
            let poll = Pin::new(&mut self.io).poll_write(cx, &self.frames[self.written..]);
            self.is_blocked = poll.is_pending();
            let count = ready!(poll)?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            for _ in 0..count / BUDGET_BYTES {
                let _ = pin!(consume_budget()).poll(cx);
            }
        }
        (self.written, self.is_blocked, self.permit) = (0, false, None);
        match self.frames.capacity() >= USUAL_GATHER {
            true => self.frames.clear(),
            false => self.frames = Vec::new(),
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what was gathered, and flushes the layers below.
    fn poll_flush_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        self.is_blocked = poll.is_pending();
        poll
    }

    /// Returns the buffer to the worker, and keeps the bytes that are not written.
    fn return_buffer(&mut self) {
        if self.written == 0 && self.frames.capacity() == self.frames.len() {
            // This is the rest of an earlier poll, and nothing has been written since then.
            return;
        }
        let rest = self.frames.split_off(self.written);
        let mut buffer = mem::replace(&mut self.frames, rest);
        self.written = 0;
        if self.frames.len() <= USUAL_GATHER {
            self.permit = None;
        }
        buffer.clear();
        let mut shared = self.io.write_buffer().borrow_mut();
        if shared.capacity() < buffer.capacity() {
            *shared = buffer;
        }
    }
}

impl<S: GatheredStream> AsyncRead for GatheredIo<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().io).poll_read(cx, buf)
    }
}

impl<S: GatheredStream> AsyncWrite for GatheredIo<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut gathering = self.0.borrow_mut();
        gathering.is_write_partial = true;
        if gathering.is_blocked || gathering.is_full() {
            ready!(gathering.poll_drain(cx))?;
        }
        let count = bufs.iter().map(|buf| gathering.gather(buf)).sum();
        gathering.is_write_partial = count < bufs.iter().map(|buf| buf.len()).sum();
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Leaves what was gathered to [`GatheredIo::poll_finish`], unless it is from an earlier poll.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathering = self.0.borrow_mut();
        if gathering.is_blocked { gathering.poll_flush_all(cx) } else { Poll::Ready(Ok(())) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathering = self.0.borrow_mut();
        ready!(gathering.poll_flush_all(cx))?;
        Pin::new(&mut gathering.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::proxy::connection::stream::LargeWrites;

    /// A socket that accepts `space` bytes.
    #[derive(Default)]
    struct Socket {
        space: usize,
        sent: Vec<u8>,
        buffer: RefCell<Vec<u8>>,
        large_writes: Rc<LargeWrites>,
    }

    impl AsyncRead for Socket {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Socket {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.space);
            if count == 0 {
                return Poll::Pending;
            }
            self.space -= count;
            self.sent.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl GatheredStream for Socket {
        fn write_buffer(&self) -> &RefCell<Vec<u8>> {
            &self.buffer
        }

        fn acquire_large_write(&self) -> Option<LargeWritePermit> {
            self.large_writes.acquire()
        }

        fn mark_unflushed(&self) {}
    }

    /// Writes a response of `length` bytes to a socket that accepts `first` of them at once. `flushes`: the library
    /// flushes the rest before the connection does. Asserts that all bytes arrive in order, and that the idle
    /// connection keeps neither a buffer nor a permit.
    fn assert_idle_keeps_nothing(length: usize, first: usize, flushes: bool) {
        let case = format!("{length} bytes, {first} at once, flushes: {flushes}");
        let mut cx = Context::from_waker(Waker::noop());
        let mut io = GatheredIo::new(Socket { space: first, ..Socket::default() });
        let response: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
        let mut written = 0;
        while written < length {
            match Pin::new(&mut io).poll_write(&mut cx, &response[written..]) {
                Poll::Ready(count) => written += count.unwrap(),
                Poll::Pending => {
                    assert!(io.poll_finish(&mut cx, false).is_pending(), "{case}");
                    io.0.borrow_mut().io.space += 10_000;
                }
            }
        }
        let finished = io.poll_finish(&mut cx, false);
        io.0.borrow_mut().io.space = usize::MAX;
        if flushes {
            assert!(Pin::new(&mut io).poll_flush(&mut cx).is_ready(), "{case}");
        }
        if flushes || finished.is_pending() {
            assert!(io.poll_finish(&mut cx, false).is_ready(), "{case}");
        }
        let gathering = io.0.borrow();
        assert!(gathering.io.sent == response, "{case}");
        assert_eq!((gathering.frames.capacity(), gathering.permit.is_some()), (0, false), "{case}");
        assert!(gathering.io.buffer.borrow().capacity() >= USUAL_GATHER, "{case}");
    }

    #[test]
    fn an_idle_connection_keeps_no_buffer() {
        for length in [1000, USUAL_GATHER, USUAL_GATHER + 1, LARGE_WRITE + 1] {
            for first in [1, 10_000, length / 2, length - 1, length] {
                assert_idle_keeps_nothing(length, first, false);
                assert_idle_keeps_nothing(length, first, true);
            }
        }
    }
}
