//! `fuzz/targets/request.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/request.rs"]
mod request;

libfuzzer_sys::fuzz_target!(|input: request::Input<'_>| request::run(input));
