//! `fuzz/targets/config.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|input: config::Input<'_>| config::run(input));
