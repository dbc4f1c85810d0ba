//! A client's stream as the HTTP/2 parser sees it: whatever it reads passes `frames`, which may end it.
//! Made by `h2`.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Bounds;
use super::frames::Frames;
use super::stream::Stream;
use crate::http::context::Client;
use crate::http::deadline::Phase;

pub struct Followed {
    stream: Stream,
    /// Read before the protocol was known.
    start: Bytes,
    client: Rc<Client>,
    frames: Rc<RefCell<Frames>>,
    header_timeout: Duration,
    keepalive_timeout: Duration,
}

/// GOAWAY with ENHANCE_YOUR_CALM, whatever streams there are.
const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11];

impl Followed {
    pub fn new(
        stream: Stream,
        start: Bytes,
        client: Rc<Client>,
        frames: Rc<RefCell<Frames>>,
        bounds: &Bounds,
    ) -> Followed {
        let Bounds { header_timeout, keepalive_timeout, .. } = *bounds;
        Followed { stream, start, client, frames, header_timeout, keepalive_timeout }
    }

    /// False when the client sends too much of a kind.
    fn follow(&self, bytes: &[u8]) -> bool {
        let deadline = self.client.deadline();
        let mut frames = self.frames.borrow_mut();
        let calm = frames.feed(bytes, deadline.now_ms());
        if frames.has_begun() && deadline.phase() == Phase::Head {
            deadline.arm(Phase::Idle, self.keepalive_timeout);
        }
        if frames.has_moved_on() {
            deadline.head_whole();
        }
        calm
    }

    /// The parser wants more than has come.
    fn wait(&self) {
        match self.frames.borrow().is_inside_head() {
            true => self.client.deadline().head_begun(self.header_timeout),
            false => self.client.deadline().head_whole(),
        }
    }

    /// Tells the client why, where that cannot fall into the middle of something else.
    fn end(&mut self, cx: &mut Context<'_>) -> io::Error {
        if self.client.deadline().is_flushed() {
            let _ = Pin::new(&mut self.stream).poll_write(cx, &GOAWAY);
        }
        io::Error::other("the client sends too many frames that only cost")
    }
}

impl AsyncRead for Followed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.start.is_empty() {
            match Pin::new(&mut self.stream).poll_read(cx, buf) {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => {
                    self.wait();
                    return Poll::Pending;
                }
                failed => return failed,
            }
        } else {
            let length = self.start.len().min(buf.remaining());
            buf.put_slice(&self.start[..length]);
            self.start.advance(length);
        }
        match self.follow(&buf.filled()[before..]) {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(self.end(cx))),
        }
    }
}

impl AsyncWrite for Followed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.client.deadline().flushed(false);
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.client.deadline().flushed(false);
        let Followed { stream, client, .. } = &mut *self;
        stream.poll_write_gathered(cx, bufs, &client.local.gathered)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked for only once all has been written.
        self.client.deadline().flushed(true);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
