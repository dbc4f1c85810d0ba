//! The body of an answer, taken out of the bytes received piece by piece. Chunks are read by the letter:
//! what another reader could take in another way is a fault.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{FIELDS_MAX, ProtocolFault};

/// Bytes of chunk extensions in one body; nobody reads them.
pub const EXTENSIONS_MAX: usize = 16 * 1024;
/// Bytes of the trailers.
pub const TRAILERS_MAX: usize = 16 * 1024;
/// Hexadecimal digits of a chunk size.
const DIGITS_MAX: usize = 16;

/// How far a body is.
#[derive(Debug)]
pub enum Decoder {
    /// So many bytes are left.
    Length(u64),
    Chunked(Chunked),
    /// It ends with the connection.
    Close,
}

/// A piece of a body.
#[derive(Debug, PartialEq)]
pub enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    /// Nothing until more has been received.
    More,
}

/// Chunks, each a size line and its data.
#[derive(Debug)]
pub struct Chunked {
    at: Expected,
    /// Extension bytes skipped so far.
    skipped: usize,
}

/// What comes next.
#[derive(Debug, PartialEq)]
enum Expected {
    /// A size line, from its first byte.
    Size,
    /// So many bytes of data.
    Data(u64),
    /// The line end after the data.
    DataEnd,
    /// Trailers, or the last line end.
    Trailers,
    End,
}

impl Decoder {
    pub fn chunked() -> Decoder {
        Decoder::Chunked(Chunked { at: Expected::Size, skipped: 0 })
    }

    /// Nothing of the body is left.
    pub fn is_end(&self) -> bool {
        match self {
            Decoder::Length(left) => *left == 0,
            Decoder::Chunked(chunked) => chunked.at == Expected::End,
            Decoder::Close => false,
        }
    }

    /// The length of what is left, if that is known.
    pub fn exact(&self) -> Option<u64> {
        match self {
            Decoder::Length(left) => Some(*left),
            Decoder::Chunked(chunked) => (chunked.at == Expected::End).then_some(0),
            Decoder::Close => None,
        }
    }

    /// Takes the next piece from `received`; `ended`: the connection has, so no more comes.
    ///
    /// # Errors
    /// [`ProtocolFault::Chunk`], and [`ProtocolFault::Cut`] where the connection ended before the body.
    pub fn next(&mut self, received: &mut BytesMut, ended: bool) -> Result<Piece, ProtocolFault> {
        let piece = match self {
            Decoder::Length(0) => Piece::End,
            Decoder::Length(left) => take(received, left),
            Decoder::Chunked(chunked) => chunked.next(received)?,
            Decoder::Close if received.is_empty() && ended => Piece::End,
            Decoder::Close => take(received, &mut { u64::MAX }),
        };
        if piece == Piece::More && ended { Err(ProtocolFault::Cut) } else { Ok(piece) }
    }
}

/// What is there of the next `left` bytes.
fn take(received: &mut BytesMut, left: &mut u64) -> Piece {
    if received.is_empty() {
        return Piece::More;
    }
    let count = received.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= count as u64;
    Piece::Data(received.split_to(count).freeze())
}

impl Chunked {
    fn next(&mut self, received: &mut BytesMut) -> Result<Piece, ProtocolFault> {
        loop {
            match &mut self.at {
                Expected::Size => match self.size(received)? {
                    None => return Ok(Piece::More),
                    Some(0) => self.at = Expected::Trailers,
                    Some(size) => self.at = Expected::Data(size),
                },
                Expected::Data(0) => self.at = Expected::DataEnd,
                Expected::Data(left) => {
                    let piece = take(received, left);
                    // Seeing the end with the last data spares the reader a turn.
                    if *left == 0 && received.starts_with(b"\r\n0\r\n\r\n") {
                        received.advance(7);
                        self.at = Expected::End;
                    }
                    return Ok(piece);
                }
                Expected::DataEnd => match line_end(received)? {
                    false => return Ok(Piece::More),
                    true => self.at = Expected::Size,
                },
                Expected::Trailers => {
                    let Some(trailers) = trailers(received)? else { return Ok(Piece::More) };
                    self.at = Expected::End;
                    if !trailers.is_empty() {
                        return Ok(Piece::Trailers(trailers));
                    }
                }
                Expected::End => return Ok(Piece::End),
            }
        }
    }

    /// The size that the line in front states; takes the line.
    fn size(&mut self, received: &mut BytesMut) -> Result<Option<u64>, ProtocolFault> {
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
        if self.skipped + extension > EXTENSIONS_MAX || blank_then_text(&rest[..extension]) {
            return Err(ProtocolFault::Chunk);
        }
        match rest.get(extension..) {
            Some([b'\r', b'\n', ..]) => {}
            Some([] | [b'\r']) => return Ok(None),
            _ => return Err(ProtocolFault::Chunk),
        }
        self.skipped += extension;
        let text = str::from_utf8(&received[..digits]).map_err(|_| ProtocolFault::Chunk)?;
        let size = u64::from_str_radix(text, 16).map_err(|_| ProtocolFault::Chunk)?;
        received.advance(digits + extension + 2);
        Ok(Some(size))
    }
}

/// Blanks may stand before the `;` of an extension or the end of the line, nothing else.
fn blank_then_text(extension: &[u8]) -> bool {
    extension.iter().find(|byte| !matches!(byte, b' ' | b'\t')).is_some_and(|byte| *byte != b';')
}

/// Takes a line end; false while it is not whole.
fn line_end(received: &mut BytesMut) -> Result<bool, ProtocolFault> {
    match &received[..] {
        [b'\r', b'\n', ..] => {
            received.advance(2);
            Ok(true)
        }
        [] | [b'\r'] => Ok(false),
        _ => Err(ProtocolFault::Chunk),
    }
}

/// Takes the trailers and the empty line after them; `None` while they are not whole.
fn trailers(received: &mut BytesMut) -> Result<Option<HeaderMap>, ProtocolFault> {
    if matches!(received.first(), None | Some(b'\r')) {
        return Ok(line_end(received)?.then(HeaderMap::new));
    }
    let Some(length) = memchr::memmem::find(received, b"\r\n\r\n").map(|end| end + 4) else {
        return if received.len() > TRAILERS_MAX { Err(ProtocolFault::Chunk) } else { Ok(None) };
    };
    if length > TRAILERS_MAX || has_bare_line_feed(&received[..length]) {
        return Err(ProtocolFault::Chunk);
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
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
