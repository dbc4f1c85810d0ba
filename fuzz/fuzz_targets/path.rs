//! `fuzz/targets/path.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/path.rs"]
mod path;

libfuzzer_sys::fuzz_target!(|input: path::Input<'_>| path::run(input));
