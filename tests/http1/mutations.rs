//! Random changes that turn good messages into hostile ones. A helper for the comparisons of two parsers.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Tokens by which parsers separate messages or count bytes.
const WORDS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    ";",
    ",",
    ":",
    "#",
    "0",
    "1",
    "5",
    "f",
    "0x",
    "+",
    "-",
    "\0",
    "\u{b}",
    "\x7f",
    "\r\n\r\n",
    "\n\n",
    "chunked",
    "0\r\n",
    "0\r\n\r\n",
    "1\r\na\r\n",
    "ffffffffffffffff",
    "content-length: 5\r\n",
    "Content-Length: 0\r\n",
    "transfer-encoding: chunked\r\n",
    "transfer-encoding: chunked\n",
    "connection: close\r\n",
    "x: y\r\n",
    "HTTP/1.1\r\n",
    "HTTP/1.1 ",
    "HTTP/1.0",
    "HTTP/1.0 ",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "200",
    "204",
    "304",
];

/// One change somewhere, or one of `seeds` behind.
pub fn mutate(bytes: &mut Vec<u8>, seeds: &[&str], rng: &mut StdRng) {
    let place = rng.random_range(0..=bytes.len());
    let end = (place + rng.random_range(0..12)).min(bytes.len());
    match rng.random_range(0..7) {
        0 => bytes.truncate(place),
        1 => drop(bytes.drain(place..end)),
        2 => {
            let copy = bytes[place..end].to_vec();
            bytes.splice(place..place, copy);
        }
        3 => bytes.extend_from_slice(seeds.choose(rng).unwrap().as_bytes()),
        4 if place < bytes.len() => bytes[place] = rng.random(),
        _ => drop(bytes.splice(place..place, WORDS.choose(rng).unwrap().bytes())),
    }
}
