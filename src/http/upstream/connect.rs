//! One connection to an upstream server: opened here, kept by `pool`, moved by `exchange`.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::upstream::{Origin, Scheme};

/// Bytes asked of the kernel at once: at first, and at most when the upstream has that many at hand.
const READ_MIN: usize = 8 * 1024;
const READ_MAX: usize = 64 * 1024;

pub struct UpstreamConnection {
    stream: TcpStream,
    /// Received and not used yet.
    pub received: BytesMut,
    /// For the next read.
    room: usize,
}

impl UpstreamConnection {
    /// Connects to a server of `origin`, and looks its name up before.
    ///
    /// # Errors
    /// What the system says.
    pub async fn open(origin: &Origin) -> io::Result<UpstreamConnection> {
        let stream = match origin.scheme {
            Scheme::Http => TcpStream::connect(&origin.authority).await?,
        };
        stream.set_nodelay(true)?;
        Ok(UpstreamConnection { stream, received: BytesMut::new(), room: READ_MIN })
    }

    /// Nothing came after the last answer, not even the end.
    pub fn is_quiet(&self) -> bool {
        let nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.received.is_empty() && self.stream.try_read(&mut [0]).is_err_and(nothing)
    }

    /// Lets go of what only a large answer needs.
    pub fn rest(&mut self) {
        if self.room > READ_MIN {
            (self.received, self.room) = (BytesMut::new(), READ_MIN);
        }
    }

    /// Receives more, 0 bytes at the end of the connection.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.received.capacity() - self.received.len() < self.room / 4 {
            self.received.reserve(self.room);
        }
        let space = self.received.capacity() - self.received.len();
        let polled = pin!(self.stream.read_buf(&mut self.received)).poll(cx);
        if let Poll::Ready(Ok(count)) = &polled
            && *count == space
        {
            self.room = (self.room * 2).min(READ_MAX);
        }
        polled
    }

    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    /// Ends this side: the upstream learns that no more comes.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.stream).poll_shutdown(cx).map(drop)
    }
}

/// What was received and not used yet comes first.
impl AsyncRead for UpstreamConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.received.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let count = self.received.len().min(buf.remaining());
        buf.put_slice(&self.received.split_to(count));
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpstreamConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
