//! Frames of gRPC messages: a flag byte, the length in four bytes, and the message. [`MessageReader`] reads the one
//! message of a unary call from the pieces of its body. It never holds more than one message of the allowed length.

use bytes::{BufMut, Bytes, BytesMut};

use crate::grpc::{CallError, GrpcCode};

/// Bytes before a message: the flag, and the length as a big-endian integer.
const PREFIX: usize = 5;

/// Reads the single message of a call.
#[derive(Debug)]
pub struct MessageReader {
    /// Longest message in bytes.
    max: usize,
    received: BytesMut,
}

impl MessageReader {
    /// Creates a reader of a message of at most `max` bytes.
    pub fn new(max: usize) -> MessageReader {
        MessageReader { max, received: BytesMut::new() }
    }

    /// Adds the next piece of the body.
    ///
    /// # Errors
    /// The message is too long or compressed, or something follows it.
    pub fn add(&mut self, piece: &[u8]) -> Result<(), CallError> {
        let room = (PREFIX + self.max + 1).saturating_sub(self.received.len());
        self.received.extend_from_slice(&piece[..piece.len().min(room)]);
        let Some(length) = self.announced_length()? else { return Ok(()) };
        if self.received.len() > PREFIX + length {
            return Err(CallError::new(GrpcCode::Internal, "the call has more than one message"));
        }
        Ok(())
    }

    /// Returns the message, once the body has ended.
    ///
    /// # Errors
    /// The body ended before the message did.
    pub fn finish(mut self) -> Result<Bytes, CallError> {
        match self.announced_length()? {
            Some(length) if self.received.len() == PREFIX + length => Ok(self.received.split_off(PREFIX).freeze()),
            _ => Err(CallError::new(GrpcCode::Internal, "the call ended before its message did")),
        }
    }

    /// Returns the length of the message, once its prefix has arrived.
    fn announced_length(&self) -> Result<Option<usize>, CallError> {
        let Some((prefix, _)) = self.received.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let [flag, length @ ..] = *prefix;
        match flag {
            0 => {}
            1 => {
                let what = "the message is compressed; send it with grpc-encoding: identity";
                return Err(CallError::new(GrpcCode::Unimplemented, what));
            }
            _ => return Err(CallError::new(GrpcCode::Internal, "the message has an unknown flag")),
        }
        match usize::try_from(u32::from_be_bytes(length)) {
            Ok(length) if length <= self.max => Ok(Some(length)),
            _ => {
                let what = format!("the message is longer than {} bytes", self.max);
                Err(CallError::new(GrpcCode::ResourceExhausted, what))
            }
        }
    }
}

/// Returns the frame of an uncompressed message whose encoding has `length` bytes and is written by `write`.
pub fn write_frame(length: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    write(&mut frame);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(max: usize, pieces: &[&[u8]]) -> Result<Vec<u8>, GrpcCode> {
        let mut reader = MessageReader::new(max);
        for piece in pieces {
            reader.add(piece).map_err(|error| error.code)?;
        }
        reader.finish().map(|message| message.to_vec()).map_err(|error| error.code)
    }

    #[test]
    fn one_message_is_read_in_any_pieces() {
        let frame = write_frame(3, |buffer| buffer.extend_from_slice(b"abc"));
        assert_eq!(frame, b"\0\0\0\0\x03abc".as_slice());
        for cut in 0..=frame.len() {
            assert_eq!(read(3, &[&frame[..cut], &frame[cut..]]), Ok(b"abc".to_vec()), "cut at {cut}");
        }
        assert_eq!(read(3, &[b"\0\0\0\0\0"]), Ok(Vec::new()));
    }

    #[test]
    fn each_fault_has_its_code() {
        for (body, code) in [
            (&b""[..], GrpcCode::Internal),
            (b"\0\0\0\0", GrpcCode::Internal),
            (b"\0\0\0\0\x03ab", GrpcCode::Internal),
            (b"\0\0\0\0\x01ab", GrpcCode::Internal),
            (b"\0\0\0\0\x01a\0\0\0\0\0", GrpcCode::Internal),
            (b"\x02\0\0\0\0", GrpcCode::Internal),
            (b"\x01\0\0\0\x01a", GrpcCode::Unimplemented),
            (b"\0\0\0\0\x04abcd", GrpcCode::ResourceExhausted),
            (b"\0\xff\xff\xff\xff", GrpcCode::ResourceExhausted),
        ] {
            assert_eq!(read(3, &[body]), Err(code), "{body:?}");
        }
    }

    #[test]
    fn a_long_body_is_not_kept() {
        let mut reader = MessageReader::new(3);
        for _ in 0..1000 {
            let _ = reader.add(&[0; 4096]);
        }
        assert!(reader.received.capacity() < 64 * 1024);
    }
}
