//! The manual and the messages of the gateway use the words that people search for: turns that read like a translation
//! are not in them.

use std::fs;
use std::path::Path;

use regex::Regex;

use super::source::crate_files;

/// Turns, as expressions, and what to write instead.
const TURNS: [(&str, &str); 11] = [
    (r"\bin force\b", "active, current"),
    (r"\b(break|breaks|broke|broken) off\b", "is cut off, aborts"),
    (r"\bbeside\b", "next to, along with, in addition to"),
    (r"\b(a|every|each|no|one|1) mistake\b|\bmistakes\b|^mistake$", "error"),
    (r"\bclients? (leaves|leave|left|has left|have left)\b", "disconnects"),
    (r"\bother numbers\b", "different numbers, different limits"),
    (r"\[guide\]\(", "the topic of the linked page"),
    (r"\bwhoever\b", "anyone who, the client that"),
    (r"\bwhat (becomes|became) of\b", "how X is handled"),
    (r"\b(wins|win) over\b", "overrides, takes precedence over"),
    (r"\bgo by the\b", "use, follow"),
];

/// Sentences in which such words have another meaning.
const MEANT: [&str; 3] = ["a mistake on your side", "its client left a queue", "If you think that this is a mistake"];

/// The folder of the manual.
pub const PAGES: &str = "docs";

/// Returns the pages of the manual below a folder.
pub fn list_pages(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    add_pages(Path::new(folder), &mut found);
    found.sort();
    found
}

fn add_pages(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path.display().to_string());
        }
    }
}

/// Returns the lines of prose of a page, or of the comments of a config, each with its number.
fn list_prose<'a>(file: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let is_prose = if file.ends_with(".toml") { line.starts_with('#') } else { !is_code && !is_fence };
        if is_prose {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// Returns the texts of a source file that users may read: its literals, without comments, tests and placeholders.
fn list_messages(text: &str) -> Vec<(usize, String)> {
    let literal = Regex::new(r#""((?:[^"\\]|\\.)*)""#).unwrap();
    let placeholder = Regex::new(r"\{[^}]*\}").unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    lines
        .flat_map(|(number, line)| literal.captures_iter(line).map(move |found| (number + 1, found[1].to_owned())))
        .map(|(number, text)| (number, placeholder.replace_all(&text, "{}").into_owned()))
        .collect()
}

/// Returns the turns in a line, with what to write instead.
fn find_turns(turns: &[(Regex, &str)], line: &str) -> Vec<String> {
    if MEANT.iter().any(|meant| line.contains(meant)) {
        return Vec::new();
    }
    // What is marked as code, or quoted as a text, is not prose.
    let words: Vec<&str> = line.split('`').step_by(2).collect();
    let prose = words.join("`");
    let wrong = turns.iter().filter(|(turn, _)| turn.is_match(&prose));
    wrong.map(|(turn, better)| format!("{turn}: write {better}\n    {}", line.trim())).collect()
}

#[test]
fn the_manual_is_written_in_plain_words() {
    let mut files =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(str::to_owned).to_vec();
    files.extend(list_pages(PAGES));
    files.push("conf/full.toml".to_owned());
    let turns = TURNS.map(|(turn, better)| (Regex::new(&format!("(?i){turn}")).unwrap(), better));
    let mut faults = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in list_prose(&file, &text) {
            faults.extend(find_turns(&turns, line).iter().map(|fault| format!("{file}:{number}: {fault}")));
        }
    }
    assert!(faults.is_empty(), "{} turns to write otherwise:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn messages_are_written_in_plain_words() {
    let turns = TURNS.map(|(turn, better)| (Regex::new(&format!("(?i){turn}")).unwrap(), better));
    let (mut faults, mut checked) = (Vec::new(), 0);
    for file in crate_files() {
        for (number, text) in list_messages(&fs::read_to_string(&file.path).unwrap()) {
            checked += 1;
            faults.extend(find_turns(&turns, &text).iter().map(|fault| format!("{}:{number}: {fault}", file.path)));
        }
    }
    assert!(faults.is_empty(), "{} turns to write otherwise:\n{}", faults.len(), faults.join("\n"));
    assert!(checked > 5000, "only {checked} texts were found");
}

/// Most words of the README, its code included: a reader compares several gateways in an afternoon.
const README_WORDS: usize = 900;

#[test]
fn the_readme_is_short() {
    let words = fs::read_to_string("README.md").unwrap().split_whitespace().count();
    assert!(
        words <= README_WORDS,
        "README.md has {words} words, at most {README_WORDS} are allowed: link to the manual"
    );
}
