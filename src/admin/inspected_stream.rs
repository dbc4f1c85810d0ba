//! Stream of an admin connection as its parser reads it. The inspector of the data plane sees every byte and stops the
//! parser if a body is not framed exactly. Created by `serve`.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::head::inspector::Inspector;

/// Violations that the parser would silently repair, per request.
type SharedInspector = Rc<RefCell<Inspector>>;

pub struct InspectedStream<S> {
    stream: S,
    inspector: SharedInspector,
    /// The body was cut off; nothing more reaches the parser.
    is_broken: bool,
}

impl<S> InspectedStream<S> {
    pub fn new(stream: S, inspector: SharedInspector) -> InspectedStream<S> {
        InspectedStream { stream, inspector, is_broken: false }
    }

    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for InspectedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_broken {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        let (read, passed) = (read.len(), self.inspector.borrow_mut().feed(read));
        buf.set_filled(before + passed);
        self.is_broken = passed < read;
        match passed {
            0 if self.is_broken => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for InspectedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
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
