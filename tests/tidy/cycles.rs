//! Modules do not depend on each other in a cycle, so that each can be read without those that use it.
//!
//! A module and its own submodules may use each other: a directory is read as one unit, from its `mod.rs` down. The
//! rule is for siblings and cousins, and for cycles of any length.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, crate_files};

/// The modules that each module uses, without its own parents and submodules.
type Names = BTreeMap<String, BTreeSet<String>>;

fn names(files: &[Source]) -> Names {
    let modules: BTreeSet<&[String]> = files.iter().map(|file| file.module.as_slice()).collect();
    let mut names = Names::new();
    for file in files {
        let named = names.entry(file.module.join("::")).or_default();
        for path in file.named() {
            let whole = (1..=path.len()).rev().map(|end| &path[..end]);
            let module = whole.into_iter().find(|start| modules.contains(start)).unwrap_or_default();
            if !module.starts_with(&file.module) && !file.module.starts_with(module) {
                named.insert(module.join("::"));
            }
        }
    }
    names
}

/// Returns, for each directory and file, those in the same directory that it uses. A directory stands for all files in it.
fn neighbours(names: &Names) -> Names {
    let mut neighbours = Names::new();
    for (user, all) in names {
        let user: Vec<&str> = user.split("::").collect();
        for used in all {
            let used: Vec<&str> = used.split("::").collect();
            let common = user.iter().zip(&used).take_while(|(a, b)| a == b).count();
            neighbours.entry(user[..=common].join("::")).or_default().insert(used[..=common].join("::"));
            neighbours.entry(used[..=common].join("::")).or_default();
        }
    }
    neighbours
}

/// All modules that a module depends on, directly or through others.
fn reached<'n>(names: &'n Names, from: &'n str) -> BTreeSet<&'n str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        open.extend(names[module].iter().map(String::as_str).filter(|next| found.insert(*next)));
    }
    found
}

/// The dependencies that are part of a cycle: user and used module.
fn cycles(names: &Names) -> BTreeSet<(&str, &str)> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        names.keys().map(|module| (module.as_str(), reached(names, module))).collect();
    let ways = names.iter().flat_map(|(from, to)| to.iter().map(|to| (from.as_str(), to.as_str())));
    ways.filter(|(from, to)| reached[to].contains(from)).collect()
}

#[test]
fn modules_do_not_depend_on_each_other_in_a_circle() {
    let names = names(crate_files());
    let found = cycles(&names);
    assert!(
        found.is_empty(),
        "these modules depend on each other; move what both need into a module of its own: {found:#?}"
    );
}

#[test]
fn directories_do_not_depend_on_each_other_in_a_circle() {
    let neighbours = neighbours(&names(crate_files()));
    let found = cycles(&neighbours);
    assert!(
        found.is_empty(),
        "these files and directories depend on each other; move what both need beside or below them: {found:#?}"
    );
}

#[test]
fn cycles_of_any_length_are_found_for_any_kind_of_path() {
    let source = |module: &str, text: &str| Source::of(module, text);
    let files = [
        source("a", "mod b; mod c; pub use b::B; use c::d::D;"),
        source("a::b", "use super::A; fn f() -> super::c::C {}"),
        source("a::c", "mod d; use super::e::E;"),
        source("a::c::d", "use super::super::C; use crate::a::e;"),
        source("a::e", "fn f() { crate::g::f::<u8>(self::E) }"),
        source("g", "use crate::{a::{c::d::{self, D}}, h};"),
        source("h", "// use crate::g;\n#[cfg(test)]\nmod tests { use crate::g; }"),
    ];
    let names = names(&files);
    let found: Vec<(&str, &str)> = cycles(&names).into_iter().collect();
    assert_eq!(found, [("a::c::d", "a::e"), ("a::e", "g"), ("g", "a::c::d")]);
}
