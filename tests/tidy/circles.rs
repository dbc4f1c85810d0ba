//! No two files stand on each other: who reads one need not have read what is built on it.
//!
//! A module and those inside it are left out. Every sixth child names an item of its parent, which calls it: a folder
//! is one thing, told from its `mod.rs` down. Siblings and cousins are held, however long the way round is.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, crate_files};

/// Who may name whom though there is a way back, and why. One that closes no circle any more fails the test.
const EXCEPTIONS: [(&str, &str, &str); 2] = [
    (
        "http::answer::body",
        "http::answer::account",
        "a request ends with the body of its answer, whatever ends that: so the body has the account, and the account \
         reads of it where there is no more to come",
    ),
    (
        "http::context",
        "http::tunnel",
        "a connection has the tunnel that it becomes, and a tunnel the account of the request that opened it",
    ),
];

/// Modules, each with those that it names and is neither inside of nor around.
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

/// Those that can be reached from a module.
fn reached<'n>(names: &'n Names, from: &'n str) -> BTreeSet<&'n str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        open.extend(names[module].iter().map(String::as_str).filter(|next| found.insert(*next)));
    }
    found
}

/// Per way from one of a circle to another of it, which of both.
fn circles(names: &Names) -> BTreeSet<(&str, &str)> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        names.keys().map(|module| (module.as_str(), reached(names, module))).collect();
    let ways = names.iter().flat_map(|(from, to)| to.iter().map(|to| (from.as_str(), to.as_str())));
    ways.filter(|(from, to)| reached[to].contains(from)).collect()
}

#[test]
fn modules_stand_in_no_circle() {
    let mut names = names(crate_files());
    for (from, to, _) in EXCEPTIONS {
        assert!(circles(&names).contains(&(from, to)), "needed no longer, so take it out: {from} names {to}");
        names.get_mut(from).unwrap().remove(to);
    }
    let found = circles(&names);
    assert!(
        found.is_empty(),
        "these reach each other: put what both need into a module below them, named by what it holds: {found:#?}"
    );
}

#[test]
fn circles_are_found_however_a_module_is_named_and_however_long_they_are() {
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
    let found: Vec<(&str, &str)> = circles(&names).into_iter().collect();
    assert_eq!(found, [("a::c::d", "a::e"), ("a::e", "g"), ("g", "a::c::d")]);
}
