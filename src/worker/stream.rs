//! The bytes of an accepted connection, whatever carries them. Made by `listener`.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ProtocolVersion;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A head and a body of up to this size leave in one plain write: the kernel takes longer to look at a
/// list of buffers than it takes to copy them.
const GATHER_MAX: usize = 16 * 1024;

pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Over one of the others, its handshake done.
    Tls(Box<TlsStream<UnderTls>>),
}

/// What carries TLS. It counts what leaves, of which TLS has taken some long before.
pub struct UnderTls {
    stream: Stream,
    sent: u64,
}

impl UnderTls {
    pub fn new(stream: Stream) -> UnderTls {
        UnderTls { stream, sent: 0 }
    }

    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.sent += bytes as u64;
        }
        written
    }
}

/// Calls the same function of whichever it is.
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
    /// The version of TLS, as logs name it.
    pub fn tls_version(&self) -> Option<&'static str> {
        let Stream::Tls(stream) = self else { return None };
        match stream.get_ref().1.protocol_version()? {
            ProtocolVersion::TLSv1_2 => Some("TLSv1.2"),
            ProtocolVersion::TLSv1_3 => Some("TLSv1.3"),
            _ => None,
        }
    }

    /// Bytes that the socket has taken so far, where what is written goes through TLS, which keeps some of it until
    /// there is room.
    pub fn sent(&self) -> Option<u64> {
        let Stream::Tls(stream) = self else { return None };
        Some(stream.get_ref().0.sent)
    }

    /// Its end is a reset: what it has not taken by then is dropped, and not kept for as long as the client likes.
    pub fn forget_unsent(&self) {
        match self {
            // A socket that cannot do so still closes.
            Stream::Tcp(stream) => drop(SockRef::from(stream).set_linger(Some(Duration::ZERO))),
            Stream::Unix(_) => {}
            Stream::Tls(stream) => stream.get_ref().0.stream.forget_unsent(),
        }
    }

    /// Ready once there is something to read, be it the end.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_read_ready(cx),
            Stream::Unix(stream) => stream.poll_read_ready(cx),
            Stream::Tls(stream) => {
                let (below, session) = stream.get_ref();
                // What came with the bytes read last is decrypted already, or the client has said farewell.
                if session.wants_read() { below.stream.poll_readable(cx) } else { Poll::Ready(Ok(())) }
            }
        }
    }

    /// Whether something waits to be read, as the system says at this moment: the runtime may not know yet.
    pub fn has_bytes(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match self {
            Stream::Tcp(stream) => SockRef::from(stream).peek(&mut byte).is_ok_and(|count| count > 0),
            Stream::Unix(stream) => SockRef::from(stream).peek(&mut byte).is_ok_and(|count| count > 0),
            Stream::Tls(stream) => {
                let (below, session) = stream.get_ref();
                !session.wants_read() || below.stream.has_bytes()
            }
        }
    }

    /// Writes a list of buffers: what is small in one plain write, gathered in `room`.
    pub fn poll_write_gathered(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        room: &RefCell<Vec<u8>>,
    ) -> Poll<io::Result<usize>> {
        let mut filled = bufs.iter().filter(|buf| !buf.is_empty());
        let (first, second) = (filled.next(), filled.next());
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        match (first, second) {
            (Some(only), None) => Pin::new(self).poll_write(cx, only),
            (Some(_), Some(_)) if length <= GATHER_MAX => {
                let mut gathered = room.borrow_mut();
                gathered.clear();
                bufs.iter().for_each(|buf| gathered.extend_from_slice(buf));
                Pin::new(self).poll_write(cx, &gathered)
            }
            _ => Pin::new(self).poll_write_vectored(cx, bufs),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, poll_read, cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(&mut *self, poll_write, cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
        either!(&mut *self, poll_flush, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, poll_shutdown, cx)
    }
}

impl AsyncRead for UnderTls {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for UnderTls {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.count(written)
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
