//! The byte order mark at the start of a text, and whether the text is UTF-16 or UTF-32, which no parser here reads.

use memchr::memchr;

const MARK: &[u8] = b"\xef\xbb\xbf";

/// Removes the mark of UTF-8 at the start of a text that arrives in pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MarkSkipper {
    /// The bytes of the mark that have arrived. All of them after the start.
    count: usize,
}

impl MarkSkipper {
    /// Returns the rest of a piece.
    pub fn skip<'b>(&mut self, mut piece: &'b [u8]) -> &'b [u8] {
        while let Some(expected) = MARK.get(self.count) {
            match piece.split_first() {
                None => break,
                Some((byte, rest)) if byte == expected => (self.count, piece) = (self.count + 1, rest),
                Some(_) => self.count = MARK.len(),
            }
        }
        piece
    }
}

/// Counts bytes of text that cannot be read, as if they were UTF-8. The sum does not depend on where the pieces end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnreadText {
    is_begun: bool,
    /// The bytes since a zero byte, or a mark that only UTF-16 and UTF-32 have. In UTF-8, they are at most half again as
    /// many. `None` until then.
    wide: Option<usize>,
}

impl UnreadText {
    /// Returns the length of a piece in UTF-8, at most.
    pub fn count(&mut self, piece: &[u8]) -> usize {
        let has_mark = !self.is_begun && matches!(piece, [0xfe | 0xff, ..]);
        self.is_begun |= !piece.is_empty();
        let narrow = match self.wide {
            Some(_) => 0,
            None if has_mark => 0,
            None => memchr(0, piece).unwrap_or(piece.len()),
        };
        if narrow == piece.len() {
            return piece.len();
        }
        let before = self.wide.unwrap_or(0);
        let wide = before + (piece.len() - narrow);
        self.wide = Some(wide);
        piece.len() + (wide.div_ceil(2) - before.div_ceil(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mark_at_the_start_is_removed() {
        for (text, rest) in [
            (&b"\xef\xbb\xbf{}"[..], &b"{}"[..]),
            (b"\xef\xbb\xbf\xef\xbb\xbf{}", b"\xef\xbb\xbf{}"),
            (b"{\xef\xbb\xbf}", b"{\xef\xbb\xbf}"),
            (b"\xef\xbb\xbf", b""),
            (b"", b""),
        ] {
            for size in [1, 2, 3, 100] {
                let mut skipper = MarkSkipper::default();
                let read: Vec<u8> = text.chunks(size).flat_map(|piece| skipper.skip(piece).to_vec()).collect();
                assert_eq!(read, rest, "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn a_text_in_another_encoding_counts_at_least_as_in_utf8() {
        let texts = [
            "{\"a\": \"some text\"}",
            "\u{4f60}\u{597d}\u{4e16}\u{754c} {}",
            "\u{1f600}\u{1f600}{}",
            "\u{e9}\u{e9} {}",
        ];
        for text in texts {
            let wide: Vec<u16> = text.encode_utf16().collect();
            let full: Vec<u32> = text.chars().map(u32::from).collect();
            for encoded in [
                text.as_bytes().to_vec(),
                wide.iter().flat_map(|unit| unit.to_le_bytes()).collect(),
                [0xfeff].iter().chain(&wide).flat_map(|unit| unit.to_be_bytes()).collect(),
                [0xfeff].iter().chain(&full).flat_map(|unit| unit.to_le_bytes()).collect(),
            ] {
                let count_by = |size: usize| {
                    let mut unread = UnreadText::default();
                    encoded.chunks(size).map(|piece| unread.count(piece)).sum::<usize>()
                };
                let counted = count_by(encoded.len());
                assert!(counted >= text.len() && counted <= 6 * text.len() + 6, "{text}: {counted}");
                assert!((1..8).all(|size| count_by(size) == counted), "{text}");
            }
            assert_eq!(UnreadText::default().count(text.as_bytes()), text.len(), "{text}");
        }
    }
}
