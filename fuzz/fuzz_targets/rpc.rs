//! `fuzz/targets/rpc.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/rpc.rs"]
mod rpc;

libfuzzer_sys::fuzz_target!(|input: rpc::Input<'_>| rpc::run(input));
