//! Counts the frames that a server sends over HTTP/2 before the library reads them: a server that sends useless frames
//! would keep a worker busy. Removes empty DATA: the library accepts only 100 such frames in the life of a connection.
//! Used by `http2` and `health_check`.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::head::frame_head::{DATA, EARNED_MAX, END_STREAM, FrameHead, FrameSplitter, HEAD, PADDED};
use crate::proxy::outbound::http2::WINDOW;
use crate::rate::{Bucket, monotonic_ms};

/// Bytes of DATA below which a frame costs more to read than it brings.
const SMALL_DATA_BYTES: usize = 1024;
/// The longest padding of a frame, with its length.
const PADDING_MAX: usize = 256;

/// Frames other than DATA, and empty DATA: most at once, and per second in addition to those that requests earn.
const CONTROL_FRAMES: (u32, u32) = (10_000, 1_000);
/// Frames that a request earns: its response, trailers, window updates, a ping.
const PER_REQUEST: u32 = 16;
/// Frames that a piece of a request body earns: window updates of the stream and the connection, and a ping.
const PER_PIECE: u32 = 4;
/// A piece of a request body earns one more frame for this many bytes.
const BYTES_PER_FRAME: usize = 1024;
/// Small DATA frames: most at once, and per second in addition to those that were read. The others are for streams that
/// the gateway has reset.
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
    control: RefCell<Bucket>,
    small_data: RefCell<Bucket>,
    /// Requests whose response no DATA has ended.
    open_ends: Cell<u32>,
    exceeded: Cell<bool>,
    /// Small DATA frames that may be unread. If `max_unread` of them are, the connection pauses until they are joined.
    unread: Cell<usize>,
    max_unread: usize,
}

impl FrameBudget {
    /// `max_unread`: small DATA frames that may be unread.
    pub fn new(max_unread: usize) -> Rc<FrameBudget> {
        let bucket = |rate| RefCell::new(Bucket::new(rate, EARNED_MAX, monotonic_ms()));
        Rc::new(FrameBudget {
            control: bucket(CONTROL_FRAMES),
            small_data: bucket(SMALL_DATA_FRAMES),
            open_ends: Cell::new(0),
            exceeded: Cell::new(false),
            unread: Cell::new(0),
            max_unread,
        })
    }

    /// Records a request that was sent.
    pub fn record_request(&self) {
        self.control.borrow_mut().earn(PER_REQUEST);
        self.open_ends.set(self.open_ends.get().saturating_add(1));
    }

    /// Records a piece of a request body that was sent.
    pub fn record_sent_data(&self, bytes: usize) {
        self.control
            .borrow_mut()
            .earn(PER_PIECE.saturating_add(u32::try_from(bytes / BYTES_PER_FRAME).unwrap_or(u32::MAX)));
    }

    /// Records the data of a frame that was read.
    pub fn record_read_data(&self, bytes: usize) {
        self.small_data.borrow_mut().earn(1);
        if bytes < SMALL_DATA_BYTES {
            self.unread.set(self.unread.get().saturating_sub(1));
        }
    }

    /// Records that a stream was reset before its end. As many bytes as its window has may still arrive.
    pub fn record_reset(&self) {
        self.small_data.borrow_mut().earn(WINDOW / u32::try_from(SMALL_DATA_BYTES).unwrap_or(1));
    }

    /// Returns whether nothing more is received until the unread frames are joined.
    pub fn is_paused(&self) -> bool {
        self.unread.get() >= self.max_unread
    }

    /// Records that the frames of all responses are joined. Those for streams that have ended were never read.
    pub fn record_joined(&self) {
        self.unread.set(0);
    }

    /// Returns whether the server has sent too many frames.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.get()
    }

    /// Counts a frame. Returns false if it exceeds the budget.
    fn spend_frame(&self, head: FrameHead) -> bool {
        let padding = if head.flags & PADDED == 0 { 0 } else { PADDING_MAX };
        if head.kind == DATA && head.length > 0 && head.length < SMALL_DATA_BYTES + padding {
            self.unread.set(self.unread.get() + 1);
        }
        let within = match head.kind {
            DATA if head.length >= SMALL_DATA_BYTES || self.ends_response(head) => true,
            DATA if head.length > 0 => self.small_data.borrow_mut().take_at(monotonic_ms),
            _ => self.control.borrow_mut().take_at(monotonic_ms),
        };
        self.exceeded.set(self.exceeded.get() || !within);
        within
    }
}

impl FrameBudget {
    /// Returns whether the frame ends a response, which it can do once for each request. Later ones are for streams
    /// that have ended, and the library ignores them without a bound.
    fn ends_response(&self, head: FrameHead) -> bool {
        let rest = self.open_ends.get().checked_sub(1).filter(|_| head.flags & END_STREAM != 0);
        self.open_ends.set(rest.unwrap_or(self.open_ends.get()));
        rest.is_some()
    }
}

/// A connection whose frames are counted.
pub struct GuardedConnection<C> {
    connection: C,
    frames: FrameFilter,
}

impl<C> GuardedConnection<C> {
    pub fn new(connection: C, budget: Rc<FrameBudget>) -> GuardedConnection<C> {
        GuardedConnection { connection, frames: FrameFilter { splitter: FrameSplitter::default(), held: 0, budget } }
    }
}

/// Counts frames, and removes empty DATA. It brings nothing, so it does no harm on a stream that has ended either.
struct FrameFilter {
    splitter: FrameSplitter,
    /// Bytes of an incomplete head that are held back: the last ones of `splitter.partial_head`.
    held: usize,
    budget: Rc<FrameBudget>,
}

impl FrameFilter {
    /// Returns the bytes that precede the next ones of the connection.
    fn held_bytes(&self) -> &[u8] {
        let partial = self.splitter.partial_head();
        &partial[partial.len() - self.held..]
    }

    /// Counts the frames in `bytes`, which begin with the bytes that were held back, and removes empty DATA. Returns
    /// the length of what remains, without an incomplete head at the end, which is held back.
    ///
    /// # Errors
    /// The frames exceed the budget.
    fn filter(&mut self, bytes: &mut [u8]) -> Result<usize, FrameFlood> {
        let mut rest = &bytes[self.held..];
        let mut ranges = Vec::new();
        while let (_, Some(head)) = self.splitter.next(&mut rest) {
            if !self.budget.spend_frame(head) {
                return Err(FrameFlood);
            }
            let end = bytes.len() - rest.len();
            // A head of which the library has a part stays.
            if head.is_empty_data() && end >= HEAD {
                ranges.push(end - HEAD..end);
            }
        }
        let partial = self.splitter.partial_head().len();
        self.held = if partial <= bytes.len() { partial } else { 0 };
        let mut kept = ranges.first().map_or(bytes.len(), |first| first.start);
        for (index, head) in ranges.iter().enumerate() {
            let next = ranges.get(index + 1).map_or(bytes.len(), |next| next.start);
            bytes.copy_within(head.end..next, kept);
            kept += next - head.end;
        }
        Ok(kept - self.held)
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for GuardedConnection<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let GuardedConnection { connection, frames } = &mut *self;
        if frames.budget.is_paused() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            let (before, held) = (buf.filled().len(), frames.held_bytes());
            let room = buf.remaining();
            buf.put_slice(&held[..held.len().min(room)]);
            if frames.held > 0 && room <= frames.held {
                frames.held -= room;
                return Poll::Ready(Ok(()));
            }
            let start = buf.filled().len();
            let poll = Pin::new(&mut *connection).poll_read(cx, buf);
            if !matches!(poll, Poll::Ready(Ok(()))) {
                buf.set_filled(before);
            }
            ready!(poll)?;
            if buf.filled().len() == start {
                // The end of the connection, perhaps within a head.
                frames.held = 0;
                return Poll::Ready(Ok(()));
            }
            let length = frames.filter(&mut buf.filled_mut()[before..]).map_err(io::Error::other)?;
            buf.set_filled(before + length);
            if length > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for GuardedConnection<C> {
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
    use std::collections::VecDeque;

    use super::*;

    fn frame(length: usize, kind: u8, flags: u8) -> Vec<u8> {
        let mut frame = u32::try_from(length).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(HEAD + length, 0xff);
        frame
    }

    fn filter() -> FrameFilter {
        GuardedConnection::new((), FrameBudget::new(usize::MAX)).frames
    }

    /// How many of `frame` pass at once, cut into pieces of `size`.
    fn pass(frame: &[u8], size: usize) -> usize {
        let mut filter = filter();
        let mut feed = |piece: &[u8]| {
            let mut bytes = [filter.held_bytes(), piece].concat();
            filter.filter(&mut bytes).is_ok()
        };
        (0..300_000).take_while(|_| frame.chunks(size).all(&mut feed)).count()
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
        assert!(control.contains(&pass(&frame(0, DATA, END_STREAM), 100)));
        let small_ends = pass(&frame(2, DATA, END_STREAM | PADDED), 100);
        assert!((SMALL_DATA_FRAMES.0 as usize..250_000).contains(&small_ends), "{small_ends}");
    }

    #[test]
    fn each_response_can_be_ended_once_for_nothing() {
        for end in [frame(0, DATA, END_STREAM), frame(1, DATA, END_STREAM)] {
            let mut filter = filter();
            for _ in 0..300_000 {
                filter.budget.record_request();
                assert!(filter.filter(&mut end.clone()).is_ok());
            }
        }
    }

    #[test]
    fn small_frames_are_unread_until_they_are_read_or_joined() {
        let count = |frame: &[u8]| {
            let mut filter = filter();
            filter.filter(&mut frame.to_vec()).unwrap();
            filter.budget
        };
        // A padded frame has 256 bytes less in the worst case.
        for (frame, unread) in [
            (frame(1, DATA, 0), 1),
            (frame(1, DATA, END_STREAM), 1),
            (frame(1023, DATA, 0), 1),
            (frame(1024, DATA, 0), 0),
            (frame(1279, DATA, PADDED), 1),
            (frame(1280, DATA, PADDED), 0),
            (frame(0, DATA, 0), 0),
            (frame(1, 1, 0), 0),
        ] {
            assert_eq!(count(&frame).unread.get(), unread, "{:?}", &frame[..HEAD]);
        }
        let budget = count(&frame(1, DATA, 0).repeat(7));
        budget.record_read_data(1023);
        budget.record_read_data(1024);
        assert_eq!(budget.unread.get(), 6);
        budget.record_joined();
        assert_eq!(budget.unread.get(), 0);
    }

    /// A connection that returns one piece for each read, and is not ready before each.
    struct Pieces {
        pieces: VecDeque<Vec<u8>>,
        is_ready: bool,
    }

    impl AsyncRead for Pieces {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.is_ready = !self.is_ready;
            if self.is_ready {
                return Poll::Pending;
            }
            if let Some(mut piece) = self.pieces.pop_front() {
                let rest = piece.split_off(piece.len().min(buf.remaining()));
                buf.put_slice(&piece);
                if !rest.is_empty() {
                    self.pieces.push_front(rest);
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    /// Returns what the library reads in all if `sent` arrives in `pieces` and its buffers have the sizes of `rooms`.
    fn receive(pieces: impl Iterator<Item = Vec<u8>>, rooms: &[usize]) -> Vec<u8> {
        let pieces = Pieces { pieces: pieces.collect(), is_ready: false };
        let mut connection = GuardedConnection::new(pieces, FrameBudget::new(usize::MAX));
        let mut received = Vec::new();
        for room in rooms.iter().cycle() {
            let mut bytes = vec![0; *room];
            let mut buf = ReadBuf::new(&mut bytes);
            match Pin::new(&mut connection).poll_read(&mut Context::from_waker(std::task::Waker::noop()), &mut buf) {
                Poll::Pending => assert!(buf.filled().is_empty()),
                Poll::Ready(read) => {
                    read.unwrap();
                    if buf.filled().is_empty() {
                        break;
                    }
                    received.extend_from_slice(buf.filled());
                }
            }
        }
        received
    }

    #[test]
    fn empty_data_is_removed_wherever_reads_end() {
        let empty = frame(0, DATA, 0);
        let kept = [
            frame(3, DATA, 0),
            frame(0, DATA, END_STREAM),
            // Padding counts for flow control, and its length is missing in the second.
            frame(1, DATA, PADDED),
            frame(0, DATA, PADDED),
            frame(0, 4, 0),
            // On stream 0.
            vec![0; HEAD],
            frame(20, DATA, 0),
        ];
        for count in [1, 3] {
            let sent: Vec<u8> = kept.iter().flat_map(|frame| [empty.repeat(count), frame.clone()].concat()).collect();
            let end = [empty.clone(), empty[..4].to_vec()].concat();
            let sent = [sent, end].concat();
            let expected = [kept.concat(), empty[..4].to_vec()].concat();
            for cut in 0..sent.len() {
                let pieces = [sent[..cut].to_vec(), sent[cut..].to_vec()].into_iter().filter(|piece| !piece.is_empty());
                assert_eq!(receive(pieces, &[1000]), expected, "cut at {cut}");
            }
            for size in 1..30 {
                assert_eq!(receive(sent.chunks(size).map(<[u8]>::to_vec), &[1000]), expected, "in pieces of {size}");
                assert_eq!(receive(sent.chunks(size).map(<[u8]>::to_vec), &[9, 30]), expected, "in pieces of {size}");
            }
        }
    }

    /// A buffer may have no room for the bytes that were held back. The next one gets them, and the rest of the frame.
    #[test]
    fn no_byte_is_lost_in_small_buffers() {
        let kept = [frame(3, DATA, 0), frame(0, DATA, END_STREAM), frame(20, DATA, 0)].concat();
        for room in 1..9 {
            for size in 1..30 {
                assert_eq!(receive(kept.chunks(size).map(<[u8]>::to_vec), &[room]), kept, "{room}, {size}");
            }
        }
        let sent = [frame(0, DATA, 0), kept.clone()].concat();
        for size in 1..9 {
            let received = receive(sent.chunks(size).map(<[u8]>::to_vec), &[size]);
            assert!(received == sent || received == kept, "{size}: {received:?}");
        }
    }
}
