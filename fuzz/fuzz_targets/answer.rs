//! `fuzz/targets/answer.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/answer.rs"]
mod answer;

libfuzzer_sys::fuzz_target!(|input: answer::Input<'_>| answer::run(input));
