//! Lets commands find a running gateway by the path of its config, even if the file no longer loads or names another
//! admin address. The process answers on an abstract Unix socket, which needs no writable directory and disappears
//! with the process. Called by the control loop on one side and the command line on the other.

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

use crate::admin::lifecycle::SharedState;
use crate::config;
use crate::control::source::ConfigSource;
use crate::net::ListenAddr;

/// Pause before binding again a name that another process holds, such as one that is handing over.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of attempts after which the holder is considered another program.
const ATTEMPTS_MAX: u32 = 5;
/// Time limit for the whole response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of the response, an address, in bytes.
const RESPONSE_MAX: u64 = 256;
/// Maximum length of the file name inside the socket name, which has 107 bytes; longer names are hashed.
const FILE_NAME_MAX: usize = 64;

/// Answers requests until the handle is aborted or the process ends.
pub fn serve_contact(source: &ConfigSource, shared: Arc<SharedState>) -> Option<AbortHandle> {
    let ConfigSource::File(path) = source else { return None };
    let name = socket_name(path).inspect_err(log_no_contact).ok()?;
    Some(spawn_local(serve_requests(name, shared)).abort_handle())
}

fn log_no_contact(error: &io::Error) {
    tracing::warn!(%error, "`healthcheck` and `reload` can find this gateway only through its config file");
}

/// The result of asking the gateway that runs with a config for its admin address.
pub enum RunningGateway {
    /// The gateway has reported this address.
    Found(ListenAddr),
    /// A process has its name, but does not report an address to this user or cannot be trusted.
    Silent,
    /// No process has its name.
    Absent,
}

/// Asks the gateway that runs with the config at `path` for its admin address.
pub fn find_running(path: &Path) -> RunningGateway {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return RunningGateway::Absent;
    };
    runtime.block_on(async {
        let connection = async { UnixStream::connect(socket_name(path)?).await };
        let Ok(Ok(stream)) = timeout(RESPONSE_TIMEOUT, connection).await else {
            return RunningGateway::Absent;
        };
        match timeout(RESPONSE_TIMEOUT, read_address(stream, path)).await {
            Ok(Ok(Some(address))) => RunningGateway::Found(address),
            _ => RunningGateway::Silent,
        }
    })
}

/// Returns `None` if the process at the other end is not trusted or reports no address.
async fn read_address(stream: UnixStream, config: &Path) -> io::Result<Option<ListenAddr>> {
    if !is_trusted_peer(stream.peer_cred()?, config) {
        return Ok(None);
    }
    let mut answer = String::new();
    stream.take(RESPONSE_MAX).read_to_string(&mut answer).await?;
    Ok(config::parse_listen_addr(&answer))
}

/// Returns whether the answering process is trusted. Any user, and a container that shares the network, could bind any
/// name, so only processes in this PID namespace count. Root contacts gateways of every user, but trusts a user only if
/// that user can read the config and others cannot.
fn is_trusted_peer(peer: UCred, config: &Path) -> bool {
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
    peer.pid().is_some_and(is_same_namespace) && is_known()
}

/// Returns whether the process is in the same PID namespace; elsewhere it has a second number.
fn is_same_namespace(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}

/// Returns the socket name. It is the same on both sides however the file is saved: the directory, which survives
/// edits, and the file's name in it. Containers that share a network have different directories.
fn socket_name(config: &Path) -> io::Result<OsString> {
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

async fn serve_requests(name: OsString, shared: Arc<SharedState>) {
    let Some(listener) = bind_name(name).await else { return };
    loop {
        let result = match listener.accept().await {
            Ok((stream, _)) => send_address(stream, &shared),
            Err(error) => {
                tokio::time::sleep(RETRY_INTERVAL).await;
                Err(error)
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "cannot report the admin address");
        }
    }
}

/// Binds the name once no other process holds it.
async fn bind_name(name: OsString) -> Option<UnixListener> {
    let mut attempts = 0;
    loop {
        match UnixListener::bind(&name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => attempts += 1,
            result => return result.inspect_err(log_no_contact).ok(),
        }
        if attempts == ATTEMPTS_MAX {
            let name = format!("@{}", name.as_bytes()[1..].escape_ascii());
            tracing::warn!(
                name,
                "another process has the name by which `healthcheck` and `reload` find this gateway; until it ends they \
                 go by the config file (`ss -xlp` shows the process)"
            );
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Sends the address to this user or root. Nothing is read, so a client cannot delay it.
fn send_address(stream: UnixStream, shared: &SharedState) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let Some(admin) = shared.admin_addr() else { return Ok(()) };
    // A new socket accepts an address without blocking.
    stream.into_std()?.write_all(admin.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_beside_this_one_are_known() {
        assert!(is_same_namespace(std::process::id().cast_signed()));
        assert!(!is_same_namespace(0));
    }

    #[test]
    fn a_config_is_known_by_its_directory_and_its_name() {
        let tmp = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|directory| tmp.path().join(directory));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let of = |directory: &Path, file: &str| socket_name(&directory.join(file)).unwrap();
        assert_eq!(of(&a, "x.toml"), of(&link, "x.toml"));
        assert_eq!(of(&a, "x.toml"), of(&tmp.path().join("b/../a"), "x.toml"));
        assert_ne!(of(&a, "x.toml"), of(&b, "x.toml"));
        assert_ne!(of(&a, "x.toml"), of(&a, "y.toml"));
        assert_ne!(of(&a, &"x".repeat(255)), of(&a, &"x".repeat(254)));
        assert!(of(&a, &"x".repeat(255)).len() <= 108);
        assert!(socket_name(Path::new("/")).is_err());
    }
}
