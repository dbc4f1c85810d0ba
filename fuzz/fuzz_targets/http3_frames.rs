//! `fuzz/targets/http3_frames.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/http3_frames.rs"]
mod http3_frames;

libfuzzer_sys::fuzz_target!(|input: http3_frames::Input<'_>| http3_frames::run(input));
