//! Creates, replaces and removes the files of Unix sockets. Never touches a file that is not a socket or that belongs
//! to another process.

use std::ffi::OsString;
use std::fs::FileType;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Identity of a socket's file: its device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFile {
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Identifies the socket at `path`. `None` if there is no file. Symbolic links are not followed.
    ///
    /// # Errors
    /// Something other than a socket is there, or the system refuses access.
    pub fn from_path(path: &Path) -> io::Result<Option<SocketFile>> {
        match std::fs::symlink_metadata(path) {
            Ok(file) if file.file_type().is_socket() => Ok(Some(SocketFile { device: file.dev(), inode: file.ino() })),
            Ok(file) => Err(not_a_socket_error(file.file_type())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Binds a new socket at `path`. A socket that no process listens on is replaced.
    ///
    /// # Errors
    /// Something other than a socket is there, a process listens there, or the system refuses.
    pub fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
        if let Some(file) = SocketFile::from_path(path)?
            && is_abandoned(path)?
        {
            file.remove(path)?;
        }
        let socket = UnixListener::bind(path)?;
        socket.set_nonblocking(true)?;
        let file = SocketFile::from_path(path)?.ok_or(io::ErrorKind::NotFound)?;
        Ok((socket, file))
    }

    /// Removes this socket from `path`, and nothing else that may be there by now. The file is first moved aside, so
    /// that no other process can exchange it between the check and the removal; a foreign one is moved back.
    ///
    /// # Errors
    /// Another file is there, which stays, or the system refuses.
    pub fn remove(self, path: &Path) -> io::Result<()> {
        if SocketFile::from_path(path)? != Some(self) {
            return Err(foreign_file_error());
        }
        let aside = with_suffix(path, &format!(".{}.old", std::process::id()));
        match renameat_with(CWD, path, CWD, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // The file system does not support this rename. The check above has to suffice.
            Err(Errno::INVAL | Errno::NOSYS) => return std::fs::remove_file(path),
            Err(error) => return Err(error.into()),
        }
        if SocketFile::from_path(&aside).is_ok_and(|file| file == Some(self)) {
            return std::fs::remove_file(&aside);
        }
        renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE)?;
        Err(foreign_file_error())
    }

    /// Renames this socket from `from` to `to` without a moment in which nobody listens at `to`. A socket that is
    /// there is replaced.
    ///
    /// # Errors
    /// Something other than a socket is at `to`, which stays, or the system refuses.
    pub fn rename(self, from: &Path, to: &Path) -> io::Result<()> {
        let rename = |flags| renameat_with(CWD, from, CWD, to, flags);
        SocketFile::from_path(to)?;
        match rename(RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => return std::fs::rename(from, to),
            Err(Errno::EXIST) => rename(RenameFlags::EXCHANGE)?,
            result => return Ok(result?),
        }
        match SocketFile::from_path(from) {
            Ok(Some(replaced)) => replaced.remove(from),
            Ok(None) => Ok(()),
            Err(error) => {
                rename(RenameFlags::EXCHANGE)?;
                Err(error)
            }
        }
    }
}

/// Returns `path` with `suffix` appended to its file name.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns whether no process listens on the socket at `path`. Never waits: a listener whose queue is full still
/// listens.
fn is_abandoned(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(connect(&socket, &SocketAddrUnix::new(path)?) == Err(Errno::CONNREFUSED))
}

fn not_a_socket_error(kind: FileType) -> io::Error {
    let name = match kind {
        _ if kind.is_file() => "a regular file",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_fifo() => "a named pipe",
        _ => "a device",
    };
    io::Error::new(io::ErrorKind::AlreadyExists, format!("{name} is there, not a socket"))
}

fn foreign_file_error() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "another process has put its own file there")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn no_other_file_than_the_own_socket_is_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a.sock");
        let (socket, file) = SocketFile::bind(&path).unwrap();
        assert_eq!(SocketFile::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        let (_socket, newer) = SocketFile::bind(&path).unwrap();
        // The kernel may give the inode number of the old file to the new one.
        if newer != file {
            assert!(file.remove(&path).is_err());
            assert!(path.exists());
        }
        newer.remove(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(newer.remove(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1, "nothing is left aside");
    }

    #[test]
    fn a_socket_is_renamed_over_sockets_only() {
        let tmp = tempfile::tempdir().unwrap();
        let [next, path] = ["next", "path"].map(|name| tmp.path().join(name));
        let (_first, file) = SocketFile::bind(&next).unwrap();
        file.rename(&next, &path).unwrap();
        let (_second, newer) = SocketFile::bind(&next).unwrap();
        newer.rename(&next, &path).unwrap();
        assert_eq!(SocketFile::from_path(&path).unwrap(), Some(newer));
        assert_eq!(SocketFile::from_path(&next).unwrap(), None);
        newer.remove(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let (_third, third) = SocketFile::bind(&next).unwrap();
        assert!(third.rename(&next, &path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_datagram_socket_in_use_is_not_abandoned() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a.sock");
        let _socket = UnixDatagram::bind(&path).unwrap();
        assert_eq!(SocketFile::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
