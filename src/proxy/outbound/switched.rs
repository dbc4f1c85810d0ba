//! A server that has switched protocols: its connection over HTTP/1.1, or the stream of an extended CONNECT (RFC 8441)
//! over HTTP/2. A tunnel reads and writes both alike.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http_body::Frame;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::outbound::http2::response_data::ResponseData;
use crate::proxy::outbound::pool::{PooledConnection, PooledStream};

/// Bytes that one write to a stream copies at most: the payload of a frame of the usual size.
const WRITE_MAX: usize = 16 * 1024;

/// The server's end of a tunnel.
pub enum SwitchedServer {
    Connection(PooledConnection),
    Stream(SwitchedStream),
}

/// An HTTP/2 stream that has become a tunnel. Dropping it resets the stream, unless both sides have ended.
pub struct SwitchedStream {
    received: Rc<RefCell<ResponseData>>,
    sender: SendStream<Bytes>,
    /// Data that were received and not read yet.
    unread: Bytes,
    has_ended: bool,
    is_shut_down: bool,
    place: PooledStream,
}

impl SwitchedStream {
    pub fn new(received: Rc<RefCell<ResponseData>>, sender: SendStream<Bytes>, place: PooledStream) -> SwitchedStream {
        SwitchedStream { received, sender, unread: Bytes::new(), has_ended: false, is_shut_down: false, place }
    }
}

impl AsyncRead for SwitchedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() && !self.has_ended {
            let frame = ready!(self.received.borrow_mut().poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.unread = data,
                // Trailers end a stream.
                Some(Ok(Err(_))) | None => self.has_ended = true,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        let count = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SwitchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_shut_down {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.sender.poll_reset(cx).is_ready() {
            // The server accepts no more data (RFC 9113, section 8.1). Data that it sent before may still be on its way
            // to the client. Reading finds its end, or the error. After that, nothing remains to be done.
            return Poll::Ready(if self.has_ended { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) });
        }
        self.sender.reserve_capacity(bytes.len().min(WRITE_MAX));
        while self.sender.capacity() == 0 {
            match ready!(self.sender.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let count = bytes.len().min(self.sender.capacity()).min(WRITE_MAX);
        self.place.connection().frames.record_sent_data(count);
        let result = self.sender.send_data(Bytes::copy_from_slice(&bytes[..count]), false);
        Poll::Ready(result.map(|()| count).map_err(io::Error::other))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::replace(&mut self.is_shut_down, true) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(self.sender.send_data(Bytes::new(), true).map_err(io::Error::other))
    }
}

impl AsyncRead for SwitchedServer {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            SwitchedServer::Connection(lease) => Pin::new(&mut *lease.connection).poll_read(cx, buf),
            SwitchedServer::Stream(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for SwitchedServer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            SwitchedServer::Connection(lease) => Pin::new(&mut *lease.connection).poll_write(cx, bytes),
            SwitchedServer::Stream(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            SwitchedServer::Connection(lease) => AsyncWrite::poll_flush(Pin::new(&mut *lease.connection), cx),
            SwitchedServer::Stream(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            SwitchedServer::Connection(lease) => Pin::new(&mut *lease.connection).poll_shutdown(cx),
            SwitchedServer::Stream(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
