//! The change log: the sections of each version are in one order, and what breaks something comes first.

use std::fs;

const SECTIONS: [&str; 7] = ["Breaking changes", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

#[test]
fn what_breaks_something_comes_first() {
    let text = fs::read_to_string("CHANGELOG.md").unwrap();
    let versions: Vec<&str> = text.split("\n## ").skip(1).collect();
    assert!(versions.len() >= 2);
    for version in versions {
        let names = version.lines().filter_map(|line| line.strip_prefix("### "));
        let places: Vec<Option<usize>> =
            names.map(|name| SECTIONS.iter().position(|section| *section == name)).collect();
        let is_ordered = places.is_sorted_by(|one, next| one < next) && !places.contains(&None);
        assert!(is_ordered, "{}: the sections are {SECTIONS:?}, in this order", version.lines().next().unwrap());
    }
}
