//! Whatever bytes a client sends: what the inspector finds does not depend on where they are cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicegate::fuzzing::{Inspector, Reject};

fn verdicts(pieces: &[&[u8]], heads: usize) -> Vec<Option<Reject>> {
    let mut inspector = Inspector::new(1024);
    pieces.iter().for_each(|piece| inspector.feed(piece));
    (0..heads).map(|_| inspector.verdict()).collect()
}

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let heads = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(step) + 1).collect();
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(verdicts(&[bytes], heads), verdicts(&pieces, heads));
    assert_eq!(verdicts(&[bytes], heads), verdicts(&single, heads));
});
