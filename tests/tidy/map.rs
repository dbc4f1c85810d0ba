//! ARCHITECTURE.md lists the modules, lowest first, and directories stay small and explain themselves.

use std::collections::BTreeMap;
use std::path::Path;

use super::layers::LAYERS;
use super::source::{crate_files, root};

/// Most files of a directory.
const FILES_MAX: usize = 20;
/// Fewest lines of the `//!` comment of a directory's `mod.rs`.
const SHORTEST_HEADER: usize = 5;

/// The first column of the table in ARCHITECTURE.md, which has a row per module.
fn mapped() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, map) = text.split_once("## Map").expect("ARCHITECTURE.md has a map");
    let rows = map.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
}

#[test]
fn the_architecture_lists_every_module_once_and_the_lowest_first() {
    let mapped = mapped();
    let tops: Vec<&str> = mapped.iter().map(String::as_str).filter(|module| !module.contains("::")).collect();
    assert_eq!(tops, LAYERS.map(|(module, _)| module));
    let known: Vec<String> = crate_files().iter().map(|file| file.module.join("::")).collect();
    let missing: Vec<_> = mapped.iter().filter(|module| !known.contains(module)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md lists modules that do not exist: {missing:?}");
}

#[test]
fn directories_stay_small() {
    let mut files = BTreeMap::<&Path, usize>::new();
    for file in crate_files() {
        *files.entry(Path::new(&file.path).parent().unwrap()).or_default() += 1;
    }
    let full: Vec<_> = files.iter().filter(|(_, count)| **count > FILES_MAX).collect();
    assert!(full.is_empty(), "split these directories, they have more than {FILES_MAX} files: {full:?}");
}

#[test]
fn directories_explain_themselves() {
    let mut wrong = Vec::new();
    for file in crate_files().iter().filter(|file| file.path.ends_with("/mod.rs")) {
        let text = std::fs::read_to_string(root().join(&file.path)).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("//!")).count();
        if lines < SHORTEST_HEADER || text.contains("//! TODO") {
            wrong.push(format!("{}: {lines} lines", file.path));
        }
    }
    assert!(
        wrong.is_empty(),
        "explain in a `//!` comment of at least {SHORTEST_HEADER} lines what the directory is for, what goes in and out, \
         and how to add another of its kind: {wrong:#?}"
    );
}
