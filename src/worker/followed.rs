//! A client's stream as the HTTP/2 parser sees it: whatever it reads passes `frames`, which may end it.
//! Made by `h2`.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::bounds::Bounds;
use super::client_io::{ClientIo, ReadAs};
use super::frames::Frames;
use super::stream::Stream;
use crate::http::context::Client;
use crate::http::deadline::Phase;

pub struct AsFollowed {
    frames: Rc<RefCell<Frames>>,
    header_timeout: Duration,
    keepalive_timeout: Duration,
}

pub type Followed = ClientIo<AsFollowed>;

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
        ClientIo { stream, unread: start, client, reader: AsFollowed { frames, header_timeout, keepalive_timeout } }
    }

    /// False when the client sends too much of a kind.
    fn follow(&self, bytes: &[u8]) -> bool {
        let deadline = self.client.deadline();
        let mut frames = self.reader.frames.borrow_mut();
        let calm = frames.feed(bytes, deadline.now_ms());
        if frames.has_begun() && deadline.phase() == Phase::Head {
            deadline.arm(Phase::Idle, self.reader.keepalive_timeout);
        }
        if frames.has_moved_on() {
            deadline.head_whole();
        }
        calm
    }

    /// The parser wants more than has come.
    fn wait(&self) {
        match self.reader.frames.borrow().is_inside_head() {
            true => self.client.deadline().head_begun(self.reader.header_timeout),
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

impl ReadAs for AsFollowed {
    fn poll_read(io: &mut Followed, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if !io.take_unread(buf) {
            match Pin::new(&mut io.stream).poll_read(cx, buf) {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => {
                    io.wait();
                    return Poll::Pending;
                }
                failed => return failed,
            }
        }
        match io.follow(&buf.filled()[before..]) {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(io.end(cx))),
        }
    }
}
