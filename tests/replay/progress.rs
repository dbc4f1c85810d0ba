//! The progress display: on a terminal, and nowhere else.

use std::process::{Command, Stdio};

use super::reports::{COMBINED, CONFIG};
use super::workdir::Dir;

/// Takes a second or so.
fn long() -> (Dir, usize) {
    let dir = Dir::new(CONFIG);
    let lines = if cfg!(debug_assertions) { 40_000 } else { 1_000_000 };
    dir.write("long.log", (COMBINED.lines().next().unwrap().to_owned() + "\n").repeat(lines).as_bytes());
    (dir, lines)
}

#[test]
fn a_terminal_shows_a_temporary_progress_bar() {
    let (dir, lines) = long();
    let command = format!("'{}' replay long.log", env!("CARGO_BIN_EXE_sluicegate"));
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .current_dir(&dir.0)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("script: {error}; install it: apt-get install bsdutils"));
    let shown = String::from_utf8(output.stdout).unwrap();
    let (bars, response) = shown.rsplit_once("\r\x1b[K").unwrap();
    let bars: Vec<&str> = bars.split('\r').collect();
    assert!(bars.len() > 1, "{shown}");
    for bar in &bars[1..] {
        assert!(bar.starts_with('[') && bar.contains(" % ") && bar.contains(" lines/s, "), "{bar:?}");
        assert!(bar.ends_with(" s left\x1b[K") && bar.len() < 80, "{bar:?}");
    }
    assert!(response.starts_with(&format!("long.log: {lines} lines, combined, 0 bad")), "{response}");
}

#[test]
fn elsewhere_nothing_is_shown() {
    let (dir, _) = long();
    let (code, stdout, stderr) = dir.replay(&["long.log"], b"");
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.starts_with("long.log: "), "{stdout}");
}
