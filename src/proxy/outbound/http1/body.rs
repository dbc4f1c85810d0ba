//! Decodes the body of a response from the received bytes, piece by piece. Chunked encoding is parsed strictly:
//! anything that another parser could read differently is a fault.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::proxy::outbound::http1::{ProtocolFault, TRAILER_COUNT_MAX};

/// Most bytes of the extensions of one chunk. They are ignored.
pub const EXTENSIONS_MAX: usize = 16 * 1024;
/// Bytes of extensions that each chunk earns, up to [`EXTENSIONS_MAX`]. A body of any length may have that many in each
/// chunk, such as signatures.
const EXTENSIONS_PER_CHUNK: usize = 256;
/// Most bytes of the trailers.
pub const TRAILERS_MAX: usize = 16 * 1024;
/// Most hexadecimal digits of a chunk size.
const DIGITS_MAX: usize = 16;

/// How the body ends, and how much of it is left.
#[derive(Debug)]
pub enum BodyDecoder {
    /// The body has a known length, of which this many bytes are left.
    Length(u64),
    Chunked(ChunkedDecoder),
    /// The body ends with the connection.
    Close,
}

/// A piece of a body.
#[derive(Debug, PartialEq)]
pub enum BodyPiece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    /// Nothing, until more bytes have been received.
    More,
}

/// State of a chunked body.
#[derive(Debug)]
pub struct ChunkedDecoder {
    at: ChunkElement,
    /// Bytes of extensions that may still come before another chunk.
    extensions_left: usize,
}

/// The next element of a chunked body.
#[derive(Debug, PartialEq)]
enum ChunkElement {
    /// A size line, from its first byte.
    Size,
    /// The data of a chunk, of which this many bytes are left.
    Data(u64),
    /// The end of line after the data.
    DataEnd,
    /// Trailers, or the last end of line.
    Trailers,
    End,
}

impl BodyDecoder {
    /// Returns a decoder for a chunked body.
    pub fn new_chunked() -> BodyDecoder {
        BodyDecoder::Chunked(ChunkedDecoder { at: ChunkElement::Size, extensions_left: EXTENSIONS_MAX })
    }

    /// Returns whether the body has ended.
    pub fn is_end(&self) -> bool {
        match self {
            BodyDecoder::Length(left) => *left == 0,
            BodyDecoder::Chunked(chunked) => chunked.at == ChunkElement::End,
            BodyDecoder::Close => false,
        }
    }

    /// Returns the number of bytes that are left, if that is known.
    pub fn exact_length(&self) -> Option<u64> {
        match self {
            BodyDecoder::Length(left) => Some(*left),
            BodyDecoder::Chunked(chunked) => (chunked.at == ChunkElement::End).then_some(0),
            BodyDecoder::Close => None,
        }
    }

    /// Takes the next piece from `received`. `ended`: the connection has ended.
    ///
    /// # Errors
    /// [`ProtocolFault::Chunk`], or [`ProtocolFault::CutOff`] if the connection ended before the body.
    pub fn next_piece(&mut self, received: &mut BytesMut, ended: bool) -> Result<BodyPiece, ProtocolFault> {
        let piece = match self {
            BodyDecoder::Length(0) => BodyPiece::End,
            BodyDecoder::Length(left) => take_data(received, left),
            BodyDecoder::Chunked(chunked) => chunked.next_piece(received)?,
            BodyDecoder::Close if received.is_empty() && ended => BodyPiece::End,
            BodyDecoder::Close => take_data(received, &mut { u64::MAX }),
        };
        if piece == BodyPiece::More && ended { Err(ProtocolFault::CutOff) } else { Ok(piece) }
    }
}

/// Takes what has arrived of the next `left` bytes.
fn take_data(received: &mut BytesMut, left: &mut u64) -> BodyPiece {
    if received.is_empty() {
        return BodyPiece::More;
    }
    let count = received.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= count as u64;
    BodyPiece::Data(received.split_to(count).freeze())
}

impl ChunkedDecoder {
    fn next_piece(&mut self, received: &mut BytesMut) -> Result<BodyPiece, ProtocolFault> {
        loop {
            match &mut self.at {
                ChunkElement::Size => match self.take_size(received)? {
                    None => return Ok(BodyPiece::More),
                    Some(0) => self.at = ChunkElement::Trailers,
                    Some(size) => self.at = ChunkElement::Data(size),
                },
                ChunkElement::Data(0) => self.at = ChunkElement::DataEnd,
                ChunkElement::Data(left) => {
                    let piece = take_data(received, left);
                    // Seeing the end together with the last data saves the reader another call.
                    if *left == 0 && received.starts_with(b"\r\n0\r\n\r\n") {
                        received.advance(7);
                        self.at = ChunkElement::End;
                    }
                    return Ok(piece);
                }
                ChunkElement::DataEnd => match take_line_end(received)? {
                    false => return Ok(BodyPiece::More),
                    true => self.at = ChunkElement::Size,
                },
                ChunkElement::Trailers => {
                    let Some(trailers) = take_trailers(received)? else { return Ok(BodyPiece::More) };
                    self.at = ChunkElement::End;
                    if !trailers.is_empty() {
                        return Ok(BodyPiece::Trailers(trailers));
                    }
                }
                ChunkElement::End => return Ok(BodyPiece::End),
            }
        }
    }

    /// Takes a size line and returns the size. Returns `None` while the line is incomplete.
    fn take_size(&mut self, received: &mut BytesMut) -> Result<Option<u64>, ProtocolFault> {
        let digits = received.iter().take(DIGITS_MAX + 1).take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits > DIGITS_MAX {
            return Err(ProtocolFault::Chunk);
        }
        let Some(next) = received.get(digits) else { return Ok(None) };
        if digits == 0 || !matches!(next, b'\r' | b';' | b' ' | b'\t') {
            return Err(ProtocolFault::Chunk);
        }
        let rest = &received[digits..];
        let extension = memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        if extension > self.extensions_left || has_text_after_blanks(&rest[..extension]) {
            return Err(ProtocolFault::Chunk);
        }
        match rest.get(extension..) {
            Some([b'\r', b'\n', ..]) => {}
            Some([] | [b'\r']) => return Ok(None),
            _ => return Err(ProtocolFault::Chunk),
        }
        self.extensions_left = (self.extensions_left - extension + EXTENSIONS_PER_CHUNK).min(EXTENSIONS_MAX);
        let text = str::from_utf8(&received[..digits]).map_err(|_| ProtocolFault::Chunk)?;
        let size = u64::from_str_radix(text, 16).map_err(|_| ProtocolFault::Chunk)?;
        received.advance(digits + extension + 2);
        Ok(Some(size))
    }
}

/// Returns whether something other than blanks stands before the `;` of an extension or the end of the line.
fn has_text_after_blanks(extension: &[u8]) -> bool {
    extension.iter().find(|byte| !matches!(byte, b' ' | b'\t')).is_some_and(|byte| *byte != b';')
}

/// Takes an end of line. Returns false while it is incomplete.
fn take_line_end(received: &mut BytesMut) -> Result<bool, ProtocolFault> {
    match &received[..] {
        [b'\r', b'\n', ..] => {
            received.advance(2);
            Ok(true)
        }
        [] | [b'\r'] => Ok(false),
        _ => Err(ProtocolFault::Chunk),
    }
}

/// Takes the trailers and the empty line after them. Returns `None` while they are incomplete.
fn take_trailers(received: &mut BytesMut) -> Result<Option<HeaderMap>, ProtocolFault> {
    if matches!(received.first(), None | Some(b'\r')) {
        return Ok(take_line_end(received)?.then(HeaderMap::new));
    }
    let Some(length) = memchr::memmem::find(received, b"\r\n\r\n").map(|end| end + 4) else {
        return if received.len() > TRAILERS_MAX { Err(ProtocolFault::Chunk) } else { Ok(None) };
    };
    if length > TRAILERS_MAX || has_bare_line_feed(&received[..length]) {
        return Err(ProtocolFault::Chunk);
    }
    let mut fields = [httparse::EMPTY_HEADER; TRAILER_COUNT_MAX];
    let mut trailers = HeaderMap::new();
    match httparse::parse_headers(&received[..length], &mut fields) {
        Ok(httparse::Status::Complete((_, fields))) => {
            for field in fields {
                let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| ProtocolFault::Chunk)?;
                let value = HeaderValue::from_bytes(field.value).map_err(|_| ProtocolFault::Chunk)?;
                trailers.append(name, value);
            }
        }
        _ => return Err(ProtocolFault::Chunk),
    }
    received.advance(length);
    Ok(Some(trailers))
}

fn has_bare_line_feed(lines: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', lines).any(|place| place == 0 || lines[place - 1] != b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body of `count` chunks with extensions of `length` bytes. Returns how many chunks arrived.
    fn count_chunks(count: usize, length: usize) -> Result<usize, ProtocolFault> {
        let chunk = format!("1;{}\r\nx\r\n", "e".repeat(length - 1));
        let (mut decoder, mut arrived) = (BodyDecoder::new_chunked(), 0);
        let mut received = BytesMut::from([&chunk.repeat(count)[..], "0\r\n\r\n"].concat().as_bytes());
        loop {
            match decoder.next_piece(&mut received, true)? {
                BodyPiece::Data(data) => arrived += data.len(),
                BodyPiece::End => return Ok(arrived),
                piece => panic!("{piece:?}"),
            }
        }
    }

    #[test]
    fn extensions_are_bounded_by_chunk_and_by_the_number_of_chunks() {
        for (count, length) in [(1, EXTENSIONS_MAX), (500, 64), (100_000, EXTENSIONS_PER_CHUNK), (60, 500)] {
            assert_eq!(count_chunks(count, length), Ok(count), "{count} of {length} bytes");
        }
        for (count, length) in [(1, EXTENSIONS_MAX + 1), (1000, 2 * EXTENSIONS_PER_CHUNK), (3, EXTENSIONS_MAX / 2)] {
            assert_eq!(count_chunks(count, length), Err(ProtocolFault::Chunk), "{count} of {length} bytes");
        }
    }
}
