//! The CA of development certificates (`tls = { internal = true }`). Called by the control thread, which issues
//! certificates for listeners, and by `sluicegate trust`.
//!
//! Input: the state directories that listeners name. Output: a [`LocalCa`] for each, which issues certificates in
//! memory. `directory` creates and reads the files of a CA and refuses those that another user could read or replace,
//! `authority` makes and signs certificates, and `debian` adds a CA to the trust store of Debian.
//!
//! To support the trust store of another system, add a file like `debian`, and its call in `cli::trust`.

pub mod authority;
pub mod debian;
mod directory;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::Config;
use crate::local_ca::authority::LocalCa;
pub use crate::local_ca::directory::{LocalCaError, certificate_path, open_ca, read_certificate};

/// CAs by state directory.
pub type LocalCas = BTreeMap<PathBuf, Arc<LocalCa>>;

/// Returns the state directories of the listeners with development certificates, each once.
pub fn list_directories(config: &Config) -> Vec<PathBuf> {
    let internal = config.listeners.iter().filter_map(|listener| listener.tls.as_ref()?.internal());
    let mut directories: Vec<PathBuf> = internal.map(|internal| internal.state.clone()).collect();
    directories.sort();
    directories.dedup();
    directories
}

/// Opens the CA of each directory, or creates it. Reads and writes files, so it may block.
///
/// # Errors
/// The first directory that cannot be used, and what to do.
pub fn open_all(directories: Vec<PathBuf>) -> Result<LocalCas, LocalCaError> {
    directories.into_iter().map(|directory| open_ca(&directory).map(|ca| (directory, Arc::new(ca)))).collect()
}

/// Returns the wall clock in seconds of Unix time.
pub fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
