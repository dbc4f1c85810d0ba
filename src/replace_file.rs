//! Replaces a file atomically. Called by every module that keeps state on disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Age after which a leftover of an interrupted write is removed.
const LEFTOVER_AGE: Duration = Duration::from_secs(60);

/// Writes a file of `bytes` to `path`, readable by this user only, and returns once it is on disk. Until it is
/// complete it has a name next to `path` that starts with `temporary`.
///
/// # Errors
/// The system's error; the file at `path` is unchanged then.
pub fn replace_file(path: &Path, temporary: &str, bytes: &[u8]) -> io::Result<()> {
    write_beside(path, temporary, bytes, |_| Ok(()))
}

/// Like [`replace_file`], but with the owner and the permissions of the file at `model`.
///
/// # Errors
/// The system's error, also if this user may not give the file its owner; the file at `path` is unchanged then.
pub fn replace_file_like(model: &Path, path: &Path, temporary: &str, bytes: &[u8]) -> io::Result<()> {
    let model = fs::metadata(model)?;
    write_beside(path, temporary, bytes, |file| {
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (model.uid(), model.gid()) {
            fchown(file, Some(model.uid()), Some(model.gid()))?;
        }
        // After the owner, so that nobody gets access who does not have it.
        file.set_permissions(model.permissions())
    })
}

/// Removes files next to `path` that interrupted writes left there, by the start of their names.
pub fn remove_leftovers(path: &Path, temporary: &str) {
    let Some(dir) = path.parent() else { return };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_old = || {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age >= LEFTOVER_AGE))
        };
        if entry.file_name().to_string_lossy().starts_with(temporary) && is_old() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn write_beside(
    path: &Path,
    temporary: &str,
    bytes: &[u8],
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = path.with_file_name(format!("{temporary}{:016x}", rand::random::<u64>()));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        prepare(&file)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    });
    written.inspect_err(|_| {
        // A partial file is useless and takes space.
        let _ = fs::remove_file(&temporary);
    })
}
