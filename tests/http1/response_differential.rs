//! Responses of upstreams as two readers see them: our own codec and hyper's client. Thousands, made of
//! seeds by mutation and sent whole, in pieces and cut short. What one takes the other must take for the
//! same, but where ours is stricter, and every kind of that is listed.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sluicegate::proxy::outbound::http1::body::BodyPiece;
use sluicegate::proxy::outbound::http1::{ProtocolFault, ResponseHeadReader};
use sluicegate::proxy::outbound::interim::INTERIMS_AT_ONCE;
use sluicegate::upstream::HeadBounds;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::mutations::mutate;

type Fields = Vec<(String, Vec<u8>)>;

/// A response as a parser reads it.
#[derive(Debug, PartialEq)]
struct ParsedResponse {
    status: u16,
    fields: Fields,
    /// The body with its trailers; `None` if it is cut off or malformed.
    body: Option<(Vec<u8>, Fields)>,
}

/// Sorts headers by name, and keeps the order of equal names. Drops hop-by-hop headers, which our parser removes when
/// it reads them.
fn fields(map: &HeaderMap) -> Fields {
    let mut fields: Fields = Vec::new();
    for (name, value) in map {
        let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
        let about_connection = text.split(',').all(|token| matches!(token.trim(), "close" | "keep-alive"));
        if name != "connection" || !about_connection {
            fields.push((name.to_string(), value.as_bytes().to_vec()));
        }
    }
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    fields
}

fn ours(pieces: &[&[u8]], method: &Method) -> Result<ParsedResponse, ProtocolFault> {
    let (mut received, mut pieces) = (BytesMut::new(), pieces.iter());
    let mut more = |received: &mut BytesMut| match pieces.next() {
        Some(piece) => {
            received.extend_from_slice(piece);
            false
        }
        None => true,
    };
    let mut reader = ResponseHeadReader::new(HeadBounds::DEFAULT);
    let mut head = loop {
        match reader.take_head(&mut received, method, None)? {
            Some(head) => break head,
            None if more(&mut received) => return Err(ProtocolFault::CutOff),
            None => {}
        }
    };
    let (mut body, mut trailers, mut ended) = (Vec::new(), Vec::new(), false);
    let whole = loop {
        match head.body.next_piece(&mut received, ended) {
            Ok(BodyPiece::Data(data)) => body.extend_from_slice(&data),
            Ok(BodyPiece::Trailers(map)) => trailers = fields(&map),
            Ok(BodyPiece::End) => break true,
            Ok(BodyPiece::More) => ended = more(&mut received),
            Err(_) => break false,
        }
    };
    Ok(ParsedResponse {
        status: head.response.status().as_u16(),
        fields: fields(head.response.headers()),
        body: whole.then_some((body, trailers)),
    })
}

async fn hypers(pieces: &[&[u8]], method: &Method) -> Option<ParsedResponse> {
    let (client, mut server) = tokio::io::duplex(1 << 20);
    let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(client)).await.unwrap();
    let connection = tokio::task::spawn_local(connection);
    let request = Request::builder().method(method).uri("/").header("host", "a").body(Empty::new()).unwrap();
    let received = async {
        let mut request = [0; 1024];
        let count = server.read(&mut request).await.unwrap();
        assert!(request[..count].ends_with(b"\r\n\r\n"));
        for piece in pieces {
            if server.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(server);
    };
    let read = async {
        let response = sender.send_request(request).await.ok()?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.ok().map(|body| {
            let trailers = body.trailers().map(fields).unwrap_or_default();
            (body.to_bytes().to_vec(), trailers)
        });
        Some(ParsedResponse { status: head.status.as_u16(), fields: fields(&head.headers), body })
    };
    let (seen, ()) = tokio::join!(read, received);
    connection.abort();
    seen
}

/// How ours may be stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stricter {
    /// `Transfer-Encoding` beside `Content-Length`, several, of HTTP/1.0, or other than `chunked`.
    Coding,
    /// More than one `Content-Length`, even if they agree, or one that is no plain number.
    Length,
    /// An unrequested 101.
    Switch,
    /// Interim responses at a higher rate than permitted.
    Interim,
    /// Trailers with bare line feeds.
    Trailers,
    /// A chunk size of more digits than the largest has.
    Digits,
}

/// A difference that is not permitted.
struct Difference(String);

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

async fn compare(pieces: &[&[u8]], method: &Method) -> Result<Option<Stricter>, Difference> {
    let (ours, hypers) = (ours(pieces, method), hypers(pieces, method).await);
    let all = pieces.concat();
    let text = String::from_utf8_lossy(&all).into_owned();
    match (&ours, &hypers) {
        (Err(ProtocolFault::TransferEncoding), Some(_)) => Ok(Some(Stricter::Coding)),
        (Err(ProtocolFault::ContentLength), Some(_)) => Ok(Some(Stricter::Length)),
        (Err(ProtocolFault::Switch), Some(seen)) if seen.status == 101 => Ok(Some(Stricter::Switch)),
        (Err(ProtocolFault::InterimFlood), Some(_)) if text.matches("HTTP/1.").count() > INTERIMS_AT_ONCE as usize => {
            Ok(Some(Stricter::Interim))
        }
        (Err(_), None) => Ok(None),
        (Ok(ours), Some(hypers)) if ours == hypers => Ok(None),
        (Ok(ours), Some(hypers)) if bare_trailers(ours, hypers, &all) => Ok(Some(Stricter::Trailers)),
        (Ok(ours), Some(hypers)) if long_size(ours, hypers, &all) => Ok(Some(Stricter::Digits)),
        _ => Err(Difference(format!("{method} {text:?} in {} pieces:\nours {ours:?}\nhyper {hypers:?}", pieces.len()))),
    }
}

/// Our parser rejects a body with a chunk size that has more than 16 digits.
fn long_size(ours: &ParsedResponse, hypers: &ParsedResponse, all: &[u8]) -> bool {
    let long = all.split(|byte| !byte.is_ascii_hexdigit()).any(|digits| digits.len() > 16);
    (ours.status, &ours.fields) == (hypers.status, &hypers.fields) && ours.body.is_none() && long
}

/// Our parser rejects a body in which a bare line feed follows what may be the last chunk.
fn bare_trailers(ours: &ParsedResponse, hypers: &ParsedResponse, all: &[u8]) -> bool {
    let after = all.windows(3).position(|bytes| bytes == b"0\r\n").map_or(&b""[..], |place| &all[place + 3..]);
    let bare = after.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || after[at - 1] != b'\r'));
    (ours.status, &ours.fields) == (hypers.status, &hypers.fields) && ours.body.is_none() && bare
}

const SEEDS: &[&str] = &[
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nContent-Length:5\r\nContent-Type: text/plain\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.0 200 OK\r\n\r\nuntil the end",
    "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nconnection: close, x-hop\r\nx-hop: 1\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n00\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-a\r\n\r\nA\r\n0123456789\r\n0\r\nx-a: 1\r\nx-b: 2\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5 \t\r\nhello\r\n5 ;a\r\nworld\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n ff\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nhello",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n00000000000000005\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10000000000000000\r\nhello",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 30\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551616\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\ncontent-length: 5\r\n\r\n",
    "HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 404\r\ncontent-length: 2\r\n\r\nno",
    "HTTP/1.1 200 Fine \u{e9}\r\ncontent-length: 2\r\n\r\nok",
    "\r\n\r\nHTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "HTTP/1.1 200 OK\r\nx: 1\r\n folded\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nx : 1\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\n: 1\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nx\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nx: a\tb\x07\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 099 Low\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 999 High\r\ncontent-length: 2\r\n\r\nok",
    "http/1.1 200 OK\r\n\r\n",
    "SSH-2.0-OpenSSH_9.2\r\n",
    "",
];

fn mutated(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = SEEDS.choose(rng).unwrap().as_bytes().to_vec();
    for _ in 0..rng.random_range(1..4) {
        mutate(&mut bytes, SEEDS, rng);
    }
    bytes
}

fn cut<'a>(bytes: &'a [u8], rng: &mut StdRng) -> Vec<&'a [u8]> {
    match rng.random_range(0..3) {
        0 => vec![bytes],
        1 => bytes.chunks(1).collect(),
        _ => bytes.chunks(rng.random_range(1..20)).collect(),
    }
}

fn on_a_worker<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(Default::default()).unwrap().block_on(work)
}

#[test]
fn each_seed_is_read_alike_wherever_it_is_cut() {
    on_a_worker(async {
        for seed in SEEDS.iter().map(|seed| seed.as_bytes()) {
            for method in [Method::GET, Method::HEAD] {
                let whole = compare(&[seed], &method).await.unwrap();
                for place in 0..seed.len() {
                    let (first, rest) = seed.split_at(place);
                    assert_eq!(compare(&[first, rest], &method).await.unwrap(), whole, "{place}");
                    compare(&[first], &method).await.unwrap();
                }
                let bytes: Vec<&[u8]> = seed.chunks(1).collect();
                assert_eq!(compare(&bytes, &method).await.unwrap(), whole);
            }
        }
    });
}

/// `SEED=...` repeats a run.
#[test]
fn thousands_of_mutations_are_read_alike() {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(seed);
    let mut stricter: BTreeMap<Option<Stricter>, usize> = BTreeMap::new();
    on_a_worker(async {
        for _ in 0..12_000 {
            let bytes = mutated(&mut rng);
            let pieces = cut(&bytes, &mut rng);
            let method = if rng.random_bool(0.1) { Method::HEAD } else { Method::GET };
            match compare(&pieces, &method).await {
                Ok(kind) => *stricter.entry(kind).or_default() += 1,
                Err(difference) => panic!("SEED={seed}: {difference:?}"),
            }
        }
    });
    println!("{stricter:?}");
    assert!(stricter[&None] > 9_000, "{stricter:?}");
}

/// Two parsers that reject everything would also agree.
#[test]
fn valid_responses_are_accepted() {
    for seed in &SEEDS[..11] {
        assert!(ours(&[seed.as_bytes()], &Method::GET).is_ok_and(|seen| seen.body.is_some()), "{seed}");
    }
    let interims = "HTTP/1.1 102 Processing\r\n\r\n".repeat(2 * INTERIMS_AT_ONCE as usize) + "HTTP/1.1 200 OK\r\n\r\n";
    assert_eq!(ours(&[interims.as_bytes()], &Method::GET).unwrap_err(), ProtocolFault::InterimFlood);
}
