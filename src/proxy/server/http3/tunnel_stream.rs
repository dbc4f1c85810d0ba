//! An HTTP/3 stream that has become a tunnel (extended CONNECT, RFC 9220).

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use quinn_proto::StreamId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::connection::upgrade::TunnelIo;
use crate::proxy::server::http3::error::{CONNECT_ERROR, FRAME_UNEXPECTED};
use crate::proxy::server::http3::frame;
use crate::proxy::server::http3::request_reader::RequestItem;
use crate::proxy::server::http3::request_streams::StreamItem;
use crate::proxy::server::http3::shared::Http3Connection;

/// Carries the bytes of a tunnel in DATA frames. Dropping it resets the response, unless that has been shut down.
pub struct Http3Tunnel {
    connection: Rc<Http3Connection>,
    id: StreamId,
    /// Bytes that have come and were not read.
    unread: Bytes,
    /// The head of the current frame, as far as it is not written, and how many bytes follow it in the frame.
    frame_head: Bytes,
    frame_left: usize,
    is_shut_down: bool,
}

impl Http3Tunnel {
    pub fn new(connection: Rc<Http3Connection>, id: StreamId) -> Http3Tunnel {
        let (unread, frame_head) = (Bytes::new(), Bytes::new());
        Http3Tunnel { connection, id, unread, frame_head, frame_left: 0, is_shut_down: false }
    }
}

impl TunnelIo for Http3Tunnel {
    /// Returns `None`, because the library accepts no more than the client's window allows and `SEND_WINDOW` has room for.
    fn sent_bytes(&self) -> Option<u64> {
        None
    }
}

impl AsyncRead for Http3Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(self.connection.poll_item(self.id, cx)) {
                Ok(StreamItem::Item(RequestItem::Data(data))) => self.unread = data,
                Ok(StreamItem::Item(RequestItem::Nothing) | StreamItem::Blocked) => {}
                Ok(StreamItem::Finished) => return Poll::Ready(Ok(())),
                Ok(StreamItem::Reset) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                // A tunnel has DATA only (RFC 9114, section 4.4).
                Ok(StreamItem::Item(RequestItem::Head(_) | RequestItem::Trailers(_) | RequestItem::TooLarge)) => {
                    self.connection.fail(FRAME_UNEXPECTED.into());
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                Err(fatal) => {
                    self.connection.fail(fatal);
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
            }
        }
        let count = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http3Tunnel {
    /// The task of the request is woken when there is room: it has registered itself, before it polls the tunnel.
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.frame_left == 0 {
            self.frame_left = buf.len();
            self.frame_head = frame::encode_head(frame::DATA, buf.len());
        }
        let this = &mut *self;
        while !this.frame_head.is_empty() {
            let head = std::slice::from_mut(&mut this.frame_head);
            ready!(this.connection.poll_write(this.id, head)).map_err(io::Error::other)?;
        }
        let piece = &buf[..buf.len().min(this.frame_left)];
        let count = ready!(this.connection.poll_write_slice(this.id, piece)).map_err(io::Error::other)?;
        this.frame_left -= count;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the response. A response that ends inside a frame is reset when the stream is dropped.
    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.frame_left == 0 && !self.is_shut_down {
            self.is_shut_down = true;
            self.connection.finish(self.id);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Http3Tunnel {
    fn drop(&mut self) {
        if !self.is_shut_down {
            self.connection.reset(self.id, CONNECT_ERROR);
        }
    }
}
