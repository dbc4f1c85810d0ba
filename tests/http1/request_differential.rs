//! Requests on one connection as two readers see them: hyper's server, which serves them, and the inspector,
//! which says what hyper repairs. Thousands of streams, made of seeds by mutation, whole, in pieces and byte by
//! byte. Of each head that hyper takes the inspector has one verdict, where that head ends; both agree on the
//! body, but where the inspector is stricter, and every kind of that is listed.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sluicegate::proxy::head::inspector::Inspector;
use twin::{MAX, Stricter, compare, taken};

use super::mutations::mutate;

mod twin;

const SEEDS: &[&str] = &[
    "GET /a HTTP/1.1\r\nhost: a\r\n\r\n",
    "\r\nGET /b?c HTTP/1.1\r\nHost:a\r\nx: \t y \t\r\n\r\n",
    "HEAD http://a/c HTTP/1.1\r\nhost: a\r\nconnection: keep-alive\r\n\r\n",
    "GET /old HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "POST /l HTTP/1.1\r\nhost: a\r\ncontent-length: 7\r\n\r\na\nb\r\n\r\n",
    "POST /z HTTP/1.1\r\nhost: a\r\nContent-Length:  00 \r\n\r\n",
    "PUT /e HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nok",
    "POST /c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\n\n\n\n\n\n\r\n0\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: Chunked\r\n\r\n1;a=b\r\nx\r\n002 \t;\r\nyz\r\n00\r\n\r\n",
    "POST /t HTTP/1.1\r\ntransfer-encoding: chunked\r\ntrailer: x-a\r\n\r\nA\r\n0123456789\r\n0\r\nx-a: 1\r\nx-b: 2\r\n\r\n",
    "POST /n HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0000000000000000001\r\nx\r\n0;y\r\n\r\n",
    "GET /u HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    "POST /g HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST /2 HTTP/1.1\r\ntransfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    // Requests that only one parser accepts, or that both could read differently.
    "\n\nGET /f HTTP/1.1\r\nhost: a\r\n\r\n",
    "GET /f HTTP/1.1\nhost: a\n\n",
    "GET /f#g HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /s HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /s HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "POST /d HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
    "POST /d HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxy",
    "POST /d HTTP/1.1\r\ncontent-length: +1\r\n\r\nx",
    "POST /d HTTP/1.1\r\ncontent-length : 1\r\n\r\nx",
    "POST /d HTTP/1.1\r\ncontent-length: 18446744073709551616\r\n\r\nx",
    "POST /d HTTP/1.1\r\ncontent-length: 18446744073709551615\r\n\r\nx",
    "POST /i HTTP/1.1\r\ntransfer-encoding: identity\r\n\r\n",
    "POST /i HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET /o HTTP/1.1\r\nx: y\r\n content-length: 5\r\n\r\n",
    "POST /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\n",
    "POST /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\na: b\n\r\n\r\n",
    "POST /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\n\n",
    "POST /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\n\r\n",
    "POST /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\n0\r\n\r\n",
    "POST /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxyz\r\n0\r\n\r\n",
    "POST /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n10000000000000000\r\nx",
    "POST /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1 x\r\nx\r\n0\r\n\r\n",
    "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
];

/// Returns several requests, some of them changed.
fn stream(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.random_range(1..5) {
        // After most of them the connection stays open.
        let of = if rng.random_bool(0.7) { &SEEDS[..14] } else { SEEDS };
        bytes.extend_from_slice(of.choose(rng).unwrap().as_bytes());
    }
    for _ in 0..rng.random_range(0..4) {
        mutate(&mut bytes, SEEDS, rng);
    }
    bytes
}

#[test]
fn each_pair_of_requests_is_read_alike_wherever_it_is_cut() {
    for seed in SEEDS {
        let bytes = [seed, SEEDS[0], SEEDS[15]].concat().into_bytes();
        let whole = compare(&bytes, &[&bytes]).unwrap();
        for place in (1..bytes.len()).step_by(3) {
            let (first, rest) = bytes.split_at(place);
            assert_eq!(compare(&bytes, &[first, rest]), Ok(whole), "{place}");
        }
    }
}

/// `SEED=...` repeats a run.
#[test]
fn thousands_of_streams_are_read_alike() {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(seed);
    let mut stricter: BTreeMap<Option<Stricter>, usize> = BTreeMap::new();
    for _ in 0..2_000 {
        let bytes = stream(&mut rng);
        let step = rng.random_range(1..40);
        let pieces: Vec<&[u8]> = bytes.chunks(step).collect();
        let kind = compare(&bytes, &pieces).unwrap_or_else(|difference| panic!("SEED={seed}: {difference}"));
        *stricter.entry(kind).or_default() += 1;
    }
    println!("{stricter:?}");
    assert!(stricter[&None] > 800 && stricter.contains_key(&Some(Stricter::BareLine)), "{stricter:?}");
}

/// The comparison must include requests that both accept, or it would prove nothing.
#[test]
fn valid_requests_are_accepted_and_the_inspector_is_stricter_as_documented() {
    let good = SEEDS[..14].concat().into_bytes();
    assert_eq!(compare(&good, &[&good]), Ok(None));
    let served = taken(&[&good], Some(Inspector::new(MAX)));
    assert_eq!(served.iter().filter(|head| head.whole).count(), 14, "{served:?}");
    let long =
        format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(2 * MAX));
    for (first, kind) in [
        (SEEDS[14], Stricter::Head),
        (SEEDS[17], Stricter::Head),
        (SEEDS[28], Stricter::BareLine),
        (SEEDS[29], Stricter::BareLine),
        (&long, Stricter::LongLine),
    ] {
        let bytes = [first, SEEDS[0]].concat().into_bytes();
        assert_eq!(compare(&bytes, &[&bytes]), Ok(Some(kind)), "{first:?}");
    }
}
