//! Replaces a file atomically. Called by every module that keeps state on disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Age after which a leftover of an interrupted write is removed: its writer had the time to lock it.
const LEFTOVER_AGE: Duration = Duration::from_secs(1);

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

/// Removes files next to `path` that interrupted writes left there, by the start of their names. A file that is being
/// written is locked by its writer and stays.
pub fn remove_leftovers(path: &Path, temporary: &str) {
    let Some(dir) = path.parent() else { return };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_left = || {
            // The metadata describes the entry itself, not the target of a link. Only regular files count, because
            // opening a pipe would block.
            let metadata = entry.metadata().ok().filter(|metadata| metadata.is_file());
            let age = metadata.and_then(|metadata| SystemTime::now().duration_since(metadata.modified().ok()?).ok());
            age.is_some_and(|age| age >= LEFTOVER_AGE)
                && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        };
        if entry.file_name().to_string_lossy().starts_with(temporary) && is_left() {
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
    let result = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).and_then(|mut file| {
        // Without support for locks, the age protects it.
        let _ = file.try_lock();
        file.write_all(bytes)?;
        prepare(&file)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    });
    result.inspect_err(|_| {
        // A partial file is useless and takes space.
        let _ = fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_dead_writers_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, age: Duration| {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            file
        };
        drop((make(".edit-old", LEFTOVER_AGE), make(".edit-new", Duration::ZERO), make("other", LEFTOVER_AGE)));
        let written = make(".edit-written", LEFTOVER_AGE);
        written.try_lock().unwrap();
        remove_leftovers(&dir.path().join("other"), ".edit-");
        let exists = |name: &str| dir.path().join(name).exists();
        let all = [".edit-old", ".edit-new", "other", ".edit-written"].map(exists);
        assert_eq!(all, [false, true, true, true]);
        drop(written);
        remove_leftovers(&dir.path().join("other"), ".edit-");
        assert!(!exists(".edit-written"));
    }
}
