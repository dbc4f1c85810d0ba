//! The texts a config is made of: the file itself, its includes, and the files of sets and
//! secrets. Remembers all of them, with their hash and every mistake, for the whole load.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::report::{Diagnostic, Kind, Place, Report, Source};
use super::tree::{self, Node, Table, Value};

/// Larger files are refused.
const SIZE_MAX: u64 = 16 * 1024 * 1024;
/// More included files are refused.
const INCLUDES_MAX: usize = 1000;

/// A config that can be copied whole.
pub const SMALLEST: &str = "[[route]]\npath = \"/\"\nupstream = \"http://127.0.0.1:3000\"";

#[derive(Default)]
pub struct Sources {
    texts: RefCell<Vec<Arc<Source>>>,
    files: RefCell<Vec<PathBuf>>,
    hash: RefCell<Sha256>,
    mistakes: RefCell<Vec<Diagnostic>>,
    /// Keys that some section had, for the test of the reference config.
    seen: RefCell<BTreeSet<(&'static str, &'static str)>>,
}

impl Sources {
    pub fn mistake(&self, mistake: Diagnostic) {
        self.mistakes.borrow_mut().push(mistake);
    }

    pub fn has_mistakes(&self) -> bool {
        !self.mistakes.borrow().is_empty()
    }

    pub fn saw(&self, section: &'static str, key: &'static str) {
        self.seen.borrow_mut().insert((section, key));
    }

    pub fn seen(&self) -> BTreeSet<(&'static str, &'static str)> {
        self.seen.borrow().clone()
    }

    pub fn source(&self, file: usize) -> Arc<Source> {
        self.texts.borrow()[file].clone()
    }

    pub fn add(&self, name: String, dir: PathBuf, text: String) -> usize {
        let mut texts = self.texts.borrow_mut();
        texts.push(Arc::new(Source { name, text, dir }));
        texts.len() - 1
    }

    /// A path as written in source `file`.
    pub fn resolve(&self, file: usize, path: &str) -> PathBuf {
        self.source(file).dir.join(path)
    }

    /// The text of a file, which is watched from now on even when it cannot be read.
    pub fn read(&self, path: &Path) -> Result<String, String> {
        let mut files = self.files.borrow_mut();
        if !files.iter().any(|known| known == path) {
            files.push(path.to_owned());
        }
        drop(files);
        let bytes = read_bytes(path)?;
        self.digest(&bytes);
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
            format!("it is not UTF-8 at byte {at} (line {line})")
        })
    }

    pub fn digest(&self, bytes: &[u8]) {
        let mut hash = self.hash.borrow_mut();
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }

    pub fn hash(&self) -> String {
        let digest = self.hash.borrow().clone().finalize();
        digest.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    pub fn files(&self) -> Vec<PathBuf> {
        self.files.borrow().clone()
    }

    pub fn into_report(self) -> Report {
        Report::new(self.texts.into_inner(), self.mistakes.into_inner(), self.files.into_inner())
    }

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
                let help = "create it, name another with -c FILE, or do without: sluicegate proxy --to URL";
                self.unreadable(file, message, format!("{help}\nthe smallest that works:\n\n{SMALLEST}"));
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
        self.mistake(Diagnostic::new(place, message).kind(Kind::Unread).help(help));
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
        if !self.files.borrow().contains(&dir) {
            self.files.borrow_mut().push(dir);
        }
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
                Err(error) => self.mistake(
                    Diagnostic::new(item.place, format!("cannot read `{}`: {error}", path.display()))
                        .kind(Kind::Unread)
                        .help("create the file, or correct its path (relative to this file)"),
                ),
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

fn read_bytes(path: &Path) -> Result<Vec<u8>, String> {
    let plain = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    };
    // Opening a pipe without a writer would wait for ever.
    let kind = path.metadata().map_err(plain)?;
    if !kind.is_file() {
        return Err(if kind.is_dir() { "it is a directory" } else { "it is not a regular file" }.to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(SIZE_MAX + 1).read_to_end(&mut bytes)).map_err(plain)?;
    if bytes.len() as u64 > SIZE_MAX {
        return Err(format!("it is larger than {} MiB", SIZE_MAX / 1024 / 1024));
    }
    Ok(bytes)
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
