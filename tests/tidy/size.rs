//! Files and functions are short enough to be read in one sitting.

use super::source::{Source, below, crate_files, is_name};

/// A file with more lines is listed: it may be about two subjects.
const LONG_FILE: usize = 500;
/// Most lines of a file.
const LONGEST_FILE: usize = 800;
/// Most lines of a function.
const LONGEST_FUNCTION: usize = 80;
/// Functions that may be longer: file, function, reason.
const LONG_FUNCTIONS: [(&str, &str, &str); 0] = [];

#[test]
fn files_are_short() {
    for file in crate_files().iter().chain(&below("tests")) {
        if file.lines > LONG_FILE {
            println!("{} has {} lines: is it about one subject?", file.path, file.lines);
        }
        assert!(
            file.lines <= LONGEST_FILE,
            "{} has {} lines; split it by subject: at most {LONGEST_FILE} are allowed",
            file.path,
            file.lines
        );
    }
}

/// The functions of a file, each with the number of lines from `fn` to the end of its body.
fn functions(file: &Source) -> Vec<(&str, usize)> {
    let words = &file.words;
    let starts = (1..words.len()).filter(|at| words[at - 1] == "fn" && is_name(&words[*at]));
    let mut found = Vec::new();
    for start in starts {
        // Brackets of all kinds: the body is the first brace outside of them.
        let (mut depth, mut at, mut is_body) = (0, start, false);
        while at < words.len() {
            is_body |= depth == 0 && words[at] == "{";
            depth += i32::from(matches!(words[at].as_str(), "(" | "[" | "{"));
            depth -= i32::from(matches!(words[at].as_str(), ")" | "]" | "}"));
            if depth == 0 && (words[at] == ";" || is_body) {
                break;
            }
            at += 1;
        }
        let end = at.min(words.len() - 1);
        found.push((words[start].as_str(), file.word_lines[end] - file.word_lines[start] + 1));
    }
    found
}

#[test]
fn functions_are_short() {
    let mut long = Vec::new();
    for file in crate_files() {
        for (name, lines) in functions(file) {
            let is_allowed = LONG_FUNCTIONS.iter().any(|(path, function, _)| *path == file.path && *function == name);
            assert!(lines > LONGEST_FUNCTION || !is_allowed, "remove the exception for {name}, it is no longer needed");
            if lines > LONGEST_FUNCTION && !is_allowed {
                long.push(format!("{}: {name} has {lines} lines", file.path));
            }
        }
    }
    assert!(long.is_empty(), "split these functions: at most {LONGEST_FUNCTION} lines are allowed: {long:#?}");
}

#[test]
fn lines_of_functions_are_counted() {
    let text = "fn a() {\n    b(\n        \"\n\",\n    );\n}\n\ntrait C {\n    fn d(&self) -> [u8; 3];\n    fn e(f: impl Fn(u8) -> u8)\n    where\n        Self: Sized,\n    {\n        f({ 1 });\n    }\n}\n";
    assert_eq!(functions(&Source::of("x", text)), [("a", 6), ("d", 1), ("e", 6)]);
}
