//! What the HTTP/2 library reads from a server passes here first. The frame headers are counted: a server that sends
//! frames without use would keep a worker busy. Made by `http2` and `check`.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::upstream::connect::UpstreamConnection;
use crate::http::upstream::rate_allowance::RateAllowance;

const HEAD: usize = 9;
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
/// DATA with fewer bytes costs more to read than it brings.
const SMALL: usize = 1024;

/// Frames other than DATA, and empty DATA: at once, and per second beside those that requests earn.
const CONTROL: (u32, u32) = (10_000, 1_000);
/// What a request earns: its response, trailers, windows, a ping.
const PER_REQUEST: u32 = 16;
/// What a piece of a request body earns: the server may open the windows of stream and connection, and ping.
const PER_PIECE: u32 = 4;
/// One more for so many bytes of it.
const BYTES: usize = 1024;
/// Small DATA frames: at once, and per second beside those whose data an exchange has taken.
const SMALL_DATA: (u32, u32) = (100_000, 10_000);

/// Why the connection ended.
#[derive(Debug)]
struct FrameFlood;

impl std::fmt::Display for FrameFlood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a flood of HTTP/2 frames")
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
        Rc::new(FrameBudget { control: allowance(CONTROL), small_data: allowance(SMALL_DATA), exceeded })
    }

    /// Records a request that was sent.
    pub fn sent_request(&self) {
        self.control.borrow_mut().earn(PER_REQUEST);
    }

    /// Records a piece of a request body that was sent.
    pub fn sent_data(&self, bytes: usize) {
        self.control.borrow_mut().earn(PER_PIECE.saturating_add(u32::try_from(bytes / BYTES).unwrap_or(u32::MAX)));
    }

    /// Records data of a response that an exchange has taken.
    pub fn took_data(&self) {
        self.small_data.borrow_mut().earn(1);
    }

    /// Whether the server has sent too many.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.get()
    }

    fn spend(&self, kind: u8, flags: u8, length: usize) -> bool {
        let within = match kind {
            DATA if length >= SMALL || flags & END_STREAM != 0 => true,
            DATA if length > 0 => self.small_data.borrow_mut().spend(),
            _ => self.control.borrow_mut().spend(),
        };
        self.exceeded.set(self.exceeded.get() || !within);
        within
    }
}

/// Splits a stream of bytes into frames.
#[derive(Default)]
struct FrameSplitter {
    /// The header of a frame, as far as it has come.
    head: [u8; HEAD],
    filled: usize,
    /// Bytes of its payload that are still to come.
    payload: usize,
}

impl FrameSplitter {
    /// False when `budget` is exceeded.
    fn feed(&mut self, mut bytes: &[u8], budget: &FrameBudget) -> bool {
        loop {
            let payload = self.payload.min(bytes.len());
            self.payload -= payload;
            bytes = &bytes[payload..];
            if bytes.is_empty() {
                return true;
            }
            let more = bytes.len().min(HEAD - self.filled);
            self.head[self.filled..self.filled + more].copy_from_slice(&bytes[..more]);
            self.filled += more;
            bytes = &bytes[more..];
            if self.filled == HEAD {
                self.filled = 0;
                let [high, middle, low, kind, flags, ..] = self.head;
                self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                if !budget.spend(kind, flags, self.payload) {
                    return false;
                }
            }
        }
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
            Poll::Ready(Ok(())) if !splitter.feed(&buf.filled()[before..], budget) => {
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

    fn frame(length: usize, kind: u8, flags: u8) -> Vec<u8> {
        let mut frame = u32::try_from(length).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(HEAD + length, 0xff);
        frame
    }

    /// How many of `frame` pass at once, cut into pieces of `size`.
    fn pass(frame: &[u8], size: usize) -> usize {
        let (budget, mut splitter) = (FrameBudget::new(), FrameSplitter::default());
        let feed = |_: &usize| frame.chunks(size).all(|piece| splitter.feed(piece, &budget));
        (0..300_000).take_while(feed).count()
    }

    #[test]
    fn frames_without_use_run_out_and_bodies_do_not() {
        let control = CONTROL.0 as usize..CONTROL.0 as usize * 2;
        for kind in [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x42] {
            assert!(control.contains(&pass(&frame(4, kind, 0), 100)), "{kind}");
        }
        for size in [1, 5, 9, 10] {
            assert!(control.contains(&pass(&frame(8, 6, 0), size)), "in pieces of {size}");
        }
        assert!(control.contains(&pass(&frame(0, DATA, 0), 100)));
        let small = pass(&frame(1, DATA, 0), 100);
        assert!((SMALL_DATA.0 as usize..250_000).contains(&small), "{small}");
        assert_eq!(pass(&frame(SMALL, DATA, 0), 2000), 300_000);
    }
}
