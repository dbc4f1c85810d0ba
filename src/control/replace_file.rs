//! Replaces a file by another content, whole or not at all. Called by whoever keeps state on disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Puts a file of `bytes` at `path`, readable by this user alone and on disk once this returns. Until it is whole
/// it stands beside `path` under a name that begins with `temporary`.
///
/// # Errors
/// What the system says; the file at `path` is then what it was.
pub fn replace_file(path: &Path, temporary: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_file_name(format!("{temporary}{:016x}", rand::random::<u64>()));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    });
    written.inspect_err(|_| {
        // A part of it is of no use, and takes room.
        let _ = fs::remove_file(&temporary);
    })
}
