//! The stamp of a file or directory, which tells whether its content may have changed.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identity, size and times of a file. Programs can restore the modification time, and then write the same number of
/// bytes as before; the time of the last change of the inode (ctime) tells that, because only the system sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    pub size: u64,
    /// Device and inode.
    id: (u64, u64),
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// Reads the stamp of a file. Follows symlinks.
    ///
    /// # Errors
    /// The file does not exist, or its directory may not be searched.
    pub fn read(path: &Path) -> io::Result<FileStamp> {
        std::fs::metadata(path).map(|stat| FileStamp {
            size: stat.size(),
            id: (stat.dev(), stat.ino()),
            modified: (stat.mtime(), stat.mtime_nsec()),
            changed: (stat.ctime(), stat.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    /// File systems may count time in steps of some milliseconds.
    fn until_changed(path: &Path, before: FileStamp, change: impl Fn()) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            change();
            if FileStamp::read(path).unwrap() != before {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn an_edit_that_restores_size_and_time_changes_the_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        fs::write(&path, "a 1\n").unwrap();
        let before = FileStamp::read(&path).unwrap();
        assert_eq!(FileStamp::read(&path).unwrap(), before, "reading changes nothing");
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let touch = |file: &Path| {
            let seconds = time.duration_since(std::time::UNIX_EPOCH).unwrap();
            let date = format!("@{}.{:09}", seconds.as_secs(), seconds.subsec_nanos());
            assert!(Command::new("touch").arg("-d").arg(date).arg(file).status().unwrap().success());
            assert_eq!(fs::metadata(file).unwrap().modified().unwrap(), time);
        };
        let edit = || {
            fs::write(&path, "a 2\n").unwrap();
            touch(&path);
        };
        assert!(until_changed(&path, before, edit), "in place");
        let before = FileStamp::read(&path).unwrap();
        let replace = || {
            fs::write(&other, "a 3\n").unwrap();
            touch(&other);
            fs::rename(&other, &path).unwrap();
        };
        assert!(until_changed(&path, before, replace), "by a rename");
        assert_eq!(FileStamp::read(&path).unwrap().size, before.size);
    }
}
