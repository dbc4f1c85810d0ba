//! `fuzz/targets/proxy.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/proxy.rs"]
mod proxy;

libfuzzer_sys::fuzz_target!(|input: proxy::Input<'_>| proxy::run(input));
