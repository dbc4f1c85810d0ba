//! Checks the heads and trailers of HTTP/2 requests before the HTTP/2 library gets them: for some malformed ones the
//! library ends the whole connection, and with it the requests of other clients behind the same CDN. A malformed
//! block of fields is replaced by one for which the library resets the stream, and that adds to its table what the
//! original adds to ours. All other bytes pass unchanged. Used by `followed`.

use std::cell::RefCell;

use super::field_kind::{FieldKind, FieldRules};
use super::frames::{CONTINUATION, END_HEADERS, END_STREAM, FrameHead, HEAD, HEADERS};
use super::hpack::{HeaderField, HpackDecoder};
use super::preface::PREFACE;
use crate::metrics::Cutoff;

const PUSH_PROMISE: u8 = 5;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// What every field of priority takes: the stream it depends on, and a weight.
const PRIORITY_BYTES: usize = 5;
/// The longest payload of a frame: the gateway announces no other limit.
const PAYLOAD_MAX: usize = 16 * 1024;
/// CONTINUATION frames that a block may have in any case.
const CONTINUATIONS: usize = 5;
/// A field for which the library resets the stream: `connection: x`, never indexed.
const RESETS_STREAM: &[u8] = b"\x10\x0aconnection\x01x";
/// A block of fields for no stream, which ends the connection.
const ENDS_CONNECTION: [u8; 10] = [0, 0, 1, HEADERS, END_HEADERS, 0, 0, 0, 0, 0x80];

thread_local! {
    static ROOM: RefCell<BlockRoom> = RefCell::default();
}

/// Room for a block that is checked. Holds nothing in between.
#[derive(Default)]
struct BlockRoom {
    strings: Vec<u8>,
    head: MalformedHead,
}

/// What a malformed head asks for, as far as it says so; the other fields are of no interest.
#[derive(Debug, Default)]
pub struct MalformedHead {
    pub method: Vec<u8>,
    pub authority: Vec<u8>,
    pub path: Vec<u8>,
}

/// Is told of each malformed block: the rule that it breaks, and its head unless it has trailers.
pub trait ReportMalformed: FnMut(Cutoff, Option<&MalformedHead>) {}
impl<F: FnMut(Cutoff, Option<&MalformedHead>)> ReportMalformed for F {}

/// A head has more CONTINUATION frames than one of the permitted size needs.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyFrames;

/// How much of what was read passes as it is.
#[derive(Debug, PartialEq, Eq)]
pub enum CheckedBytes {
    First(usize),
    /// What passes is in `HeadCheck::passing`.
    Replaced,
}

/// Checks what one client sends.
pub struct HeadCheck {
    decoder: HpackDecoder,
    /// Bytes of the preface, or of the payload of a frame, that pass unseen.
    unseen: usize,
    /// The start of what cannot be judged yet: of the head of a frame, or of the frames of one block.
    held: Vec<u8>,
    /// Bytes that pass in place of what was read.
    passing: Vec<u8>,
    max_continuations: usize,
    /// The last stream that the client has opened: fields on it, or on one before it, are trailers.
    last_stream: u32,
    is_over: bool,
}

/// The frames at the start of some bytes.
enum BlockFrames {
    /// No part of a block of fields.
    None,
    /// Not whole yet.
    Partial,
    /// Whole: so many bytes.
    Whole(usize),
    /// Frames out of order.
    Broken,
}

/// What is to be done with a block.
enum BlockVerdict {
    Passes,
    Malformed(Cutoff),
    /// It cannot be decoded, or is none.
    Undecodable,
}

impl HeadCheck {
    pub fn new(max_header_bytes: usize) -> HeadCheck {
        let least = (max_header_bytes / PAYLOAD_MAX).max(1);
        HeadCheck {
            decoder: HpackDecoder::new(),
            unseen: PREFACE.len(),
            held: Vec::new(),
            passing: Vec::new(),
            max_continuations: (least + least / 4).max(CONTINUATIONS),
            last_stream: 0,
            is_over: false,
        }
    }

    /// Whether the library ends the connection for what it has got, or is about to get.
    pub fn ends_connection(&self) -> bool {
        self.is_over
    }

    /// Takes what passes to the library, before anything that is read from now on.
    pub fn take_passing(&mut self) -> Option<Vec<u8>> {
        (!self.passing.is_empty()).then(|| std::mem::take(&mut self.passing))
    }

    /// Checks the next bytes from the client.
    ///
    /// # Errors
    /// A head consists of too many frames.
    pub fn check(&mut self, fresh: &[u8], report: impl ReportMalformed) -> Result<CheckedBytes, TooManyFrames> {
        if self.held.is_empty() {
            let (passed, is_replaced) = self.scan(fresh, report)?;
            self.held.extend_from_slice(&fresh[passed..]);
            return Ok(if is_replaced { CheckedBytes::Replaced } else { CheckedBytes::First(passed) });
        }
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend_from_slice(fresh);
        let (passed, is_replaced) = self.scan(&bytes, report)?;
        if passed == 0 {
            self.held = bytes;
        } else {
            self.held = bytes[passed..].to_vec();
            if !is_replaced {
                bytes.truncate(passed);
                self.passing = bytes;
            }
        }
        Ok(CheckedBytes::Replaced)
    }

    /// Judges `bytes` as far as they are whole: up to where, and whether what passes of them is in `passing`.
    fn scan(&mut self, bytes: &[u8], mut report: impl ReportMalformed) -> Result<(usize, bool), TooManyFrames> {
        let (mut at, mut copied) = (0, None);
        loop {
            let unseen = self.unseen.min(bytes.len() - at);
            self.unseen -= unseen;
            at += unseen;
            if self.is_over {
                at = bytes.len();
            }
            let Some(head) = FrameHead::read(&bytes[at..]) else { break };
            let (length, replacement) = match self.block(head, &bytes[at..])? {
                BlockFrames::Partial => break,
                BlockFrames::None => {
                    self.unseen = HEAD + head.length;
                    continue;
                }
                BlockFrames::Broken => (bytes.len() - at, Some(self.end())),
                BlockFrames::Whole(length) => (length, self.replace(head, &bytes[at..at + length], &mut report)),
            };
            if let Some(replacement) = replacement {
                self.passing.extend_from_slice(&bytes[copied.unwrap_or(0)..at]);
                self.passing.extend_from_slice(&replacement);
                copied = Some(at + length);
            }
            at += length;
        }
        if let Some(copied) = copied {
            self.passing.extend_from_slice(&bytes[copied..at]);
        }
        Ok((at, copied.is_some()))
    }

    /// What stands at the start of `bytes`, whose first frame begins with `head`.
    fn block(&mut self, head: FrameHead, bytes: &[u8]) -> Result<BlockFrames, TooManyFrames> {
        if head.length > PAYLOAD_MAX {
            self.is_over = true;
            return Ok(BlockFrames::None);
        }
        match head.kind {
            HEADERS => {}
            CONTINUATION | PUSH_PROMISE => return Ok(BlockFrames::Broken),
            _ => return Ok(BlockFrames::None),
        }
        let (mut end, mut frame, mut count) = (0, head, 0);
        loop {
            end += HEAD + frame.length;
            let is_last = frame.flags & END_HEADERS != 0;
            if !is_last && count > self.max_continuations {
                return Err(TooManyFrames);
            }
            if end > bytes.len() {
                return Ok(BlockFrames::Partial);
            }
            if is_last {
                return Ok(BlockFrames::Whole(end));
            }
            let Some(next) = FrameHead::read(&bytes[end..]) else { return Ok(BlockFrames::Partial) };
            if next.kind != CONTINUATION || next.stream != head.stream || next.length > PAYLOAD_MAX {
                return Ok(BlockFrames::Broken);
            }
            (frame, count) = (next, count + 1);
        }
    }

    /// What takes the place of a block of fields, if it may not pass; `frames` are all that it consists of.
    fn replace(&mut self, head: FrameHead, frames: &[u8], report: &mut impl ReportMalformed) -> Option<Vec<u8>> {
        let is_trailers = head.stream <= self.last_stream;
        let verdict = ROOM.with_borrow_mut(|room| {
            let verdict = self.judge(head, frames, is_trailers, room);
            if let BlockVerdict::Malformed(rule) = verdict {
                report(rule, (!is_trailers).then_some(&room.head));
            }
            room.clear();
            verdict
        });
        self.last_stream = self.last_stream.max(head.stream);
        let replacement = match verdict {
            BlockVerdict::Passes => return None,
            BlockVerdict::Malformed(_) => self.decoder.synchronize().and_then(|mut block| {
                block.extend_from_slice(RESETS_STREAM);
                let flags = END_HEADERS | head.flags & END_STREAM;
                let head = FrameHead { length: block.len(), kind: HEADERS, flags, stream: head.stream };
                Some([&head.write()?[..], &block].concat())
            }),
            BlockVerdict::Undecodable => None,
        };
        Some(replacement.unwrap_or_else(|| self.end()))
    }

    fn end(&mut self) -> Vec<u8> {
        self.is_over = true;
        ENDS_CONNECTION.to_vec()
    }

    fn judge(&mut self, head: FrameHead, frames: &[u8], is_trailers: bool, room: &mut BlockRoom) -> BlockVerdict {
        // Only a client opens streams, those with odd numbers.
        if head.stream.is_multiple_of(2) {
            return BlockVerdict::Undecodable;
        }
        let Some((first, depends_on)) = payload(head, &frames[HEAD..HEAD + head.length]) else {
            return BlockVerdict::Undecodable;
        };
        let mut rest = &frames[HEAD + head.length..];
        let joined;
        let block = match rest.is_empty() {
            true => first,
            false => {
                let mut fragments = first.to_vec();
                while let Some(head) = FrameHead::read(rest) {
                    fragments.extend_from_slice(&rest[HEAD..HEAD + head.length]);
                    rest = &rest[HEAD + head.length..];
                }
                joined = fragments;
                &joined[..]
            }
        };
        let mut rules = FieldRules::default();
        let decoded = self.decoder.decode(block, &mut room.strings, |field| {
            room.head.note(field);
            rules.add(field.kind);
        });
        if decoded.is_err() {
            return BlockVerdict::Undecodable;
        }
        let ends_stream = head.flags & END_STREAM != 0;
        let followed = if is_trailers { rules.trailers(ends_stream) } else { rules.head(ends_stream) };
        match followed {
            Err(rule) => BlockVerdict::Malformed(rule),
            // A stream that depends on itself. The library would reset it without decoding its block.
            Ok(()) if depends_on == Some(head.stream) => BlockVerdict::Malformed(Cutoff::H2Protocol),
            Ok(()) => BlockVerdict::Passes,
        }
    }
}

/// The part of a block in the payload of a HEADERS frame, and the stream that this one depends on.
fn payload(head: FrameHead, mut payload: &[u8]) -> Option<(&[u8], Option<u32>)> {
    let mut padding = 0;
    if head.flags & PADDED != 0 {
        let (length, rest) = payload.split_first()?;
        (padding, payload) = (usize::from(*length), rest);
    }
    let mut depends_on = None;
    if head.flags & PRIORITY != 0 {
        let (priority, rest) = payload.split_first_chunk::<PRIORITY_BYTES>()?;
        let [a, b, c, d, _] = *priority;
        depends_on = Some(u32::from_be_bytes([a & 0x7f, b, c, d]));
        payload = rest;
    }
    Some((payload.get(..payload.len().checked_sub(padding)?)?, depends_on))
}

impl MalformedHead {
    /// Keeps the value of a field that says what is asked for. The head may yet turn out to be well-formed.
    fn note(&mut self, field: HeaderField<'_>) {
        let kept = match (field.kind, field.name) {
            (FieldKind::Method { .. }, _) | (FieldKind::Malformed(_), b":method") => &mut self.method,
            (FieldKind::Authority, _) | (FieldKind::Malformed(_), b":authority") => &mut self.authority,
            (FieldKind::Path, _) | (FieldKind::Malformed(_), b":path") => &mut self.path,
            _ => return,
        };
        if kept.is_empty() {
            kept.extend_from_slice(field.value);
        }
    }
}

impl BlockRoom {
    /// Empties it; what a large head needed is given back.
    fn clear(&mut self) {
        let MalformedHead { method, authority, path } = &mut self.head;
        for kept in [&mut self.strings, method, authority, path] {
            kept.clear();
            kept.shrink_to(PAYLOAD_MAX);
        }
    }
}

#[cfg(test)]
mod tests;
