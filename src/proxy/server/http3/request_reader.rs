//! Reads the frames of a request stream (RFC 9114, section 4.1): a head, a body, trailers. Unknown frames are skipped.
//! A field section is refused by its length, before any of its bytes is kept.

use bytes::Bytes;

use crate::proxy::server::http3::error::{Code, FRAME_ERROR, FRAME_UNEXPECTED};
use crate::proxy::server::http3::frame;
use crate::proxy::server::http3::frame::{FrameItem, ItemSplitter};

/// How far a request stream has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Body,
    AfterTrailers,
}

/// What a request stream brings.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestItem {
    /// The encoded field section of the head.
    Head(Vec<u8>),
    Data(Bytes),
    /// The encoded field section of the trailers.
    Trailers(Vec<u8>),
    /// A field section of more bytes than allowed, which is skipped.
    TooLarge,
    /// A frame that brings nothing: an unknown one, or empty DATA.
    Nothing,
}

/// Reads one request stream.
pub struct RequestReader {
    splitter: ItemSplitter,
    stage: Stage,
    /// The frame whose payload is read; `None` for one that is skipped.
    kind: Option<u64>,
    section: Vec<u8>,
    max_section: usize,
}

impl RequestReader {
    /// Reads a stream whose field sections have at most `max_section` bytes each.
    pub fn new(max_section: usize) -> RequestReader {
        RequestReader {
            splitter: ItemSplitter::default(),
            stage: Stage::Head,
            kind: None,
            section: Vec::new(),
            max_section,
        }
    }

    /// Takes the next item from `bytes`. `None`: they are used up.
    ///
    /// # Errors
    /// The connection must end.
    pub fn next(&mut self, bytes: &mut Bytes) -> Result<Option<RequestItem>, Code> {
        while let Some(item) = self.splitter.next(bytes) {
            let item = match item {
                FrameItem::Begin { kind, length } => self.begin(kind, length)?,
                FrameItem::Payload(payload) => match self.kind {
                    Some(frame::DATA) => Some(RequestItem::Data(payload)),
                    Some(_) => {
                        self.section.extend_from_slice(&payload);
                        None
                    }
                    None => None,
                },
                FrameItem::End => self.end(),
            };
            if item.is_some() {
                return Ok(item);
            }
        }
        Ok(None)
    }

    fn begin(&mut self, kind: u64, length: u64) -> Result<Option<RequestItem>, Code> {
        self.kind = None;
        match kind {
            frame::DATA if self.stage == Stage::Body => {
                self.kind = Some(kind);
                Ok((length == 0).then_some(RequestItem::Nothing))
            }
            frame::HEADERS if self.stage != Stage::AfterTrailers => match length {
                0 => Err(FRAME_ERROR),
                _ if length > self.max_section as u64 => {
                    self.pass_section();
                    Ok(Some(RequestItem::TooLarge))
                }
                _ => {
                    self.kind = Some(kind);
                    Ok(None)
                }
            },
            frame::DATA | frame::HEADERS | frame::SETTINGS | frame::GOAWAY => Err(FRAME_UNEXPECTED),
            frame::MAX_PUSH_ID | frame::CANCEL_PUSH | frame::PUSH_PROMISE => Err(FRAME_UNEXPECTED),
            frame::PRIORITY_UPDATE_OF_REQUEST | frame::PRIORITY_UPDATE_OF_PUSH => Err(FRAME_UNEXPECTED),
            _ if frame::OF_HTTP2.contains(&kind) => Err(FRAME_UNEXPECTED),
            _ => Ok(Some(RequestItem::Nothing)),
        }
    }

    fn end(&mut self) -> Option<RequestItem> {
        if self.kind.take() != Some(frame::HEADERS) {
            return None;
        }
        let section = std::mem::take(&mut self.section);
        Some(match self.pass_section() {
            Stage::Head => RequestItem::Head(section),
            _ => RequestItem::Trailers(section),
        })
    }

    /// Goes on to what follows the field section. Returns the stage before.
    fn pass_section(&mut self) -> Stage {
        let next = if self.stage == Stage::Head { Stage::Body } else { Stage::AfterTrailers };
        std::mem::replace(&mut self.stage, next)
    }

    /// Returns whether the head has not arrived completely.
    pub fn awaits_head(&self) -> bool {
        self.stage == Stage::Head
    }

    /// Returns how many bytes of an incomplete field section are kept.
    pub fn kept_bytes(&self) -> usize {
        self.section.len()
    }

    /// Checks that the stream may end here. The head must have arrived.
    ///
    /// # Errors
    /// It ends inside of a frame, so the connection must end.
    pub fn check_end(&self) -> Result<(), Code> {
        if self.splitter.is_between_frames() { Ok(()) } else { Err(FRAME_ERROR) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proxy::server::http3::varint;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        frame::write_head(kind, payload.len(), &mut frame);
        frame.extend_from_slice(payload);
        frame
    }

    /// Reads `bytes` in pieces of `size`. The last item of the result is how the stream may end.
    fn read(bytes: &[u8], size: usize) -> (Vec<RequestItem>, Result<(), Code>) {
        let (mut reader, mut items) = (RequestReader::new(100), Vec::new());
        for piece in bytes.chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            loop {
                match reader.next(&mut piece) {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break,
                    Err(code) => return (items, Err(code)),
                }
            }
        }
        let end = reader.check_end();
        (items, end)
    }

    #[test]
    fn a_request_has_a_head_a_body_and_trailers_however_it_is_cut() {
        let bytes = [
            frame(0x21, b"reserved"),
            frame(frame::HEADERS, b"head"),
            frame(frame::DATA, b"ab"),
            frame(0x40, b""),
            frame(frame::DATA, b"c"),
            frame(frame::HEADERS, b"tail"),
            frame(0x1f + 0x21, &[0; 50]),
        ]
        .concat();
        for size in [1, 2, 7, 200] {
            let (items, end) = read(&bytes, size);
            let data: Vec<u8> = items
                .iter()
                .filter_map(|item| if let RequestItem::Data(data) = item { Some(&data[..]) } else { None })
                .flatten()
                .copied()
                .collect();
            assert_eq!(data, b"abc");
            assert!(items.contains(&RequestItem::Head(b"head".to_vec())));
            assert!(items.contains(&RequestItem::Trailers(b"tail".to_vec())));
            assert_eq!(items.iter().filter(|item| **item == RequestItem::Nothing).count(), 3);
            assert_eq!(end, Ok(()), "{size}");
        }
    }

    #[test]
    fn frames_at_the_wrong_place_end_the_connection() {
        let head = frame(frame::HEADERS, b"head");
        let trailers = [head.clone(), head.clone()].concat();
        let unexpected = |before: &[u8], kind: u64| {
            let (_, end) = read(&[before, &frame(kind, b"x")].concat(), 3);
            assert_eq!(end, Err(FRAME_UNEXPECTED), "{kind:#x} after {before:?}");
        };
        unexpected(b"", frame::DATA);
        unexpected(&trailers, frame::DATA);
        unexpected(&trailers, frame::HEADERS);
        for kind in [0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8, 0x9, 0xd, 0xf0700, 0xf0701] {
            unexpected(b"", kind);
            unexpected(&head, kind);
            unexpected(&trailers, kind);
        }
        assert_eq!(read(&frame(frame::HEADERS, b""), 1).1, Err(FRAME_ERROR), "an empty field section");
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_an_error() {
        let whole = [frame(frame::HEADERS, b"head"), frame(frame::DATA, b"body"), frame(0x21, b"xy")].concat();
        let ends = [0, 6, 12, 16];
        for cut in 0..=whole.len() {
            let (_, end) = read(&whole[..cut], 4);
            assert_eq!(end.is_ok(), ends.contains(&cut), "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_mean_the_same_in_any_pieces(
            bytes in proptest::collection::vec(prop_oneof![0..10_u8, any::<u8>()], 0..120),
            size in 1..20_usize,
        ) {
            let joined = |(items, end): (Vec<RequestItem>, Result<(), Code>)| {
                let data = |item: &RequestItem| if let RequestItem::Data(data) = item { data.to_vec() } else { Vec::new() };
                let body: Vec<u8> = items.iter().flat_map(data).collect();
                let others: Vec<_> =
                    items.into_iter().filter(|item| !matches!(item, RequestItem::Data(_))).collect();
                (body, others, end)
            };
            prop_assert_eq!(joined(read(&bytes, size)), joined(read(&bytes, bytes.len().max(1))));
            let mut reader = RequestReader::new(30);
            let mut rest = Bytes::from(bytes);
            while let Ok(Some(_)) = reader.next(&mut rest) {}
            prop_assert!(reader.kept_bytes() <= 30);
        }
    }

    #[test]
    fn a_section_is_refused_by_its_length_and_none_of_it_is_kept() {
        let mut reader = RequestReader::new(100);
        let mut bytes = Vec::new();
        varint::write(frame::HEADERS, &mut bytes);
        varint::write(101, &mut bytes);
        bytes.extend([b'x'; 60]);
        let mut bytes = Bytes::from(bytes);
        assert_eq!(reader.next(&mut bytes), Ok(Some(RequestItem::TooLarge)));
        assert_eq!((reader.next(&mut bytes), reader.kept_bytes()), (Ok(None), 0));
        let mut endless = Vec::new();
        varint::write(0x21, &mut endless);
        varint::write(varint::MAX, &mut endless);
        let mut reader = RequestReader::new(100);
        let mut endless = Bytes::from(endless);
        assert_eq!(reader.next(&mut endless), Ok(Some(RequestItem::Nothing)));
        for _ in 0..1000 {
            assert_eq!(reader.next(&mut Bytes::from_static(&[0; 1000])), Ok(None));
            assert_eq!(reader.kept_bytes(), 0);
        }
    }
}
