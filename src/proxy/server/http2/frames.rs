//! Reads the headers of an HTTP/2 client's frames in addition to the library. Finds floods of frames that cost work
//! without any effect, and tracks whether a head is incomplete.

use crate::ends::End;
use crate::proxy::head::frame_head::{DATA, EARNED_MAX, END_STREAM, FrameHead, FrameSplitter, SETTINGS};
use crate::proxy::server::preface::PREFACE;
use crate::rate::Bucket;

/// Reads the frames of one connection.
pub struct FrameMonitor {
    /// Bytes of the preface that have not arrived yet.
    preface: usize,
    splitter: FrameSplitter,
    /// Type of the current frame.
    kind: u8,
    /// The client's SETTINGS_INITIAL_WINDOW_SIZE.
    window: u32,
    /// The setting that is being read, of which `read` bytes have arrived.
    setting: [u8; SETTING_LENGTH],
    read: usize,
    /// A block of headers has begun that no frame has ended.
    open_block: bool,
    /// The highest stream that a head has opened, and how many opened streams have not been ended by DATA.
    last_stream: u32,
    open_ends: u32,
    /// A frame has begun outside of any block since the last call of `has_moved_on`.
    moved_on: bool,
    /// The flood by which the connection ends.
    flood: Option<Flood>,
    /// Allowance for frames that only cost.
    idle: Bucket,
    /// Allowance for requests that are reset.
    resets: Bucket,
}

/// An abuse that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Frames that cost work and bring nothing: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA, DATA that ends a
    /// stream once more, and heads that become no request.
    Idle,
    /// Requests that are reset before they are answered.
    Resets,
    /// A head in more frames than one of the permitted size needs.
    Head,
}

impl Flood {
    /// Returns the reason that is counted for the connection.
    pub fn reason(self) -> End {
        match self {
            Flood::Idle => End::H2Frames,
            Flood::Resets => End::H2Resets,
            Flood::Head => End::H2Abuse,
        }
    }
}

/// Length of one setting in the payload of SETTINGS.
const SETTING_LENGTH: usize = 6;
/// The default of SETTINGS_INITIAL_WINDOW_SIZE, and its number.
const DEFAULT_WINDOW: u32 = 65_535;
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];

pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const CONTINUATION: u8 = 9;
pub const END_HEADERS: u8 = 4;

/// Frames that only cost: the most at once, and how many are earned a second. Responses earn more.
const IDLE: (u32, u32) = (2000, 100);
/// Requests that are reset: the most at once, and how many are earned a second. A browser that leaves a page resets all
/// of its requests.
const RESETS: (u32, u32) = (200, 10);
/// Frames earned by each piece of a response. A client may open the windows of the stream and of the connection for it.
const PER_PIECE: u32 = 4;
/// Bytes of a piece that earn one more frame.
const BYTES: usize = 1024;
/// Frames earned by a response: the head of its request, windows, a priority and a ping.
const PER_ANSWER: u32 = 8;

impl FrameMonitor {
    /// Makes a reader for a new connection. `now_ms`: the worker's coarse clock.
    pub fn new(now_ms: u64) -> FrameMonitor {
        FrameMonitor {
            preface: PREFACE.len(),
            splitter: FrameSplitter::default(),
            kind: 0,
            window: DEFAULT_WINDOW,
            setting: [0; SETTING_LENGTH],
            read: 0,
            open_block: false,
            last_stream: 0,
            open_ends: 0,
            moved_on: false,
            flood: None,
            idle: Bucket::new(IDLE, EARNED_MAX, now_ms),
            resets: Bucket::new(RESETS, EARNED_MAX, now_ms),
        }
    }

    /// Returns whether the client has sent all of its preface, so that frames follow.
    pub fn has_begun(&self) -> bool {
        self.preface == 0
    }

    /// Returns whether the head of a frame or of a request is incomplete. The payload of DATA does not count, because
    /// request bodies have a timer of their own.
    pub fn is_inside_head(&self) -> bool {
        self.splitter.is_in_head() || self.open_block || (self.splitter.is_in_payload() && self.kind != DATA)
    }

    /// Returns whether a head that was incomplete at the last call has ended since.
    pub fn has_moved_on(&mut self) -> bool {
        std::mem::take(&mut self.moved_on)
    }

    /// Ends the connection by a flood that `head_check` has found.
    pub fn set_flood(&mut self, flood: Flood) {
        self.flood.get_or_insert(flood);
    }

    /// Returns the flood by which the connection ends.
    pub fn flood(&self) -> Option<Flood> {
        self.flood
    }

    /// Bytes of a response that the client accepts before it opens the stream's window, as announced last.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Records a response.
    pub fn record_response(&mut self) {
        self.idle.earn(PER_ANSWER);
        self.resets.earn(1);
    }

    /// Records a piece of a response.
    pub fn record_piece(&mut self, bytes: usize) {
        self.idle.earn(PER_PIECE.saturating_add(u32::try_from(bytes / BYTES).unwrap_or(u32::MAX)));
    }

    /// Reads bytes from the client. Returns false if they are a flood.
    pub fn feed(&mut self, bytes: &[u8], now_ms: u64) -> bool {
        self.idle.fill(now_ms);
        self.resets.fill(now_ms);
        self.flood = self.flood.or(self.read_frames(bytes).err());
        self.flood.is_none()
    }

    fn read_frames(&mut self, mut bytes: &[u8]) -> Result<(), Flood> {
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        bytes = &bytes[preface..];
        loop {
            let (payload, head) = self.splitter.next(&mut bytes);
            if self.kind == SETTINGS {
                self.read_settings(payload);
            }
            match head {
                Some(head) => self.begin_frame(head)?,
                None => return Ok(()),
            }
        }
    }

    /// Reads a part of the payload of SETTINGS.
    fn read_settings(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.setting[self.read] = *byte;
            self.read = (self.read + 1) % SETTING_LENGTH;
            if let (0, [high, low, value @ ..]) = (self.read, self.setting)
                && [high, low] == INITIAL_WINDOW_SIZE
            {
                self.window = u32::from_be_bytes(value);
            }
        }
    }

    /// Counts a frame, whose head is complete.
    fn begin_frame(&mut self, head: FrameHead) -> Result<(), Flood> {
        let FrameHead { length, kind, flags, stream } = head;
        self.kind = kind;
        self.read = 0;
        self.moved_on |= !self.open_block;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.open_block = flags & END_HEADERS == 0;
        }
        let ends = flags & END_STREAM != 0;
        if kind == HEADERS && stream > self.last_stream {
            self.last_stream = stream;
            self.open_ends += u32::from(!ends);
        }
        if kind == DATA && self.is_free_data(length, ends) {
            return Ok(());
        }
        if kind == RST_STREAM && !self.resets.take() {
            return Err(Flood::Resets);
        }
        if self.idle.take() { Ok(()) } else { Err(Flood::Idle) }
    }

    /// Returns whether DATA counts as a part of a body, whatever its size: the library bounds small pieces that nobody
    /// reads. It does not bound those that end their stream, which a request can do once.
    fn is_free_data(&mut self, length: usize, ends: bool) -> bool {
        if !ends {
            return length > 0;
        }
        let rest = self.open_ends.checked_sub(1);
        self.open_ends = rest.unwrap_or(0);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::head::frame_head::{HEAD, PADDED};

    fn frame(length: usize, kind: u8, flags: u8) -> Vec<u8> {
        let length = u32::try_from(length).unwrap();
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(HEAD + length as usize, 0xff);
        frame
    }

    fn begun() -> FrameMonitor {
        let mut frames = FrameMonitor::new(0);
        assert!(frames.feed(PREFACE, 0));
        assert!(frames.has_begun());
        frames
    }

    /// Counts how many of `frame` pass at once.
    fn pass(frames: &mut FrameMonitor, frame: &[u8], now_ms: u64) -> (u32, Option<Flood>) {
        for count in 0..10_000 {
            frames.flood = None;
            if !frames.feed(frame, now_ms) {
                // Nobody reads on behind a flood.
                frames.splitter = FrameSplitter::default();
                return (count, frames.flood());
            }
        }
        (10_000, None)
    }

    #[test]
    fn frames_are_parsed_in_any_pieces() {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(18, 4, 0));
        bytes.extend(frame(300, HEADERS, 0));
        bytes.extend(frame(7, CONTINUATION, END_HEADERS));
        bytes.extend(frame(0, DATA, 0));
        for size in [1, 2, 8, 9, 10, 30, 1000] {
            let mut frames = FrameMonitor::new(0);
            for piece in bytes.chunks(size) {
                assert!(frames.feed(piece, 0));
            }
            let left = (0..IDLE.0).take_while(|_| frames.idle.take()).count();
            assert_eq!((left, frames.is_inside_head()), (IDLE.0 as usize - 4, false), "{size}");
        }
    }

    #[test]
    fn a_head_is_open_until_its_block_and_its_frame_have_ended() {
        for (bytes, open) in [
            (frame(5, HEADERS, 0), true),
            (frame(5, HEADERS, END_HEADERS), false),
            (frame(5, HEADERS, END_HEADERS)[..HEAD + 4].to_vec(), true),
            (frame(8, 6, 0)[..3].to_vec(), true),
            (frame(8, DATA, 0)[..HEAD + 2].to_vec(), false),
        ] {
            let mut frames = begun();
            assert!(frames.feed(&bytes, 0));
            assert_eq!(frames.is_inside_head(), open, "{bytes:?}");
        }
    }

    #[test]
    fn frames_that_only_cost_run_out_and_bodies_do_not() {
        for kind in [1, 2, 4, 5, 6, 7, 8, CONTINUATION, 0x42] {
            assert_eq!(pass(&mut begun(), &frame(4, kind, END_HEADERS), 0), (IDLE.0, Some(Flood::Idle)), "{kind}");
        }
        assert_eq!(pass(&mut begun(), &frame(0, DATA, 0), 0), (IDLE.0, Some(Flood::Idle)));
        assert_eq!(pass(&mut begun(), &frame(1, DATA, 0), 0).1, None);
        assert_eq!(pass(&mut begun(), &frame(4, RST_STREAM, 0), 0), (RESETS.0, Some(Flood::Resets)));
    }

    #[test]
    fn a_request_can_be_ended_once_for_nothing() {
        // Empty, padded, of one byte, and of the usual size.
        for end in [
            frame(0, DATA, END_STREAM),
            frame(4, DATA, END_STREAM | PADDED),
            frame(1, DATA, END_STREAM),
            frame(16_384, DATA, END_STREAM),
        ] {
            let flood = (IDLE.0, Some(Flood::Idle));
            assert_eq!(pass(&mut begun(), &end, 0), flood, "nothing is open");
            let mut frames = begun();
            // The second head has the trailers of stream 1. The request on stream 3 has no body.
            for (stream, flags) in [(1, 0), (1, END_STREAM), (3, END_STREAM), (5, 0)] {
                let mut head = frame(0, HEADERS, END_HEADERS | flags);
                head[HEAD - 1] = stream;
                assert!(frames.feed(&head, 0));
            }
            assert_eq!(pass(&mut frames, &end, 0), (IDLE.0 - 4 + 2, Some(Flood::Idle)));
        }
    }

    #[test]
    fn frames_that_acknowledge_a_burst_are_earned_by_it() {
        let mut frames = begun();
        for _ in 0..100_000 {
            frames.record_piece(1);
            frames.record_response();
        }
        let window_update = frame(4, 8, 0);
        for _ in 0..100_000 * PER_PIECE {
            assert!(frames.feed(&window_update, 0));
        }
        for _ in 0..10_000 {
            assert!(frames.feed(&frame(4, RST_STREAM, 0), 0));
        }
        frames.record_piece(usize::MAX);
        let all = (0..2 * EARNED_MAX).take_while(|_| frames.feed(&window_update, 0)).count();
        assert!(all <= EARNED_MAX as usize, "{all}");
    }

    #[test]
    fn time_and_answers_earn_new_ones() {
        let mut frames = begun();
        let (ping, reset) = (frame(8, 6, 0), frame(4, RST_STREAM, 0));
        pass(&mut frames, &ping, 0);
        assert_eq!(pass(&mut frames, &ping, 500).0, IDLE.1 / 2);
        frames.record_piece(10 * BYTES);
        assert_eq!(pass(&mut frames, &ping, 500).0, PER_PIECE + 10);
        frames.record_response();
        assert_eq!(pass(&mut frames, &ping, 500).0, PER_ANSWER);
        let mut frames = begun();
        pass(&mut frames, &reset, 0);
        frames.record_response();
        assert_eq!(pass(&mut frames, &reset, 0).0, 1);
        assert_eq!(pass(&mut frames, &reset, 1000).0, RESETS.1);
        assert_eq!(pass(&mut frames, &ping, 1_000_000).0, IDLE.0 + PER_ANSWER);
    }
}
