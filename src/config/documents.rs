//! The trees of a config: of its file, or of a text that is in none, and of all it includes.
//! Called by `config::load` and its likes.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::report::{Diagnostic, MistakeKind, Place};
use super::source::{SMALLEST, SourceTexts};
use super::tree::{self, Node, Table, Value};
use super::unreadable::UnreadableKind;

/// More included files are refused.
const INCLUDES_MAX: usize = 1000;

impl SourceTexts {
    /// The trees of the config file at `path` and of all it includes, in that order.
    pub fn documents(&self, path: &Path) -> Vec<Table> {
        let mut documents = Vec::new();
        match self.read(path) {
            Ok(text) => {
                let empty = text.trim().is_empty();
                let file = self.add(path.display().to_string(), directory(path), text);
                if empty {
                    let message = format!("the configuration file `{}` is empty", path.display());
                    self.unreadable(file, message, format!("the smallest that works:\n\n{SMALLEST}"));
                } else {
                    self.document(file, &mut documents, &mut HashSet::from([identity(path)]));
                }
            }
            Err(error) => {
                let file = self.add(path.display().to_string(), directory(path), String::new());
                let message = format!("cannot read the configuration file `{}`: {error}", path.display());
                let help = match error.kind {
                    UnreadableKind::Missing => format!(
                        "create it, name another with -c FILE, or do without: sluicegate proxy --to URL\n\
                         the smallest that works:\n\n{SMALLEST}"
                    ),
                    UnreadableKind::Directory => {
                        format!("name a file in it, like -c {}", path.join("sluicegate.toml").display())
                    }
                    UnreadableKind::Other => error.help().to_owned(),
                };
                self.unreadable(file, message, help);
            }
        }
        documents
    }

    /// The trees of a text that is in no file, and of all it includes.
    pub fn documents_of_text(&self, name: &str, text: &str) -> Vec<Table> {
        self.digest(text.as_bytes());
        let file = self.add(name.to_owned(), PathBuf::new(), text.to_owned());
        let mut documents = Vec::new();
        if text.trim().is_empty() {
            let help = format!("the smallest that works:\n\n{SMALLEST}");
            self.unreadable(file, format!("the configuration `{name}` is empty"), help);
        } else {
            self.document(file, &mut documents, &mut HashSet::new());
        }
        documents
    }

    fn unreadable(&self, file: usize, message: String, help: String) {
        let place = Place { file, start: 0, end: 0 };
        self.mistake(Diagnostic::new(place, message).kind(MistakeKind::Unread).help(help));
    }

    fn document(&self, file: usize, documents: &mut Vec<Table>, known: &mut HashSet<PathBuf>) {
        let table = tree::parse(self, file);
        let include = table.get("include").map(|entry| entry.node.clone());
        documents.push(table);
        match include {
            None | Some(Node { value: Value::Broken, .. }) => {}
            Some(Node { value: Value::Array(items), .. }) => {
                items.iter().for_each(|item| self.include(item, documents, known));
            }
            Some(item) => self.include(&item, documents, known),
        }
    }

    fn include(&self, item: &Node, documents: &mut Vec<Table>, known: &mut HashSet<PathBuf>) {
        let pattern = match &item.value {
            Value::String(text) => &text.value,
            Value::Broken => return,
            _ => {
                let message = format!("`include` must be a string, found {}", item.type_name());
                return self.mistake(Diagnostic::new(item.place, message).help("include = [\"conf.d/*.toml\"]"));
            }
        };
        let pattern_path = self.resolve(item.place.file, pattern);
        // The directory too: a first file that appears in it must be noticed.
        let dir = directory(&pattern_path);
        self.watch(dir);
        let paths = match expand(&pattern_path) {
            Ok(paths) => paths,
            Err(error) => {
                return self.mistake(Diagnostic::new(item.place, format!("cannot include `{pattern}`: {error}")));
            }
        };
        for path in paths {
            // Each file counts once, however many patterns match it; a file may match itself.
            if !known.insert(identity(&path)) {
                continue;
            }
            if known.len() > INCLUDES_MAX {
                let message = format!("more than {INCLUDES_MAX} files are included");
                return self.mistake(Diagnostic::new(item.place, message).help("join some of them"));
            }
            match self.read(&path) {
                Ok(text) => {
                    let file = self.add(path.display().to_string(), directory(&path), text);
                    self.document(file, documents, known);
                }
                Err(error) => {
                    let help = match error.kind {
                        UnreadableKind::Directory => format!("write \"{pattern}/*.toml\" for the files in it"),
                        UnreadableKind::Missing | UnreadableKind::Other => error.help().to_owned(),
                    };
                    let message = format!("cannot read `{}`: {error}", path.display());
                    self.mistake(Diagnostic::new(item.place, message).kind(MistakeKind::Unread).help(help));
                }
            }
        }
    }
}

fn directory(path: &Path) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or_default()
}

fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The files a pattern names, sorted. `*` and `?` are special in the last component only. A
/// pattern may match nothing; a plain path is returned as it is.
fn expand(pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let wild = |part: &str| part.contains(['*', '?']);
    let name = pattern.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let dir = directory(pattern);
    if dir.to_str().is_some_and(wild) {
        return Err("only the file name may hold `*` or `?`".to_owned());
    }
    if !wild(name) {
        return Ok(vec![pattern.to_owned()]);
    }
    let listing = match std::fs::read_dir(if dir.as_os_str().is_empty() { Path::new(".") } else { &dir }) {
        Ok(listing) => listing,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
    };
    let mut paths: Vec<PathBuf> = listing
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        // Hidden files are editors' and mounts' own.
        .filter(|file| !file.starts_with('.') && matches(name.as_bytes(), file.as_bytes()))
        .map(|file| dir.join(file))
        .filter(|path| !path.is_dir())
        .collect();
    paths.sort();
    Ok(paths)
}

/// Wildcard match in time linear in the product of the lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (p, n) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn wildcards_match_like_a_shell() {
        for (pattern, name, yes) in [
            ("*.toml", "a.toml", true),
            ("*.toml", "a.toml~", false),
            ("a?c*", "abcd", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), yes, "{pattern} {name}");
        }
    }
}
