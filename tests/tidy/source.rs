//! A Rust file as a list of tokens, without comments, the text of literals, and unit tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A file of the crate, of its tests or of its fuzz targets.
pub struct Source {
    /// Path within the repository: `src/proxy/words/delay.rs`.
    pub path: String,
    /// Path of the module: `["proxy", "delay"]`. Empty for the root of the crate.
    pub module: Vec<String>,
    pub lines: usize,
    /// Tokens: names, `::`, and single characters. A literal is `""`.
    pub words: Vec<String>,
    /// The line of each token, from 1.
    pub word_lines: Vec<usize>,
}

/// All files of the crate, except those that contain only unit tests.
pub fn crate_files() -> &'static [Source] {
    static FILES: OnceLock<Vec<Source>> = OnceLock::new();
    let files =
        FILES.get_or_init(|| below("src").into_iter().filter(|file| !file.path.ends_with("/tests.rs")).collect());
    assert!(files.len() > 100, "found only {} files", files.len());
    files
}

/// All Rust files of a directory and its subdirectories.
pub fn below(folder: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    gather(&root().join(folder), &mut paths);
    paths.sort();
    paths.iter().map(|path| Source::read(path)).collect()
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn gather(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            gather(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

impl Source {
    fn read(path: &Path) -> Source {
        let text = std::fs::read_to_string(path).unwrap();
        let path = path.strip_prefix(root()).unwrap().to_str().unwrap();
        let module = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod").split('/');
        let module: Vec<&str> = module.filter(|part| !matches!(*part, "lib" | "main")).collect();
        Source { path: path.to_owned(), ..Source::of(&module.join("::"), &text) }
    }

    /// Reads a text as the file of a module.
    pub fn of(module: &str, text: &str) -> Source {
        let module = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let (words, word_lines) = without_tests(words(text)).into_iter().unzip();
        Source { path: String::new(), module, lines: text.lines().count(), words, word_lines }
    }

    /// The first part of the module's path; empty for the root of the crate.
    pub fn top(&self) -> &str {
        self.module.first().map_or("", String::as_str)
    }

    /// Every path that begins with `crate`, `self` or `super`, as seen from the root of the crate.
    pub fn named(&self) -> Vec<Vec<String>> {
        self.paths(&["crate", "self", "super"])
            .into_iter()
            .map(|path| {
                let ups = path.iter().filter(|word| *word == "super").count();
                let base = match path[0].as_str() {
                    "crate" => &[][..],
                    _ => &self.module[..self.module.len().saturating_sub(ups)],
                };
                let rest = path.iter().filter(|word| !matches!(word.as_str(), "crate" | "self" | "super"));
                base.iter().chain(rest).cloned().collect()
            })
            .collect()
    }

    /// Every path that begins with one of these names, in `use` declarations and in code.
    pub fn paths(&self, roots: &[&str]) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        let mut at = 0;
        while at + 1 < self.words.len() {
            let begins = at == 0 || self.words[at - 1] != "::";
            if begins && roots.contains(&self.words[at].as_str()) && self.words[at + 1] == "::" {
                at = self.tree(at, &[], &mut found);
            } else {
                at += 1;
            }
        }
        found
    }

    /// Reads the path, or the braces with several paths, at token `at`. Returns the index of the token after it.
    fn tree(&self, mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
        if self.words[at] == "{" {
            at += 1;
            while self.words[at] != "}" {
                at = self.tree(at, before, found);
                at += usize::from(self.words[at] == ",");
            }
            return at + 1;
        }
        let path = [before, &[self.words[at].clone()]].concat();
        let next = self.words.get(at + 2).map_or("", String::as_str);
        if self.words.get(at + 1).is_some_and(|word| word == "::") && (is_name(next) || matches!(next, "{" | "*")) {
            return self.tree(at + 2, &path, found);
        }
        found.push(path);
        let renamed = self.words.get(at + 1).is_some_and(|word| word == "as");
        at + if renamed { 3 } else { 1 }
    }
}

pub fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphanumeric() || first == '_')
}

/// The tokens of a text, each with its line. Comments are dropped.
fn words(text: &str) -> Vec<(String, usize)> {
    let mut words = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (length, word) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), "")
        } else if rest.starts_with("/*") {
            (rest.find("*/").unwrap() + 2, "")
        } else if let Some(length) = literal(rest) {
            (length, "\"\"")
        } else if is_name(rest) {
            let length = rest.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(rest.len());
            (length, &rest[..length])
        } else if rest.starts_with("::") {
            (2, "::")
        } else {
            (first.len_utf8(), rest[..first.len_utf8()].trim())
        };
        if !word.is_empty() {
            words.push((word.to_owned(), line));
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    words
}

/// The length of the string or character literal at the start of `rest`. A lifetime is not a literal.
fn literal(rest: &str) -> Option<usize> {
    let prefix = ["br", "b", "r", "c", ""].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let body = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let marks = body.bytes().take_while(|byte| *byte == b'#').count();
        let end = format!("\"{}", &body[..marks]);
        let text = body[marks..].strip_prefix('"')?;
        return Some(prefix.len() + marks + 1 + text.find(&end)? + end.len());
    }
    let quote = body.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let mut signs = body.char_indices().skip(1);
    if quote == '\'' && !body[1..].starts_with('\\') && body[1..].chars().nth(1) != Some('\'') {
        return None;
    }
    while let Some((at, sign)) = signs.next() {
        match sign {
            '\\' => drop(signs.next()),
            _ if sign == quote => return Some(prefix.len() + at + 1),
            _ => {}
        }
    }
    None
}

/// Removes items with `#[cfg(test)]`.
fn without_tests(words: Vec<(String, usize)>) -> Vec<(String, usize)> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::with_capacity(words.len());
    let mut at = 0;
    while at < words.len() {
        if words[at..].iter().map(|(word, _)| word).take(MARK.len()).eq(MARK.iter()) {
            let mut depth = 0;
            at += words[at..].iter().position(|(word, _)| matches!(word.as_str(), "{" | ";")).unwrap();
            loop {
                depth += i32::from(words[at].0 == "{") - i32::from(words[at].0 == "}");
                at += 1;
                if depth == 0 {
                    break;
                }
            }
        } else {
            kept.push(words[at].clone());
            at += 1;
        }
    }
    kept
}

#[test]
fn files_are_read_as_the_compiler_reads_them() {
    let text = "/* crate::a */ use crate::{b::{self, C as D}, e}; // crate::f\n let g = \"crate::h\\\"\" + r#\"crate::i\"#;\n\
                fn j<'k>(l: &'k str) -> char { '\\'' } super::m::<n>(self::o::p());\n\
                #[cfg(test)]\nmod tests { use crate::q; fn r() {} }\nuse crate::s::*;";
    let named: Vec<String> = Source::of("x::y", text).named().iter().map(|path| path.join("::")).collect();
    assert_eq!(named, ["b", "b::C", "e", "x::m", "x::y::o::p", "s::*"]);
}
