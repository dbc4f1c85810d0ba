//! Whatever bytes come on a stream of HTTP/3: nothing panics, frames mean the same wherever the bytes are cut, and an
//! incomplete field section keeps no more than it may have.

use bytes::Bytes;
use sluicegate::fuzzing::{CriticalStreams, Http3Error, RequestItem, RequestReader, UniResult, UniStream};

const SECTION_MAX: usize = 512;

/// The body of a request, what came beside it, and how the stream may end.
type Request = (Vec<u8>, Vec<RequestItem>, Result<(), Http3Error>);

fn read_request<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Request {
    let (mut reader, mut body, mut others) = (RequestReader::new(SECTION_MAX), Vec::new(), Vec::new());
    for piece in pieces {
        let mut piece = Bytes::copy_from_slice(piece);
        loop {
            match reader.next(&mut piece) {
                Ok(Some(RequestItem::Data(data))) => body.extend_from_slice(&data),
                Ok(Some(item)) => others.push(item),
                Ok(None) => break,
                Err(code) => return (body, others, Err(code)),
            }
        }
        assert!(piece.is_empty() && reader.kept_bytes() <= SECTION_MAX);
    }
    (body, others, reader.check_end())
}

/// Returns how many frames brought nothing; `None` for a stream that is ignored.
fn read_unidirectional<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Option<u32>, Http3Error> {
    let (mut stream, mut critical, mut idle) = (UniStream::default(), CriticalStreams::default(), 0);
    for piece in pieces {
        match stream.read(Bytes::copy_from_slice(piece), &mut critical)? {
            UniResult::Read { idle_frames } => idle += idle_frames,
            UniResult::Ignored => return Ok(None),
        }
    }
    Ok(Some(idle))
}

pub type Input<'a> = (bool, u8, &'a [u8]);

pub fn run(input: Input<'_>) {
    let (is_request, step, bytes) = input;
    let size = usize::from(step) + 1;
    match is_request {
        true => assert_eq!(read_request(bytes.chunks(size)), read_request(std::iter::once(bytes))),
        false => assert_eq!(read_unidirectional(bytes.chunks(size)), read_unidirectional(std::iter::once(bytes))),
    }
}
