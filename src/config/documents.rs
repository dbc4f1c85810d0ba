//! Parses a config and everything it includes into trees, starting from a file or from a text. Called by
//! `config::load_config` and the other entry points.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place};
use crate::config::schema::root;
use crate::config::source::{SMALLEST, SourceTexts};
use crate::config::tree;
use crate::config::tree::{Node, Table, Value};
use crate::config::unreadable::UnreadableKind;
use crate::text::Wildcard;

/// Maximum number of included files.
const INCLUDES_MAX: usize = 1000;

impl SourceTexts {
    /// Returns the trees of the config file at `path` and of all its includes, in order.
    pub fn parse_documents(&self, path: &Path) -> Arc<[Table]> {
        let mut documents = Vec::new();
        match self.read_file(path) {
            Ok(text) => {
                let empty = text.trim().is_empty();
                let file = self.add_config_file(path, text);
                if empty {
                    let message = format!("the configuration file `{}` is empty", path.display());
                    self.report_unreadable(file, message, format!("the smallest that works:\n\n{SMALLEST}"));
                } else {
                    self.parse_document(file, &mut documents, &mut HashSet::from([self.file_identity(path)]));
                }
            }
            Err(error) => {
                let file = self.add_source(path.display().to_string(), parent_directory(path), String::new());
                let message = format!("cannot read the configuration file `{}`: {error}", path.display());
                let help = match error.kind {
                    UnreadableKind::Missing => format!(
                        "create it, name another with -c FILE, or do without: sluicegate proxy --to URL\n\
                         the smallest that works:\n\n{SMALLEST}"
                    ),
                    UnreadableKind::Directory => {
                        format!("name a file in it, like -c {}", path.join("sluicegate.toml").display())
                    }
                    UnreadableKind::Content | UnreadableKind::Other => error.help().to_owned(),
                };
                self.report_unreadable(file, message, help);
            }
        }
        documents.into()
    }

    /// Returns the trees of a text that is not in a file, and of all its includes.
    pub fn parse_text_documents(&self, name: &str, text: &str) -> Arc<[Table]> {
        self.add_to_digest(text.as_bytes());
        let file = self.add_source(name.to_owned(), PathBuf::new(), text.to_owned());
        let mut documents = Vec::new();
        if text.trim().is_empty() {
            let help = format!("the smallest that works:\n\n{SMALLEST}");
            self.report_unreadable(file, format!("the configuration `{name}` is empty"), help);
        } else {
            self.parse_document(file, &mut documents, &mut HashSet::new());
        }
        documents.into()
    }

    fn report_unreadable(&self, file: usize, message: String, help: String) {
        let place = Place { file, start: 0, end: 0 };
        self.add_mistake(Diagnostic::new(place, message).with_kind(MistakeKind::Unread).with_help(help));
    }

    fn parse_document(&self, file: usize, documents: &mut Vec<Table>, known: &mut HashSet<PathBuf>) {
        let table = tree::parse_file(self, file);
        self.check_masked(file, &table);
        let include = table.get(root::INCLUDE.name).map(|entry| entry.node.clone());
        documents.push(table);
        match include {
            None | Some(Node { value: Value::Broken, .. }) => {}
            Some(Node { value: Value::Array(items), .. }) => {
                items.iter().for_each(|item| self.parse_include(item, documents, known));
            }
            Some(item) => self.parse_include(&item, documents, known),
        }
    }

    fn parse_include(&self, item: &Node, documents: &mut Vec<Table>, known: &mut HashSet<PathBuf>) {
        let pattern = match &item.value {
            Value::String(text) => &text.value,
            Value::Broken => return,
            _ => {
                let message = format!("`include` must be a string, found {}", item.type_name());
                return self
                    .add_mistake(Diagnostic::new(item.place, message).with_help("include = [\"conf.d/*.toml\"]"));
            }
        };
        let pattern_path = self.resolve_path(item.place.file, pattern);
        // The directory is watched too, so that a new file that matches the pattern is noticed.
        let dir = parent_directory(&pattern_path);
        self.watch_path(dir);
        let paths = match self.expand_pattern(&pattern_path) {
            Ok(paths) => paths,
            Err(error) => {
                return self.add_mistake(Diagnostic::new(item.place, format!("cannot include `{pattern}`: {error}")));
            }
        };
        for path in paths {
            // A file is read once, however many patterns match it, even its own.
            if self.overlay.leaves_out(&path) || !known.insert(self.file_identity(&path)) {
                continue;
            }
            if known.len() > INCLUDES_MAX {
                let message = format!("more than {INCLUDES_MAX} files are included");
                return self.add_mistake(Diagnostic::new(item.place, message).with_help("join some of them"));
            }
            match self.read_file(&path) {
                Ok(text) => {
                    let file = self.add_config_file(&path, text);
                    self.parse_document(file, documents, known);
                }
                Err(error) => {
                    let help = match error.kind {
                        UnreadableKind::Directory => format!("write \"{pattern}/*.toml\" for the files in it"),
                        UnreadableKind::Missing | UnreadableKind::Content | UnreadableKind::Other => {
                            error.help().to_owned()
                        }
                    };
                    let message = format!("cannot read `{}`: {error}", path.display());
                    self.add_mistake(
                        Diagnostic::new(item.place, message).with_kind(MistakeKind::Unread).with_help(help),
                    );
                }
            }
        }
    }

    fn file_identity(&self, path: &Path) -> PathBuf {
        if self.overlay.is_recorded() {
            return path.to_owned();
        }
        path.canonicalize().unwrap_or_else(|_| path.to_owned())
    }

    /// Returns the files that match a pattern, sorted. `*` and `?` are wildcards in the last component only. A pattern
    /// may match nothing; a plain path is returned unchanged.
    fn expand_pattern(&self, pattern: &Path) -> Result<Vec<PathBuf>, String> {
        let wild = |part: &str| part.contains(['*', '?']);
        let name = pattern.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let dir = parent_directory(pattern);
        if dir.to_str().is_some_and(wild) {
            return Err("only the file name may contain `*` or `?`".to_owned());
        }
        if !wild(name) {
            return Ok(vec![pattern.to_owned()]);
        }
        let mut names = match self.overlay.list_names(&dir).map_or_else(|| list_directory(&dir), Ok) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        // Hidden files belong to editors and mounts.
        let wildcard = Wildcard::new(name);
        names.retain(|file| !file.starts_with('.') && wildcard.matches_file(file));
        let mut paths: Vec<PathBuf> = names.into_iter().map(|file| dir.join(file)).collect();
        paths.retain(|path| self.overlay.is_recorded() || !path.is_dir());
        paths.sort();
        Ok(paths)
    }
}

fn parent_directory(path: &Path) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or_default()
}

/// Returns the names of the files in `dir` that are text.
fn list_directory(dir: &Path) -> std::io::Result<Vec<String>> {
    let listing = std::fs::read_dir(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?;
    Ok(listing.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}
