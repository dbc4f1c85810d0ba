//! Decodes compressed headers of HTTP/2 (HPACK, RFC 7541) for `head_check`, which keeps the decoder of the library in
//! step with this one.
//!
//! Input: whole blocks. Output: their headers, each with its `FieldKind`, and a block that brings another decoder in
//! step.
//!
//! - `mod.rs`: the decoder and the dynamic table.
//! - `huffman.rs`: Huffman-coded strings.
//! - `static_table.rs`: the static table.

pub(crate) mod huffman;
mod static_table;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::LazyLock;

use crate::ends::End;
use crate::proxy::head::field_kind::{FieldKind, is_name};
use crate::proxy::server::http2::hpack::static_table::STATIC_TABLE;

/// The largest dynamic table, which is the protocol's default: the gateway announces no other limit.
const TABLE_SIZE: usize = 4096;
/// Size of an entry beside its name and value, by the RFC.
pub const FIELD_OVERHEAD: usize = 32;
/// The longest integer. Its value is therefore below 2^29.
const INTEGER_BYTES: usize = 5;
/// Replaces the bytes of malformed headers.
const FILLER: u8 = b'x';

static STATIC_KINDS: LazyLock<Vec<FieldKind>> = LazyLock::new(|| {
    STATIC_TABLE.iter().map(|(name, value)| FieldKind::new(name.as_bytes(), value.as_bytes())).collect()
});

/// The block cannot be decoded. From then on the tables of both sides differ.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodeError;

/// One header of a block.
#[derive(Clone, Copy, Debug)]
pub struct HeaderField<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    pub kind: FieldKind,
}

/// The decoder of one connection.
pub struct HpackDecoder {
    table: DynamicTable,
}

/// The entries that the client has added, the newest first.
struct DynamicTable {
    entries: VecDeque<DynamicField>,
    size: usize,
    max_size: usize,
}

struct DynamicField {
    /// The name, of length `name`, and the value.
    bytes: Box<[u8]>,
    name: usize,
    kind: FieldKind,
}

/// A string of a block: its range there, or in the buffer of decoded strings.
enum BlockString {
    Plain(Range<usize>),
    Decoded(Range<usize>),
}

/// The rest of a block.
struct BlockReader<'a> {
    block: &'a [u8],
    at: usize,
}

impl HpackDecoder {
    pub fn new() -> HpackDecoder {
        HpackDecoder { table: DynamicTable { entries: VecDeque::new(), size: 0, max_size: TABLE_SIZE } }
    }

    /// Calls `visit` with each header of a whole block. `room` is a buffer for decoded strings.
    ///
    /// # Errors
    /// The block is not encoded correctly.
    pub fn decode(
        &mut self,
        block: &[u8],
        room: &mut Vec<u8>,
        mut visit: impl FnMut(HeaderField<'_>),
    ) -> Result<(), DecodeError> {
        let mut reader = BlockReader { block, at: 0 };
        let mut has_begun = false;
        while let Some(first) = block.get(reader.at) {
            match first {
                0x80.. => visit(self.table.get(reader.read_integer(7)?)?),
                0x40.. => {
                    room.clear();
                    self.decode_literal(&mut reader, 6, room, true, &mut visit)?;
                }
                0x20.. if !has_begun => {
                    self.table.resize(reader.read_integer(5)?)?;
                    continue;
                }
                0x20.. => return Err(DecodeError),
                _ => {
                    room.clear();
                    self.decode_literal(&mut reader, 4, room, false, &mut visit)?;
                }
            }
            has_begun = true;
        }
        Ok(())
    }

    fn decode_literal(
        &mut self,
        reader: &mut BlockReader<'_>,
        prefix: u8,
        room: &mut Vec<u8>,
        is_indexed: bool,
        visit: &mut impl FnMut(HeaderField<'_>),
    ) -> Result<(), DecodeError> {
        let index = reader.read_integer(prefix)?;
        let literal = if index == 0 { Some(reader.read_string(room)?) } else { None };
        let value = reader.read_string(room)?;
        let value = value.resolve(reader.block, room);
        let (name, of_name) = match &literal {
            Some(name) => (name.resolve(reader.block, room), None),
            None => {
                let table_entry = self.table.get(index)?;
                (table_entry.name, table_entry.name_fault())
            }
        };
        let kind = of_name.map_or_else(|| FieldKind::new(name, value), FieldKind::Malformed);
        visit(HeaderField { name, value, kind });
        if is_indexed {
            let entry = DynamicField { bytes: [name, value].concat().into(), name: name.len(), kind };
            self.table.insert(entry);
        }
        Ok(())
    }

    /// Returns a block that makes the table of the library equal to this one. A malformed header, which the library
    /// would not accept, is replaced by another one of the same size. `None` if no header is as small as that.
    pub fn synchronizing_block(&self) -> Option<Vec<u8>> {
        let mut block = Vec::with_capacity(self.table.size + 16);
        write_integer(&mut block, 0x20, 5, 0);
        write_integer(&mut block, 0x20, 5, self.table.max_size);
        self.table.entries.iter().rev().try_for_each(|entry| entry.write(&mut block)).map(|()| block)
    }
}

impl HeaderField<'_> {
    /// Returns the rule that any header breaks that takes its name from this one: the name is malformed, or unknown to
    /// the library.
    fn name_fault(&self) -> Option<End> {
        let FieldKind::Malformed(fault) = self.kind else { return None };
        let is_known = match self.name {
            // The library treats an empty method as a missing one.
            b":method" => !self.value.is_empty(),
            b":scheme" | b":authority" | b":path" | b":protocol" => true,
            name => is_name(name),
        };
        (!is_known).then_some(fault)
    }
}

impl DynamicTable {
    fn get(&self, index: usize) -> Result<HeaderField<'_>, DecodeError> {
        let index = index.checked_sub(1).ok_or(DecodeError)?;
        if let Some((name, value)) = STATIC_TABLE.get(index) {
            return Ok(HeaderField { name: name.as_bytes(), value: value.as_bytes(), kind: STATIC_KINDS[index] });
        }
        self.entries.get(index - STATIC_TABLE.len()).map(DynamicField::field).ok_or(DecodeError)
    }

    fn insert(&mut self, entry: DynamicField) {
        let size = entry.size();
        self.shrink(self.max_size.saturating_sub(size));
        // An entry that is larger than the table only empties it.
        if size <= self.max_size {
            self.size += size;
            self.entries.push_front(entry);
        }
    }

    fn resize(&mut self, max_size: usize) -> Result<(), DecodeError> {
        if max_size > TABLE_SIZE {
            return Err(DecodeError);
        }
        self.max_size = max_size;
        self.shrink(max_size);
        Ok(())
    }

    /// Removes the oldest entries until the others are no larger than `size`.
    fn shrink(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_back() else { return };
            self.size -= oldest.size();
        }
    }
}

impl DynamicField {
    fn size(&self) -> usize {
        self.bytes.len() + FIELD_OVERHEAD
    }

    fn field(&self) -> HeaderField<'_> {
        let (name, value) = self.bytes.split_at(self.name);
        HeaderField { name, value, kind: self.kind }
    }

    /// Appends the instruction that adds this entry to a table, or its replacement if it is malformed.
    fn write(&self, block: &mut Vec<u8>) -> Option<()> {
        let field = self.field();
        let is_malformed = matches!(field.kind, FieldKind::Malformed(_) | FieldKind::RawPath);
        let keeps_name = field.name_fault().is_none();
        let name = if keeps_name { field.name } else { &[FILLER] };
        let value_length = self.bytes.len().checked_sub(name.len())?;
        block.push(0x40);
        write_integer(block, 0, 7, name.len());
        block.extend(name);
        write_integer(block, 0, 7, value_length);
        match is_malformed {
            true => block.resize(block.len() + value_length, FILLER),
            false => block.extend(field.value),
        }
        Some(())
    }
}

impl BlockString {
    fn resolve<'a>(&self, block: &'a [u8], room: &'a [u8]) -> &'a [u8] {
        match self {
            BlockString::Plain(range) => &block[range.clone()],
            BlockString::Decoded(range) => &room[range.clone()],
        }
    }
}

impl BlockReader<'_> {
    fn read_byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.block.get(self.at).ok_or(DecodeError)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads an integer that begins with the last `prefix` bits of the next byte.
    fn read_integer(&mut self, prefix: u8) -> Result<usize, DecodeError> {
        let mask = 0xff >> (8 - prefix);
        let first = self.read_byte()? & mask;
        let mut value = usize::from(first);
        if first < mask {
            return Ok(value);
        }
        for place in 0..INTEGER_BYTES - 1 {
            let byte = self.read_byte()?;
            value += usize::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError)
    }

    fn read_string(&mut self, room: &mut Vec<u8>) -> Result<BlockString, DecodeError> {
        let is_huffman = self.block.get(self.at).is_some_and(|byte| byte & 0x80 != 0);
        let length = self.read_integer(7)?;
        let range = self.at..self.at + length;
        let text = self.block.get(range.clone()).ok_or(DecodeError)?;
        self.at = range.end;
        if !is_huffman {
            return Ok(BlockString::Plain(range));
        }
        let start = room.len();
        huffman::decode(text, room).map_err(|_| DecodeError)?;
        Ok(BlockString::Decoded(start..room.len()))
    }
}

/// Appends a header that no table remembers.
pub fn write_literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0x10);
    for text in [name, value] {
        write_integer(block, 0, 7, text.len());
        block.extend(text);
    }
}

/// Appends `value` with a prefix of `prefix` bits, beside `pattern` in the first byte.
fn write_integer(block: &mut Vec<u8>, pattern: u8, prefix: u8, value: usize) {
    let mask = 0xff >> (8 - prefix);
    let Some(mut rest) = value.checked_sub(usize::from(mask)) else {
        return block.extend(u8::try_from(value).map(|value| pattern | value));
    };
    block.push(pattern | mask);
    while rest >= 0x80 {
        block.extend(u8::try_from(rest % 0x80).map(|bits| bits | 0x80));
        rest /= 0x80;
    }
    block.extend(u8::try_from(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    type Decoded = Vec<(String, String)>;

    fn decode(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Decoded, DecodeError> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.decode(block, &mut Vec::new(), |field| fields.push((text(field.name), text(field.value))))?;
        Ok(fields)
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    fn fields(pairs: &[(&str, &str)]) -> Decoded {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// The blocks are those of RFC 7541, C.3 and C.4: without and with Huffman coding.
    #[test]
    fn the_examples_of_the_rfc_are_decoded() {
        let get = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
        let cached = [&get[..], &[("cache-control", "no-cache")]].concat();
        let custom = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ];
        for blocks in [
            [
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                "8286 84be 5808 6e6f 2d63 6163 6865",
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            ],
            [
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                "8286 84be 5886 a8eb 1064 9cbf",
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            ],
        ] {
            let mut decoder = HpackDecoder::new();
            for (block, expected) in blocks.iter().zip([&get[..], &cached, &custom]) {
                assert_eq!(decode(&mut decoder, &bytes(block)).unwrap(), fields(expected));
            }
            assert_eq!((decoder.table.size, decoder.table.entries.len()), (164, 3));
        }
    }

    #[test]
    fn an_invalid_block_is_an_error() {
        for block in [
            "80",
            "be",
            "ff",
            "ffffffffff7f",
            "40",
            "4001",
            "40017801",
            "400178817c",
            "82 20",
            "3fe21f",
            "20 3fe11f 82 3fe11f",
        ] {
            assert_eq!(decode(&mut HpackDecoder::new(), &bytes(block)), Err(DecodeError), "{block}");
        }
        for block in ["", "20", "3fe11f", "20 3fe11f 82", "00 0178 00", "10 0178 0179"] {
            assert!(decode(&mut HpackDecoder::new(), &bytes(block)).is_ok(), "{block}");
        }
    }

    /// The oldest entries are removed first, and an entry that is larger than the table removes all.
    #[test]
    fn the_table_holds_no_more_than_its_size() {
        let mut decoder = HpackDecoder::new();
        let add = |name: u8, length: usize| {
            let mut block = vec![0x40, 1, name];
            write_integer(&mut block, 0, 7, length);
            block.resize(block.len() + length, b'v');
            block
        };
        let names = |decoder: &HpackDecoder| -> String {
            decoder.table.entries.iter().map(|entry| char::from(entry.bytes[0])).collect()
        };
        for name in *b"abcd" {
            decode(&mut decoder, &add(name, 1000)).unwrap();
        }
        assert_eq!((names(&decoder).as_str(), decoder.table.size), ("dcb", 3 * 1033));
        decode(&mut decoder, &bytes("3fe1 0f")).unwrap();
        assert_eq!(names(&decoder), "d");
        decode(&mut decoder, &add(b'e', 2100)).unwrap();
        assert_eq!((names(&decoder).as_str(), decoder.table.size), ("", 0));
        // The first index of the table is that of the newest.
        decode(&mut decoder, &add(b'f', 1)).unwrap();
        assert_eq!(decode(&mut decoder, &[0xbe]).unwrap(), fields(&[("f", "v")]));
        decode(&mut decoder, &[0x20]).unwrap();
        assert_eq!(names(&decoder), "");
    }
}
