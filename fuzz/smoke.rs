//! Runs each fuzz target for some seconds without cargo-fuzz: first on its corpus, then on random changes of it.
//!
//! `make fuzz-smoke` runs this. `SECONDS_EACH` is the time of each target, 3 by default. A failure prints its seed, and
//! `SEED=...` repeats the same inputs. An input that fails is kept in `fuzz/artifacts`, where `cargo fuzz run` can read it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a target fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Unstructured};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

#[path = "targets/answer.rs"]
mod answer;
#[path = "targets/calls.rs"]
mod calls;
#[path = "targets/client.rs"]
mod client;
#[path = "targets/config.rs"]
mod config;
#[path = "targets/http3_fields.rs"]
mod http3_fields;
#[path = "targets/http3_frames.rs"]
mod http3_frames;
#[path = "targets/path.rs"]
mod path;
#[path = "targets/proxy.rs"]
mod proxy;
#[path = "targets/request.rs"]
mod request;
#[path = "targets/rpc.rs"]
mod rpc;
#[path = "targets/usage.rs"]
mod usage;

/// Longest input, as in `fuzz/run.sh`.
const LONGEST: usize = 4096;

/// Writes the input to a file when the target panics.
struct Kept<'a> {
    target: &'a str,
    seed: u64,
    input: &'a [u8],
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let folder = root().join("artifacts").join(self.target);
            let file = folder.join(format!("smoke-{}", self.seed));
            let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, self.input));
            eprintln!("input in {} ({written:?}); repeat with SEED={}", file.display(), self.seed);
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The files of a target's corpus, in an order that is the same everywhere.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = std::fs::read_dir(root().join("corpus").join(target)).unwrap();
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// An input of the corpus with a few changes: bytes flipped, removed, repeated, inserted, or taken from another input.
fn changed(corpus: &[Vec<u8>], rng: &mut StdRng) -> Vec<u8> {
    let mut input = corpus.choose(rng).unwrap().clone();
    for _ in 0..rng.random_range(1..=4) {
        let from = rng.random_range(0..=input.len());
        let to = (from + rng.random_range(0..=16)).min(input.len());
        match rng.random_range(0..5) {
            0 if from < input.len() => input[from] ^= 1 << rng.random_range(0..8),
            1 => drop(input.drain(from..to)),
            2 => {
                let part = input[from..to].to_vec();
                input.splice(from..from, part);
            }
            3 => input.insert(from, *[0, b'\r', b'\n', b' ', b'"', b'%', b'/', 0x7f, 0xff].choose(rng).unwrap()),
            _ => {
                let other = corpus.choose(rng).unwrap();
                let start = rng.random_range(0..=other.len());
                let end = (start + rng.random_range(0..=64)).min(other.len());
                input.splice(from..to, other[start..end].iter().copied());
            }
        }
    }
    input.truncate(LONGEST);
    input
}

/// Runs a target on inputs that are decoded as libFuzzer does it.
fn drive(target: &str, run: impl Fn(&mut Unstructured<'_>)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let span = Duration::from_secs(number("SECONDS_EACH").unwrap_or(3));
    let seed = number("SEED").unwrap_or_else(rand::random);
    let once = |input: &[u8]| {
        let kept = Kept { target, seed, input };
        run(&mut Unstructured::new(kept.input));
    };
    let corpus = corpus(target);
    assert!(corpus.len() > 10, "only {} inputs in the corpus of {target}", corpus.len());
    corpus.iter().for_each(|input| once(input));
    let (mut rng, mut count, end) = (StdRng::seed_from_u64(seed), corpus.len(), Instant::now() + span);
    while Instant::now() < end {
        once(&changed(&corpus, &mut rng));
        count += 1;
    }
    println!("{target}: {count} inputs");
}

macro_rules! targets {
    ($($target:ident)*) => {$(
        #[test]
        fn $target() {
            drive(stringify!($target), |bytes| {
                let bytes = std::mem::replace(bytes, Unstructured::new(&[]));
                if let Ok(input) = $target::Input::arbitrary_take_rest(bytes) {
                    $target::run(input);
                }
            });
        }
    )*};
}

targets!(answer calls client config http3_fields http3_frames path proxy request rpc usage);
