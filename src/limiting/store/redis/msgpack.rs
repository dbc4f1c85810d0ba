//! Integers in MessagePack. A call of the script and its reply are one array of integers each.
//!
//! This file replaces the `rmp` crate, which costs more CPU per decision. Measured with a call of 10 decisions on the
//! release profile: `rmp` encodes it in about 1.6 µs and decodes the reply in 0.23 µs, this file in 0.6 µs and 0.17 µs.
//! The writer also counts the integers, because the header of the array comes first.

/// Integers to send. Each has the shortest of four encodings.
#[derive(Default)]
pub struct IntWriter {
    bytes: Vec<u8>,
    count: usize,
}

impl IntWriter {
    /// Creates a writer with space for `bytes`.
    pub fn with_capacity(bytes: usize) -> IntWriter {
        IntWriter { bytes: Vec::with_capacity(bytes), count: 0 }
    }

    /// Adds an integer.
    pub fn push(&mut self, int: i64) {
        self.count += 1;
        if let Ok(byte @ 0..=0x7f) = u8::try_from(int) {
            self.bytes.push(byte);
        } else if let Ok(short) = u16::try_from(int) {
            self.bytes.push(0xcd);
            self.bytes.extend(short.to_be_bytes());
        } else if let Ok(long) = u32::try_from(int) {
            self.bytes.push(0xce);
            self.bytes.extend(long.to_be_bytes());
        } else {
            self.bytes.push(0xd3);
            self.bytes.extend(int.to_be_bytes());
        }
    }

    /// Adds a length or an index.
    pub fn push_len(&mut self, len: usize) {
        self.push(i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// Encodes one array of these integers and those of `rest`.
    pub fn encode_array(&self, rest: &IntWriter) -> Vec<u8> {
        let count = u32::try_from(self.count + rest.count).unwrap_or(u32::MAX);
        let mut array = Vec::with_capacity(5 + self.bytes.len() + rest.bytes.len());
        array.push(0xdd);
        array.extend(count.to_be_bytes());
        array.extend(&self.bytes);
        array.extend(&rest.bytes);
        array
    }
}

/// Reads an array of integers.
pub struct IntReader<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> IntReader<'a> {
    /// Reads the header. Returns `None` if the value is not an array.
    pub fn open(bytes: &'a [u8]) -> Option<IntReader<'a>> {
        let (head, mut rest) = bytes.split_first()?;
        let count = match head {
            0x90..=0x9f => u32::from(head & 0x0f),
            0xdc => u32::from(u16::from_be_bytes(take_bytes(&mut rest)?)),
            0xdd => u32::from_be_bytes(take_bytes(&mut rest)?),
            _ => return None,
        };
        Some(IntReader { bytes: rest, count: usize::try_from(count).ok()? })
    }

    /// Reads the next integer. Returns `None` at the end, or if the value is not an integer of 64 bits.
    pub fn read_int(&mut self) -> Option<i64> {
        self.count = self.count.checked_sub(1)?;
        let [head] = take_bytes(&mut self.bytes)?;
        let rest = &mut self.bytes;
        Some(match head {
            0x00..=0x7f => i64::from(head),
            0xe0..=0xff => i64::from(head.cast_signed()),
            0xcc => i64::from(u8::from_be_bytes(take_bytes(rest)?)),
            0xcd => i64::from(u16::from_be_bytes(take_bytes(rest)?)),
            0xce => i64::from(u32::from_be_bytes(take_bytes(rest)?)),
            0xcf => i64::try_from(u64::from_be_bytes(take_bytes(rest)?)).ok()?,
            0xd0 => i64::from(i8::from_be_bytes(take_bytes(rest)?)),
            0xd1 => i64::from(i16::from_be_bytes(take_bytes(rest)?)),
            0xd2 => i64::from(i32::from_be_bytes(take_bytes(rest)?)),
            0xd3 => i64::from_be_bytes(take_bytes(rest)?),
            _ => return None,
        })
    }

    /// Returns whether the whole array was read and nothing follows.
    pub fn is_done(&self) -> bool {
        self.count == 0 && self.bytes.is_empty()
    }
}

fn take_bytes<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: [i64; 10] = [0, 127, 128, 65_535, 65_536, 4_294_967_295, 4_294_967_296, i64::MAX, -1, i64::MIN];

    fn array(ints: &[i64]) -> Vec<u8> {
        let mut some = IntWriter::default();
        ints.iter().for_each(|int| some.push(*int));
        IntWriter::default().encode_array(&some)
    }

    fn read(bytes: &[u8]) -> Option<Vec<i64>> {
        let mut reader = IntReader::open(bytes)?;
        let ints = (0..reader.count).map(|_| reader.read_int()).collect::<Option<Vec<i64>>>()?;
        reader.is_done().then_some(ints)
    }

    #[test]
    fn integers_take_their_shortest_form() {
        let array = array(&SOME[..8]);
        assert_eq!(array[..5], [0xdd, 0, 0, 0, 8]);
        assert_eq!(array[5..10], [0, 127, 0xcd, 0, 128]);
        assert_eq!(array.len(), 5 + 2 + 2 * 3 + 2 * 5 + 2 * 9);
    }

    #[test]
    fn an_array_is_read_whole_or_not_at_all() {
        let whole = array(&SOME);
        assert_eq!(read(&whole).as_deref(), Some(&SOME[..]));
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len]), None, "{len} bytes");
        }
        assert_eq!(read(&[&whole[..], &[0]].concat()), None);
    }

    #[test]
    fn every_form_of_an_integer_is_read() {
        let forms: [(&[u8], i64); 11] = [
            (&[0x7f], 127),
            (&[0xe0], -32),
            (&[0xff], -1),
            (&[0xcc, 0xff], 255),
            (&[0xcd, 1, 0], 256),
            (&[0xce, 1, 0, 0, 0], 1 << 24),
            (&[0xcf, 0, 1, 0, 0, 0, 0, 0, 0], 1 << 48),
            (&[0xd0, 0x80], -128),
            (&[0xd1, 0x80, 0], -32_768),
            (&[0xd2, 0x80, 0, 0, 0], -(1 << 31)),
            (&[0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe], -2),
        ];
        for (bytes, int) in forms {
            assert_eq!(read(&[&[0x91], bytes].concat()), Some(vec![int]));
            assert_eq!(read(&[&[0xdc, 0, 1], bytes].concat()), Some(vec![int]));
        }
        // Too large, a double, text, nil, and no array.
        let bad: [&[u8]; 5] =
            [&[0x91, 0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0], &[0x91, 0xcb], &[0x91, 0xa0], &[0x91, 0xc0], &[1]];
        bad.into_iter().for_each(|bytes| assert_eq!(read(bytes), None, "{bytes:?}"));
    }
}
