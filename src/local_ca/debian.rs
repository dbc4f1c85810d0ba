//! The trust store of Debian and its derivatives: adds CAs to it and removes them. Needs root.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::local_ca::authority::CaCertificate;
use crate::replace_file::replace_file;

/// Directory for the CAs that an administrator trusts.
const DIRECTORY: &str = "/usr/local/share/ca-certificates";
const PROGRAM: &str = "/usr/sbin/update-ca-certificates";
/// The program finds `openssl` and its other tools here.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Why the trust store was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TrustStoreError {
    #[error("the trust store of the system belongs to root")]
    NotRoot,
    #[error("{PROGRAM} is missing: this is not Debian or Ubuntu, or the package ca-certificates is not installed")]
    NotDebian,
    #[error("`{}`: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{PROGRAM} failed: {0}")]
    Update(String),
}

/// Checks that this process can change the trust store.
///
/// # Errors
/// Why it cannot.
pub fn check_access() -> Result<(), TrustStoreError> {
    match Path::new(PROGRAM).exists() {
        false => Err(TrustStoreError::NotDebian),
        true if !geteuid().is_root() => Err(TrustStoreError::NotRoot),
        true => Ok(()),
    }
}

/// Returns the file in which [`install`] writes a CA.
fn installed_path(certificate: &CaCertificate) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{}.crt", certificate.short_name()))
}

/// Makes the system trust a CA. Doing it twice changes nothing.
///
/// # Errors
/// Why the system may not trust it now.
pub fn install(certificate: &CaCertificate) -> Result<PathBuf, TrustStoreError> {
    check_access()?;
    let path = installed_path(certificate);
    let write = || -> io::Result<()> {
        fs::create_dir_all(DIRECTORY)?;
        replace_file(&path, ".sluicegate-", certificate.pem.as_bytes())?;
        // Programs of all users read it.
        fs::set_permissions(&path, Permissions::from_mode(0o644))
    };
    write().map_err(|error| TrustStoreError::File { path: path.clone(), error })?;
    update(&[])?;
    Ok(path)
}

/// Removes every CA that [`install`] has added, or only the given one. Returns the removed files.
///
/// # Errors
/// Why the system may still trust one of them.
pub fn uninstall(only: Option<&CaCertificate>) -> Result<Vec<PathBuf>, TrustStoreError> {
    let mut paths = list_installed()?;
    if let Some(certificate) = only {
        let own = installed_path(certificate);
        paths.retain(|path| *path == own);
    }
    check_access()?;
    let mut removal = Ok(());
    for path in &paths {
        // One file that stays must not keep the others trusted.
        if let Err(error) = fs::remove_file(path) {
            removal = removal.and(Err(TrustStoreError::File { path: path.clone(), error }));
        }
    }
    // An earlier run may have removed the files and then failed to update the store, so it is updated without files
    // too. Without this option, links to the removed files would stay.
    let refresh = update(&["--fresh"]);
    removal.and(refresh).map(|()| paths)
}

/// Returns the files that [`install`] has written.
fn list_installed() -> Result<Vec<PathBuf>, TrustStoreError> {
    let file_error = |error| TrustStoreError::File { path: DIRECTORY.into(), error };
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(file_error)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(file_error)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let digits = name.strip_prefix("sluicegate-").and_then(|rest| rest.strip_suffix(".crt"));
        if digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit())) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn update(arguments: &[&str]) -> Result<(), TrustStoreError> {
    let output = Command::new(PROGRAM).args(arguments).env_clear().env("PATH", PATH).stdin(Stdio::null()).output();
    let output = output.map_err(|error| TrustStoreError::Update(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(TrustStoreError::Update(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
