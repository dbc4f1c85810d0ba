//! Heads of HTTP/2 frames (RFC 9113, section 4.1), and a splitter that finds them in a stream of bytes. Used for frames
//! of clients by `frames` and `head_check`, and for frames of servers by `proxy::outbound::http2::frame_guard`.

/// Length of the head of a frame, in bytes.
pub const HEAD: usize = 9;

pub const DATA: u8 = 0;
pub const SETTINGS: u8 = 4;
pub const END_STREAM: u8 = 1;
pub const PADDED: u8 = 8;

/// The most frames that a peer has earned and not sent yet: those for 250,000 pieces that it has not acknowledged.
/// About a tenth of a second of work.
pub const EARNED_MAX: u32 = 1_000_000;

/// The head of a frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    /// Length of the payload.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl FrameHead {
    /// Decodes the head at the start of `bytes`. Returns `None` if it is incomplete.
    pub fn read(bytes: &[u8]) -> Option<FrameHead> {
        let [high, middle, low, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD>()?;
        let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(usize::MAX);
        Some(FrameHead { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff })
    }

    /// Returns whether the frame is DATA that brings nothing: it is empty, has no padding, which would count for flow
    /// control, and does not end its stream. On stream 0 it would be an error.
    pub fn is_empty_data(self) -> bool {
        self.kind == DATA && self.length == 0 && self.flags & (END_STREAM | PADDED) == 0 && self.stream != 0
    }

    /// Encodes the head. Returns `None` if the length does not fit into 24 bits.
    pub fn write(self) -> Option<[u8; HEAD]> {
        let [0, high, middle, low] = u32::try_from(self.length).ok()?.to_be_bytes() else { return None };
        let [a, b, c, d] = self.stream.to_be_bytes();
        Some([high, middle, low, self.kind, self.flags, a, b, c, d])
    }
}

/// Splits a stream of bytes into frames, however it is cut into reads.
#[derive(Default)]
pub struct FrameSplitter {
    /// The head of the next frame, as far as it has arrived.
    head: [u8; HEAD],
    filled: usize,
    /// Bytes of the current payload that have not arrived.
    payload: usize,
}

impl FrameSplitter {
    /// Takes the rest of the current payload and the head of the next frame from `bytes`. The head is `None` once
    /// `bytes` is used up.
    pub fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> (&'b [u8], Option<FrameHead>) {
        let (payload, rest) = bytes.split_at(self.payload.min(bytes.len()));
        self.payload -= payload.len();
        let more = rest.len().min(HEAD - self.filled);
        self.head[self.filled..self.filled + more].copy_from_slice(&rest[..more]);
        self.filled += more;
        *bytes = &rest[more..];
        if self.filled < HEAD {
            return (payload, None);
        }
        self.filled = 0;
        let head = FrameHead::read(&self.head);
        self.payload = head.map_or(0, |head| head.length);
        (payload, head)
    }

    /// Returns the head that has begun and not ended, as far as it has arrived.
    pub fn partial_head(&self) -> &[u8] {
        &self.head[..self.filled]
    }

    /// Returns whether the head of a frame has begun and not ended.
    pub fn is_in_head(&self) -> bool {
        self.filled > 0
    }

    /// Returns whether the payload of a frame has not ended.
    pub fn is_in_payload(&self) -> bool {
        self.payload > 0
    }
}
