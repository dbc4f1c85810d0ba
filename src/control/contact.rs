//! Where a running gateway is asked, found by the path of its config alone: the file may have become one that
//! does not load, or tell another address. The process tells it on an abstract Unix socket, which needs no
//! place to write and ends with the process. Called by the control loop, and on the other side by the command line.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;

use super::shared::SharedState;
use super::source::ConfigSource;
use crate::config;
use crate::net::ListenAddr;

/// Before the name is tried again that another process has, as one does that hands over.
const RETRY: Duration = Duration::from_secs(1);
/// Attempts after which that process is none that hands over.
const TAKEN: u32 = 5;
/// For the whole answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of what is told: an address.
const MOST: u64 = 256;
/// Of a file's name in that of the socket, which has 107 bytes; longer ones stand there as a hash.
const FILE_NAME_MAX: usize = 64;

/// Tells whoever may ask, until the handle is aborted or the process ends.
pub fn announce(source: &ConfigSource, shared: Arc<SharedState>) -> Option<AbortHandle> {
    let ConfigSource::File(path) = source else { return None };
    let name = name(path).inspect_err(no_contact).ok()?;
    Some(spawn_local(tell_all(name, shared)).abort_handle())
}

fn no_contact(error: &io::Error) {
    tracing::warn!(%error, "`healthcheck` and `reload` find this gateway by what its config file says alone");
}

/// Where the gateway listens as admin that runs with the config at `path`, by its own word; `None` where none
/// does, or none whose word can be relied on.
pub fn of_running(path: &Path) -> Option<ListenAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async { timeout(PATIENCE, ask(path)).await.ok()?.ok()? })
}

async fn ask(config: &Path) -> io::Result<Option<ListenAddr>> {
    let stream = UnixStream::connect(name(config)?).await?;
    if !is_believed(stream.peer_cred()?, config) {
        return Ok(None);
    }
    let mut told = String::new();
    stream.take(MOST).read_to_string(&mut told).await?;
    Ok(config::listen_addr(&told))
}

/// Any user may take any name, and so may a container that shares the network: only processes beside this one are
/// believed. Root asks gateways of every user, but believes only a user whom the config is open to, being closed to
/// others.
fn is_believed(peer: UCred, config: &Path) -> bool {
    let own = rustix::process::geteuid();
    let may_read = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|it| {
            let (as_owner, as_member) = (peer.uid() == it.uid(), peer.gid() == it.gid());
            it.mode() & 0o004 == 0 && ((as_owner && it.mode() & 0o400 != 0) || (as_member && it.mode() & 0o040 != 0))
        })
    };
    let is_known = || {
        peer.uid() == own.as_raw()
            || peer.uid() == 0
            || (own.is_root() && std::path::absolute(config).is_ok_and(|path| path.ancestors().take(2).any(may_read)))
    };
    peer.pid().is_some_and(is_beside) && is_known()
}

/// True of a process of the namespace that this one is in: of others it has a second number.
fn is_beside(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}

/// Of the socket. The same for both sides however the file is saved: its directory, which outlives it, and its name
/// there. Containers that share a network have directories of their own.
fn name(config: &Path) -> io::Result<OsString> {
    let path = std::path::absolute(config)?;
    let (Some(directory), Some(file)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::IsADirectory.into());
    };
    let directory = std::fs::metadata(directory)?;
    let mut name = format!("\0sluicegate/{:x}:{:x}/", directory.dev(), directory.ino()).into_bytes();
    match file.len() {
        ..=FILE_NAME_MAX => name.extend_from_slice(file.as_bytes()),
        _ => name.extend_from_slice(&Sha256::digest(file.as_bytes())),
    }
    Ok(OsString::from_vec(name))
}

async fn tell_all(name: OsString, shared: Arc<SharedState>) {
    let Some(listener) = listen_in_time(name).await else { return };
    loop {
        let told = match listener.accept().await {
            Ok((stream, _)) => tell(stream, &shared),
            Err(error) => {
                tokio::time::sleep(RETRY).await;
                Err(error)
            }
        };
        if let Err(error) = told {
            tracing::debug!(%error, "where the admin listener is could not be told");
        }
    }
}

/// Once no other process has the name.
async fn listen_in_time(name: OsString) -> Option<UnixListener> {
    let mut attempts = 0;
    loop {
        match UnixListener::bind(&name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => attempts += 1,
            result => return result.inspect_err(no_contact).ok(),
        }
        if attempts == TAKEN {
            let name = format!("@{}", name.as_bytes()[1..].escape_ascii());
            tracing::warn!(
                name,
                "another process has the name by which `healthcheck` and `reload` find this gateway; until it ends they \
                 go by the config file (`ss -xlp` shows the process)"
            );
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// To this user and root. Nothing is read: nobody is waited for.
fn tell(stream: UnixStream, shared: &SharedState) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let Some(admin) = shared.admin() else { return Ok(()) };
    // A new socket takes an address at once.
    stream.into_std()?.write_all(admin.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_beside_this_one_are_known() {
        assert!(is_beside(std::process::id().cast_signed()));
        assert!(!is_beside(0));
    }

    #[test]
    fn a_config_is_known_by_its_directory_and_its_name() {
        let tmp = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|directory| tmp.path().join(directory));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let of = |directory: &Path, file: &str| name(&directory.join(file)).unwrap();
        assert_eq!(of(&a, "x.toml"), of(&link, "x.toml"));
        assert_eq!(of(&a, "x.toml"), of(&tmp.path().join("b/../a"), "x.toml"));
        assert_ne!(of(&a, "x.toml"), of(&b, "x.toml"));
        assert_ne!(of(&a, "x.toml"), of(&a, "y.toml"));
        assert_ne!(of(&a, &"x".repeat(255)), of(&a, &"x".repeat(254)));
        assert!(of(&a, &"x".repeat(255)).len() <= 108);
        assert!(name(Path::new("/")).is_err());
    }
}
