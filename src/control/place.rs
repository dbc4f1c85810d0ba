//! Where a config is, and the proof that a process may read it. On an abstract Unix socket the user alone proves
//! little: any user takes any name, and containers that share a network often share a user as well.
//! Called by the contact.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A config's path, in parts.
pub struct ConfigPlace {
    file: PathBuf,
    directory: PathBuf,
}

/// What a process has proved that it may read.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadAccess {
    Nothing,
    /// What every user may.
    Public,
    /// What only some may.
    Private,
}

impl ConfigPlace {
    /// # Errors
    /// It is no path of a file.
    pub fn of(config: &Path) -> io::Result<ConfigPlace> {
        let file = std::path::absolute(config)?;
        let (Some(directory), Some(_)) = (file.parent(), file.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        Ok(ConfigPlace { directory: directory.to_owned(), file })
    }

    /// The same for every process however the file is saved: its directory, which outlives it, and its name there.
    /// Containers that share a network have directories of their own.
    ///
    /// # Errors
    /// The directory cannot be found.
    pub fn name(&self) -> io::Result<Vec<u8>> {
        let directory = std::fs::metadata(&self.directory)?;
        let mut name = format!("sluicegate/{:x}:{:x}/", directory.dev(), directory.ino()).into_bytes();
        name.extend_from_slice(self.file.file_name().unwrap_or_default().as_bytes());
        Ok(name)
    }

    /// The proof of this process. Either may be missing: the file is gone, or was saved as another user's.
    pub fn opened(&self) -> Vec<File> {
        // Not a pipe, which would be waited for.
        let file = self.file.is_file().then(|| File::open(&self.file).ok());
        file.flatten().into_iter().chain(File::open(&self.directory)).collect()
    }

    /// What another process proves by what it has `opened`.
    pub fn proven(&self, opened: Vec<OwnedFd>) -> ReadAccess {
        let known: Vec<Metadata> = [&self.file, &self.directory].into_iter().flat_map(std::fs::metadata).collect();
        let access = |fd| {
            let mut open = File::from(fd);
            let Ok(shown) = open.metadata() else { return ReadAccess::Nothing };
            let is_known = known.iter().any(|it| (it.dev(), it.ino()) == (shown.dev(), shown.ino()));
            if !is_known || !is_readable(&mut open) {
                return ReadAccess::Nothing;
            }
            match shown.permissions().mode() & 0o004 {
                0 => ReadAccess::Private,
                _ => ReadAccess::Public,
            }
        };
        opened.into_iter().map(access).max().unwrap_or(ReadAccess::Nothing)
    }
}

/// Not only as a path, which needs no permission, nor for writing alone.
fn is_readable(open: &mut File) -> bool {
    match open.read(&mut []) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == io::ErrorKind::IsADirectory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions, Permissions};
    use std::os::unix::fs::{OpenOptionsExt, symlink};

    #[test]
    fn a_config_is_known_by_its_directory_and_its_name() {
        let tmp = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|directory| tmp.path().join(directory));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        let link = tmp.path().join("link");
        symlink(&a, &link).unwrap();
        let of = |directory: &Path, file: &str| ConfigPlace::of(&directory.join(file)).unwrap().name().unwrap();
        assert_eq!(of(&a, "x.toml"), of(&link, "x.toml"));
        assert_eq!(of(&a, "x.toml"), of(&tmp.path().join("b/../a"), "x.toml"));
        assert_ne!(of(&a, "x.toml"), of(&b, "x.toml"));
        assert_ne!(of(&a, "x.toml"), of(&a, "y.toml"));
        assert!(ConfigPlace::of(Path::new("/")).is_err());
    }

    #[test]
    fn only_what_is_open_for_reading_proves_something() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("x.toml");
        fs::write(&path, "").unwrap();
        let place = ConfigPlace::of(&path).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let all = || place.opened().into_iter().map(OwnedFd::from).collect();
        set(tmp.path(), 0o755);
        set(&path, 0o644);
        assert_eq!(place.proven(all()), ReadAccess::Public);
        set(&path, 0o640);
        assert_eq!(place.proven(all()), ReadAccess::Private);
        let directory = || OwnedFd::from(File::open(tmp.path()).unwrap());
        assert_eq!(place.proven(vec![directory()]), ReadAccess::Public);
        set(tmp.path(), 0o750);
        assert_eq!(place.proven(vec![directory()]), ReadAccess::Private);

        let to_write = OpenOptions::new().write(true).open(&path).unwrap();
        let as_path = OpenOptions::new().read(true).custom_flags(0o10_000_000).open(&path).unwrap();
        let another = File::open("/").unwrap();
        for bad in [vec![], vec![to_write], vec![as_path], vec![another]] {
            let bad = bad.into_iter().map(OwnedFd::from).collect();
            assert_eq!(place.proven(bad), ReadAccess::Nothing);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(place.proven(all()), ReadAccess::Private, "by its directory");
    }
}
