//! Whatever an upstream answers: nothing panics, what is kept is bounded, and the reading does not depend
//! on where the bytes are cut.
#![no_main]

use bytes::BytesMut;
use http::Method;
use libfuzzer_sys::fuzz_target;
use sluicegate::http::upstream::h1::body::{EXTENSIONS_MAX, Piece, TRAILERS_MAX};
use sluicegate::http::upstream::h1::{ProtocolFault, HEAD_MAX, HeadReader};

#[derive(Debug, PartialEq)]
struct Seen {
    head: String,
    body: Vec<u8>,
    trailers: String,
    end: Result<(), ProtocolFault>,
}

fn read(pieces: &[&[u8]], method: &Method) -> Result<Seen, ProtocolFault> {
    let (mut received, mut pieces) = (BytesMut::new(), pieces.iter());
    let mut reader = HeadReader::default();
    let mut head = loop {
        if let Some(head) = reader.read(&mut received, method, None)? {
            break head;
        }
        assert!(received.len() <= HEAD_MAX);
        received.extend_from_slice(pieces.next().ok_or(ProtocolFault::Cut)?);
    };
    let text = format!("{:?} {:?} {}", head.response, head.body, head.keep_alive);
    let mut seen = Seen { head: text, body: Vec::new(), trailers: String::new(), end: Ok(()) };
    let mut ended = false;
    loop {
        match head.body.next(&mut received, ended) {
            Ok(Piece::Data(data)) => {
                assert!(!data.is_empty());
                seen.body.extend_from_slice(&data);
            }
            Ok(Piece::Trailers(trailers)) => seen.trailers = format!("{trailers:?}"),
            Ok(Piece::End) => return Ok(seen),
            Ok(Piece::More) => {
                assert!(!ended && received.len() <= EXTENSIONS_MAX.max(TRAILERS_MAX) + 512);
                match pieces.next() {
                    Some(piece) => received.extend_from_slice(piece),
                    None => ended = true,
                }
            }
            Err(fault) => {
                seen.end = Err(fault);
                return Ok(seen);
            }
        }
    }
}

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (head, step, bytes) = input;
    let method = if head { Method::HEAD } else { Method::GET };
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(step) + 1).collect();
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    match (read(&single, &method), read(&pieces, &method)) {
        (Ok(single), Ok(pieces)) => assert_eq!(single, pieces),
        (Err(_), Err(_)) => {}
        // A head that is too large is seen at once or byte by byte.
        (single, pieces) => panic!("{single:?}\n{pieces:?}"),
    }
});
