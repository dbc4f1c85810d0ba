//! Whatever a config says: it is compiled, or every mistake has a place and a text. Never more than one
//! reading: what was compiled once compiles again.

use sluicegate::config::load_text;

pub type Input<'a> = &'a str;

pub fn run(text: Input<'_>) {
    // Files are not the matter, and some never end.
    if text.contains("file") || text.contains("include") {
        return;
    }
    match load_text("fuzz.toml", text) {
        Ok(_) => assert!(load_text("fuzz.toml", text).is_ok()),
        Err(report) => {
            let told = report.render(false);
            assert!(told.contains("fuzz.toml"), "{told}");
        }
    }
}
