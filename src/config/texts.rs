//! Texts of config files in memory. Used by `source`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::diagnostics::report::SourceText;

/// A config file as a load has read it: the main file or an include.
#[derive(Clone, Debug)]
pub struct LoadedFile {
    /// Path as the load spelled it.
    pub path: PathBuf,
    source: Arc<SourceText>,
}

/// The file and line of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    pub file: Arc<str>,
    /// Counts from 1.
    pub line: usize,
}

/// Texts that a load uses instead of files.
#[derive(Clone, Debug, Default)]
pub struct TextOverlay {
    texts: BTreeMap<PathBuf, String>,
    kind: OverlayKind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlayKind {
    /// Texts of a client. Masked values in them are mistakes. All other files are read.
    #[default]
    Edit,
    /// Texts of an earlier load. All other files are read.
    Restore,
    /// All texts of an earlier load: it includes exactly the files that it included then.
    Recorded,
}

impl LoadedFile {
    pub fn new(path: PathBuf, source: Arc<SourceText>) -> LoadedFile {
        LoadedFile { path, source }
    }

    pub fn text(&self) -> &str {
        &self.source.text
    }

    /// Shares the text with `other` if both are the same file with the same text.
    pub fn share_text(&mut self, other: &LoadedFile) {
        if self.path == other.path && self.source.text == other.source.text {
            self.source = other.source.clone();
        }
    }

    /// Returns an address that is the same for files that share their text.
    pub fn text_address(&self) -> usize {
        Arc::as_ptr(&self.source) as usize
    }
}

impl TextOverlay {
    pub fn new(kind: OverlayKind, texts: impl IntoIterator<Item = (PathBuf, String)>) -> TextOverlay {
        TextOverlay { texts: texts.into_iter().collect(), kind }
    }

    pub fn text(&self, path: &Path) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Returns the names of the files in `dir` that there were; `None` if they are to be listed.
    pub fn list_names(&self, dir: &Path) -> Option<Vec<String>> {
        let inside = |path: &&PathBuf| path.parent().unwrap_or(Path::new("")) == dir;
        let name = |path: &PathBuf| path.file_name()?.to_str().map(str::to_owned);
        (self.kind == OverlayKind::Recorded).then(|| self.texts.keys().filter(inside).filter_map(name).collect())
    }

    /// Returns whether an include of `path` is left out, because the earlier load did not read it.
    pub fn leaves_out(&self, path: &Path) -> bool {
        self.kind == OverlayKind::Recorded && !self.texts.contains_key(path)
    }

    /// Returns whether the texts are those of a client.
    pub fn is_edit(&self) -> bool {
        self.kind == OverlayKind::Edit
    }

    /// Returns whether files are found by their path only, because the disk may have changed since.
    pub fn is_recorded(&self) -> bool {
        self.kind == OverlayKind::Recorded
    }
}
