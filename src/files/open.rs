//! Opens the file of a request. These functions wait for the file system.
//!
//! The kernel resolves each name beneath the folder (openat2 with `RESOLVE_BENEATH`): no `..` and no link leads out of
//! it, also if somebody changes folders at the same moment. Links within the folder are followed, because deployments
//! use them. The folder itself is opened for each request, so that it may be replaced, or be a link that a deployment
//! points elsewhere.
//!
//! A file is opened without blocking, and only a regular one is read: a named pipe would otherwise stop the thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;

use crate::files::name::Candidate;

/// The file that stands for a folder.
const INDEX: &str = "index.html";
/// How often a name is resolved again because a folder was moved in the meantime.
const ATTEMPTS: usize = 4;
/// Files that are older have no time: archives and images that are built reproducibly set it to the first day of 1970
/// or 1980, so that it does not change with the content.
const OLDEST: Duration = Duration::from_secs(11 * 366 * 86_400);

/// The file or folder that a path leads to.
#[derive(Debug)]
pub enum Found {
    File(OpenedFile),
    /// A folder with an index, but the path lacks the slash at its end.
    FolderWithoutSlash,
}

/// An open regular file.
#[derive(Debug)]
pub struct OpenedFile {
    pub file: File,
    /// The file's name in the folder, without the suffix of a compressed copy.
    pub name: PathBuf,
    pub length: u64,
    /// When it was modified, to the nanosecond. `None` if the time says nothing about the content.
    pub modified: Option<SystemTime>,
    /// Which of the suffixes that the caller named the file has: it is a compressed copy.
    pub suffix: Option<usize>,
}

/// Why no file was opened.
#[derive(Debug)]
pub enum OpenFault {
    /// No candidate is a file that may be served. The path of a link that leads out of the folder, if there was one.
    Absent(Option<PathBuf>),
    /// The folder itself cannot be opened.
    Folder(io::Error),
    /// The file system failed.
    File(PathBuf, io::Error),
}

/// The kind of a name in the folder.
enum Entry {
    File(OpenedFile),
    Folder,
}

/// Opens the first of `candidates` that is a file, or a folder with an index. `has_slash`: the path of the client ends
/// with a slash, or the client cannot be led to one that does. `suffixes`: those of compressed copies for a file name,
/// the preferred one first.
pub fn find_file(
    folder: &Path,
    candidates: &[Candidate],
    has_slash: bool,
    suffixes: impl Fn(&Path) -> Vec<&'static str>,
) -> Result<Found, OpenFault> {
    let root = open_folder(folder).map_err(OpenFault::Folder)?;
    let mut link = None;
    for candidate in candidates {
        let name = match candidate.is_folder {
            true => candidate.name.join(INDEX),
            false => candidate.name.clone(),
        };
        let mut is_index = candidate.is_folder;
        let mut entry = open_entry(&root, &name, &mut link)?;
        if matches!(entry, Some(Entry::Folder)) && !is_index {
            is_index = true;
            entry = open_entry(&root, &name.join(INDEX), &mut link)?;
        }
        match entry {
            Some(Entry::File(_)) if is_index && candidate.is_requested && !has_slash => {
                return Ok(Found::FolderWithoutSlash);
            }
            Some(Entry::File(file)) => {
                let suffixes = suffixes(&file.name);
                return Ok(Found::File(open_compressed(&root, file, &suffixes)));
            }
            Some(Entry::Folder) | None => {}
        }
    }
    Err(OpenFault::Absent(link))
}

/// Opens a folder, which may be a link.
///
/// # Errors
/// It does not exist, is not a folder or may not be entered, or the kernel lacks openat2.
pub fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty()) {
        Err(Errno::NOSYS) => Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel lacks openat2 (Linux 5.6)")),
        opened => Ok(opened?),
    }
}

/// Opens a name beneath `root`. `None` if there is no such file, or none that may be served. `link` gets the name of a
/// link that leads out of the folder.
fn open_entry(root: &OwnedFd, name: &Path, link: &mut Option<PathBuf>) -> Result<Option<Entry>, OpenFault> {
    let fault = |errno: Errno| OpenFault::File(name.to_owned(), errno.into());
    let file = match open_beneath(root, name) {
        Ok(file) => file,
        Err(Errno::XDEV) => {
            *link = Some(name.to_owned());
            return Ok(None);
        }
        Err(errno) if is_absence(errno) => return Ok(None),
        Err(errno) => return Err(fault(errno)),
    };
    let stat = fstat(&file).map_err(fault)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Some(Entry::File(OpenedFile {
            file: file.into(),
            name: name.to_owned(),
            length: u64::try_from(stat.st_size).unwrap_or(0),
            modified: modification_time(stat.st_mtime, stat.st_mtime_nsec),
            suffix: None,
        })),
        FileType::Directory => Some(Entry::Folder),
        _ => None,
    })
}

fn open_beneath(root: &OwnedFd, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut file = Err(Errno::AGAIN);
    for _ in 0..ATTEMPTS {
        file = openat2(root.as_fd(), name, flags, Mode::empty(), resolve);
        if !matches!(file, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    file
}

/// Returns whether an error means that the client gets no such file. A client need not know that a file exists which it
/// must not have.
fn is_absence(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::NOTDIR
            | Errno::ACCESS
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::AGAIN
            // A socket, or a device without a driver.
            | Errno::NXIO
            | Errno::NODEV
            | Errno::INVAL
            | Errno::ILSEQ
    )
}

/// Returns the compressed copy of a file with the first of `suffixes` that exists, or the file. A copy that is older
/// than the file was made of another one.
fn open_compressed(root: &OwnedFd, file: OpenedFile, suffixes: &[&'static str]) -> OpenedFile {
    for (index, suffix) in suffixes.iter().enumerate() {
        let mut name = file.name.clone().into_os_string().into_vec();
        name.push(b'.');
        name.extend_from_slice(suffix.as_bytes());
        let name = Path::new(std::ffi::OsStr::from_bytes(&name));
        if let Ok(Some(Entry::File(copy))) = open_entry(root, name, &mut None)
            && copy.modified >= file.modified
        {
            return OpenedFile { name: file.name, suffix: Some(index), ..copy };
        }
    }
    file
}

fn modification_time(seconds: i64, nanoseconds: u64) -> Option<SystemTime> {
    let age = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
    (age > OLDEST).then(|| SystemTime::UNIX_EPOCH.checked_add(age))?
}
