//! Decodes a copy of a gzip response in pieces, within bounds.

use std::fmt;

use flate2::{Decompress, FlushDecompress, Status};

use crate::telemetry::metrics::ScanFault;

/// Size of the output buffer.
const PIECE: usize = 4096;
/// Maximum number of decoded bytes of a response.
const OUTPUT_MAX: u64 = 64 << 20;
/// Maximum number of decoded bytes per encoded byte, beyond the first 16 MiB. Only texts that repeat themselves exceed
/// it.
const RATIO_MAX: u64 = 100;
const RATIO_FREE: u64 = 16 << 20;
/// Maximum number of decoded bytes of one piece, which may be 1 MiB long. It bounds how long a piece delays the other
/// requests of the worker: the ratio alone would let a response that begins with incompressible data end in a small
/// piece of 64 MiB.
const PIECE_OUTPUT_MAX: u64 = 16 << 20;

/// Maximum number of members of a body, each a gzip stream. A server may write one for each part of a response.
const MEMBERS_MAX: u32 = 1000;

/// Decoder of a gzip body. Its state takes about 50 KiB: the window of 32 KiB, tables, and the output buffer.
pub struct Gunzip {
    /// Decodes the current member.
    inflate: Decompress,
    output: Box<[u8]>,
    /// The current member is complete.
    has_ended: bool,
    members: u32,
    /// Encoded and decoded bytes of the members before the current one.
    before: (u64, u64),
    output_max: u64,
    piece_output_max: u64,
}

impl Default for Gunzip {
    fn default() -> Gunzip {
        Gunzip {
            inflate: Decompress::new_gzip(15),
            output: vec![0; PIECE].into(),
            has_ended: false,
            members: 1,
            before: (0, 0),
            output_max: OUTPUT_MAX,
            piece_output_max: PIECE_OUTPUT_MAX,
        }
    }
}

impl Gunzip {
    /// Returns whether all members so far are complete.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the number of encoded bytes that were decoded.
    pub fn decoded_from(&self) -> u64 {
        self.totals().0
    }

    /// Returns the number of encoded bytes that were decoded, and of those that they became.
    fn totals(&self) -> (u64, u64) {
        (self.before.0 + self.inflate.total_in(), self.before.1 + self.inflate.total_out())
    }

    /// Begins another member.
    fn begin_member(&mut self) -> Result<(), ScanFault> {
        if self.members == MEMBERS_MAX {
            return Err(ScanFault::TooLarge);
        }
        self.before = self.totals();
        self.inflate = Decompress::new_gzip(15);
        (self.members, self.has_ended) = (self.members + 1, false);
        Ok(())
    }

    /// Decodes the next piece, and passes what it contains to `sink`.
    ///
    /// # Errors
    /// The data are damaged, something else follows them, or they expand beyond the bounds.
    pub fn push(&mut self, mut bytes: &[u8], mut sink: impl FnMut(&[u8])) -> Result<(), ScanFault> {
        let output_max = self.output_max.min(self.totals().1 + self.piece_output_max);
        loop {
            match self.has_ended {
                true if bytes.is_empty() => return Ok(()),
                true => self.begin_member()?,
                false => {}
            }
            let (read, written) = self.totals();
            let status = self.inflate.decompress(bytes, &mut self.output, FlushDecompress::None);
            let (total_in, total_out) = self.totals();
            let read = usize::try_from(total_in - read).unwrap_or(bytes.len());
            let written = usize::try_from(total_out - written).unwrap_or(0);
            sink(&self.output[..written.min(PIECE)]);
            bytes = &bytes[read.min(bytes.len())..];
            if total_out > output_max || total_out > RATIO_FREE + RATIO_MAX * total_in {
                return Err(ScanFault::TooLarge);
            }
            match status {
                Ok(Status::StreamEnd) => self.has_ended = true,
                Ok(Status::Ok | Status::BufError) if written == PIECE => {}
                Ok(Status::Ok | Status::BufError) if bytes.is_empty() => return Ok(()),
                Ok(_) if read > 0 || written > 0 => {}
                Ok(_) | Err(_) => return Err(ScanFault::Gzip),
            }
        }
    }
}

impl fmt::Debug for Gunzip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gunzip").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8], size: usize) -> (Result<(), ScanFault>, usize, Vec<u8>) {
        let (mut decoder, mut length, mut text) = (Gunzip::default(), 0, Vec::new());
        for piece in bytes.chunks(size) {
            let sink = |decoded: &[u8]| {
                length += decoded.len();
                let free = 100_000_usize.saturating_sub(text.len()).min(decoded.len());
                text.extend_from_slice(&decoded[..free]);
            };
            if let Err(fault) = decoder.push(piece, sink) {
                return (Err(fault), length, text);
            }
        }
        (Ok(()), length, text)
    }

    #[test]
    fn pieces_of_any_size_are_decoded() {
        let text: Vec<u8> = (0..20_000u32).flat_map(|number| (number * number).to_string().into_bytes()).collect();
        for size in [1, 100, 4096, 1_000_000] {
            let (outcome, length, read) = read(&gzip(&text), size);
            assert_eq!((outcome, length), (Ok(()), text.len()), "{size}");
            assert_eq!(read, text[..100_000]);
        }
        // A server flushes after each event, and the events are read before the end.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"data: 1\n\n").unwrap();
        encoder.flush().unwrap();
        assert_eq!(read(encoder.get_ref(), 5).2, b"data: 1\n\n");
    }

    #[test]
    fn members_are_decoded_one_after_another() {
        let members: Vec<u8> = ["one ", "", "two ", "three"].iter().flat_map(|text| gzip(text.as_bytes())).collect();
        for size in [1, 7, 1000] {
            assert_eq!(read(&members, size), (Ok(()), 13, b"one two three".to_vec()), "{size}");
        }
        let most = gzip(b"").repeat(MEMBERS_MAX as usize);
        assert_eq!(read(&most, 10_000).0, Ok(()));
        assert_eq!(read(&[most, gzip(b"x")].concat(), 10_000).0, Err(ScanFault::TooLarge));
    }

    #[test]
    fn what_is_damaged_or_too_large_ends_the_scan() {
        let mut damaged = gzip(&[b'x'; 1000]);
        damaged[12] ^= 0x55;
        assert_eq!(read(&damaged, 7).0, Err(ScanFault::Gzip));
        assert_eq!(read(b"no gzip at all, but text", 7).0, Err(ScanFault::Gzip));
        let mut more = gzip(b"x");
        more.extend_from_slice(b"no member");
        assert_eq!(read(&more, 1000).0, Err(ScanFault::Gzip));
        let (mut decoder, mut length) = (Gunzip { output_max: 100_000, ..Gunzip::default() }, 0);
        let outcome = decoder.push(&gzip(&vec![0; 200_000]), |decoded| length += decoded.len());
        assert_eq!(outcome, Err(ScanFault::TooLarge));
        assert!(length <= 100_000 + PIECE, "{length}");
        // 64 KiB that decode to 64 MiB, in one piece: about a quarter of it is decoded.
        let bomb = gzip(&vec![0; 64 << 20]);
        let (outcome, length, _) = read(&bomb, bomb.len());
        assert_eq!(outcome, Err(ScanFault::TooLarge));
        assert!(length <= (16 << 20) + 100 * bomb.len() + PIECE, "{length} of {}", bomb.len());
        // A response that begins with incompressible data may expand more, but not all at once.
        let random: Vec<u8> = (0..20_000_u32).flat_map(|n| n.wrapping_mul(n ^ 0x9e37_79b9).to_le_bytes()).collect();
        let bomb = gzip(&[random, vec![0; 2 << 20]].concat());
        let decode = |size: usize| {
            let (mut decoder, mut length) = (Gunzip { piece_output_max: 1 << 20, ..Gunzip::default() }, 0);
            let outcome =
                bomb.chunks(size).try_for_each(|piece| decoder.push(piece, |decoded| length += decoded.len()));
            (outcome, length)
        };
        assert_eq!(decode(500).0, Ok(()));
        let (outcome, length) = decode(bomb.len());
        assert_eq!(outcome, Err(ScanFault::TooLarge));
        assert!(length <= (1 << 20) + PIECE, "{length} in one piece");
    }
}
