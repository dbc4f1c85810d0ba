//! Modules stand in layers and name only what is below them.

use std::collections::BTreeSet;

use super::source::{crate_files, root};

/// The modules of the crate from the ground up, each with those that it may name.
const LAYERS: [(&str, &[&str]); 22] = [
    ("labels", &[]),
    ("written", &[]),
    ("net", &[]),
    ("grpc", &["labels"]),
    ("heap", &[]),
    ("descriptors", &[]),
    ("tls", &["labels"]),
    ("sampled", &[]),
    ("metrics", &["labels"]),
    ("access_log", &["labels", "sampled", "metrics"]),
    ("spans", &["labels", "access_log", "sampled", "metrics"]),
    ("limit", &["labels", "written", "net", "grpc", "tls", "metrics"]),
    ("upstream", &["labels", "tls", "limit"]),
    ("route", &["net", "limit"]),
    ("config", &["labels", "access_log", "spans", "written", "net", "grpc", "upstream", "tls", "limit", "route"]),
    ("snapshot", &["upstream", "metrics", "limit", "route", "config"]),
    (
        "http",
        &[
            "labels",
            "access_log",
            "spans",
            "descriptors",
            "net",
            "grpc",
            "tls",
            "upstream",
            "sampled",
            "metrics",
            "limit",
            "route",
            "config",
            "snapshot",
        ],
    ),
    (
        "worker",
        &["descriptors", "net", "heap", "tls", "access_log", "spans", "metrics", "limit", "config", "snapshot", "http"],
    ),
    ("replay", &["grpc", "metrics", "limit", "route", "config", "http"]),
    ("fuzzing", &["http", "worker"]),
    (
        "control",
        &[
            "descriptors",
            "labels",
            "net",
            "heap",
            "tls",
            "upstream",
            "access_log",
            "sampled",
            "metrics",
            "limit",
            "route",
            "config",
            "snapshot",
            "http",
            "worker",
        ],
    ),
    ("cli", &["net", "sampled", "limit", "config", "replay", "control"]),
];

/// The rooms of `http` likewise.
const ROOMS: [(&str, &[&str]); 3] =
    [("downstream", &[]), ("upstream", &["downstream"]), ("answer", &["downstream", "upstream"])];

/// Files that name another room against the table, each with what it names. One that is not needed any more
/// fails the test.
const ROOM_EXCEPTIONS: [(&str, &str); 1] = [
    // The account of a request is opened before a server is asked.
    ("src/http/upstream/forward.rs", "http::answer::body::Body"),
];

/// No module may name itself through one that it names: each names only those that stand before it.
fn assert_no_circle(table: &[(&str, &[&str])]) {
    for (at, (module, names)) in table.iter().enumerate() {
        for name in *names {
            assert!(table[..at].iter().any(|(below, _)| below == name), "{module} may not name {name}: not below it");
        }
    }
}

#[track_caller]
fn assert_exceptions(found: &BTreeSet<(String, String)>, allowed: &[(&str, &str)], rule: &str) {
    let allowed: BTreeSet<_> = allowed.iter().map(|(file, name)| ((*file).to_owned(), (*name).to_owned())).collect();
    let new: Vec<_> = found.difference(&allowed).collect();
    assert!(new.is_empty(), "{rule}: {new:#?}");
    let gone: Vec<_> = allowed.difference(found).collect();
    assert!(gone.is_empty(), "needed no longer, so take these exceptions out: {gone:#?}");
}

#[test]
fn modules_name_only_what_is_below_them() {
    assert_no_circle(&LAYERS);
    let mut wrong = BTreeSet::new();
    for file in crate_files() {
        // The root declares them all; the program calls the command line.
        let top = file.top();
        if top.is_empty() {
            continue;
        }
        let (_, below) = LAYERS.iter().find(|(module, _)| *module == top).unwrap_or_else(|| panic!("{top}: no layer"));
        for path in file.named().into_iter().filter(|path| path.len() > 1 && path[0] != top) {
            if !below.contains(&path[0].as_str()) {
                wrong.insert(format!("{} names {}", file.path, path.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "what is named stands above, or beside: {wrong:#?}");
}

#[test]
fn rooms_of_http_name_each_other_in_one_direction() {
    assert_no_circle(&ROOMS);
    let mut wrong = BTreeSet::new();
    for file in crate_files().iter().filter(|file| file.top() == "http" && file.module.len() > 1) {
        let Some((room, below)) = ROOMS.iter().find(|(room, _)| *room == file.module[1]) else { continue };
        for path in file.named().iter().filter(|path| path[0] == "http" && path.len() > 1) {
            let is_room = ROOMS.iter().any(|(other, _)| *other == path[1]);
            if is_room && path[1] != *room && !below.contains(&path[1].as_str()) {
                wrong.insert((file.path.clone(), path.join("::")));
            }
        }
    }
    assert_exceptions(&wrong, &ROOM_EXCEPTIONS, "a room names one that may name it");
}

#[test]
fn http_names_no_kind_of_store() {
    let mut wrong = BTreeSet::new();
    for file in crate_files().iter().filter(|file| file.top() == "http") {
        for kind in ["Memory", "Redis"] {
            if file.words.iter().any(|word| word == kind) {
                wrong.insert(format!("{} names {kind}", file.path));
            }
        }
    }
    assert!(wrong.is_empty(), "ask `limit::store::Store`, or let `limit` do it: {wrong:#?}");
}

#[test]
fn the_architecture_tells_the_layers_in_this_order() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, told) = text.split_once("Modules stand in layers").expect("ARCHITECTURE.md tells the layers");
    let (told, _) = told.split_once("on top.").unwrap();
    let told: Vec<&str> = told.split('`').skip(1).step_by(2).collect();
    assert_eq!(told, LAYERS.map(|(module, _)| module));
}
