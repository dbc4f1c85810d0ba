//! Splits a stream into frames (RFC 9114, section 7), however it is cut into pieces. Keeps no payload, whatever length a
//! frame claims.

use bytes::{Buf, Bytes};

use crate::proxy::server::http3::varint;

pub const DATA: u64 = 0x0;
pub const HEADERS: u64 = 0x1;
pub const CANCEL_PUSH: u64 = 0x3;
pub const SETTINGS: u64 = 0x4;
pub const PUSH_PROMISE: u64 = 0x5;
pub const GOAWAY: u64 = 0x7;
pub const MAX_PUSH_ID: u64 = 0xd;
/// Priorities of requests and pushes (RFC 9218), which only the control stream may carry.
pub const PRIORITY_UPDATE_OF_REQUEST: u64 = 0xf0700;
pub const PRIORITY_UPDATE_OF_PUSH: u64 = 0xf0701;
/// Frames of HTTP/2 that HTTP/3 has not (RFC 9114, section 7.2.8).
pub const OF_HTTP2: [u64; 4] = [0x2, 0x6, 0x8, 0x9];

/// The most bytes of a type and a length.
const HEAD_MAX: usize = 2 * varint::LONGEST;

/// What follows in a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum FrameItem {
    Begin { kind: u64, length: u64 },
    Payload(Bytes),
    End,
}

/// Splits one stream.
#[derive(Default)]
pub struct ItemSplitter {
    head: [u8; HEAD_MAX],
    filled: usize,
    /// Bytes of the current payload that have not arrived. `None` between two frames.
    left: Option<u64>,
}

impl ItemSplitter {
    /// Takes the next item from `bytes`. `None`: they are used up.
    pub fn next(&mut self, bytes: &mut Bytes) -> Option<FrameItem> {
        match self.left {
            None => self.next_head(bytes),
            Some(0) => {
                self.left = None;
                Some(FrameItem::End)
            }
            Some(_) if bytes.is_empty() => None,
            Some(left) => {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                self.left = Some(left - count as u64);
                Some(FrameItem::Payload(bytes.split_to(count)))
            }
        }
    }

    fn next_head(&mut self, bytes: &mut Bytes) -> Option<FrameItem> {
        while let Some(byte) = bytes.first().copied() {
            self.head[self.filled] = byte;
            self.filled += 1;
            bytes.advance(1);
            let head = &self.head[..self.filled];
            if let Some((kind, read)) = varint::read(head)
                && let Some((length, _)) = varint::read(&head[read..])
            {
                self.filled = 0;
                self.left = Some(length);
                return Some(FrameItem::Begin { kind, length });
            }
        }
        None
    }

    /// Returns whether the stream may end here.
    pub fn is_between_frames(&self) -> bool {
        self.left.is_none() && self.filled == 0
    }
}

/// Appends the type and length of a frame.
pub fn write_head(kind: u64, length: usize, out: &mut Vec<u8>) {
    varint::write(kind, out);
    varint::write(length as u64, out);
}

/// Encodes the type and length of a frame.
pub fn encode_head(kind: u64, length: usize) -> Bytes {
    let mut head = Vec::new();
    write_head(kind, length, &mut head);
    head.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_in_any_pieces_and_no_length_is_believed() {
        let mut bytes = Vec::new();
        write_head(DATA, 3, &mut bytes);
        bytes.extend(b"abc");
        write_head(0x21, 0, &mut bytes);
        varint::write(0x1f * 7 + 0x21, &mut bytes);
        varint::write(varint::MAX, &mut bytes);
        bytes.extend([7; 40]);
        for size in [1, 2, 3, 5, 60] {
            let (mut splitter, mut heads, mut payload) = (ItemSplitter::default(), Vec::new(), 0);
            for piece in bytes.chunks(size) {
                let mut piece = Bytes::copy_from_slice(piece);
                while let Some(item) = splitter.next(&mut piece) {
                    match item {
                        FrameItem::Begin { kind, length } => heads.push((kind, length)),
                        FrameItem::Payload(bytes) => payload += bytes.len(),
                        FrameItem::End => assert!(splitter.is_between_frames()),
                    }
                }
            }
            assert_eq!(heads, [(DATA, 3), (0x21, 0), (0x1f * 7 + 0x21, varint::MAX)], "{size}");
            assert_eq!((payload, splitter.is_between_frames()), (43, false));
        }
    }
}
