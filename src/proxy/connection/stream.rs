//! The byte stream of an accepted connection: TCP or a Unix socket, with TLS on top or without.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConnection;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::proxy::connection::upgrade::TunnelIo;

/// The largest head and body that are copied into one buffer and written at once. Up to this size that is faster than
/// to hand the kernel a list of buffers.
const GATHER_MAX: usize = 16 * 1024;

/// Bytes of a handshake that are read before its turn: most clients send fewer first.
const EARLY_MAX: usize = 4 * 1024;

/// Encrypted bytes that a connection holds for its socket. With a permit, it holds [`LARGE_WRITE`] instead.
const USUAL_WRITE: usize = 64 * 1024;
/// Larger writes cost less for each byte: the client and this process wake each other less often.
pub const LARGE_WRITE: usize = 256 * 1024;
/// The most connections of a worker that hold more than the usual number of bytes for their sockets. A client may read
/// fast and then stop, so the number is bounded.
const LARGE_WRITES_MAX: usize = 16;

/// Permits of a worker for large writes.
pub struct LargeWrites {
    free: Cell<usize>,
}

impl Default for LargeWrites {
    fn default() -> LargeWrites {
        LargeWrites { free: Cell::new(LARGE_WRITES_MAX) }
    }
}

impl LargeWrites {
    /// Returns a permit, or `None` if all of them are in use.
    pub fn acquire(self: &Rc<Self>) -> Option<LargeWritePermit> {
        self.free.set(self.free.get().checked_sub(1)?);
        Some(LargeWritePermit(self.clone()))
    }
}

/// Permits one connection to hold [`LARGE_WRITE`] bytes for its socket, until it is dropped.
pub struct LargeWritePermit(Rc<LargeWrites>);

impl Drop for LargeWritePermit {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
    }
}

/// The byte stream of an accepted connection.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// TLS over one of the others, after the handshake.
    Tls(Box<TlsStream<TlsTransport>>),
}

/// The stream below TLS. It counts the bytes that leave: TLS accepts bytes long before it can send them.
pub struct TlsTransport {
    stream: Stream,
    /// The beginning of the handshake, which was read while the handshake waited for its turn.
    early: Vec<u8>,
    sent: u64,
    large_writes: Rc<LargeWrites>,
    /// Held from a large write until the socket has accepted everything.
    permit: Option<LargeWritePermit>,
}

impl TlsTransport {
    /// `large_writes`: the permits of the worker.
    pub fn new(stream: Stream, large_writes: Rc<LargeWrites>) -> TlsTransport {
        TlsTransport { stream, early: Vec::new(), sent: 0, large_writes, permit: None }
    }

    /// Returns ready once the client has disconnected, with the error. Reads ahead of the handshake for that, because
    /// the end of the stream shows behind all bytes of the client.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        while self.early.len() < EARLY_MAX {
            let mut bytes = [MaybeUninit::uninit(); EARLY_MAX];
            let mut read = ReadBuf::uninit(&mut bytes[self.early.len()..]);
            match Pin::new(&mut self.stream).poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) if read.filled().is_empty() => {
                    return Poll::Ready(io::ErrorKind::UnexpectedEof.into());
                }
                Poll::Ready(Ok(())) => self.early.extend_from_slice(read.filled()),
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    /// Adapts the number of encrypted bytes that `session` may hold to a write of `length` bytes. 0 for a flush.
    fn adapt_buffer(&mut self, session: &mut ServerConnection, length: usize) {
        match self.permit {
            None if length > USUAL_WRITE => self.permit = self.large_writes.acquire(),
            Some(_) if length <= USUAL_WRITE && !session.wants_write() => self.permit = None,
            _ => return,
        }
        session.set_buffer_limit(Some(if self.permit.is_some() { LARGE_WRITE } else { USUAL_WRITE }));
    }

    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.sent += bytes as u64;
        }
        written
    }
}

/// Calls a function of the stream, whichever it is.
macro_rules! either {
    ($stream:expr, $function:ident $(, $argument:expr)*) => {
        match $stream {
            Stream::Tcp(stream) => Pin::new(stream).$function($($argument),*),
            Stream::Unix(stream) => Pin::new(stream).$function($($argument),*),
            Stream::Tls(stream) => Pin::new(&mut **stream).$function($($argument),*),
        }
    };
}

impl Stream {
    /// Returns the number of bytes that the socket below TLS has accepted so far. `None` without TLS, where that is
    /// what was written.
    pub fn sent_bytes(&self) -> Option<u64> {
        let Stream::Tls(stream) = self else { return None };
        Some(stream.get_ref().0.sent)
    }

    /// Turns the later close of the socket into a reset, so that the kernel drops the bytes that it has not sent. After
    /// a normal close it would keep them for as long as the client likes.
    pub fn reset_on_close(&self) {
        match self {
            // If that fails, the socket still closes.
            Stream::Tcp(stream) => drop(SockRef::from(stream).set_linger(Some(Duration::ZERO))),
            Stream::Unix(_) => {}
            Stream::Tls(stream) => stream.get_ref().0.stream.reset_on_close(),
        }
    }

    /// Adapts the buffer of TLS to a write of `length` bytes.
    fn adapt_buffer(&mut self, length: usize) {
        if let Stream::Tls(stream) = self {
            let (below, session) = stream.get_mut();
            below.adapt_buffer(session, length);
        }
    }

    /// Returns ready once there is something to read, or the stream has ended.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_read_ready(cx),
            Stream::Unix(stream) => stream.poll_read_ready(cx),
            Stream::Tls(stream) => {
                let (below, session) = stream.get_ref();
                // If TLS wants nothing, it holds decrypted bytes, or the client has closed the session.
                if session.wants_read() { below.stream.poll_readable(cx) } else { Poll::Ready(Ok(())) }
            }
        }
    }

    /// Returns whether there is something to read. Asks the system, because the runtime may not know yet.
    pub fn has_unread_bytes(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match self {
            Stream::Tcp(stream) => SockRef::from(stream).peek(&mut byte).is_ok_and(|count| count > 0),
            Stream::Unix(stream) => SockRef::from(stream).peek(&mut byte).is_ok_and(|count| count > 0),
            Stream::Tls(stream) => {
                let (below, session) = stream.get_ref();
                !session.wants_read() || below.stream.has_unread_bytes()
            }
        }
    }

    /// Reads bytes that nobody needs. Reads below TLS, because it would be a waste to decrypt them.
    pub fn poll_discard(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tls(stream) => stream.get_mut().0.stream.poll_discard(cx, buf),
            plain => Pin::new(plain).poll_read(cx, buf),
        }
    }

    /// Writes a list of buffers. Small ones are gathered in `buffer` and written at once.
    pub fn poll_write_gathered(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        buffer: &RefCell<Vec<u8>>,
    ) -> Poll<io::Result<usize>> {
        let mut nonempty = bufs.iter().filter(|buf| !buf.is_empty());
        let (first, second) = (nonempty.next(), nonempty.next());
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        match (first, second) {
            (Some(only), None) => Pin::new(self).poll_write(cx, only),
            (Some(_), Some(_)) if length <= GATHER_MAX => {
                let mut gathered = buffer.borrow_mut();
                gathered.clear();
                bufs.iter().for_each(|buf| gathered.extend_from_slice(buf));
                Pin::new(self).poll_write(cx, &gathered)
            }
            _ => Pin::new(self).poll_write_vectored(cx, bufs),
        }
    }
}

impl TunnelIo for Stream {
    fn sent_bytes(&self) -> Option<u64> {
        Stream::sent_bytes(self)
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, poll_read, cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.adapt_buffer(buf.len());
        either!(&mut *self, poll_write, cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.adapt_buffer(bufs.iter().map(|buf| buf.len()).sum());
        either!(&mut *self, poll_write_vectored, cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = either!(&mut *self, poll_flush, cx);
        self.adapt_buffer(0);
        poll
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, poll_shutdown, cx)
    }
}

impl AsyncRead for TlsTransport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let count = self.early.len().min(buf.remaining());
            buf.put_slice(&self.early[..count]);
            self.early.drain(..count);
            if self.early.is_empty() {
                self.early = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsTransport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.count(poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.count(poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_for_large_writes_are_bounded_and_return() {
        let writes = Rc::new(LargeWrites::default());
        let held: Vec<_> = (0..LARGE_WRITES_MAX).map_while(|_| writes.acquire()).collect();
        assert_eq!(held.len(), LARGE_WRITES_MAX);
        assert!(writes.acquire().is_none());
        drop(held);
        assert_eq!(writes.free.get(), LARGE_WRITES_MAX);
    }
}
