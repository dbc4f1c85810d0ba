//! Creates, replaces and removes the files of Unix sockets, and sets who may connect. Never touches a file that is not
//! a socket or that belongs to another process.

use std::ffi::OsString;
use std::fs::FileType;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, RenameFlags, Uid, chmod, chownat, fchmod, renameat_with};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

use crate::net::SocketAccess;

/// Owner, group and mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    mode: Mode,
    owner: Uid,
    group: Gid,
}

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
    /// Something other than a socket is there, a process listens there, the user or group of `access` does not exist,
    /// or the system refuses.
    pub fn bind(path: &Path, access: &SocketAccess) -> io::Result<(UnixListener, SocketFile)> {
        if let Some(file) = SocketFile::from_path(path)?
            && is_abandoned(path)?
        {
            file.remove(path)?;
        }
        let socket = new_socket()?;
        // The file gets the mode of the socket, less the umask: at no moment may anybody connect whom `access`
        // excludes.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        let file = SocketFile::from_path(path)?.ok_or(io::ErrorKind::NotFound)?;
        let listening = file.set_access(path, access).and_then(|()| Ok(listen(&socket, BACKLOG.into())?));
        if let Err(error) = listening {
            let _ = file.remove(path);
            return Err(error);
        }
        Ok((UnixListener::from(socket), file))
    }

    /// Sets who may connect.
    ///
    /// # Errors
    /// Another file is at `path`, the user or group does not exist, or the system refuses.
    pub fn set_access(self, path: &Path, access: &SocketAccess) -> io::Result<()> {
        let owners = find_owners(access)?;
        self.read_access(path)?;
        set_owners(path, access, owners)?;
        Ok(chmod(path, Mode::from_raw_mode(access.mode))?)
    }

    /// Gives the file its owner and group, and of the mode only the permissions that it has already. Then
    /// [`SocketFile::set_access`] has nothing left that could fail, but to grant the others. Returns what the file had,
    /// for [`SocketFile::restore_access`].
    ///
    /// # Errors
    /// As for [`SocketFile::set_access`]; the file has what it had.
    pub fn narrow_access(self, path: &Path, access: &SocketAccess) -> io::Result<FileAccess> {
        let owners = find_owners(access)?;
        let before = self.read_access(path)?;
        let mode = Mode::from_raw_mode(access.mode) & before.mode;
        let narrow = || {
            chmod(path, mode)?;
            set_owners(path, access, owners)?;
            // Whether the mode can still be set now that the file has another owner.
            Ok(chmod(path, mode)?)
        };
        match narrow() {
            Ok(()) => Ok(before),
            Err(error) => {
                let _ = self.restore_access(path, before);
                Err(error)
            }
        }
    }

    /// Gives the file the owner, group and mode that it had.
    ///
    /// # Errors
    /// Another file is at `path`, or the system refuses.
    pub fn restore_access(self, path: &Path, before: FileAccess) -> io::Result<()> {
        let now = self.read_access(path)?;
        if (now.owner, now.group) != (before.owner, before.group) {
            chownat(CWD, path, Some(before.owner), Some(before.group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(chmod(path, before.mode)?)
    }

    /// Returns who may connect. Fails if another file is at `path`.
    fn read_access(self, path: &Path) -> io::Result<FileAccess> {
        if SocketFile::from_path(path)? != Some(self) {
            return Err(foreign_file_error());
        }
        let file = std::fs::symlink_metadata(path)?;
        Ok(FileAccess {
            mode: Mode::from_raw_mode(file.mode() & 0o777),
            owner: Uid::from_raw(file.uid()),
            group: Gid::from_raw(file.gid()),
        })
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

/// Gives a file the owner and group that `access` names.
fn set_owners(path: &Path, access: &SocketAccess, (owner, group): (Option<Uid>, Option<Gid>)) -> io::Result<()> {
    if owner.is_none() && group.is_none() {
        return Ok(());
    }
    chownat(CWD, path, owner, group, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| {
        let names = [("owner", &access.owner), ("group", &access.group)];
        let named = names.iter().filter_map(|(key, name)| Some(format!("{key} `{}`", name.as_ref()?)));
        let named = named.collect::<Vec<_>>().join(" and ");
        io::Error::other(format!(
            "the socket cannot get the {named}: {error}; a user without privileges can only choose a group of its own"
        ))
    })
}

/// Returns the numbers of the owner and group that `access` names.
///
/// # Errors
/// The machine has no such user or group.
fn find_owners(access: &SocketAccess) -> io::Result<(Option<Uid>, Option<Gid>)> {
    Ok((access.find_owner()?.map(Uid::from_raw), access.find_group()?.map(Gid::from_raw)))
}

/// Connections that may wait in the kernel until a worker is free.
pub const BACKLOG: u16 = 4096;

/// Returns `path` with `suffix` appended to its file name.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns whether no process listens on the socket at `path`. Never waits: a listener whose queue is full still
/// listens.
fn is_abandoned(path: &Path) -> io::Result<bool> {
    let socket = new_socket()?;
    Ok(connect(&socket, &SocketAddrUnix::new(path)?) == Err(Errno::CONNREFUSED))
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
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
        let (socket, file) = SocketFile::bind(&path, &SocketAccess::OWN_USER).unwrap();
        assert_eq!(SocketFile::bind(&path, &SocketAccess::OWN_USER).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        let (_socket, newer) = SocketFile::bind(&path, &SocketAccess::OWN_USER).unwrap();
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
        let (_first, file) = SocketFile::bind(&next, &SocketAccess::OWN_USER).unwrap();
        file.rename(&next, &path).unwrap();
        let (_second, newer) = SocketFile::bind(&next, &SocketAccess::OWN_USER).unwrap();
        newer.rename(&next, &path).unwrap();
        assert_eq!(SocketFile::from_path(&path).unwrap(), Some(newer));
        assert_eq!(SocketFile::from_path(&next).unwrap(), None);
        newer.remove(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let (_third, third) = SocketFile::bind(&next, &SocketAccess::OWN_USER).unwrap();
        assert!(third.rename(&next, &path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_datagram_socket_in_use_is_not_abandoned() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a.sock");
        let _socket = UnixDatagram::bind(&path).unwrap();
        assert_eq!(SocketFile::bind(&path, &SocketAccess::OWN_USER).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
