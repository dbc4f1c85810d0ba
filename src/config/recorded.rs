//! Texts of config files in memory: those that a load has read, for the history of configs, and those that a load uses
//! instead of files, to check an edit before it is written.
//!
//! Input: a `TextOverlay` (`texts`). Output: the files of a load with their texts, the lines of statements, and
//! mistakes in texts of clients. To use texts for another purpose, add a variant to `OverlayKind`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::source::SourceTexts;
use crate::config::texts::{LoadedFile, SourceLine};
use crate::config::tree::{Node, Table, Value};

const MASK: &str = "***";
/// A masked password in a URL.
const MASKED_PASSWORD: &str = ":***@";

impl SourceTexts {
    /// Adds the text of a config file.
    pub fn add_config_file(&self, path: &Path, text: String) -> usize {
        let dir = path.parent().map(Path::to_owned).unwrap_or_default();
        let file = self.add_source(path.display().to_string(), dir, text);
        self.config_files.borrow_mut().push((file, path.to_owned()));
        file
    }

    /// Returns the config files that were read, the main file first.
    pub fn list_config_files(&self) -> Vec<LoadedFile> {
        let files = self.config_files.borrow();
        files.iter().map(|(file, path)| LoadedFile::new(path.clone(), self.source(*file))).collect()
    }

    /// Reports every masked value if a client has sent the text of `file`: a response shows `***` instead of secrets,
    /// and writing that back would replace the secret.
    pub fn check_masked(&self, file: usize, table: &Table) {
        let is_sent = |path: &Path| self.overlay.is_edit() && self.overlay.text(path).is_some();
        if self.config_files.borrow().iter().any(|(index, path)| *index == file && is_sent(path)) {
            table.entries.iter().for_each(|entry| self.report_masked(&entry.node));
        }
    }

    fn report_masked(&self, node: &Node) {
        match &node.value {
            Value::String(text) => {
                let source_text = text.written.as_ref().unwrap_or(&text.value);
                if source_text == MASK || source_text.contains(MASKED_PASSWORD) {
                    self.add_mistake(
                        Diagnostic::new(node.place, "this value is masked, so it would replace the real one")
                            .with_help("write the value itself, or better ${file:PATH} or ${VAR}"),
                    );
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.report_masked(item)),
            Value::Table(table) => table.entries.iter().for_each(|entry| self.report_masked(&entry.node)),
            Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::Other(_) | Value::Broken => {}
        }
    }

    /// Returns the file and line of each place.
    pub fn find_lines(&self, places: &[Place]) -> Vec<SourceLine> {
        // One pass over each file, however many places it has.
        let mut starts: BTreeMap<usize, (Arc<str>, Vec<usize>)> = BTreeMap::new();
        let find = |place: &Place| {
            let (file, newlines) = starts.entry(place.file).or_insert_with(|| {
                let source = self.source(place.file);
                (source.name.as_str().into(), source.text.match_indices('\n').map(|(at, _)| at).collect())
            });
            SourceLine { file: file.clone(), line: newlines.partition_point(|at| *at < place.start) + 1 }
        };
        places.iter().map(find).collect()
    }
}
