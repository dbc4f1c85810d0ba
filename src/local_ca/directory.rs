//! The files of a CA: `ca.key` (certificate and key, written once), `ca.pem` (the certificate, for clients) and `lock`.
//! A user who can read the key can impersonate every development site, and one who can replace it can choose the CA. So
//! the directory and its files must belong to the user of this process and must be closed to everyone else.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::local_ca::authority::{CaCertificate, LocalCa};
use crate::local_ca::now_s;
use crate::replace_file::replace_file;

/// Maximum size of a file in bytes.
const FILE_MAX: u64 = 64 * 1024;
/// Prefix of incomplete files.
const TEMPORARY: &str = ".new-";
/// Time that another process may take to create the CA.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
const OTHER_DIRECTORY: &str = "name another directory: tls = { internal = { state = \"/home/me/sluicegate-ca\" } }";

/// Why a CA cannot be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CA of development certificates: {what}; {help}")]
pub struct LocalCaError {
    what: String,
    help: String,
}

/// Returns the path of the certificate that clients trust.
pub fn certificate_path(directory: &Path) -> PathBuf {
    directory.join("ca.pem")
}

/// Opens the CA in `directory`. If there is none, this function creates it; of several processes that do so at once,
/// one creates it and the others use it. A CA that exists is never replaced, because clients may trust it already.
///
/// # Errors
/// A file is missing, damaged, or open to other users, or the system refuses.
pub fn open_ca(directory: &Path) -> Result<LocalCa, LocalCaError> {
    let directory = std::path::absolute(directory).map_err(|error| io_error("resolve", directory, &error))?;
    // With a slash at its end, a path to a symbolic link would name the directory behind the link.
    let directory: PathBuf = directory.components().collect();
    // No user may swap the directory for another one: a parent that everyone may write to must be sticky, like `/tmp`.
    // Where a parent is a symbolic link, this includes the directories that the link leads through.
    directory.parent().map_or(Ok(()), |parent| check_writers(&directory, parent))?;
    let existing = match check_directory(&directory)? {
        true => read_ca(&directory)?,
        false => None,
    };
    let ca = match existing {
        Some(ca) => ca,
        None => create_ca(&directory)?,
    };
    keep_certificate(&directory, &ca.certificate);
    warn_about_validity(&directory, &ca);
    Ok(ca)
}

/// Reads the certificate in `directory`, which may belong to another user. `None` if there is none.
///
/// # Errors
/// The file cannot be read, or is not the certificate of a CA.
pub fn read_certificate(directory: &Path) -> Result<Option<CaCertificate>, LocalCaError> {
    let path = certificate_path(directory);
    let Some((_, text)) = read_file(&path)? else { return Ok(None) };
    CaCertificate::from_pem(&text).map(Some).map_err(|what| damaged(&path, &what))
}

fn read_ca(directory: &Path) -> Result<Option<LocalCa>, LocalCaError> {
    let path = directory.join("ca.key");
    match read_file(&path)? {
        Some((metadata, text)) => {
            check_owner(&path, &metadata, "chmod 600")?;
            LocalCa::from_pem(&text).map(Some).map_err(|what| damaged(&path, &what))
        }
        None => Ok(None),
    }
}

fn create_ca(directory: &Path) -> Result<LocalCa, LocalCaError> {
    let result = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    result.map_err(|error| io_error("create the directory", directory, &error))?;
    check_directory(directory)?;
    let _lock = lock_directory(directory)?;
    // Another process may have created it in the meantime.
    if let Some(ca) = read_ca(directory)? {
        return Ok(ca);
    }
    let certificate = certificate_path(directory);
    if fs::symlink_metadata(&certificate).is_ok() {
        return Err(LocalCaError {
            what: format!("`{}` exists, but its key `ca.key` in the same directory is gone", certificate.display()),
            help: format!(
                "restore `ca.key`, or remove the directory `{}` and trust the new CA with `sluicegate trust`",
                directory.display()
            ),
        });
    }
    remove_leftovers(directory);
    let path = directory.join("ca.key");
    let text = LocalCa::generate(now_s())
        .map_err(|error| LocalCaError { what: format!("it cannot be made: {error}"), help: "try again".to_owned() })?;
    replace_file(&path, TEMPORARY, text.as_bytes()).map_err(|error| io_error("write", &path, &error))?;
    let ca = LocalCa::from_pem(&text).map_err(|what| damaged(&path, &what))?;
    tracing::info!(
        directory = %directory.display(),
        "created a CA for development certificates; `sluicegate trust` explains how to trust it"
    );
    Ok(ca)
}

/// Writes `ca.pem` again if it is missing or changed. The CA works without it.
fn keep_certificate(directory: &Path, certificate: &CaCertificate) {
    let path = certificate_path(directory);
    if matches!(read_file(&path), Ok(Some((_, text))) if text == certificate.pem) {
        return;
    }
    if let Err(error) = replace_file(&path, TEMPORARY, certificate.pem.as_bytes()) {
        tracing::warn!("cannot write `{}`, the certificate that clients trust: {error}", path.display());
    }
}

fn warn_about_validity(directory: &Path, ca: &LocalCa) {
    let (now_s, validity) = (now_s(), &ca.certificate.validity);
    let directory = directory.display();
    if now_s >= validity.not_after_s {
        tracing::warn!(
            "the CA in `{directory}` has expired, so clients refuse its certificates; is the clock of this machine right? \
             If it is, remove the directory, restart the gateway and run `sluicegate trust`"
        );
    } else if now_s < validity.not_before_s {
        tracing::warn!("the CA in `{directory}` is not valid yet; is the clock of this machine right?");
    }
}

fn check_writers(directory: &Path, parent: &Path) -> Result<(), LocalCaError> {
    const STICKY_AND_OTHERS_WRITE: u32 = 0o1002;
    for parent in parent.ancestors() {
        // Links that form a loop have no metadata, so that following them one by one comes to an end.
        let Ok(metadata) = fs::metadata(parent) else { continue };
        if metadata.mode() & STICKY_AND_OTHERS_WRITE == 0o002 {
            return Err(LocalCaError {
                what: format!(
                    "every user can replace `{}`, because `{}` is writable for all",
                    directory.display(),
                    parent.display()
                ),
                help: format!("run `chmod o-w {}`, or {OTHER_DIRECTORY}", parent.display()),
            });
        }
        if let (Ok(target), Some(beside)) = (fs::read_link(parent), parent.parent()) {
            check_writers(directory, &beside.join(target))?;
        }
    }
    Ok(())
}

/// Checks the state directory itself. Returns whether it exists.
fn check_directory(directory: &Path) -> Result<bool, LocalCaError> {
    let metadata = match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io_error("read", directory, &error)),
        Ok(metadata) => metadata,
    };
    if !metadata.is_dir() {
        let kind = if metadata.is_symlink() { "a symbolic link" } else { "not a directory" };
        return Err(LocalCaError {
            what: format!("`{}` is {kind}", directory.display()),
            help: "name the directory itself in `state`".to_owned(),
        });
    }
    check_owner(directory, &metadata, "chmod 700")?;
    Ok(true)
}

/// Checks that a file or directory belongs to this user and is closed to all others.
fn check_owner(path: &Path, metadata: &Metadata, close: &str) -> Result<(), LocalCaError> {
    let (own, path) = (geteuid().as_raw(), path.display());
    if metadata.uid() != own {
        return Err(LocalCaError {
            what: format!(
                "`{path}` belongs to the user with the ID {}, and this process runs as {own}",
                metadata.uid()
            ),
            help: format!("run as the same user, or {OTHER_DIRECTORY}"),
        });
    }
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o7777;
        return Err(LocalCaError {
            what: format!("`{path}` is open to other users (mode {mode:04o}), who could impersonate your sites"),
            help: format!(
                "run `{close} {path}`; if other users could read it before, remove the directory and trust a new CA instead"
            ),
        });
    }
    Ok(())
}

/// Reads a regular file, without following a symbolic link. `None` if it does not exist.
fn read_file(path: &Path) -> Result<Option<(Metadata, String)>, LocalCaError> {
    let read = || -> io::Result<(Metadata, Vec<u8>)> {
        let file = open_options().read(true).open(path)?;
        let metadata = file.metadata()?;
        let mut bytes = Vec::new();
        if metadata.is_file() {
            file.take(FILE_MAX).read_to_end(&mut bytes)?;
        }
        Ok((metadata, bytes))
    };
    match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path, &error)),
        Ok((metadata, _)) if !metadata.is_file() => Err(damaged(path, "it is not a regular file")),
        // Text that is not UTF-8 is neither a key nor a certificate.
        Ok((metadata, bytes)) => Ok(Some((metadata, String::from_utf8_lossy(&bytes).into_owned()))),
    }
}

/// Takes the lock of the directory, which ends with the returned file.
fn lock_directory(directory: &Path) -> Result<File, LocalCaError> {
    let path = directory.join("lock");
    let open = open_options().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(|error| io_error("open", &path, &error))?;
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &path, &error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(LocalCaError {
                    what: format!("another process has held `{}` for {} s", path.display(), LOCK_WAIT.as_secs()),
                    help: format!("end that process; `fuser {}` finds it", path.display()),
                });
            }
            Err(TryLockError::WouldBlock) => sleep(LOCK_PAUSE),
        }
    }
}

/// Removes incomplete files of a process that was killed. The holder of the lock is the only writer.
fn remove_leftovers(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Does not follow a symbolic link, nor wait for the writer of a pipe.
fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

fn damaged(path: &Path, what: &str) -> LocalCaError {
    let directory = path.parent().unwrap_or(path).display();
    LocalCaError {
        what: format!("`{}` is damaged: {what}", path.display()),
        help: format!(
            "restore the file, or remove the directory `{directory}` and trust the new CA with `sluicegate trust`"
        ),
    }
}

fn io_error(doing: &str, path: &Path, error: &io::Error) -> LocalCaError {
    let help = match error.kind() {
        _ if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            "it is a symbolic link: put the file itself there".to_owned()
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space on that file system".to_owned(),
        _ => format!("the user of the gateway must be able to use it, or {OTHER_DIRECTORY}"),
    };
    LocalCaError { what: format!("cannot {doing} `{}`: {error}", path.display()), help }
}
