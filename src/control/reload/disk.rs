//! Checks and writes of config files, on the loader's thread. Called by `change`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use similar::TextDiff;

use crate::config::{self, Config, LoadedFile, OverlayKind, TextOverlay};
use crate::reload::change::ChangeFault;
use crate::reload::files::{name_file, read_file};
use crate::reload::history::{entity_tag, hash_text};
use crate::replace_file::{remove_leftovers, replace_file_like};

/// Time after which the diff is finished coarsely: the cost of an exact one grows with the square of the changes.
const DIFF_EFFORT: Duration = Duration::from_millis(50);
/// Maximum size of a diff, in bytes.
const DIFF_MAX: usize = 64 * 1024;

/// A config file whose text changes.
pub struct FileChange {
    pub name: String,
    pub path: PathBuf,
    /// Text before; `None` if there was no file.
    pub old: Option<Vec<u8>>,
    pub new: Vec<u8>,
}

/// An edit to check.
pub struct EditCheck {
    pub main: PathBuf,
    pub path: PathBuf,
    pub text: String,
    pub expected: Vec<String>,
    /// Generation of the active config.
    pub generation: u64,
    /// The text that the client has edited, if the history has it.
    pub known: Option<String>,
}

/// A valid edit.
pub struct CheckedEdit {
    pub change: FileChange,
    /// The config as it will be.
    pub config: Config,
}

/// Start of the names of files that are not complete yet. They are hidden, so no pattern of `include` matches them.
const TEMPORARY: &str = ".sluicegate-edit-";

impl EditCheck {
    /// Checks that the client knows the current text, and that the whole config is valid with the new one. Returns
    /// `None` if the text does not change.
    pub fn run(self) -> Result<Option<CheckedEdit>, ChangeFault> {
        let name = name_file(&self.main, &self.path);
        let old = match read_file(&self.path) {
            Ok(old) => old,
            Err(error) => return Err(ChangeFault::Unreadable { name, error }),
        };
        let tag = entity_tag(self.generation, &hash_text(&old));
        if !self.expected.contains(&tag) {
            let text_diff = self.known.map(|known| diff_texts(&name, &known, &String::from_utf8_lossy(&old)));
            return Err(ChangeFault::Stale { tag, text_diff });
        }
        if old == self.text.as_bytes() {
            return Ok(None);
        }
        let overlay = TextOverlay::new(OverlayKind::Edit, [(self.path.clone(), self.text.clone())]);
        let config = config::load_with_texts(&self.main, overlay).map_err(ChangeFault::Invalid)?;
        let change = FileChange { name, path: self.path, old: Some(old), new: self.text.into_bytes() };
        Ok(Some(CheckedEdit { change, config }))
    }
}

/// Returns the changes after which the files contain the config of `files` again.
pub fn plan_restore(main: &Path, files: &[LoadedFile], generation: u64) -> Result<Vec<FileChange>, ChangeFault> {
    let config =
        config::load_with_texts(main, overlay_of(files, OverlayKind::Restore)).map_err(ChangeFault::Invalid)?;
    let paths = |files: &[LoadedFile]| files.iter().map(|file| file.path.clone()).collect::<BTreeSet<PathBuf>>();
    let (then, now) = (paths(files), paths(&config.config_files));
    if let Some(path) = now.difference(&then).next() {
        let what = format!("it did not include `{}`: remove that file first", name_file(main, path));
        return Err(ChangeFault::OtherFiles { generation, what });
    }
    if let Some(path) = then.difference(&now).next() {
        let what = format!("it included `{}`, which is not included now", name_file(main, path));
        return Err(ChangeFault::OtherFiles { generation, what });
    }
    let mut changes = Vec::new();
    for file in files {
        let name = name_file(main, &file.path);
        let old = match read_file(&file.path) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(ChangeFault::Unreadable { name, error }),
        };
        let new = file.text().as_bytes().to_vec();
        if old.as_ref() != Some(&new) {
            changes.push(FileChange { name, path: file.path.clone(), old, new });
        }
    }
    Ok(changes)
}

pub fn overlay_of(files: &[LoadedFile], kind: OverlayKind) -> TextOverlay {
    TextOverlay::new(kind, files.iter().map(|file| (file.path.clone(), file.text().to_owned())))
}

/// Writes all changes, or none. New files get owner and permissions of the file at `main`.
pub fn write_changes(main: &Path, changes: &[FileChange], generation: u64) -> Result<(), ChangeFault> {
    for (count, change) in changes.iter().enumerate() {
        let result = match find_current(change) {
            Ok(current) if current == change.old => write_text(main, &change.path, &change.new)
                .map_err(|error| ChangeFault::Unwritable { name: change.name.clone(), error }),
            // An editor was quicker.
            Ok(current) => {
                let tag = entity_tag(generation, &hash_text(&current.unwrap_or_default()));
                Err(ChangeFault::Stale { tag, text_diff: None })
            }
            Err(error) => Err(ChangeFault::Unreadable { name: change.name.clone(), error }),
        };
        if let Err(fault) = result {
            // The file of the error is among them: it may have been replaced before.
            if let Err(error) = restore_changes(main, &changes[..=count]) {
                tracing::error!("only some config files were written, and they cannot be restored: {error}");
            }
            return Err(fault);
        }
    }
    Ok(())
}

/// Restores the texts before, except where someone has written another text since.
pub fn restore_changes(main: &Path, changes: &[FileChange]) -> io::Result<()> {
    let mut result = Ok(());
    for change in changes.iter().rev() {
        let outcome = match (find_current(change), &change.old) {
            (Ok(current), old) if current == *old => Ok(()),
            (Ok(Some(current)), Some(old)) if current == change.new => write_text(main, &change.path, old),
            (Ok(Some(current)), None) if current == change.new => std::fs::remove_file(&change.path),
            (Ok(_), _) => Err(io::Error::other(format!("someone else has changed `{}`", change.name))),
            (Err(error), _) => Err(error),
        };
        result = result.and(outcome);
    }
    result
}

/// Removes what edits of a process left that was killed, if edits are allowed.
pub fn remove_edit_leftovers(config: &Config) {
    let files = config.config_files.iter().filter(|_| config.admin.edit);
    let real = files.filter_map(|file| file.path.canonicalize().ok());
    real.for_each(|path| remove_leftovers(&path, TEMPORARY));
}

/// Returns the text now; `None` if there is no file.
fn find_current(change: &FileChange) -> io::Result<Option<Vec<u8>>> {
    match read_file(&change.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Replaces the file that `path` really names: a symlink stays.
fn write_text(main: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let (real, model) = match path.canonicalize() {
        Ok(real) => (real.clone(), real),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_owned(), main.to_owned()),
        Err(error) => return Err(error),
    };
    remove_leftovers(&real, TEMPORARY);
    replace_file_like(&model, &real, TEMPORARY, text)
}

/// Returns a unified diff for clients whose edit is based on an older text, cut at 64 KiB.
fn diff_texts(name: &str, old: &str, new: &str) -> String {
    let diff = TextDiff::configure().timeout(DIFF_EFFORT).diff_lines(old, new);
    let mut text = diff.unified_diff().context_radius(3).header(name, name).to_string();
    if text.len() > DIFF_MAX {
        text.truncate(text.floor_char_boundary(DIFF_MAX));
        text.push_str("\n[the rest of the diff is left out]\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_diff_shows_lines_and_is_bounded() {
        let diff = diff_texts("a.toml", "one\ntwo\nthree\n", "one\n2\nthree\n");
        assert_eq!(diff, "--- a.toml\n+++ a.toml\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n");
        assert_eq!(diff_texts("a", "x\n", "x\n"), "");
        let lines = |factor: u64| (0..60_000_u64).map(|i| format!("{}\n", i * factor % 9973)).collect::<String>();
        let start = Instant::now();
        let diff = diff_texts("a", &lines(7919), &lines(6151));
        assert!(diff.len() < DIFF_MAX + 100 && start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
