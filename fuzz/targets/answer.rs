//! Whatever an upstream answers: nothing panics, what is kept is bounded, and the reading does not depend
//! on where the bytes are cut.

use bytes::BytesMut;
use http::Method;
use sluicegate::proxy::outbound::http1::body::{BodyPiece, EXTENSIONS_MAX, TRAILERS_MAX};
use sluicegate::proxy::outbound::http1::{ProtocolFault, ResponseHeadReader};
use sluicegate::upstream::HeadBounds;

#[derive(Debug, PartialEq)]
struct Seen {
    head: String,
    body: Vec<u8>,
    trailers: String,
    end: Result<(), ProtocolFault>,
}

fn read(pieces: &[&[u8]], method: &Method) -> Result<Seen, ProtocolFault> {
    let (mut received, mut pieces) = (BytesMut::new(), pieces.iter());
    let mut reader = ResponseHeadReader::new(HeadBounds::DEFAULT);
    let mut head = loop {
        if let Some(head) = reader.take_head(&mut received, method, None)? {
            break head;
        }
        assert!(received.len() <= HeadBounds::DEFAULT.bytes);
        received.extend_from_slice(pieces.next().ok_or(ProtocolFault::CutOff)?);
    };
    let text = format!("{:?} {:?} {}", head.response, head.body, head.keep_alive);
    let mut seen = Seen { head: text, body: Vec::new(), trailers: String::new(), end: Ok(()) };
    let mut ended = false;
    loop {
        match head.body.next_piece(&mut received, ended) {
            Ok(BodyPiece::Data(data)) => {
                assert!(!data.is_empty());
                seen.body.extend_from_slice(&data);
            }
            Ok(BodyPiece::Trailers(trailers)) => seen.trailers = format!("{trailers:?}"),
            Ok(BodyPiece::End) => return Ok(seen),
            Ok(BodyPiece::More) => {
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

pub type Input<'a> = (bool, u8, &'a [u8]);

pub fn run(input: Input<'_>) {
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
}
