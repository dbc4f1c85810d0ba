//! What a client of HTTP/2 sends, seen from outside its parser: heads of frames, no payloads. Tells frames
//! that cost work and bring nothing, and a head that does not end. Fed by the stream of `h2`.

use super::preface::PREFACE;
use crate::metrics::Cutoff;

/// Follows the frames of one connection.
pub struct Frames {
    /// Bytes of the preface that are still to come.
    preface: usize,
    /// The head of a frame, as far as it has come.
    head: [u8; HEAD],
    filled: usize,
    /// Bytes of its payload that are still to come.
    payload: usize,
    kind: u8,
    /// What the client takes of an answer before it opens its window, and the setting that is being read.
    window: u32,
    setting: [u8; SETTING],
    read: usize,
    /// A block of fields has begun that no frame has ended.
    open_block: bool,
    /// A frame has come that began outside of any block.
    moved_on: bool,
    /// What the connection ends by.
    flood: Option<Flood>,
    /// Frames that only cost, and requests taken back.
    idle: Allowance,
    resets: Allowance,
}

/// What ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Frames that ask for nothing: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA, and heads that
    /// become no request.
    Idle,
    /// Requests that are taken back before they are answered.
    Resets,
    /// A head in more frames than any permitted one needs.
    Head,
}

impl Flood {
    /// The reason under which the connection is counted.
    pub fn reason(self) -> Cutoff {
        match self {
            Flood::Idle => Cutoff::H2Frames,
            Flood::Resets => Cutoff::H2Resets,
            Flood::Head => Cutoff::H2Abuse,
        }
    }
}

pub const HEAD: usize = 9;
const SETTING: usize = 6;
/// Unless the client says otherwise, by the setting of this number.
const WINDOW: u32 = 65_535;
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];

const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The head of a frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    /// Of the payload.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl FrameHead {
    /// Reads it from the start of `bytes`; `None` when it is not all there.
    pub fn read(bytes: &[u8]) -> Option<FrameHead> {
        let [high, middle, low, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD>()?;
        let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(usize::MAX);
        Some(FrameHead { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff })
    }

    /// `None` when no frame is as long as that.
    pub fn write(self) -> Option<[u8; HEAD]> {
        let [0, high, middle, low] = u32::try_from(self.length).ok()?.to_be_bytes() else { return None };
        let [a, b, c, d] = self.stream.to_be_bytes();
        Some([high, middle, low, self.kind, self.flags, a, b, c, d])
    }
}

/// Frames that only cost: so many at once, and in the long run so many a second beside those that go
/// with answers.
const IDLE: (u32, u32) = (2000, 100);
/// Requests taken back: a browser that leaves a page takes back all it has asked for.
const RESETS: (u32, u32) = (200, 10);
/// What a client may send for each piece of an answer: each may open the windows of a stream and of the
/// connection.
const PER_PIECE: u32 = 4;
/// One more for so many bytes of it.
const BYTES: usize = 1024;
/// What goes with an answered request: its head, windows, a priority, a ping.
const PER_ANSWER: u32 = 8;

impl Frames {
    /// `now_ms`: the worker's coarse clock.
    pub fn new(now_ms: u64) -> Frames {
        Frames {
            preface: PREFACE.len(),
            head: [0; HEAD],
            filled: 0,
            payload: 0,
            kind: 0,
            window: WINDOW,
            setting: [0; SETTING],
            read: 0,
            open_block: false,
            moved_on: false,
            flood: None,
            idle: Allowance::new(IDLE, now_ms),
            resets: Allowance::new(RESETS, now_ms),
        }
    }

    /// The client has sent its preface: what follows are frames.
    pub fn has_begun(&self) -> bool {
        self.preface == 0
    }

    /// A head has begun and not ended, be it of a frame or of a request. The payload of DATA has a deadline
    /// of its own.
    pub fn is_inside_head(&self) -> bool {
        self.filled > 0 || self.open_block || (self.payload > 0 && self.kind != DATA)
    }

    /// Whether a head that was open when this was asked last has ended since.
    pub fn has_moved_on(&mut self) -> bool {
        std::mem::take(&mut self.moved_on)
    }

    /// The connection ends by a flood that was not found by the frames alone.
    pub fn end_by(&mut self, flood: Flood) {
        self.flood.get_or_insert(flood);
    }

    pub fn flood(&self) -> Option<Flood> {
        self.flood
    }

    /// What a client takes of an answer before it opens the window of its stream, as it said last.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// A request has been answered.
    pub fn answered(&mut self) {
        self.idle.earn(PER_ANSWER);
        self.resets.earn(1);
    }

    /// So many bytes of an answer are on their way.
    pub fn sent(&mut self, bytes: usize) {
        self.idle.earn(PER_PIECE.saturating_add(u32::try_from(bytes / BYTES).unwrap_or(u32::MAX)));
    }

    /// Bytes as they came from the client. False when they are too many of a kind.
    pub fn feed(&mut self, bytes: &[u8], now_ms: u64) -> bool {
        self.flood = self.flood.or(self.follow(bytes, now_ms).err());
        self.flood.is_none()
    }

    fn follow(&mut self, mut bytes: &[u8], now_ms: u64) -> Result<(), Flood> {
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        bytes = &bytes[preface..];
        loop {
            let payload = self.payload.min(bytes.len());
            self.payload -= payload;
            if self.kind == SETTINGS {
                self.settings(&bytes[..payload]);
            }
            bytes = &bytes[payload..];
            if bytes.is_empty() {
                return Ok(());
            }
            let more = bytes.len().min(HEAD - self.filled);
            self.head[self.filled..self.filled + more].copy_from_slice(&bytes[..more]);
            self.filled += more;
            bytes = &bytes[more..];
            if self.filled == HEAD {
                self.filled = 0;
                self.frame(now_ms)?;
            }
        }
    }

    /// A part of the payload of SETTINGS.
    fn settings(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.setting[self.read] = *byte;
            self.read = (self.read + 1) % SETTING;
            if let (0, [high, low, value @ ..]) = (self.read, self.setting)
                && [high, low] == INITIAL_WINDOW_SIZE
            {
                self.window = u32::from_be_bytes(value);
            }
        }
    }

    fn frame(&mut self, now_ms: u64) -> Result<(), Flood> {
        let Some(FrameHead { length, kind, flags, .. }) = FrameHead::read(&self.head) else { return Ok(()) };
        self.payload = length;
        self.kind = kind;
        self.read = 0;
        self.moved_on |= !self.open_block;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.open_block = flags & END_HEADERS == 0;
        }
        // What a client says of its body costs no more than that, whatever the size of its pieces.
        if kind == DATA && (length > 0 || flags & END_STREAM != 0) {
            return Ok(());
        }
        if kind == RST_STREAM && !self.resets.spend(now_ms) {
            return Err(Flood::Resets);
        }
        if self.idle.spend(now_ms) { Ok(()) } else { Err(Flood::Idle) }
    }
}

/// So many at once, earned by time and by use.
struct Allowance {
    left: u32,
    most: u32,
    per_second: u32,
    /// Up to when time has been counted.
    at_ms: u64,
}

impl Allowance {
    fn new((most, per_second): (u32, u32), now_ms: u64) -> Allowance {
        Allowance { left: most, most, per_second, at_ms: now_ms }
    }

    fn earn(&mut self, count: u32) {
        self.left = self.left.saturating_add(count).min(self.most);
    }

    fn spend(&mut self, now_ms: u64) -> bool {
        if now_ms > self.at_ms {
            let earned = (now_ms - self.at_ms).saturating_mul(u64::from(self.per_second)) / 1000;
            if earned > 0 {
                self.at_ms = now_ms;
                self.earn(u32::try_from(earned).unwrap_or(u32::MAX));
            }
        }
        let spent = self.left.checked_sub(1);
        self.left = spent.unwrap_or(0);
        spent.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize, kind: u8, flags: u8) -> Vec<u8> {
        let length = u32::try_from(length).unwrap();
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(HEAD + length as usize, 0xff);
        frame
    }

    fn begun() -> Frames {
        let mut frames = Frames::new(0);
        assert!(frames.feed(PREFACE, 0));
        assert!(frames.has_begun());
        frames
    }

    /// How many of `frame` pass at once.
    fn pass(frames: &mut Frames, frame: &[u8], now_ms: u64) -> (u32, Option<Flood>) {
        for count in 0..10_000 {
            frames.flood = None;
            if !frames.feed(frame, now_ms) {
                // Nobody reads on behind a flood.
                frames.payload = 0;
                return (count, frames.flood());
            }
        }
        (10_000, None)
    }

    #[test]
    fn frames_are_told_apart_wherever_they_are_cut() {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(18, 4, 0));
        bytes.extend(frame(300, HEADERS, 0));
        bytes.extend(frame(7, CONTINUATION, END_HEADERS));
        bytes.extend(frame(0, DATA, 0));
        for size in [1, 2, 8, 9, 10, 30, 1000] {
            let mut frames = Frames::new(0);
            for piece in bytes.chunks(size) {
                assert!(frames.feed(piece, 0));
            }
            assert_eq!((frames.idle.left, frames.is_inside_head()), (IDLE.0 - 4, false), "{size}");
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
        assert_eq!(pass(&mut begun(), &frame(0, DATA, END_STREAM), 0).1, None);
        assert_eq!(pass(&mut begun(), &frame(4, RST_STREAM, 0), 0), (RESETS.0, Some(Flood::Resets)));
    }

    #[test]
    fn time_and_answers_earn_new_ones() {
        let mut frames = begun();
        let (ping, reset) = (frame(8, 6, 0), frame(4, RST_STREAM, 0));
        pass(&mut frames, &ping, 0);
        assert_eq!(pass(&mut frames, &ping, 500).0, IDLE.1 / 2);
        frames.sent(10 * BYTES);
        assert_eq!(pass(&mut frames, &ping, 500).0, PER_PIECE + 10);
        frames.answered();
        assert_eq!(pass(&mut frames, &ping, 500).0, PER_ANSWER);
        let mut frames = begun();
        pass(&mut frames, &reset, 0);
        frames.answered();
        assert_eq!(pass(&mut frames, &reset, 0).0, 1);
        assert_eq!(pass(&mut frames, &reset, 1000).0, RESETS.1);
        assert_eq!(pass(&mut frames, &ping, 1_000_000).0, IDLE.0);
    }
}
