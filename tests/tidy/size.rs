//! Files that can be read in one go.

use super::source::{below, crate_files};

const LONGEST: usize = 500;
const MEDIAN: usize = 180;

#[test]
fn no_file_is_longer_than_can_be_read_at_once() {
    for file in crate_files().iter().chain(&below("tests")) {
        assert!(file.lines <= LONGEST, "{} has {} lines, {LONGEST} are the most: part it", file.path, file.lines);
    }
    let mut lines: Vec<usize> = crate_files().iter().map(|file| file.lines).collect();
    lines.sort_unstable();
    let median = lines[lines.len() / 2];
    assert!(median < MEDIAN, "half of the files have {median} lines and more");
}
