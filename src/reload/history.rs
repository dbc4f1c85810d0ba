//! The last configs that were active, with their texts, so that an operator can go back. Filled by the reloader,
//! shown by the admin listener.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::LoadedFile;
use crate::reload::change::ChangeFault;
use crate::reload::diff::Diff;

/// The history of configs, the newest last. Never empty once the gateway has started.
#[derive(Default)]
pub struct ConfigHistory {
    entries: Mutex<VecDeque<HistoryEntry>>,
    pin: Mutex<Option<ConfigPin>>,
}

/// A config that was active.
pub struct HistoryEntry {
    pub generation: u64,
    pub hash: String,
    pub loaded_at: SystemTime,
    /// Event that activated the config: `start`, or a trigger of reloads.
    pub trigger: &'static str,
    /// Name of the token that requested it over the admin API; `None` for files and signals.
    pub token: Option<String>,
    /// Changes against the previous config, in one line; `None` for the first config.
    pub summary: Option<String>,
    /// The same as JSON; `None` if it is too long.
    pub diff: Option<Value>,
    /// Paths of the config files, the main file first.
    pub paths: Vec<PathBuf>,
    /// The files with their texts; `None` if they take too much memory, or the config is not in a file.
    pub files: Option<Vec<LoadedFile>>,
}

/// A config of the history that is active instead of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigPin {
    /// Generation that was chosen.
    pub generation: u64,
    /// Hash of the config that the files contain. The pin ends when they contain another one.
    pub files_hash: String,
}

/// Maximum number of entries.
const ENTRIES_MAX: usize = 10;
/// Maximum number of bytes of all texts. Generations share the texts of files that did not change.
const TEXTS_MAX: usize = 8 * 1024 * 1024;
/// Maximum size of a diff that is kept, in bytes.
const DIFF_MAX: usize = 64 * 1024;
/// Length of the hashes in entity tags.
const TAG_HASH: usize = 16;

impl HistoryEntry {
    /// Creates the entry of a config that has just become active.
    pub fn new(generation: u64, hash: &str, trigger: &'static str, files: Vec<LoadedFile>) -> HistoryEntry {
        HistoryEntry {
            generation,
            hash: hash.to_owned(),
            loaded_at: SystemTime::now(),
            trigger,
            token: None,
            summary: None,
            diff: None,
            paths: files.iter().map(|file| file.path.clone()).collect(),
            files: Some(files).filter(|files| !files.is_empty()),
        }
    }

    pub fn with_token(self, token: Option<String>) -> HistoryEntry {
        HistoryEntry { token, ..self }
    }

    pub fn with_diff(mut self, diff: &Diff) -> HistoryEntry {
        self.summary = Some(diff.to_string());
        self.diff = Some(diff.to_json()).filter(|diff| diff.to_string().len() <= DIFF_MAX);
        self
    }

    /// Returns the text that the file at `path` had; `None` if it was not part of the config, or is not kept.
    fn text_of(&self, path: &Path) -> Option<&str> {
        self.files.as_ref()?.iter().find(|file| file.path == path).map(LoadedFile::text)
    }
}

impl ConfigHistory {
    /// Adds the config that has become active, and drops what exceeds the bounds, the oldest first.
    pub fn add_entry(&self, mut entry: HistoryEntry) {
        let mut entries = self.entries();
        if let (Some(files), Some(before)) = (&mut entry.files, entries.back().and_then(|last| last.files.as_ref())) {
            let before: HashMap<&Path, &LoadedFile> = before.iter().map(|file| (file.path.as_path(), file)).collect();
            for file in files {
                if let Some(earlier) = before.get(file.path.as_path()) {
                    file.share_text(earlier);
                }
            }
        }
        entries.push_back(entry);
        if entries.len() > ENTRIES_MAX {
            entries.pop_front();
        }
        // From the newest to the oldest: what does not fit any more loses its texts.
        let (mut counted, mut size) = (HashSet::new(), 0);
        for entry in entries.iter_mut().rev() {
            let new = entry.files.iter().flatten().filter(|file| counted.insert(file.text_address()));
            size += new.map(|file| file.text().len()).sum::<usize>();
            if size > TEXTS_MAX {
                entry.files = None;
            }
        }
    }

    /// Returns the entries, the newest last.
    pub fn entries(&self) -> MutexGuard<'_, VecDeque<HistoryEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the paths of the active config files, the main file first; empty if the config is not in a file.
    pub fn current_paths(&self) -> Vec<PathBuf> {
        self.entries().back().map(|entry| entry.paths.clone()).unwrap_or_default()
    }

    /// Returns the text that a client knows by an entity tag of the file at `path`.
    pub fn find_text(&self, tags: &[String], path: &Path) -> Option<String> {
        let entries = self.entries();
        tags.iter().find_map(|tag| {
            let generation = tag.strip_prefix('"')?.split_once('-')?.0.parse().ok()?;
            let text = entries.iter().find(|entry| entry.generation == generation)?.text_of(path)?;
            (entity_tag(generation, &hash_text(text.as_bytes())) == *tag).then(|| text.to_owned())
        })
    }

    /// Returns the files of `generation` with their texts.
    pub fn find_files(&self, generation: u64) -> Result<Vec<LoadedFile>, ChangeFault> {
        let entries = self.entries();
        let Some(entry) = entries.iter().find(|entry| entry.generation == generation) else {
            let generations = entries.iter().map(|entry| entry.generation).collect();
            return Err(ChangeFault::UnknownGeneration { generation, known: generations });
        };
        entry.files.clone().ok_or(ChangeFault::TextsNotKept(generation))
    }

    pub fn pin(&self) -> Option<ConfigPin> {
        self.pin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_pin(&self, pin: Option<ConfigPin>) {
        *self.pin.lock().unwrap_or_else(PoisonError::into_inner) = pin;
    }
}

/// Returns the entity tag of a text or config with this hash, while `generation` is active.
pub fn entity_tag(generation: u64, hash: &str) -> String {
    format!("\"{generation}-{}\"", hash.get(..TAG_HASH).unwrap_or(hash))
}

/// Returns the SHA-256 of a text, in hex.
pub fn hash_text(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
