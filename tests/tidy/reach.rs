//! Public functions, constants and statics are used in another file; the compiler reports unused items only if they are
//! private. Types are not checked: a file can use a type without its name.

use std::collections::{HashMap, HashSet};

use super::source::{Source, below, crate_files, is_name};

const KINDS: [&str; 3] = ["fn", "const", "static"];

/// The names of the public functions, methods, constants and statics of a file.
fn open(file: &Source) -> Vec<&str> {
    let words = &file.words;
    let mut found = Vec::new();
    for at in (0..words.len()).filter(|at| words[*at] == "pub") {
        let mut next = at + 1;
        if words[next] == "(" {
            next += words[next..].iter().position(|word| word == ")").unwrap() + 1;
        }
        while matches!(words[next].as_str(), "async" | "unsafe") || words[next] == "const" && words[next + 1] == "fn" {
            next += 1;
        }
        if KINDS.contains(&words[next].as_str()) && is_name(&words[next + 1]) {
            found.push(words[next + 1].as_str());
        }
    }
    found
}

#[test]
fn public_items_are_used_in_another_file() {
    let own = crate_files();
    let others: Vec<Source> = ["tests", "fuzz"].into_iter().flat_map(below).collect();
    let mut users: HashMap<&str, HashSet<&str>> = HashMap::new();
    for file in own.iter().chain(&others) {
        for word in file.words.iter().filter(|word| is_name(word)) {
            users.entry(word).or_default().insert(&file.path);
        }
    }
    let mut wrong = Vec::new();
    for file in own {
        for name in open(file) {
            if users[name].len() < 2 {
                wrong.push(format!("{}: {name}", file.path));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "only their own file uses these; make them private, and remove what is unused then: {wrong:#?}"
    );
}
