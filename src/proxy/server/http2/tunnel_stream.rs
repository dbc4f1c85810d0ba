//! An HTTP/2 stream that has become a tunnel (extended CONNECT, RFC 8441).

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::connection::upgrade::TunnelIo;
use crate::proxy::server::http2::frames::FrameMonitor;

/// Counts the bytes that are written, because each allows the client some WINDOW_UPDATE frames.
pub struct TunnelStream {
    pub stream: TokioIo<Upgraded>,
    pub frames: Rc<RefCell<FrameMonitor>>,
}

impl TunnelIo for TunnelStream {
    /// Returns `None`, because the library accepts no more than the client's window allows.
    fn sent_bytes(&self) -> Option<u64> {
        None
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.frames.borrow_mut().record_piece(count);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
