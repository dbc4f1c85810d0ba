//! Checks the heads and trailers of HTTP/2 requests before the library gets them. For some malformed ones the library
//! ends the whole connection, and with it the requests of other clients behind the same CDN. This check replaces a
//! malformed block of headers by one for which the library resets the stream, and which adds the same entries to the
//! library's table as the original adds to the table here. If the path of a request has characters that the library
//! refuses, the check encodes them. From then on it writes all blocks of the connection anew, as literals, and of each
//! no more than the library needs to see that the block is too large. Headers on a stream that the client has closed
//! end the connection. The check also removes empty DATA, of which the library accepts few. All other bytes pass
//! unchanged.
//!
//! Input: the bytes of a client. Output: the bytes for the library, and reports of malformed blocks.
//! `tests.rs` compares this decoder with the library's on random input.

pub(crate) mod open_streams;

#[cfg(test)]
mod tests;

use std::cell::RefCell;

use crate::ends::End;
use crate::proxy::head::field_kind::{FieldKind, FieldRules};
use crate::proxy::head::frame_head::{DATA, END_STREAM, FrameHead, HEAD, PADDED};
use crate::proxy::head::http2_head::RAW_BYTES;
use crate::proxy::head::raw_target;
use crate::proxy::head::reject::find_raw_target_fault;
use crate::proxy::server::http2::frames::{CONTINUATION, END_HEADERS, HEADERS, RST_STREAM};
use crate::proxy::server::http2::head_check::open_streams::OpenStreams;
use crate::proxy::server::http2::hpack::{FIELD_OVERHEAD, HeaderField, HpackDecoder, write_literal};
use crate::proxy::server::preface::PREFACE;

const PUSH_PROMISE: u8 = 5;
const PRIORITY: u8 = 0x20;
/// Length of the priority in HEADERS: the stream that it depends on, and a weight.
const PRIORITY_BYTES: usize = 5;
/// The longest payload of a frame, which is the protocol's default: the gateway announces no other limit.
const PAYLOAD_MAX: usize = 16 * 1024;
/// CONTINUATION frames that a block may have, however small `max_header_bytes` is.
const CONTINUATIONS: usize = 5;
/// A header for which the library resets the stream: `connection: x`, never indexed.
const RESETS_STREAM: &[u8] = b"\x10\x0aconnection\x01x";
/// A HEADERS frame without a stream, for which the library ends the connection.
const ENDS_CONNECTION: [u8; 10] = [0, 0, 1, HEADERS, END_HEADERS, 0, 0, 0, 0, 0x80];

thread_local! {
    static ROOM: RefCell<BlockBuffers> = RefCell::default();
}

/// Buffers for the block that is being checked, shared by all connections of the thread. Empty in between.
#[derive(Default)]
struct BlockBuffers {
    strings: Vec<u8>,
    head: MalformedHead,
    /// The block as the library gets it, if it is written anew.
    literals: Vec<u8>,
}

/// The request line of a malformed head, for the access log. Missing parts are empty.
#[derive(Debug, Default)]
pub struct MalformedHead {
    pub method: Vec<u8>,
    pub authority: Vec<u8>,
    pub path: Vec<u8>,
    pub scheme: Vec<u8>,
    pub protocol: Vec<u8>,
}

/// Called for each malformed block, with the rule that it breaks, and its head unless it has trailers.
pub trait ReportMalformed: FnMut(End, Option<&MalformedHead>) {}
impl<F: FnMut(End, Option<&MalformedHead>)> ReportMalformed for F {}

/// A head has more CONTINUATION frames than one of the permitted size needs.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyFrames;

/// How many of the bytes that were read pass unchanged.
#[derive(Debug, PartialEq, Eq)]
pub enum CheckedBytes {
    /// Passes this many of the first bytes, and holds the others back.
    First(usize),
    /// No byte passes. The bytes that pass in their place are in `HeadCheck::passing`.
    Replaced,
}

/// Checks what one client sends.
pub struct HeadCheck {
    decoder: HpackDecoder,
    /// Bytes that pass unchecked: the rest of the preface, or of a frame without headers.
    unseen: usize,
    /// The beginning of a frame head, or of the frames of one block, that cannot be judged yet.
    held: Vec<u8>,
    /// Bytes that pass instead of those that were read.
    passing: Vec<u8>,
    max_continuations: usize,
    /// Largest list of headers that the library accepts.
    max_list: usize,
    /// The last stream that the client has opened. Headers on it, or on one before it, are trailers.
    last_stream: u32,
    open: OpenStreams,
    /// The library ends the connection, and further bytes do not matter.
    is_over: bool,
    /// All blocks are written anew: the library's table differs from that of the client.
    writes_literals: bool,
}

/// The frames at the beginning of some bytes.
enum BlockFrames {
    /// The first frame is not part of a block of headers.
    None,
    /// A block that is not complete yet.
    Partial,
    /// A complete block with this number of bytes.
    Whole(usize),
    /// Frames in an order that is not allowed.
    Broken,
}

/// How a block is handled.
enum BlockVerdict {
    Passes,
    /// The head breaks this rule, and is replaced.
    Malformed(End),
    /// The head cannot be decoded, so the connection ends.
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
            max_list: max_header_bytes,
            last_stream: 0,
            open: OpenStreams::default(),
            is_over: false,
            writes_literals: false,
        }
    }

    /// Returns whether the library ends the connection for bytes that have passed.
    pub fn ends_connection(&self) -> bool {
        self.is_over
    }

    /// Takes the bytes that the library reads next, before any that are read from now on.
    pub fn take_passing(&mut self) -> Option<Vec<u8>> {
        (!self.passing.is_empty()).then(|| std::mem::take(&mut self.passing))
    }

    /// Checks the next bytes from the client.
    ///
    /// # Errors
    /// A head consists of too many frames.
    pub fn check(&mut self, fresh: &[u8], report: impl ReportMalformed) -> Result<CheckedBytes, TooManyFrames> {
        if self.held.is_empty() {
            let (passed, is_replaced) = self.check_blocks(fresh, report)?;
            self.held.extend_from_slice(&fresh[passed..]);
            return Ok(if is_replaced { CheckedBytes::Replaced } else { CheckedBytes::First(passed) });
        }
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend_from_slice(fresh);
        let (passed, is_replaced) = self.check_blocks(&bytes, report)?;
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

    /// Judges complete blocks in `bytes`. Returns how many bytes were judged, and whether those that pass are in
    /// `passing`.
    fn check_blocks(&mut self, bytes: &[u8], mut report: impl ReportMalformed) -> Result<(usize, bool), TooManyFrames> {
        let (mut at, mut copied) = (0, None);
        loop {
            let unseen = self.unseen.min(bytes.len() - at);
            self.unseen -= unseen;
            at += unseen;
            if self.is_over {
                at = bytes.len();
            }
            let Some(head) = FrameHead::read(&bytes[at..]) else { break };
            let (length, replacement) = match self.find_block(head, &bytes[at..])? {
                BlockFrames::Partial => break,
                BlockFrames::None if self.is_useless(head) => (HEAD, Some(Vec::new())),
                BlockFrames::None => {
                    if head.kind == RST_STREAM || (head.kind == DATA && head.flags & END_STREAM != 0) {
                        self.open.end(head.stream);
                    }
                    self.unseen = HEAD + head.length;
                    continue;
                }
                BlockFrames::Broken => (bytes.len() - at, Some(self.end_connection())),
                BlockFrames::Whole(length) => (length, self.replacement(head, &bytes[at..at + length], &mut report)),
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

    /// Returns whether the frame is empty DATA, which the library need not see: it would end the connection after 100
    /// of them in its whole life, and `frames` bounds them by time. On a stream that was never opened, the library gets
    /// it, because that is an error of the connection. On a stream that has ended it makes no difference.
    fn is_useless(&self, head: FrameHead) -> bool {
        head.is_empty_data() && head.stream <= self.last_stream && !head.stream.is_multiple_of(2)
    }

    /// Finds the block at the beginning of `bytes`, whose first frame begins with `head`.
    fn find_block(&mut self, head: FrameHead, bytes: &[u8]) -> Result<BlockFrames, TooManyFrames> {
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

    /// Returns the replacement of a block that must not pass. `frames` are all frames of the block.
    fn replacement(&mut self, head: FrameHead, frames: &[u8], report: &mut impl ReportMalformed) -> Option<Vec<u8>> {
        let is_trailers = head.stream <= self.last_stream;
        if is_trailers && self.open.is_closed(head.stream) {
            // An error of the connection (RFC 9113, sections 5.1 and 5.1.1), or one of the stream that may be treated
            // as one. The replacement of a malformed head would hide it from the library.
            return Some(self.end_connection());
        }
        match (is_trailers, head.flags & END_STREAM != 0) {
            (false, false) => self.open.open(head.stream),
            (_, true) => self.open.end(head.stream),
            (true, false) => {}
        }
        let (verdict, written) = ROOM.with_borrow_mut(|room| {
            let verdict = self.judge_block(head, frames, is_trailers, room);
            if let BlockVerdict::Malformed(rule) = verdict {
                report(rule, (!is_trailers).then_some(&room.head));
            }
            let is_written = self.writes_literals && matches!(verdict, BlockVerdict::Passes);
            let written = is_written.then(|| write_block(head, &room.literals));
            room.clear();
            (verdict, written)
        });
        self.last_stream = self.last_stream.max(head.stream);
        let replacement = match verdict {
            BlockVerdict::Passes => written?,
            BlockVerdict::Malformed(_) => self.synchronizing_block().and_then(|mut block| {
                block.extend_from_slice(RESETS_STREAM);
                let flags = END_HEADERS | head.flags & END_STREAM;
                let head = FrameHead { length: block.len(), kind: HEADERS, flags, stream: head.stream };
                Some([&head.write()?[..], &block].concat())
            }),
            BlockVerdict::Undecodable => None,
        };
        Some(replacement.unwrap_or_else(|| self.end_connection()))
    }

    /// Returns a block that makes the library's table equal to that of the client, unless that is no longer used.
    fn synchronizing_block(&self) -> Option<Vec<u8>> {
        if self.writes_literals { Some(Vec::new()) } else { self.decoder.synchronizing_block() }
    }

    /// Returns bytes for which the library ends the connection.
    fn end_connection(&mut self) -> Vec<u8> {
        self.is_over = true;
        ENDS_CONNECTION.to_vec()
    }

    fn judge_block(
        &mut self,
        head: FrameHead,
        frames: &[u8],
        is_trailers: bool,
        room: &mut BlockBuffers,
    ) -> BlockVerdict {
        // Streams of clients have odd numbers.
        if head.stream.is_multiple_of(2) {
            return BlockVerdict::Undecodable;
        }
        let Some((first, depends_on)) = block_fragment(head, &frames[HEAD..HEAD + head.length]) else {
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
        let (mut rules, mut list_size, mut raw_bytes) = (FieldRules::default(), 0, None);
        let (writes_literals, max_list) = (&mut self.writes_literals, self.max_list);
        let BlockBuffers { strings, head: request_line, literals } = room;
        let decoded = self.decoder.decode(block, strings, |field| {
            request_line.record(field);
            if field.kind == FieldKind::RawPath {
                raw_bytes = raw_bytes.or(find_raw_target_fault(field.value));
                if !*writes_literals {
                    *writes_literals = true;
                    request_line.write_without_path(literals);
                }
            }
            // A few bytes can represent thousands. If the list is too large, the library gets just enough of it to
            // refuse it.
            if *writes_literals && list_size < max_list {
                write_field(field, literals);
            }
            list_size += field.name.len() + field.value.len() + FIELD_OVERHEAD;
            rules.add(field.kind);
        });
        if decoded.is_err() {
            return BlockVerdict::Undecodable;
        }
        if let Some(fault) = raw_bytes
            && list_size < max_list
        {
            write_literal(literals, RAW_BYTES.as_str().as_bytes(), fault.label().as_bytes());
        }
        let ends_stream = head.flags & END_STREAM != 0;
        let followed = if is_trailers { rules.check_trailers(ends_stream) } else { rules.check_head(ends_stream) };
        match followed {
            Err(rule) => BlockVerdict::Malformed(rule),
            // A stream that depends on itself. The library would reset it without decoding its block.
            Ok(()) if depends_on == Some(head.stream) => BlockVerdict::Malformed(End::H2Protocol),
            Ok(()) => BlockVerdict::Passes,
        }
    }
}

/// Writes a header as a literal, with an encoded path.
fn write_field(field: HeaderField<'_>, literals: &mut Vec<u8>) {
    let encoded = match field.kind {
        FieldKind::RawPath => raw_target::encode_target(field.value),
        _ => None,
    };
    write_literal(literals, field.name, encoded.as_deref().unwrap_or(field.value));
}

/// Writes the frames of a block instead of those that begin with `head`.
fn write_block(head: FrameHead, mut block: &[u8]) -> Option<Vec<u8>> {
    let mut frames = Vec::with_capacity(HEAD + block.len());
    let (mut kind, mut flags) = (HEADERS, head.flags & END_STREAM);
    loop {
        let (fragment, rest) = block.split_at(block.len().min(PAYLOAD_MAX));
        flags |= if rest.is_empty() { END_HEADERS } else { 0 };
        frames.extend(FrameHead { length: fragment.len(), kind, flags, stream: head.stream }.write()?);
        frames.extend(fragment);
        if rest.is_empty() {
            return Some(frames);
        }
        (kind, flags, block) = (CONTINUATION, 0, rest);
    }
}

/// Returns the part of a block in the payload of a HEADERS frame, and the stream that the frame's stream depends on.
fn block_fragment(head: FrameHead, mut payload: &[u8]) -> Option<(&[u8], Option<u32>)> {
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
    /// Records a header that belongs to the request line. The head may still turn out to be well-formed.
    pub fn record(&mut self, field: HeaderField<'_>) {
        let kept = match (field.kind, field.name) {
            (FieldKind::Method { .. }, _) | (FieldKind::Malformed(_), b":method") => &mut self.method,
            (FieldKind::Authority, _) | (FieldKind::Malformed(_), b":authority") => &mut self.authority,
            (FieldKind::Path | FieldKind::RawPath, _) | (FieldKind::Malformed(_), b":path") => &mut self.path,
            (FieldKind::Scheme, _) => &mut self.scheme,
            (FieldKind::Protocol, _) => &mut self.protocol,
            _ => return,
        };
        if kept.is_empty() {
            kept.extend_from_slice(field.value);
        }
    }
}

impl MalformedHead {
    /// Writes the pseudo-headers that came before the path. Other headers come after it.
    fn write_without_path(&self, literals: &mut Vec<u8>) {
        let MalformedHead { method, authority, scheme, protocol, path: _ } = self;
        for (name, value) in
            [(":method", method), (":scheme", scheme), (":authority", authority), (":protocol", protocol)]
        {
            if !value.is_empty() {
                write_literal(literals, name.as_bytes(), value);
            }
        }
    }
}

impl BlockBuffers {
    /// Empties the buffers, and frees the memory that a large head needed.
    fn clear(&mut self) {
        let MalformedHead { method, authority, path, scheme, protocol } = &mut self.head;
        for kept in [&mut self.strings, method, authority, path, scheme, protocol, &mut self.literals] {
            kept.clear();
            kept.shrink_to(PAYLOAD_MAX);
        }
    }
}
