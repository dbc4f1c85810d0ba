//! `fuzz/targets/client.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/client.rs"]
mod client;

libfuzzer_sys::fuzz_target!(|input: client::Input<'_>| client::run(input));
