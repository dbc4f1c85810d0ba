//! What the parser repairs before the gate can see it: bare line feeds, `Content-Length` beside
//! `Transfer-Encoding` or given twice, a fragment in the target. Follows the bytes of a client
//! connection from head to head; fed by its stream, asked by the gate under `strict`.

use std::collections::VecDeque;

use memchr::memchr;

use crate::http::downstream::reject::Reject;

/// Reads along. Whatever it cannot follow it leaves to the parser, which is the stricter of the
/// two about bodies, so both agree on where each accepted request ends.
#[derive(Debug)]
pub struct Inspector {
    state: InspectState,
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    head: InspectedHead,
    /// Of each whole head not yet asked about, oldest first: its fault.
    verdicts: VecDeque<Option<Reject>>,
    max_line: usize,
}

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
    /// After a fault or beyond understanding: the connection has no further request to vouch for.
    Over,
}

#[derive(Debug, Default)]
struct InspectedHead {
    lines: usize,
    length: Option<u64>,
    lengths: usize,
    chunked: bool,
    fault: Option<Reject>,
}

impl Inspector {
    /// `max_line` bounds what is kept of an unfinished line; the parser refuses longer heads.
    pub fn new(max_line: usize) -> Inspector {
        Inspector {
            state: InspectState::Head,
            line: Vec::new(),
            head: InspectedHead::default(),
            verdicts: VecDeque::new(),
            max_line,
        }
    }

    /// The fault of the next head in the order of arrival; `None` if it has none.
    pub fn verdict(&mut self) -> Option<Reject> {
        self.verdicts.pop_front().flatten()
    }

    /// Bytes as they came from the client.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.state {
                InspectState::Over => return,
                InspectState::Body { left } => {
                    self.skip(bytes, left, |left| InspectState::Body { left }, InspectState::Head)
                }
                InspectState::Chunk { left } => {
                    self.skip(bytes, left, |left| InspectState::Chunk { left }, InspectState::ChunkEnd)
                }
                InspectState::Head | InspectState::ChunkSize | InspectState::ChunkEnd | InspectState::Trailers => {
                    self.take_line(bytes)
                }
            };
        }
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, more: fn(u64) -> InspectState, then: InspectState) -> &'a [u8] {
        let here = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let left = left - here as u64;
        self.state = if left > 0 { more(left) } else { then };
        &bytes[here..]
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(end) = memchr(b'\n', bytes) else {
            if self.line.len() + bytes.len() > self.max_line {
                self.state = InspectState::Over;
            } else {
                self.line.extend_from_slice(bytes);
            }
            return &[];
        };
        let (line, rest) = bytes.split_at(end + 1);
        if self.line.is_empty() {
            self.whole_line(&line[..end]);
        } else {
            let mut whole = std::mem::take(&mut self.line);
            whole.extend_from_slice(&line[..end]);
            self.whole_line(&whole);
        }
        rest
    }

    /// `line` without its line feed.
    fn whole_line(&mut self, line: &[u8]) {
        let (text, bare) = match line.strip_suffix(b"\r") {
            Some(text) => (text, false),
            None => (line, true),
        };
        match self.state {
            InspectState::Head => self.head_line(text, bare),
            InspectState::ChunkSize => {
                let digits = text.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(text.len());
                let size = str::from_utf8(&text[..digits]).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
                self.state = match size {
                    Some(0) => InspectState::Trailers,
                    Some(left) => InspectState::Chunk { left },
                    None => InspectState::Over,
                };
            }
            InspectState::ChunkEnd => self.state = InspectState::ChunkSize,
            InspectState::Trailers if text.is_empty() => self.state = InspectState::Head,
            InspectState::Trailers | InspectState::Body { .. } | InspectState::Chunk { .. } | InspectState::Over => {}
        }
    }

    fn head_line(&mut self, text: &[u8], bare: bool) {
        if text.is_empty() && self.head.lines == 0 {
            // Empty lines before a request line are passed over (RFC 9112, 2.2).
            return;
        }
        if bare {
            self.head.fault.get_or_insert(Reject::LineEnd);
        }
        if text.is_empty() {
            return self.end_of_head();
        }
        if self.head.lines == 0 {
            if memchr(b'#', text).is_some() {
                self.head.fault.get_or_insert(Reject::TargetFragment);
            }
        } else if matches!(text[0], b'c' | b'C' | b't' | b'T')
            && let Some(colon) = memchr(b':', text)
        {
            self.field(&text[..colon], text[colon + 1..].trim_ascii());
        }
        self.head.lines += 1;
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        if name.eq_ignore_ascii_case(b"content-length") {
            self.head.lengths += 1;
            self.head.length = str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.head.chunked = true;
        }
    }

    fn end_of_head(&mut self) {
        let InspectedHead { length, lengths, chunked, mut fault, .. } = std::mem::take(&mut self.head);
        if lengths > 1 {
            fault.get_or_insert(Reject::ContentLength);
        }
        if chunked && lengths > 0 {
            fault.get_or_insert(Reject::TransferEncodingWithLength);
        }
        self.verdicts.push_back(fault);
        self.state = match (fault, chunked, length) {
            (Some(_), _, _) => InspectState::Over,
            (None, true, _) => InspectState::ChunkSize,
            (None, false, Some(left)) if left > 0 => InspectState::Body { left },
            (None, false, _) => InspectState::Head,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The verdicts on `bytes`, fed in pieces of `step`.
    fn verdicts(bytes: &[u8], step: usize) -> Vec<Option<Reject>> {
        let mut inspector = Inspector::new(1000);
        bytes.chunks(step).for_each(|piece| inspector.feed(piece));
        inspector.verdicts.into()
    }

    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    #[test]
    fn what_the_parser_repairs_is_seen_however_it_is_split() {
        for (bytes, fault) in [
            (GET, None),
            ("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", None),
            ("GET / HTTP/1.1\nhost: a\r\n\r\n", Some(Reject::LineEnd)),
            ("GET / HTTP/1.1\r\nhost: a\n\r\n", Some(Reject::LineEnd)),
            ("GET / HTTP/1.1\r\nhost: a\r\n\n", Some(Reject::LineEnd)),
            ("GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n", Some(Reject::TargetFragment)),
            ("POST / HTTP/1.1\r\nContent-Length: 0\r\ncontent-length: 0\r\n\r\n", Some(Reject::ContentLength)),
            (
                "POST / HTTP/1.1\r\ncontent-length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                Some(Reject::TransferEncodingWithLength),
            ),
        ] {
            for step in 1..=bytes.len() {
                assert_eq!(verdicts(bytes.as_bytes(), step), [fault], "{bytes:?} by {step}");
            }
        }
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
                assert_eq!(
                    verdicts(bytes.as_bytes(), step),
                    [None, None, Some(Reject::LineEnd)],
                    "{bytes:?} by {step}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_followed_alike_in_any_pieces(bytes: Vec<u8>, step in 1usize..40) {
            let whole = verdicts(&bytes, bytes.len().max(1));
            prop_assert_eq!(whole, verdicts(&bytes, step));
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
