//! A client's stream as the HTTP/2 library sees it: whatever it reads passes `frames`, which may end it, and
//! `head_check`, which replaces malformed heads. Made by `h2`.

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
use super::frames::{Flood, Frames};
use super::head_check::{CheckedBytes, HeadCheck, MalformedHead};
use super::stream::Stream;
use super::unparsed;
use crate::http::context::Client;
use crate::http::deadline::Phase;
use crate::metrics::Cutoff;

pub struct AsFollowed {
    frames: Rc<RefCell<Frames>>,
    heads: HeadCheck,
    /// What passed the check in another form than it was read.
    checked: Bytes,
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
        let Bounds { header_timeout, keepalive_timeout, max_header_bytes, .. } = *bounds;
        let heads = HeadCheck::new(max_header_bytes);
        let reader = AsFollowed { frames, heads, checked: Bytes::new(), header_timeout, keepalive_timeout };
        ClientIo { stream, unread: start, client, reader }
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
        loop {
            let checked = &mut io.reader.checked;
            if !checked.is_empty() {
                buf.put_slice(&checked.split_to(checked.len().min(buf.remaining())));
                return Poll::Ready(Ok(()));
            }
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
            let fresh = &buf.filled()[before..];
            if fresh.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !io.follow(fresh) {
                return Poll::Ready(Err(io.end(cx)));
            }
            let AsFollowed { heads, frames, .. } = &mut io.reader;
            let report = |rule: Cutoff, head: Option<&MalformedHead>| match head {
                Some(head) => unparsed::malformed(&io.client, rule, head),
                None => io.client.local.common.metrics.http_rejected(rule).inc(),
            };
            let Ok(passed) = heads.check(fresh, report) else {
                frames.borrow_mut().end_by(Flood::Head);
                return Poll::Ready(Err(io.end(cx)));
            };
            let passed = match passed {
                CheckedBytes::First(passed) => passed,
                CheckedBytes::Replaced => 0,
            };
            if io.reader.heads.ends_connection() {
                io.client.deadline().fail();
            }
            io.reader.checked = io.reader.heads.take_passing().map(Bytes::from).unwrap_or_default();
            buf.set_filled(before + passed);
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
