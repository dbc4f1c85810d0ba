//! Replaces a file atomically. Called by every module that keeps state on disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file of `bytes` to `path`, readable by this user only, and returns once it is on disk. Until it is
/// complete it has a name next to `path` that starts with `temporary`.
///
/// # Errors
/// The system's error; the file at `path` is unchanged then.
pub fn replace_file(path: &Path, temporary: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_file_name(format!("{temporary}{:016x}", rand::random::<u64>()));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    });
    written.inspect_err(|_| {
        // A partial file is useless and takes space.
        let _ = fs::remove_file(&temporary);
    })
}
