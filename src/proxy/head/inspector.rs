//! Finds what the HTTP/1.1 parser repairs before validation can see it: bare line feeds, `Content-Length` beside
//! `Transfer-Encoding` or sent twice, and a fragment or raw bytes in the target. The inspector reads all bytes of a
//! client connection from head to head. It is used only if some route or the server has `strictness = "strict"`, or if
//! header names keep their case (`header_case`): then it remembers them.
//! The inspector also finds the extensions of chunks, which the parser would count.

use crate::ends::End;
use crate::proxy::head::reject::find_raw_target_fault;
use crate::proxy::words::spelling::SpelledNames;
use std::collections::VecDeque;

use memchr::memchr;

/// A second parser for heads and framing, at least as strict as the real one. It stops the real parser where the
/// framing of a body is invalid. A head that the real parser finds at another place or with another body length is
/// refused. So both agree on where each accepted request ends.
///
/// It also finds the request lines behind other requests, so that raw bytes in their targets can be encoded. On a
/// connection without an inspector, the targets of pipelined requests are not encoded.
#[derive(Debug)]
pub struct Inspector {
    state: InspectState,
    /// The start of a line whose end has not arrived yet.
    line: Vec<u8>,
    head: InspectedHead,
    /// Complete heads whose request has not been checked yet, oldest first.
    seen: VecDeque<SeenHead>,
    /// Parts of the bytes that were read last which the parser gets in another form, in order.
    edits: Vec<FramingEdit>,
    /// The line being read has an extension, of which the parser has got nothing.
    is_in_extension: bool,
    /// Bytes of extensions that the body may still have.
    extensions_left: usize,
    /// The names of the current head, and of those in `seen`, if they keep their case.
    names: Option<(SpelledNames, VecDeque<SpelledNames>)>,
    max_line: usize,
}

/// Part of the bytes of a client that the parser gets in another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingEdit {
    /// A request line within bytes that begin with another request, or a part of one. `end`: behind its line feed;
    /// `None` if that has not arrived.
    RequestLine { start: usize, end: Option<usize> },
    /// The extension of a chunk, or a part of it, to `end`. `ends_line`: the line feed behind it is the last byte.
    Extension { start: usize, end: usize, ends_line: bool },
}

/// Most bytes of the extensions of one chunk.
const EXTENSIONS_MAX: usize = 16 * 1024;
/// Bytes of extensions that each chunk earns, up to [`EXTENSIONS_MAX`], as in the body of a response.
const EXTENSIONS_PER_CHUNK: usize = 256;

/// The part of a request that the next byte belongs to. `left`: bytes left in that part.
#[derive(Clone, Copy, Debug)]
enum InspectState {
    Head,
    Body {
        left: u64,
    },
    ChunkSize,
    Chunk {
        left: u64,
    },
    ChunkEnd,
    Trailers,
    /// The framing of a chunked body is invalid; the parser gets no more bytes.
    Broken,
    /// A head was faulty or too long. Later bytes of the connection are not inspected.
    Over,
}

/// The part of the current head that has arrived.
#[derive(Debug, Default)]
struct InspectedHead {
    lines: usize,
    length: Option<u64>,
    lengths: usize,
    chunked: bool,
    fault: Option<End>,
}

/// The result for one complete head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeenHead {
    fault: Option<End>,
    /// Length of the body in bytes. `None` if it is chunked.
    length: Option<u64>,
}

impl Inspector {
    /// `max_line`: longest line in bytes. The parser refuses heads of that length.
    pub fn new(max_line: usize) -> Inspector {
        Inspector {
            state: InspectState::Head,
            line: Vec::new(),
            head: InspectedHead::default(),
            seen: VecDeque::new(),
            edits: Vec::new(),
            is_in_extension: false,
            extensions_left: 0,
            names: None,
            max_line,
        }
    }

    /// Remembers the names of headers as the client writes them.
    pub fn keep_names(mut self) -> Inspector {
        self.names = Some(Default::default());
        self
    }

    /// Returns the names of the next head, in order of arrival. `None` if they are all in lower case, or not kept.
    pub fn take_names(&mut self) -> Option<SpelledNames> {
        self.names.as_mut()?.1.pop_front().filter(|names| !names.is_empty())
    }

    /// Returns the fault of the next head, in order of arrival. `length`: the body length that the parser found, `None`
    /// for a chunked body.
    pub fn take_fault(&mut self, length: Option<u64>) -> Option<End> {
        match self.seen.pop_front() {
            Some(SeenHead { fault: None, length: seen }) if seen == length => None,
            Some(SeenHead { fault: Some(fault), .. }) => Some(fault),
            _ => Some(End::Framing),
        }
    }

    /// Returns the parts of the bytes that were read last which the parser gets in another form: extensions, and the
    /// request lines except one at the start.
    pub fn take_edits(&mut self) -> Vec<FramingEdit> {
        std::mem::take(&mut self.edits)
    }

    /// Reads bytes as they arrived from the client. Returns how many of them the parser may read: fewer than all if the
    /// framing of a body is invalid, and none after that.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        self.edits.clear();
        while !rest.is_empty() {
            let piece = rest;
            let begins_head = matches!(self.state, InspectState::Head) && self.head.lines == 0 && self.line.is_empty();
            rest = match self.state {
                InspectState::Over => return bytes.len(),
                InspectState::Broken => return 0,
                InspectState::Body { left } => {
                    self.skip_body(rest, left, |left| InspectState::Body { left }, InspectState::Head)
                }
                InspectState::Chunk { left } => {
                    self.skip_body(rest, left, |left| InspectState::Chunk { left }, InspectState::ChunkEnd)
                }
                InspectState::Head | InspectState::ChunkSize | InspectState::ChunkEnd | InspectState::Trailers => {
                    self.take_line(rest, bytes.len() - rest.len())
                }
            };
            if let InspectState::Broken = self.state {
                return bytes.len() - piece.len();
            }
            let start = bytes.len() - piece.len();
            if begins_head && start > 0 && (self.head.lines > 0 || !self.line.is_empty()) {
                let end = self.line.is_empty().then(|| bytes.len() - rest.len());
                self.edits.push(FramingEdit::RequestLine { start, end });
            }
        }
        bytes.len()
    }

    fn skip_body<'a>(
        &mut self,
        bytes: &'a [u8],
        left: u64,
        more: fn(u64) -> InspectState,
        then: InspectState,
    ) -> &'a [u8] {
        let here = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let left = left - here as u64;
        self.state = if left > 0 { more(left) } else { then };
        &bytes[here..]
    }

    /// Reads a line or a part of one. `at`: the place of `bytes` within those that were read last.
    fn take_line<'a>(&mut self, bytes: &'a [u8], at: usize) -> &'a [u8] {
        let end = memchr(b'\n', bytes);
        if self.line.len() + end.unwrap_or(bytes.len()) > self.max_line {
            self.line = Vec::new();
            self.state = match self.state {
                InspectState::Head => InspectState::Over,
                _ => InspectState::Broken,
            };
            return &[];
        }
        let extension = self.find_extension(&bytes[..end.map_or(bytes.len(), |end| end + 1)]);
        let Some(end) = end else {
            self.line.extend_from_slice(bytes);
            if let Some(start) = extension {
                self.edits.push(FramingEdit::Extension { start: at + start, end: at + bytes.len(), ends_line: false });
                self.is_in_extension = true;
            }
            return &[];
        };
        let (line, rest) = bytes.split_at(end + 1);
        self.is_in_extension = false;
        if self.line.is_empty() {
            self.read_line(&line[..end]);
        } else {
            let mut whole = std::mem::take(&mut self.line);
            whole.extend_from_slice(&line[..end]);
            self.read_line(&whole);
        }
        if let Some(start) = extension.filter(|_| !matches!(self.state, InspectState::Broken)) {
            self.edits.push(FramingEdit::Extension { start: at + start, end: at + end + 1, ends_line: true });
        }
        rest
    }

    /// Returns where the extension of a chunk begins or continues in `piece`, which is a part of one line.
    fn find_extension(&self, piece: &[u8]) -> Option<usize> {
        match self.state {
            InspectState::ChunkSize if self.is_in_extension => Some(0),
            InspectState::ChunkSize => memchr(b';', piece),
            _ => None,
        }
    }

    /// Reads the line with the size of a chunk.
    fn read_chunk_size(&mut self, text: &[u8]) -> InspectState {
        let (size, extension) = text.split_at(memchr(b';', text).unwrap_or(text.len()));
        if extension.len() > self.extensions_left || extension.contains(&b'\r') {
            return InspectState::Broken;
        }
        self.extensions_left = (self.extensions_left - extension.len() + EXTENSIONS_PER_CHUNK).min(EXTENSIONS_MAX);
        match parse_chunk_size(size) {
            None => InspectState::Broken,
            Some(0) => InspectState::Trailers,
            Some(left) => InspectState::Chunk { left },
        }
    }

    /// Reads a complete line, without its line feed.
    fn read_line(&mut self, line: &[u8]) {
        let (text, bare) = match line.strip_suffix(b"\r") {
            Some(text) => (text, false),
            None => (line, true),
        };
        self.state = match self.state {
            InspectState::Head => return self.read_head_line(text, bare),
            _ if bare => InspectState::Broken,
            InspectState::ChunkSize => self.read_chunk_size(text),
            InspectState::ChunkEnd if text.is_empty() => InspectState::ChunkSize,
            InspectState::ChunkEnd => InspectState::Broken,
            InspectState::Trailers if text.is_empty() => InspectState::Head,
            state => state,
        };
    }

    fn read_head_line(&mut self, text: &[u8], bare: bool) {
        if bare {
            self.head.fault.get_or_insert(End::LineEnd);
        }
        if text.is_empty() {
            // Empty lines before a request line are ignored (RFC 9112, section 2.2).
            if self.head.lines > 0 {
                self.finish_head();
            }
            return;
        }
        if self.head.lines == 0 {
            if let Some(fault) = find_raw_target_fault(text) {
                self.head.fault.get_or_insert(fault);
            }
        } else if (self.names.is_some() || matches!(text[0], b'c' | b'C' | b't' | b'T'))
            && let Some(colon) = memchr(b':', text)
        {
            if let Some((names, _)) = &mut self.names {
                names.add(&text[..colon]);
            }
            self.read_header(&text[..colon], text[colon + 1..].trim_ascii());
        }
        self.head.lines += 1;
    }

    fn read_header(&mut self, name: &[u8], value: &[u8]) {
        if name.eq_ignore_ascii_case(b"content-length") {
            self.head.lengths += 1;
            self.head.length = str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.head.chunked = true;
        }
    }

    fn finish_head(&mut self) {
        let InspectedHead { length, lengths, chunked, mut fault, .. } = std::mem::take(&mut self.head);
        self.extensions_left = EXTENSIONS_MAX;
        if lengths > 1 {
            fault.get_or_insert(End::ContentLength);
        }
        if chunked && lengths > 0 {
            fault.get_or_insert(End::TransferEncodingWithLength);
        }
        if let Some((names, seen)) = &mut self.names {
            seen.push_back(std::mem::take(names));
        }
        self.seen.push_back(SeenHead { fault, length: if chunked { None } else { Some(length.unwrap_or(0)) } });
        self.state = match (fault, chunked, length) {
            (Some(_), _, _) => InspectState::Over,
            (None, true, _) => InspectState::ChunkSize,
            (None, false, Some(left)) if left > 0 => InspectState::Body { left },
            (None, false, _) => InspectState::Head,
        };
    }
}

/// Returns the size that a chunk-size line starts with.
fn parse_chunk_size(text: &[u8]) -> Option<u64> {
    let digits = text.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(text.len());
    str::from_utf8(&text[..digits]).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `bytes` in pieces of `step`. Returns the result for each head, and whether a body has invalid framing.
    fn inspect(bytes: &[u8], step: usize) -> (Vec<SeenHead>, bool) {
        let mut inspector = Inspector::new(1000);
        let breaks = bytes.chunks(step).any(|piece| inspector.feed(piece) < piece.len());
        (inspector.seen.into(), breaks)
    }

    fn verdicts(bytes: &[u8], step: usize) -> Vec<Option<End>> {
        inspect(bytes, step).0.iter().map(|seen| seen.fault).collect()
    }

    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    #[test]
    fn repairs_of_the_parser_are_found_in_any_pieces() {
        for (bytes, fault) in [
            (GET, None),
            ("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", None),
            ("GET / HTTP/1.1\nhost: a\r\n\r\n", Some(End::LineEnd)),
            ("\r\n\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", Some(End::LineEnd)),
            ("GET / HTTP/1.1\r\nhost: a\n\r\n", Some(End::LineEnd)),
            ("GET / HTTP/1.1\r\nhost: a\r\n\n", Some(End::LineEnd)),
            ("GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n", Some(End::TargetFragment)),
            ("POST / HTTP/1.1\r\nContent-Length: 0\r\ncontent-length: 0\r\n\r\n", Some(End::ContentLength)),
            (
                "POST / HTTP/1.1\r\ncontent-length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                Some(End::TransferEncodingWithLength),
            ),
        ] {
            for step in 1..=bytes.len() {
                assert_eq!(verdicts(bytes.as_bytes(), step), [fault], "{bytes:?} by {step}");
            }
        }
    }

    #[test]
    fn request_lines_are_found_behind_other_requests() {
        fn lines(bytes: &str) -> Vec<&str> {
            let mut inspector = Inspector::new(1000);
            inspector.feed(bytes.as_bytes());
            let text = |edit: &FramingEdit| match *edit {
                FramingEdit::RequestLine { start, end } => &bytes[start..end.unwrap_or(bytes.len())],
                FramingEdit::Extension { .. } => panic!("no extension was sent"),
            };
            inspector.take_edits().iter().map(text).collect()
        }
        let post = "POST / HTTP/1.1\r\ncontent-length: 8\r\n\r\nGET /x\r\n";
        assert_eq!(lines(GET), [""; 0]);
        assert_eq!(lines(&[GET, "\r\nGET /b?q=\"",].concat()), ["GET /b?q=\""]);
        assert_eq!(lines(&[post, GET, post].concat()), ["GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\n"]);
        // The rest of a line does not count as a line if its start came earlier.
        let mut inspector = Inspector::new(1000);
        inspector.feed(b"GET ");
        inspector.feed(b"/ HTTP/1.1\r\n\r\nG");
        assert_eq!(inspector.take_edits(), [FramingEdit::RequestLine { start: 14, end: None }]);
    }

    #[test]
    fn heads_are_found_behind_bodies() {
        let fault = "GET / HTTP/1.1\nhost: a\r\n\r\n";
        for body in [
            "POST / HTTP/1.1\r\ncontent-length: 7\r\n\r\na\nb\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\n\n\n\n\n\n\r\n0\r\nt: v\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        ] {
            let bytes = [body, GET, fault].concat();
            for step in 1..=bytes.len() {
                assert_eq!(verdicts(bytes.as_bytes(), step), [None, None, Some(End::LineEnd)], "{bytes:?} by {step}");
            }
        }
    }

    #[test]
    fn a_chunked_body_breaks_off_before_the_piece_that_is_not_by_the_letter() {
        let post = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        let long = "e".repeat(1000);
        for body in [
            "0\r\n\n",
            "0\r\na: b\n\r\n",
            "0\r\na: b\r\n\n",
            "0\n\r\n",
            "1\nx\r\n0\r\n\r\n",
            "1\r\nx\n0\r\n\r\n",
            "1\r\nxy\r\n0\r\n\r\n",
            "1\r\nx\r\n\r\n",
            "10000000000000000\r\nx\r\n0\r\n\r\n",
            "1;a\rb\r\nx\r\n0\r\n\r\n",
            "1;a\r\r\nx\r\n0\r\n\r\n",
            "1;a\nx\r\n0\r\n\r\n",
            &format!("1;{long}\r\nx\r\n0\r\n\r\n"),
            &format!("0\r\nt: {long}\r\n\r\n"),
        ] {
            let bytes = [post, body, GET].concat();
            for step in 1..=bytes.len() {
                let seen = SeenHead { fault: None, length: None };
                assert_eq!(inspect(bytes.as_bytes(), step), (vec![seen], true), "{body:?} by {step}");
            }
        }
    }

    #[test]
    fn a_head_that_contradicts_the_parser_is_refused() {
        let asked = |bytes: &str, lengths: &[Option<u64>]| {
            let mut inspector = Inspector::new(1000);
            assert_eq!(inspector.feed(bytes.as_bytes()), bytes.len());
            lengths.iter().map(|length| inspector.take_fault(*length)).collect::<Vec<_>>()
        };
        let sized = "POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc";
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
        let framing = Some(End::Framing);
        assert_eq!(
            asked(&[sized, chunked, GET].concat(), &[Some(3), None, Some(0), Some(0)]),
            [None, None, None, framing]
        );
        assert_eq!(asked(sized, &[Some(2)]), [framing]);
        assert_eq!(asked(sized, &[None]), [framing]);
        assert_eq!(asked(chunked, &[Some(0)]), [framing]);
        // After a fault nothing is vouched for.
        assert_eq!(asked(&["GET / HTTP/1.1\n\r\n", GET].concat(), &[Some(0), Some(0)]), [Some(End::LineEnd), framing]);
        assert_eq!(asked(&["GET /", &"x".repeat(1000), " HTTP/1.1\r\n\r\n"].concat(), &[Some(0)]), [framing]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_followed_alike_in_any_pieces(bytes: Vec<u8>, step in 1usize..40) {
            prop_assert_eq!(inspect(&bytes, bytes.len().max(1)), inspect(&bytes, step));
        }

        #[test]
        fn an_endless_line_is_not_kept(step in 1usize..2000) {
            let mut inspector = Inspector::new(1000);
            for _ in 0..2000 / step + 2 {
                inspector.feed(&vec![b'a'; step]);
            }
            prop_assert!(inspector.line.len() <= 1000);
        }
    }
}
