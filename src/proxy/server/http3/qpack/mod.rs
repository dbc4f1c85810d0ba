//! QPACK (RFC 9204) without a dynamic table in either direction: the table of the gateway has no room, and the gateway
//! uses none of the client. So a field section stands alone, and a few bytes never stand for many: the decoder stops as
//! soon as the section is larger than allowed.
//!
//! - `mod.rs`: decodes and encodes field sections.
//! - `static_table.rs`: the table that both sides know.
//!
//! The Huffman code is that of HPACK.

mod static_table;

use std::collections::HashMap;
use std::sync::LazyLock;

use http::{HeaderMap, StatusCode};

use crate::proxy::server::http2::hpack::FIELD_OVERHEAD;
use crate::proxy::server::http2::hpack::huffman;
use crate::proxy::server::http3::qpack::static_table::STATIC_TABLE;

/// Why a field section cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionError {
    /// It is invalid, so the connection must end.
    Invalid,
    /// It is larger than allowed.
    TooLarge,
}

/// The first index in the static table of each name.
static NAMES: LazyLock<HashMap<&'static str, u64>> = LazyLock::new(|| {
    let mut names = HashMap::new();
    for (index, (name, _)) in (0..).zip(&STATIC_TABLE) {
        names.entry(*name).or_insert(index);
    }
    names
});

/// Decodes a field section, and calls `add` with the name and value of each field. `max_size`: the largest sum of names,
/// values and 32 for each field.
///
/// # Errors
/// See [`SectionError`]. `add` may have been called for the fields before.
pub fn decode(section: &[u8], max_size: usize, mut add: impl FnMut(&[u8], &[u8])) -> Result<(), SectionError> {
    let mut input = Input(section);
    // The Required Insert Count, and the Base with its sign. Nothing was inserted.
    if input.integer(8)? != 0 || input.first()? & 0x80 != 0 {
        return Err(SectionError::Invalid);
    }
    input.integer(7)?;
    let (mut size, mut name_text, mut value_text) = (0_usize, Vec::new(), Vec::new());
    while let Some(first) = input.0.first().copied() {
        name_text.clear();
        value_text.clear();
        let (name, value): (&[u8], &[u8]) = match first {
            // `1`: a field of a table; `1` again: of the static one.
            0x80.. => {
                let (name, value) = input.static_field(first & 0x40 != 0, 6)?;
                (name.as_bytes(), value.as_bytes())
            }
            // `01N`: a value with a name of a table; `1`: of the static one.
            0x40..=0x7f => {
                let (name, _) = input.static_field(first & 0x10 != 0, 4)?;
                input.string(7, 0x80, max_size, &mut value_text)?;
                (name.as_bytes(), &value_text)
            }
            // `001N`: a name and a value.
            0x20..=0x3f => {
                input.string(3, 0x08, max_size, &mut name_text)?;
                input.string(7, 0x80, max_size, &mut value_text)?;
                (&name_text, &value_text)
            }
            // References behind the Base, where there is nothing.
            _ => return Err(SectionError::Invalid),
        };
        size += name.len() + value.len() + FIELD_OVERHEAD;
        if size > max_size {
            return Err(SectionError::TooLarge);
        }
        add(name, value);
    }
    Ok(())
}

/// The rest of a field section.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn first(&self) -> Result<u8, SectionError> {
        self.0.first().copied().ok_or(SectionError::Invalid)
    }

    /// Reads an integer whose prefix has `bits` bits (RFC 7541, section 5.1). One that needs more than 62 bits is invalid.
    fn integer(&mut self, bits: u8) -> Result<u64, SectionError> {
        let mask = u8::MAX >> (8 - bits);
        let mut value = u64::from(self.first()? & mask);
        self.0 = &self.0[1..];
        if value < u64::from(mask) {
            return Ok(value);
        }
        for shift in (0..63).step_by(7) {
            let byte = self.first()?;
            self.0 = &self.0[1..];
            let part = u64::from(byte & 0x7f);
            value = part
                .checked_shl(shift)
                .filter(|shifted| shifted >> shift == part)
                .and_then(|part| value.checked_add(part))
                .ok_or(SectionError::Invalid)?;
            if byte & 0x80 == 0 {
                return if value >> 62 == 0 { Ok(value) } else { Err(SectionError::Invalid) };
            }
        }
        Err(SectionError::Invalid)
    }

    /// Reads the index of a field, whose prefix has `bits` bits.
    fn static_field(&mut self, is_static: bool, bits: u8) -> Result<(&'static str, &'static str), SectionError> {
        let index = usize::try_from(self.integer(bits)?).map_err(|_| SectionError::Invalid)?;
        STATIC_TABLE.get(index).copied().filter(|_| is_static).ok_or(SectionError::Invalid)
    }

    /// Reads a string whose length has a prefix of `bits` bits, and which is encoded if the bit `huffman_mark` is set.
    fn string(&mut self, bits: u8, huffman_mark: u8, max: usize, text: &mut Vec<u8>) -> Result<(), SectionError> {
        let is_encoded = self.first()? & huffman_mark != 0;
        let length = usize::try_from(self.integer(bits)?).map_err(|_| SectionError::Invalid)?;
        if length > self.0.len() {
            return Err(SectionError::Invalid);
        }
        let (string, rest) = self.0.split_at(length);
        self.0 = rest;
        match is_encoded {
            true => huffman::decode(string, text).map_err(|_| SectionError::Invalid)?,
            false => text.extend_from_slice(string),
        }
        if text.len() > max { Err(SectionError::TooLarge) } else { Ok(()) }
    }
}

/// Encodes the head of a response.
pub fn encode_head(status: StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let mut section = begin_section(headers);
    write_field(":status", status.as_str().as_bytes(), &mut section);
    write_headers(headers, &mut section);
    section
}

/// Encodes trailers.
pub fn encode_trailers(trailers: &HeaderMap) -> Vec<u8> {
    let mut section = begin_section(trailers);
    write_headers(trailers, &mut section);
    section
}

fn begin_section(headers: &HeaderMap) -> Vec<u8> {
    let mut section = Vec::with_capacity(64 + headers.len() * 32);
    section.extend_from_slice(&[0, 0]);
    section
}

fn write_headers(headers: &HeaderMap, section: &mut Vec<u8>) {
    for (name, value) in headers {
        write_field(name.as_str(), value.as_bytes(), section);
    }
}

fn write_field(name: &str, value: &[u8], section: &mut Vec<u8>) {
    match NAMES.get(name) {
        Some(first) => {
            let start = usize::try_from(*first).unwrap_or(usize::MAX);
            let same_name =
                STATIC_TABLE.iter().skip(start).position(|(other, text)| *other == name && text.as_bytes() == value);
            match same_name {
                Some(place) => return write_integer(0xc0, 6, first + place as u64, section),
                None => write_integer(0x50, 4, *first, section),
            }
        }
        None => {
            write_integer(0x20, 3, name.len() as u64, section);
            section.extend_from_slice(name.as_bytes());
        }
    }
    write_integer(0, 7, value.len() as u64, section);
    section.extend_from_slice(value);
}

/// Writes an integer behind `mark`, in a prefix of `bits` bits.
fn write_integer(mark: u8, bits: u8, value: u64, out: &mut Vec<u8>) {
    let most = u8::MAX >> (8 - bits);
    match u8::try_from(value) {
        Ok(value) if value < most => return out.push(mark | value),
        _ => out.push(mark | most),
    }
    let mut rest = value - u64::from(most);
    while let Some(byte) = (rest >= 0x80).then_some(rest & 0x7f) {
        out.push(0x80 | u8::try_from(byte).unwrap_or_default());
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn fields(section: &[u8], max: usize) -> Result<Vec<(String, String)>, SectionError> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decode(section, max, |name, value| fields.push((text(name), text(value)))).map(|()| fields)
    }

    fn encoded(value: u64, mark: u8, bits: u8) -> Vec<u8> {
        let mut out = Vec::new();
        write_integer(mark, bits, value, &mut out);
        out
    }

    #[test]
    fn the_example_of_the_rfc_is_decoded() {
        // RFC 9204, B.1.
        let section = b"\x00\x00\x51\x0b/index.html";
        assert_eq!(fields(section, 1000), Ok(vec![(":path".into(), "/index.html".into())]));
        // `:method: GET`, and a name and a value in the Huffman code: `www.example.com`.
        let huffman = b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let section = [b"\x00\x00\xd1\x2f\x05", &huffman[..], b"\x8c", huffman].concat();
        let name = "www.example.com".to_owned();
        assert_eq!(fields(&section, 1000), Ok(vec![(":method".into(), "GET".into()), (name.clone(), name)]));
        assert_eq!(fields(&[0, 0], 0), Ok(vec![]));
        assert_eq!(fields(&[0, 0x05], 0), Ok(vec![]), "a base of a table that nothing refers to");
    }

    #[test]
    fn what_refers_to_a_dynamic_table_or_breaks_off_is_invalid() {
        for section in [
            &b""[..],
            b"\x00",
            b"\x01\x00",
            b"\x00\x80",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00",
            b"\x00\x00\x80",
            b"\x00\x00\xbf\x00",
            b"\x00\x00\x40\x01a",
            b"\x00\x00\x10",
            b"\x00\x00\x00\x01a",
            b"\x00\x00\xff\x24",
            b"\x00\x00\xff",
            b"\x00\x00\x51",
            b"\x00\x00\x51\x05abcd",
            b"\x00\x00\x51\xff\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f",
            b"\x00\x00\x23abc\x02a",
            // Padding of zeros, padding of eight bits, and EOS.
            b"\x00\x00\x51\x81\x00",
            b"\x00\x00\x51\x82\x1f\xff",
            b"\x00\x00\x51\x84\xff\xff\xff\xff",
        ] {
            assert_eq!(fields(section, 1000), Err(SectionError::Invalid), "{section:?}");
        }
        assert_eq!(fields(b"\x00\x00\xff\x23", 1000).map(|fields| fields.len()), Ok(1), "the last entry");
    }

    #[test]
    fn the_size_counts_each_field_and_ends_the_work() {
        let one = b"\xd1";
        let section = [b"\x00\x00", &one[..], one, one].concat();
        let size = ":methodGET".len() + FIELD_OVERHEAD;
        assert!(fields(&section, 3 * size).is_ok());
        assert_eq!(fields(&section, 3 * size - 1), Err(SectionError::TooLarge));
        let mut count = 0;
        let bomb = [&[0, 0][..], &[0xd1; 100_000]].concat();
        assert_eq!(decode(&bomb, 10 * size, |_, _| count += 1), Err(SectionError::TooLarge));
        assert_eq!(count, 10);
    }

    #[test]
    fn responses_use_the_static_table() {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("server", HeaderValue::from_static("x"));
        headers.insert("x-a", HeaderValue::from_static("y"));
        let section = encode_head(StatusCode::OK, &headers);
        assert_eq!(section, b"\x00\x00\xd9\xee\x5f\x4d\x01x\x23x-a\x01y");
        assert_eq!(encode_head(StatusCode::IM_A_TEAPOT, &HeaderMap::new()), b"\x00\x00\x5f\x09\x03418");
        assert_eq!(encoded(1337, 0, 5), [31, 154, 10], "RFC 7541, C.1.2");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            status in 200..600_u16,
            list in proptest::collection::vec(("[a-z-]{1,20}", "[ -~]{0,300}"), 0..20),
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in &list {
                headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
            }
            let section = encode_head(StatusCode::from_u16(status).unwrap(), &headers);
            let read = fields(&section, usize::MAX).unwrap();
            let text = |value: &HeaderValue| String::from_utf8(value.as_bytes().to_vec()).unwrap();
            let sent = headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value)));
            let all: Vec<_> = [(":status".to_owned(), status.to_string())].into_iter().chain(sent).collect();
            prop_assert_eq!(read, all);
        }

        #[test]
        fn no_bytes_panic(section in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = fields(&section, 4096);
        }
    }
}
