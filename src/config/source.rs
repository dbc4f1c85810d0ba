//! The texts a config is made of: the file itself, its includes, and the files of sets and
//! secrets. Remembers all of them, with their hash and every mistake, for the whole load.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::hidden::Substitution;
use super::report::{Diagnostic, Report, SourceText};
use super::unreadable::{self, Unreadable};

/// A config that can be copied whole.
pub const SMALLEST: &str = "[[route]]\npath = \"/\"\nupstream = \"http://127.0.0.1:3000\"";

#[derive(Default)]
pub struct SourceTexts {
    texts: RefCell<Vec<Arc<SourceText>>>,
    files: RefCell<Vec<PathBuf>>,
    hash: RefCell<Sha256>,
    mistakes: RefCell<Vec<Diagnostic>>,
    /// What `${...}` stands for in the files.
    substitutions: RefCell<Vec<Substitution>>,
    /// What a config may hold and probably does not mean.
    warnings: RefCell<Vec<Diagnostic>>,
    /// Keys that some section had, for the test of the reference config.
    seen: RefCell<BTreeSet<(&'static str, &'static str)>>,
}

impl SourceTexts {
    pub fn mistake(&self, mistake: Diagnostic) {
        self.mistakes.borrow_mut().push(mistake);
    }

    pub fn warn(&self, warning: Diagnostic) {
        self.warnings.borrow_mut().push(warning);
    }

    /// All warnings so far, with the texts they speak of.
    pub fn warnings(&self) -> Option<Report> {
        let (texts, mut warnings) = (self.texts.borrow().clone(), self.warnings.take());
        hide_values(&texts, &self.substitutions.borrow(), &mut warnings);
        Report::warnings(texts, warnings)
    }

    pub fn has_mistakes(&self) -> bool {
        !self.mistakes.borrow().is_empty()
    }

    /// Remembers what a `${...}` stands for.
    pub fn substituted(&self, substitution: Substitution) {
        let mut substitutions = self.substitutions.borrow_mut();
        if !substitutions.contains(&substitution) {
            substitutions.push(substitution);
        }
    }

    pub fn saw(&self, section: &'static str, key: &'static str) {
        self.seen.borrow_mut().insert((section, key));
    }

    pub fn seen(&self) -> BTreeSet<(&'static str, &'static str)> {
        self.seen.borrow().clone()
    }

    pub fn source(&self, file: usize) -> Arc<SourceText> {
        self.texts.borrow()[file].clone()
    }

    pub fn add(&self, name: String, dir: PathBuf, text: String) -> usize {
        let mut texts = self.texts.borrow_mut();
        texts.push(Arc::new(SourceText { name, text, dir }));
        texts.len() - 1
    }

    /// A path as written in source `file`.
    pub fn resolve(&self, file: usize, path: &str) -> PathBuf {
        self.source(file).dir.join(path)
    }

    /// The text of a file, which is watched from now on even when it cannot be read.
    pub fn read(&self, path: &Path) -> Result<String, Unreadable> {
        self.watch(path.to_owned());
        let bytes = unreadable::read_bytes(path)?;
        self.digest(&bytes);
        String::from_utf8(bytes).map_err(|error| Unreadable::not_utf8(path, &error))
    }

    /// Watches `path`, which need not be a file.
    pub fn watch(&self, path: PathBuf) {
        let mut files = self.files.borrow_mut();
        if !files.contains(&path) {
            files.push(path);
        }
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
        let (texts, mut mistakes) = (self.texts.into_inner(), self.mistakes.into_inner());
        hide_values(&texts, &self.substitutions.borrow(), &mut mistakes);
        Report::new(texts, mistakes, self.files.into_inner())
    }
}

/// A value of `${...}` may be a secret in the wrong place: messages say `${...}` instead.
fn hide_values(texts: &[Arc<SourceText>], substitutions: &[Substitution], messages: &mut [Diagnostic]) {
    for hidden in substitutions.iter().filter_map(|substitution| substitution.to_hide(texts)) {
        messages.iter_mut().flat_map(Diagnostic::texts).for_each(|text| hidden.hide(text));
    }
}
