//! Difference of two texts by lines, as a unified diff. Shown to clients whose edit is based on an older text.

use std::time::Duration;

use similar::TextDiff;

/// Time after which the diff is finished coarsely: the cost of an exact one grows with the square of the changes.
const EFFORT: Duration = Duration::from_millis(50);
/// Maximum size of a diff, in bytes.
const SIZE_MAX: usize = 64 * 1024;

/// Returns a unified diff, cut at 64 KiB.
pub fn diff_texts(name: &str, old: &str, new: &str) -> String {
    let diff = TextDiff::configure().timeout(EFFORT).diff_lines(old, new);
    let mut text = diff.unified_diff().context_radius(3).header(name, name).to_string();
    if text.len() > SIZE_MAX {
        text.truncate(text.floor_char_boundary(SIZE_MAX));
        text.push_str("\n[the rest of the diff is left out]\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_diff_shows_lines_and_is_bounded() {
        let diff = diff_texts("a.toml", "one\ntwo\nthree\n", "one\n2\nthree\n");
        assert_eq!(diff, "--- a.toml\n+++ a.toml\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n");
        assert_eq!(diff_texts("a", "x\n", "x\n"), "");
        let lines = |factor: u64| (0..60_000_u64).map(|i| format!("{}\n", i * factor % 9973)).collect::<String>();
        let start = Instant::now();
        let diff = diff_texts("a", &lines(7919), &lines(6151));
        assert!(diff.len() < SIZE_MAX + 100 && start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
