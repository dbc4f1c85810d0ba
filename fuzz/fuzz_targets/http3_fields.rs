//! `fuzz/targets/http3_fields.rs` driven by libFuzzer.
#![no_main]

#[path = "../targets/http3_fields.rs"]
mod http3_fields;

libfuzzer_sys::fuzz_target!(|input: http3_fields::Input<'_>| http3_fields::run(input));
