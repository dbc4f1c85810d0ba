//! Whatever a config says: it is compiled, or every mistake has a place and a text. Never more than one
//! reading: what was compiled once compiles again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicegate::config::from_text;

fuzz_target!(|text: &str| {
    // Files are not the matter, and some never end.
    if text.contains("file") || text.contains("include") {
        return;
    }
    match from_text("fuzz.toml", text) {
        Ok(_) => assert!(from_text("fuzz.toml", text).is_ok()),
        Err(report) => {
            let told = report.render(false);
            assert!(told.contains("fuzz.toml"), "{told}");
        }
    }
});
