//! Variable-length integers of QUIC (RFC 9000, section 16).

/// The largest value.
pub const MAX: u64 = (1 << 62) - 1;
/// The most bytes of one integer.
pub const LONGEST: usize = 8;

/// Reads the integer at the start of `bytes`, and returns it with its length. `None`: it is incomplete.
pub fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1_usize << (first >> 6);
    let rest = bytes.get(1..length)?;
    let value = rest.iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, length))
}

/// Appends `value` in the shortest form. A larger value than [`MAX`] is written as that.
pub fn write(value: u64, out: &mut Vec<u8>) {
    let value = value.min(MAX);
    let (length, mark): (usize, u8) = match value {
        0..=0x3f => (1, 0),
        0x40..=0x3fff => (2, 0x40),
        0x4000..=0x3fff_ffff => (4, 0x80),
        _ => (8, 0xc0),
    };
    let start = out.len();
    out.extend_from_slice(&value.to_be_bytes()[LONGEST - length..]);
    out[start] |= mark;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc_are_read_and_the_shortest_form_is_written() {
        // RFC 9000, A.1.
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(out, bytes);
        }
        assert_eq!(read(&[0x40, 0x25]), Some((37, 2)), "a longer form than needed is allowed");
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(read(&out), Some((value, out.len())));
        }
    }
}
