//! Whatever bytes a client sends: the inspector has one verdict for each request that the parser takes, says the
//! same wherever they are cut, and is stricter only in what is listed.
#![no_main]

#[path = "../../tests/gateway/requests/twin.rs"]
mod twin;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(step) + 1).collect();
    twin::compare(bytes, &pieces).unwrap_or_else(|difference| panic!("{difference}"));
});
