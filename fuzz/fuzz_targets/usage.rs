//! `fuzz/targets/usage.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/usage.rs"]
mod usage;

libfuzzer_sys::fuzz_target!(|input: usage::Input<'_>| usage::run(input));
