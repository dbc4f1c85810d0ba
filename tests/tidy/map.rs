//! The map in ARCHITECTURE.md shows the whole crate.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{crate_files, root};

/// Folders whose files the map does not name one by one: each is one thing many times, or told in words above.
const TOLD_OTHERWISE: [&str; 6] = [
    "config::compile",
    "control::admin::limits",
    "http::upstream::h1",
    "limit::algo",
    "limit::jwt",
    "limit::store::redis",
];

/// Per top module the names in its rows, and those that stand in their first column.
fn rows() -> BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, map) = text.split_once("## Map").expect("ARCHITECTURE.md has a map");
    let mut rows: BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
    for row in map.lines().filter(|line| line.starts_with("| `")) {
        let first = row.split('|').nth(1).unwrap();
        let top = first.split(['`', ':']).nth(1).unwrap().to_owned();
        let (all, firsts) = rows.entry(top).or_default();
        all.extend(names(row));
        firsts.extend(names(first));
    }
    rows
}

/// The words between backquotes.
fn names(text: &str) -> impl Iterator<Item = String> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.flat_map(|names| names.split(|sign: char| !sign.is_alphanumeric() && sign != '_')).map(str::to_owned)
}

#[test]
fn every_module_is_on_the_map_and_nothing_else() {
    let rows = rows();
    let files = crate_files();
    let mut missing = Vec::new();
    for file in files.iter().filter(|file| !file.module.is_empty()) {
        let folder = file.module[..file.module.len() - 1].join("::");
        let told = TOLD_OTHERWISE.iter().any(|other| folder == *other || folder.starts_with(&format!("{other}::")));
        let own = file.module.last().unwrap();
        if !told && !rows.get(file.top()).is_some_and(|(names, _)| names.contains(own)) {
            missing.push(&file.path);
        }
    }
    assert!(missing.is_empty(), "the map in ARCHITECTURE.md does not name {missing:#?}");
    for (top, (_, firsts)) in &rows {
        let known: BTreeSet<&String> =
            files.iter().filter(|file| file.top() == top).flat_map(|file| &file.module).collect();
        let gone: Vec<&String> = firsts.iter().filter(|name| !name.is_empty() && !known.contains(name)).collect();
        assert!(gone.is_empty(), "the map in ARCHITECTURE.md names what is gone: {gone:?}");
    }
    let folders: BTreeSet<String> = files.iter().map(|file| file.module.join("::")).collect();
    let gone: Vec<_> = TOLD_OTHERWISE.iter().filter(|folder| !folders.contains(**folder)).collect();
    assert!(gone.is_empty(), "these are gone: {gone:?}");
}
