//! `fuzz/targets/calls.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/calls.rs"]
mod calls;

libfuzzer_sys::fuzz_target!(|input: calls::Input<'_>| calls::run(input));
