//! Source of the config: a file, or a text built by the command line; and whether edits can be noticed.

use std::path::{Path, PathBuf};

use crate::config;
use crate::config::{Config, Report};
use crate::control::watch;

#[derive(Clone, Debug)]
pub enum ConfigSource {
    File(PathBuf),
    /// Built by the command line; `name` appears in diagnostics.
    Text {
        name: String,
        text: String,
    },
}

impl ConfigSource {
    /// Loads the config.
    ///
    /// # Errors
    /// A report of every mistake.
    pub fn load_config(&self) -> Result<Config, Report> {
        match self {
            ConfigSource::File(path) => config::load_config(path),
            ConfigSource::Text { name, text } => config::load_text(name, text),
        }
    }

    /// Returns whether edits can be noticed, and logs if they cannot, or not always.
    pub fn is_watchable(&self) -> bool {
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
