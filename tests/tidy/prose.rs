//! The manual uses the words that people search for: turns that read like a translation are not in its prose.

use std::fs;
use std::path::Path;

use regex::Regex;

/// Turns, as expressions, and what to write instead.
const TURNS: [(&str, &str); 11] = [
    (r"\bin force\b", "active, current"),
    (r"\b(break|breaks|broke|broken) off\b", "is cut off, aborts"),
    (r"\bbeside\b", "next to, along with, in addition to"),
    (r"\b(a|every|each|no|one) mistake\b|\bmistakes\b", "error"),
    (r"\bclients? (leaves|leave|left|has left|have left)\b", "disconnects"),
    (r"\bother numbers\b", "different numbers, different limits"),
    (r"\[guide\]\(", "the topic of the linked page"),
    (r"\bwhoever\b", "anyone who, the client that"),
    (r"\bwhat (becomes|became) of\b", "how X is handled"),
    (r"\b(wins|win) over\b", "overrides, takes precedence over"),
    (r"\bgo by the\b", "use, follow"),
];

/// Sentences in which such words have another meaning.
const MEANT: [&str; 2] = ["a mistake on your side", "its client left a queue"];

fn pages(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path.display().to_string());
        }
    }
}

#[test]
fn the_manual_is_written_in_plain_words() {
    let mut files = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md"].map(str::to_owned).to_vec();
    pages(Path::new("docs"), &mut files);
    files.push("conf/full.toml".to_owned());
    let turns = TURNS.map(|(turn, better)| (Regex::new(&format!("(?i){turn}")).unwrap(), better));
    let mut faults = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            // Of a config, the comments are prose.
            let is_prose = if file.ends_with(".toml") { line.starts_with('#') } else { !is_code && !is_fence };
            if !is_prose || MEANT.iter().any(|meant| line.contains(meant)) {
                continue;
            }
            // What is marked as code is not prose.
            let words: Vec<&str> = line.split('`').step_by(2).collect();
            let line = words.join("`");
            let wrong = turns.iter().filter(|(turn, _)| turn.is_match(&line));
            faults.extend(
                wrong.map(|(turn, better)| {
                    format!("{file}:{}: {turn}: write {better}\n    {}", number + 1, line.trim())
                }),
            );
        }
    }
    assert!(faults.is_empty(), "{} turns to write otherwise:\n{}", faults.len(), faults.join("\n"));
}
