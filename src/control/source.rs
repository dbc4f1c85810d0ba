//! Where the config comes from, and whether its edits can be noticed.

use std::path::{Path, PathBuf};

use super::watch;
use crate::config::{self, Config, Report};

#[derive(Clone, Debug)]
pub enum ConfigSource {
    File(PathBuf),
    /// Made by the command line; `name` stands in diagnostics.
    Text {
        name: String,
        text: String,
    },
}

impl ConfigSource {
    /// # Errors
    /// Every mistake of the config at once.
    pub fn load(&self) -> Result<Config, Report> {
        match self {
            ConfigSource::File(path) => config::load(path),
            ConfigSource::Text { name, text } => config::from_text(name, text),
        }
    }

    /// True when an edit could be noticed; says so when not, or not always.
    pub fn watchable(&self) -> bool {
        let ConfigSource::File(path) = self else { return true };
        if !std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
            tracing::warn!("{} is not a regular file and is not watched for edits", path.display());
            return false;
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if watch::is_mount_point(Path::new(path), &mounts) {
            tracing::warn!(
                "{} is mounted as a single file: edits that replace the file, as most editors save, will not be seen; \
                 mount its directory instead",
                path.display()
            );
        }
        true
    }
}
