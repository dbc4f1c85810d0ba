//! Counts the frames that a server sends over HTTP/2 before the library reads them: a server that sends useless frames
//! would keep a worker busy. Used by `http2` and `health_check`.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::connection::http2::frame_head::{DATA, END_STREAM, FrameHead, FrameSplitter};
use crate::proxy::outbound::dial::UpstreamConnection;
use crate::proxy::outbound::rate_allowance::RateAllowance;

/// Bytes of DATA below which a frame costs more to read than it brings.
const SMALL_DATA_BYTES: usize = 1024;

/// Frames other than DATA, and empty DATA: most at once, and per second in addition to those that requests earn.
const CONTROL_FRAMES: (u32, u32) = (10_000, 1_000);
/// Frames that a request earns: its response, trailers, window updates, a ping.
const PER_REQUEST: u32 = 16;
/// Frames that a piece of a request body earns: window updates of the stream and the connection, and a ping.
const PER_PIECE: u32 = 4;
/// A piece of a request body earns one more frame for this many bytes.
const BYTES_PER_FRAME: usize = 1024;
/// Small DATA frames: most at once, and per second in addition to those whose data an exchange has read.
const SMALL_DATA_FRAMES: (u32, u32) = (100_000, 10_000);

/// The error that ends the connection.
#[derive(Debug)]
struct FrameFlood;

impl std::fmt::Display for FrameFlood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("too many useless HTTP/2 frames")
    }
}

impl std::error::Error for FrameFlood {}

/// How many frames of each kind a server may still send on one connection.
pub struct FrameBudget {
    control: RefCell<RateAllowance>,
    small_data: RefCell<RateAllowance>,
    exceeded: Cell<bool>,
}

impl FrameBudget {
    pub fn new() -> Rc<FrameBudget> {
        let allowance = |(most, per_second)| RefCell::new(RateAllowance::new(most, per_second));
        let exceeded = Cell::new(false);
        Rc::new(FrameBudget { control: allowance(CONTROL_FRAMES), small_data: allowance(SMALL_DATA_FRAMES), exceeded })
    }

    /// Records a request that was sent.
    pub fn record_request(&self) {
        self.control.borrow_mut().earn(PER_REQUEST);
    }

    /// Records a piece of a request body that was sent.
    pub fn record_sent_data(&self, bytes: usize) {
        self.control
            .borrow_mut()
            .earn(PER_PIECE.saturating_add(u32::try_from(bytes / BYTES_PER_FRAME).unwrap_or(u32::MAX)));
    }

    /// Records data of a response that an exchange has read.
    pub fn record_read_data(&self) {
        self.small_data.borrow_mut().earn(1);
    }

    /// Returns whether the server has sent too many frames.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.get()
    }

    /// Counts the frames whose heads are in `bytes`, the next bytes of the connection. Returns false if they exceed the
    /// budget.
    fn count_frames(&self, splitter: &mut FrameSplitter, mut bytes: &[u8]) -> bool {
        while let (_, Some(head)) = splitter.next(&mut bytes) {
            if !self.spend_frame(head) {
                return false;
            }
        }
        true
    }

    fn spend_frame(&self, head: FrameHead) -> bool {
        let within = match head.kind {
            DATA if head.length >= SMALL_DATA_BYTES || head.flags & END_STREAM != 0 => true,
            DATA if head.length > 0 => self.small_data.borrow_mut().spend(),
            _ => self.control.borrow_mut().spend(),
        };
        self.exceeded.set(self.exceeded.get() || !within);
        within
    }
}

/// A connection whose frames are counted.
pub struct GuardedConnection {
    connection: UpstreamConnection,
    splitter: FrameSplitter,
    budget: Rc<FrameBudget>,
}

impl GuardedConnection {
    pub fn new(connection: UpstreamConnection, budget: Rc<FrameBudget>) -> GuardedConnection {
        GuardedConnection { connection, splitter: FrameSplitter::default(), budget }
    }
}

impl AsyncRead for GuardedConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.connection).poll_read(cx, buf);
        let GuardedConnection { splitter, budget, .. } = &mut *self;
        match polled {
            Poll::Ready(Ok(())) if !budget.count_frames(splitter, &buf.filled()[before..]) => {
                Poll::Ready(Err(io::Error::other(FrameFlood)))
            }
            polled => polled,
        }
    }
}

impl AsyncWrite for GuardedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::connection::http2::frame_head::HEAD;

    fn frame(length: usize, kind: u8, flags: u8) -> Vec<u8> {
        let mut frame = u32::try_from(length).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(HEAD + length, 0xff);
        frame
    }

    /// How many of `frame` pass at once, cut into pieces of `size`.
    fn pass(frame: &[u8], size: usize) -> usize {
        let (budget, mut splitter) = (FrameBudget::new(), FrameSplitter::default());
        let feed = |_: &usize| frame.chunks(size).all(|piece| budget.count_frames(&mut splitter, piece));
        (0..300_000).take_while(feed).count()
    }

    #[test]
    fn frames_without_use_run_out_and_bodies_do_not() {
        let control = CONTROL_FRAMES.0 as usize..CONTROL_FRAMES.0 as usize * 2;
        for kind in [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x42] {
            assert!(control.contains(&pass(&frame(4, kind, 0), 100)), "{kind}");
        }
        for size in [1, 5, 9, 10] {
            assert!(control.contains(&pass(&frame(8, 6, 0), size)), "in pieces of {size}");
        }
        assert!(control.contains(&pass(&frame(0, DATA, 0), 100)));
        let small = pass(&frame(1, DATA, 0), 100);
        assert!((SMALL_DATA_FRAMES.0 as usize..250_000).contains(&small), "{small}");
        assert_eq!(pass(&frame(SMALL_DATA_BYTES, DATA, 0), 2000), 300_000);
    }
}
