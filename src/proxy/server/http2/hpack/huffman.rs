//! Decodes the Huffman code of HPACK (RFC 7541, appendix B).

use std::sync::LazyLock;

/// Bits of a code that the first table resolves. They suffice for the characters that are common in headers.
const FAST: u8 = 10;
const LONGEST: u8 = 30;
const EOS: u16 = 256;

/// The length of each symbol's code in bits; the last one is EOS. The code is canonical, so this defines it.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28,
    28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6,
    7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13,
    19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11,
    14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23,
    23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22,
    21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26,
    24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

static TABLES: LazyLock<Tables> = LazyLock::new(Tables::new);

/// The string is not encoded correctly.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidHuffman;

struct Tables {
    /// Symbol and length for each value of the next `FAST` bits. Length 0: the code is longer.
    fast: Vec<(u16, u8)>,
    /// All symbols in the order of their codes.
    symbols: Vec<u16>,
    /// The codes of each length, indexed by it.
    lengths: [CodeRange; LONGEST as usize + 1],
}

/// The codes of one length.
#[derive(Clone, Copy, Default)]
struct CodeRange {
    first: u32,
    /// One past the last code.
    end: u32,
    /// Index of the first code's symbol in `Tables::symbols`.
    place: usize,
}

impl Tables {
    fn new() -> Tables {
        let mut symbols: Vec<u16> = (0..=EOS).collect();
        symbols.sort_by_key(|symbol| LENGTHS[usize::from(*symbol)]);
        let mut lengths = [CodeRange::default(); LONGEST as usize + 1];
        let (mut code, mut place) = (0, 0);
        for (length, range) in lengths.iter_mut().enumerate() {
            code <<= 1;
            *range = CodeRange { first: code, end: code, place };
            for _ in LENGTHS.iter().filter(|other| usize::from(**other) == length) {
                range.end += 1;
                place += 1;
            }
            code = range.end;
        }
        let mut tables = Tables { fast: vec![(0, 0); 1 << FAST], symbols, lengths };
        for value in 0..1u32 << FAST {
            if let Some(found) = tables.find_symbol(u64::from(value) << (64 - FAST), FAST) {
                tables.fast[value as usize] = found;
            }
        }
        tables
    }

    /// Finds the symbol whose code is at the top of `window`, and the length of the code. `None` if it has more than
    /// `most` bits.
    fn find_symbol(&self, window: u64, most: u8) -> Option<(u16, u8)> {
        (1..=most).find_map(|length| {
            let code = top_bits(window, length);
            let range = self.lengths[usize::from(length)];
            let is_code = code >= range.first && code < range.end;
            is_code.then(|| (self.symbols[range.place + (code - range.first) as usize], length))
        })
    }
}

/// Returns the first `bits` bits of `window`; at most 32.
fn top_bits(window: u64, bits: u8) -> u32 {
    u32::try_from(window >> (64 - bits)).unwrap_or(u32::MAX)
}

/// Appends the decoded form of `encoded` to `decoded`.
///
/// # Errors
/// If `encoded` contains EOS, or its padding is longer than seven bits or not all ones.
pub fn decode(mut encoded: &[u8], decoded: &mut Vec<u8>) -> Result<(), InvalidHuffman> {
    let tables = &*TABLES;
    // The next bits, the first one at the top.
    let (mut window, mut bits) = (0u64, 0u8);
    loop {
        while let (true, [byte, rest @ ..]) = (bits <= 56, encoded) {
            window |= u64::from(*byte) << (56 - bits);
            bits += 8;
            encoded = rest;
        }
        if bits < 8 && window == !(u64::MAX >> bits) {
            return Ok(());
        }
        let (symbol, length) = match tables.fast[top_bits(window, FAST) as usize] {
            (_, 0) => tables.find_symbol(window, LONGEST).ok_or(InvalidHuffman)?,
            found => found,
        };
        if length > bits {
            return Err(InvalidHuffman);
        }
        // EOS is not a byte.
        decoded.push(u8::try_from(symbol).map_err(|_| InvalidHuffman)?);
        window <<= length;
        bits -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(encoded: &[u8]) -> Result<Vec<u8>, InvalidHuffman> {
        let mut decoded = Vec::new();
        decode(encoded, &mut decoded).map(|()| decoded)
    }

    /// Packs the codes of `symbols` and fills up with ones.
    fn encoded(symbols: &[u16]) -> Vec<u8> {
        let mut bits = Vec::new();
        for symbol in symbols {
            let length = LENGTHS[usize::from(*symbol)];
            let range = TABLES.lengths[usize::from(length)];
            let number = TABLES.symbols[range.place..].iter().position(|other| other == symbol).unwrap();
            let code = range.first + u32::try_from(number).unwrap();
            bits.extend((0..length).rev().map(|bit| code >> bit & 1));
        }
        while bits.len() % 8 != 0 {
            bits.push(1);
        }
        bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::try_from(*bit).unwrap())).collect()
    }

    #[test]
    fn the_examples_of_the_rfc_are_decoded() {
        // RFC 7541, C.4 and C.6.
        for (hex, text) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("25a849e95ba97d7f", "custom-key"),
            ("6402", "302"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ] {
            let bytes: Vec<u8> =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
            assert_eq!(decoded(&bytes).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn every_byte_is_echoed() {
        for byte in 0..=255u8 {
            for text in [vec![byte], vec![b'a', byte, byte, b'z'], vec![byte; 20]] {
                let symbols: Vec<u16> = text.iter().map(|byte| u16::from(*byte)).collect();
                assert_eq!(decoded(&encoded(&symbols)).unwrap(), text);
            }
        }
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn wrong_padding_and_eos_are_refused() {
        // 'a' is 00011.
        assert_eq!(decoded(&[0b0001_1111]).unwrap(), b"a");
        for encoded in [
            vec![0b0001_1110],
            vec![0b0001_1000],
            vec![0b0001_1111, 0xff],
            vec![0xff],
            vec![0xff; 4],
            encoded(&[u16::from(b'a'), EOS]),
        ] {
            assert_eq!(decoded(&encoded), Err(InvalidHuffman), "{encoded:?}");
        }
    }
}
