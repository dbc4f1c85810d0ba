//! What commands write to standard error is JSON with `--log-format json`, so only one file writes there.

use super::source::crate_files;

#[test]
fn only_one_file_writes_to_standard_error() {
    let is_macro = |words: &[String]| words[1] == "!" && ["eprintln", "eprint", "dbg"].contains(&words[0].as_str());
    let writers: Vec<&str> = crate_files()
        .iter()
        .filter(|file| file.words.windows(2).any(is_macro))
        .map(|file| file.path.as_str())
        .collect();
    assert_eq!(writers, ["src/cli/report.rs"], "call the functions of src/cli/report.rs instead");
}
